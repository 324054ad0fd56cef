"""The embeddings file (.npz or .parquet): one row per window or record with its patient, split,
labels and flags.

Both endings hold the same; `load_table` reads either. Columns of a parquet file: record_id,
patient_id, split, window, start_seconds, num_beats, leads ('I;II;V2', those the model saw), rank,
condition and gain of their geometry, defects (';'-joined), label_TASK (list of class names; null:
not labelled for the task) and one list of numbers for each part of the embedding. An npz has
`embedding` [m,d] with `part_names` and `part_sizes`, and `labels` as JSON.

A large table is a folder of parquet files (see parts.py): `load_table` reads that too, with the
embedding on disk.

Axis letters: m row, d feature, w window.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write, ordinary, whole_file
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.base.words import in_all, list_some
from data_prep.dataset.shards import file_sha256
from lvcg_jax.data.windows import defect_words, lead_names
from lvcg_jax.runs.attention import BeatInputs
from lvcg_jax.stats.blocks import Features, blocks, choose_rows, room_for
from lvcg_jax.text.notebook import facts_html, part_words, to_frame

ENDINGS = (".npz", ".parquet")
LISTING = "table.json"  # of a folder: its parts, with rows and checksums
TABLE_KEYS = ("record_id", "patient_id", "split", "labels", "embedding")
WHOLE_RECORD = -1  # window of a row that stands for all windows of its record
# A small file must not fill the memory: a table may unpack to so many bytes, or to so many times
# its own size, and have so many rows.
LARGEST_UNPACKED, LARGEST_GAIN, MOST_ROWS = 2**30, 20, 2**23
_OTHER_KEYS = ("part_names", "part_sizes", "window", "tokens", "token_offsets")
_HEADER = b"lvcg_embeddings"  # key of our JSON in a parquet file's metadata
ROWS_OF_GROUP = 1024  # of a parquet file: what is written at a time, and held in memory


@dataclass(repr=False)
class Table:
    """Embeddings as saved in one file. `keys` name the rows: the record id, and '#window' if there
    are windows."""

    record_id: np.ndarray  # [m] str
    patient_id: np.ndarray  # [m] str
    split: np.ndarray  # [m] str
    # per row {task: class names}; a task that is absent has not been labelled
    labels: list[dict[str, list[str]]]
    embedding: np.ndarray  # [m,d] float32; np.memmap if it is on disk
    parts: dict[str, int] = field(default_factory=dict)  # part name -> size, in column order
    metadata: dict[str, str] = field(default_factory=dict)
    window: np.ndarray | None = None  # [m] int
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # further columns, [m] each
    tokens: np.ndarray | None = None  # [sum of num_beats,d], row after row
    beats: BeatInputs | None = None  # [m], what attention heads read; not in the file

    @property
    def keys(self) -> list[str]:
        windows = (
            [""] * len(self.record_id) if self.window is None else [f"#{w}" for w in self.window]
        )
        return [f"{record}{window}" for record, window in zip(self.record_id, windows, strict=True)]

    @property
    def part_sizes(self) -> list[int]:
        """Sizes of the parts, in column order."""
        return list(self.parts.values())

    @property
    def part_columns(self) -> dict[str, slice]:
        """Where the parts are in the embedding."""
        ends = np.cumsum(self.part_sizes).tolist()
        return {
            name: slice(end - size, end)
            for (name, size), end in zip(self.parts.items(), ends, strict=True)
        }

    @property
    def tasks(self) -> dict[str, list[str]]:
        """Class names of each task: as declared in the file's `tasks` metadata (JSON), else those
        that occur."""
        found: dict[str, set[str]] = {}
        for row in self.labels:
            for task, names in row.items():
                found.setdefault(task, set()).update(names)
        declared = json.loads(self.metadata.get("tasks", "{}"))
        return {
            task: sorted(names | set(declared.get(task, ())))
            for task, names in sorted(found.items())
        }

    def to_pandas(self):
        """A pandas.DataFrame: ids, flags, label_TASK (lists of classes), and a column for each
        number of the embedding."""
        columns: dict[str, Any] = {name: getattr(self, name).tolist() for name in TABLE_KEYS[:3]}
        if self.window is not None:
            columns["window"] = self.window
        columns |= self.extra
        for task in self.tasks:
            columns[f"label_{task}"] = [row.get(task) for row in self.labels]
        parts = self.parts or {"embedding": self.embedding.shape[1]}
        return to_frame(columns, self.embedding, parts)

    def _facts(self) -> dict[str, object]:
        size = self.embedding.shape[1]
        return {
            "rows": f"{len(self.record_id)} of {len(set(self.record_id.tolist()))} records",
            "numbers": f"{size} ({part_words(self.parts)})" if self.parts else size,
            "tasks": ", ".join(self.tasks) or "-",
            "from": self.metadata.get("checkpoint", "-"),
        }

    def __repr__(self) -> str:
        return f"Table({', '.join(f'{k}: {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts_html("Table of embeddings", self._facts())


def window_table(
    windows: Sequence[dict], features: np.ndarray, parts: dict[str, int], metadata: dict
) -> Table:
    """Features [m,d] of windows (see windows.py) as a table."""
    column = lambda name: np.array([window[name] for window in windows])  # noqa: E731
    return Table(
        record_id=column("record_id"),
        patient_id=column("patient_id"),
        split=column("split"),
        labels=[window["labels"] for window in windows],
        embedding=features,
        parts=parts,
        metadata=metadata,
        window=column("window"),
        extra={
            "start_seconds": column("start_seconds"),
            "num_beats": np.array([len(window["length"]) for window in windows]),
            "leads": np.array([";".join(lead_names(window)) for window in windows]),
            "defects": np.array([defect_words(window) for window in windows]),
        },
    )


def rename(table: Table, names: Pseudonyms | None) -> Table:
    """The table with pseudonyms in the place of ids; as it is without `names`."""
    if names is None:
        return table
    records, patients = (
        np.array([names.of(text) for text in ids.tolist()], str)
        for ids in (table.record_id, table.patient_id)
    )
    return replace(table, record_id=records, patient_id=patients)


def beat_weighted_mean(rows: np.ndarray, num_beats: np.ndarray) -> np.ndarray:
    """Windows [w,d] of one record -> float32 [d], weighted by their number of beats."""
    return np.average(rows.astype(np.float64), axis=0, weights=num_beats).astype(np.float32)


def record_rows(table: Table) -> Table:
    """One row per record: the mean of its windows weighted by beats, with window -1.

    Beats are added up; `leads` are those visible in every window; rank, condition and gain are
    those of the worst window; `start_seconds` is that of the first; a defect that not all windows
    have is written 'w2:gap:V3:40', as in a ledger.
    """
    # the windows of a record stand one after another
    first = [
        i for i, name in enumerate(table.record_id) if i == 0 or name != table.record_id[i - 1]
    ]
    groups = [slice(a, b) for a, b in zip(first, [*first[1:], len(table.record_id)], strict=True)]

    # further columns: how those of several windows become one; of all others the smallest counts
    beats = table.extra["num_beats"]
    combine: dict[str, Callable] = {
        "num_beats": np.sum,
        "condition": np.max,
        "gain": np.max,
        "leads": _in_all,
    }
    extra = {
        name: np.array([combine.get(name, np.min)(values[g]) for g in groups])
        for name, values in table.extra.items()
        if name != "defects"
    }
    if "defects" in table.extra:
        windows = np.asarray(table.window)
        extra["defects"] = np.array(
            [_defects(table.extra["defects"][g], windows[g]) for g in groups]
        )
    return replace(
        table,
        **{name: getattr(table, name)[first] for name in ("record_id", "patient_id", "split")},
        labels=[table.labels[i] for i in first],
        beats=None,
        embedding=np.stack([beat_weighted_mean(table.embedding[g], beats[g]) for g in groups]),
        window=np.full(len(groups), WHOLE_RECORD),
        extra=extra,
    )


def _in_all(cells: np.ndarray) -> str:
    """';'-joined words that every cell has."""
    return ";".join(in_all([cell.split(";") for cell in cells.tolist()]))


def _defects(cells: np.ndarray, windows: np.ndarray) -> str:
    lists = [cell.split(";") for cell in cells.tolist()]
    common = [word for word in in_all(lists) if word]
    return ";".join(
        common
        + [
            f"w{w}:{word}"
            for w, words in zip(windows, lists, strict=True)
            for word in words
            if word and word not in common
        ]
    )


def check_ending(path: str | Path) -> str:
    """The ending of an embeddings file; an InputError if it is none of ENDINGS."""
    suffix = Path(path).suffix
    if suffix not in ENDINGS:
        raise InputError(
            f"{path}: an embeddings file ends in {' or '.join(ENDINGS)}, or it is a folder that"
            " lvcg embed wrote"
        )
    return suffix


def save_table(path: str | Path, table: Table, folder: Path | None = None) -> None:
    """Writes the file that `load_table` reads, in whole or not at all; the same table gives the
    same bytes. Until it is whole it lies beside the file, or in `folder` on the same disk."""
    suffix = check_ending(path)
    try:
        with whole_file(path, folder) as temporary, open(temporary, "wb") as file:
            _save_npz(file, table) if suffix == ".npz" else _save_parquet(file, table)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


def _save_npz(file: BinaryIO, table: Table) -> None:
    arrays: dict[str, Any] = {
        name: np.asarray(getattr(table, name)).astype(str) for name in TABLE_KEYS[:3]
    }
    if table.window is not None:
        arrays["window"] = np.asarray(table.window)
    if table.tokens is not None:
        arrays["tokens"] = np.asarray(table.tokens, np.float32)
        arrays["token_offsets"] = np.concatenate([[0], np.cumsum(table.extra["num_beats"])])
    metadata: dict[str, Any] = {key: np.array(str(v)) for key, v in table.metadata.items()}
    extra: dict[str, Any] = table.extra
    np.savez_compressed(  # text columns are mostly padding
        file,
        **arrays,
        labels=np.array([json.dumps(row, sort_keys=True) for row in table.labels], dtype=str),
        embedding=np.asarray(table.embedding, np.float32),
        part_names=np.array(list(table.parts), dtype=str),
        part_sizes=np.array(table.part_sizes, dtype=np.int64),
        **metadata,
        **extra,
    )


def _save_parquet(file: BinaryIO, table: Table) -> None:
    import pyarrow as pa  # late: most commands never need it
    import pyarrow.parquet as pq

    if table.tokens is not None:
        raise InputError("beat tokens are stored in .npz files only")
    columns = {
        name: pa.array(getattr(table, name).tolist(), pa.string()) for name in TABLE_KEYS[:3]
    }
    if table.window is not None:
        columns["window"] = pa.array(table.window)
    columns |= {name: pa.array(values.tolist()) for name, values in table.extra.items()}
    tasks = sorted({task for row in table.labels for task in row})
    for task in tasks:
        columns[f"label_{task}"] = pa.array(
            [row.get(task) for row in table.labels], pa.list_(pa.string())
        )
    for name, place in (table.part_columns or {"embedding": slice(None)}).items():
        part = np.asarray(table.embedding[:, place], np.float32)
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
    header = {
        "tasks": tasks,
        "parts": table.parts,
        "metadata": {k: str(v) for k, v in table.metadata.items()},
    }
    data = pa.table(columns)
    header["sha256"] = _content_hash(data, header)
    data = data.replace_schema_metadata({_HEADER: json.dumps(header)})
    pq.write_table(data, file, row_group_size=ROWS_OF_GROUP, write_page_checksum=True)


def _content_hash(data, header: dict) -> str:
    """A hash of all columns of a pyarrow table and of our header, but for the hash in it.

    The checksums of a parquet file are of its pages alone: not of their list, nor of the header.
    """
    rest = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in data.column_names:
        column = data[name]
        digest.update(f"{name} {len(column)}".encode())
        if str(column.type).startswith("fixed_size_list"):
            digest.update(np.ascontiguousarray(column.combine_chunks().flatten().to_numpy()).data)
        else:
            digest.update(json.dumps(column.to_pylist()).encode())
    return digest.hexdigest()


def load_table(path: str | Path) -> Table:
    """Reads an embeddings file or folder, and checks it: keys, lengths, finite numbers, no row
    twice."""
    read: Callable[[str | Path], Table] = _load_folder
    if not Path(path).is_dir():
        read = _load_npz if check_ending(path) == ".npz" else _load_parquet
    try:
        table = read(path)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such embeddings file; write one with lvcg embed") from None
    # numpy, zipfile, zlib and pyarrow each have errors of their own for a damaged file
    except Exception as error:
        what = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise InputError(
            f"{path} is damaged or not an embeddings file of this project ({what})"
        ) from None
    _check_labels(table, path)
    names, counts = np.unique(table.keys, return_counts=True)
    if counts.max() > 1:
        twice = list_some(names[counts > 1])
        raise InputError(f"{path}: {twice} occurs more than once; each row needs its own id")
    bad = np.concatenate([~np.isfinite(some).all(1) for some in blocks(table.embedding)])
    if bad.any():
        raise InputError(
            f"{path}: the embedding of {list_some(table.record_id[bad])} is not finite"
        )
    return table


def _check_labels(table: Table, path: str | Path) -> None:
    """InputErrors for labels that are not lists of names by task, or tasks that are no JSON."""
    try:
        declared = json.loads(table.metadata.get("tasks", "{}"))
        cells = [names for row in [*table.labels, declared] for names in row.values()]
        good = all(isinstance(names, list) and set(map(type, names)) <= {str} for names in cells)
    except (ValueError, AttributeError, RecursionError):
        good = False
    if not good:
        raise InputError(
            f"{path}: 'labels' or 'tasks' does not hold JSON such as {{\"super\": [\"NORM\"]}}"
        )


def _check_size(file: BinaryIO, path: str | Path) -> None:
    """An InputError for a small file that unpacks to far more."""
    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > LARGEST_UNPACKED and size > LARGEST_GAIN * Path(path).stat().st_size:
        raise InputError(
            f"{path} unpacks to {size / 2**30:.1f} GiB, far more than an embeddings file of this"
            " size holds"
        )
    file.seek(0)


def _load_npz(path: str | Path) -> Table:
    with open(ordinary(path), "rb") as raw:
        _check_size(raw, path)
        with np.load(raw, allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
    missing = [key for key in TABLE_KEYS if key not in data]
    if missing:
        raise InputError(
            f"{path} is not an embeddings file of this project: it has no {', '.join(missing)}"
        )
    rows = len(data["record_id"])
    wrong = [key for key in TABLE_KEYS if data[key].shape[:1] != (rows,)]
    if "window" in data and data["window"].shape != (rows,):
        wrong.append("window")
    if wrong or data["embedding"].ndim != 2 or not rows:
        raise InputError(
            f"{path}: {', '.join(wrong) or 'embedding'} does not have one row for each of {rows}"
            " records"
        )
    if rows > MOST_ROWS:
        raise InputError(f"{path} has {rows} rows, more than the {MOST_ROWS} that a table may have")
    try:
        labels = [json.loads(str(text)) for text in data["labels"]]
    except json.JSONDecodeError:
        raise InputError(
            f'{path}: \'labels\' does not hold JSON text such as {{"super": ["NORM"]}}'
        ) from None
    parts = dict(
        zip(
            data.get("part_names", np.array([], str)).tolist(),
            data.get("part_sizes", []),
            strict=True,
        )
    )
    others = {key: value for key, value in data.items() if key not in (*TABLE_KEYS, *_OTHER_KEYS)}
    record_id, patient_id, split = (data[key].astype(str) for key in TABLE_KEYS[:3])
    return Table(
        record_id,
        patient_id,
        split,
        labels,
        data["embedding"].astype(np.float32),
        {name: int(size) for name, size in parts.items()},
        {key: str(value) for key, value in others.items() if value.ndim == 0},
        data.get("window"),
        {key: value for key, value in others.items() if value.shape == (rows,)},
        data.get("tokens"),
    )


def read_parquet(path: str | Path) -> tuple[Any, dict]:
    """The pyarrow table of a .parquet of ours and its header, once its checksums are found right;
    it may be a part without a row."""
    import pyarrow.parquet as pq

    with open(ordinary(path), "rb") as file:
        source = pq.ParquetFile(file, page_checksum_verification=True)
        size = source.metadata.num_rows * source.metadata.num_columns
        if source.metadata.num_rows > MOST_ROWS or size > LARGEST_UNPACKED:
            raise InputError(
                f"{path} claims {source.metadata.num_rows} rows: more than it may have"
            )
        data = source.read()
    if _HEADER not in (data.schema.metadata or {}):
        raise InputError(
            f"{path} is not an embeddings file of this project: it has no {_HEADER.decode()}"
        )
    header = json.loads(data.schema.metadata[_HEADER])
    if header.get("sha256") not in (None, _content_hash(data, header)):
        raise InputError(f"{path} is damaged: its content is not what was written")
    return data, header


def _load_parquet(path: str | Path) -> Table:
    data, header = read_parquet(path)
    if not len(data):
        raise InputError(f"{path} is not an embeddings file of this project: it has no rows")
    names = list(header["parts"]) or ["embedding"]
    blocks = [
        data[name].combine_chunks().flatten().to_numpy().reshape(len(data), -1) for name in names
    ]
    found = {task: data[f"label_{task}"].to_pylist() for task in header["tasks"]}
    labels = [
        {task: cells[i] for task, cells in found.items() if cells[i] is not None}
        for i in range(len(data))
    ]
    used = {*TABLE_KEYS[:3], "window", *names, *(f"label_{task}" for task in header["tasks"])}
    texts = [np.array(data[key].to_pylist(), dtype=str) for key in TABLE_KEYS[:3]]
    record_id, patient_id, split = texts
    return Table(
        record_id,
        patient_id,
        split,
        labels,
        np.concatenate(blocks, axis=1).astype(np.float32),
        {name: int(size) for name, size in header["parts"].items()},
        dict(header["metadata"]),
        np.array(data["window"].to_pylist()) if "window" in data.column_names else None,
        {name: np.array(data[name].to_pylist()) for name in data.column_names if name not in used},
    )


def read_listing(folder: str | Path) -> dict:
    """What a folder of parts says of itself once all are there: `parts` (file, rows, sha256 and
    counts of each), `sizes` of the parts of an embedding, `metadata`."""
    path = Path(folder) / LISTING
    if not path.is_file():
        raise InputError(
            f"{folder}: no {LISTING} in it, so it is no finished folder of embeddings; run the"
            " lvcg embed command that writes it again"
        )
    return json.loads(path.read_bytes())


def _load_folder(folder: str | Path) -> Table:
    """All parts as one table, with one of them in memory beside the ids, labels and flags."""
    listing = read_listing(folder)
    sizes = {name: int(size) for name, size in listing["sizes"].items()}
    listed = [part for part in listing["parts"] if part["rows"]]
    rows = sum(part["rows"] for part in listed)
    if rows > MOST_ROWS:
        raise InputError(f"{folder} has {rows} rows, more than the {MOST_ROWS} a table may have")
    embedding, first, tables = room_for(rows, sum(sizes.values())), 0, []
    alike: dict[str, dict] = {}  # equal labels are kept once
    for part in listed:
        path = Path(folder) / part["file"]
        if not path.is_file() or file_sha256(path) != part["sha256"]:
            raise InputError(
                f"{path} is missing or damaged: run the same lvcg embed command again, it makes"
                " this part anew"
            )
        table = _load_parquet(path)
        embedding[first : first + part["rows"]] = table.embedding
        first += part["rows"]
        labels = [alike.setdefault(json.dumps(row, sort_keys=True), row) for row in table.labels]
        tables.append(replace(table, labels=labels, embedding=table.embedding[:0]))
    joined = lambda column: np.concatenate([column(table) for table in tables])  # noqa: E731
    return Table(
        record_id=joined(lambda table: table.record_id),
        patient_id=joined(lambda table: table.patient_id),
        split=joined(lambda table: table.split),
        labels=[row for table in tables for row in table.labels],
        embedding=embedding,
        parts=sizes,
        metadata=dict(listing["metadata"]),
        window=joined(lambda table: table.window),
        extra={
            name: joined(lambda table, name=name: table.extra[name]) for name in tables[0].extra
        },
    )


def take_rows(table: Table, chosen: np.ndarray) -> Table:
    """The rows of a table that a mask [m] or indices choose, without beat tokens."""
    chosen = np.arange(len(table.record_id))[chosen]
    columns = {
        name: getattr(table, name)[chosen]
        for name in ("record_id", "patient_id", "split", "embedding")
    }
    return replace(
        table,
        **columns,
        labels=[table.labels[i] for i in chosen],
        window=None if table.window is None else table.window[chosen],
        extra={name: values[chosen] for name, values in table.extra.items()},
        tokens=None,
        beats=None,
    )


def keep_test_rows(table: Table, keys: Sequence[str]) -> tuple[Table, np.ndarray]:
    """The table with only these of its test rows, in this order and after all other rows; and the
    numbers [t] of the test rows."""
    row_of = {key: i for i, key in enumerate(table.keys)}
    others = np.flatnonzero(table.split != "test")
    test = np.array([row_of[key] for key in keys], int)
    return take_rows(table, np.concatenate([others, test])), len(others) + np.arange(len(test))


def align_features(table: Table, other: Table, name: str) -> Features:
    """The other table's embedding in the row order of the first; an InputError unless both describe
    the same labelled records."""
    # the same rows
    position = {key: i for i, key in enumerate(other.keys)}
    mine = table.keys
    absent, extra = [k for k in mine if k not in position], sorted(set(position) - set(mine))
    if absent or extra:
        where = [f"{list_some(absent)} missing from it"] if absent else []
        where += [f"{list_some(extra)} only in it"] if extra else []
        raise InputError(
            f"control '{name}' covers other records: {', '.join(where)}; embed the same data set"
        )
    order = np.array([position[key] for key in mine])

    # the same patients, splits and labels
    for what in ("patient_id", "split"):
        differ = getattr(table, what) != getattr(other, what)[order]
        if differ.any():
            raise InputError(
                f"control '{name}' gives another {what} for {list_some(table.record_id[differ])}"
            )
    differ = [
        key for key, row, i in zip(mine, table.labels, order, strict=True) if row != other.labels[i]
    ]
    if differ:
        raise InputError(f"control '{name}' gives other labels for {list_some(differ)}")
    return choose_rows(other.embedding, order)
