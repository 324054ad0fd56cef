"""The demo at toy size: every stage runs, and the summary says where things are."""

import subprocess
import sys

from helpers.commands import CONFIG, ROOT, environment

from lvcg_jax.report.run import find_input

SMALL = f"""
from lvcg_jax.config.files import read_config_file
def get_config():
    c = read_config_file("{CONFIG}:smoke")
    c.model.stage_features, c.model.stage_blocks = (8,), (1,)  # quick to compile
    return c
"""


def test_demo_goes_from_nothing_to_pictures(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    command = [
        sys.executable,
        "launch/demo.py",
        f"--out={tmp_path / 'demo'}",
        f"--config={tmp_path / 'small.py'}",
        "--seeds=1",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(quick=True), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "LVCG minus random weights" in done.stdout and str(tmp_path / "demo") in done.stdout
    pictures = {path.name for path in (tmp_path / "demo").glob("*.svg")}
    assert pictures == {
        "record.svg",
        "vcg.svg",
        "reconstruction.svg",
        "training.svg",
        "probe.svg",
        "embedding.svg",
    }
    assert "median beat" in (tmp_path / "demo" / "probe.md").read_text()
    for name in ("probe", "embeddings"):  # so that its report shows scores and maps
        assert find_input(tmp_path / "demo" / "run-seed0", name), name
