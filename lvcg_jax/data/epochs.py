"""Which record stands at which place of which epoch, for one data set or several with weights.

The places of an epoch are in the order of the data sets and, within one, of the records' beats:
those with the fewest come first. Records of one set with the same number of beats are shuffled
anew for every epoch. Nothing is written down: any place of any epoch can be asked for, and the cost
does not depend on the size of the epoch.

A data set of n records that gives s to an epoch gives each of them s // n times, and a sample of
the s % n others. The sample has every n / (s % n)-th record by number of beats, so that it is as
the whole set. The samples of successive epochs have no record in common for as long as the set
lasts; then it is shuffled anew.
"""

from collections.abc import Sequence

import numpy as np

from lvcg_jax.data.shuffle import below, random_bits, shuffled


class Epochs:
    """All epochs of training.

    Args:
      counts: beats of every record, the data sets one after another.
      seed: of what is drawn and of the order.
      sets: for each data set its records, and how many of them an epoch has. None: a single set,
        with every record once in an epoch.
    """

    def __init__(
        self, counts: np.ndarray, seed: int, sets: Sequence[tuple[int, int]] | None = None
    ):
        self._seed = seed
        sizes, shares = np.array(sets or [(len(counts), len(counts))]).T

        # records by data set and beats, and the run of equal ones that each is in
        owner = np.repeat(np.arange(len(sizes)), sizes)
        self._ranked = np.lexsort((counts, owner))
        self._counts = counts[self._ranked].astype(np.int64)
        first = np.flatnonzero(np.r_[True, (np.diff(owner) != 0) | (np.diff(self._counts) != 0)])
        lengths = np.diff(np.r_[first, len(counts)])
        self._run_first, self._run_size = np.repeat(first, lengths), np.repeat(lengths, lengths)

        # sections of an epoch: of each set its whole copies, and its sample
        sections = [
            (end - size, size, length)
            for size, share, end in zip(sizes, shares, np.cumsum(sizes), strict=True)
            for length in (share - share % size, share % size)
            if length
        ]
        self._first, self._size, self._length = np.array(sections).T
        self._end = np.cumsum(self._length)
        self._portions = np.maximum(1, self._size // self._length)  # epochs that a shuffle lasts
        self.length = int(self._end[-1])

    def records(self, epoch: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The numbers of the records at these places of these epochs, int64 [n] each."""
        section = np.searchsorted(self._end, place, side="right")
        shuffle, portion = np.divmod(epoch, self._portions[section])
        start = below(
            self._size[section].astype(np.uint64), random_bits(self._seed, section, shuffle)
        )
        rank = self._rank(section, place, portion, start.astype(np.int64))
        first, size = self._run_first[rank], self._run_size[rank]
        key = random_bits(self._seed, section, shuffle, first)
        return self._ranked[first + shuffled(rank - first, size, key)]

    def most_beats(self) -> np.ndarray:
        """The most beats that the record at each place has in any epoch, [length]."""
        place = np.arange(self.length)
        section = np.searchsorted(self._end, place, side="right")
        last = self._portions[section] - 1, self._size[section] - 1
        return self._counts[self._rank(section, place, *last)]

    def _rank(
        self, section: np.ndarray, place: np.ndarray, portion: np.ndarray, start: np.ndarray
    ) -> np.ndarray:
        """Where the record of a place is in `_ranked`, before equal ones are shuffled.

        A section of d places in P portions takes every n / (d P)-th of n records in turns; `start`
        < n moves all of them by less than one such step.
        """
        size, length, portions = self._size[section], self._length[section], self._portions[section]
        within = place - (self._end - self._length)[section]
        step = (within * portions + portion) * size + start
        return self._first[section] + step // (length * portions)
