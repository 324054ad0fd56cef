"""The public surface is typed: mypy agrees with it, and a caller's mistake is seen."""

import os
import subprocess
import sys

from helpers.commands import ROOT

USE = """
from lvcg_jax import LVCG, Embedding

model: LVCG = LVCG.load("best")
reveal_type(model)
reveal_type(Embedding.mean)
LVCG.load("best", wich="latest")
"""


def mypy(*arguments: str) -> subprocess.CompletedProcess:
    """By the settings in pyproject.toml, with this source before an installed one."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *arguments],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_mypy_agrees_with_the_public_surface(tmp_path):
    done = mypy(f"--cache-dir={tmp_path}")
    assert done.returncode == 0, done.stdout


def test_a_type_checker_sees_what_the_package_loads_late(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    done = mypy(f"--cache-dir={tmp_path}", str(tmp_path / "use.py"))
    assert 'Revealed type is "lvcg_jax.embed.lvcg.LVCG"' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "wich" for "load" of "LVCG"' in done.stdout, done.stdout
