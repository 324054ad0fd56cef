"""Runs that are killed, preempted or moved: the result is that of a run nobody touched."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import commands
from helpers.commands import QUICK_FLAGS, ROOT, train_arguments, wait_for_step

from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.runs.metrics_log import read_metrics

STEPS = 14
# One compiled shape, and a rate at which rounding noise does not grow faster than it can be
# compared.
SETTINGS = (
    *QUICK_FLAGS,
    f"--config.train.steps={STEPS}",
    "--config.data.pack=False",
    "--config.optim.learning_rate=1e-4",
    "--config.train.checkpoint_every=3",
    "--config.train.validate_every=1000",
)

run, start = partial(commands.run, quick=True), partial(commands.start, quick=True)


@pytest.fixture(scope="module")
def reference(quick_shards, tmp_path_factory):
    """One uninterrupted run on one device."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    done = run("lvcg_jax.train", *train_arguments(workdir, quick_shards, *SETTINGS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "finished" in done.stderr
    return workdir


def train_losses(workdir):
    return {row["step"]: row["loss"] for row in read_metrics(workdir) if row["kind"] == "train"}


def parameters(workdir):
    import jax

    return jax.tree.leaves(LVCG.load(workdir, "latest").variables)


def assert_same_run(workdir, reference):
    """Bit for bit: every logged loss and every parameter."""
    assert train_losses(workdir) == train_losses(reference)
    for mine, theirs in zip(parameters(workdir), parameters(reference), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_kill_9_then_the_same_command_equals_the_uninterrupted_run(
    quick_shards, reference, tmp_path
):
    cache = f"--config.data.cache={tmp_path / 'cache'}"  # packed records are the same records
    arguments = train_arguments(tmp_path / "run", quick_shards, *SETTINGS, cache)
    process = start("lvcg_jax.train", *arguments)
    wait_for_step(tmp_path / "run", random.randint(2, STEPS - 6), process)
    time.sleep(random.random() * 0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = run("lvcg_jax.train", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(tmp_path / "run", reference)


def test_sigterm_saves_and_the_same_command_resumes(quick_shards, reference, tmp_path):
    arguments = train_arguments(
        tmp_path / "run", quick_shards, *SETTINGS, "--config.train.checkpoint_every=1000"
    )
    process = start("lvcg_jax.train", *arguments)
    wait_for_step(tmp_path / "run", 5, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    assert "preempted" in err
    done = run("lvcg_jax.train", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming" in done.stderr
    assert_same_run(tmp_path / "run", reference)


# `lvcg train` that gets Ctrl-C, once or until it ends, just before the folder of checkpoint 6 is
# made or gets its final name: Python's audit hooks see both, in whichever thread Orbax does them.
# What a shell starts in the background ignores Ctrl-C, and hands that on: hence the first signal().
INTERRUPTED = """
import os, runpy, signal, sys, time
from pathlib import Path

moment, again = sys.argv.pop(1), sys.argv.pop(1) == "again"
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt(event, arguments):
    if event == moment and Path(arguments[0]).match("checkpoints/6.*"):
        os.kill(os.getpid(), signal.SIGINT)
        while again:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
runpy.run_module("lvcg_jax.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("moment", "times", "newest"),
    # the first Ctrl-C waits for the checkpoint, and for that of step 9 if the loop was already
    # there; a second one does not
    [("os.mkdir", "once", (6, 9)), ("os.rename", "again", (3,))],
)
def test_ctrl_c_within_a_checkpoint_ends_the_run_and_the_same_command_continues(
    moment, times, newest, quick_shards, reference, tmp_path
):
    arguments = train_arguments(tmp_path / "run", quick_shards, *SETTINGS)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment, times, *arguments],
        cwd=ROOT,
        env=commands.environment(quick=True),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 130, done.stderr[-3000:]
    assert "ending after this step" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.rstrip().endswith("\ninterrupted")
    step = LVCG.load(tmp_path / "run", "latest").step
    assert step in newest
    done = run("lvcg_jax.train", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"resuming {tmp_path / 'run'} at step {step}\n" in done.stderr
    assert_same_run(tmp_path / "run", reference)


def assert_close_losses(workdir, reference):
    mine, theirs = train_losses(workdir), train_losses(reference)
    for step in range(1, STEPS + 1):
        assert mine[step] == pytest.approx(theirs[step], rel=1e-5), f"step {step}"


def test_eight_devices_equal_one_and_one_can_go_on(quick_shards, reference, tmp_path):
    arguments = train_arguments(tmp_path, quick_shards, *SETTINGS)
    process = start("lvcg_jax.train", *arguments, devices=8)
    wait_for_step(tmp_path, 8, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    done = run("lvcg_jax.train", *arguments, devices=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_close_losses(tmp_path, reference)


def test_sharded_parameters_and_shared_groups_equal_one_device(quick_shards, reference, tmp_path):
    # packed, so that the two devices also share a group of records
    spread = ("--config.mesh.shard_parameters=data", "--config.mesh.shard_min_size=64")
    spread += ("--config.data.pack=True",)
    done = run(
        "lvcg_jax.train", *train_arguments(tmp_path, quick_shards, *SETTINGS, *spread), devices=2
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_close_losses(tmp_path, reference)


def start_two_processes(*arguments: str) -> subprocess.Popen:
    """launch/local_multihost.sh: 2 processes of 4 devices."""
    more = {
        "PROCESSES": "2",
        "DEVICES": "4",
        "LVCG_PYTHON": sys.executable,
    }
    return subprocess.Popen(
        ["bash", str(ROOT / "launch" / "local_multihost.sh"), *arguments],
        env=commands.environment(quick=True) | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(process: subprocess.Popen) -> list[int]:
    return [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


def test_two_processes_of_four_devices_survive_the_death_of_one_and_equal_one(
    quick_shards, reference, tmp_path
):
    # packed: all eight devices share the records of a batch
    arguments = train_arguments(tmp_path, quick_shards, *SETTINGS, "--config.data.pack=True")
    both = start_two_processes(*arguments)
    # after step 6, before whose save the one of step 3 has ended
    wait_for_step(tmp_path, random.randint(7, STEPS - 6), both)
    os.kill(random.choice(children_of(both)), signal.SIGKILL)
    both.communicate(timeout=60)
    assert both.returncode not in (0, None), (
        "the launcher reports the failure, and leaves nobody waiting"
    )
    again = start_two_processes(*arguments)
    _, err = again.communicate(timeout=200)
    assert again.returncode == 0, err[-3000:]
    assert "resuming" in err
    assert_close_losses(tmp_path, reference)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    quick_shards, reference, tmp_path
):
    import shutil

    shutil.copytree(reference, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / str(STEPS)
    for file in (newest / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run("lvcg_jax.train", *train_arguments(tmp_path / "run", quick_shards, *SETTINGS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"checkpoint {STEPS} cannot be read" in done.stderr
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert {row["step"] for row in rows if row["kind"] == "train"} == set(range(1, STEPS + 1))
