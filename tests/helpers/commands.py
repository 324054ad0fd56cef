"""Running the project's commands as a user does, and loading its config file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "pretrain.py"


def get_config(variant: str = "paper"):
    """configs/pretrain.py:variant."""
    from lvcg_jax.config.files import read_config_file

    return read_config_file(f"{CONFIG}:{variant}")


def environment(devices: int = 1, quick: bool = False) -> dict[str, str]:
    """This environment with a number of virtual CPU devices. `quick`: XLA's older code generator,
    which compiles in two thirds of the time, for processes whose numbers are compared only with
    those of others like them."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    if quick:
        flags += " --xla_cpu_use_fusion_emitters=false"
    return {**os.environ, "XLA_FLAGS": flags.strip(), "PYTHONUNBUFFERED": "1"}


def start(module: str, *arguments: str, devices: int = 1, quick: bool = False) -> subprocess.Popen:
    """`python -m module arguments`, running, from the project's root."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(devices, quick),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    module: str, *arguments: str, devices: int = 1, quick: bool = False
) -> subprocess.CompletedProcess:
    """`python -m module arguments`, finished."""
    process = start(module, *arguments, devices=devices, quick=quick)
    out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for_step(workdir, step: int, process: subprocess.Popen) -> None:
    """Returns once a running training has logged this step."""
    from lvcg_jax.runs.metrics_log import read_metrics

    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"ended early: {process.stderr.read()[-3000:]}")
        if any(row["step"] >= step for row in read_metrics(workdir)):
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step} within 300 s")


def train_arguments(workdir, data, *overrides: str, variant: str = "smoke") -> list[str]:
    """The main job's flags."""
    return [
        f"--config={CONFIG}:{variant}",
        f"--workdir={workdir}",
        f"--config.data.dir={data}",
        *overrides,
    ]


# The smoke variant with one encoder stage and, as beats are of 16 samples, two decoder blocks: half
# as much to compile. For the shards of the fixture `quick_shards`.
QUICK = {
    "preprocess.beat_samples": 16,
    "model.stage_features": (8,),
    "model.stage_blocks": (1,),
    "model.decoder_features": (8, 8),
}
QUICK_FLAGS = tuple(f"--config.{name}={value}" for name, value in QUICK.items())


def assert_one_line_error(done: subprocess.CompletedProcess, *words: str) -> None:
    """A user's mistake: exit code 2, one 'error:' line with these words, no stack trace."""
    assert done.returncode == 2, (done.returncode, done.stderr[-2000:])
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr[-2000:]
    for word in words:
        assert word in lines[0], (word, lines[0])
