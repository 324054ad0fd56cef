"""Training records in memory, and the batches that are drawn from them.

A batch has one row of each of its records, a complete beat or the whole signal. Its visible leads
are drawn for the whole batch, 1 to 11 of them, every number as often; limb leads that follow from
two visible ones are then visible too, as they are wherever leads are derived. All draws depend on
the seed and the step alone. Axis letters: n record, m beat, b row of a batch, l lead, p sample.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import ticket
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.signal import recover_limb_leads
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.learned.network import BEATS, LENGTH, SIZE

HELD = 500  # records of training patients that no step sees, at most
HELD_SHARE = 0.1  # of all records, at most


@dataclass(frozen=True)
class Examples:
    """What one kind of network reads of some records; complete beats, or signals."""

    x: np.ndarray  # float16 [m,l,p]
    mean: np.ndarray | None  # float16 [n,l,p] mean complete beats; None for signals
    seconds: np.ndarray  # float32 [m] length of each row
    ends: np.ndarray  # [n] where the rows of each record end in x
    present: np.ndarray  # bool [n,l]
    sizes: np.ndarray  # float32 [n,l] standard deviations in mV
    patients: list[str]

    def __len__(self) -> int:
        return len(self.patients)

    def draw(
        self, records: np.ndarray, visible: np.ndarray, rng: np.random.Generator
    ) -> tuple[dict, dict]:
        """One row of each of these records [b], as network.py describes `shown` and `truth`."""
        starts = np.concatenate([[0], self.ends[:-1]])[records]
        row = starts + (rng.random(len(records)) * (self.ends[records] - starts)).astype(np.int64)
        x, present = self.x[row].astype(np.float32), self.present[records]
        mean = None if self.mean is None else self.mean[records].astype(np.float32)
        shown = show(x, mean, present & visible, self.sizes[records], self.seconds[row])
        counted = present & ~visible & shown["visible"].any(1, keepdims=True)
        return shown, {"x": x, "counted": counted}


def show(
    x: np.ndarray,
    mean: np.ndarray | None,
    visible: np.ndarray,
    sizes: np.ndarray,
    seconds: np.ndarray,
) -> dict:
    """`shown` of rows x [b,l,p], the mean beats of their records, visible leads [b,l], the sizes of
    their leads in mV [b,l] and their lengths [b]."""
    shown = {
        "x": np.where(visible[..., None], x, np.float32(0)),
        "visible": visible,
        "size": np.log(np.where(visible, sizes / SIZE, 1.0)).astype(np.float32),
        "length": np.log(seconds / LENGTH).astype(np.float32),
    }
    if mean is not None:
        shown["mean"] = np.where(visible[..., None], mean, np.float32(0))
    return shown


def read_examples(windows: Iterable[dict], reads: str, rate: float) -> Examples:
    """Reads windows of this sampling rate once; those without a complete beat are left out if beats
    are read."""
    x, means, seconds, counts, masks, sizes, patients = [], [], [], [], [], [], []
    for window in windows:
        if reads == BEATS:
            complete = np.asarray(window["complete"], bool)
            if not complete.any():
                continue
            rows = np.asarray(window["beats"])[complete]
            seconds.append(np.asarray(window["length"])[complete] / rate)
            means.append(rows.mean(0, dtype=np.float32).astype(np.float16))
        else:
            rows = signal_of(window)[None]
            seconds.append([rows.shape[-1] / rate])
        x.append(rows.astype(np.float16))
        counts.append(len(rows))
        masks.append(mask_leads(window["lead_mask"]))
        sizes.append(np.asarray(window["scale"]))
        patients.append(window["patient_id"])
    if not x:
        raise InputError("no training record has a complete beat, so there is nothing to learn")
    return Examples(
        np.concatenate(x),
        np.stack(means) if means else None,
        np.concatenate(seconds).astype(np.float32),
        np.cumsum(counts),
        np.stack(masks),
        np.stack(sizes),
        patients,
    )


def hold_out(patients: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the records to train on, and of those of patients that are held out: the
    first ones in an order that a hash gives, at least one."""
    records = Counter(patients)
    order = sorted(records, key=lambda patient: (ticket(patient), patient))
    if len(order) < 2:
        raise InputError("all training records are of one patient: at least two are needed")
    counts = np.cumsum([records[patient] for patient in order])
    most = min(HELD, HELD_SHARE * len(patients))
    held = set(order[: max(1, int(np.searchsorted(counts, most, side="right")))])
    out = np.array([patient in held for patient in patients])
    return np.flatnonzero(~out), np.flatnonzero(out)


def draw_visible(rng: np.random.Generator, number: int | None = None) -> np.ndarray:
    """Visible leads, bool [l], that leave one to derive: `number` of them, or 1 to 11."""
    number = number or int(rng.integers(1, len(LEADS)))
    while True:
        visible = np.zeros(len(LEADS), bool)
        visible[rng.permutation(len(LEADS))[:number]] = True
        _, visible = recover_limb_leads(np.zeros((len(LEADS), 0)), visible)
        if not visible.all():
            return visible
