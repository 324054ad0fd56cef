"""Read ECG corpora: a cheap listing of records first, the signals one at a time.

A corpus is a name, its tasks (task -> class names, sorted) and a list of RecordRef; `load(ref)` reads one signal.
Labels and leads go by name everywhere. To add a corpus, write a function raw_dir -> Corpus and enter it in CORPORA.
What is wrong with one record is an InputError of one line that names it, so that a build can note it and go on.
"""

import ast
import csv
import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.errors import InputError
from data_prep.wfdb_files import read_wfdb

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class RecordRef:
    """One record of the listing; nothing of its signal has been read."""

    record_id: str
    patient_id: str
    split: str | None
    labels: dict[str, list[str]]  # task -> class names; a task is absent when the record is not labelled for it
    path: str  # without extension


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
    source: str


@dataclass
class Corpus:
    """A listed corpus. `missing` counts records that the tables name and the folder lacks."""

    name: str
    raw_dir: str
    tasks: dict[str, tuple[str, ...]]
    refs: list[RecordRef]
    split_rule: str
    missing: int = 0

    def load(self, ref: RecordRef) -> Record:
        """Read the signal of one record."""
        signal, rate, leads = read_wfdb(ref.path, ref.record_id)
        return Record(ref.record_id, ref.patient_id, signal, rate, leads, ref.labels, ref.split, self.name)


def open_corpus(name: str, raw_dir: str | Path) -> Corpus:
    """List the corpus `name` in the folder `raw_dir`."""
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(CORPORA)}"
        raise InputError(f"unknown corpus {name!r}: {hint}")
    raw = Path(raw_dir)
    if not raw.is_dir():
        raise InputError(f"no folder {raw}: give the folder that holds the {name} records")
    return CORPORA[name](raw)


# ---- any folder of WFDB records, with or without labels.csv


def open_wfdb(raw: Path) -> Corpus:
    """Every record below a folder; record_id is its path without extension. labels.csv, if there, gives the rest."""
    stems = sorted(path.relative_to(raw).with_suffix("").as_posix() for path in raw.rglob("*.hea"))
    if not stems:
        raise InputError(f"no WFDB header (*.hea) below {raw}: is this the right folder?")
    rows, tasks = read_labels(raw / "labels.csv") if (raw / "labels.csv").exists() else ({}, {})
    unknown = sorted(rows.keys() - set(stems))
    if unknown:
        shown = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise InputError(f"{raw / 'labels.csv'}: {len(unknown)} record_id without a record in the folder: {shown}")
    refs = []
    for stem in stems:
        patient, split, labels = rows.get(stem, (stem, None, {}))
        refs.append(RecordRef(stem, patient, split, labels, str(raw / stem)))
    _check_patients(refs, raw / "labels.csv")
    given = any(ref.split for ref in refs)
    return Corpus("wfdb", str(raw), tasks, refs, "column split of labels.csv" if given else "none given")


def read_labels(
    path: Path,
) -> tuple[dict[str, tuple[str, str | None, dict[str, list[str]]]], dict[str, tuple[str, ...]]]:
    """labels.csv -> (record_id -> (patient_id, split, labels), task -> class names).

    Columns by name: record_id, patient_id, optionally split; every other column is a task, its classes joined by ';'.
    """
    rows, seen = {}, {}
    for number, row in enumerate(_read_csv(path, ("record_id", "patient_id")), start=2):
        tasks = [column for column in row if column not in ("record_id", "patient_id", "split")]
        record_id, patient, split = row["record_id"], row["patient_id"], row.get("split") or None
        if not record_id or not patient:
            raise InputError(f"{path} line {number}: record_id or patient_id is empty")
        if record_id in rows:
            raise InputError(f"{path} line {number}: record_id {record_id} was listed before")
        if split is not None and split not in SPLITS:
            raise InputError(f"{path} line {number}: split {split!r} of {record_id}; choose from {', '.join(SPLITS)}")
        labels = {task: sorted({name.strip() for name in row[task].split(";")} - {""}) for task in tasks}
        rows[record_id] = (patient, split, labels)
        for task, names in labels.items():
            seen.setdefault(task, set()).update(names)
    return rows, {task: tuple(sorted(names)) for task, names in seen.items()}


