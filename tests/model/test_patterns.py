"""How often patterns occur: the signal behind it, leads that are filled in, shares, and their place
in the embedding."""

import jax
import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.segment import stitch_beats
from lvcg_jax import LVCG
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.export import add_parts as command
from lvcg_jax.model import patterns, unseen_leads
from lvcg_jax.model.signal import record_signal
from lvcg_jax.train.beat_modes import in_rows
from lvcg_jax.train.patterns import draw_leads

COUNT, SAMPLES = 10, 1000


@pytest.fixture(scope="module")
def shards(shards_dir):
    return ShardSet(shards_dir, "train")


@pytest.fixture(scope="module")
def rows(shards):
    """beats, length, count and scale of eight records."""
    return [x[:8] for x in in_rows(list(shards.read(range(8))), 20)]


@pytest.fixture(scope="module")
def with_patterns(trained_run, shards_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("patterns") / "run"
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={out}"]
    assert command.main([*flags, f"--patterns={COUNT}"]) == 0
    return LVCG.load(out)


def test_every_pattern_ignores_a_constant_and_looks_at_one_to_nine_leads():
    np.testing.assert_allclose(patterns.KERNELS.sum(1), 0, atol=1e-6)
    assert len(np.unique(patterns.KERNELS, axis=0)) == 84
    leads = draw_leads().sum(-1)
    assert leads.min() == 1 and leads.max() == 9
    np.testing.assert_array_equal(draw_leads(), draw_leads())


def test_the_signal_is_the_record_in_mv(shards, rows):
    window = next(iter(shards.read([0])))
    beats, length, _, scale = (x[0] for x in rows)
    signal, there = record_signal(beats, length, scale, SAMPLES)
    start, samples = np.asarray(window["start"]), int(window["num_samples"])
    true = stitch_beats(
        np.asarray(window["beats"], np.float32), start, np.asarray(window["length"]), samples
    )
    assert int(there.sum()) == samples
    true = true * np.asarray(window["scale"])[:, None]
    np.testing.assert_allclose(np.asarray(signal)[:, :samples], true, atol=2e-3)


def test_a_response_is_the_sum_over_taps_and_leads():
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((len(LEADS), 60)).astype(np.float32)
    leads, step = draw_leads()[0], 3
    found = np.asarray(patterns.responses(signal, leads, step, most=7))
    t, c = 30, 5
    taps = signal[leads[c] > 0][:, t + step * np.arange(-4, 5)]
    assert found[t, c] == pytest.approx((patterns.KERNELS[c] * taps).sum(), abs=1e-4)


def test_a_share_counts_samples_over_the_level_and_ignores_those_that_are_not_there():
    response = np.array([[0.0], [1.0], [2.0], [9.0]], np.float32)
    there, levels = np.array([True, True, True, False]), np.array([[0.5], [1.0]], np.float32)
    found = patterns.shares_over(response, there, levels, np.full(1, 1e-3, np.float32))
    np.testing.assert_allclose(found[:, 0], [2 / 3, 1.5 / 3])


def test_leads_that_are_not_seen_are_the_regression_on_those_that_are(rows):
    beats, length, _, scale = rows
    signals = jax.vmap(lambda *x: record_signal(*x, SAMPLES)[0])(beats, length, scale)
    flat = np.swapaxes(np.asarray(signals), 0, 1).reshape(len(LEADS), -1)
    covariance = (flat @ flat.T / flat.shape[1]).astype(np.float32)
    seen = np.isin(LEADS, ["I", "II", "V2"])
    filled, left_over = map(np.asarray, unseen_leads.fill_leads(signals[0], seen, covariance))
    np.testing.assert_array_equal(filled[seen], signals[0][seen])
    limb = dict(zip(LEADS, filled, strict=True))
    np.testing.assert_allclose(limb["III"], limb["II"] - limb["I"], atol=0.02)
    noise = unseen_leads.NOISE * np.trace(covariance) / len(LEADS)
    within = covariance[np.ix_(seen, seen)] + noise * np.eye(3)
    expected = covariance[np.ix_(~seen, seen)] @ np.linalg.solve(
        within, np.asarray(signals[0])[seen]
    )
    np.testing.assert_allclose(filled[~seen], expected, atol=2e-3)
    # and what it leaves over is what a pattern in these leads is trusted less by
    rest = covariance - covariance[:, seen] @ np.linalg.solve(within, covariance[seen])
    np.testing.assert_allclose(
        left_over[np.ix_(~seen, ~seen)], rest[np.ix_(~seen, ~seen)], atol=1e-5
    )
    leads = np.eye(len(LEADS), dtype=np.float32)[None]
    trust = np.asarray(unseen_leads.known_share(leads, covariance, left_over))[0]
    np.testing.assert_array_equal(trust[seen], 1)
    np.testing.assert_allclose(
        trust[~seen], 1 - (np.diag(rest) / np.diag(covariance))[~seen], atol=1e-4
    )
    _, nothing = unseen_leads.fill_leads(signals[0], np.ones(len(LEADS), bool), covariance)
    np.testing.assert_array_equal(unseen_leads.known_share(draw_leads(), covariance, nothing), 1)


def test_unseen_leads_cannot_reach_the_coordinates(with_patterns, rows):
    fitted = {"params": with_patterns.variables["params"]["patterns"]}
    network = patterns.Patterns(COUNT, 100.0, SAMPLES)
    coordinates = jax.jit(lambda *x: network.apply(fitted, *x))
    beats, length, _, scale = rows
    seen = np.tile(np.isin(LEADS, ["I", "II", "V2"]), (len(beats), 1))
    other = np.where(seen[:, None, :, None], beats, np.float16(np.nan))
    few = coordinates(other, length, np.where(seen, scale, np.nan), seen)
    np.testing.assert_array_equal(few, coordinates(beats, length, scale, seen))
    assert np.isfinite(few).all()
    whole = coordinates(beats, length, scale, np.ones_like(seen))
    assert np.corrcoef(few.ravel(), whole.ravel())[0, 1] > 0.5
    assert not np.asarray(coordinates(beats, length, scale, np.zeros_like(seen))).any()


def test_coordinates_of_training_records_are_centred_and_the_batch_does_not_matter(
    with_patterns, trained_run, shards_dir, shards
):
    table = embed_dataset(with_patterns, shards_dir, progress=False)
    plain = LVCG.load(trained_run)
    size = plain.part_sizes["structure"]
    assert with_patterns.part_sizes["structure"] == size + COUNT
    found = table.embedding[table.split == "train", size : size + COUNT]
    assert (np.abs(found.mean(0)) < 0.05 * found.std(0).max()).all() and (found.std(0) > 0).all()
    first = next(iter(shards.read([0])))
    row = list(table.record_id).index(first["record_id"])
    _, alone = with_patterns.embed_windows([first | {"visible": first["lead_mask"]}])
    np.testing.assert_allclose(
        alone["structure"][0, size:], table.embedding[row, size : size + COUNT], atol=2e-4
    )


def test_adding_nothing_is_refused(trained_run, shards_dir, tmp_path):
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path / 'x'}"]
    with pytest.raises(InputError, match="nothing to add"):
        command.main(flags)


def test_until_it_is_fitted_its_numbers_are_zero_also_without_a_lead(rows):
    beats, length, _, scale = rows
    seen = np.tile(np.array(LEADS) != "V3", (len(beats), 1))
    module = patterns.Patterns(COUNT, 100.0, SAMPLES)
    found, _ = module.init_with_output(jax.random.key(0), beats, length, scale, seen)
    np.testing.assert_array_equal(found, np.zeros((len(beats), COUNT)))
