"""The plan of a build, fixed before any work: which record goes to which shard, and every
option."""

import collections
import dataclasses
import hashlib
import json
import re

from data_prep.base.errors import InputError
from data_prep.base.lottery import SPLIT_RULE, split_of_patient
from data_prep.base.words import SPLITS
from data_prep.corpora.corpus import Corpus
from data_prep.dataset import shards
from data_prep.dataset.one_shard import Job, Shard, to_json

# of the files in `parts`; an unfinished build of another version starts again
BUILD_VERSION = 3


def make_plan(
    corpus: Corpus, job: Job, shard_records: int, limit: int | None
) -> tuple[dict, list[Shard]]:
    """Which record goes to which shard: as the JSON that is saved, and as a list of shards."""
    refs = corpus.refs if limit is None else corpus.refs[:limit]
    refs = [r if r.patient_id else dataclasses.replace(r, patient_id=r.record_id) for r in refs]
    if not refs:
        raise InputError(
            f"corpus '{corpus.name}': no record found; check the folder given as --raw"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", corpus.name):
        raise InputError(
            f"corpus name '{corpus.name}':"
            " use lower-case letters, digits and _ (it names the files)"
        )
    # records by split, checked on the way
    seen: set[str] = set()
    for ref in refs:
        if ref.record_id in seen:
            text = f"record '{ref.record_id}' is listed more than once; ids must be unique"
            raise InputError(f"corpus '{corpus.name}': {text}")
        seen.add(ref.record_id)
    by_split = collections.defaultdict(list)
    for ref in refs:
        # includes what Python makes of file names that are not UTF-8
        if not ref.record_id.isprintable():
            raise InputError(
                f"record {ref.record_id!a}: unprintable characters in its name; rename the file"
            )
        split = ref.split or split_of_patient(ref.patient_id)
        if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
            raise InputError(
                f"record '{ref.record_id}': split '{split}'; use lower-case letters, digits and _"
            )
        for task, classes in ref.labels.items():
            unknown = sorted(set(classes) - set(corpus.tasks.get(task, ())))
            if unknown:
                raise InputError(
                    f"record '{ref.record_id}': '{unknown[0]}' is not a class of task '{task}'"
                )
        by_split[split].append(ref)
    # shards of each split
    planned = []
    for split in sorted(
        by_split, key=lambda s: (SPLITS.index(s) if s in SPLITS else len(SPLITS), s)
    ):
        of_split = by_split[split]
        chunks = [of_split[i : i + shard_records] for i in range(0, len(of_split), shard_records)]
        names = [shards.shard_name(corpus.name, split, i, len(chunks)) for i in range(len(chunks))]
        planned += [Shard(name, split, chunk) for name, chunk in zip(names, chunks, strict=True)]
    # the plan as it is saved, with a checksum of the listing
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
        "split_rule": corpus.split_rule if any(r.split for r in refs) else SPLIT_RULE,
        "tasks": {task: list(classes) for task, classes in corpus.tasks.items()},
        "records": len(refs),
        "records_sha256": listing.hexdigest(),  # ids, patients, splits and labels
        "shards": {shard.file: len(shard.refs) for shard in planned},
    }
    return json.loads(to_json(plan)), planned
