"""A record: listed (RecordRef), read from its file (Waveform), and the two together (Record)."""

from dataclasses import dataclass, field

import numpy as np

Span = tuple[int, int]  # first sample of a part of a record, and the one after its last


@dataclass(frozen=True, slots=True)
class RecordRef:
    """A record of a listing, before anything of its signal is read."""

    record_id: str
    patient_id: str
    split: str | None
    # task -> class names; a task is absent when the record is not labelled for it
    labels: dict[str, list[str]]
    path: str  # without extension, or the whole file name if the corpus needs it


@dataclass
class Record:
    """One record with its signal."""

    record_id: str
    patient_id: str
    signal: np.ndarray  # float32 [T,c] in mV, NaN where the file holds no value
    rate: float
    leads: list[str]  # as the file spells them
    labels: dict[str, list[str]]
    split: str | None
    source: str  # name of the corpus
    path: str = ""  # of the file it was read from
    # in the files: 'checksum:V1', 'header_repaired', ...
    defects: list[str] = field(default_factory=list)
    info: dict[str, str] = field(default_factory=dict)  # what else the files say: age, sex, codes
    # lead -> wave -> int [k,3], see corpora/ludb.py
    annotations: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    # what the user should know of how it was read, one line each
    notes: list[str] = field(default_factory=list)


@dataclass
class Waveform:
    """What a corpus' read function returns for one record."""

    signal: np.ndarray
    rate: float
    leads: list[str]
    defects: list[str] = field(default_factory=list)
    info: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    total: int | None = None  # samples of the whole record, if only a part of it was asked for
