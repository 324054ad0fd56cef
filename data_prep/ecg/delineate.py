"""Where the waves of each beat begin and end: P, QRS and T of an ECG with any number of leads.

There is one estimate per beat for all leads together, and no lead, sign or scale is preferred. The
QRS is where the signal moves fast, over all leads. T and P are examined along the direction in lead
space in which they are largest, and end where their flank has lost most of its slope. All of this
happens on a 2 ms grid: a sample at 100 Hz is 10 ms, as long as the errors to be measured. The
constants were set by the marks of cardiologists on one half of LUDB; `lvcg delineation_report`
prints the errors on the other half.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter1d

from data_prep.ecg.signal import resample

GRID = 500.0  # Hz
MIN_SECONDS = 0.3  # a shorter signal does not hold a beat
MIN_RATE, MAX_RATE = 50.0, 1e5  # Hz; below, a QRS has too few samples
QRS_SMOOTH = 0.008  # s, standard deviation of the Gaussian
QRS_BEFORE, QRS_AFTER = 0.08, 0.10  # s around the R peak: holds the fastest part of the QRS
QRS_CORE = 0.5  # share of the highest speed that is certainly QRS
QRS_REACH = 0.13  # s that the QRS can extend beyond its core
# shares of the highest speed, counted from the speed of the quiet stretch beside the QRS
ONSET_LEVEL, OFFSET_LEVEL = 0.07, 0.12
T_SMOOTH = 0.016  # s
T_FROM, T_MIN = 0.05, 0.08  # s after the QRS where T may begin, and s of signal that it needs
# the T peak lies before this share of the R-R interval, limited to these s
T_SHARE, T_UNTIL = 0.55, (0.25, 0.50)
T_TAIL = 0.1  # s that the T wave may last after that
PR_MIN = 0.06  # s before the next QRS onset that never belong to T
T_FOOT = 0.35  # of the steepest slope
T_FLANK = 0.2  # s from the peak to the steepest place, at most
TURN = 0.3  # share of the whole fall from the peak; a rise after that belongs to the next wave
P_SMOOTH = 0.012  # s
P_REACH = 0.3  # s before the QRS
P_GAP = 0.02  # s before the QRS onset that are blurred by its smoothed flank
P_MIN = 0.06  # s of signal between T and QRS that a P wave needs
P_FOOT, P_END_FOOT = 0.42, 0.55  # of the steepest slope
P_FLANK = 0.1  # s
# if there is a P wave, the median over beats keeps this share of the energy before the QRS
P_REPEATS = 0.55
P_ALIKE = 0.5  # correlation of a beat's stretch before the QRS with that median
# standard deviations of the Gaussian: closer to an end of the record, it creates slopes itself
EDGE = 3.0
SMALLEST = 0.01  # share of the QRS; smaller P and T waves are not reported


class Waves(NamedTuple):
    """Boundaries of each beat in samples (with fractions), [n] each; NaN where there is no such
    wave."""

    p_onset: np.ndarray
    p_peak: np.ndarray
    p_offset: np.ndarray
    qrs_onset: np.ndarray
    qrs_offset: np.ndarray
    t_peak: np.ndarray
    t_offset: np.ndarray


def delineate(x: np.ndarray, rate: float, present: np.ndarray, r_peaks: np.ndarray) -> Waves:
    """Boundaries of the beats at `r_peaks` [n] of a band-passed signal [l,T], from the leads
    `present` [l].

    The unit does not matter, and leads may have one scale or one each. It never fails: a lead with
    a value that is not finite is not used, and what is not found is NaN. A P wave is reported if
    the stretch before the QRS repeats from beat to beat, which it does not in fibrillation.
    """
    r_peaks = np.asarray(r_peaks, np.float64).reshape(-1)
    marks = np.full((len(r_peaks), len(Waves._fields)), np.nan)
    x, present = np.asarray(x, np.float64), np.asarray(present, bool)
    long_enough = MIN_RATE <= rate <= MAX_RATE and x.shape[1] >= MIN_SECONDS * rate
    usable = present & np.isfinite(x).all(axis=1)
    # a flat lead has nothing but rounding errors
    usable[usable] = [not np.allclose(row, row[:1], rtol=1e-9, atol=0) for row in x[usable]]
    inside = np.isfinite(r_peaks) & (r_peaks >= 0) & (r_peaks <= x.shape[1] - 1)
    if long_enough and usable.any() and inside.any():
        scale = rate / GRID
        x = x[usable] / np.abs(x[usable]).max()  # so that no square overflows
        beats, place = np.unique(r_peaks[inside], return_inverse=True)
        marks[inside] = _delineate(resample(x, rate, GRID), beats / scale)[place] * scale
    return Waves(*marks.T)


def match_beats(truth: np.ndarray, found: np.ndarray, tolerance: float) -> np.ndarray:
    """The index in `found` [m] of each beat of `truth` [n], or -1: each must be the nearest to the
    other, within the tolerance."""
    if not len(truth) or not len(found):
        return np.full(len(truth), -1)
    distance = np.abs(np.asarray(truth)[:, None] - np.asarray(found))  # [n,m]
    nearest = distance.argmin(axis=1)
    here = np.arange(len(distance))
    good = (distance.argmin(axis=0)[nearest] == here) & (distance[here, nearest] <= tolerance)
    return np.where(good, nearest, -1)


def _delineate(y: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Marks [n,7] on the grid of a signal [l,t] with R peaks r [n] in order."""
    # QRS from the speed over all leads, searched halfway to the neighbouring beats
    n, last = len(r), y.shape[1] - 1
    speed = gaussian_filter1d(
        np.sqrt((np.gradient(y, axis=1) ** 2).mean(axis=0)), QRS_SMOOTH * GRID
    )
    half = (r[:-1] + r[1:]) / 2
    bounds = zip(r, np.append(0, half), np.append(half, last), strict=True)
    qrs = np.array([_qrs(speed, *bound) for bound in bounds])  # [n,2]
    height = np.array([_height(y, onset, offset) for onset, offset in qrs])  # [n]

    # T between its QRS and the next
    smooth = gaussian_filter1d(y, T_SMOOTH * GRID, axis=1)
    rr = np.diff(r) if n > 1 else np.array([GRID])
    rr = np.append(rr, np.median(rr))
    following = np.append(np.where(np.isnan(qrs[1:, 0]), r[1:], qrs[1:, 0]) - PR_MIN * GRID, last)
    t = np.array(
        [
            _t_wave(smooth, *qrs[i], r[i], rr[i], following[i], SMALLEST * height[i])
            for i in range(n)
        ]
    )

    # P between the T wave before and the QRS
    smooth = gaussian_filter1d(y, P_SMOOTH * GRID, axis=1)
    earliest = np.append(0, np.fmax(t[:-1, 1], qrs[:-1, 1] + T_FROM * GRID))
    p = np.array([_p_wave(smooth, earliest[i], qrs[i, 0], SMALLEST * height[i]) for i in range(n)])
    p[~_p_repeats(smooth, earliest, qrs[:, 0])] = np.nan
    return np.concatenate([p, qrs, t], axis=1)


