"""The heart vector of one record, measured: its median beat as a loop, with axes, angles and sizes.

Takes any leads of any file that the project reads, and lifts them with fixed lead directions. Axes
are Frank's whatever the geometry: x to the patient's left, y to the feet, z to the back. A frontal
axis is an angle in the x-y plane: 0 degrees to the left, +90 to the feet. Everything is measured on
the median beat; the vector is zero just before the QRS. These are research figures from simple time
windows, not a diagnosis.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.ndimage import uniform_filter1d

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import (
    describe_view,
    frank_axes,
    lift_matrix,
    seen_directions,
    subset_facts,
)
from data_prep.ecg.leads import LEADS, canonical, mask_leads, parse_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.formats.any_file import read_any

RATE, BAND = 500.0, (0.5, 100.0)  # finer than in training: a QRS has ten samples at 100 Hz
EPS = 1e-4
# of R: at most so many seconds, and so much of an R-R interval
BEFORE, AFTER = (0.30, 0.35), (0.70, 0.62)
LEAST_BEFORE, LEAST_AFTER = 0.10, 0.35  # seconds around R without which there is no beat to measure
# correlation with the median beat under which a beat is left out, such as an ectopic one
ALIKE = 0.8
# s around R, share of the top speed, s of a turning point
QRS_REACH, QRS_SPEED, QRS_PAUSE = (0.12, 0.14), 0.08, 0.012
P_SECONDS, T_SHARE, ST_SECONDS, BASE_SECONDS = 0.22, 0.6, 0.06, 0.02
SMALL_MV = 0.02  # a mean vector under this has no axis


@dataclass(frozen=True)
class View:
    """The leads of a record that are used, cleaned and in mV."""

    record_id: str
    mv: np.ndarray  # [12,T], 0 where not visible
    visible: np.ndarray  # bool [12]
    peaks: np.ndarray  # int [n], R peaks in samples
    rate: float
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Waves:
    """First and end sample of the parts of a median beat."""

    p: tuple[int, int]
    qrs: tuple[int, int]
    t: tuple[int, int]


@dataclass(frozen=True)
class Loop:
    """A median beat as heart vector, in Frank's axes."""

    vcg: np.ndarray  # [3,W] in mV, zero just before the QRS
    rate: float
    r: int  # sample of the R peak
    rr: float | None  # seconds between beats, None when there is one only
    beats: int  # in the median
    waves: Waves
    notes: list[str] = field(default_factory=list)

    @property
    def milliseconds(self) -> np.ndarray:
        """Times [W] from the R peak."""
        return 1000 * (np.arange(self.vcg.shape[1]) - self.r) / self.rate


def open_view(
    path: str | Path,
    leads: str | None = None,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: str | None = None,
    start: float = 0.0,
    seconds: float = 10.0,
) -> View:
    """Reads a record and keeps the leads that are asked for (by name; all usable ones by
    default)."""
    wanted = parse_leads(leads) if leads else None
    if seconds < 1 or start < 0:
        raise InputError(
            f"--start={start:g} --seconds={seconds:g}: start at 0 or later and take 1 second or"
            " more"
        )
    record = read_any(path, rate, unit, lead_names)
    there = [canonical(name) for name in record.leads]
    for lead in wanted or ():
        if lead not in there:
            has = ", ".join(name for name in there if name) or "none of the twelve"
            raise InputError(f"record {record.record_id} has no lead {lead}: it has {has}")
    keep = [i for i, lead in enumerate(there) if (lead in wanted if wanted else lead)]
    if not keep:
        raise InputError(
            f"record {record.record_id}: none of {', '.join(record.leads)[:80]} is one of the"
            " twelve leads"
        )
    span = slice(round(start * record.rate), round((start + seconds) * record.rate))
    steps = Preprocess(
        rate=RATE,
        seconds=seconds,
        band_low=BAND[0],
        band_high=BAND[1],
        peaks="vcg",
        recover_limb_leads=False,
        max_beats=10_000,
        fast_rhythm=True,
    )
    try:
        window = steps.prepare(
            record.signal[span][:, keep], record.rate, [record.leads[i] for i in keep]
        )[0]
    except InputError as error:
        raise InputError(f"record {record.record_id}: {error}") from None
    visible = mask_leads(window.lead_mask)
    lost = [there[i] for i in keep if not visible[LEADS.index(there[i])]]
    if lost and wanted:
        why = [word for word in window.defects if word.split(":")[1:2] == [lost[0]]]
        raise InputError(
            f"record {record.record_id}: lead {lost[0]} is flat or unusable here"
            f" ({', '.join(why)}): leave it out of --leads"
        )
    notes = [f"{note[0].upper()}{note[1:]}." for note in record.notes]
    notes += [f"Not used, flat or with gaps: {', '.join(lost)}."] if lost else []
    mv = np.where(
        visible[:, None], window.signal * window.scale[:, None] + window.offset[:, None], 0.0
    )
    peaks = window.start if window.complete[0] else window.start[1:]
    return View(record.record_id, mv.astype(np.float64), visible, peaks, RATE, notes)


