"""Builds a dataset directory from a corpus: records -> windows of beats -> ArrayRecord shards, and a ledger of it all.

    python -m data_prep.build --corpus=ptbxl --raw=/data/ptbxl --out=/data/shards/ptbxl --workers=8

The plan (which record goes to which shard, and every option) is fixed first and saved. Each shard is then built by
itself, under a temporary name, and renamed when it is whole. So the same command gives the same bytes with any number
of workers, goes on after a crash, and repairs a finished directory in which a file was lost or damaged. A record that
cannot be used never stops a build: it goes to ledger.csv with its reason.

dataset.json holds the preprocessing and its hash, the tasks and their classes, what was dropped and why, and for every
split its shards (file, examples, bytes, sha256, first uid), numbers of examples, records, patients and beats, and the
kept records per class (`label_counts`). uids are 32-bit hashes, so among a million records some collide: the later one
(in shard order) is hashed again with a counter, and `uid_rehash` lists such windows.
"""

import argparse
import collections
import contextlib
import copy
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_prep import pool, shards
from data_prep.assemble import PARTS, Job, Shard, disk_full, finish, part, repair, to_json, write_file, write_shard
from data_prep.errors import InputError, run_command
from data_prep.leads import LEADS, mask_leads
from data_prep.preprocess import Preprocess
from data_prep.readers import Corpus, RecordRef, open_corpus

_SPLITS = ("train", "validation", "test")


def split_of_patient(patient_id: str) -> str:
    """80/10/10 by a hash of the patient, so that no patient is in two splits and no list has to be kept."""
    share = int(hashlib.sha256(patient_id.encode()).hexdigest()[:8], 16) / 2**32
    return "train" if share < 0.8 else "validation" if share < 0.9 else "test"


