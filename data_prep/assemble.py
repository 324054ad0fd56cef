"""The end of a build: from finished shards to a dataset directory (uids, ledger, beat counts, metadata, repair).

Every file of the directory is written whole or not at all, and every step can be done again after a crash:
dataset.json comes last, and until then what is known of each shard (its ledger rows and examples) is kept in `parts`.
"""

import collections
import contextlib
import csv
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from data_prep import shards
from data_prep.errors import InputError
from data_prep.leads import LEADS
from data_prep.preprocess import Preprocess
from data_prep.readers import RecordRef

LEDGER_COLUMNS = ("record_id", "patient_id", "split", "kept", "windows", "beats", "missing_leads", "reason", "defects")
PARTS = "parts"


@dataclasses.dataclass(frozen=True)
class Job:
    """What every shard is built with."""

    out: Path
    preprocess: Preprocess
    windows: str  # 'first' | 'all'
    store_signal: bool


@dataclasses.dataclass(frozen=True)
class Shard:
    file: str
    split: str
    refs: list[RecordRef]


def finish(job: Job, plan: dict, planned: list[Shard]) -> dict:
    """Everything that needs all shards. Each step can be repeated, and dataset.json comes last."""
    out = job.out
    rehash = _unique_uids(out, planned)
    splits, dropped, defects, missing = {}, collections.Counter(), collections.Counter(), collections.Counter()
    ledger = io.StringIO()
    writer = csv.writer(ledger, lineterminator="\n")
    writer.writerow(LEDGER_COLUMNS)
    for shard in planned:
        rows = part(out, shard)["rows"]
        writer.writerows(rows)
        for row in (dict(zip(LEDGER_COLUMNS, r, strict=True)) for r in rows):
            if row["kept"] == "no":
                dropped[_reason_kind(row["reason"])] += 1
            kinds = (re.sub(r"^w\d+:", "", d).split(":")[0] for d in row["defects"].split(";") if d)
            defects.update(set(kinds))
            missing.update(row["missing_leads"].split())
    write_file(out, shards.LEDGER_FILE, ledger.getvalue().encode())
    if sum(dropped.values()) == plan["records"]:
        common = dropped.most_common(1)[0][0]
        ledger_path = out / shards.LEDGER_FILE
        raise InputError(f"all {plan['records']} records were dropped, most often: {common}; see {ledger_path}")
    for split in dict.fromkeys(shard.split for shard in planned):
        of_split = [shard for shard in planned if shard.split == split]
        if any(part(out, shard)["examples"] for shard in of_split):
            splits[split] = _finish_split(job, plan, split, of_split, rehash)
        else:
            for shard in of_split:
                (out / shard.file).unlink(missing_ok=True)
    patients = collections.Counter(p for split in splits.values() for p in split.pop("patient_ids"))
    metadata = {
        "format": shards.FORMAT,
        "corpus": plan["corpus"],
        "preprocess": plan["preprocess"],
        "preprocess_hash": plan["preprocess_hash"],
        "windows": plan["windows"],
        "split_rule": plan["split_rule"],
        "signal": job.store_signal,
        "tasks": plan["tasks"],
        "records": {"listed": plan["records"], "kept": sum(s["records"] for s in splits.values())},
        "dropped": dict(sorted(dropped.items())),
        "defects": dict(sorted(defects.items())),
        "missing_leads": {lead: missing[lead] for lead in LEADS if missing[lead]},
        "patients_in_several_splits": sum(n > 1 for n in patients.values()),
        "uid_rehash": rehash,
        "splits": splits,
    }
    _write_tfds(job, metadata)
    write_file(out, shards.METADATA_FILE, to_json(metadata))
    return metadata


def _finish_split(job: Job, plan: dict, split: str, of_split: list[Shard], rehash: dict[str, int]) -> dict:
    """Applies the new uids to the shards of a split, writes its beat counts, and counts what it holds."""
    kept: dict[str, RecordRef] = {}
    infos, counts = [], []
    for shard in of_split:
        examples = part(job.out, shard)["examples"]
        _apply_rehash(job.out, shard.file, examples, rehash)
        infos.append(_file_info(job.out, shard.file, examples, rehash))
        counts += [beats for *_, beats in examples]
        ids = {record_id for record_id, *_ in examples}
        kept |= {ref.record_id: ref for ref in shard.refs if ref.record_id in ids}
    counts = np.array(counts, np.int32)
    counts_sha256 = _write_counts(job.out, split, counts)
    patients = sorted({ref.patient_id for ref in kept.values()})
    classes = {
        task: collections.Counter(name for ref in kept.values() for name in set(ref.labels.get(task, ())))
        for task in plan["tasks"]
    }
    return {
        "examples": len(counts),
        "records": len(kept),
        "patients": len(patients),
        "patient_ids": patients,
        "beats": int(counts.sum()),
        "beats_per_example": [int(counts.min()), float(np.median(counts)), int(counts.max())],
        "beat_counts_sha256": counts_sha256,
        "shard_lengths": [info["examples"] for info in infos],
        "shards": infos,
        "labelled": {task: sum(task in ref.labels for ref in kept.values()) for task in plan["tasks"]},
        "label_counts": {task: {name: classes[task][name] for name in names} for task, names in plan["tasks"].items()},
    }


