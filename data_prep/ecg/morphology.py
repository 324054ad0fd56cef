"""What clinicians measure in an ECG, beat by beat, and the errors of a reconstruction in these.

Measured are the R peak, QRS, QT and PR in ms, and the ST level in mV. Signals are [12,T] in mV,
band-passed as in data_prep.ecg.preprocess. The boundaries are those of data_prep.ecg.delineate, one
for all leads of a beat. R peak: the largest value along the direction in lead space in which most
QRS complexes of the record point. QRS: onset to offset. QT: QRS onset to T offset. PR: P onset to
QRS onset. ST level of a lead: its value 60 ms after the QRS offset (the J point), minus the level
of the PR segment, which is its mean from 30 to 10 ms before the QRS onset. A high-pass filter pulls
ST towards zero, in the truth and in a reconstruction alike.

Axis letters: n beat, l lead, T sample, t sample of the 2 ms grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.delineate import (
    GRID,
    MAX_RATE,
    MIN_RATE,
    MIN_SECONDS,
    Waves,
    delineate,
    match_beats,
)
from data_prep.ecg.leads import LEADS
from data_prep.ecg.segment import main_axis, places_around, r_peaks_vcg
from data_prep.ecg.signal import resample

ST_AFTER_J = 0.06  # s
# s before the QRS onset: from the end of the P wave to where the filtered QRS begins
PR_LEVEL = (0.03, 0.01)
R_REACH = 0.06  # s around a detected beat within which its R peak lies
SAME_BEAT = 0.15  # s, at most, between the R peaks of one beat in truth and reconstruction
MEASURES = ("r_peak_ms", "qrs_ms", "qt_ms", "pr_ms", "st_mv")


@dataclass
class Morphology:
    """Measurements of the n beats of one record; NaN where there is nothing to measure (no P wave,
    no PR)."""

    r_peak: np.ndarray  # [n] samples, with fractions
    qrs_ms: np.ndarray  # [n]
    qt_ms: np.ndarray  # [n]
    pr_ms: np.ndarray  # [n]
    st_mv: np.ndarray  # [n,12], NaN in missing leads


@dataclass
class Intervals:
    """Medians over the beats of one record; NaN where there is nothing to measure."""

    beats: int
    heart_rate: float  # beats per minute, from the mean R-R interval
    pr_ms: float
    qrs_ms: float
    qt_ms: float
    qtc_bazett_ms: float  # QT / RR^(1/2), RR the mean R-R interval in s
    qtc_fridericia_ms: float  # QT / RR^(1/3)


@dataclass
class Comparison:
    """A reconstruction against the truth, beat by beat."""

    # measure -> absolute error [n] of every true beat; NaN if missed or not measurable
    errors: dict[str, np.ndarray]
    missed: np.ndarray  # bool [n]: beats of the truth that the reconstruction does not have
    extra: int  # beats of the reconstruction that the truth does not have
    # measure -> matched beats that have it in the truth but not in the reconstruction
    lost: dict[str, int]


def measure(
    x: np.ndarray, rate: float, leads: np.ndarray | None = None, r_peaks: np.ndarray | None = None
) -> Morphology:
    """Measures a record [12,T] from the given leads [12] (default: all that exist).

    It does so at beats that it detects, or at given R peaks in samples. Given peaks are moved to
    the maximum nearby, and two at the same maximum are one beat.
    """
    x, leads = _checked(x, rate, leads)
    y, r = _fine(x, leads, rate), _beats(x, leads, rate, r_peaks)
    return _measure(x, leads, rate, _r_maxima(y, r, _main_axis(y, r)))


def record_intervals(
    x: np.ndarray, rate: float, leads: np.ndarray | None = None, r_peaks: np.ndarray | None = None
) -> Intervals:
    """Heart rate, PR, QRS, QT and QTc of a record [12,T]; arguments as in `measure`."""
    found = measure(x, rate, leads, r_peaks)
    rr = float(np.diff(found.r_peak).mean() / rate) if len(found.r_peak) > 1 else np.nan
    pr, qrs, qt = (_median(values) for values in (found.pr_ms, found.qrs_ms, found.qt_ms))
    return Intervals(
        len(found.r_peak), 60 / rr, pr, qrs, qt, qt / rr ** (1 / 2), qt / rr ** (1 / 3)
    )


def compare_morphology(
    truth: np.ndarray,
    reconstructed: np.ndarray,
    rate: float,
    hidden: np.ndarray,
    r_peaks: np.ndarray | None = None,
) -> Comparison:
    """Errors of a reconstruction [12,T] against the truth [12,T], both in mV, in the leads `hidden`
    [12].

    Both are measured from the hidden leads alone, as visible ones would answer for them, and each
    at its own beats; those of the truth are detected, or given as `r_peaks`. Beats are paired if
    their R peaks are closest to each other and within 150 ms. A beat without a partner is missed;
    it is never counted as an error of half an R-R interval. R peaks of both are maxima along one
    direction, that of the truth. Hidden leads that the truth does not have are left out.
    """
    truth, hidden = _checked(truth, rate, hidden, "truth")
    reconstructed, live = _checked(reconstructed, rate, hidden, "reconstruction")
    if truth.shape != reconstructed.shape:
        raise InputError(
            f"truth has {truth.shape[1]} samples and the reconstruction {reconstructed.shape[1]}"
        )
    if not hidden.any():
        raise InputError("no hidden lead with values in the truth: there is nothing to compare")
    # both measured at their own beats, along the axis of the truth
    true_y, true_r = _fine(truth, hidden, rate), _beats(truth, hidden, rate, r_peaks)
    y, r = _fine(reconstructed, live, rate), _beats(reconstructed, live, rate)
    axis = _main_axis(true_y, true_r)
    wanted = _measure(truth, hidden, rate, _r_maxima(true_y, true_r, axis))
    got = _measure(reconstructed, hidden, rate, _r_maxima(y, r, axis))

    # errors of the beats that both have, and what the reconstruction lost
    match = match_beats(wanted.r_peak, got.r_peak, SAME_BEAT * rate)  # [n]
    pairs, partner = match >= 0, match[match >= 0]
    errors = {name: np.full(len(match), np.nan) for name in MEASURES}
    errors["r_peak_ms"][pairs] = 1000 / rate * np.abs(got.r_peak[partner] - wanted.r_peak[pairs])
    for name in ("qrs_ms", "qt_ms", "pr_ms"):
        errors[name][pairs] = np.abs(getattr(got, name)[partner] - getattr(wanted, name)[pairs])
    st = np.abs(got.st_mv[partner] - wanted.st_mv[pairs])[:, hidden]  # [k,l]
    errors["st_mv"][pairs] = st.mean(axis=1)
    known = {name: np.isfinite(getattr(wanted, name)) for name in ("qrs_ms", "qt_ms", "pr_ms")}
    known |= {"r_peak_ms": pairs, "st_mv": np.isfinite(wanted.st_mv[:, hidden]).all(axis=1)}
    lost = {name: int((known[name] & pairs & np.isnan(errors[name])).sum()) for name in MEASURES}
    return Comparison(errors, ~pairs, len(got.r_peak) - len(partner), lost)


def summarise(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Over records: the mean absolute error of each measure over beats, the number of beats, and
    what was missed.

    Keys: each measure; 'beats_' and 'lost_' followed by a measure; 'beats', 'missed' and 'extra'.
    """
    summary: dict[str, float] = {
        "beats": sum(len(c.missed) for c in comparisons),
        "missed": sum(int(c.missed.sum()) for c in comparisons),
        "extra": sum(c.extra for c in comparisons),
    }
    for name in MEASURES:
        values = np.concatenate([np.zeros(0), *(c.errors[name] for c in comparisons)])
        values = values[np.isfinite(values)]
        summary[name] = float(values.mean()) if len(values) else float("nan")
        summary[f"beats_{name}"] = len(values)
        summary[f"lost_{name}"] = sum(c.lost[name] for c in comparisons)
    return summary


