"""Which records make which training batch, worked out by every process for its own records alone.

The places of an epoch (see epochs.py) are cut into as many columns as a batch has records, all of
the same length but for one place. Each batch takes one record of every column. Records of a column
have nearly as many beats, so that all batches have nearly as many, and so has any group of columns
in every batch. Columns are dealt out to micro-batches and devices once, when training starts.

Let an epoch have E = K B + R places, and a batch B records. In epoch e, column j has

    K + floor((j + e + 1) R / B) - floor((j + e) R / B)

places: K, or one more. Summed over columns this gives all E places of the epoch, summed over epochs
no column is ever a step ahead of another, and both sums have a closed form. A column takes its
places in their order, from a place of its own on, and then from its beginning.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from scipy.ndimage import maximum_filter1d

from lvcg_jax.data.epochs import Epochs

WINDOW_RECORDS = 16384  # own records that are worked out at a time
KEPT_WINDOWS = 4
TURN_BITS = 20  # of the fraction of a column at which it starts
# By how many places a column may be away from where another epoch would have it: one each by its
# first place, its length, where it starts and its step.
SLACK = 4


def share_out(numbers: np.ndarray, loads: np.ndarray, hands: int) -> np.ndarray:
    """Deals numbers out to `hands`, as many to each and with nearly equal sums of loads.

    They are dealt in rounds, those with the largest loads first. In each round the hand with the
    smallest load so far gets the largest.

    Args:
      numbers: [n]; n is a multiple of `hands`.
      loads: the load of every number, by number.
      hands: how many.

    Returns:
      [hands,n/hands] numbers.
    """
    if hands == 1:
        return numbers[None]
    largest_first = np.argsort(-loads[numbers], kind="stable")
    rounds = numbers[largest_first].reshape(-1, hands)
    shared, so_far = np.empty_like(rounds), np.zeros(hands, loads.dtype)
    for k, numbers_left in enumerate(rounds):
        smallest_first = np.argsort(so_far, kind="stable")
        shared[k, smallest_first] = numbers_left
        so_far[smallest_first] += loads[numbers_left]
    return shared.T


class BatchOrder:
    """The record numbers of each training step (from 0), the same on every process.

    Which records make a batch, and a micro-batch, follows from the seed alone; groups only arrange
    them. Every record is in an epoch once, or as often as `sets` says.

    Args:
      counts: beats of every record.
      batch_size: records of a batch.
      accumulate: micro-batches of a batch, a.
      groups: groups of a micro-batch, g.
      seed: of the order.
      sets: see Epochs.
    """

    def __init__(
        self,
        counts: np.ndarray,
        batch_size: int,
        accumulate: int,
        groups: int,
        seed: int,
        sets: Sequence[tuple[int, int]] | None = None,
    ):
        self.epochs, self.batch_size = Epochs(counts, seed, sets), batch_size
        most, whole = self.epochs.most_beats(), divmod(self.epochs.length, batch_size)
        self._whole, self._rest = whole
        columns = np.arange(batch_size)

        # Mean beats of the columns. Where a column begins with records of fewer beats than it ends
        # with, it starts where the one before has come to its end: their sum stays the same.
        first = columns * self.epochs.length // batch_size
        length = np.diff(np.r_[first, self.epochs.length])
        sums = np.r_[0, np.cumsum(most)]
        mean = (sums[first + length] - sums[first]) / np.maximum(length, 1)
        mean = np.where(length, mean, most[first])
        turn = np.mod(-np.cumsum(mean - most[first]), 1.0)
        self._turn = (turn * 2**TURN_BITS).astype(np.int64)

        # [a,g,r]: the column of each record
        self.columns = np.stack(
            [share_out(some, mean, groups) for some in share_out(columns, mean, accumulate)]
        )
        self._most_beats = self._bound(most, first)

    def __len__(self) -> int:
        return sys.maxsize  # training ends when it has made its steps

    def __getitem__(self, step: int) -> np.ndarray:
        """The record numbers of a whole batch, [a*g*r]."""
        return self.records(np.array([step]), self.columns.reshape(-1))[0]

    def records(self, steps: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The record numbers of these columns in these steps, [steps,columns]."""
        epoch, place = (x.reshape(-1) for x in self._places(steps[:, None], columns))
        return self.epochs.records(epoch, place).reshape(len(steps), -1)

    def most_beats(self) -> int:
        """No group of any batch has more beats."""
        return self._most_beats

    def _places(self, step: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch and place of columns at steps."""
        size, whole, rest = self.batch_size, self._whole, self._rest
        before = column * rest // size
        epoch = ((step + before + 1) * size - 1 - column * rest) // self.epochs.length
        shifted = (column + epoch) * rest // size
        length = whole + (column + epoch + 1) * rest // size - shifted
        steps_before = epoch * whole + shifted - before  # of earlier epochs
        first = column * whole + shifted - epoch * rest // size
        start = self._turn[column] * length >> TURN_BITS
        return epoch, first + (step - steps_before + start) % length

    def _bound(self, most: np.ndarray, first: np.ndarray) -> int:
        """The beats that a group has at most, from the most beats of each place.

        One epoch stands for all. Where its length is no multiple of the batch, a column may be a
        few places away from where it is here, so that the largest count nearby is taken.
        """
        length = self._whole + (2 if self._rest else 0)
        beats = most[np.minimum(first[:, None] + np.arange(length), len(most) - 1)]
        if self._rest:
            beats = maximum_filter1d(beats, 2 * SLACK + 1, axis=1, mode="wrap")
        start = self._turn * self._whole >> TURN_BITS
        beats = np.take_along_axis(beats, (np.arange(length) + start[:, None]) % length, axis=1)
        return max(int(beats[group].sum(0).max()) for group in np.concatenate(self.columns))


class OwnOrder:
    """The record numbers [a,g_local,r] of each step that one process reads, for several threads.

    They are worked out for a window of steps at a time by a thread of their own, the next window
    while this one is used, and each only once.
    """

    def __init__(self, order: BatchOrder, local_groups: Sequence[int]):
        self._order, self._columns = order, order.columns[:, list(local_groups)]
        self.steps = max(1, WINDOW_RECORDS // self._columns.size)  # of a window
        self._windows: OrderedDict[int, Future[np.ndarray]] = OrderedDict()
        self._latest: tuple[int, np.ndarray | None] = (-1, None)
        self._lock, self._worker = threading.Lock(), ThreadPoolExecutor(1, "batch_order")

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> np.ndarray:
        window, place = divmod(step, self.steps)
        latest, records = self._latest  # one read: another thread may set it
        if latest != window:
            records = self._ask(window).result()
            self._latest = window, records
        return records[place]

    def wait(self) -> None:
        """Returns when every window that was asked for is there."""
        with self._lock:
            asked = list(self._windows.values())
        for window in asked:
            window.result()

    def _ask(self, window: int) -> "Future[np.ndarray]":
        """A window that is worked out, or will be; the next one is asked for too."""
        with self._lock:
            for number in (window, window + 1):
                if number not in self._windows:
                    self._windows[number] = self._worker.submit(self._work_out, number)
                self._windows.move_to_end(number)
            while len(self._windows) > KEPT_WINDOWS:
                self._windows.popitem(last=False)
            return self._windows[window]

    def _work_out(self, window: int) -> np.ndarray:
        steps = np.arange(window * self.steps, (window + 1) * self.steps)
        records = self._order.records(steps, self._columns.reshape(-1))
        return records.reshape(self.steps, *self._columns.shape)