def median_beat(view: View) -> tuple[np.ndarray, int, float | None, int, list[str]]:
    """The median [12,W] of the beats that are like each other, its R sample, the R-R interval,
    beats used, notes."""
    rate, size = view.rate, view.mv.shape[1]
    rr = float(np.median(np.diff(view.peaks))) / rate if len(view.peaks) > 1 else None
    before = round(min(BEFORE[0], BEFORE[1] * (rr or np.inf)) * rate)
    after = round(min(AFTER[0], AFTER[1] * (rr or np.inf)) * rate)
    whole = [r for r in view.peaks if r >= before and r + after <= size]
    # a record of hardly one beat: the peak with most room around it, and what room there is
    if not whole:
        r = max(
            view.peaks,
            key=lambda r: min(r, LEAST_BEFORE * rate) + min(size - r, LEAST_AFTER * rate),
        )
        before, after, whole = min(before, r), min(after, size - r), [r]
        if before < LEAST_BEFORE * rate or after < LEAST_AFTER * rate:
            raise InputError(
                f"record {view.record_id} holds no whole beat in its {size / rate:.2f} s: at least"
                f" {LEAST_BEFORE:g} s before and {LEAST_AFTER:g} s after an R peak are needed"
            )
    beats = np.stack([view.mv[:, r - before : r + after] for r in whole])  # [n,12,W]
    median = np.median(beats, axis=0)
    centred = beats - beats.mean(2, keepdims=True)
    middle = median - median.mean(1, keepdims=True)
    norms = np.sqrt((centred**2).sum((1, 2)) * (middle**2).sum())
    alike = (centred * middle).sum((1, 2)) >= ALIKE * norms
    notes = []
    if 0 < alike.sum() < len(beats):
        median = np.median(beats[alike], axis=0)
        notes.append(
            f"{(~alike).sum()} of {len(beats)} beats are unlike the others and not in the median."
        )
    return median, before, rr, int(alike.sum()) or len(beats), notes