def _checked(x, rate, leads, what: str = "signal") -> tuple[np.ndarray, np.ndarray]:
    """The signal in float64, and those of the leads [12] asked for that are finite and not
    constant."""
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or len(x) != len(LEADS):
        raise InputError(
            f"{what} has shape {x.shape}: give [12,T] in mV, one row per lead of {', '.join(LEADS)}"
        )
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InputError(f"sampling rate {rate} Hz: {MIN_RATE:g} to {MAX_RATE:g} are possible")
    leads = np.ones(len(LEADS), bool) if leads is None else np.asarray(leads, bool)
    if leads.shape != (len(LEADS),):
        raise InputError(
            f"leads have shape {leads.shape}: give twelve booleans, in the order {', '.join(LEADS)}"
        )
    live = np.isfinite(x).all(axis=1) & (np.ptp(x, axis=1) > 0 if x.shape[1] else False)
    return x, leads & live


def _fine(x: np.ndarray, leads: np.ndarray, rate: float) -> np.ndarray:
    """The leads [12,T] on the 2 ms grid, [12,t]; 0 in leads that are not used."""
    x = np.where(leads[:, None], x, 0.0)
    return resample(x, rate, GRID) if x.shape[1] >= MIN_SECONDS * rate else x[:, :0]


def _beats(
    x: np.ndarray, leads: np.ndarray, rate: float, r_peaks: np.ndarray | None = None
) -> np.ndarray:
    """Approximate places [n] of the beats on the 2 ms grid, in order: detected, or as given in
    samples."""
    if r_peaks is None:
        r_peaks = r_peaks_vcg(np.where(leads[:, None], x, 0.0), leads, rate, refine=False)
    r = np.sort(np.asarray(r_peaks, np.float64).reshape(-1))
    return r[(r >= 0) & (r < x.shape[1])] * GRID / rate


