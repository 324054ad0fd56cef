"""Embeddings of any other model, to stand in the same table as ours.

A file (.npz or .parquet) needs two columns, `record_id` and `embedding` (numbers, one row for each
record); an embeddings file of this project will do, too. Labels, patients and splits are those of
the data set, found by record id (`record_id` in its ledger.csv), so that every model is probed on
the same rows.

Axis letters: m row, d feature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import first_line, list_some
from lvcg_jax.embed.table import Table, check_ending, load_table


@dataclass(frozen=True)
class Foreign:
    """Embeddings by record id, and the file they are from."""

    path: str
    record_id: np.ndarray  # [m] str
    embedding: np.ndarray  # [m,d] float32


def read_foreign(path: str) -> Foreign:
    """Reads and checks a file: both columns, one row for each record, finite numbers."""
    if Path(path).is_dir():
        read = _read_ours
    else:
        read = _read_npz if check_ending(path) == ".npz" else _read_parquet
    try:
        record_id, embedding = read(path)
        record_id, embedding = np.asarray(record_id).astype(str), np.asarray(embedding, np.float32)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such embeddings file") from None
    # numpy, zipfile, zlib and pyarrow each have errors of their own for a damaged file
    except Exception as error:
        what = first_line(error, 100)
        raise InputError(f"{path} is damaged or holds no embeddings ({what})") from None
    if embedding.ndim != 2 or record_id.shape != embedding.shape[:1] or not len(record_id):
        raise InputError(
            f"{path}: record_id {record_id.shape} and embedding {embedding.shape} do not match:"
            " give one row of numbers for each record"
        )
    names, counts = np.unique(record_id, return_counts=True)
    if counts.max() > 1:
        raise InputError(
            f"{path}: {list_some(names[counts > 1])} occurs more than once; give one row for each"
            " record, such as the mean over its windows"
        )
    bad = ~np.isfinite(embedding).all(1)
    if bad.any():
        raise InputError(f"{path}: the embedding of {list_some(record_id[bad])} is not finite")
    return Foreign(path, record_id, embedding)


def _read_npz(path: str) -> tuple[np.ndarray, np.ndarray]:
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        _require(path, file.files)
        return file["record_id"], file["embedding"]


def _read_parquet(path: str) -> tuple[Sequence, np.ndarray]:
    import pyarrow.parquet as pq  # late: most commands never need it

    with open(path, "rb") as file:
        names = pq.read_schema(file).names
    if "structure" in names and "embedding" not in names:  # ours: a column for each part
        return _read_ours(path)
    _require(path, names)
    data = pq.read_table(path, columns=["record_id", "embedding"])
    return data["record_id"].to_pylist(), np.array(data["embedding"].to_pylist(), np.float32)


def _read_ours(path: str) -> tuple[np.ndarray, np.ndarray]:
    table = load_table(path)
    return table.record_id, table.embedding


def _require(path: str, names: Sequence[str]) -> None:
    missing = [name for name in ("record_id", "embedding") if name not in names]
    if missing:
        raise InputError(
            f"{path} has no {' and no '.join(missing)}; it needs record_id, and embedding with one"
            " row of numbers for each record"
        )


def join_foreign(
    table: Table, files: Mapping[str, Sequence[Foreign]]
) -> tuple[np.ndarray, dict[str, np.ndarray], list[str]]:
    """Looks up the records of a table in the files of each name.

    Returns the rows [m] that every name has, the features {name: [m,d]} of these rows, and notes on
    what did not match. A name without any record of the table is left out.
    """
    keep, found, notes = np.ones(len(table.record_id), bool), {}, []
    for name, several in files.items():
        known = {
            record: row
            for file in several
            for record, row in zip(file.record_id, file.embedding, strict=True)
        }
        rows = [known.get(record) for record in table.record_id]
        absent = np.array([row is None for row in rows])
        if absent.all():
            notes.append(f"{name}: none of these records is in its file, so it has no row")
            continue
        sizes = {len(row) for row in rows if row is not None}
        if len(sizes) > 1:
            raise InputError(
                f"--embeddings={name}: rows of {list_some(sorted(map(str, sizes)))} numbers for one"
                " data set; all need the same size"
            )
        if absent.any():
            missing = np.unique(table.record_id[absent])
            notes.append(
                f"{name}: {len(missing)} records are not in its file ({list_some(missing)}); they"
                " are left out for every model"
            )
        keep &= ~absent
        found[name] = rows
    if not keep.any():
        raise InputError(f"no record is in all of {list_some(list(found))}: nothing to compare")
    chosen = np.flatnonzero(keep)
    return (
        chosen,
        {name: np.stack([rows[i] for i in chosen]) for name, rows in found.items()},
        notes,
    )


def unmatched(
    files: Mapping[str, Sequence[Foreign]], record_ids: Mapping[str, np.ndarray]
) -> list[str]:
    """Notes on records that no data set {name: record ids} holds; an InputError for a file of which
    none is known, and for a record that two data sets hold."""
    known: dict[str, str] = {}
    for data, ids in record_ids.items():
        for record in ids if files else ():
            if known.setdefault(record, data) != data:
                raise InputError(
                    f"record {record} is in {known[record]} and in {data}, so a row of --embeddings"
                    " may belong to either: take one data set at a time"
                )
    notes = []
    for name, several in files.items():
        for file in several:
            extra = [record for record in file.record_id if record not in known]
            if len(extra) == len(file.record_id):
                raise InputError(
                    f"{file.path}: no record_id of it ({list_some(extra)}) is in"
                    f" {', '.join(record_ids)} ({list_some(sorted(known))}); give those of"
                    " ledger.csv"
                )
            if extra:
                here = Path(file.path).name
                notes.append(
                    f"{name}: {len(extra)} records of {here} are in no data set"
                    f" ({list_some(extra)})"
                )
    return notes
