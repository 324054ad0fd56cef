"""Batches filled from packed records (data_prep/dataset/packed.py), without a step for each field
of each record."""

from collections.abc import Sequence

import numpy as np

from data_prep.base.lottery import ticket
from data_prep.dataset.packed import Packed


class PackedSource:
    """The packed records of one data set, or of the sets of a mixture one after another.

    Args:
      parts: the packed records of each set.
      names: of the sets of a mixture; records then get the uids and patients that Mixture.read
        gives them.
    """

    def __init__(self, parts: Sequence[Packed], names: Sequence[str] | None = None):
        self._parts = list(parts)
        sizes = [len(part.first_beat) for part in parts]
        self._owner = np.repeat(np.arange(len(parts)), sizes)
        self._place = np.concatenate([np.arange(size) for size in sizes])  # in its set
        self._first_beat = np.concatenate([part.first_beat for part in parts])
        beats = [len(part.arrays["length"]) for part in parts]
        self._offset = (np.cumsum(beats) - beats)[self._owner]  # of a set among all beats
        ends = [np.r_[part.first_beat, n][1:] for part, n in zip(parts, beats, strict=True)]
        self._count = np.concatenate(ends) - self._first_beat

        # small fields, in memory
        self._fields = {
            name: np.concatenate([part.arrays[name] for part in parts])
            for name in ("length", "complete", "lead_mask", "scale", "uid")
        }
        if names is not None:
            marks = np.array([ticket(str(k)) for k in range(len(parts))], np.uint32)
            self._fields["uid"] = self._fields["uid"] ^ marks[self._owner]
        self._fields["num_beats"] = self._count.astype(np.int32)
        if "signal" in parts[0].arrays:
            before = [f"{name}/" for name in names] if names else [""] * len(parts)
            self._fields["patient"] = np.concatenate(
                [_tickets(p.arrays["patient_id"], b) for p, b in zip(parts, before, strict=True)]
            )

    def fill(self, batch: dict[str, np.ndarray], numbers: np.ndarray, group: tuple) -> None:
        """Writes the records with these numbers into one group of a batch, one after another;
        numbers below zero leave their rows empty. As packing.fill does it."""
        rows = np.flatnonzero(numbers >= 0)
        numbers = numbers[rows]
        count = self._count[numbers]
        ends = np.cumsum(count)
        for name, array in batch.items():
            if name == "beats":
                self._copy_beats(array[group], numbers, ends - count, ends)
            elif name == "signal":
                for row, number in zip(rows, numbers, strict=True):
                    signal = self._large("signal", number)[self._place[number]]
                    array[(*group, row)] = signal[:, : array.shape[-1]]
            elif name in ("length", "complete"):
                first = self._offset[numbers] + self._first_beat[numbers] - (ends - count)
                beats = np.arange(count.sum()) + np.repeat(first, count)
                array[group][: len(beats)] = self._fields[name][beats]
            else:
                array[group][rows] = self._fields[name][numbers]

    def _copy_beats(
        self, slots: np.ndarray, numbers: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> None:
        first = self._first_beat[numbers]
        last = first + self._count[numbers]
        places = zip(*(x.tolist() for x in (numbers, starts, ends, first, last)), strict=True)
        for number, start, end, begin, stop in places:
            slots[start:end] = self._large("beats", number)[begin:stop]

    def _large(self, name: str, number: int) -> np.ndarray:
        return self._parts[self._owner[number]].arrays[name]


def _tickets(patients: np.ndarray, before: str) -> np.ndarray:
    """The number of each patient, as packing.fill writes it."""
    found, index = np.unique(patients, return_inverse=True)
    return np.array([ticket(before + name.decode()) for name in found], np.uint32)[index]
