"""What a process does with memory it has freed: keep it for the next step, or give it back to the
system.

A training step frees a gigabyte and asks for it again. Given back, every page of it is a fault and
filled with zeros anew, each step: on CPU a fifth of the time (docs/scaling.md). What compiling
frees is not asked for again.
"""

import contextlib
import ctypes
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

# the C library's numbers (malloc.h): M_MMAP_MAX, M_TRIM_THRESHOLD
NO_MAPPED_ARRAYS, NEVER_SHRINK = (-4, 0), (-1, -1)
ALIGNMENT = 128  # bytes more that XLA's aligned arrays need
STATUS = Path("/proc/self/status")  # Linux only
TRIES = 3  # until the memory of a program is found again


def keep_freed_memory() -> None:
    """For commands that own their process and run JAX on CPU: after it is imported, before its
    first array.

    The heaps of other threads still give large arrays back, so the main thread has to run the
    steps. (One heap for all threads is no remedy: it has a hundred thousand holes when XLA has
    compiled, and they are searched.)
    """
    jax, c = sys.modules.get("jax"), _c_library()
    if jax is None or c is None:  # data preparation does without
        return
    for option, value in (NO_MAPPED_ARRAYS, NEVER_SHRINK):
        c.mallopt(option, value)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    KeptRoom.useful = True


def give_back_freed_memory() -> None:
    """At a moment when much was freed that will not be asked for again."""
    c = _c_library()
    if c is not None:
        c.malloc_trim(0)


class KeptRoom:
    """Memory that programs of the main thread use one after another. Between them it is held, so
    that no other array settles in it: the next program would not fit there any more, and take as
    much again elsewhere."""

    useful = False  # where freed memory is given back anyway, nothing is held

    def __init__(self):
        self._size, self._held = 0, None

    @contextlib.contextmanager
    def open(self, size: int) -> Iterator[None]:
        """Inside, a program that asks for so many bytes gets those that the one before had."""
        if not self.useful:
            yield
            return
        self._size = max(self._size, size)
        before = self._held
        self.give_up()
        place, others = self._take(before)
        self._free([place])
        try:
            yield
        finally:
            self._held, more = self._take(place)
            self._free(others + more)

    def give_up(self) -> None:
        """Holds nothing until it is opened again."""
        self._free([self._held])
        self._held = None

    def _take(self, wanted: int | None) -> tuple[int | None, list[int | None]]:
        """The memory at the wanted address, and what was offered instead. If something is in the
        way there, the first offer; the rest of what was wanted is given back."""
        offers = []
        for _ in range(TRIES):
            offers.append(_c_library().malloc(self._size + ALIGNMENT))
            if wanted is None or (
                offers[-1] is not None and abs(offers[-1] - wanted) < self._size // 2
            ):
                return offers.pop(), offers
        give_back_freed_memory()
        return offers.pop(0), offers

    @staticmethod
    def _free(places: Sequence[int | None]) -> None:
        for place in places:
            if place is not None:
                _c_library().free(place)


@cache
def _c_library() -> ctypes.CDLL | None:
    """glibc: no other can be told what to keep."""
    try:
        c = ctypes.CDLL(None)
        c.mallopt.argtypes, c.malloc_trim.argtypes = [ctypes.c_int, ctypes.c_int], [ctypes.c_size_t]
        c.free.argtypes, c.free.restype = [ctypes.c_void_p], None
        c.malloc.argtypes, c.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    except (AttributeError, OSError, TypeError):
        return None
    return c


def peak_memory() -> float:
    """GiB. On Linux of this program alone: getrusage also counts what the process held before it
    was this program."""
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    if found:
        return int(found[1]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, else KiB
