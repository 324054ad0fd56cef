"""Records of hours and days in constant memory: the same windows as Preprocess.prepare makes of the
whole record, chunk by chunk.

A chunk is the windows of ten minutes. It is filtered together with an overlap on both sides, which
is long enough for the zero-phase band-pass to forget where the overlap starts, but for a share of
1e-15 (FORGOTTEN): 16.6 s for the default 0.67 to 40 Hz. Resampling depends on a tenth of a second
and is exact; at the ends of the record a chunk continues the signal as the whole record does. So
filtered samples differ from those of the whole record by rounding alone. What depends on all
samples is found before the first window, by reading the file once or a few times more: the medians
that impossible values are far from, and how well the limb leads agree. Gaps are bridged between
their true ends, however many chunks lie between them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from data_prep.ecg import quality, signal
from data_prep.ecg.leads import LEADS, order_leads
from data_prep.ecg.preprocess import Preprocess, Window, leads_in_file, no_value
from data_prep.ecg.signal import Around

LONG_SECONDS = 1800.0  # longer records are prepared in chunks
CHUNK_SECONDS = 600.0
FORGOTTEN = 1e-15  # share of a filter's start that is left where an overlap ends


@dataclass(frozen=True)
class LongRecord:
    """A record of which parts can be read."""

    samples: int
    rate: float
    leads: list[str]  # as the file spells them
    read: Callable[[int, int], np.ndarray]  # first sample and end -> float32 [t,c] in mV
    defects: list[str] = field(default_factory=list)

    def parts(self) -> Iterator[np.ndarray]:
        """The whole signal, part after part."""
        step = round(CHUNK_SECONDS * self.rate)
        for first in range(0, self.samples, step):
            yield self.read(first, min(first + step, self.samples))


@dataclass(frozen=True)
class Survey:
    """What depends on all samples of a record."""

    exists: np.ndarray  # bool [12]: the lead has a value somewhere
    median: np.ndarray  # [12] mV of leads that span more than a surface ECG does; else NaN
    defects: list[str]


def survey(record: LongRecord, preprocess: Preprocess) -> Survey:
    """Reads the record once, and twice more for each question that needs ranks of all samples."""
    top, bottom = np.full(len(LEADS), np.nan), np.full(len(LEADS), np.nan)
    for x in _ordered_parts(record):
        top = np.fmax(top, np.fmax.reduce(x, axis=1))
        bottom = np.fmin(bottom, np.fmin.reduce(x, axis=1))
    exists = np.isfinite(top)
    if not exists.any():
        raise no_value()
    median = np.full(len(LEADS), np.nan)
    for row in np.flatnonzero(top - bottom > preprocess.max_mv):
        median[row] = _median(lambda row=row: (x[row] for x in _ordered_parts(record)))

    def residuals() -> Iterator[np.ndarray]:
        return (
            quality.limb_residuals(part, record.leads, exists[:6]).astype(np.float32)
            for part in record.parts()
        )

    worst = 0.0
    for law in range(next(residuals()).shape[1]):
        column = lambda law=law: (part[:, law] for part in residuals())  # noqa: E731
        worst = max(worst, float(ranked(column, quality.residual_rank)[0]))
    return Survey(exists, median, quality.limb_words(worst))


def _ordered_parts(record: LongRecord) -> Iterator[np.ndarray]:
    """Parts [12,t] with NaN in the place of every value that is not finite."""
    for part in record.parts():
        x = order_leads(part, record.leads)[0]
        x[np.isinf(x)] = np.nan
        yield x


def _median(parts: Callable[[], Iterator[np.ndarray]]) -> np.float32:
    """The median of all numbers in parts [t] of float32, as numpy computes it of the whole."""
    middle = ranked(parts, lambda count: (count - 1) // 2, lambda count: count // 2)
    return np.mean(middle)


def ranked(parts: Callable[[], Iterator[np.ndarray]], *ranks: Callable[[int], int]) -> np.ndarray:
    """The numbers that have these ranks (functions of how many numbers there are) among all float32
    in parts [t], NaN left out; exactly, in constant memory.

    The parts are gone through twice: the order of floats is that of their bits, so the upper
    sixteen bits of the number are found by counting, and then the lower ones.
    """
    counts = np.zeros(2**16, np.int64)
    for part in parts():
        counts += np.bincount(_sortable(part) >> 16, minlength=2**16)
    wanted = [rank(int(counts.sum())) for rank in ranks]
    ends = np.cumsum(counts)
    upper = [int(np.searchsorted(ends, rank, side="right")) for rank in wanted]
    lower = {bits: np.zeros(2**16, np.int64) for bits in upper}
    for part in parts():
        keys = _sortable(part)
        for bits, found in lower.items():
            found += np.bincount(keys[keys >> 16 == bits] & 0xFFFF, minlength=2**16)
    keys = [
        (bits << 16)
        | int(np.searchsorted(np.cumsum(lower[bits]), rank - (ends[bits] - counts[bits]), "right"))
        for rank, bits in zip(wanted, upper, strict=True)
    ]
    return _floats(np.array(keys, np.uint32))


def _sortable(x: np.ndarray) -> np.ndarray:
    """Whole numbers in the order of the floats [t], without NaN."""
    bits = np.ascontiguousarray(x[~np.isnan(x)], np.float32).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | 0x80000000)


def _floats(keys: np.ndarray) -> np.ndarray:
    return np.where(keys >> 31, keys & 0x7FFFFFFF, ~keys).view(np.float32)


def prepare_in_chunks(
    record: LongRecord, preprocess: Preprocess, found: Survey
) -> Iterator[tuple[int, Window | str]]:
    """The number of each window of a record, and the window or the reason why there is none."""
    up, down = signal.resampling_ratio(record.rate, preprocess.rate)
    reach = signal.resampling_reach(up, down)
    band = (preprocess.band_low, preprocess.band_high, preprocess.filter_order)
    overlap = signal.bandpass_memory(preprocess.rate, *band, FORGOTTEN)
    spans, _ = preprocess.spans(preprocess.length_of(record.samples, record.rate))
    in_file, gaps = leads_in_file(record.leads), _Gaps(record, preprocess, found)
    several = max(1, int(CHUNK_SECONDS // preprocess.seconds))
    for index in range(0, len(spans), several):
        some = spans[index : index + several]
        # Where the chunk starts and ends with its overlap, before resampling and after it. Starts
        # are even multiples, as half samples at the end of a record are rounded to even numbers.
        whole = preprocess.before_resampling((some[0][0], some[-1][1]), record.rate)
        first = min((some[0][0] - overlap) // up * down - reach, whole.start)
        first = max(0, first // (2 * down) * 2 * down)
        last = max(-(-(some[-1][1] + overlap) // up) * down + reach, whole.stop)
        last = min(record.samples, last)
        raw, nan, spike, lost = gaps.bridged(first, last)
        resampled = signal.resample(raw[found.exists], record.rate, preprocess.rate)
        start = first // down * up
        # without the ends of the overlap, at which resampling saw an end that is none
        inner = slice(
            reach // down * up if first else 0,
            None if last == record.samples else (last - first - reach) // down * up,
        )
        filtered = np.zeros((len(LEADS), resampled[:, inner].shape[1]))
        filtered[found.exists] = signal.bandpass(resampled[:, inner], preprocess.rate, *band)
        start += inner.start
        for number, span in enumerate(some, index):
            here = preprocess.before_resampling(span, record.rate)
            here = slice(here.start - first, here.stop - first)
            pieces = (a[:, here] for a in (raw, nan, spike, lost))
            x = filtered[:, span[0] - start : span[1] - start]
            yield number, preprocess.one_window(number, span[0], x, record.rate, in_file, *pieces)


class _Gaps:
    """Reads parts of a record with their gaps bridged as in the whole record. Parts must be asked
    for in order, without samples between them."""

    def __init__(self, record: LongRecord, preprocess: Preprocess, found: Survey):
        self._record, self._preprocess, self._survey = record, preprocess, found
        # where each lead had its last value before a part, and has its next one after it
        self._before: list[tuple[int, float | None]] = [(-1, None)] * len(LEADS)
        self._after: list[tuple[int, float | None]] = [(0, None)] * len(LEADS)
        self._part = 0, np.zeros((len(LEADS), 0))  # the last one: its first sample, and [12,t]

    def bridged(self, first: int, end: int) -> tuple[np.ndarray, ...]:
        """A part of the record without gaps, and bool [12,t]: where there was no value, where it
        was impossible, and where it is lost."""
        self._note_last_values(first)
        values, x = self._read(first, end)
        self._part = first, x
        nan = np.isnan(x)
        around = []
        for row in range(len(LEADS)):
            start, before = self._before[row] if nan[row, 0] else (first - 1, None)
            stop, after = self._next_value(row, end) if nan[row, -1] else (end, None)
            around.append(Around(start + 1 - first, stop - first, before, after))
        longest = self._preprocess.max_gap_seconds
        raw, lost = signal.fill_gaps(x, self._record.rate, longest, around)
        return raw, nan, nan & np.isfinite(values), lost

    def _read(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """A part [12,t] as it is, and without impossible values."""
        values = order_leads(self._record.read(first, end), self._record.leads)[0]
        limit = self._preprocess.max_mv
        return values, signal.drop_impossible(values, limit, self._survey.median)

    def _note_last_values(self, end: int) -> None:
        """Looks in the part that was read last for the values before `end`."""
        first, x = self._part
        for row, known in enumerate(~np.isnan(x[:, : end - first])):
            there = np.flatnonzero(known)
            if len(there):
                self._before[row] = first + int(there[-1]), float(x[row, there[-1]])

    def _next_value(self, row: int, end: int) -> tuple[int, float | None]:
        """Where a lead has its next value at `end` or later, and the value; the end of the record,
        and None, if it has none."""
        samples, step = self._record.samples, round(CHUNK_SECONDS * self._record.rate)
        if not self._survey.exists[row]:
            return samples, None
        if self._after[row][0] < end:
            self._after[row] = samples, None
            for first in range(end, samples, step):
                x = self._read(first, min(first + step, samples))[1][row]
                there = np.flatnonzero(~np.isnan(x))
                if len(there):
                    self._after[row] = first + int(there[0]), float(x[there[0]])
                    break
        return self._after[row]
