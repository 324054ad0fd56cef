"""R peaks, the intervals between them, and beats of one length cut from these intervals and put
back."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import signal as sps
from scipy.ndimage import uniform_filter1d

from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import lead_mask, mask_leads
from data_prep.ecg.signal import bandpass

QRS_BAND = (5.0, 25.0)  # Hz; here a QRS has most of its energy, and P, T and baseline wander little
SMOOTH_SECONDS = 0.1  # about one QRS
# strong regularisation: the noise of leads that hardly differ (I, V1, V2) must not become beats
DETECTOR_EPS = 0.1
# a beat exceeds 0.35 of the 98th percentile and 3 times the 25th percentile of the record
LEVEL, FLOOR = 0.35, 3.0
QUICK_SECONDS = 0.04  # a difference over this time responds most at 12.5 Hz
REFINE_SECONDS = 0.06  # largest distance of the R maximum from the middle of the QRS
# a rhythm in which nothing is quiet: R-R of at most so many seconds, most of them alike
FAST_SECONDS, ALIKE, MOST_ALIKE, FEWEST_FAST = 0.5, 0.1, 0.8, 8
# a peak this close to one four times as high is its P or T wave
SHADOW_SECONDS, SHADOW_SHARE = 0.4, 0.25


class Intervals(NamedTuple):
    """Consecutive stretches of a window, which tile [0,T) in order."""

    start: np.ndarray  # int32 [n]
    length: np.ndarray  # int32 [n]
    complete: np.ndarray  # bool [n]: from one R peak to the next
    long: np.ndarray  # bool [n]: longer than the upper R-R bound
    merged_tail: bool  # there were more than max_beats, and the last interval holds the rest


def r_peaks_lead_ii(
    x: np.ndarray,
    rate: float,
    height: float = 2.0,
    retry_height: float = 1.0,
    min_distance: float = 0.3,
) -> np.ndarray:
    """The paper's detector on lead II [T]: maxima above `height` sigma, or above `retry_height` if
    fewer than three."""
    z = x - x.mean()
    spread = z.std()
    if spread > 1e-6:
        z = z / spread
    distance = max(1, round(min_distance * rate))
    peaks, _ = sps.find_peaks(z, height=height, distance=distance)
    if len(peaks) < 3:
        peaks, _ = sps.find_peaks(z, height=retry_height, distance=distance)
    return peaks


@lru_cache(maxsize=4096)
def _detector_lift(geometry: str, mask: int) -> np.ndarray:
    return lift_matrix(lead_matrix(geometry), mask_leads(mask), DETECTOR_EPS)


def r_peaks_vcg(
    x: np.ndarray,
    present: np.ndarray,
    rate: float,
    min_distance: float = 0.3,
    geometry: str = "paper",
    refine: bool = True,
    fast: bool = False,
) -> np.ndarray:
    """R peaks from the speed of the heart vector, lifted from the leads that are present in [12,T],
    however few.

    Speed has neither sign nor axis, so a small or inverted lead II does not matter. Without
    `refine` the peaks are those of the speed, up to 60 ms from the R maximum. With `fast`, a window
    without a peak is searched for a fast regular rhythm: there P and T waves leave no quiet stretch
    that a QRS could stand out from.
    """
    mask = lead_mask(present)
    if not mask or x.shape[1] < 3:
        return np.zeros(0, int)
    vcg = _detector_lift(geometry, mask) @ x  # [3,T]
    steep = np.gradient(bandpass(vcg, rate, *QRS_BAND, order=2), axis=1) * rate  # mV/s
    speed = np.sqrt((steep**2).sum(axis=0))
    peaks = _speed_peaks(speed, rate, min_distance)
    if fast and not len(peaks):
        peaks = _speed_peaks(speed, rate, min_distance, floor=0.0)
        peaks = peaks if _is_fast_rhythm(peaks, rate) else peaks[:0]
    return (
        _to_main_axis(peaks, vcg, round(REFINE_SECONDS * rate)) if refine and len(peaks) else peaks
    )


def r_peaks_quick(
    x: np.ndarray,
    present: np.ndarray,
    rate: float,
    min_distance: float = 0.3,
    geometry: str = "paper",
) -> np.ndarray:
    """r_peaks_vcg at a third of the cost: the change of the vector over 40 ms, instead of the speed
    of a filtered vector.

    On LUDB it is right in 98% of beats and r_peaks_vcg in all of them, which is good enough to see
    that nothing is wrong.
    """
    lag = max(1, round(QUICK_SECONDS * rate))
    if not np.any(present) or x.shape[1] <= lag:
        return np.zeros(0, int)
    vcg = _detector_lift(geometry, lead_mask(present)) @ x  # [3,T]
    change = vcg[:, lag:] - vcg[:, :-lag]
    speed = np.zeros(x.shape[1])
    speed[lag // 2 : lag // 2 + change.shape[1]] = np.sqrt((change**2).sum(axis=0))
    return _speed_peaks(speed, rate, min_distance)


def _is_fast_rhythm(peaks: np.ndarray, rate: float) -> bool:
    """Whether peaks [n] follow each other fast and evenly, as no noise does."""
    if len(peaks) < FEWEST_FAST:
        return False
    rr = np.diff(peaks) / rate
    middle = np.median(rr)
    return bool(middle <= FAST_SECONDS and (np.abs(rr / middle - 1) <= ALIKE).mean() >= MOST_ALIKE)


def _speed_peaks(
    speed: np.ndarray, rate: float, min_distance: float, floor: float = FLOOR
) -> np.ndarray:
    """Maxima [n] of the smoothed speed [T] that stand out like a QRS."""
    envelope = uniform_filter1d(speed, max(1, round(SMOOTH_SECONDS * rate)), mode="nearest")
    quiet, loud = _quantiles(envelope, (0.25, 0.98))
    threshold = max(LEVEL * loud, floor * quiet, 1e-6)
    padded = np.concatenate(
        [[0.0], envelope, [0.0]]
    )  # so that a beat cut by the edge is a maximum, too
    peaks, _ = sps.find_peaks(padded, height=threshold, distance=max(1, round(min_distance * rate)))
    peaks -= 1
    return peaks[~_in_shadow(peaks, envelope[peaks], SHADOW_SECONDS * rate)]


def _quantiles(x: np.ndarray, shares: tuple[float, ...]) -> np.ndarray:
    """np.quantile of one row in a third of the time."""
    return np.interp(np.array(shares) * (len(x) - 1), np.arange(len(x)), np.sort(x))


def _in_shadow(peaks: np.ndarray, height: np.ndarray, reach: float) -> np.ndarray:
    """Peaks [n] close to a neighbour that is several times as high."""
    shadow = np.zeros(len(peaks), bool)
    near = np.diff(peaks) < reach
    shadow[1:] |= near & (height[1:] < SHADOW_SHARE * height[:-1])
    shadow[:-1] |= near & (height[:-1] < SHADOW_SHARE * height[1:])
    return shadow


def _to_main_axis(peaks: np.ndarray, vcg: np.ndarray, reach: int) -> np.ndarray:
    """Moves peaks [n] to the nearby maximum along the direction in which most QRS of this record
    point.

    All beats share one axis: the largest vector alone would jump between R and S from beat to beat.
    """
    around = places_around(peaks, reach, vcg.shape[1])
    along = main_axis(vcg, around) @ vcg
    return np.unique(around[np.arange(len(peaks)), along[around].argmax(axis=1)])


def places_around(peaks: np.ndarray, reach: int, num_samples: int) -> np.ndarray:
    """The samples within `reach` of each peak [n], kept inside the signal: [n,2*reach+1]."""
    return np.clip(peaks[:, None] + np.arange(-reach, reach + 1), 0, num_samples - 1)


def main_axis(x: np.ndarray, around: np.ndarray) -> np.ndarray:
    """The direction [l] in which the beats of a signal [l,T] mostly point.

    It is the common direction of the largest vector among the places around each beat [n,k], with
    the sign of the majority.
    """
    beat = np.arange(len(around))
    largest = x[:, around[beat, (x**2).sum(axis=0)[around].argmax(axis=1)]]  # [l,n]
    axis = np.linalg.svd(largest, full_matrices=False)[0][:, 0]
    return axis if np.median(axis @ largest) >= 0 else -axis


def intervals(
    peaks: np.ndarray,
    num_samples: int,
    rr_min: float,
    rr_max: float,
    rate: float,
    max_beats: int,
    strength: np.ndarray | None = None,
) -> Intervals:
    """Stretches from peak to peak, and the two partial ones before the first and after the last
    peak.

    Of two peaks closer than `rr_min` the stronger stays (the first, without `strength` [n]). An
    interval longer than `rr_max` stays and is flagged. Beyond `max_beats` intervals the rest is
    merged into the last one.
    """
    order = np.argsort(peaks, kind="stable")
    strength = np.zeros(len(order)) if strength is None else np.asarray(strength)
    kept: list[int] = []
    for i in order:
        if not 0 <= peaks[i] < num_samples:
            continue
        if kept and peaks[i] - peaks[kept[-1]] < rr_min * rate:
            if strength[i] > strength[kept[-1]]:
                kept[-1] = i
            continue
        kept.append(i)
    bounds = np.asarray(peaks)[kept].astype(np.int64)
    starts = (
        bounds if len(bounds) and bounds[0] == 0 else np.concatenate([[0], bounds]).astype(np.int64)
    )
    complete = np.isin(starts, bounds)
    complete[-1] = False
    merged = len(starts) > max_beats
    if merged:
        starts, complete = starts[:max_beats], complete[:max_beats]
        complete[-1] = False
    length = np.diff(starts, append=num_samples)
    return Intervals(
        starts.astype(np.int32), length.astype(np.int32), complete, length > rr_max * rate, merged
    )


def cut_beats(
    x: np.ndarray, start: np.ndarray, length: np.ndarray, beat_samples: int
) -> np.ndarray:
    """Cuts intervals from [l,T] and resamples each linearly to P samples, keeping both end samples:
    [n,l,P]."""
    last = np.maximum(length[:, None].astype(np.float64) - 1, 0)
    return (
        _interpolate(x, start[:, None], last, np.linspace(0.0, 1.0, beat_samples) * last)
        .swapaxes(0, 1)
        .copy()
    )


def _interpolate(
    x: np.ndarray, start: np.ndarray, last: np.ndarray, position: np.ndarray
) -> np.ndarray:
    """Values of [l,T] between samples, at start + position with 0 <= position <= last:
    [l,*position.shape]."""
    left = np.floor(position)
    weight = (position - left).astype(x.dtype)
    right = np.minimum(left + 1, last)
    a = np.take(x, (start + left).astype(np.int64), axis=1)
    b = np.take(x, (start + right).astype(np.int64), axis=1)
    return a + weight * (b - a)


def stitch_beats(
    beats: np.ndarray, start: np.ndarray, length: np.ndarray, num_samples: int
) -> np.ndarray:
    """The inverse of cut_beats up to interpolation: [n,l,P] -> [l,T], each interval in its place
    and length."""
    n, leads, p = beats.shape
    beat = np.repeat(np.arange(n), length)  # [T]
    inside = np.arange(num_samples) - np.repeat(start, length)
    position = inside * (p - 1) / np.maximum(length[beat] - 1, 1)
    flat = beats.swapaxes(0, 1).reshape(leads, n * p)
    return _interpolate(flat, beat * p, np.float64(p - 1), position)
