"""Builds a dataset directory from a corpus: records -> windows of beats -> ArrayRecord shards, and a ledger of it all.

    python -m data_prep.build --corpus=ptbxl --raw=/data/ptbxl --out=/data/shards/ptbxl --workers=8

The plan (which record goes to which shard, and every option) is fixed first and saved. Each shard is then built by
itself, under a temporary name, and renamed when it is whole. So the same command gives the same bytes with any number
of workers, goes on after a crash, and repairs a finished directory in which a file was lost or damaged. A record that
cannot be used never stops a build: it goes to ledger.csv with its reason. Every record is there, with all defects that
were found (see quality.py) and a hash of its signal, by which records with the same signal are known.

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
from collections.abc import Iterator
from pathlib import Path

from data_prep import beam_runner, pool, shards
from data_prep.assemble import PARTS, Job, Shard, disk_full, finish, part, repair, to_json, write_file
from data_prep.errors import InputError, run_command
from data_prep.preprocess import Preprocess
from data_prep.progress import progress_bar
from data_prep.readers import CORPORA, Corpus, apply_splits, open_corpus
from data_prep.shard_build import build_shard
from data_prep.storage import require_local

BUILD_VERSION = 2  # of what a build records beside the shards; an unfinished build of another version starts again
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
    detectors: bool = True,
    duplicates: str = "drop",
    beam_options: list[str] | None = None,
) -> dict:
    """Builds, continues or repairs the dataset directory `out`; returns the content of its dataset.json.

    `beam_options` (pipeline options, may be empty) builds the shards with Apache Beam instead of local processes.
    """
    for name, value in (("workers", workers), ("shard_records", shard_records), ("limit", limit)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; give a whole number of 1 or more")
    if windows not in ("first", "all"):
        raise InputError(f"windows is '{windows}'; give 'first' or 'all'")
    if duplicates not in ("drop", "keep"):
        raise InputError(f"duplicates is '{duplicates}'; give 'drop' or 'keep'")
    require_local(out)
    job = Job(Path(out).absolute(), preprocess, windows, store_signal, detectors, duplicates)
    plan, planned = make_plan(corpus, job, shard_records, limit)
    _check_directory(job.out, plan)
    try:
        (job.out / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{job.out}: cannot write there ({error.strerror}); give another --out") from None
    with _only_build(job.out), disk_full(job.out):
        write_file(job.out, shards.PLAN_FILE, to_json(plan))
        before = shards.read_metadata(job.out) if (job.out / shards.METADATA_FILE).is_file() else None
        if before is not None and not _ledger_whole(job.out, before):
            before = None  # what was dropped, and why, is known only from the records
        if before is not None:
            planned = [shard for shard in planned if shard.split in before["splits"]]
        todo = [shard for shard in planned if not _finished(job.out, shard, before)]
        total, left = (sum(len(shard.refs) for shard in some) for some in (planned, todo))
        with progress_bar(total=total, initial=total - left, unit="rec", disable=not progress) as bar:
            slim = copy.copy(corpus)
            slim.refs, slim.duplicates = [], {}  # a process gets the records of a shard with the shard
            if beam_options is not None and todo:
                beam_runner.run(build_shard, (slim, job), todo, beam_options)
                bar.update(left)
            elif workers == 1:
                for shard in todo:
                    build_shard(corpus, job, shard, bar.update)
            elif todo:
                pool.run(build_shard, (slim, job), todo, workers, bar)
        metadata = finish(job, plan, planned) if before is None else repair(job, before, todo)
        shutil.rmtree(job.out / PARTS)
    return metadata


def make_plan(corpus: Corpus, job: Job, shard_records: int, limit: int | None) -> tuple[dict, list[Shard]]:
    """Which record goes where, as the JSON that is saved and as shards."""
    refs = corpus.refs if limit is None else corpus.refs[:limit]
    refs = [r if r.patient_id else dataclasses.replace(r, patient_id=r.record_id) for r in refs]
    if not refs:
        raise InputError(f"corpus '{corpus.name}': no record found; check the folder given as --raw")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", corpus.name):
        raise InputError(f"corpus name '{corpus.name}': use lower-case letters, digits and _ (it names the files)")
    seen: set[str] = set()
    for ref in refs:
        if ref.record_id in seen:
            text = f"record '{ref.record_id}' is listed more than once; ids must be unique"
            raise InputError(f"corpus '{corpus.name}': {text}")
        seen.add(ref.record_id)
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
    listing = hashlib.sha256()
    for ref in (ref for shard in planned for ref in shard.refs):
        listing.update(to_json([ref.record_id, ref.patient_id, ref.split, ref.labels]))
    plan = {
        "format": shards.FORMAT,
        "build_version": BUILD_VERSION,
        "corpus": corpus.name,
        "preprocess": job.preprocess.to_dict(),
        "preprocess_hash": job.preprocess.hash(),
        "windows": job.windows,
        "store_signal": job.store_signal,
        "detectors": job.detectors,
        "duplicates": job.duplicates,
        "shard_records": shard_records,
        "split_rule": corpus.split_rule if any(r.split for r in refs) else "80/10/10 by sha256 of the patient id",
        "tasks": {task: list(classes) for task, classes in corpus.tasks.items()},
        "records": len(refs),
        "records_sha256": listing.hexdigest(),  # ids, patients, splits and labels
        "shards": {shard.file: len(shard.refs) for shard in planned},
    }
    return json.loads(to_json(plan)), planned


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


def _ledger_whole(out: Path, metadata: dict) -> bool:
    path = out / shards.LEDGER_FILE
    return path.is_file() and shards.file_sha256(path) == metadata.get("ledger_sha256")


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
    for name in [key for key in plan if key not in ("preprocess", "preprocess_hash", "records_sha256", "shards")]:
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


def parse_pairs(flag: str, pairs: list[str]) -> dict[str, str]:
    """'FIELD=VALUE' texts as a dictionary."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--{flag}={pair}: write FIELD=VALUE, for example --config=peaks=vcg")
    return dict(pair.split("=", 1) for pair in pairs)


