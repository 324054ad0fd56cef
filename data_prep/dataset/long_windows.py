"""Windows of records of hours and days, judged as those of other records are, in constant memory
(see data_prep/ecg/long_record.py)."""

import contextlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from data_prep.corpora.corpus import Corpus
from data_prep.dataset.one_shard import Job, dead_record, is_alive
from data_prep.ecg.leads import canonical
from data_prep.ecg.long_record import LONG_SECONDS, LongRecord, prepare_in_chunks, survey
from data_prep.ecg.preprocess import Window, left_out_words, no_window
from data_prep.ecg.record import RecordRef

LARGE = 2**20  # bytes: a smaller file is read as a whole, however long its record is
FIRST = 1000  # samples that are read to see how long a record is


def open_long(corpus: Corpus, ref: RecordRef) -> LongRecord | None:
    """The record, if it is long: of some formats parts are read, others are held in memory."""
    if not corpus.in_parts or not _is_large(ref.path):
        return None
    start = corpus.read(ref, (0, FIRST))
    samples = len(start.signal) if start.total is None else start.total
    if samples <= LONG_SECONDS * start.rate:
        return None
    corpus.noted.update(start.notes)

    def read(first: int, end: int):
        if start.total is None:  # a format that is read as a whole
            return start.signal[first:end]
        return corpus.read(ref, (first, end)).signal

    return LongRecord(samples, float(start.rate), start.leads, read, start.defects)


def _is_large(path: str) -> bool:
    """Whether the samples of a record may take much room: in memory, or in its largest file."""
    if path.endswith(".npz"):
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist()) >= LARGE
    stem = path.removesuffix(".hea")
    files = [Path(path), Path(f"{stem}.dat"), Path(f"{stem}.mat")]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return max(sizes, default=LARGE) >= LARGE


def long_windows(
    record: LongRecord, job: Job, words: list[str], done: Callable[[float], object]
) -> Iterator[Window]:
    """The windows of a long record that `examine` would keep of the whole one.

    What holds for the whole record is known after its last window only: it is then put into
    `words`, which belong before the defects of each window. `done` hears of the seconds that are
    behind.
    """
    preprocess = job.preprocess
    found = survey(record, preprocess)
    left_out, dead, kept, behind = [], [], 0, 0.0
    for number, window in prepare_in_chunks(record, preprocess, found):
        if isinstance(window, str):
            left_out.append((number, window))
        elif is_alive(window, record.leads, job):
            kept += 1
            yield window
        else:
            dead.append((number, "dead"))
        now = min((number + 1) * preprocess.seconds, record.samples / record.rate)
        done(now - behind)
        behind = now
    if not kept:
        raise dead_record() if dead else no_window(left_out)
    unknown = [name for name in record.leads if canonical(name) is None]
    words += record.defects + found.defects + left_out_words(dead)
    words += preprocess.record_words(unknown, tail(record, job), left_out)


def tail(record: LongRecord, job: Job) -> int:
    """Samples at the end of a record, after resampling, that are in no window."""
    return job.preprocess.spans(job.preprocess.length_of(record.samples, record.rate))[1]
