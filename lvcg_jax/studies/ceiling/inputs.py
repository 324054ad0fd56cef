"""The inputs that are compared, and the records of a split in memory, cut as each input has it.

A record is a run of units: beats, windows around R peaks, or single samples. What a network reads
of it at a time is a crop of some consecutive units. Where the beats are stretched or cut out, what
that loses of time goes with them as two numbers: the R-R interval that a unit begins, and the one
before it.

Axis letters: m record, u unit of a split, b row of a batch, k unit of a crop, p sample of a unit,
l lead, c channel, y class.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import mask_leads
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.reconstruct.linear import mean_products
from lvcg_jax.studies.field_modes import field_modes

BEATS, WINDOWS, SIGNAL = "beats", "windows", "signal"  # where units come from
BEFORE, AFTER = 0.35, 0.55  # seconds of a window around its R peak
CROP_SECONDS, CROP_BEATS = 2.5, 3  # of a crop; three beats last about as long
MODES, MODES_EPS = 6, 1e-3
LIFT_EPS = 1e-4  # with all leads it hardly matters


@dataclass(frozen=True)
class Input:
    """One form of a record."""

    units: str
    millivolts: bool = False  # or every lead of every record z-scored
    channels: str = "leads"  # or 'vector': lifted to the heart vector; or 'modes' of the field


INPUTS = {
    "vcg beats": Input(BEATS, channels="vector"),
    "12-lead beats": Input(BEATS),
    "12-lead beats in mV": Input(BEATS, millivolts=True),
    "centred windows in mV": Input(WINDOWS, millivolts=True),
    "field modes in mV": Input(BEATS, millivolts=True, channels="modes"),
    "whole record z-scored": Input(SIGNAL),
    "whole record in mV": Input(SIGNAL, millivolts=True),
}


class Units(NamedTuple):
    """The units of all records of a split, one record after another."""

    x: np.ndarray  # float16 [u,p,l], normalised leads; p is 1 where units are samples
    seconds: np.ndarray | None  # [u,2] the R-R interval and the one before it
    first: np.ndarray  # [m] where a record begins
    count: np.ndarray  # [m]


class Records(NamedTuple):
    """A split in memory."""

    units: dict[str, Units]
    scale: np.ndarray  # [m,l] mV of one normalised unit
    present: np.ndarray  # bool [m,l]
    uid: np.ndarray  # [m]
    labels: np.ndarray  # bool [m,y]
    labelled: np.ndarray  # bool [m,y] whether the record has labels of the class's task


def read_split(
    shards: ShardSet, tasks: Mapping[str, Sequence[str]], kinds: Iterable[str]
) -> Records:
    """All records of a split that have labels of one of the tasks; classes go by task, in order."""
    rate = shards.preprocess.rate
    found: dict[str, list] = {name: [] for name in kinds}
    seconds: dict[str, list] = {name: [] for name in kinds}
    rows: list[tuple] = []
    with progress_bar(total=len(shards), unit="rec", desc=f"read {shards.split}") as bar:
        for window in shard_windows(shards, bar.update):
            labels = window["labels"]
            if not any(task in labels for task in tasks):
                continue
            for kind in found:
                x, intervals = cut(window, kind, rate)
                found[kind].append(x)
                seconds[kind].append(intervals)
            true = [name in labels.get(task, ()) for task in tasks for name in tasks[task]]
            known = [task in labels for task in tasks for _ in tasks[task]]
            facts = (window["scale"], mask_leads(window["lead_mask"]), window["uid"])
            rows.append((*facts, true, known))
    scale, present, uid, true, known = (np.array(column) for column in zip(*rows, strict=True))
    units = {kind: _joined(found.pop(kind), seconds.pop(kind)) for kind in list(found)}
    return Records(units, scale, present, uid.astype(np.uint32), true, known)


def _joined(several: list[np.ndarray], seconds: list) -> Units:
    count = np.array([len(x) for x in several])
    intervals = None if seconds[0] is None else np.concatenate(seconds)
    return Units(np.concatenate(several), intervals, np.cumsum(count) - count, count)


def cut(window: dict, kind: str, rate: float) -> tuple[np.ndarray, np.ndarray | None]:
    """The units [k,p,l] of one record, and their intervals [k,2] in seconds."""
    if kind == SIGNAL:
        return window["signal"].T[:, None], None
    complete, length = np.asarray(window["complete"]), np.asarray(window["length"])
    # an interval that the record cuts off is taken for one of the usual length
    usual = length[complete].mean() if complete.any() else length.max()
    interval = np.where(complete, length, usual) / rate
    before = np.concatenate([interval[:1], interval[:-1]])
    intervals = np.stack([interval, before], 1).astype(np.float32)
    if kind == BEATS:
        return np.swapaxes(window["beats"], 1, 2), intervals
    # beats divide a record, so all but the first begin at an R peak, and the first if it is whole
    peaks = np.flatnonzero(complete | (np.arange(len(complete)) > 0))
    peaks = peaks if len(peaks) else np.array([0])
    return around(window["signal"], window["start"][peaks], rate), intervals[peaks]


def around(signal: np.ndarray, peaks: np.ndarray, rate: float) -> np.ndarray:
    """Samples of a signal [l,t] from BEFORE to AFTER each R peak [k], zero beyond its ends:
    [k,p,l]."""
    before, after = round(BEFORE * rate), round(AFTER * rate)
    padded = np.pad(signal, ((0, 0), (before, after)))
    return padded.T[np.asarray(peaks)[:, None] + np.arange(before + after)]


@dataclass(frozen=True)
class Fitted:
    """What inputs take from the training records."""

    sizes: np.ndarray  # [l] mV: the median size of each lead
    modes: np.ndarray | None  # [l,c]


def fit_inputs(records: Records, shards: ShardSet, inputs: Iterable[Input]) -> Fitted:
    """From the training split."""
    sizes = np.nanmedian(np.where(records.present, records.scale, np.nan), axis=0)
    sizes = np.nan_to_num(sizes, nan=1.0)  # of a lead that no record has
    modes = None
    if any(one.channels == "modes" for one in inputs):
        with progress_bar(total=len(shards), unit="rec", desc="field modes") as bar:
            products, _ = mean_products(shard_windows(shards, bar.update), "field modes")
        modes = field_modes(products["mV"] / np.outer(sizes, sizes), MODES)
    return Fitted(sizes, modes)


class Crops:
    """The records of a split as one input has them, in batches of crops."""

    def __init__(self, one: Input, records: Records, fitted: Fitted, rate: float):
        self.units = records.units[one.units]
        self.size = round(CROP_SECONDS * rate) if one.units == SIGNAL else CROP_BEATS
        self.records = records
        gain = records.scale / fitted.sizes if one.millivolts else 1.0
        self.gain = np.where(records.present, gain, 0.0).astype(np.float32)  # [m,l]
        self.lift = None  # [m,c,l]
        if one.channels != "leads":
            lifted = one.channels == "vector"
            matrix, eps = (lead_matrix("paper"), LIFT_EPS) if lifted else (fitted.modes, MODES_EPS)
            kinds, kind = np.unique(records.present, axis=0, return_inverse=True)
            self.lift = lift_matrix(matrix, kinds, eps)[kind.reshape(-1)].astype(np.float32)

    def __len__(self) -> int:
        return len(self.gain)

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A crop at a random place of each of these records."""
        free = np.maximum(self.units.count[rows] - self.size, 0)
        return self.batch(rows, rng.integers(free + 1))

    def covering(self, row: int) -> np.ndarray:
        """Where crops begin that overlap by half and together hold the whole record."""
        free = max(int(self.units.count[row]) - self.size, 0)
        return np.linspace(0, free, math.ceil(2 * free / self.size) + 1).round().astype(int)

    def batch(self, rows: np.ndarray, start: np.ndarray) -> dict[str, np.ndarray]:
        """Crops of these records that begin there; rows below zero only fill the batch. What
        `mask` [b,k] leaves out is any unit."""
        there, rows = rows >= 0, np.maximum(rows, 0)
        place = start[:, None] + np.arange(self.size)
        mask = (place < self.units.count[rows, None]) & there[:, None]  # [b,k]
        index = np.where(mask, self.units.first[rows, None] + place, 0)
        found = {
            "x": self.units.x[index],
            "mask": mask,
            "gain": self.gain[rows],
            "uid": self.records.uid[rows],
            "labels": self.records.labels[rows],
            "labelled": self.records.labelled[rows] & there[:, None],
        }
        if self.units.seconds is not None:
            found["seconds"] = self.units.seconds[index]
        return found if self.lift is None else found | {"lift": self.lift[rows]}
