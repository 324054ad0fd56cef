"""A pool of worker processes that shows progress per record, survives the death of a worker, and
ends when its parent does.

A file can end the process that reads it: a fault in C code, or more memory than there is. The pool
then knows which step of which item it was, starts another worker and tries that item again; a step
that ends its worker twice is given up, and the item goes on without it.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

from data_prep.base.errors import InputError

_BLAS_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
TRIES = 2  # a worker that dies may have been in the way of another; one step may kill so many


@dataclasses.dataclass
class Worker:
    """A worker process, the pipe to it, and what it is doing."""

    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection
    job: tuple[int, object] | None = None  # slot and item


def run(
    task: Callable,
    state: tuple,
    items: Sequence,
    workers: int,
    bar: tqdm,
    give_up: Callable[[object, int, str], object],
) -> None:
    """Calls task(*state, item, tick) for every item.

    Args:
      task: calls tick() after each of its steps.
      state: sent to each process once.
      items: in any number.
      workers: processes.
      bar: advances by one with every tick.
      give_up: called with an item, the number of a step that ended its worker twice, and how it
        ended; returns the item without that step, or raises.
    """
    context = multiprocessing.get_context("spawn")
    # a slot per item: there is no lock that a dying worker could keep
    done = context.RawArray("q", len(items))
    stop = context.RawValue("b", 0)
    start = bar.n
    left = collections.deque(enumerate(items))
    deaths: collections.Counter[tuple[int, int]] = collections.Counter()
    crew: list[Worker] = []

    def hire() -> None:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, task, state, done, stop), daemon=True)
        with _deaf_to_ctrl_c():
            process.start()
        there.close()  # so that the pipe ends with the worker
        crew.append(Worker(process, here))

    def bury(worker: Worker) -> None:
        """Puts the item of a dead worker back in the queue, without the step that killed it if it
        did so before."""
        crew.remove(worker)
        worker.process.join()
        how = _how_it_ended(worker.process.exitcode)
        if worker.job is None and not left:
            return
        if worker.job is None:
            raise InputError(
                f"a worker process could not start ({how}): run the same command again, with fewer"
                " workers if memory is short"
            )
        slot, item = worker.job
        deaths[slot, done[slot]] += 1
        if deaths[slot, done[slot]] == TRIES:
            item = give_up(item, done[slot], how)
        elif deaths[slot, done[slot]] > TRIES:
            raise InputError(
                f"a worker process died again and again ({how}): run the same command again, with"
                " fewer workers if memory is short"
            )
        done[slot] = 0
        left.appendleft((slot, item))

    with one_blas_thread():
        try:
            while left or crew:
                while left and len(crew) < workers and len(crew) < len(left) + _busy(crew):
                    hire()
                ready = multiprocessing.connection.wait([worker.pipe for worker in crew], 0.5)
                for worker in [worker for worker in crew if worker.pipe in ready]:
                    try:
                        error = worker.pipe.recv()
                        if error is None:
                            worker.job = left.popleft() if left else None
                            worker.pipe.send(worker.job)
                    except (EOFError, OSError):
                        bury(worker)
                        continue
                    if error is not None:
                        raise error
                    if worker.job is None:
                        crew.remove(worker)
                        worker.process.join()
                bar.update(start + sum(done) - bar.n)
        finally:
            stop.value = 1
            for worker in crew:
                worker.pipe.close()
            for worker in crew:
                worker.process.join()


def _busy(crew: list[Worker]) -> int:
    return sum(worker.job is not None for worker in crew)


def _how_it_ended(code: int | None) -> str:
    """The name of a signal, or the exit code."""
    with contextlib.suppress(TypeError, ValueError):
        if code < 0:
            return signal.Signals(-code).name
    return f"exit code {code}"


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


def _end_with_parent() -> None:
    """Ends this worker when its parent ends, so that it does not write while the same command runs
    again."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(pipe, task: Callable, state: tuple, done, stop) -> None:
    """A worker: asks for an item, works on it, and asks again; an error is sent instead."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe
        pipe.send(None)
        while (job := pipe.recv()) is not None:
            slot, item = job

            def tick(slot: int = slot) -> None:
                done[slot] += 1
                if stop.value:
                    raise InputError("stopped")

            try:
                task(*state, item, tick)
            except Exception as error:
                pipe.send(error)
                return
            pipe.send(None)
