"""PTB-XL: six label sets from scp_codes and scp_statements.csv, split by the published folds."""

import ast
from collections import Counter
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import Corpus
from data_prep.ecg.record import RecordRef
from data_prep.formats.tables import read_csv

FOLDERS = {"100": ("records100", "filename_lr"), "500": ("records500", "filename_hr")}


def open(raw: Path, rate: str | None = None) -> Corpus:
    """Tasks super, sub, form, rhythm, diag (diagnostic statements) and all71 (all statements; not
    named 'all', which stands for all tasks in flags); `rate` is 100 or 500 Hz, by default that of
    records100 if there.

    As in the public benchmark, a statement counts whatever its likelihood, and a record without any
    class of a task is not labelled for it. Records whose file does not exist are left out.
    """
    if rate is not None and str(rate) not in FOLDERS:
        raise InputError(f"ptbxl has rate 100 and 500, not {rate!r}")
    classes = _classes(raw)
    table_path = raw / "ptbxl_database.csv"
    needed = (
        "ecg_id",
        "patient_id",
        "scp_codes",
        "strat_fold",
        *(column for _, column in FOLDERS.values()),
    )
    table = list(read_csv(table_path, needed))
    # the first folder that holds records
    for choice in [str(rate)] if rate else FOLDERS:
        folder, column = FOLDERS[choice]
        there = {
            path.relative_to(raw).with_suffix("").as_posix()
            for path in (raw / folder).glob("*/*.hea")
        }
        if there:
            break
    rows = [_row(row, table_path) for row in table if row[column] in there]
    if not rows:
        where = FOLDERS[str(rate)][0] if rate else "records100"
        raise InputError(
            f"no record of ptbxl_database.csv in {raw}/{where}: is the set unpacked there?"
        )
    # the last of the folds that are there tests, the one before validates
    rows.sort(key=lambda row: row[0])
    validation = 9 if any(fold == 10 for _, _, _, fold, _ in rows) else 8
    known = set(_codes(raw))
    refs, unknown = [], Counter()
    for number, patient, codes, fold, row in rows:
        found = {
            task: sorted({of[code] for code in codes if code in of}) for task, of in classes.items()
        }
        unknown.update(code for code in codes if code not in known)
        split = "train" if fold < validation else "validation" if fold == validation else "test"
        labels = {task: names for task, names in found.items() if names}
        refs.append(RecordRef(str(number), patient, split, labels, str(raw / row[column])))
    tasks = {task: tuple(sorted(set(of.values()))) for task, of in classes.items()}
    rule = f"folds 1-{validation - 1} train, {validation} validation, {validation + 1} test"
    missing = len(table) - len(rows)
    return Corpus(
        "ptbxl", str(raw), tasks, refs, rule, missing, unknown_codes=dict(sorted(unknown.items()))
    )


def _row(row: dict[str, str], path: Path) -> tuple[int, str, list[str], int, dict[str, str]]:
    """(ecg_id, patient, statements, fold, row) of a row of ptbxl_database.csv."""
    try:
        codes = ast.literal_eval(row["scp_codes"])
        fold = int(row["strat_fold"])
        if not isinstance(codes, dict) or not 1 <= fold <= 10:
            raise ValueError
        return (
            int(row["ecg_id"]),
            str(int(float(row["patient_id"]))),
            [str(code) for code in codes],
            fold,
            row,
        )
    except (ValueError, SyntaxError, MemoryError, RecursionError, OverflowError):
        raise InputError(f"{path}: cannot read the row of ecg_id {row['ecg_id'][:20]}") from None


def _codes(raw: Path) -> dict[str, dict[str, str]]:
    """Statement -> its row of scp_statements.csv."""
    path = raw / "scp_statements.csv"
    needed = ("diagnostic", "form", "rhythm", "diagnostic_class", "diagnostic_subclass")
    return {
        (row[""] if "" in row else next(iter(row.values()))): row for row in read_csv(path, needed)
    }


def _classes(raw: Path) -> dict[str, dict[str, str]]:
    """Task -> statement -> class."""
    tasks = ("super", "sub", "form", "rhythm", "diag", "all71")
    classes: dict[str, dict[str, str]] = {task: {} for task in tasks}
    for code, row in _codes(raw).items():
        classes["all71"][code] = code
        if _true(row["diagnostic"]):
            classes["super"][code] = row["diagnostic_class"]
            classes["sub"][code] = row["diagnostic_subclass"]
            classes["diag"][code] = code
        for task in ("form", "rhythm"):
            if _true(row[task]):
                classes[task][code] = code
    return classes


def _true(cell: str) -> bool:
    return cell in ("1", "1.0")