def _unique_uids(out: Path, planned: list[Shard]) -> dict[str, int]:
    """New uids for the windows whose hash another window has already taken: {"record_id#window": uid}."""
    taken, rehash = set(), {}
    clashes = []
    for shard in planned:
        for record_id, window, uid, _ in part(out, shard)["examples"]:
            if uid in taken:
                clashes.append((record_id, window))
            taken.add(uid)
    for record_id, window in clashes:
        attempt = 1
        while (uid := shards.uid_of(record_id, window, attempt)) in taken:
            attempt += 1
        taken.add(uid)
        rehash[f"{record_id}#{window}"] = uid
    return rehash


def _apply_rehash(out: Path, file: str, examples: list, rehash: dict[str, int]) -> None:
    new = [rehash.get(f"{record_id}#{window}") for record_id, window, *_ in examples]
    if any(uid is not None for uid in new):
        old = shards.read_shard(out / file)
        records = [r if uid is None else shards.with_uid(r, uid) for r, uid in zip(old, new, strict=True)]
        write_shard(out, file, records)


def _file_info(out: Path, file: str, examples: list, rehash: dict[str, int]) -> dict:
    first = None
    if examples:
        record_id, window, uid, _ = examples[0]
        first = rehash.get(f"{record_id}#{window}", uid)
    size = (out / file).stat().st_size
    sha256 = shards.file_sha256(out / file)
    return {"file": file, "examples": len(examples), "bytes": size, "sha256": sha256, "first_uid": first}


def _write_counts(out: Path, split: str, counts: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, counts)
    write_file(out, f"beat_counts-{split}.npy", buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def _write_tfds(job: Job, metadata: dict) -> None:
    """features.json and dataset_info.json, so that tfds.builder_from_directory opens the directory."""
    folder = job.out / PARTS / "tfds"
    folder.mkdir(exist_ok=True)
    for values in metadata["splits"].values():
        (folder / values["shards"][0]["file"]).touch()  # tfds takes the name and the splits from files in the folder
    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=values["shard_lengths"],
            num_bytes=sum(shard["bytes"] for shard in values["shards"]),
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir=folder, dataset_name=metadata["corpus"], split=split, filetype_suffix="array_record"
            ),
        )
        for split, values in metadata["splits"].items()
    ]
    spec = shards.features(job.preprocess.beat_samples, job.store_signal)
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=spec, split_infos=infos, version=f"{shards.FORMAT}.0.0", check_data=False
    )
    for file in sorted(folder.glob("*.json")):
        os.replace(file, job.out / file.name)


def repair(job: Job, metadata: dict, rebuilt: list[Shard]) -> dict:
    """Brings the rebuilt shards of a finished directory to what dataset.json says, and the small files with them."""
    for shard in rebuilt:
        _apply_rehash(job.out, shard.file, part(job.out, shard)["examples"], metadata["uid_rehash"])
        (expected,) = (s for s in metadata["splits"][shard.split]["shards"] if s["file"] == shard.file)
        if shards.file_sha256(job.out / shard.file) != expected["sha256"]:
            raise InputError(
                f"{job.out / shard.file}: rebuilt, but not as it was: the raw records or the code have changed since; "
                "build into a new folder"
            )
    for split, values in metadata["splits"].items():
        path = job.out / f"beat_counts-{split}.npy"
        if not path.is_file() or shards.file_sha256(path) != values["beat_counts_sha256"]:
            raws = (raw for shard in values["shards"] for raw in shards.read_shard(job.out / shard["file"]))
            counts = [len(shards.decode(raw, job.preprocess.beat_samples)["start"]) for raw in raws]
            _write_counts(job.out, split, np.array(counts, np.int32))
    _write_tfds(job, metadata)
    return metadata


def to_json(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def write_file(out: Path, name: str, data: bytes) -> None:
    """Writes a file of the directory whole or not at all."""
    temporary = out / PARTS / (Path(name).name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, out / name)


def write_shard(out: Path, file: str, records: list[bytes]) -> None:
    temporary = out / PARTS / (file + ".tmp")
    with disk_full(out):
        try:
            shards.write_shard(temporary, records)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        os.replace(temporary, out / file)


def part(out: Path, shard: Shard) -> dict:
    return json.loads((out / PARTS / f"{shard.file}.json").read_bytes())


@contextlib.contextmanager
def disk_full(out: Path) -> Iterator[None]:
    """Says a full disk in one line; ArrayRecord reports it as a RuntimeError, Python as an OSError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None:
            number = getattr(cause, "errno", None)
            if number in (errno.ENOSPC, errno.EDQUOT) or re.search("No space left|quota exceeded", str(cause)):
                text = f"{out}: disk full; make room and run the same command again, finished shards are kept"
                raise InputError(text) from error
            cause = cause.__context__
        raise


def _reason_kind(reason: str) -> str:
    """A reason without what is particular to one record (files, numbers), for counting."""
    without_files = re.sub(r"\S*/\S*|\S+\.(dat|hea|mat)\b", "...", reason.split(";")[0])
    return re.sub(r"\d+(\.\d+)?", "N", without_files)