def find_waves(vcg: np.ndarray, rate: float, r: int, rr: float | None) -> Waves:
    """P, QRS and T of a median beat [3,W] from simple windows around R, the QRS refined by the
    vector's speed."""
    size = vcg.shape[1]
    smooth = uniform_filter1d(vcg, max(1, round(0.01 * rate)), axis=1)
    speed = np.sqrt((np.gradient(smooth, axis=1) ** 2).sum(0))
    first, end = max(0, r - round(QRS_REACH[0] * rate)), min(size, r + round(QRS_REACH[1] * rate))
    near = speed[first:end]
    quick = np.flatnonzero(near > max(QRS_SPEED * near.max(), 2 * np.median(speed))) + first
    # a turning point does not part them
    runs = np.split(quick, np.flatnonzero(np.diff(quick) > QRS_PAUSE * rate) + 1)
    centre = first + int(near.argmax())
    run = next((run for run in runs if len(run) and run[0] <= centre <= run[-1]), np.array([r]))
    qrs = (int(run[0]), int(run[-1]) + 1)
    if qrs[1] - qrs[0] < 0.04 * rate:  # no clear bounds: the plain window
        qrs = (max(0, r - round(0.06 * rate)), min(size, r + round(0.06 * rate)))
    qrs = (max(2, qrs[0]), qrs[1])  # there is always something before it
    end_t = min(size, r + round(T_SHARE * rr * rate)) if rr else size
    return Waves(
        (max(0, qrs[0] - round(P_SECONDS * rate)), qrs[0]), qrs, (qrs[1], max(end_t, qrs[1] + 1))
    )


def make_loop(view: View, matrix: np.ndarray, eps: float = EPS) -> Loop:
    """The median beat's heart vector from the visible leads; `matrix` [12,3] with either direction
    of z."""
    matrix = frank_axes(matrix)
    beat, r, rr, beats, notes = median_beat(view)
    vcg = lift_matrix(matrix, view.visible, eps) @ beat
    waves = find_waves(vcg, view.rate, r, rr)
    base = slice(max(0, waves.qrs[0] - round(BASE_SECONDS * view.rate)), max(1, waves.qrs[0]))
    vcg = vcg - vcg[:, base].mean(1, keepdims=True)
    notes = view.notes + notes + describe_view(matrix, view.visible, eps)
    if subset_facts(matrix, view.visible, eps)["rank"] < 3:
        notes.append("Angles and sizes are those of the part of the vector that is seen.")
    return Loop(vcg, view.rate, r, rr, beats, waves, notes)


def frontal_axis(vector: np.ndarray) -> float | None:
    """Degrees in the frontal plane, 0 to the patient's left, +90 to the feet; None for a vector too
    small to tell."""
    return (
        float(np.degrees(np.arctan2(vector[1], vector[0])))
        if np.hypot(*vector[:2]) >= SMALL_MV
        else None
    )


def angle_between(a: np.ndarray, b: np.ndarray) -> float | None:
    """Degrees between two vectors in space."""
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return (
        float(np.degrees(np.arccos(np.clip(a @ b / size, -1, 1)))) if size > SMALL_MV**2 else None
    )


def measure(loop: Loop, seen: np.ndarray | None = None) -> dict[str, float | None]:
    """Axes, angles and sizes of a loop. `seen` [3,3] projects on what the leads see; an axis
    outside it is None."""
    ms = loop.milliseconds
    size = np.linalg.norm(loop.vcg, axis=0)
    qrs, t = slice(*loop.waves.qrs), slice(*loop.waves.t)
    # the QRS may still end in the ST
    late = slice(min(t.start + round(ST_SECONDS * loop.rate), t.stop - 1), t.stop)
    top, top_t = qrs.start + int(size[qrs].argmax()), late.start + int(size[late].argmax())
    peak, peak_t = loop.vcg[:, top], loop.vcg[:, top_t]
    mean, mean_t = loop.vcg[:, qrs].mean(1), loop.vcg[:, t].mean(1)
    frontal = seen is None or np.linalg.eigvalsh(seen[:2, :2])[0] > 0.6
    space = seen is None or np.trace(seen) > 1.5
    largest = int(size.argmax())
    return {
        "qrs_axis_deg": frontal_axis(mean) if frontal else None,
        "t_axis_deg": frontal_axis(mean_t) if frontal else None,
        "qrs_peak_axis_deg": frontal_axis(peak) if frontal else None,
        "t_peak_axis_deg": frontal_axis(peak_t) if frontal else None,
        "qrs_t_angle_mean_deg": angle_between(mean, mean_t) if space else None,
        "qrs_t_angle_peak_deg": angle_between(peak, peak_t) if space else None,
        "qrs_peak_mv": float(size[top]),
        "t_peak_mv": float(size[top_t]),
        "qrs_mean_mv": float(np.linalg.norm(mean)),
        "t_mean_mv": float(np.linalg.norm(mean_t)),
        "max_vector_mv": float(size[largest]),
        "max_vector_x_mv": float(loop.vcg[0, largest]),
        "max_vector_y_mv": float(loop.vcg[1, largest]),
        "max_vector_z_mv": float(loop.vcg[2, largest]),
        "max_vector_ms": float(ms[largest]),
        "qrs_window_ms": float(1000 * (qrs.stop - qrs.start) / loop.rate),
        "heart_rate_bpm": 60 / loop.rr if loop.rr else None,
    }


