"""Predictions as a table (.parquet or .csv): one row per record, or per window.

Columns: those of an embeddings file that describe the row (record_id, patient_id, split, window,
start_seconds, num_beats, leads, rank, condition, gain, defects), and for each head

    TASK:CLASS     calibrated probability of every class
    TASK           the classes at or above their thresholds, joined by ';'
    TASK:quantile  share of the head's training records that lie nearer to their mean
    TASK:unlike    whether that is above 0.95: a record unlike those that it learned from

A head of a number has its prediction in TASK, and TASK:low and TASK:high in place of probabilities.

Axis letters: m row, c class.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.csv_cells import neutral
from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write, whole_file
from lvcg_jax.embed.table import Table, record_rows
from lvcg_jax.runs.heads import Head

ENDINGS = (".parquet", ".csv")
ROWS = ("record", "window")
MOST_SETS = 3  # of leads that are warned about one by one
Columns = dict[str, np.ndarray]  # [m] each


def check_ending(path: str | Path) -> None:
    if Path(path).suffix not in ENDINGS:
        raise InputError(f"--out={path}: a table of predictions ends in {' or '.join(ENDINGS)}")


def check_heads(heads: Sequence[Head], table: Table) -> None:
    """An InputError unless all heads read the embeddings of this table, each for its own task."""
    for head in heads:
        head.require(*(table.metadata.get(key, "") for key in ("checkpoint", "preprocess_hash")))
    twice = [task for task, count in Counter(head.task for head in heads).items() if count > 1]
    if twice:
        raise InputError(f"two heads answer task '{twice[0]}': give one --head for each task")


def predict_table(heads: Sequence[Head], table: Table, rows: str = "record") -> Columns:
    """The table of predictions of an embedding table with a row per window (or per record)."""
    check_heads(heads, table)
    numbers = np.arange(len(table.record_id))
    if rows == "record":
        names = {name: i for i, name in enumerate(dict.fromkeys(table.record_id.tolist()))}
        numbers = np.array([names[name] for name in table.record_id.tolist()])
    whole = record_rows(table) if rows == "record" and "num_beats" in table.extra else table
    if len(whole.record_id) != numbers.max() + 1:
        raise InputError("the windows of a record must stand one after another in the embeddings")
    columns: Columns = {
        "record_id": whole.record_id,
        "patient_id": whole.patient_id,
        "split": whole.split,
    }
    if whole.window is not None:
        columns["window"] = whole.window
    columns |= whole.extra
    for head in heads:
        columns |= _answers(head, table, numbers)
    return columns


def _answers(head: Head, table: Table, numbers: np.ndarray) -> Columns:
    leads = None
    if "leads" in table.extra:
        leads = [names.split(";") for names in table.extra["leads"].tolist()]
    found = head.answer(table.embedding, numbers, table.beats, leads)
    flags = {f"{head.task}:quantile": found.quantile, f"{head.task}:unlike": found.unlike}
    if head.is_number:
        value, half = found.values[:, 0], head.thresholds[0]
        low, high = f"{head.task}:low", f"{head.task}:high"
        return {head.task: value, low: value - half, high: value + half} | flags
    yes = [
        ";".join(name for name, one in zip(head.classes, row, strict=True) if one)
        for row in found.decisions
    ]
    return {
        **{f"{head.task}:{name}": found.values[:, c] for c, name in enumerate(head.classes)},
        head.task: np.array(yes),
        **flags,
    }


def lead_warnings(heads: Sequence[Head], table: Table) -> list[str]:
    """Lines on rows that lack leads which a head was trained with: one for each head and each of
    the commonest sets of leads."""
    sets = Counter(table.extra["leads"].tolist() if "leads" in table.extra else [])
    lines = []
    for head in heads:
        found = [(n, head.lead_warning(leads.split(";"))) for leads, n in sets.most_common()]
        found = [(n, words) for n, words in found if words]
        lines += [f"{n} rows: {words}" for n, words in found[:MOST_SETS]]
        if found[MOST_SETS:]:
            rest = sum(n for n, _ in found[MOST_SETS:])
            lines.append(f"{rest} rows lack other leads that head '{head.task}' was trained with")
    return lines


def save_predictions(path: str | Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes the table, in whole or not at all; the same table gives the same bytes."""
    check_ending(path)
    try:
        with whole_file(path) as temporary:
            if Path(path).suffix == ".csv":
                _save_csv(temporary, columns)
            else:
                import pyarrow as pa  # late: it takes long to load
                import pyarrow.parquet as pq

                pq.write_table(
                    pa.table({name: pa.array(x.tolist()) for name, x in columns.items()}), temporary
                )
    except OSError as error:
        raise cannot_write(path, error) from None


def _save_csv(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    cells = [
        [f"{value:.9g}" if x.dtype.kind == "f" else neutral(value) for value in x.tolist()]
        for x in columns.values()
    ]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(neutral, columns))
        writer.writerows(zip(*cells, strict=True))
