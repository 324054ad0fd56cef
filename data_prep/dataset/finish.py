"""The end of a build: from finished shards to a dataset directory (uids, ledger, beat counts,
metadata); and repair.

Every file of the directory is written whole or not at all, and every step can be repeated after a
crash: dataset.json comes last, and until then what is known of each shard (its ledger rows and
examples) is kept in `parts`.
"""

import array
import collections
import csv
import dataclasses
import hashlib
import io
import os
import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import numpy as np

from data_prep.base.csv_cells import write_rows
from data_prep.base.errors import InputError
from data_prep.dataset import shards
from data_prep.dataset.one_shard import (
    PARTS,
    Job,
    Shard,
    open_file,
    part,
    to_json,
    write_file,
    write_shard,
)
from data_prep.ecg import quality
from data_prep.ecg.leads import LEADS

LEDGER_COLUMNS = (
    "record_id",
    "patient_id",
    "split",
    "kept",
    "windows",
    "beats",
    "missing_leads",
    "reason",
    "defects",
    "signal_hash",
)


def finish(job: Job, plan: dict, planned: list[Shard]) -> dict:
    """Everything that needs all shards, with the part of one shard in memory at a time;
    dataset.json comes last."""
    # the ledger, with what only all shards together can tell
    out = job.out
    rehash = _unique_uids(out, planned)
    same = find_duplicates(lambda: (part(out, shard)["rows"] for shard in planned), job.duplicates)
    dropped, defects, missing = collections.Counter(), collections.Counter(), collections.Counter()
    rates, seconds = collections.Counter(), array.array("f")
    with open_file(out, shards.LEDGER_FILE) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LEDGER_COLUMNS)
        for shard in planned:
            noted = part(out, shard)
            for values, (rate, length) in zip(noted["rows"], noted["recorded"], strict=True):
                row = dict(zip(LEDGER_COLUMNS, values, strict=True))
                _note_duplicate(row, same)
                write_rows(writer, [row.values()])
                if row["kept"] == "no":
                    dropped[_reason_kind(row["reason"])] += 1
                else:
                    rates[f"{rate:g}"] += 1
                    seconds.append(length)
                defects.update(quality.kinds(row["defects"]))
                missing.update(row["missing_leads"].split())
    if sum(dropped.values()) == plan["records"]:
        common = dropped.most_common(1)[0][0]
        ledger_path = out / shards.LEDGER_FILE
        raise InputError(
            f"all {plan['records']} records were dropped, most often: {common}; see {ledger_path}"
        )
    # each split; one in which nothing was kept goes
    splits, patients = {}, collections.Counter()
    for split in dict.fromkeys(shard.split for shard in planned):
        of_split = [shard for shard in planned if shard.split == split]
        if any(
            e[0] not in same.dropped for shard in of_split for e in part(out, shard)["examples"]
        ):
            splits[split], patients_here = _finish_split(
                job, plan, split, of_split, rehash, same.dropped
            )
            patients.update(patients_here)
        else:
            for shard in of_split:
                (out / shard.file).unlink(missing_ok=True)
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
        # of the files of the kept records, as they were recorded
        "recorded": {
            "rates": dict(sorted(rates.items(), key=lambda item: float(item[0]))),
            "seconds": [round(float(f(seconds)), 2) for f in (min, np.median, max)],
        },
        "patients_in_several_splits": sum(n > 1 for n in patients.values()),
        "duplicates": {
            "records": len(same.original),
            "in_several_splits": same.across,
            "dropped": sorted(same.dropped),
        },
        "uid_rehash": rehash,
        "ledger_sha256": shards.file_sha256(out / shards.LEDGER_FILE),
        "splits": splits,
    }
    _write_tfds(job, metadata)
    write_file(out, shards.METADATA_FILE, to_json(metadata))
    return metadata


