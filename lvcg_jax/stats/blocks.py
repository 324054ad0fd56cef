"""Features that are too many for the memory: kept on disk, and read a block of rows at a time.

Axis letters: m row, d feature.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError

BLOCK = 65_536  # rows that are computed at once; up to so many stay in memory


@dataclass(frozen=True)
class Rows:
    """Some rows of features [m,d], of which nothing is copied before it is asked for.

    Indexing it gives fewer rows, np.asarray their numbers.
    """

    features: np.ndarray
    rows: np.ndarray  # numbers of rows, in any order

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.features.shape[1]

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | np.ndarray) -> "Rows":
        return Rows(self.features, self.rows[index])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.features[self.rows], dtype)


Features = np.ndarray | Rows  # [m,d]


def choose_rows(x: Features, rows: np.ndarray) -> Features:
    """These rows of features: a copy, or where they lie on disk a list of what to read."""
    return Rows(x, np.asarray(rows)) if isinstance(x, np.memmap) else x[rows]


def blocks(x: Features) -> Iterator[np.ndarray]:
    """The rows in order, BLOCK at a time; one block if there are none."""
    for first in range(0, max(len(x), 1), BLOCK):
        yield np.asarray(x[first : first + BLOCK])


def by_blocks(function: Callable[[np.ndarray], np.ndarray], x: Features) -> np.ndarray:
    """What a function makes of each row, with one block of them in memory."""
    return np.concatenate([function(some) for some in blocks(x)])


def room_for(rows: int, columns: int) -> np.ndarray:
    """An empty float32 array [rows,columns]: in memory if it is small, else in a temporary file
    that ends with the process, whose pages the system may drop from memory when it is short."""
    if rows <= BLOCK:
        return np.empty((rows, columns), np.float32)
    with tempfile.TemporaryFile(prefix="lvcg-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 4 * rows * columns)
        except OSError as error:
            raise InputError(
                f"{tempfile.gettempdir()}: no room for {4 * rows * columns / 2**30:.1f} GiB"
                f" ({error.strerror}); set TMPDIR to a folder on a larger disk"
            ) from None
        return np.memmap(file, np.float32, "r+", shape=(rows, columns))
