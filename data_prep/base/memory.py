"""What a process does with memory it has freed: keep it for the next step, or return it to the
system.

A training step frees a gigabyte and asks for it again. If it goes back to the system in between,
each of its pages faults and is zeroed anew in every step, which takes a fifth of the time on CPU
(docs/scaling.md). What compilation frees is not needed again.
"""

import contextlib
import ctypes
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

# (option, value) for mallopt, from malloc.h: M_MMAP_MAX and M_TRIM_THRESHOLD
NO_MAPPED_ARRAYS, NEVER_SHRINK = (-4, 0), (-1, -1)
ALIGNMENT = 128  # additional bytes for XLA's aligned arrays
STATUS = Path("/proc/self/status")  # Linux only
TRIES = 3  # allocations, until one has the wanted address


def keep_freed_memory() -> None:
    """Makes this process keep the memory it frees.

    For commands that own their process and run JAX on CPU; call it after JAX is imported and before
    the first array. Other threads still return large arrays to the system, so the main thread has
    to run the steps. (One heap for all threads is no remedy: after XLA has compiled, it has a
    hundred thousand holes, which every allocation searches.)
    """
    jax, c = sys.modules.get("jax"), _c_library()
    if jax is None or c is None:  # data preparation runs without JAX
        return
    for option, value in (NO_MAPPED_ARRAYS, NEVER_SHRINK):
        c.mallopt(option, value)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    KeptRoom.useful = True


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, after something large that is not needed again."""
    c = _c_library()
    if c is not None:
        c.malloc_trim(0)


class KeptRoom:
    """Memory that programs of the main thread use one after another.

    Between two programs it is held, so that no other array is placed in it. Otherwise the next
    program would no longer fit there and would take as much memory again elsewhere.
    """

    useful = False  # set by keep_freed_memory; without it there is nothing to hold

    def __init__(self):
        self._size, self._held = 0, None

    @contextlib.contextmanager
    def open(self, size: int) -> Iterator[None]:
        """Within this context, a program that asks for `size` bytes gets the memory of the one
        before."""
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
        """Releases the memory until the next call of `open`."""
        self._free([self._held])
        self._held = None

    def _take(self, wanted: int | None) -> tuple[int | None, list[int | None]]:
        """Allocates at the wanted address; also returns the other allocations made on the way.

        If something else lies at that address, the first allocation is used instead, and the memory
        that is free there goes back to the system.
        """
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
    """glibc, or None: other C libraries have no such settings."""
    try:
        c = ctypes.CDLL(None)
        c.mallopt.argtypes, c.malloc_trim.argtypes = [ctypes.c_int, ctypes.c_int], [ctypes.c_size_t]
        c.free.argtypes, c.free.restype = [ctypes.c_void_p], None
        c.malloc.argtypes, c.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    except (AttributeError, OSError, TypeError):
        return None
    return c


def peak_memory() -> float:
    """The most memory that this program has used so far, in GiB.

    On Linux it is read from /proc: getrusage also counts what the process used before it became
    this program.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    if found:
        return int(found[1]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, else KiB


def used_memory() -> int:
    """The memory that this program uses now, in bytes; where that cannot be read, the most so
    far."""
    found = re.search(r"VmRSS:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return int(found[1]) * 1024 if found else round(peak_memory() * 2**30)
