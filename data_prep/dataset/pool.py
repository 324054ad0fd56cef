"""A pool of worker processes that shows progress per record and ends when its parent does."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from tqdm import tqdm

from data_prep.base.errors import InputError

_BLAS_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run(task: Callable, state: tuple, items: Sequence, workers: int, bar: tqdm) -> None:
    """Calls task(*state, item, tick) for every item.

    `state` is sent to each process once; tick() advances the bar by one.
    """
    context = multiprocessing.get_context("spawn")
    # a slot per item: there is no lock that a dying worker could keep
    done = context.RawArray("q", len(items))
    stop = context.RawValue("b", 0)
    start = bar.n
    with (
        one_blas_thread(),
        concurrent.futures.ProcessPoolExecutor(
            min(workers, len(items)),
            context,
            initializer=_start_worker,
            initargs=(task, state, done, stop),
        ) as pool,
    ):
        with _deaf_to_ctrl_c():
            pending = {pool.submit(_run_item, slot, item) for slot, item in enumerate(items)}
        try:
            while pending:
                finished, pending = concurrent.futures.wait(
                    pending, 0.5, concurrent.futures.FIRST_COMPLETED
                )
                for future in finished:
                    future.result()
                bar.update(start + sum(done) - bar.n)
        except BaseException as error:
            stop.value = 1
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                remedy = "run the same command again, with fewer workers if memory is short"
                raise InputError(f"a worker process died (out of memory?); {remedy}") from error
            raise


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Processes started within this context use one thread each: together they already fill the
    cores."""
    before = {name: os.environ.get(name) for name in _BLAS_THREADS}
    os.environ.update(dict.fromkeys(_BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started within this context ignore Ctrl-C: it is for the parent, which then sets
    `stop`."""
    # other threads may not change signal handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(*worker) -> None:
    global _worker
    _worker = worker
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker when its parent ends, so that it does not write while the same command runs
    again."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _run_item(slot: int, item: object) -> None:
    task, state, done, stop = _worker

    def tick() -> None:
        done[slot] += 1
        if stop.value:
            raise InputError("stopped")

    task(*state, item, tick)
