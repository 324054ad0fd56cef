"""Examples of shards by their numbers, without their samples."""

from collections.abc import Sequence
from dataclasses import dataclass

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


def list_entries(sets: Sequence[ShardSet], limit: int | None = None) -> list[Entry]:
    """Every window of some splits in order, or at most `limit` of them, patient after patient in
    the order of a hash of their ids."""
    entries = []
    for shards in sets:
        for first in range(0, len(shards), 64):
            numbers = range(first, min(first + 64, len(shards)))
            for i, example in zip(numbers, shards.read(numbers), strict=True):
                names = ("record_id", "window", "patient_id", "uid", "lead_mask")
                entries.append(Entry(shards, i, *(example[name] for name in names)))
    if limit is None or limit >= len(entries):
        return entries
    lottery = sorted(range(len(entries)), key=lambda i: (ticket(entries[i].patient_id), i))
    return [entries[i] for i in sorted(lottery[:limit])]
