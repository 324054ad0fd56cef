"""Run directories on object storage, and what is told where only a folder will do."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import gcs_server
from helpers.commands import (
    QUICK_FLAGS,
    ROOT,
    assert_one_line_error,
    get_config,
    run,
    start,
    train_arguments,
)

from data_prep.base import files
from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, require_local, run_place
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from lvcg_jax import LVCG
from lvcg_jax.config.fields import flatten
from lvcg_jax.config.files import load_config
from lvcg_jax.runs.checkpoint import open_run
from lvcg_jax.runs.metrics_log import MetricsLog, read_metrics
from lvcg_jax.train.loop import train_and_evaluate


def test_addresses_are_told_from_folders_also_where_pathlib_took_a_slash():
    assert all(
        map(is_remote, ["gs://bucket/run", "s3://b", Path("gs://bucket/run"), "http://host/x"])
    )
    assert not any(
        map(
            is_remote,
            ["", "runs/paper", "/runs/a:b", "configs/pretrain.py:demo", "C:/runs", Path("best")],
        )
    )
    assert run_place("runs/paper") == Path("runs/paper")


def test_only_gs_will_do_and_only_with_its_packages(monkeypatch):
    for place in ("s3://bucket/run", "http://host/run", "gs://", Path("s3://bucket/run")):
        with pytest.raises(
            InputError, match="a folder or gs://BUCKET/FOLDER; else mount the bucket"
        ):
            run_place(place)
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^gs://bucket/run: .*pip install lvcg-jax\[gcs\]"):
        LVCG.load(Path("gs://bucket/run"))


def test_datasets_and_reports_want_ordinary_files(smoke, tmp_path):
    for use in (
        lambda: ShardSet("gs://bucket/shards", "train"),
        lambda: build(None, Path("s3://bucket/shards"), None),
        lambda: load_config(Path("gs://bucket/run") / "config.json"),
        lambda: require_local("gs://bucket/x"),
    ):
        with pytest.raises(
            InputError, match="(gs|s3)://bucket/.*: only ordinary files .* mount the bucket"
        ):
            use()
    smoke.data.dir = "gs://bucket/shards"
    with pytest.raises(InputError, match="gs://bucket/shards: only ordinary files"):
        train_and_evaluate(smoke, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_another_store_in_one_line_and_makes_nothing():
    done = run("lvcg_jax.train", *train_arguments("s3://bucket/run", ""))
    assert_one_line_error(done, "s3://bucket/run", "mountpoint-s3")
    assert not (ROOT / "s3:").exists()


def test_small_files_of_a_run_go_to_the_bucket_and_come_back(bucket_in_memory):
    place, config = run_place("gs://bucket/run"), get_config("smoke")
    assert run_place(place) == place and str(place) == "gs://bucket/run"
    open_run(place, config)
    assert flatten(load_config(place / "config.json")) == flatten(config)
    assert "jax" in json.loads((place / "versions.json").read_text())
    config.seed = 1
    with pytest.raises(InputError, match="gs://bucket/run belongs to another config"):
        open_run(place, config)

    log = MetricsLog(place, 0)
    for step in (1, 2, 3):
        log.write(step, "train", {"loss": step})
        if step == 2:
            log.upload()
    assert [row["step"] for row in read_metrics("gs://bucket/run")] == [1, 2]
    scratch = log.path.parent
    log.close()
    assert [row["step"] for row in read_metrics(place)] == [1, 2, 3] and not scratch.exists()
    again = MetricsLog(place, 2)  # goes on from a checkpoint of step 2
    again.write(3, "train", {"loss": 30})
    again.close()
    assert [row["loss"] for row in read_metrics(place)] == [1, 2, 30]
    assert len([name for name in bucket_in_memory.store if "/tensorboard/events" in name]) >= 1


def test_a_bucket_that_cannot_be_reached_is_told_in_one_line(bucket_in_memory, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nand more")

    monkeypatch.setattr(bucket_in_memory, "_open", fail)
    with pytest.raises(
        InputError,
        match=r"gs://b/run/config.json cannot be reached \(no route\): is the bucket there",
    ):
        open_run(run_place("gs://b/run"), get_config("smoke"))
    monkeypatch.setattr(bucket_in_memory, "exists", fail)
    with pytest.raises(InputError, match=r"gs://b/run cannot be reached \(no route\)"):
        LVCG.load("gs://b/run")


@pytest.fixture
def bucket(monkeypatch):
    """A server of gs://bucket, and this environment set for it."""
    server = gcs_server.serve()
    for name, value in gcs_server.variables(server.server_port).items():
        monkeypatch.setenv(name, value)
    yield server
    server.shutdown()
    server.server_close()


SUMMARY = """
import sys, numpy as np, jax
from lvcg_jax import LVCG
from lvcg_jax.runs.metrics_log import read_metrics
model = LVCG.load(sys.argv[1], "latest")
loss = [row["loss"] for row in read_metrics(sys.argv[1])]
np.savez(sys.argv[2], *jax.tree.leaves(model.variables), loss=loss)
"""


def summary(workdir, file: Path) -> SimpleNamespace:
    """The losses and the weights of a run, read by another process: gcsfs has threads that outlive
    a test."""
    subprocess.run([sys.executable, "-c", SUMMARY, str(workdir), str(file)], check=True, cwd=ROOT)
    stored = np.load(file)
    return SimpleNamespace(
        loss=stored["loss"], weights=[stored[name] for name in stored.files if name != "loss"]
    )


def test_a_run_killed_while_it_writes_to_the_bucket_ends_as_one_on_disk(
    bucket, quick_shards, tmp_path
):
    settings = [
        f"--config.train.{name}" for name in ("steps=6", "checkpoint_every=2", "log_every=1")
    ]
    settings += QUICK_FLAGS
    done = run(
        "lvcg_jax.train", *train_arguments(tmp_path / "run", quick_shards, *settings), quick=True
    )
    assert done.returncode == 0, done.stderr[-3000:]

    arguments = train_arguments("gs://bucket/runs/one", quick_shards, *settings)
    process = start("lvcg_jax.train", *arguments, quick=True)
    deadline = time.monotonic() + 300
    while not any(
        name.startswith("runs/one/checkpoints/4/state/") for name in list(bucket.objects)
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()[-3000:]
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "runs/one/checkpoints/2/commit_success.txt" in bucket.objects
    done = run("lvcg_jax.train", *arguments, quick=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming gs://bucket/runs/one at step" in done.stderr

    mine, theirs = (
        summary("gs://bucket/runs/one", tmp_path / "a.npz"),
        summary(tmp_path / "run", tmp_path / "b.npz"),
    )
    np.testing.assert_array_equal(mine.loss, theirs.loss)
    for a, b in zip(mine.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    steps = {
        name.split("/")[3] for name in bucket.objects if name.startswith("runs/one/checkpoints/")
    }
    assert steps == {"2", "4", "6"}
    assert not (ROOT / "gs:").exists()
