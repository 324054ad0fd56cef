"""The same record from another start: who is the same is found again, and pieces are as long as
one another."""

import json

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.ecg.record import Waveform
from lvcg_jax.embed.table import Table
from lvcg_jax.studies.shift import WHOLE, cut, likeness, main, starting


def _table(embedding):
    names = np.array([f"r{i}" for i in range(len(embedding))])
    split = np.full(len(names), "")
    sizes = {"structure": 2, "dynamics": 3, "rhythm": 1}
    return Table(names, names, split, [{}] * len(names), embedding.astype(np.float32), sizes)


def test_cosine_and_nearest_by_hand():
    """The structure stays, the dynamics turn round, the rhythm of two records is exchanged."""
    rng = np.random.default_rng(0)
    before = rng.normal(size=(5, 6))
    after = before.copy()
    after[:, 2:5] = 2 * before[:, 2:5].mean(0) - before[:, 2:5]
    after[:2, 5] = before[[1, 0], 5]
    found = likeness(_table(before), _table(after), resamples=20)
    means = {part: {key: x["mean"] for key, x in found[part].items()} for part in found}
    assert means["structure"] == pytest.approx({"cosine": 1.0, "top1": 1.0})
    assert means["dynamics"] == pytest.approx({"cosine": -1.0, "top1": 0.0})
    spread = before[:, 5] - before[:, 5].mean()
    same = np.sign(spread) == np.sign(np.array([*spread[[1, 0]], *spread[2:]]))
    assert means["rhythm"]["cosine"] == pytest.approx(np.where(same, 1, -1).mean())
    z = (before - before.mean(0)) / before.std(0)
    shifted = (after - before.mean(0)) / before.std(0)
    cosines = (z * shifted).sum(1) / np.linalg.norm(z, axis=1) / np.linalg.norm(shifted, axis=1)
    assert means[WHOLE]["cosine"] == pytest.approx(cosines.mean(), abs=1e-6)


def test_both_pieces_of_a_record_have_the_same_length():
    def pieces(samples, rate=50):
        wave = Waveform(np.arange(samples)[:, None], rate, ["I"])
        return [cut(wave, start, 0.4, 10.0).signal[:, 0] for start in (0.0, 0.4)]

    for samples, length in ((500, 480), (520, 500), (3000, 500)):
        one, other = pieces(samples)
        assert len(one) == len(other) == length
        assert one[0] == 0 and other[0] == 20
    assert len(pieces(10)[0]) == 0  # shorter than the shift: nothing is left


def test_the_command_measures_each_start_beside_random_weights(trained_run, shards_dir, tmp_path):
    page = tmp_path / "page.md"
    flags = [f"--checkpoint=mine={trained_run}", f"--data={shards_dir}", "--records=12"]
    more = ["--start=first,complete", "--resamples=10", f"--page={page}", f"--out={tmp_path}"]
    assert main([*flags, *more]) == 0
    document = json.loads((tmp_path / "shift.json").read_text())
    models = document["models"]
    assert list(models) == [
        "mine, first", "mine, complete", "random weights of mine, first",
        "random weights of mine, complete",
    ]  # fmt: skip
    first, complete = (models[f"mine, {start}"]["likeness"] for start in ("first", "complete"))
    for part in ("structure", "rhythm"):
        assert first[part] == complete[part]
    assert first["dynamics"] != complete["dynamics"]
    assert 0 < document["records"] <= 12
    text = page.read_text()
    assert "lvcg shift --checkpoint=mine=" in text and "| mine, complete | dynamics |" in text


def test_the_same_weights_start_elsewhere(model):
    other = starting(model, "first")
    assert other.model.dynamics.start == "first" and model.model.dynamics.start == "complete"
    assert other.checkpoint == model.checkpoint


def test_wrong_flags_are_refused(tmp_path):
    base = ["--checkpoint=best", f"--out={tmp_path}"]
    with pytest.raises(InputError, match="give one of --data and --wfdb"):
        main(base)
    with pytest.raises(InputError, match="--start=middle: choose from complete, first"):
        main([*base, "--data=shards", "--start=middle"])
