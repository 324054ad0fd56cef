"""Records of a split in a form that training reads without decoding: one array for each field.

A shard holds records one by one, each a message that has to be parsed. Here the beats of all
records stand one after another in one file that is mapped into memory, so that reading a record is
copying its bytes; several processes of a machine share what the system keeps of the file. Nothing
is here that is not in the shards: a folder of packed records can be deleted at any time and is made
again when it is needed.

The name of the folder follows from the checksums of the shards, so that it is never taken for that
of another data set. `packed.json` has the checksum of every file. It is compared whenever a file's
size or time is not the one noted there, after a copy, say.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write, require_local
from data_prep.base.lock import in_turn
from data_prep.base.progress import progress_bar
from data_prep.base.words import first_line
from data_prep.dataset.shards import ShardSet, file_sha256

FORMAT = 1  # raise it when the files change
NOTE = "packed.json"
READ_CHUNK = 64  # examples of one read
LARGE = ("beats", "signal")  # mapped, not loaded
_DTYPES = {
    "beats": np.float16, "signal": np.float16, "length": np.int32, "complete": np.bool_,
    "lead_mask": np.int32, "scale": np.float32, "uid": np.uint32,
}  # fmt: skip


class Packed:
    """The packed records of a split.

    Attributes:
      first_beat: [n] where the beats of each record begin.
      arrays: per beat `beats` [m,12,P], `length`, `complete`; per record `lead_mask`, `scale`
        [n,12], `uid`, `patient_id` (bytes) and, if asked for, `signal` [n,12,T], ending in zeros.
    """

    def __init__(self, folder: Path, counts: np.ndarray):
        self.folder = folder
        self.first_beat = np.cumsum(counts, dtype=np.int64) - counts
        try:
            noted = json.loads((folder / NOTE).read_text())["files"]
            changed = [name for name, facts in noted.items() if _facts(folder / name) != facts[1:]]
            for name in changed:
                if file_sha256(folder / name) != noted[name][0]:
                    raise ValueError(f"the checksum of {name} is not the one in {NOTE}")
            self.arrays = {
                Path(name).stem: np.load(
                    folder / name, mmap_mode="r" if Path(name).stem in LARGE else None
                )
                for name in noted
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder}: damaged ({first_line(error)}); delete it, it is made again"
            ) from None


def open_packed(shards: ShardSet, cache: str | Path, signal: bool = False) -> Packed:
    """The packed records of a split, from a folder in `cache`; they are packed if they are not
    there yet. Other processes of this machine wait meanwhile."""
    require_local(cache)
    folder = Path(cache) / _name(shards, signal)
    try:
        if not (folder / NOTE).is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with in_turn(folder.with_name(f"{folder.name}.lock")):
                if not (folder / NOTE).is_file():
                    _pack(shards, folder, signal)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return Packed(folder, shards.counts)


def _name(shards: ShardSet, signal: bool) -> str:
    sums = [shard["sha256"] for shard in shards.shards]
    key = hashlib.sha256(json.dumps([FORMAT, signal, sums]).encode()).hexdigest()
    return f"{shards.metadata['corpus']}-{shards.split}-{key[:12]}"


def _pack(shards: ShardSet, folder: Path, signal: bool) -> None:
    """Writes the files to a folder with a temporary name, and renames that. If two processes did,
    the files of the first stay."""
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(exist_ok=True)
    try:
        _write(shards, temporary, signal)
        if not folder.exists():
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(shards: ShardSet, folder: Path, signal: bool) -> None:
    preprocess, records = shards.preprocess, len(shards)
    shapes = {"beats": (int(shards.counts.sum()), 12, preprocess.beat_samples)}
    if signal:
        shapes["signal"] = (records, 12, round(preprocess.seconds * preprocess.rate))
    files = {name: open(folder / f"{name}.npy", "wb") for name in shapes}  # noqa: SIM115
    small: dict[str, list] = {name: [] for name in _DTYPES if name not in LARGE}
    patients: list[bytes] = []
    try:
        for name, file in files.items():
            header = {"descr": "<f2", "fortran_order": False, "shape": shapes[name]}
            np.lib.format.write_array_header_1_0(file, header)
        bar = progress_bar(total=records, desc=f"packing {shards.split}", unit="record")
        for start in range(0, records, READ_CHUNK):
            for example in shards.read(range(start, min(start + READ_CHUNK, records))):
                files["beats"].write(example["beats"].tobytes())
                if signal:
                    row = np.zeros(shapes["signal"][1:], np.float16)
                    row[:, : example["signal"].shape[1]] = example["signal"][:, : row.shape[1]]
                    files["signal"].write(row.tobytes())
                for name, values in small.items():
                    values.append(example[name])
                patients.append(example["patient_id"].encode())
                bar.update()
        bar.close()
    finally:
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
    for name, values in small.items():
        per_beat = name in ("length", "complete")
        array = np.concatenate(values) if per_beat else np.array(values)
        np.save(folder / f"{name}.npy", array.astype(_DTYPES[name]))
    np.save(folder / "patient_id.npy", np.array(patients))
    noted = {path.name: [file_sha256(path), *_facts(path)] for path in sorted(folder.glob("*.npy"))}
    (folder / NOTE).write_text(json.dumps({"format": FORMAT, "files": noted}, indent=1))


def _facts(path: Path) -> list[int]:
    """Size and time of a file: if they are as before, so is what is in it."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
