"""Supervised ceilings: every input at one budget, judged by validation records that nothing else
changes."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.model.parts import Encoding, Layers
from lvcg_jax.studies.ceiling import __main__ as ceiling
from lvcg_jax.studies.ceiling import training
from lvcg_jax.studies.ceiling.inputs import INPUTS, Crops, around, cut, fit_inputs, read_split

TINY = training.Regime(
    encoding=Encoding(token_dim=8, stem_features=8, stage_features=(8,), stage_blocks=(1,)),
    layers=Layers(dropout=0.1),
    rows=8,
)
CHOSEN = "vcg beats,whole record in mV"


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "REGIME", TINY)
        patch.setattr(training, "JUDGE_ROWS", 16)
        yield


@pytest.fixture(scope="module")
def data(signal_shards, tmp_path_factory):
    """A data set whose test records are gone."""
    folder = shutil.copytree(signal_shards, tmp_path_factory.mktemp("ceiling") / "data")
    for shard in read_metadata(folder)["splits"]["test"]["shards"]:
        (folder / shard["file"]).unlink()
    (folder / "beat_counts-test.npy").unlink()
    return folder


@pytest.fixture(scope="module")
def flags(data, tiny, tmp_path_factory):
    """The command once: two inputs, a seed each."""
    folder = tmp_path_factory.mktemp("out")
    flags = [f"--data={data}", f"--out={folder}", f"--page={folder / 'page.md'}"]
    flags += ["--tflop=0.0001", f"--inputs={CHOSEN}", "--seeds=1"]
    assert ceiling.main(flags) == 0
    return flags


@pytest.fixture(scope="module")
def read(data):
    """Both splits in memory, every task of the data set."""
    shards = [ShardSet(data, split) for split in ("train", "validation")]
    tasks = read_metadata(data)["tasks"]
    kinds = dict.fromkeys(one.units for one in INPUTS.values())
    records = [read_split(split, tasks, kinds) for split in shards]
    return records, fit_inputs(records[0], shards[0], INPUTS.values()), tasks


def crops_of(read, name, split=1):
    return Crops(INPUTS[name], read[0][split], read[1], rate=100.0)


def test_the_table_is_made_without_the_test_split(flags, data):
    folder = data.parents[0]
    page = (out_of(flags) / "page.md").read_text()
    document = json.loads((out_of(flags) / "ceiling.json").read_text())
    assert [result["input"] for result in document["results"]] == CHOSEN.split(",")
    for result in document["results"]:
        assert all(0 <= score <= 1 for score in result["scores"].values())
        assert result["flops"] <= 1e8 and result["steps"] >= training.FEWEST_STEPS
        splits = read_metadata(data)["splits"]
        assert result["validation_records"] == splits["validation"]["examples"]
    assert "## Supervised ceilings" in page and "lvcg ceiling" in page and str(folder) not in page
    assert all(f"| {name} |" in page for name in CHOSEN.split(","))


def out_of(flags):
    return Path(flags[1].split("=", 1)[1])


def test_it_goes_on_after_a_stop_with_what_is_missing(flags, monkeypatch):
    made, train = [], training.train

    def stops_at_the_second(crops, sizes, flops, seed, done):
        made.append(seed)
        if len(made) == 2:
            raise KeyboardInterrupt
        return train(crops, sizes, flops, seed, done)

    monkeypatch.setattr(training, "train", stops_at_the_second)
    more = [*flags[:-1], "--seeds=2"]
    with pytest.raises(KeyboardInterrupt):
        ceiling.main(more)
    before = {path: path.stat().st_mtime_ns for path in out_of(flags).glob("trainings/*")}
    assert len(before) == 3 and made == [1, 1]  # seed 0 was there
    assert ceiling.main(more) == 0 and made == [1, 1, 1]
    after = {path: path.stat().st_mtime_ns for path in out_of(flags).glob("trainings/*")}
    assert len(after) == 4 and before.items() <= after.items()
    assert "2 |" in (out_of(flags) / "ceiling.md").read_text()
    monkeypatch.setattr(ceiling.Trainings, "read", lambda *_: pytest.fail("nothing is missing"))
    assert ceiling.main(more) == 0


@pytest.mark.parametrize("name", ["field modes in mV", "whole record z-scored"])
def test_padding_and_batch_mates_do_not_change_logits(read, tiny, name):
    crops = crops_of(read, name)
    network = training.Classifier(TINY, sum(map(len, read[2].values())))
    rows, start = np.array([3, 0, 5, -1]), np.zeros(4, int)
    batch = crops.batch(rows, start)
    assert not batch["mask"].all()  # there is padding within crops too
    variables = training.fresh_state(network, batch, jax.random.key(0)).variables
    together = np.asarray(training.logits_of(network, variables, batch))
    # other mates, in other places, and other numbers where nothing is
    other = crops.batch(np.array([7, -1, 3, 1]), start)
    other["x"] = np.where(other["mask"][..., None, None], other["x"], np.float16(9))
    if "seconds" in other:
        other["seconds"] = np.where(other["mask"][..., None], other["seconds"], 9.0)
    apart = np.asarray(training.logits_of(network, variables, other))
    np.testing.assert_allclose(apart[2], together[0], atol=1e-5)
    assert np.abs(apart[0] - together[0]).max() > 1e-3


def test_records_without_labels_of_a_task_do_not_count_in_it():
    logits = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]], np.float32)
    batch = {"labels": np.array([[1, 0, 1], [0, 1, 0]], bool)}
    batch["labelled"] = np.array([[1, 1, 1], [0, 0, 1]], bool)
    each = np.logaddexp(0, np.where(batch["labels"], -logits, logits))
    expected = (each[0, :2].mean() + each[:, 2].mean()) / 2
    np.testing.assert_allclose(training.loss_of(logits, batch, (2, 1)), expected, rtol=1e-6)


def test_crops_hold_the_whole_record_and_training_sees_every_record_once_a_pass(read, monkeypatch):
    crops = crops_of(read, "whole record in mV")
    crops.size = 30
    starts = crops.covering(0)
    seen = np.unique(starts[:, None] + np.arange(30))
    np.testing.assert_array_equal(seen, np.arange(crops.units.count[0]))
    monkeypatch.setattr(training, "REGIME", TINY)
    rows = np.concatenate([training.rows_of(12, 0, step) for step in range(3)])
    np.testing.assert_array_equal(np.bincount(rows), 2)


def test_units_are_cut_where_the_record_has_them(read, data):
    window = ShardSet(data, "validation")[0]
    signal = window["signal"].astype(np.float32)
    x, _ = cut(window, "signal", 100.0)
    np.testing.assert_array_equal(x[:, 0].T, window["signal"])
    windows = around(signal, np.array([100, 0]), 100.0)
    np.testing.assert_array_equal(windows[0].T, signal[:, 65:155])
    np.testing.assert_array_equal(windows[1, :35], 0)
    beats, intervals = cut(window, "beats", 100.0)
    whole = np.flatnonzero(window["complete"])
    np.testing.assert_allclose(intervals[whole, 0], window["length"][whole] / 100, rtol=1e-6)
    np.testing.assert_array_equal(intervals[1:, 1], intervals[:-1, 0])
    np.testing.assert_array_equal(beats[0].T, window["beats"][0])


def test_millivolts_are_in_units_of_the_training_records_sizes(read):
    (train, validation), fitted, _ = read
    np.testing.assert_allclose(fitted.sizes, np.median(train.scale, 0), rtol=1e-5)
    gain = crops_of(read, "12-lead beats in mV").gain
    np.testing.assert_allclose(gain, validation.scale / fitted.sizes, rtol=1e-5)
    assert (crops_of(read, "12-lead beats").gain == 1).all()
    assert crops_of(read, "field modes in mV").lift.shape[1:] == (6, 12)
    assert crops_of(read, "vcg beats").lift.shape[1:] == (3, 12)


def test_mistakes_are_told(flags, quick_shards, tmp_path):
    with pytest.raises(InputError, match="no input 'beats'; there are vcg beats, 12-lead"):
        ceiling.main([*flags, "--inputs=beats"])
    with pytest.raises(InputError, match="holds beats only.*--store_signal"):
        ceiling.main([f"--data={quick_shards}", f"--out={tmp_path}"])
    with pytest.raises(InputError, match="no task colour"):
        ceiling.main([*flags, "--task=colour"])
    with pytest.raises(InputError, match="is under 10 steps: give "):
        ceiling.main([*flags, "--tflop=1e-9"])
