"""What the median beat measures: the beat itself, its answers, modes, and their place in the
embedding."""

import jax
import numpy as np
import pytest
from scipy.fft import dct

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.segment import stitch_beats
from lvcg_jax import LVCG
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.export import add_parts as command
from lvcg_jax.model import beat_levels
from lvcg_jax.model.beat_shape import TIMES
from lvcg_jax.train.beat_levels import median_beats
from lvcg_jax.train.beat_modes import in_rows

COUNT = 10


@pytest.fixture(scope="module")
def shards(shards_dir):
    return ShardSet(shards_dir, "train")


@pytest.fixture(scope="module")
def rows(shards):
    """beats, length, count and scale of eight records."""
    return [x[:8] for x in in_rows(list(shards.read(range(8))), 20)]


@pytest.fixture(scope="module")
def with_levels(trained_run, shards_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("levels") / "run"
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={out}"]
    assert command.main([*flags, f"--beat_levels={COUNT}"]) == 0
    return LVCG.load(out)


def test_the_median_beat_is_that_of_the_recorded_signal(shards):
    window = next(iter(shards.read([0])))
    start, length = np.asarray(window["start"]), np.asarray(window["length"])
    beats = np.asarray(window["beats"], np.float32)
    signal = stitch_beats(beats, start, length, int(window["num_samples"]))
    at = start[1:, None] + np.round(TIMES * shards.preprocess.rate).astype(int)
    at = at[(at[:, 0] >= 0) & (at[:, -1] < signal.shape[1])]
    expected = np.median(signal[:, at], axis=1) * np.asarray(window["scale"])[:, None]
    np.testing.assert_allclose(median_beats(shards, 20)[0], expected, atol=2e-3)


def test_an_answer_grows_from_nought_to_one_across_its_level():
    beat = np.zeros((len(LEADS), len(TIMES)), np.float32)
    beat[0] = np.linspace(-1, 1, len(TIMES))
    levels = np.zeros(beat_levels.ANSWERS, np.float32)
    levels[1:] = 1.0  # no slope is as steep, no bend as sharp
    ramps = np.full((3, *beat.shape), 0.5, np.float32)
    found = np.asarray(beat_levels.answers(beat, levels, ramps))
    np.testing.assert_allclose(found[0, 0, 0], np.clip(beat[0] / 0.5 + 0.5, 0, 1), atol=1e-6)
    np.testing.assert_allclose(found[0, :, 1:], 0.5)
    assert not found[1:].any()
    steep = np.asarray(beat_levels.orders(beat))[1, 0]
    np.testing.assert_allclose(steep, 2 / (len(TIMES) - 1), rtol=1e-4)


def test_levels_are_quantiles_and_modes_those_of_the_answers(with_levels, shards):
    fitted = with_levels.variables["params"]["levels"]
    beats = median_beats(shards, 20)
    over = (beats[:, None] > fitted["levels"][0]).mean((0, 2, 3))  # [v]
    np.testing.assert_allclose(over, 1 - np.array(beat_levels.QUANTILES), atol=0.05)
    answers = [beat_levels.answers(x, fitted["levels"], fitted["ramps"]) for x in beats]
    away = (np.stack(answers) - fitted["mean"]).reshape(len(beats), -1)
    np.testing.assert_allclose(away.mean(0), 0, atol=1e-4)
    # rotated back, coordinates are the principal ones: uncorrelated, and falling in size
    found = away @ np.reshape(fitted["modes"], (-1, COUNT)) @ dct(np.eye(COUNT), norm="ortho").T
    covariance = found.T @ found / len(found)
    power = np.diag(covariance)
    assert (np.diff(power) < 0).all() and power[-1] > 0
    np.testing.assert_allclose(covariance - np.diag(power), 0, atol=0.01 * power[0])


def test_unseen_leads_cannot_reach_the_coordinates(with_levels, rows):
    params = with_levels.variables["params"]
    network = beat_levels.BeatLevels(COUNT, 100.0)
    coordinates = jax.jit(
        lambda *x: network.apply({"params": params["levels"]}, *x, params["lead_covariance"])
    )
    beats, length, count, scale = rows
    seen = np.tile(np.isin(LEADS, ["I", "II", "V2"]), (len(beats), 1))
    other = np.where(seen[:, None, :, None], beats, np.float16(np.nan))
    few = coordinates(other, length, count, np.where(seen, scale, np.nan), seen)
    np.testing.assert_array_equal(few, coordinates(beats, length, count, scale, seen))
    assert np.isfinite(few).all()
    whole = coordinates(beats, length, count, scale, np.ones_like(seen))
    assert np.corrcoef(few.ravel(), whole.ravel())[0, 1] > 0.5
    assert not np.asarray(coordinates(beats, length, count, scale, np.zeros_like(seen))).any()


def test_coordinates_of_training_records_are_centred_and_the_batch_does_not_matter(
    with_levels, trained_run, shards_dir, shards
):
    table = embed_dataset(with_levels, shards_dir, progress=False)
    size = LVCG.load(trained_run).part_sizes["structure"]
    assert with_levels.part_sizes["structure"] == size + COUNT
    found = table.embedding[table.split == "train", size : size + COUNT]
    assert (np.abs(found.mean(0)) < 0.05 * found.std(0).max()).all() and (found.std(0) > 0).all()
    first = next(iter(shards.read([0])))
    row = list(table.record_id).index(first["record_id"])
    _, alone = with_levels.embed_windows([first | {"visible": first["lead_mask"]}])
    np.testing.assert_allclose(
        alone["structure"][0, size:], table.embedding[row, size : size + COUNT], atol=2e-4
    )


def test_records_with_few_leads_alone_are_no_ground_to_fit_on(
    trained_run, shards_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr("lvcg_jax.train.beat_levels.MOST", 1)
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path / 'x'}"]
    with pytest.raises(InputError, match="all twelve leads"):
        command.main([*flags, "--beat_levels=4"])
