"""What a process does with memory it has freed: keep it for the next step instead of giving it back to the system.

A training step frees a gigabyte and asks for it again. Given back, every page of it is a fault and filled with zeros
anew, each step: on CPU a fifth of the time (docs/scaling.md).
"""

import ctypes
import sys

NO_MAPPED_ARRAYS, NEVER_SHRINK = (-4, 0), (-1, -1)  # the C library's numbers (malloc.h): M_MMAP_MAX, M_TRIM_THRESHOLD


def keep_freed_memory() -> None:
    """For commands that own their process: after JAX is imported, before its first array. Only glibc can be told.

    The heaps of its other threads still give large arrays back, so the main thread has to run the steps on CPU. (One
    heap for all threads is no remedy: it has a hundred thousand holes when XLA has compiled, and they are searched.)
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in (NO_MAPPED_ARRAYS, NEVER_SHRINK):
        mallopt(option, value)
    if "jax" in sys.modules:  # data preparation does without
        sys.modules["jax"].config.update("jax_cpu_enable_async_dispatch", False)
