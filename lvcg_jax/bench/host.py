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

INPUT_BATCHES = 20  # batches of one repeat
BATCH_SIZES, PROCESSES = (64, 512, 2048, 16384), (1, 8, 64)
ORDER_WINDOWS = 3  # timed ones
PROCESS_SECONDS = 0.5  # for which processes read at once, in one repeat


def order_cost(counts: np.ndarray, batch_size: int, processes: int) -> dict[str, float]:
    """Microseconds of CPU that the order costs the first of some processes, per step and per record
    that it reads."""
    own = OwnOrder(BatchOrder(counts, batch_size, 1, processes, 0), [0])
    own[own.steps - 1]  # the first window is there, the next one under way
    own.wait()
    before = time.process_time()
    for step in range(own.steps, (1 + ORDER_WINDOWS) * own.steps):
        own[step]
    own.wait()
    per_step = (time.process_time() - before) / (ORDER_WINDOWS * own.steps) * 1e6
    return {"us_per_step": per_step, "us_per_own_record": per_step / (batch_size // processes)}


def measure_order(counts: np.ndarray, repeats: int) -> dict[str, dict]:
    """The order_cost of every global batch and number of processes: the median of some repeats."""
    costs: dict[str, list] = {}
    for _ in progress_bar(range(repeats), desc="order", leave=False):
        for size in BATCH_SIZES:
            for processes in PROCESSES:
                cost = order_cost(counts, size, processes)
                costs.setdefault(f"{size}/{processes}", []).append(cost)
    return {
        name: {key: statistics.median(cost[key] for cost in found) for key in found[0]}
        for name, found in costs.items()
    }


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
    """Packed records per second of one process, and of two at once, in turns."""
    with _workers(job, 2) as pipes:
        totals: dict[int, list] = {1: [], 2: []}
        for _ in progress_bar(range(repeats), desc="processes", leave=False):
            for count, found in totals.items():
                found.append(sum(_ask(pipes[:count])))
    one, two = (statistics.median(found) for found in totals.values())
    return {"one": one, "two": two, "ratio": two / one}


def _ask(pipes: Sequence[Connection]) -> list[float]:
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
        records, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            records += reader.read(1)
        pipe.send(records / (time.perf_counter() - start))