def _qrs(speed: np.ndarray, r: float, low: float, high: float) -> tuple[float, float]:
    """Onset and offset of the QRS at r, between low and high: where the speed [t] falls to that of
    its surroundings."""
    first, end = int(max(low, r - QRS_BEFORE * GRID)), int(min(high, r + QRS_AFTER * GRID)) + 1
    top = speed[first:end].max()
    if not top > 0:
        return np.nan, np.nan
    core = first + np.flatnonzero(speed[first:end] >= QRS_CORE * top)[[0, -1]]
    reach = round(QRS_REACH * GRID)
    before = speed[int(max(low, core[0] - reach)) : core[0] + 1][::-1]
    after = speed[core[1] : int(min(high, core[1] + reach)) + 1]
    return core[0] - _falls_to(before, ONSET_LEVEL, top), core[1] + _falls_to(
        after, OFFSET_LEVEL, top
    )


def _falls_to(speed: np.ndarray, level: float, top: float) -> float:
    """How far along speed [k] it first falls to `level`, a share of the way from its quiet tenth to
    `top`; NaN if never."""
    quiet = np.quantile(speed, 0.1)
    return _first_below(speed, quiet + level * (top - quiet))


def _first_below(values: np.ndarray, level: float) -> float:
    """The place (with a fraction) where values [k] first fall below the level; NaN if they start
    there or never do."""
    below = np.flatnonzero(values < level)
    if not len(below) or below[0] == 0:
        return np.nan
    i = below[0]
    return i - (level - values[i]) / (values[i - 1] - values[i])


def _height(y: np.ndarray, onset: float, offset: float) -> float:
    """The size of the QRS: the largest distance in lead space [l,t] from its onset."""
    if np.isnan(onset + offset):
        return np.nan
    around = y[:, int(onset) : int(offset) + 2]
    return np.sqrt(((around - around[:, :1]) ** 2).sum(axis=0).max())


def _bump(y: np.ndarray, first: int, end: int) -> tuple[np.ndarray, int, float]:
    """The wave in y[:, first:end]: the signal [t] along its direction and upright, its peak, and
    its height.

    Direction and peak are those of what rises above the straight line between both ends.
    """
    piece = y[:, first:end]
    above = piece - piece[:, :1] - (piece[:, -1:] - piece[:, :1]) * np.linspace(0, 1, end - first)
    axis = np.linalg.svd(above, full_matrices=False)[0][:, 0]
    along = axis @ above
    k = np.abs(along).argmax()
    return np.copysign(1.0, along[k]) * (axis @ y), first + int(k), abs(along[k])


