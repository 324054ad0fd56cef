"""The signal chain on arrays [12,T] in mV, a row per lead of LEADS: gaps, dead leads, filters,
scaling.

A missing lead is never filled with invented signal: it is marked, and stays out of the lead mask.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import signal as sps

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, LIMB

# a sensor that repeats a single value for this long counts as off; live leads rarely do
BLOCK_SECONDS = 0.5
# an extreme closer to the median than this is a plateau of a low-voltage lead, not a rail
RAIL_FROM_MEDIAN_MV = 1.0
LARGEST_TERM = 10_000  # of a ratio of two rates; the filter has twenty times as many numbers
LARGE = 2**23  # samples of all leads: half an hour at 400 Hz
PAD_SECONDS = 1.5  # reflected signal on both sides of the band-pass: one period of its lower edge


def drop_impossible(x: np.ndarray, max_mv: float, median: np.ndarray | None = None) -> np.ndarray:
    """Replaces infinities, and samples more than `max_mv` away from their lead's median, by NaN.

    Of a part of a record, `median` [12] is that of the whole, and NaN for leads that span less.
    Full-scale converter values (32.767 mV in some files) come as single samples or as long
    stretches. After this both are gaps, and short gaps are repaired, whereas a filter would smear
    them over a second.
    """
    finite = np.isfinite(x)
    if not finite.all():
        x = np.where(finite, x, np.nan)
    if median is None:
        wide = np.fmax.reduce(x, axis=1) - np.fmin.reduce(x, axis=1) > max_mv
    else:
        wide = np.isfinite(median)
    for row in np.flatnonzero(wide):
        middle = np.nanmedian(x[row]) if median is None else median[row]
        with np.errstate(invalid="ignore"):
            impossible = np.abs(x[row] - middle) > max_mv
        x = x.copy()
        x[row, impossible] = np.nan
    return x


def fill_gaps(
    x: np.ndarray, rate: float, max_gap_seconds: float, around: Sequence["Around"] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Bridges every gap of NaN by a straight line: x without NaN, and `lost` [12,T], True in gaps
    longer than the limit.

    A lead is missing wherever samples of it are lost; the bridge only keeps the filter finite
    there. Of a part of a record, `around` says for each lead what is outside.
    """
    nan = np.isnan(x)
    lost = np.zeros(x.shape, bool)
    if not nan.any():
        return x, lost
    x = x.copy()
    limit = round(max_gap_seconds * rate)
    for row in np.flatnonzero(nan.any(axis=1)):
        gap, outside = nan[row], around[row] if around else Around(0, x.shape[1])
        places, values = outside.with_values(np.flatnonzero(~gap), x[row, ~gap])
        if not len(places):
            x[row], lost[row] = 0.0, True
            continue
        x[row, gap] = np.interp(np.flatnonzero(gap), places, values)
        edges = np.flatnonzero(np.diff(gap, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            start = outside.gap_start if first == 0 else first
            stop = outside.gap_end if end == x.shape[1] else end
            lost[row, first:end] = stop - start > limit
    return x, lost


class Around(NamedTuple):
    """What is outside of a part of a lead, in samples from the start of the part."""

    gap_start: int  # where a gap starts that the part starts in
    gap_end: int  # where a gap ends that the part ends in
    before: float | None = None  # the value before that gap; None: it starts with the record
    after: float | None = None  # the value that follows it; None: it ends with the record

    def with_values(self, places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places and values within the part [k], and those outside that gaps reach."""
        if self.before is not None:
            places = np.concatenate([[self.gap_start - 1], places])
            values = np.concatenate([[self.before], values])
        if self.after is not None:
            places = np.concatenate([places, [self.gap_end]])
            values = np.concatenate([values, [self.after]])
        return places, values


def find_flat(x: np.ndarray, rate: float, flat_share: float) -> np.ndarray:
    """Leads [12] of the unfiltered signal that do not change at all in at least `flat_share` of
    half-second blocks."""
    size = max(2, min(round(BLOCK_SECONDS * rate), x.shape[1]))
    blocks = x[:, : x.shape[1] // size * size].reshape(len(x), -1, size)
    return (blocks.max(axis=2) == blocks.min(axis=2)).mean(axis=1) >= flat_share


def find_quiet(x: np.ndarray, flat_mv: float) -> np.ndarray:
    """Leads [12] of the filtered signal that span less than `flat_mv`: a loose electrode.

    The span is between percentiles, because a single jump in ten seconds of nothing is still
    nothing.
    """
    return span(x) < flat_mv


def span(x: np.ndarray) -> np.ndarray:
    """The distance from the 1st to the 99th percentile along the last axis: [...,T] -> [...]."""
    edge = x.shape[-1] // 100
    ranked = np.partition(x, (edge, x.shape[-1] - 1 - edge), axis=-1)
    return ranked[..., -1 - edge] - ranked[..., edge]


def find_railed(x: np.ndarray, rail_share: float) -> np.ndarray:
    """Leads [12] of the unfiltered signal with at least `rail_share` of their samples exactly at a
    far extreme."""
    top, bottom = x.max(axis=1, keepdims=True), x.min(axis=1, keepdims=True)
    railed = np.zeros(len(x), bool)
    for extreme in (top, bottom):
        share = (x == extreme).mean(axis=1)
        for row in np.flatnonzero(share >= rail_share):
            railed[row] |= abs(extreme[row, 0] - np.median(x[row])) > RAIL_FROM_MEDIAN_MV
    return railed


def recover_limb_leads(x: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Derives missing limb leads if at least two of the six exist: x and `present`, with the
    derived ones added.

    The first two existing ones of I, II, III, aVR, aVL, aVF fix the frontal plane; existing leads
    stay as they are.
    """
    have = np.flatnonzero(present[:6])
    if not 2 <= len(have) < 6:
        return x, present
    missing = np.flatnonzero(~present[:6])
    weights = LIMB[missing] @ np.linalg.inv(LIMB[have[:2]])
    x, present = x.copy(), present.copy()
    x[missing] = weights @ x[have[:2]]
    present[missing] = True
    return x, present


@lru_cache(maxsize=64)
def _ratio(rate: float, new_rate: float) -> tuple[int, int]:
    ratio = Fraction(new_rate / rate).limit_denominator(LARGEST_TERM)
    if ratio.numerator > LARGEST_TERM:  # an odd rate far below the new one
        ratio = 1 / Fraction(rate / new_rate).limit_denominator(LARGEST_TERM)
    if not Fraction(1, 1000) <= ratio <= 100:
        raise InputError(
            f"cannot resample {rate:g} Hz to {new_rate:g} Hz:"
            " the rates are too far apart, check the header"
        )
    return ratio.numerator, ratio.denominator


@lru_cache(maxsize=16)
def _resampling_filter(up: int, down: int) -> np.ndarray:
    # Twenty zero crossings under a Kaiser window. The corner lies a little below the new Nyquist
    # frequency, so that less is aliased.
    span = max(up, down)
    return sps.firwin(20 * span + 1, 0.96 / span, window=("kaiser", 5.0))


def resampling_ratio(rate: float, new_rate: float) -> tuple[int, int]:
    """Samples after resampling, and before it, that take the same time."""
    return (1, 1) if rate == new_rate else _ratio(float(rate), float(new_rate))


def resampling_reach(up: int, down: int) -> int:
    """How many samples on each side a resampled one depends on, rounded up so that they become a
    whole number of samples."""
    return -(-10 * max(up, down) // (up * down)) * down


def resample(x: np.ndarray, rate: float, new_rate: float) -> np.ndarray:
    """Anti-aliased resampling [l,T] -> [l,round(T*new_rate/rate)] in float64; x itself if the rates
    are equal.

    The ratio of the rates is exact for usual rates and within 1e-4 (1 ms in 10 s) for odd ones. The
    signal is continued by point reflection at both ends, so that no step to zero rings there.
    """
    if rate == new_rate:
        return x
    if len(x) > 1 and x.size > LARGE:  # row by row, as double precision takes room
        return np.concatenate([resample(row[None], rate, new_rate) for row in x])
    up, down = resampling_ratio(rate, new_rate)
    pad = resampling_reach(up, down)
    y = sps.resample_poly(_extend(x, pad), up, down, axis=1, window=_resampling_filter(up, down))
    first = pad // down * up
    return y[:, first : first + max(1, round(x.shape[1] * up / down))]


def _extend(x: np.ndarray, pad: int) -> np.ndarray:
    """Rows [l,T] in float64, continued by `pad` samples of point reflection at both ends."""
    x = np.asarray(x, np.float64)
    if pad >= x.shape[1]:  # reflected more than once
        return np.pad(x, ((0, 0), (pad, pad)), mode="reflect", reflect_type="odd")
    before = 2 * x[:, :1] - x[:, pad:0:-1]
    after = 2 * x[:, -1:] - x[:, -2 : -2 - pad : -1]
    return np.concatenate([before, x, after], axis=1)


@lru_cache(maxsize=64)
def _butterworth(order: int, low: float, high: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    sos = sps.butter(order, [low, high], btype="bandpass", fs=rate, output="sos")
    return sos, sps.sosfilt_zi(sos)[:, None, :]  # [s,6], state [s,1,2] of a constant input


def bandpass_memory(rate: float, low: float, high: float, order: int, rest: float) -> int:
    """Samples after which the band-pass has forgotten how it started, but for a share `rest`: the
    decay of its slowest pole."""
    poles = sps.butter(order, [low, high], btype="bandpass", fs=rate, output="zpk")[1]
    return int(np.ceil(np.log(rest) / np.log(np.abs(poles).max())))


def bandpass(x: np.ndarray, rate: float, low: float, high: float, order: int) -> np.ndarray:
    """Zero-phase Butterworth band-pass of every row [l,T], with reflected padding as far as the
    record allows.

    This is scipy's sosfiltfilt with the initial state computed once per filter instead of once per
    call: a third less time.
    """
    sos, state = _butterworth(order, float(low), float(high), float(rate))
    length = x.shape[1]
    pad = min(round(PAD_SECONDS * rate), length - 1)
    y = _extend(x, pad)
    for _ in range(2):  # forwards, then the result backwards
        y = sps.sosfilt(sos, y, axis=1, zi=state * y[None, :, :1])[0][:, ::-1]
    return y[:, pad : pad + length]


def normalise(
    x: np.ndarray, present: np.ndarray, how: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The z-score: z [12,T], offset [12] and scale [12] with mV = z * scale + offset; 0, 0 and 1 in
    missing leads.

    'lead' gives each lead its own scale; 'record' gives one to all, so that III = II - I also holds
    in z.
    """
    offset = np.where(present, x.mean(axis=1), 0.0)
    variance = x.var(axis=1)
    if how == "record":
        variance = np.full(len(LEADS), variance[present].mean() if present.any() else 1.0)
    elif how != "lead":
        raise InputError(f"unknown normalise '{how}': choose 'lead' or 'record'")
    scale = np.sqrt(np.where(present & (variance > 1e-12), variance, 1.0))
    z = np.where(present[:, None], (x - offset[:, None]) / scale[:, None], 0.0)
    return z, offset, scale