def parse_overrides(pairs: list[str]) -> Preprocess:
    """Preprocess with fields changed by 'FIELD=VALUE' texts."""
    return Preprocess.from_dict(parse_pairs("config", pairs))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.build",
        description="Build ArrayRecord shards of beats from ECG records. The same command again goes on after a "
        "crash, and repairs damaged files of a finished dataset.",
        epilog="With --runner=beam, all other flags are Beam pipeline options, for example --runner=beam "
        "--beam_runner=FlinkRunner --flink_master=host:8081; --raw and --out must be folders that all workers see.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--corpus", required=True, help=f"kind of raw data: {', '.join(CORPORA)}")
    add("--raw", required=True, help="folder of the raw records")
    add("--out", required=True, help="dataset directory to write")
    add("--workers", type=int, default=1, help="processes (default 1; any number gives the same files)")
    add("--runner", choices=("local", "beam"), default="local", help="local processes, or an Apache Beam pipeline")
    add("--beam_runner", default="DirectRunner", help="the Beam runner (default DirectRunner)")
    add("--windows", choices=("first", "all"), default="first", help="windows kept of a long record")
    add("--splits", metavar="CSV", help="your own splits: columns record_id or patient_id, and split")
    add("--option", action="append", default=[], metavar="FIELD=VALUE", help="an option of the corpus; repeatable")
    add("--config", action="append", default=[], metavar="FIELD=VALUE", help="a preprocessing field; repeatable")
    add("--store_signal", action="store_true", help="also store the whole normalised signal")
    add(
        "--duplicates",
        choices=("drop", "keep"),
        default="drop",
        help="one signal in two splits: drop the training copy",
    )
    add("--no_detectors", action="store_true", help="do not compare two beat detectors for the ledger (saves time)")
    add("--shard_records", type=int, default=1024, help="input records per shard (default 1024)")
    add("--limit", type=int, help="only the first N records of the corpus")
    args, rest = parser.parse_known_args(argv)
    if rest and args.runner == "local":
        parser.error(f"unknown flag {rest[0]}")
    preprocess = parse_overrides(args.config)
    corpus = open_corpus(args.corpus, args.raw, parse_pairs("option", args.option))
    if args.splits:
        corpus = apply_splits(corpus, args.splits)
    metadata = build(
        corpus,
        args.out,
        preprocess,
        workers=args.workers,
        windows=args.windows,
        store_signal=args.store_signal,
        shard_records=args.shard_records,
        limit=args.limit,
        detectors=not args.no_detectors,
        duplicates=args.duplicates,
        beam_options=[f"--runner={args.beam_runner}", *rest] if args.runner == "beam" else None,
    )
    print(shards.describe(metadata))
    for note in corpus.notes:
        print(f"note          {note}")
    print(f"ledger        {Path(args.out) / shards.LEDGER_FILE}")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
