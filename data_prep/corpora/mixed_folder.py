"""A folder of files of any formats that are read here, with or without a table of labels."""

import os
from collections import Counter
from pathlib import Path

from data_prep.base.errors import InputError, NotSaid
from data_prep.base.words import list_some, printable
from data_prep.corpora.arrays import ArrayRef
from data_prep.corpora.corpus import Corpus
from data_prep.corpora.duplicates import keep_together
from data_prep.ecg.record import Span, Waveform
from data_prep.formats.any_file import (
    ENDINGS,
    MANIFEST,
    file_kind,
    read_file,
    read_rate,
    split_leads,
)
from data_prep.formats.tables import check_patients, read_labels


def open(
    raw: Path,
    labels: str | None = None,
    rate: str | float | None = None,
    unit: str | None = None,
    lead_names: str | None = None,
) -> Corpus:
    """Every record below a folder; `rate`, `unit` and `lead_names` are for files that do not say.

    record_id is the path below the folder without its ending (with it, where two files differ only
    in that). `labels`, or labels.csv in the folder, gives patients, splits and classes; its
    record_id may also be a file's name alone, with or without ending, if that is unique.
    """
    table = Path(labels) if labels else raw / "labels.csv"
    paths, others = _list_files(raw, table)
    if not paths:
        raise InputError(f"no ECG file below {raw} ({len(others)} other files)")
    ids = _ids(raw, paths)
    rows, tasks = read_labels(table) if labels or table.exists() else ({}, {})
    row_of = _match(rows, ids, raw, table)
    said = (
        read_rate(rate, "--rate") if rate else None,
        unit,
        tuple(split_leads(lead_names or "")) or None,
    )
    refs = []
    for path, record_id in ids.items():
        patient, split, classes = row_of.get(record_id, (record_id, None, {}))
        file = str(path.with_suffix("") if path.suffix.lower() == ".hea" else path)
        refs.append(ArrayRef(record_id, patient, split, classes, file, *said))
    duplicates = {}
    if not rows:
        refs, duplicates = keep_together(refs, ("", ".dat", ".mat"))
    check_patients(refs, table)
    rule = f"column split of {table.name}" if any(ref.split for ref in refs) else "none given"
    notes = [f"{len(others)} files are no ECG and left out: {list_some(others)}"] if others else []
    corpus = Corpus("files", str(raw), tasks, refs, rule, read=read, duplicates=duplicates)
    corpus.in_parts = True
    corpus.notes += notes
    return corpus


def read(ref: ArrayRef, span: Span | None = None) -> Waveform:
    """Reads the file of a record, or a part of it; what was given counts only where the file does
    not say it."""
    renamed = ref.leads if ref.leads and "=" in ref.leads[0] else None
    for said in ((None, None, renamed), (ref.rate, ref.unit, renamed)):
        try:
            return read_file(ref.path, ref.record_id, *said, span)
        except NotSaid:
            continue
    return read_file(ref.path, ref.record_id, ref.rate, ref.unit, ref.leads, span)


def _list_files(raw: Path, table: Path) -> tuple[list[Path], list[str]]:
    """The files that hold a record, and the names of those that do not. Files beside a header of
    the same name (signals, annotations) are part of its record, and in neither list."""
    paths, others = [], []
    for folder, folders, names in os.walk(raw):
        folders.sort()
        headers = {Path(name).stem for name in names if name.lower().endswith(".hea")}
        for name in sorted(names):
            path, suffix = Path(folder, name), Path(name).suffix.lower()
            if name.startswith(".") or path == table or name in ("labels.csv", MANIFEST):
                continue
            if suffix == ".hea" or (suffix in ENDINGS and path.stem not in headers):
                paths.append(path)
            elif path.stem not in headers:
                try:
                    file_kind(str(path), path.stem)
                    paths.append(path)
                except InputError:
                    others.append(name)
    return paths, others


def _ids(raw: Path, paths: list[Path]) -> dict[Path, str]:
    # of names that are not UTF-8, Python makes something that no file can hold
    plain = {path: printable(path.relative_to(raw).with_suffix("").as_posix()) for path in paths}
    count = Counter(plain.values())
    return {
        path: name if count[name] == 1 else printable(path.relative_to(raw).as_posix())
        for path, name in plain.items()
    }


def _match(rows: dict, ids: dict[Path, str], raw: Path, table: Path) -> dict:
    """The row of labels of each record id, by any name that is that record's alone."""
    names: dict[str, set[str]] = {}
    for path, record_id in ids.items():
        for name in (record_id, path.relative_to(raw).as_posix(), path.stem, path.name):
            names.setdefault(name, set()).add(record_id)
    found: dict[str, tuple] = {}
    unknown = []
    for name, row in rows.items():
        matches = {name} if name in ids.values() else names.get(name, set())
        if len(matches) > 1:
            raise InputError(f"{table}: record_id {name} fits {list_some(sorted(matches))}")
        for record_id in matches:
            if record_id in found:
                raise InputError(f"{table}: record {record_id} is listed twice, once as {name}")
            found[record_id] = row
        if not matches:
            unknown.append(name)
    if unknown:
        raise InputError(
            f"{table}: {len(unknown)} record_id without a record in the folder:"
            f" {list_some(unknown)}"
        )
    return found
