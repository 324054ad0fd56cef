"""Windows of beats on their way to the model, from shards or from raw records.

A window is a dict with the features of a shard example (see data_prep/dataset/shards.py) and
    labels         {task: class names}
    visible        bit mask of the leads that the model may see
    start_seconds  where the window starts in its record
    split          '' where there is none
    signal         float32 [12,T], only of raw records
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import split_of_patient
from data_prep.base.progress import progress_bar
from data_prep.corpora.corpus import Corpus
from data_prep.dataset.long_windows import long_windows, open_long
from data_prep.dataset.one_shard import Job, examine, reason_of
from data_prep.dataset.shards import ShardSet, read_metadata, uid_of
from data_prep.ecg.leads import LEADS, canonical, lead_mask, mask_leads, parse_leads
from data_prep.ecg.preprocess import Preprocess, Window
from data_prep.ecg.record import RecordRef, Span, Waveform
from data_prep.formats.wfdb_files import MILLIVOLTS, to_millivolts

READ_CHUNK = 64  # examples of one read
BAR_OF_RECORD = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} {unit} [{elapsed}<{remaining}]"
# what the windows of data_prep.ecg.preprocess know themselves
_OF_PREPROCESS = (
    "beats", "start", "length", "complete", "scale", "lead_mask", "window", "signal",
    "start_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A record, or one window of it, that has no embedding, and why."""

    record_id: str
    window: int | None  # None: the whole record
    reason: str


def shard_windows(
    shards: ShardSet,
    done: Callable[[], object] = lambda: None,
    numbers: Sequence[int] | None = None,
) -> Iterator[dict]:
    """The examples of a split with these numbers, or all in shard order; `done` is called after
    each."""
    numbers = range(len(shards)) if numbers is None else numbers
    step = round(shards.preprocess.seconds * shards.preprocess.rate) / shards.preprocess.rate
    for first in range(0, len(numbers), READ_CHUNK):
        for example in shards.read(numbers[first : first + READ_CHUNK]):
            yield example | {
                "labels": json.loads(example["labels"]),
                "split": shards.split,
                "start_seconds": example["window"] * step,
                "visible": example["lead_mask"],
            }
            done()


def dataset_windows(data: str | Path, splits: Sequence[str] | None = None) -> Iterator[dict]:
    """Every example of these splits of a data set (default: all), split by split."""
    for split in splits or read_metadata(data)["splits"]:
        yield from shard_windows(ShardSet(data, split))


def corpus_windows(
    corpus: Corpus,
    preprocess: Preprocess,
    failures: list[Failure],
    done: Callable[[], object] = lambda: None,
    progress: bool = False,
) -> Iterator[dict]:
    """All windows of raw records, prepared and checked as `lvcg build` does it; windows without a
    beat are searched for a fast rhythm, too (Preprocess.for_use).

    Records that cannot be used go to `failures`. Those of a labelled corpus without splits are
    split as a build would do it. `done` is called after every record. Long records are read and
    prepared in chunks, each with a bar of its own if `progress` is wished for: their windows have
    an additional list `of_record`, of defects that are known after the last window only.
    """
    job = Job(Path(), preprocess.for_use(), windows="all", store_signal=False)
    for ref in corpus.refs:
        patient = ref.patient_id or ref.record_id
        split = ref.split or (split_of_patient(patient) if corpus.tasks else "")
        of_record: list[str] = []
        for window in _windows_of(corpus, ref, job, failures, of_record, progress):
            yield {name: getattr(window, name) for name in _OF_PREPROCESS} | {
                "record_id": ref.record_id,
                "patient_id": patient,
                "split": split,
                "labels": ref.labels,
                "defects": ";".join(window.defects),
                "of_record": of_record,
                "uid": uid_of(ref.record_id, window.window),
                "visible": window.lead_mask,
            }
        done()


