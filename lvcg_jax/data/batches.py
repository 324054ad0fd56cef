"""Input pipeline: from shards to shuffled, packed batches, the same for any number of devices and
processes.

Which records are in a batch is worked out by each process for the groups that it reads (order.py),
and so is that all groups of all batches fit into the same number of slots. So no process needs to
know the records of another one. The position in the stream is just the step.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import grain
import numpy as np

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data import packing
from lvcg_jax.data.mixture import Mixture
from lvcg_jax.data.order import BatchOrder, OwnOrder
from lvcg_jax.data.packed_source import PackedSource

# The usual number of slots is so many standard deviations above the mean number of beats: about one
# batch of records in file order in a hundred needs more.
USUAL_DEVIATIONS = 2.5
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
      devices: that compute a group together; the slots of a group are a multiple of them.
      source: the same records packed, if they are.
      targets: of each record [records,k], for models that learn them; see packing.py.
    """

    def __init__(
        self,
        shards: ShardSet | Mixture,
        accumulate: int,
        groups: int,
        local_groups: Sequence[int],
        pack: bool,
        signal: int = 0,
        devices: int = 1,
        source: PackedSource | None = None,
        targets: np.ndarray | None = None,
    ):
        self.shards, self.accumulate, self.groups, self.pack = shards, accumulate, groups, pack
        self.local_groups, self.signal = list(local_groups), signal
        self.devices, self.source, self.targets = devices, source, targets
        self.max_beats = shards.preprocess.max_beats
        self.beat_samples = shards.preprocess.beat_samples

    def order(self, batch_size: int, seed: int) -> BatchOrder:
        """Which records are in which training batch."""
        check_batch_size(batch_size, self.accumulate, self.groups * self.devices)
        sets = self.shards.sizes_and_shares if isinstance(self.shards, Mixture) else None
        sizes = (batch_size, self.accumulate, self.groups)
        return BatchOrder(self.shards.counts, *sizes, seed, sets)

    def training_slots(self, order: BatchOrder) -> int:
        """Packed slots of every group of every training batch."""
        full = order.columns.shape[-1] * self.max_beats
        return min(full, self._rounded(order.most_beats())) if self.pack else full

    def capacity(self, num_beats: np.ndarray) -> int:
        """Packed slots of a group in a batch of any records with these beat counts [a,g,r].

        There is one usual number, which follows from the data set, and rarely a larger one, so that
        one shape is compiled and seldom a second.
        """
        records = num_beats.shape[-1]
        full = records * self.max_beats
        if not self.pack:
            return full
        counts = self.shards.counts
        usual = records * counts.mean() + USUAL_DEVIATIONS * np.sqrt(records) * counts.std()
        usual, step = self._rounded(usual), self._rounded(max(records, SLOT_STEP))
        beyond = max(0, int(num_beats.sum(-1).max()) - usual)
        return min(full, usual + step * math.ceil(beyond / step))

    def _rounded(self, slots: float) -> int:
        """The next number of slots that devices can share, and that suits their registers."""
        unit = math.lcm(4, self.devices)
        return unit * math.ceil(slots / unit)

    def __call__(self, numbers: np.ndarray, slots: int | None = None) -> dict[str, np.ndarray]:
        """The batch of these record numbers [a*g*r], arrays [a,g_local,...].

        Numbers below zero stand for rows that only fill the batch. Without `slots`, it gets as many
        as `capacity` says.
        """
        numbers = np.asarray(numbers).reshape(self.accumulate, self.groups, -1)
        if slots is None:
            slots = self.capacity(
                np.where(numbers >= 0, self.shards.counts[np.maximum(numbers, 0)], 0)
            )
        return self.read(numbers[:, self.local_groups], slots)

    def read(self, mine: np.ndarray, slots: int) -> dict[str, np.ndarray]:
        """The records of this process, [a,g_local,r], in so many slots a group."""
        *leading, rows = mine.shape
        batch = packing.empty(tuple(leading), slots, rows, self.beat_samples, signal=self.signal)
        examples = None if self.source else iter(self.shards.read(mine[mine >= 0]))
        for group in np.ndindex(*leading):
            if examples is None:
                self.source.fill(batch, mine[group], group)
            else:
                windows = (None if number < 0 else next(examples) for number in mine[group])
                packing.fill(batch, windows, group)
        return batch if self.targets is None else packing.with_targets(batch, self.targets, mine)


def check_batch_size(batch_size: int, accumulate: int, devices: int) -> None:
    """An InputError if a batch cannot be divided into micro-batches and devices."""
    if batch_size % (accumulate * devices):
        raise InputError(
            f"data.batch_size={batch_size} cannot be divided by optim.accumulate={accumulate} x"
            f" {devices} data-parallel devices: choose a multiple of their product"
        )


def train_batches(
    make: BatchMaker, order: BatchOrder, prefetch: int, threads: int = 1
) -> grain.DatasetIterator:
    """Endless shuffled batches; the state of the iterator is {'next_index': step}."""
    own = OwnOrder(order, make.local_groups)
    batches = grain.MapDataset.source(own).map(partial(make.read, slots=make.training_slots(order)))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(prefetch, threads))
    return iter(batches.to_iter_dataset(options))


def ordered_batches(
    make: BatchMaker, batch_size: int, limit: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Every record once, or the first `limit`, in shard order; the last batch is filled up with
    empty rows."""
    check_batch_size(batch_size, make.accumulate, make.groups * make.devices)
    total = len(make.shards) if limit is None else min(limit, len(make.shards))
    for start in range(0, total, batch_size):
        numbers = np.full(batch_size, -1)
        stop = min(start + batch_size, total)
        numbers[: stop - start] = np.arange(start, stop)
        yield make(numbers)