def _foot(wave: np.ndarray, flank: float, share: float, open_end: bool) -> float:
    """How far from the peak wave[0] its flank [k] ends: where the slope is down to a share of the
    steepest.

    The steepest place is within `flank` seconds, and before the wave rises again. If the slope
    never gets that low, the flank ends at the flattest place; with `open_end`, where the record
    ends, it is NaN.
    """
    fall = wave[:-1] - wave[1:]
    if len(fall) < 3:
        return np.nan
    fallen = wave[0] - wave[1:]
    turns = np.flatnonzero((fall <= 0) & (fallen >= TURN * fallen.max()) & (fallen > 0))
    flank = min(round(flank * GRID), turns[0] if len(turns) else len(fall))
    steepest = int(fall[: max(3, flank)].argmax())
    if not fall[steepest] > 0:
        return np.nan
    reached = _first_below(fall[steepest:], share * fall[steepest])
    if np.isnan(reached):
        reached = np.nan if open_end else fall[steepest:].argmin()
    return steepest + reached + 0.5  # a difference lies between two samples


def _t_wave(y, onset, offset, r, rr, following, smallest) -> tuple[float, float]:
    """Peak and offset of the T wave after the QRS (onset, offset); it ends before `following`."""
    if np.isnan(onset + offset):
        return np.nan, np.nan
    first = int(offset + T_FROM * GRID)
    end = int(min(following, r + np.clip(T_SHARE * rr, *(GRID * s for s in T_UNTIL))))
    if end - first < T_MIN * GRID:
        return np.nan, np.nan
    along, peak, height = _bump(y, first, end)
    if not height > smallest:
        return np.nan, np.nan
    edge = int(len(along) - 1 - EDGE * T_SMOOTH * GRID)
    limit = int(min(end + T_TAIL * GRID, following, edge))
    offset = peak + _foot(along[peak : limit + 1], T_FLANK, T_FOOT, limit == edge)
    return (np.nan, np.nan) if np.isnan(offset) else (peak, offset)


def _p_wave(y, earliest, qrs_onset, smallest) -> tuple[float, float, float]:
    """Onset, peak and offset of the P wave between `earliest` and the QRS."""
    nothing = (np.nan, np.nan, np.nan)
    if np.isnan(earliest + qrs_onset):
        return nothing
    edge = round(EDGE * P_SMOOTH * GRID)
    first, end = int(max(earliest, qrs_onset - P_REACH * GRID, edge)), int(qrs_onset - P_GAP * GRID)
    if end - first < P_MIN * GRID:
        return nothing
    along, peak, height = _bump(y, first, end)
    if not height > smallest:
        return nothing
    onset = peak - _foot(along[first : peak + 1][::-1], P_FLANK, P_FOOT, first == edge)
    offset = peak + _foot(along[peak : end + 1], P_FLANK, P_END_FOOT, False)
    return nothing if np.isnan(onset + offset) else (onset, peak, offset)


def _p_repeats(y: np.ndarray, earliest: np.ndarray, qrs_onset: np.ndarray) -> np.ndarray:
    """Beats [n] whose stretch before the QRS looks like that of the other beats; all, if there are
    fewer than three."""
    # the stretch before each QRS, aligned at its end, without its mean
    size, gap = round(P_REACH * GRID), round(P_GAP * GRID)
    pieces = np.full((len(qrs_onset), len(y), size), np.nan)  # [n,l,k]
    for piece, start, onset in zip(pieces, earliest, qrs_onset, strict=True):
        end = -1 if np.isnan(onset) else int(onset) - gap
        first = max(int(np.nan_to_num(start)), end - size)
        if end - first >= P_MIN * GRID:
            part = y[:, first:end]
            piece[:, size - (end - first) :] = part - part.mean(axis=1, keepdims=True)
    there = ~np.isnan(pieces[:, 0, -1])
    if there.sum() < 3:
        return there
    # the typical stretch, and each beat along the direction in which that is largest
    width = (~np.isnan(pieces[:, 0])).sum(axis=1)  # [n]
    common = size - int(np.sort(width)[-3])  # from here on there are at least three beats
    typical = np.nanmedian(pieces[there][:, :, common:], axis=0)  # [l,k]
    axis = np.linalg.svd(typical, full_matrices=False)[0][:, 0]
    pieces, typical = np.einsum("l,nlk->nk", axis, pieces[:, :, common:]), axis @ typical
    seen = np.isfinite(pieces)
    pieces, typical = np.where(seen, pieces, 0.0), np.where(seen, typical, 0.0)  # [n,k]
    own, shared = (pieces**2).sum(axis=1), (typical**2).sum(axis=1)  # [n]
    alike = (pieces * typical).sum(axis=1) / np.sqrt(np.maximum(own * shared, 1e-300))
    repeats = np.median(shared[there]) >= P_REPEATS * np.median(own[there])
    return there & repeats & (alike >= P_ALIKE)
