"""The shape of beats in mV: windows around R peaks, modes, and their place in the embedding."""

import jax
import numpy as np
import pytest

from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.segment import stitch_beats
from lvcg_jax import LVCG
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.export import add_parts as command
from lvcg_jax.model.beat_shape import BEND, TIMES, BeatShape, around_peaks, mean_and_change
from lvcg_jax.train.beat_modes import CHUNK, fit_beat_modes, in_rows

MODES = (12, 6)


@pytest.fixture(scope="module")
def shards(shards_dir):
    return ShardSet(shards_dir, "train")


@pytest.fixture(scope="module")
def windows(shards):
    return list(shards.read(range(20)))


@pytest.fixture(scope="module")
def pictures(shards, windows):
    """mean and change [20,l,w]."""
    found = mean_and_change(*in_rows(windows, 20), shards.preprocess.rate)
    return [np.asarray(x)[: len(windows)] for x in found]


@pytest.fixture(scope="module")
def fitted(shards):
    return fit_beat_modes(shards, MODES, 20)


def test_windows_are_cut_around_r_peaks_as_they_were_recorded(shards, windows):
    rate = shards.preprocess.rate
    for window in windows[:3]:
        beats = np.asarray(window["beats"], np.float32)
        start, length = np.asarray(window["start"]), np.asarray(window["length"])
        signal = stitch_beats(beats, start, length, int(window["num_samples"]))
        found, used = around_peaks(beats, length, len(beats), rate)
        at = start[:, None] + np.round(TIMES * rate).astype(int)  # 100 Hz: whole samples
        inside = (at[:, 0] >= 0) & (at[:, -1] <= signal.shape[1] - 1) & (np.arange(len(beats)) > 0)
        np.testing.assert_array_equal(used, inside)
        assert 2 < inside.sum() < len(beats)
        for n in np.flatnonzero(inside):
            np.testing.assert_allclose(found[n], signal[:, at[n]], atol=1e-3)


def test_pictures_are_in_mv_and_ignore_empty_slots(shards, windows, pictures):
    rate, (beats, length, count, scale) = shards.preprocess.rate, in_rows(windows, 20)
    twice, change = mean_and_change(beats, length, count, 2 * scale, rate)
    in_mv = lambda x: np.sign(x) * np.expm1(np.abs(x)) * BEND  # noqa: E731
    np.testing.assert_allclose(in_mv(twice)[:20], 2 * in_mv(pictures[0]), rtol=1e-4, atol=1e-5)
    assert (np.asarray(change)[:20] > pictures[1]).any()
    beats[np.arange(20) >= count[:, None]] = np.nan
    again, _ = mean_and_change(beats, length, count, scale, rate)
    np.testing.assert_array_equal(np.asarray(again)[:20], pictures[0])


def test_a_record_without_a_whole_window_still_has_a_shape(shards, windows):
    rate = shards.preprocess.rate
    beats, length, _count, scale = (x[:1] for x in in_rows(windows, 20))
    for kept in (1, 2):
        few = beats[:, :kept], length[:, :kept], np.full(1, kept)
        mean, change = mean_and_change(*few, scale, rate)
        assert np.isfinite(mean).all() and np.isfinite(change).all() and np.ptp(mean) > 0


def test_modes_are_the_principal_components(shards, fitted):
    rows = list(shards.read(range(len(shards))))
    means = [
        np.asarray(mean_and_change(*in_rows(rows[i : i + CHUNK], 20), shards.preprocess.rate)[0])[
            : len(rows[i : i + CHUNK])
        ]
        for i in range(0, len(rows), CHUNK)
    ]
    x = np.concatenate(means).reshape(len(rows), -1)
    singular = np.linalg.svd(x - x.mean(0), compute_uv=False)
    sizes = np.linalg.norm(fitted["mean"]["modes"].reshape(-1, MODES[0]), axis=0)
    np.testing.assert_allclose(sizes, singular[: MODES[0]] / np.sqrt(len(x)), rtol=1e-3)


def test_few_records_have_few_modes(shards, monkeypatch):
    monkeypatch.setattr("lvcg_jax.train.beat_modes.MOST", 5)
    modes = fit_beat_modes(shards, MODES, 20)["mean"]["modes"]
    assert (np.abs(modes).max((0, 1)) > 0).tolist() == [True] * 4 + [False] * 8


def test_unseen_leads_cannot_reach_the_coordinates_and_are_guessed(shards, windows, fitted):
    rows, network = in_rows(windows, 20), BeatShape(*MODES, shards.preprocess.rate)
    coordinates = jax.jit(lambda *x: network.apply({"params": fitted}, *x)[: len(windows)])
    every = np.ones((CHUNK, len(LEADS)), bool)
    whole = coordinates(*rows, every)
    seen = every & np.isin(LEADS, ["I", "II", "V2"])
    beats, length, count, scale = rows
    other = np.where(seen[:, None, :, None], beats, np.float16(np.nan))
    few = coordinates(other, length, count, np.where(seen, scale, np.nan), seen)
    np.testing.assert_array_equal(few, coordinates(*rows, seen))
    assert np.corrcoef(few.ravel(), whole.ravel())[0, 1] > 0.9
    assert not np.asarray(coordinates(*rows, ~every)).any()  # nothing is known: the mean record


def test_the_command_adds_modes_to_a_run_and_embeddings_have_them(
    trained_run, shards_dir, shards, tmp_path, capsys
):
    out, model = tmp_path / "modes", LVCG.load(trained_run)
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={out}"]
    assert command.main([*flags, "--beat_modes=12,6"]) == 0
    assert "with 12 + 6 modes of beats" in capsys.readouterr().out
    found = LVCG.load(out)
    assert found.part_sizes["structure"] == model.part_sizes["structure"] + sum(MODES)
    table = embed_dataset(found, shards_dir, progress=False)
    plain = embed_dataset(model, shards_dir, progress=False)
    same = table.part_columns["structure"].start + np.arange(model.part_sizes["structure"])
    np.testing.assert_allclose(
        table.embedding[:, same], plain.embedding[:, plain.part_columns["structure"]], atol=1e-5
    )
    # alone and in a batch, and as the pictures say
    first = next(iter(shards.read([0])))
    row = list(table.record_id).index(first["record_id"])
    place = np.arange(sum(MODES)) + same[-1] + 1
    _, alone = found.embed_windows([first | {"visible": first["lead_mask"]}])
    np.testing.assert_allclose(
        alone["structure"][0, -sum(MODES) :], table.embedding[row, place], atol=2e-5
    )
