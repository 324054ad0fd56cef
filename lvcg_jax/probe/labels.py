"""What a probe learns from and is judged on: labels of a task, splits, and nested subsets of the
training labels, drawn in one of two ways (DRAWS):

guaranteed  whole patients, each class in about its share and with one positive at least
plain       records at random, as most of the literature draws them: no regard to class or patient

Labels come with the embeddings, or from a user's CSV (`join_labels`). Axis letters: m row, c class.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import split_of_patient
from data_prep.base.words import list_some
from data_prep.dataset.shards import read_metadata
from data_prep.formats.tables import ID_COLUMNS, read_keyed, split_classes
from lvcg_jax.embed.table import Table

DRAWS = ("guaranteed", "plain")
NO_SPLIT = ("", "None")  # how a row without a split is stored
# other tasks follow by name
TASK_ORDER = ("super", "sub", "form", "rhythm", "diag", "all71", "diagnosis")


class NothingToScore(InputError):
    """The labels of a task are too few, or too much alike, to learn from or to judge by."""


@dataclass(frozen=True)
class Task:
    """The rows of a table that are labelled for one task, in an order that does not depend on the
    file's."""

    name: str
    classes: list[str]
    rows: np.ndarray  # [m] row numbers in the table
    labels: np.ndarray  # bool [m,c]
    records: np.ndarray  # [m] record ids: several rows of one record are its windows
    patients: np.ndarray  # [m]
    splits: np.ndarray  # [m]


def task_of(table: Table, name: str) -> Task:
    """The labels of one task; rows without a label for it are left out."""
    classes = table.tasks.get(name)
    if classes is None:
        raise InputError(
            f"no record is labelled for task '{name}'; the file has"
            f" {', '.join(table.tasks) or 'no task'}"
        )
    if not classes:
        raise NothingToScore(f"task '{name}' has no class: every labelled record has an empty list")
    keys = table.keys
    rows = np.array(
        [i for i in sorted(range(len(keys)), key=keys.__getitem__) if name in table.labels[i]]
    )
    if not len(rows):
        raise NothingToScore(f"no record of this table is labelled for task '{name}'")
    labels = np.array([[c in table.labels[i][name] for c in classes] for i in rows])
    return Task(
        name,
        classes,
        rows,
        labels,
        table.record_id[rows],
        table.patient_id[rows],
        table.split[rows],
    )


