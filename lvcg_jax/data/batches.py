"""Input pipeline: shards -> shuffled, packed batches, the same for any number of devices and
processes.

Grain shuffles record numbers, not records: every process sees the global batch's numbers and beat
counts, so all agree on the packed size, and each reads only its own groups of records. The position
in the stream is just the step.

Batches take turns in choosing from a window of shuffled records, so that all have nearly the same
number of beats and little is padded; so do micro-batches, and the groups of a batch. Who is in a
batch does not depend on the groups.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import grain
import numpy as np

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data import packing

# of records in file order, the usual number of slots holds all but a batch in a hundred or so
USUAL_DEVIATIONS = 2.5
WINDOW_BATCHES = 64  # batches that share out their records
SEEN_WINDOWS = 4  # whose largest batch sets the usual number of slots in training
SLOT_STEP = 64  # a batch with more beats gets so many slots more, or one a record if that is more


class BatchMaker:
    """Turns record numbers [a*g*r] into one packed batch of this process's groups, arrays
    [a,g_local,...]."""

    def __init__(
        self,
        shards: ShardSet,
        accumulate: int,
        groups: int,
        local_groups: Sequence[int],
        pack: bool,
    ):
        self.shards, self.accumulate, self.groups, self.pack = shards, accumulate, groups, pack
        self.local_groups = list(local_groups)
        self.max_beats = shards.preprocess.max_beats
        self.beat_samples = shards.preprocess.beat_samples

    def order(self, batch_size: int, seed: int) -> "BatchOrder":
        """Who is in which training batch."""
        check_batch_size(batch_size, self.accumulate, self.groups)
        return BatchOrder(self.shards.counts, batch_size, self.accumulate, self.groups, seed)

    def capacity(self, num_beats: np.ndarray, usual: float | None = None) -> int:
        """Packed slots of a group, from the beat counts [a,g,r] of the global batch: one usual
        number, which follows from the data set, and rarely a larger one, so that a run compiles one
        shape and seldom a second."""
        records = num_beats.shape[-1]
        full = records * self.max_beats
        if not self.pack:
            return full
        if usual is None:
            counts = self.shards.counts
            usual = records * counts.mean() + USUAL_DEVIATIONS * np.sqrt(records) * counts.std()
        usual, step = 4 * math.ceil(usual / 4), max(records, SLOT_STEP)
        beyond = max(0, int(num_beats.sum(-1).max()) - usual)
        return min(full, usual + step * math.ceil(beyond / step))

    def __call__(self, numbers: np.ndarray, usual: float | None = None) -> dict[str, np.ndarray]:
        """Numbers below zero are rows that only fill the batch."""
        numbers = np.asarray(numbers).reshape(self.accumulate, self.groups, -1)
        counts = np.where(numbers >= 0, self.shards.counts[np.maximum(numbers, 0)], 0)
        mine = numbers[:, self.local_groups]  # [a,g_local,r]
        *leading, rows = mine.shape
        batch = packing.empty(tuple(leading), self.capacity(counts, usual), rows, self.beat_samples)
        examples = iter(self.shards.read(mine[mine >= 0]))
        for group in np.ndindex(*leading):
            windows = (None if number < 0 else next(examples) for number in mine[group])
            packing.fill(batch, windows, group)
        return batch


def check_batch_size(batch_size: int, accumulate: int, groups: int) -> None:
    """A batch divides evenly into micro-batches and devices, or the user is told."""
    if batch_size % (accumulate * groups):
        raise InputError(
            f"data.batch_size={batch_size} cannot be divided by optim.accumulate={accumulate} x {groups} data-parallel"
            " devices: choose a multiple of their product"
        )


def share_out(numbers: np.ndarray, counts: np.ndarray, hands: int) -> np.ndarray:
    """Numbers [n] -> [hands,n/hands] with nearly equal sums of counts: the largest ones left, one
    for each hand, go to the hands in the order of what they lack."""
    largest_first = np.argsort(-counts[numbers], kind="stable")
    rounds = numbers[largest_first].reshape(-1, hands)
    shared, beats = np.empty_like(rounds), np.zeros(hands, int)
    for k, numbers_left in enumerate(rounds):
        poorest_first = np.argsort(beats, kind="stable")
        shared[k, poorest_first] = numbers_left
        beats[poorest_first] += counts[numbers_left]
    return shared.T


class BatchOrder:
    """The record numbers of each training step (from 0), without reading a record: [a*g*r], the
    same on every process.

    Which records make a batch follows from the seed alone; the groups only arrange them.
    """

    def __init__(
        self, counts: np.ndarray, batch_size: int, accumulate: int, groups: int, seed: int
    ):
        self.counts, self.batch_size, self.accumulate, self.groups = (
            counts,
            batch_size,
            accumulate,
            groups,
        )
        self.window = max(1, min(WINDOW_BATCHES, len(counts) // batch_size))
        shuffled = grain.MapDataset.range(len(counts)).seed(seed).shuffle().repeat()
        self.windows = shuffled.batch(self.window * batch_size, drop_remainder=True)
        self._batches = lru_cache(maxsize=2)(self._share_window)

    def __len__(self) -> int:
        return sys.maxsize  # training ends when it has made its steps

    def _share_window(self, window: int) -> np.ndarray:
        return share_out(np.asarray(self.windows[window]), self.counts, self.window)

    def __getitem__(self, step: int) -> np.ndarray:
        window, place = divmod(step, self.window)
        micro_batches = share_out(self._batches(window)[place], self.counts, self.accumulate)
        return np.concatenate(
            [share_out(numbers, self.counts, self.groups).reshape(-1) for numbers in micro_batches]
        )

    def most_beats(self) -> int:
        """The largest number of beats in a group, of the batches of the first windows."""
        seen = np.stack([self[step] for step in range(SEEN_WINDOWS * self.window)])
        return int(
            self.counts[seen]
            .reshape(-1, self.batch_size // (self.accumulate * self.groups))
            .sum(1)
            .max()
        )


def train_batches(
    make: BatchMaker, order: BatchOrder, prefetch: int, threads: int = 1
) -> grain.DatasetIterator:
    """Endless shuffled batches; the state of the iterator is {'next_index': step}."""
    batches = grain.MapDataset.source(order).map(partial(make, usual=order.most_beats()))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(prefetch, threads))
    return iter(batches.to_iter_dataset(options))


def ordered_batches(
    make: BatchMaker, batch_size: int, limit: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Every record once, in shard order; the last batch is filled up with rows that count for
    nothing."""
    check_batch_size(batch_size, make.accumulate, make.groups)
    total = len(make.shards) if limit is None else min(limit, len(make.shards))
    for start in range(0, total, batch_size):
        numbers = np.full(batch_size, -1)
        stop = min(start + batch_size, total)
        numbers[: stop - start] = np.arange(start, stop)
        yield make(numbers)
