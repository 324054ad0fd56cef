"""MIMIC-IV-ECG (record_list.csv), with the labels of MIMIC-IV-ECG-Ext-ICD if its table is there.

Three tasks with one class each, from the ICD-10 (and ICD-9) codes of the hospital stay: diabetes,
ckd, sepsis. A record is labelled if it has a list of codes: an empty list is a negative, an empty
cell is no label. ECGs outside any stay (ecg_taken_in_ed_or_hosp is False, two in five) are not
labelled, whatever their list says: nobody coded that moment, and keeping only those with a code
would make positives of a kind of record that has no negatives.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.lottery import SPLIT_RULE
from data_prep.corpora.corpus import Corpus
from data_prep.ecg.record import RecordRef
from data_prep.formats.tables import read_csv

ICD_TABLE = "records_w_diag_icd10.csv"
PREFIXES = {  # ICD-10, then ICD-9; without dots
    "diabetes": ("E10", "E11", "E12", "E13", "E14", "250"),
    "ckd": ("N18", "585"),
    "sepsis": ("A40", "A41", "R652", "9959", "7855"),
}
CODE_LISTS = ("all_diag_all", "all_diag_hosp", "ed_diag_ed", "ed_diag_hosp", "hosp_diag_hosp")
FOLDS = ("strat_fold", "fold")  # 20 folds by patient: 18 validates, 19 tests
RECORD_LIST = "record_list.csv"


def open(
    raw: Path, labels: str | None = None, codes: str | None = None, fold: str | None = None
) -> Corpus:
    """Lists the records that are in the folder.

    Options: `labels`, the path of records_w_diag_icd10.csv (by default it is looked for in the
    folder and beside it); `codes`, its column of codes (all_diag_all: emergency and hospital
    diagnoses); `fold`, its column of folds (strat_fold).
    """
    table = _find_table(raw, labels)
    known = _read_table(table, codes, fold) if table else {}
    refs, missing, split_of, ids, listed = [], 0, {}, set(), {}
    for row in read_csv(raw / RECORD_LIST, ("subject_id", "study_id", "path")):
        patient, record_id, path = sys.intern(row["subject_id"]), row["study_id"], row["path"]
        if not patient or not record_id or path.startswith("/") or ".." in path:
            raise InputError(
                f"{raw / RECORD_LIST} line {row.line}:"
                f" cannot read the row of study_id {record_id[:20]!r}"
            )
        if record_id in ids:
            raise InputError(
                f"{raw / RECORD_LIST} line {row.line}: study_id {record_id} was listed before"
            )
        ids.add(record_id)
        found, split = known.pop(record_id, ({}, None))
        if split is not None and split_of.setdefault(patient, split) != split:
            raise InputError(
                f"{table}:"
                f" patient {patient} is in {split_of[patient]} and {split} (study {record_id})"
            )
        if not _is_there(raw, path, listed):
            missing += 1
            continue
        refs.append(RecordRef(record_id, patient, split, found, os.path.join(raw, path)))
    if not refs:
        raise InputError(f"no record of record_list.csv below {raw}: is the set unpacked there?")
    # records that the label table does not name
    notes = []
    if table:
        for i, ref in enumerate(refs):
            if ref.split is None and ref.patient_id in split_of:  # the split of its patient
                refs[i] = dataclasses.replace(ref, split=split_of[ref.patient_id])
        loose = sum(ref.split is None for ref in refs)
        notes += (
            [f"{loose} records without fold are split by a hash of the patient"] if loose else []
        )
        notes += (
            [f"{len(known)} rows of {table.name} have no record in record_list.csv"]
            if known
            else []
        )
    rule = "folds 0-17 train, 18 validation, 19 test" if split_of else SPLIT_RULE
    tasks = {task: (task,) for task in PREFIXES} if table else {}
    return Corpus("mimic", str(raw), tasks, refs, rule, missing, notes=notes)


def _find_table(raw: Path, labels: str | None) -> Path | None:
    """The path of the label table, if there is one."""
    if labels:
        path = Path(labels)
        path = path / ICD_TABLE if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no file {path}: give the path of {ICD_TABLE} as labels")
        return path
    near = [raw / ICD_TABLE, *sorted(raw.parent.glob(f"mimic-iv-ecg-ext-icd*/**/{ICD_TABLE}"))]
    return next((path for path in near if path.is_file()), None)


def _is_there(raw: Path, path: str, listed: dict[str, set[str]]) -> bool:
    """Whether the folder of a record's patient (files/p1000/p10000032) exists.

    It lists the folders of groups of patients, of which there are a thousand; a look at every
    record would be 800,000.
    """
    group, patient = os.path.split(os.path.dirname(os.path.dirname(path)))
    if group not in listed:
        try:
            listed[group] = set(os.listdir(raw / group))
        except OSError:
            listed[group] = set()
    return not patient or patient in listed[group]


def _read_table(
    path: Path, codes: str | None, fold: str | None
) -> dict[str, tuple[dict, str | None]]:
    """study_id -> (labels, split). Records with the same values share one object, as there are
    800,000."""
    shared: dict[tuple, tuple[dict[str, list[str]], str | None]] = {}
    known = {}
    columns: tuple[str, str | None] | None = None
    for row in read_csv(path, ("study_id",)):
        columns = columns or (
            _column(row, codes, CODE_LISTS, path),
            _column(row, fold, FOLDS, path),
        )
        study = row["study_id"].removesuffix(".0")
        positive = _positive(row[columns[0]], f"{path} line {row.line}: study_id {study[:20]}")
        if row.get("ecg_taken_in_ed_or_hosp", "").lower() in ("false", "0"):
            positive = None
        labels = (
            {}
            if positive is None
            else {task: [task] if task in positive else [] for task in PREFIXES}
        )
        split = _split(row[columns[1]], f"{path} line {row.line}")
        key = (split, positive is None, *sorted(positive or ()))
        known[study] = shared.setdefault(key, (labels, split))
    return known


def _column(row: dict[str, str], asked: str | None, usual: tuple[str, ...], path: Path) -> str:
    """The column that is asked for, or the first usual one that the table has."""
    name = asked or next((name for name in usual if name in row), None)
    if name is None or name not in row:
        raise InputError(
            f"{path} has no column {name or ' or '.join(usual)!r} (found: {', '.join(row)[:120]})"
        )
    return name


def _positive(cell: str, where: str) -> set[str] | None:
    """The tasks that a cell like "['E119', 'I10']" is positive for; None for an empty cell."""
    if cell.lower() in ("", "nan", "none", "null"):
        return None
    if cell[0] != "[" or cell[-1] != "]" or len(cell) > 100_000:
        raise InputError(f"{where} has {cell[:40]!r} for a list of codes")
    found = set()
    for code in re.split(r"[,\s'\"\[\]]+", cell.upper().replace(".", "")):
        if code and not code.isalnum():
            raise InputError(f"{where} has the code {code[:20]!r}")
        found.update(task for task, prefixes in PREFIXES.items() if code.startswith(prefixes))
    return found


def _split(cell: str, where: str) -> str | None:
    """The split of a fold; None for an empty cell."""
    if not cell or cell.lower() == "nan":
        return None
    try:
        fold = float(cell)
        if not 0 <= fold <= 19 or fold != int(fold):
            raise ValueError
    except ValueError:
        raise InputError(f"{where}: fold {cell[:20]!r} is not 0 to 19") from None
    return "train" if fold < 18 else "validation" if fold == 18 else "test"
