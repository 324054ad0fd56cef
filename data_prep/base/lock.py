"""One writer at a time: a lock file that says who holds it, on which machine, and since when.

The operating system's lock (flock) ends with its process, however that ends, so that a lock file
that a killed process left behind is taken over at once. Some shared file systems have no such
locks, or keep them to one machine. There the content of the file decides: a process of this machine
is looked up. A holder on another machine touches the file every few seconds, so it is watched for a
while: if the time of the file moves, it is alive. No clocks of two machines are compared.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write

BEAT_SECONDS = 10.0  # between two touches
WATCH_SECONDS = 45.0  # without a touch: the holder on another machine is gone
OLD_SECONDS = 86_400.0  # since the last touch: gone for certain, whatever the clocks


@contextlib.contextmanager
def only_one(path: str | Path, what: str) -> Iterator[None]:
    """Holds the lock file `path` within this context, and removes it at the end.

    Raises:
      InputError: another process holds it; `what` says in the message what that process does.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _take(path, what)
    except OSError as error:
        raise cannot_write(path, error) from None
    over = threading.Event()
    beat = threading.Thread(target=_touch, args=(file.fileno(), over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()
        with contextlib.suppress(OSError):
            if _is_there(path, file):
                path.unlink()
        file.close()


@contextlib.contextmanager
def in_turn(path: str | Path) -> Iterator[None]:
    """Waits until no other process of this machine is in the same context.

    It saves work, nothing else: where the file system has no locks, nobody waits.
    """
    with open(path, "a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def refuse_if_held(path: str | Path, what: str) -> None:
    """The InputError of `only_one` if another process holds this lock file, which is not taken."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            holder = _read(path)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise _held(path, what, holder) from None
            if holder and _is_alive(path, holder):
                raise _held(path, what, holder)
    except FileNotFoundError:
        return


def share_folder(folder: str | Path, share: tuple[int, int]) -> Path:
    """Where the process that does one share of the work in a folder has its lock and what it is
    writing: processes with other shares work there at the same time."""
    return Path(folder) / "share-{}-of-{}".format(*share)


def _take(path: Path, what: str):
    """The lock file, open, locked and with our name in it."""
    while True:
        file = open(path, "a+b")  # noqa: SIM115 (held open for as long as the lock)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                file.close()
                raise _held(path, what, _read(path)) from None
            # a file system without such locks: what the file says has to do
        if not _is_there(path, file):  # removed by its holder after we had opened it
            file.close()
            continue
        holder = _read(path)
        if holder and _is_alive(path, holder):
            file.close()
            raise _held(path, what, holder)
        file.truncate(0)
        file.write(json.dumps(_me()).encode())
        file.flush()
        return file


def _held(path: Path, what: str, holder: dict) -> InputError:
    who = "another process"
    if holder:
        who = f"process {holder['process']} on {holder['host']}, since {holder['since']}"
    return InputError(f"{path.parent}: {what} ({who}): wait for it or stop it")


def _me() -> dict:
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": _start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _read(path: Path) -> dict:
    """What a lock file says; empty if it says nothing that makes sense."""
    try:
        held = json.loads(path.read_bytes())
        return held if isinstance(held["process"], int) and held["since"] and held["host"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_alive(path: Path, holder: dict) -> bool:
    """Whether the process that a lock file names is there."""
    if holder["host"] == socket.gethostname():
        if holder["process"] == os.getpid():
            return False  # left behind by an earlier process with our number
        try:
            os.kill(holder["process"], 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # it is there, and somebody else's
        # numbers of processes are used again
        return holder.get("started") in (None, _start_of(holder["process"]))
    before = _time_of(path)
    if time.time() - before / 1e9 > OLD_SECONDS:
        return False
    deadline = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, WATCH_SECONDS / 4))
        if _time_of(path) != before:
            return True
    return False


def _start_of(process: int) -> int | None:
    """When a process of this machine started, in ticks since the machine did; None if unknown."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(words[19])
    except (OSError, ValueError, IndexError):
        return None


def _time_of(path: Path) -> int:
    with open(path, "rb") as file:  # opened anew: network file systems then ask the server
        return os.fstat(file.fileno()).st_mtime_ns


def _touch(number: int, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(number)


def _is_there(path: Path, file) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        there, here = os.stat(path), os.fstat(file.fileno())
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
