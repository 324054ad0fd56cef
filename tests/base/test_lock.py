"""One writer at a time: the second is told who the first is, and what a dead process left behind is
no obstacle."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep.base import lock
from data_prep.base.errors import InputError
from data_prep.base.lock import only_one

REPO = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from data_prep.base.lock import only_one
with only_one(sys.argv[1], "busy"):
    print("held", flush=True)
    time.sleep(60)
"""


def left_behind(path, **change) -> None:
    path.write_text(json.dumps(lock._me() | change))


def test_the_second_is_told_who_the_first_is(tmp_path):
    path = tmp_path / "run" / "lock"
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        told = rf"busy too \(process {first.pid} on .*, since 20"
        with pytest.raises(InputError, match=told), only_one(path, "busy too"):
            pass
        first.kill()
    assert path.exists()
    with only_one(path, "busy"):  # kill -9 leaves the file, not the lock
        assert json.loads(path.read_text())["process"] == os.getpid()
    assert not path.exists()


def test_what_the_file_says_counts_where_the_system_has_no_locks(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    path, parent = tmp_path / "lock", os.getppid()
    left_behind(path, process=parent, started=lock._start_of(parent))
    with pytest.raises(InputError, match=f"process {parent} on"), only_one(path, "busy"):
        pass
    for change in ({"process": 2**22 + 1}, {"process": parent, "started": 1}):
        left_behind(path, **change)  # gone, or another process that got its number
        with only_one(path, "busy"):
            pass
    path.write_bytes(b"\xff nonsense")
    with only_one(path, "busy"):
        pass


def test_a_holder_on_another_machine_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "WATCH_SECONDS", 0.2)
    path = tmp_path / "lock"
    left_behind(path, host="elsewhere")
    with only_one(path, "busy"):  # its time does not move
        pass
    left_behind(path, host="elsewhere")
    monkeypatch.setattr(lock, "_time_of", lambda _: time.time_ns())
    with pytest.raises(InputError, match="on elsewhere"), only_one(path, "busy"):
        pass


def test_an_old_lock_of_another_machine_is_taken_over_at_once(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    left_behind(path, host="elsewhere")
    os.utime(path, (0, time.time() - 2 * lock.OLD_SECONDS))
    monkeypatch.setattr(lock.time, "sleep", lambda _: pytest.fail("it waited"))
    with only_one(path, "busy"):
        pass


def test_the_holder_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    path = tmp_path / "lock"
    with only_one(path, "busy"):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0