def number_lines(numbers: dict[str, float | None], timing: bool = True) -> list[tuple[str, str]]:
    """The numbers as (name, value with unit), in the order in which one reads them; `timing`: the
    QRS window and the heart rate too."""

    def say(key: str, unit: str, digits: int = 0) -> str:
        value = numbers[key]
        if value is None:
            return "cannot be told"
        return f"{round(value, digits) + 0.0:.{digits}f}{unit}"

    def peak_and_mean(wave: str) -> str:
        return f"{say(f'{wave}_peak_mv', '', 2)} / {say(f'{wave}_mean_mv', ' mV', 2)}"

    largest = f"{say('max_vector_mv', ' mV', 2)} at R {numbers['max_vector_ms']:+.0f} ms"
    lines = [
        ("QRS axis (frontal, mean vector)", say("qrs_axis_deg", "°")),
        ("T axis (frontal, mean vector)", say("t_axis_deg", "°")),
        ("QRS axis (frontal, peak vector)", say("qrs_peak_axis_deg", "°")),
        ("T axis (frontal, peak vector)", say("t_peak_axis_deg", "°")),
        ("spatial QRS-T angle, mean vectors", say("qrs_t_angle_mean_deg", "°")),
        ("spatial QRS-T angle, peak vectors", say("qrs_t_angle_peak_deg", "°")),
        ("QRS vector, peak / mean", peak_and_mean("qrs")),
        ("T vector, peak / mean", peak_and_mean("t")),
        ("maximal spatial vector", largest),
        (
            "its x / y / z",
            " / ".join(say(f"max_vector_{axis}_mv", " mV" * (axis == "z"), 2) for axis in "xyz"),
        ),
    ]
    if timing:
        lines.append(("QRS window", say("qrs_window_ms", " ms")))
        lines.append(("heart rate", say("heart_rate_bpm", " beats a minute")))
    return lines


def summary(view: View, loop: Loop, matrix: np.ndarray, geometry: str, eps: float = EPS) -> dict:
    """Everything that the files say of a record, as plain data."""
    strengths, vectors = seen_directions(frank_axes(matrix), view.visible)
    facts = subset_facts(matrix, view.visible, eps)
    seen = vectors[strengths > 0].T @ vectors[strengths > 0]
    ms = loop.milliseconds
    windows = {
        name: [float(ms[first]), float(ms[end - 1])]
        for name, (first, end) in vars(loop.waves).items()
    }
    rank = int(facts["rank"])
    return {
        "record": view.record_id,
        "leads": [lead for lead, shown in zip(LEADS, view.visible, strict=True) if shown],
        "geometry": geometry,
        "axes": "x to the patient's left, y to the feet, z to the back",
        "eps": eps,
        "rank": rank,
        "condition": float(facts["condition"]) if rank == 3 else None,
        "gain": float(facts["gain"]),
        "unseen_directions": vectors[strengths == 0].tolist(),
        "beats": loop.beats,
        "notes": loop.notes,
        "numbers": measure(loop, seen),
        "windows_ms": windows,
        "ms": np.round(ms, 1).tolist(),
        "vcg_mv": np.round(loop.vcg, 4).tolist(),
    }
