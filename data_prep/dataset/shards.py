"""The format of a dataset directory: how one example is written, and how a split is read at random.

A directory holds ArrayRecord files `<corpus>-<split>.array_record-00000-of-00003` of
tf.train.Example records in the layout of tfds (`encoding='bytes'`), which Grain and
`tfds.builder_from_directory` also read, and `dataset.json`, our own description (see
`data_prep/build.py`). Reading needs neither TensorFlow nor JAX. An example with n beats of P
samples:

    beats float16 [n,12,P]  normalised     lead_mask    bit i set = LEADS[i] is present
    start int32 [n]         first sample   uid          32 bits of sha256("record_id#window"),
    length int32 [n]        samples                     unique in the directory
    complete bool [n]       R to R         window       index of the window in its record
    offset, scale f32 [12]  mV = z*s + o   num_samples  samples of the window
    signal float16 [12,T]   if stored      labels       JSON {task: [class names]}
    record_id, patient_id   texts          defects      joined by ';'

`ArrayRecordReader` opens a truncated or even a missing file without complaint, as one of 0 records;
hence the checks.
"""

import collections
import functools
import hashlib
import io
import json
import os
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from data_prep.base.errors import InputError
from data_prep.base.files import require_local
from data_prep.base.lottery import ticket
from data_prep.base.words import first_line
from data_prep.ecg.preprocess import Preprocess

# imported where it is needed: it takes a second, and single records need no shards
if TYPE_CHECKING:
    import tensorflow_datasets as tfds
FORMAT = 1  # raise it when the stored features change; readers refuse other formats
ALL_SPLITS = "all"  # in the place of a split: every one of them
METADATA_FILE, PLAN_FILE, LEDGER_FILE = "dataset.json", "build_plan.json", "ledger.csv"
_METADATA_KEYS = {
    "corpus": str, "preprocess": dict, "preprocess_hash": str, "splits": dict, "tasks": dict,
}  # fmt: skip
_SHARD_KEYS = {
    "file": str, "examples": int, "bytes": int, "sha256": str, "first_uid": int | None,
}  # fmt: skip
_INTS = {"lead_mask": np.int32, "uid": np.int64, "window": np.int32, "num_samples": np.int32}
_TEXTS = ("record_id", "patient_id", "labels", "defects")
# Beats in float16 hardly compress (7% with zstd), and raw records are read twice as fast.
_WRITER_OPTIONS = "group_size:1,uncompressed"
# open files per ShardSet; opening a file again costs less than reading a record
_OPEN_READERS = 256