def _read_csv(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows of a CSV as dictionaries by column name; a missing file or column and a ragged row are told."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    for name in needed:
        if name not in columns:
            raise InputError(f"{path} has no column {name!r} (found: {', '.join(columns)[:120] or 'nothing'})")
    if len(set(columns)) != len(columns):
        raise InputError(f"{path} has a column name twice: {', '.join(columns)[:120]}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise InputError(f"{path} line {number}: {len(row)} cells for {len(columns)} columns")
    return [dict(zip(columns, map(str.strip, row), strict=True)) for row in rows]


def _check_patients(refs: list[RecordRef], path: Path) -> None:
    """A patient in two splits would leak test data into training."""
    first: dict[str, RecordRef] = {}
    for ref in refs:
        other = first.setdefault(ref.patient_id, ref)
        if other.split != ref.split:
            splits = f"{other.split or 'no split'} and {ref.split or 'no split'}"
            raise InputError(f"{path}: patient {ref.patient_id} is in {splits} ({other.record_id}, {ref.record_id})")


# ---- synthetic corpus


def open_synthetic(raw: Path) -> Corpus:
    """The folder that data_prep.synthetic writes."""
    remedy = "write it with python -m data_prep.synthetic"
    if not (raw / "synthetic.json").exists():
        raise InputError(f"{raw} is no synthetic corpus: {remedy}")
    if not (raw / "labels.csv").exists():
        raise InputError(f"the synthetic corpus in {raw} is unfinished (no labels.csv): {remedy} again")
    corpus = open_wfdb(raw)
    tasks = json.loads((raw / "synthetic.json").read_text(encoding="utf-8"))["tasks"]
    corpus.name, corpus.tasks = "synthetic", {task: tuple(names) for task, names in tasks.items()}
    return corpus


# ---- PTB-XL


def open_ptbxl(raw: Path) -> Corpus:
    """PTB-XL (records100, else records500): label sets super, sub, form and rhythm, split by the published folds.

    As in the public benchmark, a statement counts whatever its likelihood; a record without any class of a task is not
    labelled for it. Records whose file is not there are left out.
    """
    statements = _read_csv(raw / "scp_statements.csv", ("diagnostic", "form", "rhythm", "diagnostic_class"))
    classes: dict[str, dict[str, str]] = {"super": {}, "sub": {}, "form": {}, "rhythm": {}}  # task -> code -> class
    for row in statements:
        code = row[""] if "" in row else next(iter(row.values()))
        if _true(row["diagnostic"]):
            classes["super"][code] = row["diagnostic_class"]
            classes["sub"][code] = row["diagnostic_subclass"]
        for task in ("form", "rhythm"):
            if _true(row[task]):
                classes[task][code] = code
    table = _read_csv(
        raw / "ptbxl_database.csv",
        ("ecg_id", "patient_id", "scp_codes", "strat_fold", "filename_lr", "filename_hr"),
    )
    column, there = "filename_lr", _stems(raw, "records100")
    if not there:
        column, there = "filename_hr", _stems(raw, "records500")
    kept = sorted((row for row in table if row[column] in there), key=lambda row: int(row["ecg_id"]))
    if not kept:
        raise InputError(f"no record of ptbxl_database.csv in {raw}/records100: is the set unpacked there?")
    whole = any(int(row["strat_fold"]) == 10 for row in kept)
    validation = 9 if whole else 8
    refs = []
    for row in kept:
        try:
            codes = ast.literal_eval(row["scp_codes"])
            fold, patient = int(row["strat_fold"]), str(int(float(row["patient_id"])))
        except (ValueError, SyntaxError):
            raise InputError(f"{raw / 'ptbxl_database.csv'}: cannot read the row of ecg_id {row['ecg_id']}") from None
        found = {task: sorted({of[code] for code in codes if code in of}) for task, of in classes.items()}
        split = "train" if fold < validation else "validation" if fold == validation else "test"
        labels = {task: names for task, names in found.items() if names}
        refs.append(RecordRef(row["ecg_id"], patient, split, labels, str(raw / row[column])))
    tasks = {task: tuple(sorted(set(of.values()))) for task, of in classes.items()}
    rule = f"folds 1-{validation - 1} train, {validation} validation, {validation + 1} test"
    return Corpus("ptbxl", str(raw), tasks, refs, rule, missing=len(table) - len(kept))


def _true(cell: str) -> bool:
    return cell in ("1", "1.0")


def _stems(raw: Path, folder: str) -> set[str]:
    return {path.relative_to(raw).with_suffix("").as_posix() for path in (raw / folder).glob("*/*.hea")}


CORPORA: dict[str, Callable[[Path], Corpus]] = {"wfdb": open_wfdb, "synthetic": open_synthetic, "ptbxl": open_ptbxl}
