"""What a process does with memory it has freed: keep it for the next step instead of giving it back to the system.

A training step frees a gigabyte and asks for it again. Given back, every page of it is a fault and filled with zeros
anew, each step: on CPU a fifth of the time (docs/scaling.md).
"""

import ctypes

# The C library's numbers (malloc.h). Threads with heaps of their own would still give large arrays back.
ONE_HEAP, NO_MAPPED_ARRAYS, NEVER_SHRINK = (-8, 1), (-4, 0), (-1, -1)


def keep_freed_memory() -> None:
    """For commands that own their process; must come before the threads that allocate. Only glibc has the setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in (ONE_HEAP, NO_MAPPED_ARRAYS, NEVER_SHRINK):
        mallopt(option, value)