def in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks in the order of the usual tables, then the others by name."""
    place = {task: i for i, task in enumerate(TASK_ORDER)}
    return sorted(tasks, key=lambda task: (place.get(task, len(place)), task))


def choose_tasks(text: str, data: str | Path) -> list[str]:
    """The tasks of a flag ('all', or names with commas between), if the data set has them."""
    there = in_order(read_metadata(data)["tasks"])
    if not there:
        raise InputError(
            f"{data}: no task in this data set, so there is nothing to probe; build it with labels"
        )
    tasks = there if text == "all" else text.split(",")
    wrong = [task for task in tasks if task not in there]
    if wrong:
        raise InputError(f"no task {', '.join(wrong)} in {data}; tasks there: {', '.join(there)}")
    return tasks


def join_labels(table: Table, path: str | Path) -> tuple[Table, list[str]]:
    """The table with the labels of a user's CSV, and notes on what did not join.

    Columns by name: record_id (or patient_id: the same labels for all records of a patient),
    optionally split, and a column for each task, its classes joined by ';' (empty: looked at, no
    class). A task of the CSV replaces the file's task of that name. With a split column, records
    that it does not name are in no split.
    """
    path = Path(path)
    key, lines = read_keyed(path)
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if line[key] in found:
            raise InputError(f"{path} line {line.line}: {key} {line[key]} was listed before")
        found[line[key]] = line
    mine = getattr(table, key)
    unknown, unnamed = sorted(found.keys() - set(mine)), sorted(set(mine) - found.keys())
    if len(unknown) == len(found):
        raise InputError(
            f"{path}: no {key} of it is in the embeddings: {list_some(unknown)}, not"
            f" {list_some(unnamed)}"
        )
    tasks = [name for name in lines[0] if name not in ID_COLUMNS]
    if not tasks and "split" not in lines[0]:
        raise InputError(f"{path} has no label column beside {key}; add one for each task")
    labels, split, patient = [], table.split.astype(object), table.patient_id.astype(object)
    for i, name in enumerate(mine):
        line = found.get(name, {})
        kept = {task: names for task, names in table.labels[i].items() if task not in tasks}
        labels.append(kept | {task: split_classes(line[task]) for task in tasks if line})
        if "split" in lines[0]:
            split[i] = line.get("split", "")
        patient[i] = line.get("patient_id") or patient[i]
    notes = []
    if unknown:
        notes.append(
            f"{path.name}: {len(unknown)} {key} not in the embeddings: {list_some(unknown)}"
        )
    if unnamed:
        notes.append(
            f"{path.name}: {len(unnamed)} {key} of the embeddings not in it: {list_some(unnamed)}"
        )
    declared = {
        task: names
        for task, names in json.loads(table.metadata.get("tasks", "{}")).items()
        if task not in tasks
    }
    metadata = table.metadata | {"tasks": json.dumps(declared)}
    columns = {"split": split.astype(str), "patient_id": patient.astype(str)}
    return dataclasses.replace(table, labels=labels, metadata=metadata, **columns), notes


def ensure_splits(table: Table) -> tuple[Table, list[str]]:
    """The table with splits where no row has one (80/10/10 by a hash of the patient), and a note
    on that."""
    if not np.isin(table.split, NO_SPLIT).all():
        return table, []
    split = np.array([split_of_patient(str(patient)) for patient in table.patient_id])
    note = (
        "the embeddings have no split: 80/10/10 train/validation/test by a hash of the patient id"
    )
    return dataclasses.replace(table, split=split), [note]


def label_subsets(
    groups: np.ndarray, labels: np.ndarray, fractions: Sequence[float], seed: int
) -> dict[float, np.ndarray]:
    """Nested subsets of training rows, {fraction: bool [m]}: each one lies within the next larger.

    Whole patients are drawn, each class in about its share and with one positive at least (so a
    tiny subset may exceed its fraction). Depends on patient ids, labels and seed only: the same for
    every model, row and column order.
    """
    # rows of each class that each patient has; the last column counts rows without any class
    patients, index = np.unique(np.asarray(groups).astype(str), return_inverse=True)
    columns = np.concatenate([labels, ~labels.any(1, keepdims=True)], 1).astype(np.int64)
    counts = np.zeros((len(patients), columns.shape[1]), np.int64)
    np.add.at(counts, index, columns)
    rows = np.bincount(index)
    # the seed puts the patients in an order; classes are served by rarity
    digests = [hashlib.sha256(f"{seed}/{patient}".encode()).digest() for patient in patients]
    lottery = np.array(sorted(range(len(patients)), key=digests.__getitem__))
    members = [lottery[counts[lottery, c] > 0] for c in range(counts.shape[1])]
    there = [c for c in range(counts.shape[1]) if len(members[c])]
    by_rarity = sorted(there, key=lambda c: (len(members[c]), *members[c]))
    # From the largest fraction down, each subset is drawn from the one before: for each class its
    # share of positives (the first one even if the subset grows too large), then whoever is next.
    pool, subsets = np.ones(len(patients), bool), {}
    for fraction in sorted(set(fractions), reverse=True):
        if fraction < 1:
            goal, size = fraction * len(index), 0
            chosen, have = np.zeros(len(patients), bool), np.zeros(counts.shape[1])
            for c in [*by_rarity, None]:  # None: whoever is next
                for p in lottery if c is None else members[c]:
                    enough = (
                        size + rows[p] > goal + 0.5
                        if c is None
                        else have[c] > fraction * counts[:, c].sum() - 0.5
                    )
                    first = c is not None and c < labels.shape[1] and not have[c]
                    if enough and not first and c is not None:
                        break
                    if (
                        pool[p]
                        and not chosen[p]
                        and (first or (not enough and size + rows[p] <= goal + 0.5))
                    ):
                        chosen[p] = True
                        have += counts[p]
                        size += rows[p]
            pool = chosen
        subsets[fraction] = pool[index]
    return subsets


def plain_subsets(
    records: np.ndarray, fractions: Sequence[float], seed: int
) -> dict[float, np.ndarray]:
    """Nested subsets of training rows, {fraction: bool [m]}, drawn from records alone.

    The first records of one shuffled list, at least one; all windows of a record come with it.
    Depends on record ids and seed only.
    """
    names, index = np.unique(np.asarray(records), return_inverse=True)
    place = np.argsort(np.random.default_rng(seed).permutation(len(names)))[index]  # [m]
    return {f: place < max(round(f * len(names)), 1) for f in sorted(set(fractions), reverse=True)}
