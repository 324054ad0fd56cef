"""CSV tables of labels and splits: columns go by name, and every mistake is reported with its
line."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from data_prep.base.errors import InputError
from data_prep.base.files import ordinary
from data_prep.base.words import SPLITS, first_line
from data_prep.ecg.record import RecordRef
from data_prep.formats.wfdb_files import decode

ID_COLUMNS = ("record_id", "patient_id", "split")


class Row(dict[str, str]):
    """One row of a CSV by column name, with the line of the file on which it begins."""

    line: int


def read_csv(path: Path, needed: tuple[str, ...] = ()) -> Iterator[Row]:
    """The rows of a CSV, one at a time; empty rows are skipped.

    A file that cannot be read, a missing column and a row of another length are InputErrors.
    """
    csv.field_size_limit(2**24)
    try:
        with open(ordinary(path), "rb") as file:
            start = file.read(2)
        if start in (b"\xff\xfe", b"\xfe\xff"):
            text = io.StringIO(decode(path.read_bytes()), newline="")
            yield from _rows(text, path, needed)
            return
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield from _rows(file, path, needed)
    except UnicodeDecodeError:
        raise InputError(
            f"cannot read {path}: its text is not UTF-8; save it again as UTF-8"
        ) from None
    except (OSError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}") from None


def _rows(file: TextIO, path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    reader = csv.reader(file)
    columns = [name.strip() for name in next(reader, [])]
    for name in needed:
        if name not in columns:
            raise InputError(
                f"{path} has no column {name!r} (found: {', '.join(columns)[:120] or 'nothing'})"
            )
    if len(set(columns)) != len(columns):
        raise InputError(f"{path} has a column name twice: {', '.join(columns)[:120]}")
    before = reader.line_num
    for cells in reader:
        line, before = before + 1, reader.line_num  # a cell may contain line breaks
        if not cells:
            continue
        if len(cells) != len(columns):
            raise InputError(f"{path} line {line}: {len(cells)} cells for {len(columns)} columns")
        row = Row(zip(columns, map(str.strip, cells), strict=True))
        row.line = line
        yield row


def read_ids(row: Row, path: Path, seen: Iterable[str]) -> tuple[str, str, str | None]:
    """record_id, patient_id and split of a row."""
    record_id, patient, split = row["record_id"], row["patient_id"], row.get("split") or None
    if not record_id or not patient:
        raise InputError(f"{path} line {row.line}: record_id or patient_id is empty")
    if record_id in seen:
        raise InputError(f"{path} line {row.line}: record_id {record_id} was listed before")
    _check_split(row, path, f" of {record_id}")
    return record_id, patient, split


def read_keyed(path: Path, needed: tuple[str, ...] = ()) -> tuple[str, list[Row]]:
    """The rows of a user's table and its column of ids: record_id or, if there is none,
    patient_id."""
    rows = list(read_csv(path, needed))
    key = next((name for name in ("record_id", "patient_id") if rows and name in rows[0]), None)
    if key is None:
        raise InputError(f"{path} needs a column record_id or patient_id, and one row at least")
    for row in rows:
        _check_split(row, path)
    return key, rows


def _check_split(row: Row, path: Path, of: str = "") -> None:
    if row.get("split") and row["split"] not in SPLITS:
        raise InputError(
            f"{path} line {row.line}: split {row['split']!r}{of}; choose from {', '.join(SPLITS)}"
        )


def split_classes(cell: str) -> list[str]:
    """'B; A' -> ['A', 'B']. An empty cell says that the record was examined and has no class."""
    return sorted({name.strip() for name in cell.split(";")} - {""})


def read_labels(
    path: Path,
) -> tuple[dict[str, tuple[str, str | None, dict[str, list[str]]]], dict[str, tuple[str, ...]]]:
    """labels.csv -> (record_id -> (patient_id, split, labels), task -> class names).

    The columns are record_id, patient_id and optionally split. Every other column is a task, with
    its classes joined by ';'.
    """
    rows, seen = {}, {}
    for row in read_csv(path, ("record_id", "patient_id")):
        record_id, patient, split = read_ids(row, path, rows)
        labels = {task: split_classes(cell) for task, cell in row.items() if task not in ID_COLUMNS}
        rows[record_id] = (patient, split, labels)
        for task, names in labels.items():
            seen.setdefault(task, set()).update(names)
    return rows, {task: tuple(sorted(names)) for task, names in seen.items()}


def check_patients(refs: list[RecordRef], path: Path) -> None:
    """An InputError if a patient is in two splits: test data would leak into training."""
    first: dict[str, RecordRef] = {}
    for ref in refs:
        other = first.setdefault(ref.patient_id, ref)
        if other.split != ref.split:
            splits = f"{other.split or 'no split'} and {ref.split or 'no split'}"
            raise InputError(
                f"{path}: patient {ref.patient_id} is in {splits}"
                f" ({other.record_id}, {ref.record_id})"
            )
