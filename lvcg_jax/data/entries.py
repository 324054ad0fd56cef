"""Examples of shards by their numbers, without their samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from data_prep.base.lottery import ticket
from data_prep.dataset.shards import ShardSet


@dataclass(frozen=True)
class Entry:
    """Where a window of a data set is, and what choosing its visible leads needs to know."""

    shards: ShardSet
    index: int
    record_id: str
    window: int
    patient_id: str
    uid: int
    lead_mask: int

    @property
    def key(self) -> tuple[str, int]:
        return self.record_id, self.window

    @property
    def row(self) -> str:
        """Its key in a table of embeddings."""
        return f"{self.record_id}#{self.window}"


def draw_patients(patients: Sequence[str], limit: int | None = None) -> list[int]:
    """The numbers of at most `limit` rows, in order, from as many patients as there can be.

    Patients stand in an order that a hash of their ids gives. Each gives its first row, then each
    its second, and so on. Without a limit: all rows.
    """
    rows: dict[str, list[int]] = {}
    for number, patient in enumerate(patients):
        rows.setdefault(patient, []).append(number)
    order = sorted(rows, key=lambda name: (ticket(name), name))
    turns = zip_longest(*(rows[patient] for patient in order))
    drawn = [number for turn in turns for number in turn if number is not None]
    return sorted(drawn[:limit])


def list_entries(sets: Sequence[ShardSet], limit: int | None = None) -> list[Entry]:
    """Every window of some splits in order, or at most `limit` of them, as draw_patients draws."""
    entries = []
    for shards in sets:
        for first in range(0, len(shards), 64):
            numbers = range(first, min(first + 64, len(shards)))
            for i, example in zip(numbers, shards.read(numbers), strict=True):
                names = ("record_id", "window", "patient_id", "uid", "lead_mask")
                entries.append(Entry(shards, i, *(example[name] for name in names)))
    return [entries[i] for i in draw_patients([entry.patient_id for entry in entries], limit)]
