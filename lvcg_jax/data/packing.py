"""Records packed into batches."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from data_prep.ecg.leads import LEADS

T = TypeVar("T")


def pack(
    windows: Iterable[dict], slots: int, rows: int
) -> Iterator[tuple[list[dict], dict[str, np.ndarray]]]:
    """Windows in order, as many as fit a batch of `slots` beats and `rows` records; the last is
    filled up with nothing.

    Yields the windows of each batch, without their samples, and the batch in the layout of
    model.py.
    """
    chosen, beats = [], 0
    for window in windows:
        count = len(window["length"])
        if chosen and (beats + count > slots or len(chosen) == rows):
            yield list(map(without_samples, chosen)), make_batch(chosen, slots, rows)
            chosen, beats = [], 0
        chosen.append(window)
        beats += count
    if chosen:
        yield list(map(without_samples, chosen)), make_batch(chosen, slots, rows)


def without_samples(window: dict) -> dict:
    """What is known of a window, without what takes memory."""
    return {name: value for name, value in window.items() if name not in ("beats", "signal")}


def make_batch(windows: Sequence[dict], slots: int, rows: int) -> dict[str, np.ndarray]:
    """Windows one after another in a batch of one group; `visible` [g,r] comes with it."""
    batch = {
        "beats": np.zeros((1, slots, *windows[0]["beats"].shape[1:]), np.float16),
        "length": np.zeros((1, slots), np.int32),
        "complete": np.zeros((1, slots), bool),
        "num_beats": np.zeros((1, rows), np.int32),
        "lead_mask": np.zeros((1, rows), np.int32),
        "visible": np.zeros((1, rows), np.int32),
        "scale": np.ones((1, rows, len(LEADS)), np.float32),
        "uid": np.zeros((1, rows), np.uint32),
    }
    start = 0
    for r, window in enumerate(windows):
        stop = start + len(window["length"])
        for name in ("beats", "length", "complete"):
            batch[name][0, start:stop] = window[name]
        for name in ("lead_mask", "visible", "uid", "scale"):
            batch[name][0, r] = window[name]
        batch["num_beats"][0, r] = stop - start
        start = stop
    return batch


def record_batch(window: dict, capacity: int) -> dict[str, np.ndarray]:
    """One window as a batch with `capacity` slots, so that any beat count shares one
    compilation."""
    batch = make_batch([window | {"visible": window["lead_mask"]}], capacity, 1)
    del batch["visible"]
    return batch


def read_ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same items, the next few of them made in another thread while the caller works on one."""
    end = object()
    pool = ThreadPoolExecutor(1, "read_ahead")
    try:
        pending = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def empty_batch(beat_samples: int) -> dict[str, np.ndarray]:
    """A batch of one record with two silent beats, to initialise a model with."""
    beats = np.zeros((2, len(LEADS), beat_samples))
    window = {
        "beats": beats,
        "length": np.ones(2),
        "complete": np.ones(2),
        "scale": np.ones(len(LEADS)),
    }
    return record_batch(window | {"lead_mask": 2 ** len(LEADS) - 1, "uid": 0}, capacity=2)
