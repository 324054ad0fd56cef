"""A command's freed arrays stay with its process, whichever thread made them."""

import platform
import subprocess
import sys

import pytest

HELD_AFTER_AN_ARRAY = """
import os, threading
from pathlib import Path
import numpy as np
from data_prep.errors import run_command

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def main(argv):
    before = held()
    thread = threading.Thread(target=lambda: np.ones(200_000_000, np.uint8))
    thread.start()
    thread.join()
    print(held() - before)

{run}
"""


def held(run: str) -> int:
    """Bytes that a process holds when a thread has made and dropped an array of 200 MB."""
    script = HELD_AFTER_AN_ARRAY.format(run=run)
    return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_commands_keep_what_they_free():
    assert held("run_command(main)") > 150_000_000
    assert held("main(None)") < 50_000_000, "by itself the C library gives it back"
