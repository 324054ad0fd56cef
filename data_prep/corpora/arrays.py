"""Users' own data: .npy, .npz, .csv, .edf, .bdf and WFDB files, listed in records.csv.

records.csv has a row per record. Its columns are record_id and path (relative to the folder) and,
as needed, patient_id (otherwise every record is a patient), rate in Hz, unit (mV, uV, ...), leads
('I;II;V2', in the order of the columns) and split. Every other column is a task, with its classes
joined by ';'. EDF, BDF and WFDB files state rate, unit and leads themselves; a CSV with a row of
names states its leads, and an .npz may hold `rate`, `unit` and `leads` beside `signal`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import Corpus
from data_prep.corpora.duplicates import keep_together
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.formats.any_file import MANIFEST, read_file, read_rate, split_leads
from data_prep.formats.tables import ID_COLUMNS, check_patients, read_csv, read_ids, split_classes


@dataclass(frozen=True, slots=True)
class ArrayRef(RecordRef):
    """A record of records.csv, with what its file may not state; `path` is the whole file name."""

    rate: float | None = None
    unit: str | None = None
    leads: tuple[str, ...] | None = None


def open(raw: Path) -> Corpus:
    """The records of records.csv in a folder."""
    path = raw / MANIFEST
    refs: dict[str, ArrayRef] = {}
    classes: dict[str, set[str]] = {}
    own_patients = False
    for row in read_csv(path, ("record_id", "path")):
        own_patients = "patient_id" not in row
        row.setdefault("patient_id", row["record_id"])
        record_id, patient, split = read_ids(row, path, refs)
        if not row["path"]:
            raise InputError(f"{path} line {row.line}: record {record_id} has no path")
        if (
            "\0" in row["path"]
            or os.path.isabs(row["path"])
            or os.path.normpath(row["path"]).startswith("..")
        ):
            raise InputError(
                f"{path} line {row.line}: the path of record {record_id} leaves the folder:"
                " give one below it, or put a link there"
            )
        rate = read_rate(row["rate"], record_id) if row.get("rate") else None
        unit, leads = row.get("unit") or None, tuple(split_leads(row.get("leads", ""))) or None
        labels = {
            task: split_classes(row[task])
            for task in row
            if task not in (*ID_COLUMNS, *_OTHER_COLUMNS)
        }
        for task, names in labels.items():
            classes.setdefault(task, set()).update(names)
        file = str(raw / row["path"])
        refs[record_id] = ArrayRef(record_id, patient, split, labels, file, rate, unit, leads)
    if not refs:
        raise InputError(f"{path} lists no record")
    listed, duplicates = list(refs.values()), {}
    if own_patients:
        listed, duplicates = keep_together(listed, ("",))
    check_patients([ref for ref in listed if ref.record_id not in duplicates], path)
    rule = "column split of records.csv" if any(ref.split for ref in listed) else "none given"
    tasks = {task: tuple(sorted(names)) for task, names in classes.items()}
    return Corpus("arrays", str(raw), tasks, listed, rule, read=read, duplicates=duplicates)


_OTHER_COLUMNS = ("path", "rate", "unit", "leads")


def read(ref: ArrayRef) -> Waveform:
    """Reads the file of a record."""
    return read_file(ref.path, ref.record_id, ref.rate, ref.unit, ref.leads)
