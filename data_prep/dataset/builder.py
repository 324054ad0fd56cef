"""Builds, continues or repairs a dataset directory."""

import copy
import json
import os
import shutil
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import require_local, whole_file
from data_prep.base.lock import only_one, refuse_if_held, share_folder
from data_prep.base.progress import progress_bar
from data_prep.corpora.corpus import Corpus
from data_prep.dataset import beam_runner, pool, shards
from data_prep.dataset.finish import finish, repair
from data_prep.dataset.one_shard import (
    PARTS,
    Job,
    Shard,
    build_shard,
    disk_full,
    part,
    to_json,
    without_record,
    write_file,
)
from data_prep.dataset.plan import make_plan
from data_prep.ecg.preprocess import Preprocess

ANOTHER = "another build is running in this folder"
OTHER_SHARES = "a share of another number of shares is being built here"


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
    share: tuple[int, int] | None = None,
) -> dict | None:
    """Builds, continues or repairs the dataset directory `out`; returns the content of its
    dataset.json.

    With `beam_options` (a list of pipeline options, which may be empty), Apache Beam builds the
    shards instead of local processes.

    With `share`, (2, 8) say, only every eighth shard is built, from the second on, and None is
    returned until the build is finished. Processes with other shares, on this machine or others
    that see the folder, build the rest at the same time; a build without `share` then compares all
    shards with their checksums, builds what is missing, and writes everything that needs all
    shards.
    """
    # check the arguments and the directory
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
    if share is not None and (job.out / shards.METADATA_FILE).is_file():
        return shards.read_metadata(job.out)  # finished, so that there is no share to do
    try:
        (job.out / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{job.out}: cannot write there ({error.strerror}); give another --out"
        ) from None
    if share is not None:
        return _build_share(corpus, job, plan, planned, share, workers, progress)
    with only_one(job.out / PARTS / "lock", ANOTHER), disk_full(job.out):
        for other in sorted((job.out / PARTS).glob("share-*/lock")):
            refuse_if_held(other, ANOTHER)
        # what is missing: all shards of a new build, damaged ones of a finished one
        write_file(job.out, shards.PLAN_FILE, to_json(plan))
        before = (
            shards.read_metadata(job.out) if (job.out / shards.METADATA_FILE).is_file() else None
        )
        if before is not None and not _ledger_whole(job.out, before):
            before = None  # what was dropped, and why, has to be found again from the records
        if before is not None:
            planned = [shard for shard in planned if shard.split in before["splits"]]
        todo = [shard for shard in planned if not _finished(job.out, shard, before)]
        _build_shards(corpus, job, planned, todo, workers, progress, beam_options)
        metadata = finish(job, plan, planned) if before is None else repair(job, before, todo)
        shutil.rmtree(job.out / PARTS)
    return metadata


def _build_shards(
    corpus: Corpus,
    job: Job,
    planned: list[Shard],
    todo: list[Shard],
    workers: int,
    progress: bool,
    beam_options: list[str] | None = None,
) -> None:
    """Builds those of the planned shards that are to do, in this process, in several, or with
    Beam."""
    total, left = (sum(len(shard.refs) for shard in some) for some in (planned, todo))
    with progress_bar(total=total, initial=total - left, unit="rec", disable=not progress) as bar:
        slim = copy.copy(corpus)
        # each shard brings its records to the process that builds it
        slim.refs, slim.duplicates = [], {}
        if beam_options is not None and todo:
            beam_runner.run(build_shard, (slim, job), todo, beam_options)
            bar.update(left)
        elif workers == 1:
            for shard in todo:
                build_shard(corpus, job, shard, bar.update)
        elif todo:
            pool.run(build_shard, (slim, job), todo, workers, bar, without_record)


def _build_share(
    corpus: Corpus,
    job: Job,
    plan: dict,
    planned: list[Shard],
    share: tuple[int, int],
    workers: int,
    progress: bool,
) -> None:
    """Builds one share of the shards, beside processes that build the others."""
    number, count = share
    parts = job.out / PARTS
    mine = share_folder(parts, share)
    with only_one(mine / "lock", ANOTHER), disk_full(job.out):
        refuse_if_held(parts / "lock", ANOTHER)
        for other in sorted(parts.glob("share-*/lock")):
            if not other.parent.name.endswith(f"-of-{count}"):
                refuse_if_held(other, OTHER_SHARES)
        if not (job.out / shards.PLAN_FILE).is_file():
            with whole_file(job.out / shards.PLAN_FILE, mine) as temporary:
                temporary.write_bytes(to_json(plan))
        own = planned[number - 1 :: count]
        todo = [shard for shard in own if not _finished(job.out, shard, None)]
        _build_shards(corpus, job, own, todo, workers, progress)


def _finished(out: Path, shard: Shard, metadata: dict | None) -> bool:
    """Whether the shard is there, byte for byte as it was built."""
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
    """Whether the ledger is there as it was written."""
    path = out / shards.LEDGER_FILE
    return path.is_file() and shards.file_sha256(path) == metadata.get("ledger_sha256")


def _check_directory(out: Path, plan: dict) -> None:
    """Refuses a folder that holds something else, or another build."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give a folder as --out")
    # listed before the plan is looked for: another process may be starting the same build
    there = {p.name for p in out.iterdir()} if out.is_dir() else set()
    path = out / shards.PLAN_FILE
    if not path.is_file():
        if there - {PARTS}:
            raise InputError(
                f"{out}: not empty and not a build of ours (no {shards.PLAN_FILE});"
                " give a new folder"
            )
        return
    try:
        before = json.loads(path.read_bytes())
    except ValueError:
        raise InputError(f"{path}: damaged; delete the folder {out} and build again") from None
    if before == plan:
        return
    # what is different, in words
    different = []
    for name in [
        key
        for key in plan
        if key not in ("preprocess", "preprocess_hash", "records_sha256", "shards")
    ]:
        if before.get(name) != plan[name]:
            different.append(f"{name} was {before.get(name)!r}, now {plan[name]!r}")
    ours, theirs = plan["preprocess"], before.get("preprocess", {})
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            different.append(
                f"preprocessing {name} was {theirs.get(name)!r}, now {ours.get(name)!r}"
            )
    if not different and before.get("preprocess_hash") != plan["preprocess_hash"]:
        different.append("the version of the preprocessing code")
    if not different:
        different.append("the list of records, their patients, splits or labels")
    raise InputError(
        f"{out}: holds another build: {'; '.join(different)}; give a new folder or delete this one"
    )
