"""A command's freed arrays stay with its process, and its main thread is the one that makes them."""

import platform
import subprocess
import sys

import pytest

HELD_AFTER_AN_ARRAY = """
import os
from pathlib import Path
import jax
import numpy as np
from data_prep.errors import run_command

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def main(argv):
    before = held()
    np.ones(200_000_000, np.uint8)
    print(held() - before)
    print(jax.config.read("jax_cpu_enable_async_dispatch"))

{run}
"""


def held(run: str) -> tuple[int, bool]:
    """Bytes that a process holds when it has made and dropped an array of 200 MB; if other threads run JAX's steps."""
    script = HELD_AFTER_AN_ARRAY.format(run=run)
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    return int(printed[0]), printed[1] == "True"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_commands_keep_what_they_free():
    kept, elsewhere = held("run_command(main)")
    assert kept > 150_000_000 and not elsewhere
    given_back, elsewhere = held("main(None)")
    assert given_back < 50_000_000 and elsewhere, "by itself the C library gives it back"
