"""Input pipeline: shards -> shuffled, packed batches, the same for any number of devices and processes.

Grain shuffles record numbers, not records: every process sees the global batch's numbers and beat counts, so all agree
on the packed size, and each reads only its own groups of records. The position in the stream is just the step.
"""

import math
from collections.abc import Iterator, Sequence

import grain
import numpy as np

from data_prep.errors import InputError
from data_prep.leads import LEADS
from data_prep.shards import ShardSet

USUAL_DEVIATIONS = 2.5  # the usual number of packed slots holds all but one batch in a hundred or so
SLOT_STEP = 64  # a batch with more beats gets so many slots more, or one a record if that is more


class BatchMaker:
    """Turns record numbers [a*g*r] into one packed batch of this process's groups, arrays [a,g_local,...]."""

    def __init__(self, shards: ShardSet, accumulate: int, groups: int, local_groups: Sequence[int], pack: bool):
        self.shards, self.accumulate, self.groups, self.pack = shards, accumulate, groups, pack
        self.local_groups = list(local_groups)
        self.max_beats = shards.preprocess.max_beats
        self.beat_samples = shards.preprocess.beat_samples

    def capacity(self, num_beats: np.ndarray) -> int:
        """Packed slots of a group, from the beat counts [a,g,r] of the global batch: one usual number, which follows
        from the data set, and rarely a larger one, so that a run compiles one shape and seldom a second."""
        records = num_beats.shape[-1]
        full = records * self.max_beats
        if not self.pack:
            return full
        expected = records * self.shards.counts.mean() + USUAL_DEVIATIONS * np.sqrt(records) * self.shards.counts.std()
        usual, step = 8 * math.ceil(expected / 8), max(records, SLOT_STEP)
        beyond = max(0, int(num_beats.sum(-1).max()) - usual)
        return min(full, usual + step * math.ceil(beyond / step))

    def __call__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Numbers below zero are rows that only fill the batch."""
        numbers = np.asarray(numbers).reshape(self.accumulate, self.groups, -1)
        counts = np.where(numbers >= 0, self.shards.counts[np.maximum(numbers, 0)], 0)
        capacity = self.capacity(counts)
        mine = numbers[:, self.local_groups]  # [a,g_local,r]
        wanted = mine[mine >= 0]
        examples = iter(self.shards.read(wanted))
        shape = mine.shape
        batch = {
            "beats": np.zeros((*shape[:2], capacity, len(LEADS), self.beat_samples), np.float16),
            "length": np.zeros((*shape[:2], capacity), np.int32),
            "complete": np.zeros((*shape[:2], capacity), bool),
            "num_beats": counts[:, self.local_groups].astype(np.int32),
            "lead_mask": np.zeros(shape, np.int32),
            "scale": np.ones((*shape, len(LEADS)), np.float32),
            "uid": np.zeros(shape, np.uint32),
        }
        for a, g in np.ndindex(*shape[:2]):
            start = 0
            for r, number in enumerate(mine[a, g]):
                if number < 0:
                    continue
                example = next(examples)
                stop = start + len(example["length"])
                for name in ("beats", "length", "complete"):
                    batch[name][a, g, start:stop] = example[name]
                for name in ("lead_mask", "uid", "scale"):
                    batch[name][a, g, r] = example[name]
                start = stop
        return batch


def check_batch_size(batch_size: int, accumulate: int, groups: int) -> None:
    """A batch divides evenly into micro-batches and devices, or the user is told."""
    if batch_size % (accumulate * groups):
        raise InputError(
            f"data.batch_size={batch_size} cannot be divided by optim.accumulate={accumulate} x {groups} data-parallel"
            " devices: choose a multiple of their product"
        )


def train_batches(
    make: BatchMaker, batch_size: int, seed: int, prefetch: int, threads: int = 1
) -> grain.DatasetIterator:
    """Endless shuffled batches; the state of the iterator is {'next_index': step}."""
    check_batch_size(batch_size, make.accumulate, make.groups)
    numbers = grain.MapDataset.range(len(make.shards)).seed(seed).shuffle().repeat()
    batches = numbers.batch(batch_size, drop_remainder=True).map(make)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(prefetch, threads))
    return iter(batches.to_iter_dataset(options))


def batch_numbers(num_records: int, batch_size: int, seed: int, step: int) -> np.ndarray:
    """The record numbers of training step `step` (from 0): who was in the batch, without reading it."""
    numbers = grain.MapDataset.range(num_records).seed(seed).shuffle().repeat()
    return np.asarray(numbers.batch(batch_size, drop_remainder=True)[step])


def ordered_batches(make: BatchMaker, batch_size: int, limit: int | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Every record once, in shard order; the last batch is filled up with rows that count for nothing."""
    check_batch_size(batch_size, make.accumulate, make.groups)
    total = len(make.shards) if limit is None else min(limit, len(make.shards))
    for start in range(0, total, batch_size):
        numbers = np.full(batch_size, -1)
        stop = min(start + batch_size, total)
        numbers[: stop - start] = np.arange(start, stop)
        yield make(numbers)
