"""The embeddings file (.npz): one row per record with its patient, split and labels; saved, checked and joined by id.

Axis letters: m row, d feature.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.errors import InputError

TABLE_KEYS = ("record_id", "patient_id", "split", "labels", "embedding")


@dataclass
class Table:
    """Embeddings of records, as saved in one .npz file; `keys` name the rows (record id, with '#window' if given)."""

    record_id: np.ndarray  # [m] str
    patient_id: np.ndarray  # [m] str
    split: np.ndarray  # [m] str
    labels: list[dict[str, list[str]]]  # per row {task: class names}; an absent task means not labelled for it
    embedding: np.ndarray  # [m,d] float32
    parts: dict[str, int] = field(default_factory=dict)  # part name -> size, in column order
    metadata: dict[str, str] = field(default_factory=dict)
    window: np.ndarray | None = None  # [m] int
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # further columns, [m] each

    @property
    def keys(self) -> list[str]:
        windows = [""] * len(self.record_id) if self.window is None else [f"#{w}" for w in self.window]
        return [f"{record}{window}" for record, window in zip(self.record_id, windows, strict=True)]

    @property
    def tasks(self) -> dict[str, list[str]]:
        """Class names of each task: as declared in the file's `tasks` metadata (JSON), else those that occur."""
        found: dict[str, set[str]] = {}
        for row in self.labels:
            for task, names in row.items():
                found.setdefault(task, set()).update(names)
        declared = json.loads(self.metadata.get("tasks", "{}"))
        return {task: sorted(names | set(declared.get(task, ()))) for task, names in sorted(found.items())}


def example_table(examples: Sequence[dict], splits: Sequence[str], features: np.ndarray, metadata: dict) -> Table:
    """Features [m,d] of decoded shard examples as a table; `metadata` is the data set's."""
    return Table(
        record_id=np.array([e["record_id"] for e in examples]),
        patient_id=np.array([e["patient_id"] for e in examples]),
        split=np.array(splits),
        labels=[json.loads(e["labels"]) for e in examples],
        embedding=features,
        metadata={"tasks": json.dumps(metadata["tasks"]), "preprocess_hash": metadata["preprocess_hash"]},
        window=np.array([e["window"] for e in examples]),
        extra={
            "num_beats": np.array([len(e["length"]) for e in examples]),
            "lead_mask": np.array([e["lead_mask"] for e in examples]),
        },
    )


def save_table(path: str | Path, table: Table) -> None:
    """Writes the .npz file that `load_table` reads."""
    arrays = {key: np.asarray(getattr(table, key)) for key in ("record_id", "patient_id", "split")}
    arrays = {key: value.astype(str) for key, value in arrays.items()}
    if table.window is not None:
        arrays["window"] = np.asarray(table.window)
    np.savez(
        path,
        **arrays,
        labels=np.array([json.dumps(row, sort_keys=True) for row in table.labels], dtype=str),
        embedding=np.asarray(table.embedding, np.float32),
        part_names=np.array(list(table.parts), dtype=str),
        part_sizes=np.array(list(table.parts.values()), dtype=np.int64),
        **{key: np.array(str(value)) for key, value in table.metadata.items()},
        **table.extra,
    )


def load_table(path: str | Path) -> Table:
    """Reads an embeddings file and checks that it is one: keys, lengths, finite numbers, no row twice."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such embeddings file; write one with python -m lvcg_jax.embed") from None
    except (OSError, ValueError, EOFError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is not an embeddings file (.npz) of this project: {type(error).__name__}") from None
    except Exception as error:  # zipfile and zlib have their own exception types for damaged files
        raise InputError(f"{path} is damaged and cannot be read ({error}); write it again") from None
    missing = [key for key in TABLE_KEYS if key not in data]
    if missing:
        raise InputError(f"{path} is not an embeddings file of this project: it has no {', '.join(missing)}")
    rows = len(data["record_id"])
    wrong = [key for key in TABLE_KEYS if data[key].shape[:1] != (rows,)]
    if wrong or data["embedding"].ndim != 2 or not rows:
        raise InputError(f"{path}: {', '.join(wrong) or 'embedding'} does not have one row for each of {rows} records")
    try:
        labels = [json.loads(str(text)) for text in data["labels"]]
    except json.JSONDecodeError:
        raise InputError(f'{path}: \'labels\' does not hold JSON text such as {{"super": ["NORM"]}}') from None
    parts = dict(zip(data.get("part_names", np.array([], str)).tolist(), data.get("part_sizes", []), strict=True))
    known = {*TABLE_KEYS, "part_names", "part_sizes", "window"}
    metadata = {key: str(value) for key, value in data.items() if key not in known and value.ndim == 0}
    extra = {key: value for key, value in data.items() if key not in known and value.shape == (rows,)}
    table = Table(
        *(data[key].astype(str) for key in TABLE_KEYS[:3]),
        labels,
        data["embedding"].astype(np.float32),
        {name: int(size) for name, size in parts.items()},
        metadata,
        data.get("window"),
        extra,
    )
    names, counts = np.unique(table.keys, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"{path}: {list_some(names[counts > 1])} occurs more than once; each row needs its own id")
    bad = ~np.isfinite(table.embedding).all(1)
    if bad.any():
        raise InputError(f"{path}: the embedding of {list_some(table.record_id[bad])} is not finite")
    return table


def align_features(table: Table, other: Table, name: str) -> np.ndarray:
    """The other table's embedding in the row order of the first; the two must describe the same labelled records."""
    position = {key: i for i, key in enumerate(other.keys)}
    mine = table.keys
    absent, extra = [k for k in mine if k not in position], sorted(set(position) - set(mine))
    if absent or extra:
        where = [f"{list_some(absent)} missing from it"] * bool(absent) + [f"{list_some(extra)} only in it"] * bool(
            extra
        )
        raise InputError(f"control '{name}' covers other records: {', '.join(where)}; embed the same data set")
    order = np.array([position[key] for key in mine])
    for what in ("patient_id", "split"):
        differ = getattr(table, what) != getattr(other, what)[order]
        if differ.any():
            raise InputError(f"control '{name}' gives another {what} for {list_some(table.record_id[differ])}")
    differ = [key for key, row, i in zip(mine, table.labels, order, strict=True) if row != other.labels[i]]
    if differ:
        raise InputError(f"control '{name}' gives other labels for {list_some(differ)}")
    return other.embedding[order]


def list_some(names) -> str:
    """The first five names, and how many more, for a message of one line."""
    names = [str(name) for name in names]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
