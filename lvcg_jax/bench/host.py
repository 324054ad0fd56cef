"""What the host does for a training step: the order of records, and reading them.

Both are measured on data, not on devices, so that hosts of a pod can be simulated on one machine.
"""

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from data_prep.base.progress import progress_bar
from data_prep.dataset.packed import open_packed
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data.batches import BatchMaker, train_batches
from lvcg_jax.data.order import BatchOrder, OwnOrder
from lvcg_jax.data.packed_source import PackedSource
from lvcg_jax.train.sharding import sharing_devices

INPUT_BATCHES = 20  # batches of one repeat
BATCH_SIZES, PROCESSES = (64, 512, 2048, 16384), (1, 8, 64)
PADDING_RECORDS, PADDING_DEVICES, PADDING_STEPS = (2, 4, 8, 64), (8, 32, 256), 20
ORDER_WINDOWS = 3  # timed ones
PROCESS_SECONDS = 0.5  # for which processes read at once, in one repeat


def measure_order(counts: np.ndarray, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU that the order costs one of some processes, per step and per record that
    it reads: {"batch size/processes": the median of some repeats}."""
    orders = {
        (size, processes): OwnOrder(BatchOrder(counts, size, 1, processes, 0), [0])
        for size in BATCH_SIZES
        for processes in PROCESSES
    }
    costs: dict[tuple[int, int], list[float]] = {case: [] for case in orders}
    for k in progress_bar(range(repeats), desc="order", leave=False):
        for case, own in orders.items():
            costs[case].append(_order_cost(own, k))
    return {
        f"{size}/{processes}": {
            "us_per_step": statistics.median(found),
            "us_per_own_record": statistics.median(found) / (size // processes),
        }
        for (size, processes), found in costs.items()
    }


def _order_cost(own: OwnOrder, repeat: int) -> float:
    """Microseconds a step, over some windows. Each is worked out while the one before is used, so
    that as many are worked out in that time as are used."""
    first = (1 + repeat * ORDER_WINDOWS) * own.steps
    own[first - 1]
    own.wait()
    before = time.process_time()
    for step in range(first, first + ORDER_WINDOWS * own.steps):
        own[step]
    own.wait()
    return (time.process_time() - before) / (ORDER_WINDOWS * own.steps) * 1e6


def measure_padding(shards, group_records: int) -> dict[str, dict[str, float]]:
    """The share of the slots of training batches that no beat fills: {"records a device x devices":
    with groups shared as mesh.group_records says, and with one group for each device}."""
    found = {}
    for records in PADDING_RECORDS:
        for devices in PADDING_DEVICES:
            shared = sharing_devices(records, devices, group_records)
            found[f"{records}x{devices}"] = {
                "shared": _padding(shards, records * devices, devices // shared, shared),
                "alone": _padding(shards, records * devices, devices, 1),
            }
    return found


def _padding(shards, batch_size: int, groups: int, devices: int) -> float:
    maker = BatchMaker(shards, 1, groups, [0], True, devices=devices)
    order = maker.order(batch_size, 0)
    numbers = order.records(np.arange(PADDING_STEPS), order.columns.reshape(-1))
    return 1.0 - float(
        shards.counts[numbers].sum(1).mean() / (groups * maker.training_slots(order))
    )


class Reader:
    """The training batches of one of several processes, from shards or packed records."""

    def __init__(
        self,
        shards: ShardSet,
        batch_size: int,
        signal: int,
        cache: Path | None,
        process: int = 0,
        processes: int = 1,
        threads: int = 1,
    ):
        source = PackedSource([open_packed(shards, cache, signal > 0)]) if cache else None
        maker = BatchMaker(shards, 1, processes, [process], True, signal, source=source)
        order = maker.order(batch_size * processes, 0)
        self.batch_size = batch_size
        self._batches = train_batches(maker, order, prefetch=4, threads=threads)

    def read(self, batches: int) -> int:
        """Reads on; the number of records."""
        for _ in range(batches):
            next(self._batches)
        return batches * self.batch_size


def measure_input(
    shards: ShardSet, batch_size: int, signal: int, cache: Path, threads: int, repeats: int
) -> dict:
    """Records per second, and per second of one core, from shards and from packed records, in
    turns; and how much more two processes read at once than one."""
    readers = {
        name: Reader(shards, batch_size, signal, place, threads=threads)
        for name, place in (("shards", None), ("packed", cache))
    }
    speeds: dict[str, list] = {name: [] for name in readers}
    for k in progress_bar(range(repeats + 1), desc="input", leave=False):
        for name, reader in readers.items():
            before = time.perf_counter(), time.process_time()
            records = reader.read(INPUT_BATCHES)
            spent = time.perf_counter() - before[0], time.process_time() - before[1]
            if k:  # the first one fills caches
                speeds[name].append([records / seconds for seconds in spent])
    lines = {
        name: dict(
            zip(
                ("records_per_second", "records_per_cpu_second"),
                map(statistics.median, zip(*found, strict=True)),
                strict=True,
            )
        )
        for name, found in speeds.items()
    }
    ratio = lines["packed"]["records_per_cpu_second"] / lines["shards"]["records_per_cpu_second"]
    at_once = measure_processes((shards.directory, batch_size, signal, cache), repeats)
    return lines.pop("shards") | lines | {"ratio": ratio, "processes": at_once}


def measure_processes(job: tuple[Path, int, int, Path], repeats: int) -> dict[str, float]:
    """Packed records per second of one process, and of two at once, in turns; also by the seconds
    that their cores gave them, which other programs do not change."""
    with _workers(job, 2) as pipes:
        totals: dict[int, list] = {1: [], 2: []}
        for _ in progress_bar(range(repeats), desc="processes", leave=False):
            for count, found in totals.items():
                found.append(np.sum(_ask(pipes[:count]), axis=0))
    one, two = (np.median(found, axis=0) for found in totals.values())
    return {
        "one": float(one[0]),
        "two": float(two[0]),
        "ratio": float(two[0] / one[0]),
        "ratio_per_cpu_second": float(two[1] / one[1]),
    }


def _ask(pipes: Sequence[Connection]) -> list[tuple[float, float]]:
    """The speeds of workers that read at the same time."""
    for pipe in pipes:
        pipe.send(PROCESS_SECONDS)
    return [pipe.recv() for pipe in pipes]


@contextmanager
def _workers(job: tuple[Path, int, int, Path], count: int) -> Iterator[list[Connection]]:
    """Processes that read their part of each batch for as long as they are told."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    try:
        for k in range(count):
            ours, theirs = context.Pipe()
            workers.append(context.Process(target=_work, args=(theirs, *job, k, count)))
            workers[-1].start()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()  # it is ready
        yield pipes
        for pipe in pipes:
            pipe.send(0.0)
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.join()


def _work(
    pipe: Connection,
    directory: Path,
    batch_size: int,
    signal: int,
    cache: Path,
    process: int,
    processes: int,
) -> None:
    shards = ShardSet(directory, "train")
    reader = Reader(shards, batch_size, signal, cache, process, processes)
    reader.read(INPUT_BATCHES)
    pipe.send("ready")
    while seconds := pipe.recv():
        records, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            records += reader.read(1)
        spent = time.perf_counter() - start, time.process_time() - cpu
        pipe.send((records / spent[0], records / spent[1]))
