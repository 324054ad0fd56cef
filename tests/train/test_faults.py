"""A disk that fills and shards that go bad while a run is under way: one line that says what, and
nothing lost."""

import resource
import shutil
import socket
import subprocess
from functools import partial

from helpers import commands
from helpers.commands import QUICK_FLAGS, assert_one_line_error, train_arguments, wait_for_step

from data_prep.dataset.shards import ShardSet
from lvcg_jax.runs.checkpoint import open_run

run, start = partial(commands.run, quick=True), partial(commands.start, quick=True)
LONG = (
    *QUICK_FLAGS,
    "--config.train.steps=4000",
    "--config.train.checkpoint_every=5",
    "--config.train.validate_every=100000",
)


def finished(process) -> subprocess.CompletedProcess:
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_a_full_disk_ends_the_run_in_one_line_and_the_last_checkpoint_is_usable(
    quick_shards, tmp_path
):
    arguments = train_arguments(tmp_path / "run", quick_shards, *LONG)
    process = start("lvcg_jax.train", *arguments)
    wait_for_step(tmp_path / "run", 12, process)
    resource.prlimit(
        process.pid, resource.RLIMIT_FSIZE, (8192, 8192)
    )  # no file may grow beyond this, as on a full disk
    assert_one_line_error(
        finished(process), "checkpoint could not be written", "disk full", "intact"
    )
    process = start("lvcg_jax.train", *arguments)
    wait_for_step(tmp_path / "run", 30, process)
    process.terminate()
    done = finished(process)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resuming" in done.stderr


def test_a_shard_that_goes_bad_under_a_run_is_named(quick_shards, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(quick_shards, data)
    process = start("lvcg_jax.train", *train_arguments(tmp_path / "run", data, *LONG))
    wait_for_step(tmp_path / "run", 3, process)
    shard = ShardSet(data, "train").paths[0]
    with open(shard, "r+b") as file:
        file.seek(256)
        file.write(bytes(shard.stat().st_size - 256))
    assert_one_line_error(finished(process), shard.name)
    (data / shard.name).unlink()
    assert_one_line_error(
        run("lvcg_jax.train", *train_arguments(tmp_path / "run", data, *LONG)),
        shard.name,
        "missing",
    )


def test_what_the_first_process_refuses_ends_all_of_them(quick, quick_shards, tmp_path):
    """Two processes that are asked to go on with a run of another seed."""
    quick.seed = 1
    open_run(tmp_path / "run", quick)
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    flags = train_arguments(tmp_path / "run", quick_shards, *QUICK_FLAGS)
    together = [f"--coordinator=localhost:{port}", "--processes=2"]
    both = [start("lvcg_jax.train", *flags, *together, f"--process={k}") for k in (0, 1)]
    for process in both:
        assert_one_line_error(finished(process), "belongs to another config", "seed")
