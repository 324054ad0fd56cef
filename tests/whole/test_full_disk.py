"""No room on the disk, or in memory: one line, and what was there before is as it was."""

import contextlib
import errno
import os
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from data_prep import build
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.dataset.one_shard import disk_full
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.embed.table import Table, load_table, save_table
from lvcg_jax.predict.table import save_predictions
from lvcg_jax.train import loop


@contextlib.contextmanager
def no_room(size: int = 4096):
    """No file of this process can grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def table() -> Table:
    ids = np.array([f"r{i}" for i in range(40)])
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    return Table(ids, ids, np.full(40, "test"), [{}] * 40, x, {"structure": 64})


@pytest.mark.parametrize("name", ["embeddings.npz", "embeddings.parquet", "a.csv", "report.html"])
def test_a_full_disk_leaves_the_file_of_before(tmp_path, name):
    path = tmp_path / name

    def write(times: int):
        whole = table()
        if name.startswith("embeddings"):
            save_table(path, replace(whole, embedding=whole.embedding * times))
        elif name == "a.csv":
            save_predictions(path, {f"c{i}": whole.embedding[i] * times for i in range(40)})
        else:
            write_whole(path, "<p>page</p>" * 1000 * times)

    write(1)
    before = path.read_bytes()
    with no_room(), pytest.raises(InputError, match=r"cannot be written \(.*\); make room"):
        write(2)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [name]
    write(2)
    assert path.read_bytes() != before
    if name.startswith("embeddings"):
        np.testing.assert_array_equal(load_table(path).embedding, 2 * table().embedding)


def test_a_build_on_a_full_disk_goes_on_where_it_stopped(raw_corpus, tmp_path):
    def flags(out):
        more = ["--limit=12", "--shard_records=4", "--no_detectors"]
        return ["--corpus=synthetic", f"--raw={raw_corpus}", f"--out={tmp_path / out}", *more]

    with no_room(100_000), pytest.raises(InputError, match="disk full; make room and run the same"):
        build.main(flags("full"))
    assert build.main(flags("full")) == 0 and build.main(flags("whole")) == 0
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "full" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    "number, words",
    [
        (errno.EROFS, "read-only; make it writable"),
        (errno.ESTALE, "cannot be reached; mount it again"),
        (errno.EIO, "cannot be reached; mount it again"),
    ],
)
def test_a_disk_that_goes_away_under_a_build_is_one_line(number, words, tmp_path):
    for error in (OSError(number, os.strerror(number)), RuntimeError(f"x: {os.strerror(number)}")):
        with pytest.raises(InputError, match=words), disk_full(tmp_path):
            raise error


def test_a_batch_that_does_not_fit_into_memory_is_named(model):
    windows = model._windows(make_record()[0], 250, LEADS, "mV", None)
    with pytest.raises(InputError, match=r"a batch of 1 windows \(1099511627776 beats\) does not"):
        model.embed_windows(windows, 2**40, 1)
    assert len(model.embed_windows(windows, model.max_beats, 1)[0]) == 1


def test_a_step_that_does_not_fit_into_memory_says_what_to_lower(
    smoke, trained_run, tmp_path, monkeypatch
):
    def no_memory(*_):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9876543210 bytes.")

    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    shutil.rmtree(run / "checkpoints" / str(smoke.train.steps))
    before = LVCG.load(run, "latest").checkpoint
    monkeypatch.setattr(loop, "CompiledStep", lambda *_: no_memory)
    told = r"a step of \d+ records in 1 parts does not fit \(asked for 9876543210 bytes\); set"
    with pytest.raises(InputError, match=f"out of memory: {told} model.remat"):
        loop.train_and_evaluate(smoke, run)
    assert LVCG.load(run, "latest").checkpoint == before