def build(
    corpus: Corpus,
    out: str | os.PathLike,
    preprocess: Preprocess,
    *,
    workers: int = 1,
    windows: str = "first",
    store_signal: bool = False,
    shard_records: int = 1024,
    limit: int | None = None,
    progress: bool = True,
) -> dict:
    """Builds, continues or repairs the dataset directory `out`; returns the content of its dataset.json."""
    for name, value in (("workers", workers), ("shard_records", shard_records), ("limit", limit)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; give a whole number of 1 or more")
    if windows not in ("first", "all"):
        raise InputError(f"windows is '{windows}'; give 'first' or 'all'")
    job = Job(Path(out), preprocess, windows, store_signal)
    plan, planned = make_plan(corpus, job, shard_records, limit)
    _check_directory(job.out, plan)
    try:
        (job.out / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{job.out}: cannot write there ({error.strerror}); give another --out") from None
    with _only_build(job.out), disk_full(job.out):
        write_file(job.out, shards.PLAN_FILE, to_json(plan))
        before = shards.read_metadata(job.out) if (job.out / shards.METADATA_FILE).is_file() else None
        if before is not None:
            planned = [shard for shard in planned if shard.split in before["splits"]]
        todo = [shard for shard in planned if not _finished(job.out, shard, before)]
        total, left = (sum(len(shard.refs) for shard in some) for some in (planned, todo))
        with tqdm(total=total, initial=total - left, unit="rec", disable=not progress) as bar:
            if workers == 1:
                for shard in todo:
                    build_shard(corpus, job, shard, bar.update)
            elif todo:
                slim = copy.copy(corpus)
                object.__setattr__(slim, "refs", [])  # a process gets the records of a shard with the shard
                pool.run(build_shard, (slim, job), todo, workers, bar)
        metadata = finish(job, plan, planned) if before is None else repair(job, before, todo)
        shutil.rmtree(job.out / PARTS)
    return metadata


def make_plan(corpus: Corpus, job: Job, shard_records: int, limit: int | None) -> tuple[dict, list[Shard]]:
    """Which record goes where, as the JSON that is saved and as shards."""
    refs = [dataclasses.replace(r, patient_id=r.patient_id or r.record_id) for r in list(corpus.refs)[:limit]]
    if not refs:
        raise InputError(f"corpus '{corpus.name}': no record found; check the folder given as --raw")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", corpus.name):
        raise InputError(f"corpus name '{corpus.name}': use lower-case letters, digits and _ (it names the files)")
    repeated = [name for name, n in collections.Counter(r.record_id for r in refs).items() if n > 1]
    if repeated:
        raise InputError(f"corpus '{corpus.name}': record '{repeated[0]}' is listed more than once; ids must be unique")
    by_split = collections.defaultdict(list)
    for ref in refs:
        if not ref.record_id.isprintable():  # also what Python makes of file names that are no UTF-8
            raise InputError(f"record {ref.record_id!a}: unprintable characters in its name; rename the file")
        split = ref.split or split_of_patient(ref.patient_id)
        if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
            raise InputError(f"record '{ref.record_id}': split '{split}'; use lower-case letters, digits and _")
        for task, classes in ref.labels.items():
            unknown = sorted(set(classes) - set(corpus.tasks.get(task, ())))
            if unknown:
                raise InputError(f"record '{ref.record_id}': '{unknown[0]}' is not a class of task '{task}'")
        by_split[split].append(ref)
    planned = []
    for split in sorted(by_split, key=lambda s: (_SPLITS.index(s) if s in _SPLITS else len(_SPLITS), s)):
        of_split = by_split[split]
        chunks = [of_split[i : i + shard_records] for i in range(0, len(of_split), shard_records)]
        names = [shards.shard_name(corpus.name, split, i, len(chunks)) for i in range(len(chunks))]
        planned += [Shard(name, split, chunk) for name, chunk in zip(names, chunks, strict=True)]
    listing = [(r.record_id, r.patient_id, r.split, r.labels) for shard in planned for r in shard.refs]
    plan = {
        "format": shards.FORMAT,
        "corpus": corpus.name,
        "preprocess": job.preprocess.to_dict(),
        "preprocess_hash": job.preprocess.hash(),
        "windows": job.windows,
        "store_signal": job.store_signal,
        "shard_records": shard_records,
        "split_rule": corpus.split_rule if any(r.split for r in refs) else "80/10/10 by sha256 of the patient id",
        "tasks": {task: list(classes) for task, classes in corpus.tasks.items()},
        "records": len(refs),
        "records_sha256": hashlib.sha256(to_json(listing)).hexdigest(),  # ids, patients, splits and labels
        "shards": {shard.file: [r.record_id for r in shard.refs] for shard in planned},
    }
    return json.loads(to_json(plan)), planned


def build_shard(corpus: Corpus, job: Job, shard: Shard, tick: Callable[[], object]) -> None:
    """Builds one shard and, beside it, the ledger rows of its records."""
    spec = shards.features(job.preprocess.beat_samples, job.store_signal)
    records, examples, rows = [], [], []
    for ref in shard.refs:
        try:
            record = corpus.load(ref)
            kept = job.preprocess.prepare(record.signal, record.rate, record.leads)
            kept = kept[:1] if job.windows == "first" else kept
            if not all(np.isfinite(w.beats).all() for w in kept):
                raise InputError("not finite after preprocessing")
            if not kept:
                raise InputError("no window with a beat")
        except Exception as error:  # whatever one record does, the others are built
            text = " ".join(str(error).split())[:300].removeprefix(f"record {ref.record_id}: ")
            reason = text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
            rows.append((ref.record_id, ref.patient_id, shard.split, "no", 0, 0, "", reason, ""))
            tick()
            continue
        for window in kept:
            example = _example(ref, window, job.store_signal)
            records.append(shards.encode(spec, example))
            examples.append((ref.record_id, window.window, example["uid"], len(window.beats)))
        missing = ~np.all([mask_leads(w.lead_mask) for w in kept], axis=0)
        common = [d for d in kept[0].defects if all(d in w.defects for w in kept)]
        defects = common + [f"w{w.window}:{d}" for w in kept for d in w.defects if d not in common]
        names = " ".join(lead for lead, gone in zip(LEADS, missing, strict=True) if gone)
        beats = sum(len(w.beats) for w in kept)
        rows.append((ref.record_id, ref.patient_id, shard.split, "yes", len(kept), beats, names, "", ";".join(defects)))
        tick()
    write_shard(job.out, shard.file, records)
    part = {"sha256": shards.file_sha256(job.out / shard.file), "examples": examples, "rows": rows}
    write_file(job.out, f"{PARTS}/{shard.file}.json", to_json(part))


def _example(ref: RecordRef, window, store_signal: bool) -> dict:
    example = {
        "beats": window.beats.astype(np.float16),
        "start": window.start.astype(np.int32),
        "length": window.length.astype(np.int32),
        "complete": window.complete.astype(np.bool_),
        "offset": window.offset.astype(np.float32),
        "scale": window.scale.astype(np.float32),
        "lead_mask": window.lead_mask,
        "uid": shards.uid_of(ref.record_id, window.window),
        "window": window.window,
        "num_samples": window.signal.shape[1],
        "record_id": ref.record_id,
        "patient_id": ref.patient_id,
        "labels": json.dumps(ref.labels, sort_keys=True, ensure_ascii=False),
        "defects": ";".join(window.defects),
    }
    return example | ({"signal": window.signal.astype(np.float16)} if store_signal else {})


def _finished(out: Path, shard: Shard, metadata: dict | None) -> bool:
    """Whether the shard is there, byte for byte as when it was built."""
    if not (out / shard.file).is_file():
        return False
    if metadata is not None:
        known = {s["file"]: s["sha256"] for s in metadata["splits"][shard.split]["shards"]}
        expected = known[shard.file]
    elif (out / PARTS / f"{shard.file}.json").is_file():
        expected = part(out, shard)["sha256"]
    else:
        return False
    return shards.file_sha256(out / shard.file) == expected


def _check_directory(out: Path, plan: dict) -> None:
    """Refuses a folder that holds something else, or the build of something else."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give a folder as --out")
    path = out / shards.PLAN_FILE
    if not path.is_file():
        if out.is_dir() and {p.name for p in out.iterdir()} - {PARTS}:
            raise InputError(f"{out}: not empty and not a build of ours (no {shards.PLAN_FILE}); give a new folder")
        return
    try:
        before = json.loads(path.read_bytes())
    except ValueError:
        raise InputError(f"{path}: damaged; delete the folder {out} and build again") from None
    if before == plan:
        return
    different = []
    for name in ("format", "corpus", "windows", "store_signal", "shard_records", "split_rule", "records", "tasks"):
        if before.get(name) != plan[name]:
            different.append(f"{name} was {before.get(name)!r}, now {plan[name]!r}")
    ours, theirs = plan["preprocess"], before.get("preprocess", {})
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            different.append(f"preprocessing {name} was {theirs.get(name)!r}, now {ours.get(name)!r}")
    if not different and before.get("preprocess_hash") != plan["preprocess_hash"]:
        different.append("the version of the preprocessing code")
    if not different:
        different.append("the list of records, their patients, splits or labels")
    raise InputError(f"{out}: holds another build: {'; '.join(different)}; give a new folder or delete this one")


@contextlib.contextmanager
def _only_build(out: Path) -> Iterator[None]:
    """One build in a folder at a time; the lock goes with the process, however it ends."""
    with open(out / PARTS / "lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{out}: another build is running in this folder; wait for it or stop it") from None
        except OSError:
            pass  # a file system without locks: the build works, only two at once are not noticed
        yield


def parse_overrides(pairs: list[str]) -> Preprocess:
    """Preprocess with fields changed by 'FIELD=VALUE' texts."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--config={pair}: write FIELD=VALUE, for example --config=peaks=vcg")
    return Preprocess.from_dict(dict(pair.split("=", 1) for pair in pairs))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.build",
        description="Build ArrayRecord shards of beats from ECG records. The same command again goes on after a "
        "crash, and repairs damaged files of a finished dataset.",
    )
    parser.add_argument("--corpus", required=True, help="kind of raw data: wfdb, synthetic, ptbxl, ...")
    parser.add_argument("--raw", required=True, help="folder of the raw records")
    parser.add_argument("--out", required=True, help="dataset directory to write")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1; any number gives the same files)")
    parser.add_argument("--windows", choices=("first", "all"), default="first", help="windows kept of a long record")
    parser.add_argument("--store_signal", action="store_true", help="also store the whole normalised signal")
    parser.add_argument("--shard_records", type=int, default=1024, help="input records per shard (default 1024)")
    parser.add_argument("--limit", type=int, help="only the first N records of the corpus")
    parser.add_argument(
        "--config", action="append", default=[], metavar="FIELD=VALUE", help="change a preprocessing field; repeatable"
    )
    args = parser.parse_args(argv)
    preprocess = parse_overrides(args.config)
    metadata = build(
        open_corpus(args.corpus, args.raw),
        args.out,
        preprocess,
        workers=args.workers,
        windows=args.windows,
        store_signal=args.store_signal,
        shard_records=args.shard_records,
        limit=args.limit,
    )
    print(shards.describe(metadata))
    print(f"ledger        {Path(args.out) / shards.LEDGER_FILE}")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