def _around(y: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Places [n,k] on the grid where the R peak of each beat may be."""
    return places_around(np.round(r).astype(int), round(R_REACH * GRID), y.shape[1])


def _main_axis(y: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The direction [12] in lead space in which most QRS complexes at r [n] point."""
    return main_axis(y, _around(y, r)) if len(r) and y.shape[1] else np.zeros(len(y))


def _r_maxima(y: np.ndarray, r: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """The maxima [m] along the axis near r [n], with fractions; beats with the same maximum are
    one."""
    if not len(r) or not y.shape[1]:
        return np.zeros(0)
    along, places = axis @ y, _around(y, r)
    top = np.unique(places[np.arange(len(r)), along[places].argmax(axis=1)])
    inner = np.clip(top, 1, len(along) - 2)
    before, here, after = along[inner - 1], along[inner], along[inner + 1]
    bend = before - 2 * here + after
    # the vertex of the parabola through three samples
    shift = np.where(bend < 0, 0.5 * (before - after) / np.where(bend < 0, bend, 1.0), 0.0)
    return top + np.where((top == inner) & (np.abs(shift) <= 1), shift, 0.0)


def _measure(x: np.ndarray, leads: np.ndarray, rate: float, r: np.ndarray) -> Morphology:
    """Measurements of the beats whose R peaks on the grid are r [n]."""
    r_peaks = r * rate / GRID
    waves = delineate(x, rate, leads, r_peaks)
    ms = 1000 / rate
    qrs, qt = waves.qrs_offset - waves.qrs_onset, waves.t_offset - waves.qrs_onset
    return Morphology(
        r_peaks,
        ms * qrs,
        ms * qt,
        ms * (waves.qrs_onset - waves.p_onset),
        _st(x, leads, rate, waves),
    )


def _st(x: np.ndarray, leads: np.ndarray, rate: float, waves: Waves) -> np.ndarray:
    """ST levels [n,12]; NaN if the record ends too early or the lead is missing."""
    place = waves.qrs_offset + ST_AFTER_J * rate  # [n]
    level = waves.qrs_onset[:, None] - rate * np.linspace(*PR_LEVEL, 11)  # [n,11]
    inside = (level[:, 0] >= 0) & (place <= x.shape[1] - 1)
    st = np.full((len(place), len(LEADS)), np.nan)
    grid = np.arange(x.shape[1])
    for lead in np.flatnonzero(leads):
        at = np.interp(place[inside], grid, x[lead])
        st[inside, lead] = at - np.interp(level[inside], grid, x[lead]).mean(axis=1)
    return st


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