def _windows_of(
    corpus: Corpus,
    ref: RecordRef,
    job: Job,
    failures: list[Failure],
    of_record: list[str],
    progress: bool,
) -> Iterator[Window]:
    """The windows of one record; `of_record` is filled if it is a long one."""
    try:
        record = open_long(corpus, ref)
        if record is not None:
            minutes = record.samples / record.rate / 60
            how = {"unit": "min", "desc": ref.record_id, "bar_format": BAR_OF_RECORD}
            bar = progress_bar(total=round(minutes), disable=not progress, **how)

            def advance(seconds: float) -> None:  # rounding must not take it beyond its end
                bar.update(min(seconds / 60, bar.total - bar.n))

            with bar:
                yield from long_windows(record, job, of_record, advance)
            return
    except Exception as error:  # whatever is wrong with one record, there are others
        failures.append(Failure(ref.record_id, None, reason_of(error, ref)))
        return
    outcome = examine(corpus, ref, job)
    if not outcome.windows:
        failures.append(Failure(ref.record_id, None, outcome.reason))
    yield from outcome.windows


def defect_words(window: dict) -> str:
    """All defects of a window, joined by ';'."""
    own = [window["defects"]] if window["defects"] else []
    return ";".join([*window.get("of_record", ()), *own])


def signal_corpus(signal, fs: float, leads: Sequence[str] | str, unit: str, name: str) -> Corpus:
    """A record in memory, [samples, leads], as a corpus of one record; an InputError if its shape,
    rate, lead names or unit cannot be right."""
    names = leads.split(",") if isinstance(leads, str) else [str(lead) for lead in leads]
    for lead in names:
        if canonical(lead) is None:
            parse_leads(lead)  # raises, and says what may have been meant

    # shape: the lead names say which axis is which
    signal = np.asarray(signal)
    if signal.ndim == 1 and len(names) == 1:
        signal = signal[:, None]
    if signal.ndim != 2 or signal.shape[1] != len(names) or signal.dtype.kind not in "fiu":
        turned = signal.ndim == 2 and signal.shape[0] == len(names)
        hint = "; it is the other way round: give signal.T" if turned else ""
        found = f"{name} is {signal.dtype} of shape {signal.shape} and {len(names)} leads are named"
        raise InputError(
            f"{found}: signal must be [samples, leads], numbers with a lead name for each"
            f" column{hint}"
        )

    # rate and unit
    try:
        rate = float(fs)
    except (TypeError, ValueError):
        rate = np.nan
    if not 1 <= rate <= 1e5:
        raise InputError(f"{name}: fs={fs!r} is no sampling rate from 1 to 100000 Hz")
    if str(unit).lower() not in MILLIVOLTS:
        raise InputError(f"{name}: unit={unit!r} is no voltage: give 'mV', 'uV' or 'V'")
    in_mv, names = to_millivolts(signal.astype(np.float32), names, [str(unit)] * len(names), name)

    def read(ref: RecordRef, span: Span | None = None) -> Waveform:
        part = in_mv if span is None else in_mv[slice(*span)]
        return Waveform(part, rate, names, total=None if span is None else len(in_mv))

    refs = [RecordRef(name, name, None, {}, "")]
    return Corpus("memory", "", {}, refs, "none given", read=read, in_parts=True)


def show_only(
    windows: Iterable[dict], leads: Sequence[str], failures: list[Failure]
) -> Iterator[dict]:
    """Hides all leads but these from the model; a window that has none of them goes to
    `failures`."""
    mask = lead_mask(np.isin(LEADS, leads))
    for window in windows:
        if window["visible"] & mask:
            yield window | {"visible": window["visible"] & mask}
        else:
            usable = ", ".join(lead_names(window))
            reason = f"it has none of the leads {', '.join(leads)}: usable are {usable}"
            failures.append(Failure(window["record_id"], window["window"], reason))


def lead_names(window: dict) -> list[str]:
    """The leads that the model may see."""
    return [lead for lead, shown in zip(LEADS, mask_leads(window["visible"]), strict=True) if shown]
