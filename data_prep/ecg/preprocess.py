"""The whole chain from a record in mV to windows of beats, with every choice in one hashable
object.

The same Preprocess makes shards and later prepares single records at inference; its hash is stored
with both.
"""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg import segment, signal
from data_prep.ecg.geometry import GEOMETRIES
from data_prep.ecg.leads import LEADS, canonical, lead_mask, order_leads

# part of the hash: raise it when the same fields give other numbers than before
CODE_VERSION = 1
ADDED_LATER = ("fast_rhythm",)  # fields that not all weights know; off by default
MIN_SECONDS = 1.0
# Twelve rows are made of a record, however few leads it has: single precision before resampling
# and double precision after it, a gibibyte each. That is a day at 250 Hz, and 31 hours at 100 Hz.
MOST_SAMPLES, MOST_RESAMPLED = 2**28 // len(LEADS), 2**27 // len(LEADS)
MOST_NAMED = 20  # windows that are left out, by number; of more, only stretches are named


class Unusable(InputError):
    """A record that cannot be prepared; `kind` is one word for the ledger."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind

    def __reduce__(self):
        return type(self), (self.kind, str(self))


@dataclasses.dataclass
class Window:
    """One stretch of a record, ready to store: normalised beats, their places, and what was
    wrong."""

    beats: np.ndarray  # float32 [n,12,P], normalised; all zero for missing leads
    start: np.ndarray  # int32 [n], samples from the start of the window
    length: np.ndarray  # int32 [n]
    complete: np.ndarray  # bool [n], from R peak to R peak
    lead_mask: int  # bit i: LEADS[i] exists here
    offset: np.ndarray  # float32 [12], mV = z * scale + offset
    scale: np.ndarray  # float32 [12]
    signal: np.ndarray  # float32 [12,T], normalised
    rate: float
    window: int  # index in the record
    start_seconds: float
    defects: list[str]

    def millivolts(self) -> np.ndarray:
        """The filtered signal [12,T] in mV; 0 in missing leads."""
        return self.signal * self.scale[:, None] + self.offset[:, None]


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """How a record becomes beats. The defaults are the paper's choices, or ours where the paper
    states none."""

    rate: float = 100.0  # Hz after resampling
    seconds: float = 10.0  # window length
    band_low: float = 0.67  # Hz
    band_high: float = 40.0
    filter_order: int = 3
    # 'lead': each lead its own scale; 'record': one scale, keeps III = II - I
    normalise: str = "lead"
    # longer stretches without a value make the lead missing in that window
    max_gap_seconds: float = 0.1
    # samples further from the median of their lead are gaps: no surface ECG gets there
    max_mv: float = 20.0
    # a filtered lead that spans less is missing; the smallest live lead seen spans 0.087 mV
    flat_mv: float = 0.03
    flat_share: float = 0.5  # a lead that does not change for this share of the window is missing
    # a lead with this share of its samples at one far extreme value is missing
    rail_share: float = 0.02
    recover_limb_leads: bool = True
    peaks: str = "lead_ii"  # 'lead_ii' (paper) or 'vcg' (all leads that exist)
    peak_height: float = 2.0  # standard deviations of lead II
    peak_retry_height: float = 1.0
    peak_distance: float = 0.3  # seconds
    rr_min: float = 0.3  # seconds; closer peaks merge
    rr_max: float = 2.0  # seconds; longer intervals are flagged
    beat_samples: int = 128
    max_beats: int = 20
    geometry: str = "paper"  # lead directions of the 'vcg' detector
    # the 'vcg' detector looks for a fast regular rhythm in windows in which it found no beat;
    # records of users are prepared so whatever is stored here, see for_use
    fast_rhythm: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _typed(field, getattr(self, field.name)))
        _check(
            self.rate > 0 and self.seconds >= MIN_SECONDS,
            f"rate must be positive, seconds at least {MIN_SECONDS:g}",
        )
        nyquist = self.rate / 2
        _check(
            0 < self.band_low < self.band_high < nyquist,
            f"0 < band_low < band_high < {nyquist:g} (half the rate)",
        )
        _check(
            self.rate > 2 * segment.QRS_BAND[1],
            f"rate must be above {2 * segment.QRS_BAND[1]:g} Hz",
        )
        _check(self.rate <= 1e5, "rate must be at most 100000 Hz")
        _check(
            self.seconds * self.rate <= MOST_RESAMPLED,
            f"seconds x rate must be at most {MOST_RESAMPLED} samples",
        )
        _check(
            self.max_beats * self.beat_samples <= MOST_RESAMPLED,
            f"max_beats x beat_samples must be at most {MOST_RESAMPLED} samples",
        )
        _check(1 <= self.filter_order <= 8, "filter_order must be 1 to 8")
        _check(self.normalise in ("lead", "record"), "normalise must be 'lead' or 'record'")
        _check(self.peaks in ("lead_ii", "vcg"), "peaks must be 'lead_ii' or 'vcg'")
        _check(0 <= self.rr_min < self.rr_max, "0 <= rr_min < rr_max")
        _check(
            self.beat_samples >= 2 and self.max_beats >= 1,
            "beat_samples must be at least 2, max_beats at least 1",
        )
        _check(self.geometry in GEOMETRIES, f"geometry must be one of {', '.join(GEOMETRIES)}")

    def to_dict(self) -> dict[str, Any]:
        """All fields, but for those that were ADDED_LATER and are as if they were not there: so the
        hash of weights and shards that are older than a field stays what it was."""
        later = {f.name for f in dataclasses.fields(self) if f.default == getattr(self, f.name)}
        later &= set(ADDED_LATER)
        return {key: x for key, x in dataclasses.asdict(self).items() if key not in later}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Preprocess":
        """The inverse of to_dict; values may be text, as on a command line, and absent ones are
        defaults."""
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = (
                    f"did you mean '{near[0]}'?" if near else f"the fields are {', '.join(names)}"
                )
                raise InputError(f"unknown preprocessing field '{key}': {hint}")
        return cls(**values)

    def hash(self) -> str:
        """Twelve hex digits that change with any field and with the code version, but not with the
        machine."""
        text = json.dumps(
            {"code_version": CODE_VERSION, **self.to_dict()}, sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def for_use(self) -> "Preprocess":
        """These steps for the records of users, which should not be lost: a window in which they
        find no beat is searched for a fast regular rhythm (defect 'fast_rhythm'). Every window that
        they make is made as before."""
        return dataclasses.replace(self, fast_rhythm=True)

    def prepare(self, signal_mv: np.ndarray, rate: float, leads: Sequence[str]) -> list[Window]:
        """A record [T,c] in mV with its lead names, as windows of beats.

        Long records give windows of `seconds` without overlap. A shorter record, or a rest of at
        least half a window, is one shorter window. A window without a usable lead or beat is left
        out, and the others say so in `defects`.
        """
        if not np.isfinite(rate) or rate <= 0:
            raise InputError(
                f"sampling rate {rate} is not a positive number: check the record's header"
            )
        self._check_room(np.shape(signal_mv)[0] if np.ndim(signal_mv) else 0, rate)
        x, unknown = order_leads(signal_mv, leads)
        self._check_length(x.shape[1], rate)
        # repair what can be repaired, then resample and filter the leads that have values; of a
        # long record with few leads, twelve rows of each of these arrays would fill the memory
        in_file = leads_in_file(leads)
        x = x if in_file.all() else x[in_file]  # [k,T]
        raw = signal.drop_impossible(x, self.max_mv)
        nan = np.isnan(raw)
        spike = nan & np.isfinite(x)
        del x
        raw, lost = signal.fill_gaps(raw, rate, self.max_gap_seconds)
        live = ~lost.all(axis=1)
        if not live.any():
            raise no_value()
        some = signal.resample(raw[live], rate, self.rate)
        filtered = np.zeros((len(LEADS), some.shape[1]))
        filtered[np.flatnonzero(in_file)[live]] = signal.bandpass(
            some, self.rate, self.band_low, self.band_high, self.filter_order
        )
        parts = ((raw, 0.0), (nan, True), (spike, False), (lost, True))  # and of absent leads

        # cut into windows and prepare each
        windows, left_out = [], []
        spans, tail = self.spans(filtered.shape[1])
        for index, span in enumerate(spans):
            here = self.before_resampling(span, rate)
            pieces = (_twelve_rows(a[:, here], in_file, absent) for a, absent in parts)
            window = self.one_window(
                index, span[0], filtered[:, slice(*span)], rate, in_file, *pieces
            )
            if isinstance(window, str):
                left_out.append((index, window))
            else:
                windows.append(window)
        # what holds for the whole record goes to every window
        if not windows:
            raise no_window(left_out)
        record_defects = self.record_words(unknown, tail, left_out)
        for window in windows:
            window.defects = record_defects + window.defects
        return windows

    def _check_room(self, num_samples: int, rate: float) -> None:
        """Before anything is made of a record: an Unusable if that would fill the memory."""
        if num_samples > MOST_SAMPLES or num_samples * self.rate / rate > MOST_RESAMPLED:
            raise Unusable(
                "too_long",
                f"record of {num_samples / rate / 3600:.3g} h at {rate:g} Hz is too long to prepare"
                f" at {self.rate:g} Hz: cut it into pieces, or check the rate in its header",
            )

    def _check_length(self, num_samples: int, rate: float) -> None:
        if num_samples < MIN_SECONDS * rate:
            raise Unusable(
                "too_short",
                f"record of {num_samples / rate:.2f} s is too short:"
                f" at least {MIN_SECONDS:g} s are needed",
            )

    def record_words(
        self, unknown: Sequence[str], tail: int, left_out: Sequence[tuple[int, str]]
    ) -> list[str]:
        """Defects of a whole record: its leads that are none of the twelve, the samples at its end
        that are in no window, and the windows that were left out."""
        words = [f"unknown_lead:{re.sub(r'[^0-9A-Za-z]+', '_', name)}" for name in unknown]
        if tail:
            words.append(f"tail_left_out:{tail / self.rate:.2f}s")
        return words + left_out_words(left_out)

    def length_of(self, num_samples: int, rate: float) -> int:
        """Samples that a record has after resampling."""
        up, down = signal.resampling_ratio(rate, self.rate)
        return num_samples if up == down else max(1, round(num_samples * up / down))

    def before_resampling(self, span: tuple[int, int], rate: float) -> slice:
        """Where a stretch of the filtered signal is in the record of that rate."""
        return slice(round(span[0] * rate / self.rate), round(span[1] * rate / self.rate))

    def one_window(
        self, index: int, first: int, x: np.ndarray, rate: float, in_file: np.ndarray,
        raw: np.ndarray, nan: np.ndarray, spike: np.ndarray, lost: np.ndarray,
    ) -> Window | str:  # fmt: skip
        """The window with this number from its filtered signal [12,T], which starts at `first`, or
        the reason why there is none; from the stretches of the record that show which leads are
        missing in it."""
        present, defects = self._find_missing(rate, in_file, raw, nan, spike, lost)
        window = self.cut_window(x, present, defects)
        if isinstance(window, Window):
            window.window, window.start_seconds = index, first / self.rate
        return window

    def spans(self, num_samples: int) -> tuple[list[tuple[int, int]], int]:
        """First and end sample of each window, and the number of samples at the end that are in
        none."""
        size = round(self.seconds * self.rate)
        spans = [(k, k + size) for k in range(0, num_samples - size + 1, size)]
        rest = num_samples - len(spans) * size
        if rest and (not spans or 2 * rest >= size):
            spans.append((num_samples - rest, num_samples))
            rest = 0
        return spans, rest

    def _find_missing(self, rate, in_file, raw, nan, spike, lost) -> tuple[np.ndarray, list[str]]:
        """Which leads [12] exist in this window of the unfiltered record, and why others do not."""
        gap = lost.any(axis=1)
        flat = signal.find_flat(raw, rate, self.flat_share)
        railed = signal.find_railed(raw, self.rail_share) & ~flat
        defects = []
        for i in np.flatnonzero(nan.any(axis=1) | flat | railed):
            if not in_file[i]:
                defects.append(f"absent:{LEADS[i]}")
            elif railed[i] or (spike[i].any() and (flat[i] or (lost[i] & spike[i]).any())):
                defects.append(f"railed:{LEADS[i]}")
            elif gap[i]:
                defects.append(f"gap:{LEADS[i]}:{nan[i].sum()}")
            elif flat[i]:
                defects.append(f"flat:{LEADS[i]}")
            else:  # repaired
                counts = {"spikes": spike[i].sum(), "nan": (nan[i] & ~spike[i]).sum()}
                defects += [f"{word}:{LEADS[i]}:{count}" for word, count in counts.items() if count]
        return ~(gap | flat | railed), defects

    def cut_window(self, x: np.ndarray, present: np.ndarray, defects: list[str]) -> Window | str:
        """Filtered mV [12,T] -> Window, or the reason why there is none."""
        defects += self._quiet(x, present)
        if self.recover_limb_leads:
            before = present
            x, present = signal.recover_limb_leads(x, present)
            recovered = present & ~before
            if recovered.any():
                self._quiet(x, present)
                defects += [f"recovered:{LEADS[i]}" for i in np.flatnonzero(recovered & present)]
        if not present.any():
            return "no_lead"
        x = np.where(present[:, None], x, 0.0)
        peaks, strength = self._peaks(x, present, defects)
        if not len(peaks):
            return "no_beat"
        cut = segment.intervals(
            peaks, x.shape[1], self.rr_min, self.rr_max, self.rate, self.max_beats, strength
        )
        defects += ["long_interval"] * bool(cut.long.any()) + ["merged_tail"] * cut.merged_tail
        defects += ["one_beat"] * (len(peaks) == 1)
        z, offset, scale = (
            a.astype(np.float32) for a in signal.normalise(x, present, self.normalise)
        )
        beats = segment.cut_beats(z, cut.start, cut.length, self.beat_samples)
        mask = lead_mask(present)
        return Window(
            beats,
            cut.start,
            cut.length,
            cut.complete,
            mask,
            offset,
            scale,
            z,
            self.rate,
            0,
            0.0,
            defects,
        )

    def _quiet(self, x: np.ndarray, present: np.ndarray) -> list[str]:
        """Removes leads with next to no signal from `present`, in place, and names them."""
        quiet = present & signal.find_quiet(x, self.flat_mv)
        present[quiet] = False
        return [f"flat:{LEADS[i]}" for i in np.flatnonzero(quiet)]

    def _peaks(
        self, x: np.ndarray, present: np.ndarray, defects: list[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """R peaks [n] of a window, and the strength of each, which decides between two that are too
        close."""
        two = LEADS.index("II")
        if self.peaks == "lead_ii":
            if present[two]:
                heights = (self.peak_height, self.peak_retry_height)
                peaks = segment.r_peaks_lead_ii(x[two], self.rate, *heights, self.peak_distance)
                if len(peaks):
                    return peaks, x[two][peaks]
            defects.append("peaks_fallback_vcg")
        how = (self.rate, self.peak_distance, self.geometry)
        peaks = segment.r_peaks_vcg(x, present, *how)
        if self.fast_rhythm and not len(peaks):
            peaks = segment.r_peaks_vcg(x, present, *how, fast=True)
            defects += ["fast_rhythm"] * bool(len(peaks))
        return peaks, (x[:, peaks] ** 2).sum(axis=0)


def leads_in_file(leads: Sequence[str]) -> np.ndarray:
    """Which of the twelve leads [12] are among these names."""
    names = {canonical(name) for name in leads}
    return np.array([lead in names for lead in LEADS])


def _twelve_rows(x: np.ndarray, there: np.ndarray, absent: float | bool) -> np.ndarray:
    """Rows [k,t] of the leads that are there [12], among those of all twelve, which hold
    `absent`."""
    if there.all():
        return x
    rows = np.full((len(LEADS), x.shape[1]), absent, x.dtype)
    rows[there] = x
    return rows


def no_value() -> Unusable:
    """A record without a single value."""
    return Unusable("no_lead", "all leads are missing: no lead has a finite value")


def no_window(left_out: Sequence[tuple[int, str]]) -> Unusable:
    """A record all of whose windows were left out, given as (number, reason)."""
    if all(why == "no_lead" for _, why in left_out):
        return Unusable(
            "no_lead", "all leads are missing: every lead is absent, without values, flat or railed"
        )
    return Unusable(
        "no_beats",
        "no R peak found in the record: is it an ECG, in mV, and are the lead names right?",
    )


def left_out_words(left_out: Sequence[tuple[int, str]]) -> list[str]:
    """Words for the windows of a record that were left out, given as (number, reason).

    A few are named one by one: 'window_left_out:7:no_beat'. Of many, as when electrodes were off
    for hours, stretches are named, 'window_left_out:7-2000:no_lead', and of many stretches the
    first ones and the number of all other windows: every window of the record gets these words.
    """
    if len(left_out) <= MOST_NAMED:
        return [f"window_left_out:{index}:{why}" for index, why in left_out]
    stretches: list[list] = []
    for index, why in left_out:
        if stretches and stretches[-1][1:] == [index - 1, why]:
            stretches[-1][1] = index
        else:
            stretches.append([index, index, why])
    words = [
        f"window_left_out:{first}-{last}:{why}"
        if last > first
        else f"window_left_out:{first}:{why}"
        for first, last, why in stretches[:MOST_NAMED]
    ]
    others = sum(last - first + 1 for first, last, _ in stretches[MOST_NAMED:])
    return words + [f"window_left_out:{others}_more"] * (others > 0)


def _check(good: bool, rule: str) -> None:
    if not good:
        raise InputError(f"preprocessing: {rule}")


def _typed(field: dataclasses.Field, value: Any) -> Any:
    """The value in the type of its field, so that 100, 100.0 and '100' mean and hash the same."""
    kind: Any = field.type  # a type, as this module does not postpone annotations
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if kind is int and float(value) != int(float(value)):
            raise ValueError
        typed = int(float(value)) if kind is int else kind(value)
        if kind is float and not np.isfinite(typed):
            raise ValueError
        return typed
    except (TypeError, ValueError, KeyError, OverflowError):
        raise InputError(
            f"preprocessing field {field.name}={value!r} is not of type {kind.__name__}"
        ) from None
