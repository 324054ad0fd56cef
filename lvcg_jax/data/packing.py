"""The batch: which arrays it has, and how windows of beats are packed into it.

This is the one place that says what a batch is. All that makes, fills or declares one (training,
embedding, export, bench, tests) goes through `shapes`, `empty` and `fill`. Where a function takes
`signal`, that is how many samples of each record's signal the batch has beside its beats; 0: none.

Axis letters: a micro-batch, g group of records that one device computes, m packed slot for a beat,
r record row, l lead, p sample, t sample of a signal. The beats of a group's records stand one after
another in its slots; slots after the last beat, and rows without a beat, only fill the batch up.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from data_prep.base.lottery import ticket
from data_prep.ecg.leads import LEADS

T = TypeVar("T")
Window = Mapping[str, Any]  # see windows.py
Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Field:
    """One array of a batch."""

    dtype: type
    per: Literal["beat", "record"]  # axes [...,g,m] or [...,g,r]
    axes: tuple[Literal["lead", "sample", "time"], ...] = ()  # that follow
    fill: int = 0  # where there is no beat or record


# What training and the model read, in order.
BATCH = {
    "beats": Field(np.float16, "beat", ("lead", "sample")),  # normalised samples
    "length": Field(np.int32, "beat"),  # samples of the interval before it was resampled
    "complete": Field(np.bool_, "beat"),  # a whole interval from R peak to R peak
    "num_beats": Field(np.int32, "record"),  # 0: a row that only fills the batch up
    "lead_mask": Field(np.int32, "record"),  # bit i: the record has LEADS[i]
    "scale": Field(np.float32, "record", ("lead",), fill=1),  # mV of one normalised unit
    "uid": Field(np.uint32, "record"),  # keys the randomness of the record
}
# Embedding also says which leads the model may see, as a mask like `lead_mask`.
EMBED_BATCH = BATCH | {"visible": Field(np.int32, "record")}
# Models of whole records also read these.
OF_SIGNALS = {
    "signal": Field(
        np.float16, "record", ("lead", "time")
    ),  # normalised; a short one ends in zeros
    "patient": Field(np.uint32, "record"),  # a number that the records of a patient share
}
_ALL = EMBED_BATCH | OF_SIGNALS
# A model with a teacher also reads `target` float16 [...,g,r,k]: see with_targets.


def shapes(
    leading: tuple,
    slots: int,
    rows: int | None,
    beat_samples: int,
    fields: Mapping[str, Field] = BATCH,
    signal: int = 0,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and type of each array of a batch.

    Args:
      leading: sizes of the first axes: (g,), (a, g), or () for a single group. Symbols will do.
      slots: slots for beats of a group.
      rows: records of a group. None: one record, without an axis for it.
      beat_samples: samples of a beat.
      fields: BATCH or EMBED_BATCH.
      signal: samples of a record's signal, if the batch has OF_SIGNALS too.
    """
    fields = {**fields, **OF_SIGNALS} if signal else fields
    sizes = {"lead": len(LEADS), "sample": beat_samples, "time": signal}
    places = {"beat": (slots,), "record": () if rows is None else (rows,)}
    return {
        name: jax.ShapeDtypeStruct(
            (*leading, *places[field.per], *(sizes[axis] for axis in field.axes)), field.dtype
        )
        for name, field in fields.items()
    }


def empty(
    leading: tuple[int, ...],
    slots: int,
    rows: int,
    beat_samples: int,
    fields: Mapping[str, Field] = BATCH,
    signal: int = 0,
) -> Batch:
    """A batch without a record; arguments as for `shapes`."""
    return {
        # zeros take no memory before they are written to
        name: np.full(x.shape, _ALL[name].fill, x.dtype)
        if _ALL[name].fill
        else np.zeros(x.shape, x.dtype)
        for name, x in shapes(leading, slots, rows, beat_samples, fields, signal).items()
    }


def fill(batch: Batch, windows: Iterable[Window | None], group: tuple[int, ...] = (0,)) -> Batch:
    """Writes windows into one group of a batch, one after another, and returns the batch.

    `group` is the index of the group: (g,), or (a, g). None leaves its row empty.
    """
    start = 0
    for row, window in enumerate(windows):
        if window is None:
            continue
        count = len(window["length"])
        for name, array in batch.items():
            if _ALL[name].per == "beat":
                array[group][start : start + count] = window[name]
            elif name == "signal":
                array[(*group, row)][:, : window[name].shape[1]] = window[name]
            elif name == "patient":
                array[(*group, row)] = ticket(window["patient_id"])
            else:
                array[(*group, row)] = count if name == "num_beats" else window[name]
        start += count
    return batch


def with_targets(batch: Batch, targets: np.ndarray, numbers: np.ndarray) -> Batch:
    """The batch with what is to be learnt of each record: rows of `targets` [records,k] by the
    record numbers [...,g,r]; below zero there is no record."""
    there = (numbers >= 0)[..., None]
    return batch | {"target": np.where(there, targets[np.maximum(numbers, 0)], 0)}


def unpack(batch: Batch) -> Iterator[Window]:
    """The records of a batch [g,...] as windows, also those without a beat: the inverse of
    `fill`."""
    for group, counts in enumerate(batch["num_beats"]):
        for row, stop in enumerate(np.cumsum(counts)):
            beats = slice(stop - counts[row], stop)
            yield {
                name: array[group, beats if _ALL[name].per == "beat" else row]
                for name, array in batch.items()
            }


def pack(
    windows: Iterable[Window], slots: int, rows: int, signal: int = 0
) -> Iterator[tuple[list[dict], Batch]]:
    """Windows in order, as many as fit into each batch of `slots` beats and `rows` records.

    Yields the windows of each batch, without their samples, and the EMBED_BATCH itself.
    """
    chosen, beats = [], 0
    for window in windows:
        count = len(window["length"])
        if chosen and (beats + count > slots or len(chosen) == rows):
            yield list(map(without_samples, chosen)), make_batch(chosen, slots, rows, signal)
            chosen, beats = [], 0
        chosen.append(window)
        beats += count
    if chosen:
        yield list(map(without_samples, chosen)), make_batch(chosen, slots, rows, signal)


def without_samples(window: Window) -> dict[str, Any]:
    """What is known of a window, without the samples, which take memory."""
    return {name: value for name, value in window.items() if name not in ("beats", "signal")}


def make_batch(windows: Sequence[Window], slots: int, rows: int, signal: int = 0) -> Batch:
    """Windows one after another in an EMBED_BATCH of one group."""
    samples = windows[0]["beats"].shape[-1]
    return fill(empty((1,), slots, rows, samples, EMBED_BATCH, signal), windows)


def record_batch(window: Window, capacity: int) -> Batch:
    """One window as a batch with `capacity` slots, so that any beat count shares one
    compilation."""
    return fill(empty((1,), capacity, 1, window["beats"].shape[-1]), [window])


def silent_batch(beat_samples: int, signal: int = 0) -> Batch:
    """A batch of one record with two silent beats, to initialise a model with."""
    batch = empty((1,), 2, 1, beat_samples, signal=signal)
    return batch | {
        "length": np.ones_like(batch["length"]),
        "complete": np.ones_like(batch["complete"]),
        "num_beats": np.full_like(batch["num_beats"], 2),
        "lead_mask": np.full_like(batch["lead_mask"], 2 ** len(LEADS) - 1),
    }


def read_ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same items; the next few are made in another thread while the caller works on one."""
    end = object()
    pool = ThreadPoolExecutor(1, "read_ahead")
    try:
        pending = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