def _finish_split(
    job: Job, plan: dict, split: str, of_split: list[Shard], rehash: dict[str, int], leave_out: dict
) -> tuple[dict, set[str]]:
    """Applies to the shards of a split what all shards decide, writes its beat counts, and counts
    what it holds."""
    infos, counts, patients, records = [], [], set(), 0
    labelled: collections.Counter = collections.Counter()
    classes = {task: collections.Counter() for task in plan["tasks"]}
    for shard in of_split:
        examples = part(job.out, shard)["examples"]
        _apply(job.out, shard.file, examples, rehash, leave_out)
        examples = [e for e in examples if e[0] not in leave_out]
        infos.append(_file_info(job.out, shard.file, examples, rehash))
        counts.append(np.array([beats for *_, beats in examples], np.int32))
        ids = {record_id for record_id, *_ in examples}
        for ref in shard.refs:
            if ref.record_id in ids:
                records += 1
                patients.add(ref.patient_id)
                labelled.update(task for task in ref.labels if task in classes)
                for task, of_task in classes.items():
                    of_task.update(set(ref.labels.get(task, ())))
    counts = np.concatenate(counts)
    counts_sha256 = _write_counts(job.out, split, counts)
    values = {
        "examples": len(counts),
        "records": records,
        "patients": len(patients),
        "beats": int(counts.sum()),
        "beats_per_example": [int(counts.min()), float(np.median(counts)), int(counts.max())],
        "beat_counts_sha256": counts_sha256,
        "shard_lengths": [info["examples"] for info in infos],
        "shards": infos,
        "labelled": {task: labelled[task] for task in plan["tasks"]},
        "label_counts": {
            task: {name: classes[task][name] for name in names}
            for task, names in plan["tasks"].items()
        },
    }
    return values, patients


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """Records with exactly the same signal."""

    original: dict[str, str]  # record -> the one it repeats: the one that stays, else the first
    across: list[list[str]]  # groups of kept records with one signal in several splits
    dropped: dict[str, str]  # record -> why it is left out


def find_duplicates(read_parts: Callable[[], Iterable[list]], policy: str) -> Duplicates:
    """Groups ledger rows by signal; with 'drop', a signal in several splits stays only in the one
    closest to testing.

    Evaluation sets are compared with published figures, so it is the training copy that goes.
    `read_parts` gives the rows shard by shard and is called twice: only hashes are held for all
    records.
    """
    columns = {name: i for i, name in enumerate(LEDGER_COLUMNS)}
    column = columns["signal_hash"]
    hashes = [
        np.array([int(row[column], 16) for row in rows if row[column]], np.uint64)
        for rows in read_parts()
    ]
    values, times = np.unique(np.concatenate(hashes), return_counts=True)
    repeated = {f"{value:016x}" for value in values[times > 1].tolist()}
    groups: dict[str, list[tuple[str, str, bool]]] = {}
    for row in (
        row for rows in read_parts() for row in rows if repeated and row[column] in repeated
    ):
        groups.setdefault(row[column], []).append(
            (row[0], row[columns["split"]], row[columns["kept"]] == "yes")
        )
    original, across, dropped = {}, [], {}
    for group in groups.values():
        here = group[0][0]
        kept = [(name, split) for name, split, is_kept in group if is_kept]
        if len({split for _, split in kept}) > 1:
            across.append([name for name, _ in kept])
            if policy == "drop":
                stays = min(
                    (split for _, split in kept), key=lambda s: ["test", "validation", s].index(s)
                )
                here = next(name for name, split in kept if split == stays)
                reason = f"the same signal as record {here} in split {stays}"
                dropped.update({name: reason for name, split in kept if split != stays})
        original.update({name: here for name, *_ in group if name != here})
    return Duplicates(original, across, dropped)


def _note_duplicate(row: dict, same: Duplicates) -> None:
    """Enters in a row of the ledger that its signal is a repetition, and whether it was dropped for
    that."""
    name = row["record_id"]
    if name in same.original:
        word = f"duplicate_of:{same.original[name].replace(';', '_')}"
        row["defects"] = ";".join(filter(None, (row["defects"], word)))
    if name in same.dropped:
        row.update(kept="no", windows=0, beats=0, reason=same.dropped[name])


def _unique_uids(out: Path, planned: list[Shard]) -> dict[str, int]:
    """New uids, {"record_id#window": uid}, for windows whose hash another window already has."""
    uids = [np.array([e[2] for e in part(out, shard)["examples"]], np.uint32) for shard in planned]
    values, times = np.unique(np.concatenate(uids), return_counts=True)
    repeated, seen, clashes = set(values[times > 1].tolist()), set(), []
    if repeated:
        for shard in planned:
            for record_id, window, uid, _ in part(out, shard)["examples"]:
                if uid in seen:
                    clashes.append((record_id, window))
                if uid in repeated:
                    seen.add(uid)
    rehash: dict[str, int] = {}
    new: set[int] = set()
    for record_id, window in clashes:
        attempt = 1
        while (uid := shards.uid_of(record_id, window, attempt)) in new or _holds(values, uid):
            attempt += 1
        new.add(uid)
        rehash[f"{record_id}#{window}"] = uid
    return rehash


