"""Input pipeline: from shards to shuffled, packed batches, the same for any number of devices and
processes.

Grain shuffles record numbers, not records. Every process sees the numbers and beat counts of the
global batch, so all agree on the packed size, and each reads only its own groups of records. The
position in the stream is just the step.

Within a window of shuffled records the batches take turns in choosing, so that all have nearly the
same number of beats and little is padded; so do the micro-batches of a batch, and the groups of a
micro-batch. Which records are in a batch does not depend on the groups.
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
from lvcg_jax.data.mixture import MixedStream, Mixture, shuffled

# The usual number of slots is so many standard deviations above the mean number of beats: about one
# batch of records in file order in a hundred needs more.
USUAL_DEVIATIONS = 2.5
WINDOW_BATCHES = 64  # batches that share out the records of a window
SEEN_WINDOWS = 4  # windows whose largest batch sets the usual number of slots in training
# A batch that needs more slots than usual gets so many more, or one more per record if that is
# more.
SLOT_STEP = 64


class BatchMaker:
    """Makes packed batches from record numbers.

    Args:
      shards: the records.
      accumulate: micro-batches of a batch, a.
      groups: groups of a micro-batch over all processes, g.
      local_groups: those that this process reads.
      pack: fit the slots to the beats; else every record gets max_beats slots.
      signal: samples of each record's signal, for models that read it; see packing.py.
    """

    def __init__(
        self,
        shards: ShardSet | Mixture,
        accumulate: int,
        groups: int,
        local_groups: Sequence[int],
        pack: bool,
        signal: int = 0,
    ):
        self.shards, self.accumulate, self.groups, self.pack = shards, accumulate, groups, pack
        self.local_groups, self.signal = list(local_groups), signal
        self.max_beats = shards.preprocess.max_beats
        self.beat_samples = shards.preprocess.beat_samples

    def order(self, batch_size: int, seed: int) -> "BatchOrder":
        """Which records are in which training batch."""
        check_batch_size(batch_size, self.accumulate, self.groups)
        stream = self.shards.stream(seed) if isinstance(self.shards, Mixture) else None
        sizes = (batch_size, self.accumulate, self.groups)
        return BatchOrder(self.shards.counts, *sizes, seed, stream)

    def capacity(self, num_beats: np.ndarray, usual: float | None = None) -> int:
        """Packed slots of a group, from the beat counts [a,g,r] of the global batch.

        There is one usual number, which follows from the data set unless it is given, and rarely a
        larger one, so that a run compiles one shape and seldom a second.
        """
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
        """The batch of these record numbers [a*g*r], arrays [a,g_local,...].

        Numbers below zero stand for rows that only fill the batch.
        """
        numbers = np.asarray(numbers).reshape(self.accumulate, self.groups, -1)
        counts = np.where(numbers >= 0, self.shards.counts[np.maximum(numbers, 0)], 0)
        mine = numbers[:, self.local_groups]  # [a,g_local,r]
        *leading, rows = mine.shape
        slots = self.capacity(counts, usual)
        batch = packing.empty(tuple(leading), slots, rows, self.beat_samples, signal=self.signal)
        examples = iter(self.shards.read(mine[mine >= 0]))
        for group in np.ndindex(*leading):
            windows = (None if number < 0 else next(examples) for number in mine[group])
            packing.fill(batch, windows, group)
        return batch


def check_batch_size(batch_size: int, accumulate: int, groups: int) -> None:
    """An InputError if a batch cannot be divided into micro-batches and devices."""
    if batch_size % (accumulate * groups):
        raise InputError(
            f"data.batch_size={batch_size} cannot be divided by optim.accumulate={accumulate} x"
            f" {groups} data-parallel devices: choose a multiple of their product"
        )


def share_out(numbers: np.ndarray, counts: np.ndarray, hands: int) -> np.ndarray:
    """Deals records out to `hands`, as many to each and with nearly equal sums of counts.

    The records are dealt in rounds, those with the most beats first. In each round the hand with
    the fewest beats so far gets the record with the most.

    Args:
      numbers: [n] record numbers; n is a multiple of `hands`.
      counts: beats of every record of the data set.
      hands: how many.

    Returns:
      [hands,n/hands] record numbers.
    """
    largest_first = np.argsort(-counts[numbers], kind="stable")
    rounds = numbers[largest_first].reshape(-1, hands)
    shared, beats = np.empty_like(rounds), np.zeros(hands, int)
    for k, numbers_left in enumerate(rounds):
        poorest_first = np.argsort(beats, kind="stable")
        shared[k, poorest_first] = numbers_left
        beats[poorest_first] += counts[numbers_left]
    return shared.T


class BatchOrder:
    """The record numbers [a*g*r] of each training step (from 0), the same on every process.

    No record is read for it. Which records make a batch follows from the seed alone; the groups
    only arrange them. Without the stream of a mixture, every record is once in an epoch.
    """

    def __init__(
        self,
        counts: np.ndarray,
        batch_size: int,
        accumulate: int,
        groups: int,
        seed: int,
        stream: MixedStream | None = None,
    ):
        self.counts, self.batch_size = counts, batch_size
        self.accumulate, self.groups = accumulate, groups
        epoch = len(counts) if stream is None else stream.epoch
        self.window = max(1, min(WINDOW_BATCHES, epoch // batch_size))
        numbers = shuffled(len(counts), seed) if stream is None else grain.MapDataset.source(stream)
        self.windows = numbers.batch(self.window * batch_size, drop_remainder=True)
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
        records = self.batch_size // (self.accumulate * self.groups)  # of a group
        return int(self.counts[seen].reshape(-1, records).sum(1).max())


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
    """Every record once, or the first `limit`, in shard order; the last batch is filled up with
    empty rows."""
    check_batch_size(batch_size, make.accumulate, make.groups)
    total = len(make.shards) if limit is None else min(limit, len(make.shards))
    for start in range(0, total, batch_size):
        numbers = np.full(batch_size, -1)
        stop = min(start + batch_size, total)
        numbers[: stop - start] = np.arange(start, stop)
        yield make(numbers)
