"""From the records of one shard to its file: read, prepare, judge, encode. Every runner calls the
same function.

A shard depends on its own list of records alone, so it does not matter which process or machine
builds it, or in which order. What the end of the build needs to know is written to
`parts/<shard>.json`.
"""

import contextlib
import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import whole_file
from data_prep.base.words import in_all, printable
from data_prep.corpora.corpus import Corpus
from data_prep.dataset import shards
from data_prep.ecg import quality
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.preprocess import Preprocess, Unusable, Window, left_out_words
from data_prep.ecg.record import RecordRef

PARTS = "parts"
# what is wrong with a disk -> the system's errors that say so, and what to do
DISKS = {
    "disk full": ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    "read-only": ((errno.EROFS,), "make it writable"),
    "cannot be reached": ((errno.EIO, errno.ESTALE, errno.ENOTCONN), "mount it again"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """What every shard is built with."""

    out: Path
    preprocess: Preprocess
    windows: str  # 'first' | 'all'
    store_signal: bool
    detectors: bool = True  # compare the beats of two detectors, for the ledger
    # a signal in two splits: 'drop' it from all but one of them, or 'keep' it
    duplicates: str = "drop"


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard that is planned: its file, its split and its records."""

    file: str
    split: str
    refs: list[RecordRef]
    # number of a record that is not to be read again -> why
    deadly: dict[int, str] = dataclasses.field(default_factory=dict)


def without_record(shard: Shard, number: int, how: str) -> Shard:
    """The shard without a record that ended its worker process every time it was read."""
    if number >= len(shard.refs):
        raise InputError(
            f"the worker process that wrote {shard.file} died ({how}): run the same command again,"
            " with fewer workers if memory is short"
        )
    why = f"its worker process died twice ({how}{', out of memory?' if how == 'SIGKILL' else ''})"
    return dataclasses.replace(shard, deadly=shard.deadly | {number: why})


def to_json(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def write_file(out: Path, name: str, data: bytes) -> None:
    """Writes a file of the directory whole or not at all."""
    with open_file(out, name) as file:
        file.buffer.write(data)


@contextlib.contextmanager
def open_file(out: Path, name: str) -> Iterator[TextIO]:
    """A text file of the directory to write, which appears whole or not at all."""
    with (
        whole_file(out / name, out / PARTS) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_shard(out: Path, file: str, records: Iterable[bytes]) -> None:
    """Writes a shard of the directory whole or not at all."""
    with disk_full(out), whole_file(out / file, out / PARTS) as temporary:
        shards.write_shard(temporary, records)


def part(out: Path, shard: Shard) -> dict:
    """What was noted of a finished shard: its checksum, examples and ledger rows."""
    return json.loads((out / PARTS / f"{shard.file}.json").read_bytes())


@contextlib.contextmanager
def disk_full(out: Path) -> Iterator[None]:
    """Reports a disk that is full, read-only or gone in one line; ArrayRecord raises a RuntimeError
    for it, Python an OSError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None:
            number = getattr(cause, "errno", None)
            for what, (numbers, remedy) in DISKS.items():
                words = "|".join(os.strerror(one) for one in numbers)
                if number in numbers or re.search(words, str(cause), re.IGNORECASE):
                    raise InputError(
                        f"{out}: {what}; {remedy} and run the same command again,"
                        " finished shards are kept"
                    ) from error
            cause = cause.__context__
        raise


@dataclasses.dataclass
class Outcome:
    """What became of one record."""

    windows: list[Window]
    defects: list[str]  # of a dropped record; those of a kept one are in its windows
    reason: str = ""  # why it was dropped
    signal_hash: str = ""
    rate: float = 0.0  # of the file, in Hz; 0 if it could not be read
    seconds: float = 0.0  # of the whole record


def build_shard(corpus: Corpus, job: Job, shard: Shard, tick: Callable[[], object]) -> None:
    """Builds one shard and notes the ledger rows of its records; one record at a time is in
    memory."""
    examples, rows, recorded = [], [], []
    write_shard(job.out, shard.file, _encoded(corpus, job, shard, tick, examples, rows, recorded))
    part = {
        "sha256": shards.file_sha256(job.out / shard.file),
        "examples": examples,
        "rows": rows,
        "recorded": recorded,  # (Hz, seconds) of each row
    }
    write_file(job.out, f"{PARTS}/{shard.file}.json", to_json(part))


def _encoded(
    corpus: Corpus,
    job: Job,
    shard: Shard,
    tick: Callable,
    examples: list,
    rows: list,
    recorded: list,
) -> Iterator[bytes]:
    """The examples of a shard as bytes; fills the three lists on the way."""
    spec = shards.features(job.preprocess.beat_samples, job.store_signal)
    for number, ref in enumerate(shard.refs):
        if number in shard.deadly:
            outcome = Outcome([], ["crashed"], shard.deadly[number])
        else:
            outcome = examine(corpus, ref, job)
        for window in outcome.windows:
            example = _example(ref, window, job.store_signal)
            examples.append((ref.record_id, window.window, example["uid"], len(window.beats)))
            yield shards.encode(spec, example)
        rows.append(_ledger_row(ref, shard.split, outcome))
        recorded.append((outcome.rate, outcome.seconds))
        tick()


def examine(corpus: Corpus, ref: RecordRef, job: Job) -> Outcome:
    """Reads, prepares and judges one record; whatever is wrong with it, an Outcome is returned."""
    defects, digest, record = [], "", None
    kind = "unreadable"
    try:
        record = corpus.load(ref)
        kind = "failed"
        digest = quality.signal_hash(record.signal, record.rate, record.leads)
        defects = [*record.defects, *quality.record_defects(record.signal, record.leads)]
        windows = job.preprocess.prepare(record.signal, record.rate, record.leads)
        windows = _judge(windows, record.leads, job)
        for window in windows:
            window.defects = defects + window.defects
        return Outcome(
            windows, [], "", digest, float(record.rate), len(record.signal) / float(record.rate)
        )
    except Exception as error:  # whatever is wrong with one record, the others are built
        reason = reason_of(error, ref)
        kind = error.kind if isinstance(error, Unusable) else kind
        if digest:
            defects += quality.dropped_defects(record.signal, record.leads)
        return Outcome([], [kind, *defects], reason, digest)


def reason_of(error: Exception, ref: RecordRef) -> str:
    """Why a record was dropped, on one line."""
    text = " ".join(str(error).split())[:300].removeprefix(f"record {ref.record_id}: ")
    return printable(text if isinstance(error, InputError) else f"{type(error).__name__}: {text}")


def _judge(windows: list[Window], leads: list[str], job: Job) -> list[Window]:
    """The windows to keep, with what is wrong with each."""
    kept, dead = [], []
    for window in windows:
        if job.windows == "first" and kept:
            break
        if is_alive(window, leads, job):
            kept.append(window)
        else:
            dead.append((window.window, "dead"))
    if not kept:
        raise dead_record()
    words = left_out_words(dead)
    for window in kept:
        window.defects = words + window.defects
    return kept


def is_alive(window: Window, leads: list[str], job: Job) -> bool:
    """Whether a window shows a heartbeat; if so, what is wrong with it is added to it."""
    mv = window.millivolts()
    if quality.is_dead(mv, window.rate, leads):
        return False
    if not np.isfinite(window.beats).all():
        raise InputError("not finite after preprocessing")
    window.defects = window.defects + quality.window_defects(
        window, mv, job.preprocess, job.detectors
    )
    return True


def dead_record() -> Unusable:
    """A record none of whose windows shows a heartbeat."""
    return Unusable(
        "dead_record",
        f"dead record: most of it moves by less than {quality.DEAD_MV:g} mV in every lead",
    )


def _ledger_row(ref: RecordRef, split: str, outcome: Outcome) -> tuple:
    """The values of LEDGER_COLUMNS."""
    windows, names, words = outcome.windows, "", []
    if windows:
        missing = ~np.all([mask_leads(w.lead_mask) for w in windows], axis=0)
        names = " ".join(lead for lead, gone in zip(LEADS, missing, strict=True) if gone)
        common = in_all([w.defects for w in windows])
        words = common + [f"w{w.window}:{d}" for w in windows for d in w.defects if d not in common]
    beats = sum(len(w.beats) for w in windows)
    defects = ";".join(outcome.defects + words)
    kept = "yes" if windows else "no"
    return (
        ref.record_id,
        ref.patient_id,
        split,
        kept,
        len(windows),
        beats,
        names,
        outcome.reason,
        defects,
        outcome.signal_hash,
    )


def _example(ref: RecordRef, window: Window, store_signal: bool) -> dict:
    """The features of one window."""
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