def _arrays(beat_samples: int) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Type and shape of every array feature; -1 is the free axis."""
    return {
        "beats": (np.float16, (-1, 12, beat_samples)),
        "start": (np.int32, (-1,)),
        "length": (np.int32, (-1,)),
        "complete": (np.bool_, (-1,)),
        "offset": (np.float32, (12,)),
        "scale": (np.float32, (12,)),
        "signal": (np.float16, (12, -1)),
    }


@functools.cache
def _example_type() -> type:
    """The class tf.train.Example, from tfds."""
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example


def features(beat_samples: int, signal: bool) -> "tfds.features.FeaturesDict":
    """The tfds description of one example."""
    import tensorflow_datasets as tfds

    arrays = {
        name: tfds.features.Tensor(
            shape=tuple(None if s < 0 else s for s in shape), dtype=dtype, encoding="bytes"
        )
        for name, (dtype, shape) in _arrays(beat_samples).items()
        if signal or name != "signal"
    }
    ints = {name: tfds.features.Scalar(dtype) for name, dtype in _INTS.items()}
    return tfds.features.FeaturesDict(
        arrays | ints | {name: tfds.features.Text() for name in _TEXTS}
    )


def encode(spec: "tfds.features.FeaturesDict", example: Mapping) -> bytes:
    """One example as bytes, always the same for the same example.

    It writes what tfds serialises, but three times as fast, and with the map in a fixed order.
    """
    if example.keys() != spec.keys():
        raise ValueError(f"features {sorted(example.keys() ^ spec.keys())} are missing or too many")
    message = _example_type()()
    stored = message.features.feature
    for name, value in example.items():
        if name in _INTS:
            stored[name].int64_list.value.append(value)
        elif name in _TEXTS:
            stored[name].bytes_list.value.append(value.encode())
        else:
            dtype, shape = _arrays(0)[name]
            if value.dtype != dtype or value.ndim != len(shape):
                raise ValueError(
                    f"{name} is {value.dtype} {value.shape}, expected {np.dtype(dtype)} {shape}"
                )
            stored[name].bytes_list.value.append(value.tobytes())
    return message.SerializeToString(deterministic=True)


def decode(raw: bytes, beat_samples: int) -> dict:
    """One example as numpy arrays (read-only views), ints and str: the values of tfds' numpy
    parser, six times as fast."""
    stored = _example_type().FromString(raw).features.feature
    example = {
        name: np.frombuffer(stored[name].bytes_list.value[0], dtype).reshape(shape)
        for name, (dtype, shape) in _arrays(beat_samples).items()
        if name != "signal" or name in stored
    }
    for name in _INTS:
        example[name] = stored[name].int64_list.value[0]
    for name in _TEXTS:
        example[name] = stored[name].bytes_list.value[0].decode()
    return example


def with_uid(raw: bytes, uid: int) -> bytes:
    """The same record with another uid."""
    message = _example_type().FromString(raw)
    message.features.feature["uid"].int64_list.value[0] = uid
    return message.SerializeToString(deterministic=True)


def uid_of(record_id: str, window: int, attempt: int = 0) -> int:
    """The 32-bit key of a window, for keyed randomness; `attempt` > 0 gives another one if that is
    taken."""
    name = f"{record_id}#{window}" + (f"#{attempt}" if attempt else "")
    return ticket(name)


def shard_name(corpus: str, split: str, index: int, count: int) -> str:
    """The file name of a shard, in the pattern of tfds."""
    return f"{corpus}-{split}.array_record-{index:05d}-of-{count:05d}"


def counts_file(split: str) -> str:
    """The file with the beats of each record of a split."""
    return f"beat_counts-{split}.npy"


def write_shard(path: Path, records: Iterable[bytes]) -> None:
    """Writes records to `path` and makes sure that they are on disk; the caller chooses a temporary
    name."""
    writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
    try:
        for record in records:
            writer.write(record)
    finally:
        writer.close()
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def iterate_shard(path: Path, batch: int = 64) -> Iterator[bytes]:
    """The records of one file in order, with a few at a time in memory."""
    reader = _open_reader(path)
    try:
        count = reader.num_records()
        for first in range(0, count, batch):
            yield from reader.read(list(range(first, min(first + batch, count))))
    finally:
        reader.close()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_metadata(directory: str | os.PathLike) -> dict:
    """dataset.json of a finished dataset directory; an InputError that says what is missing if
    there is none."""
    require_local(directory)
    directory = Path(directory)
    file = directory / METADATA_FILE
    remedy = "build it with `lvcg build --corpus=... --raw=... --out=...`"
    if not directory.is_dir():
        raise InputError(f"{directory}: no such dataset directory; {remedy}")
    if not file.is_file():
        if (directory / PLAN_FILE).is_file():
            raise InputError(
                f"{directory}: this build did not finish;"
                " run the same build command again to continue"
            )
        raise InputError(
            f"{directory}: not a dataset directory (no {METADATA_FILE} in it); {remedy}"
        )
    return parse_metadata(file.read_bytes(), file)


def parse_metadata(content: bytes, file: str | Path) -> dict:
    """The content of a dataset.json; an InputError that names the file if it is damaged."""
    try:
        metadata = json.loads(content.decode())
        found = metadata["format"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _no_metadata(file, "not JSON") from None
    if found != FORMAT:
        raise InputError(
            f"{file}: format {found}, this version reads format {FORMAT}; build the dataset again"
        )
    _check_metadata(metadata, file)
    return metadata


def _no_metadata(file: str | Path, what: str) -> InputError:
    return InputError(
        f"{file}: damaged, not what the build writes ({what}); delete it and build again"
    )


def _check_metadata(metadata: dict, file: str | Path) -> None:
    """An InputError if something is missing that every reader of dataset.json relies on."""
    for key, kind in _METADATA_KEYS.items():
        if not isinstance(metadata.get(key), kind):
            raise _no_metadata(file, f"no {key}")
    for split, values in metadata["splits"].items():
        listed = values.get("shards") if isinstance(values, dict) else None
        if not isinstance(listed, list) or not listed:
            raise _no_metadata(file, f"no shards of {split}")
        for shard in listed:
            if not isinstance(shard, dict) or not all(
                key in shard and isinstance(shard[key], kind) for key, kind in _SHARD_KEYS.items()
            ):
                raise _no_metadata(file, f"a shard of {split} is not described")
            name = shard["file"]
            plain = os.path.basename(name) == name and name.isprintable()
            if not plain or len(name.encode()) > 255 or shard["examples"] < 0:
                raise _no_metadata(file, f"a shard of {split} is no file of this folder")


def describe(metadata: dict) -> str:
    """A page on a dataset: what was kept, what was dropped and why, and what is in each split."""
    # the dataset as a whole
    records = metadata["records"]
    kept_windows = "all windows" if metadata["windows"] == "all" else "the first window"
    rows = [
        ("corpus", f"{metadata['corpus']}, {kept_windows} of each record"),
        ("preprocess", metadata["preprocess_hash"]),
        ("splits", metadata["split_rule"]),
        (
            "records",
            f"{records['kept']} kept of {records['listed']},"
            f" {sum(metadata['dropped'].values())} dropped",
        ),
    ]
    rows += [("  dropped", f"{n:>7}  {reason}") for reason, n in _by_count(metadata["dropped"])]
    rows += [("  defect", f"{n:>7}  {kind}") for kind, n in _by_count(metadata["defects"])]
    rows += [("  missing", f"{n:>7}  lead {lead}") for lead, n in metadata["missing_leads"].items()]
    # each split
    for split, values in metadata["splits"].items():
        low, median, high = values["beats_per_example"]
        counts = ", ".join(
            f"{values[name]} {name}" for name in ("examples", "records", "patients", "beats")
        )
        rows.append(
            (split, f"{counts}; beats per example {low} / {median:g} / {high} (min / median / max)")
        )
        for task, classes in values["label_counts"].items():
            named = ", ".join(f"{name} {n}" for name, n in classes.items())
            rows.append((f"  {task}", f"{values['labelled'][task]} labelled: {named}"))
    # duplicates and leaks
    same = metadata.get("duplicates", {"records": 0, "in_several_splits": [], "dropped": []})
    if same["records"]:
        across, gone = len(same["in_several_splits"]), len(same["dropped"])
        rows.append(
            (
                "duplicates",
                f"{same['records']} records repeat another one;"
                f" {across} signals were in several splits, {gone} records dropped for that",
            )
        )
        if across and not gone:
            rows.append(
                (
                    "WARNING",
                    f"{across} identical signals are in more than one split:"
                    " build without --duplicates=keep",
                )
            )
    if metadata["patients_in_several_splits"]:
        rows.append(
            (
                "WARNING",
                f"{metadata['patients_in_several_splits']} patients are in more than one split",
            )
        )
    indent = " " * 14
    return "\n".join(
        textwrap.fill(f"{n:<13} {t}", 118, subsequent_indent=indent, drop_whitespace=True)
        for n, t in rows
    )


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


class ShardSet:
    """One split of a dataset directory, or 'all' of them one after another, read at random.

    Opening it checks every file against dataset.json (existence, size, number of records, first
    record). Files are opened when they are first read, so a ShardSet is cheap to send to another
    process; several threads may read at once.
    """

    def __init__(self, directory: str | os.PathLike, split: str):
        self.directory, self.split = Path(directory), split
        self.metadata = read_metadata(directory)
        there = self.metadata["splits"]
        self._splits = list(there) if split == ALL_SPLITS else [split]
        if split not in there and split != ALL_SPLITS:
            raise InputError(
                f"{directory}: no split '{split}' in this dataset; it has {', '.join(there)}"
            )
        self.shards = [shard for name in self._splits for shard in there[name]["shards"]]
        self.paths = [self.directory / shard["file"] for shard in self.shards]
        self._ends = np.cumsum([shard["examples"] for shard in self.shards])
        self.preprocess = Preprocess.from_dict(self.metadata["preprocess"])
        self._set_readers()
        for index in range(len(self.paths)):
            self._check(index)
        self.counts = np.concatenate([self._load_counts(name) for name in self._splits])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict:
        return self.read([index + len(self) if index < 0 else index])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[dict]:
        return self.read(indices)

    def read(self, indices: Iterable[int]) -> list[dict]:
        """The examples at these indices, in this order; one batched read per file."""
        indices = np.fromiter(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(
                f"index out of range: the split '{self.split}' has {len(self)} examples"
            )
        shards = np.searchsorted(self._ends, indices, side="right")
        examples: list = [None] * len(indices)
        for shard in np.unique(shards):
            where = np.flatnonzero(shards == shard)
            positions = indices[where] - (self._ends[shard] - self.shards[shard]["examples"])
            for i, example in zip(
                where, self._read_positions(int(shard), positions.tolist()), strict=True
            ):
                examples[i] = example
        return examples

    def require_preprocess(self, preprocess: Preprocess) -> None:
        """Refuses shards that were prepared in any way other than `preprocess`."""
        stored, expected = self.metadata["preprocess_hash"], preprocess.hash()
        if stored == expected and self.preprocess == preprocess:
            return
        ours, theirs = preprocess.to_dict(), self.metadata["preprocess"]
        different = [
            f"{name}={theirs.get(name, 'absent')!r} here, {ours.get(name, 'absent')!r} expected"
            for name in sorted(ours.keys() | theirs.keys())
            if json.dumps(ours.get(name, "absent")) != json.dumps(theirs.get(name, "absent"))
        ]
        raise InputError(
            f"{self.directory}: prepared with preprocessing {stored}, expected {expected};"
            f" different: {'; '.join(different) or 'the version of the preprocessing code'};"
            " build again or change the config"
        )

    def require_signal(self) -> None:
        """Refuses shards that hold beats alone, for models that read whole records."""
        if not self.metadata.get("signal"):
            raise InputError(
                f"{self.directory} holds beats only, and this model reads whole signals: build it"
                " again with `lvcg build --store_signal ...`, into another folder"
            )

    def verify(self) -> None:
        """Reads every file in full and compares its checksum, which opening does not."""
        for path, shard in zip(self.paths, self.shards, strict=True):
            if file_sha256(path) != shard["sha256"]:
                raise self._damaged(path, "its checksum is not the one in dataset.json")

    def __getstate__(self) -> dict:
        return {
            key: value for key, value in self.__dict__.items() if key not in ("_readers", "_lock")
        }

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._set_readers()

    def _set_readers(self) -> None:
        self._readers: collections.OrderedDict[int, ArrayRecordReader] = collections.OrderedDict()
        self._lock = threading.Lock()

    def _reader(self, shard: int) -> ArrayRecordReader:
        with self._lock:
            if shard not in self._readers:
                self._readers[shard] = _open_reader(self.paths[shard])
                # dropped, not closed: another thread may be reading from it
                if len(self._readers) > _OPEN_READERS:
                    self._readers.popitem(last=False)
            self._readers.move_to_end(shard)
            return self._readers[shard]

    def _read_positions(self, shard: int, positions: list[int]) -> list[dict]:
        try:
            beat_samples = self.preprocess.beat_samples
            return [decode(raw, beat_samples) for raw in self._reader(shard).read(positions)]
        # riegeli, protobuf and numpy raise different errors for damaged files
        except Exception as error:
            raise self._damaged(self.paths[shard], first_line(error)) from error

    def _check(self, shard: int) -> None:
        """Compares a file with what dataset.json says of it."""
        path, expected = self.paths[shard], self.shards[shard]
        if not path.is_file():
            raise self._damaged(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise self._damaged(
                path, f"it has {path.stat().st_size} bytes instead of {expected['bytes']}"
            )
        found = self._reader(shard).num_records()
        if found != expected["examples"]:
            raise self._damaged(path, f"it has {found} records instead of {expected['examples']}")
        if found and self._read_positions(shard, [0])[0]["uid"] != expected["first_uid"]:
            raise self._damaged(
                path, "it is another shard (its first record is not the one in dataset.json)"
            )

    def _load_counts(self, split: str) -> np.ndarray:
        path = self.directory / counts_file(split)
        examples = sum(s["examples"] for s in self.metadata["splits"][split]["shards"])
        try:
            data = path.read_bytes()
            counts = np.load(io.BytesIO(data))
        except Exception as error:  # numpy may raise anything on a broken file
            raise self._damaged(path, first_line(error)) from None
        if counts.shape != (examples,):
            raise self._damaged(path, f"it has {counts.size} counts for {examples} examples")
        expected = self.metadata["splits"][split].get("beat_counts_sha256")
        if expected not in (None, hashlib.sha256(data).hexdigest()):
            raise self._damaged(path, "its checksum is not the one in dataset.json")
        return counts

    def _damaged(self, path: Path, what: str) -> InputError:
        return InputError(
            f"{path}: {what};"
            " run the build command of this dataset again, it repairs what is damaged"
        )


def _open_reader(path: Path) -> ArrayRecordReader:
    return ArrayRecordReader(
        str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32768
    )