def _holds(ordered: np.ndarray, value: int) -> bool:
    place = int(np.searchsorted(ordered, value))
    return place < len(ordered) and int(ordered[place]) == value


def _apply(
    out: Path, file: str, examples: list, rehash: dict[str, int], leave_out: Container[str]
) -> None:
    """Rewrites a shard if some of its windows get a new uid or are left out."""
    new = [rehash.get(f"{record_id}#{window}") for record_id, window, *_ in examples]
    stays = [record_id not in leave_out for record_id, *_ in examples]
    if any(uid is not None for uid in new) or not all(stays):
        old = shards.iterate_shard(out / file)
        todo = ((raw, uid) for raw, uid, stay in zip(old, new, stays, strict=True) if stay)
        write_shard(
            out, file, (raw if uid is None else shards.with_uid(raw, uid) for raw, uid in todo)
        )


def _file_info(out: Path, file: str, examples: list, rehash: dict[str, int]) -> dict:
    """What dataset.json says of a shard."""
    first = None
    if examples:
        record_id, window, uid, _ = examples[0]
        first = rehash.get(f"{record_id}#{window}", uid)
    size = (out / file).stat().st_size
    sha256 = shards.file_sha256(out / file)
    return {
        "file": file,
        "examples": len(examples),
        "bytes": size,
        "sha256": sha256,
        "first_uid": first,
    }


def _write_counts(out: Path, split: str, counts: np.ndarray) -> str:
    """Writes the beats per example of a split; returns the checksum of the file."""
    buffer = io.BytesIO()
    np.save(buffer, counts)
    write_file(out, shards.counts_file(split), buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def _write_tfds(job: Job, metadata: dict) -> None:
    """features.json and dataset_info.json, with which tfds.builder_from_directory opens the
    directory."""
    import tensorflow_datasets as tfds  # imported here: nothing else needs it

    folder = job.out / PARTS / "tfds"
    folder.mkdir(exist_ok=True)
    for values in metadata["splits"].values():
        # tfds takes the name and the splits from files in the folder
        (folder / values["shards"][0]["file"]).touch()
    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=values["shard_lengths"],
            num_bytes=sum(shard["bytes"] for shard in values["shards"]),
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir=folder,
                dataset_name=metadata["corpus"],
                split=split,
                filetype_suffix="array_record",
            ),
        )
        for split, values in metadata["splits"].items()
    ]
    spec = shards.features(job.preprocess.beat_samples, job.store_signal)
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=spec,
        split_infos=infos,
        version=f"{shards.FORMAT}.0.0",
        check_data=False,
    )
    for file in sorted(folder.glob("*.json")):
        os.replace(file, job.out / file.name)


def repair(job: Job, metadata: dict, rebuilt: list[Shard]) -> dict:
    """Brings rebuilt shards of a finished directory to the state in dataset.json, and writes lost
    small files again."""
    for shard in rebuilt:
        examples = part(job.out, shard)["examples"]
        _apply(
            job.out,
            shard.file,
            examples,
            metadata["uid_rehash"],
            set(metadata["duplicates"]["dropped"]),
        )
        (expected,) = (
            s for s in metadata["splits"][shard.split]["shards"] if s["file"] == shard.file
        )
        if shards.file_sha256(job.out / shard.file) != expected["sha256"]:
            raise InputError(
                f"{job.out / shard.file}: rebuilt, but not as it was:"
                " the raw records or the code have changed since; build into a new folder"
            )
    for split, values in metadata["splits"].items():
        path = job.out / shards.counts_file(split)
        if not path.is_file() or shards.file_sha256(path) != values["beat_counts_sha256"]:
            raws = (
                raw
                for shard in values["shards"]
                for raw in shards.iterate_shard(job.out / shard["file"])
            )
            counts = [len(shards.decode(raw, job.preprocess.beat_samples)["start"]) for raw in raws]
            _write_counts(job.out, split, np.array(counts, np.int32))
    _write_tfds(job, metadata)
    return metadata


def _reason_kind(reason: str) -> str:
    """A reason without what is particular to one record (files, numbers), for counting."""
    without_copy = re.sub(r"(?<=^the same signal as )record .* (?=in split)", "a record ", reason)
    without_files = re.sub(r"\S*/\S*|\S+\.(dat|hea|mat)\b", "...", without_copy.split(";")[0])
    return re.sub(r"\d+(\.\d+)?", "N", without_files)
