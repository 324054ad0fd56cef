"""The heart, torso and electrodes behind the synthetic ECG.

The heart is a dipole that moves in three dimensions. Every wave (P, Q, R, S, ST, T) is a Gaussian
kernel in time with a direction in space, in the spirit of McSharry's dynamical model: a beat is a
small table of kernels, and a disease is a change of that table. A patient has a torso (how the
dipole reaches the electrodes), a baseline beat and lasting conditions; a record adds the times of
its beats and the noise of its electrodes. Axes are Frank's: x to the left, y to the feet, z to the
back.
"""

import math
from dataclasses import dataclass

import numpy as np

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LIMB

BEATS_PER_MINUTE = {"SR": (50, 110), "STACH": (90, 135), "SBRAD": (42, 64), "AFIB": (50, 130)}
# A row per wave: centre, width before and after it (s, at R-R = 1 s); x, y, z of the dipole (mV)
BEAT = {
    "P": (-0.165, 0.020, 0.022, 0.045, 0.085, -0.025),
    "P2": (-0.135, 0.020, 0.022, 0.050, 0.050, 0.045),
    "Q": (-0.026, 0.008, 0.008, -0.14, -0.05, -0.22),
    "R": (0.000, 0.010, 0.010, 0.85, 0.75, -0.02),
    "RS": (0.014, 0.010, 0.011, 0.40, 0.25, 0.60),
    "S": (0.036, 0.009, 0.011, -0.16, -0.22, 0.22),
    "late": (0.060, 0.014, 0.016, 0.00, 0.00, 0.00),
    "ST": (0.130, 0.040, 0.060, 0.00, 0.00, 0.00),
    "T": (0.290, 0.062, 0.042, 0.27, 0.20, -0.17),
}
P, P2, Q, R, RS, S, LATE, ST, T = range(9)
QRS = [Q, R, RS, S, LATE]
# anterior, inferior, lateral
INJURY = np.array([[0.15, 0.05, -1.0], [-0.15, 1.0, 0.20], [0.90, 0.10, 0.25]])
PVC_ORIGIN = np.array([[0.30, 0.95, 0.50], [-0.60, 0.25, -0.70], [0.35, -0.85, 0.40]])
# Electrodes RA, LA, LL, V1..V6 -> leads I, II, V1..V6. Noise enters at the electrodes, so it obeys
# Einthoven's law as well.
ELECTRODES = np.zeros((8, 9))
ELECTRODES[0, [0, 1]] = -1, 1
ELECTRODES[1, [0, 2]] = -1, 1
ELECTRODES[2:, :3] = -1 / 3
ELECTRODES[2:, 3:] = np.eye(6)


@dataclass(frozen=True)
class Patient:
    """What a patient keeps from record to record."""

    torso: np.ndarray  # [8,3], leads I, II, V1..V6 from the dipole
    beat: np.ndarray  # [9,6], the healthy beat
    pvc: np.ndarray  # [9,6], the ectopic beat
    injury: np.ndarray  # [3], direction of ST elevation
    lasting: dict  # condition -> typical severity
    ischaemic: bool
    atrial_fibrillation: float  # chance of AFIB in a record
    ectopy: float  # chance of PVC in a record
    rate_shift: float  # -1..1, where this heart usually lies in the range of a rhythm
    breathing: float  # breaths per second
    sinus_arrhythmia: float


def twelve_leads(x):
    """I, II, V1..V6 [8,T] -> the twelve leads [12,T], by Einthoven's and Goldberger's relations."""
    return np.concatenate([LIMB @ x[:2], x[2:]])


def make_patient(seed, patient, geometry="dower"):
    """Draws patient number `patient` of the corpus `seed`."""
    # the torso, with electrodes misplaced and of varying strength
    rng = keyed_rng(seed, 1, patient, 0)
    torso = lead_matrix(geometry)[[0, 1, 6, 7, 8, 9, 10, 11]].copy()
    if geometry == "paper":
        torso[:, 2] *= -1  # z of that matrix points to the front
    # precordial electrodes are displaced towards their neighbours
    misplaced = 0.15 * rng.standard_normal((6, 1))
    torso[2:] += (
        misplaced
        * (np.roll(torso[2:], -1, axis=0) - torso[2:])
        * np.array([1, 1, 1, 1, 1, 0])[:, None]
    )
    torso += 0.06 * np.linalg.norm(torso, axis=1, keepdims=True) * rng.standard_normal(torso.shape)
    torso *= np.exp(0.12 * rng.standard_normal((8, 1)))

    # the healthy beat, varied in times, widths, sizes and axes
    beat = np.array(list(BEAT.values()))
    beat[:, 0] *= np.exp(0.06 * rng.standard_normal(9))
    beat[:, 1:3] *= np.exp(0.14 * rng.standard_normal((9, 1)))
    beat[QRS, 1:3] *= np.exp(0.12 * rng.standard_normal())
    beat[:, 3:] *= np.exp(0.18 * rng.standard_normal((9, 1)))
    beat[QRS, 3:] *= np.exp(0.18 * rng.standard_normal())
    beat[QRS, 3:] += 0.08 * rng.standard_normal((5, 3))
    beat[ST, 3:] = 0.022 * rng.standard_normal(3)
    beat[T, 3:] += 0.06 * rng.standard_normal(3)
    axis = _rotation(rng.normal(0, 12), rng.normal(0, 18), rng.normal(0, 25))
    beat[QRS, 3:] = beat[QRS, 3:] @ axis.T
    # the axes of P and T vary by themselves, and less
    softer = _rotation(rng.normal(0, 8), rng.normal(0, 10), rng.normal(0, 12))
    beat[[P, P2, ST, T], 3:] = beat[[P, P2, ST, T], 3:] @ softer.T

    # the ectopic beat: broad, from one of three origins, with an opposite T
    force = _jitter(rng, PVC_ORIGIN[rng.integers(3)], 0.25) * rng.uniform(1.1, 1.7)
    pvc = beat.copy()
    pvc[:, 3:] = 0
    pvc[R] = (-0.005, 0.026, 0.024, *force)
    pvc[LATE] = (0.050, 0.026, 0.030, *(0.6 * _jitter(rng, force, 0.35)))
    pvc[ST] = (0.150, 0.050, 0.070, *(-0.12 * force))
    pvc[T] = (0.330, 0.080, 0.055, *(-0.38 * force))

    # lasting conditions
    lasting = {}
    bundle = rng.random()
    if bundle < 0.28:
        lasting["LBBB" if bundle < 0.14 else "RBBB"] = draw_severity(rng)
    if rng.random() < 0.18:
        lasting["LVH"] = draw_severity(rng)
    return Patient(
        torso=torso,
        beat=beat,
        pvc=pvc,
        injury=_jitter(rng, INJURY[rng.integers(3)], 0.2),
        lasting=lasting,
        ischaemic=bool(rng.random() < 0.35),
        atrial_fibrillation=float(rng.choice([0.01, 0.5, 0.95], p=[0.78, 0.12, 0.10])),
        ectopy=float(rng.choice([0.05, 0.6], p=[0.75, 0.25])),
        rate_shift=float(rng.uniform(-1, 1)),
        breathing=float(rng.uniform(0.18, 0.35)),
        sinus_arrhythmia=float(0.005 + 0.12 * rng.beta(1, 2)),
    )


def keyed_rng(seed, stream, patient, record):
    """The random numbers of one patient (stream 1) or one record (stream 2), whatever else is
    drawn."""
    return np.random.default_rng([seed, stream, patient, record])


def _rotation(x, y, z):
    """Rotation matrix from angles in degrees about the three axes."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(np.radians([x, y, z])), np.sin(np.radians([x, y, z]))
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


def _jitter(rng, vector, amount):
    """The vector, moved at random by about `amount` of its length."""
    return vector + amount * np.linalg.norm(vector) * rng.standard_normal(3) / math.sqrt(3)


def draw_severity(rng):
    """How pronounced a condition is, from 0.2 to 1; mild ones are more frequent."""
    return float(0.20 + 0.80 * rng.beta(1.5, 2))


def diseased_beat(beat, injury, conditions):
    """The beat table [9,6] under these conditions (name -> severity from 0 to 1)."""
    w = beat.copy()
    if v := conditions.get("LVH", 0):
        w[QRS, 3:] *= 1 + v * np.array([0.80, 0.45, 0.90])
        w[QRS, 1:3] *= 1 + 0.12 * v
        w[T, 3:] -= v * v * np.array([0.36, 0.12, -0.10])
        w[ST, 3:] -= v * v * np.array([0.09, 0.03, 0.03])
    if v := conditions.get("TINV", 0):
        w[T, 3:] *= 1 - 1.9 * v
    if v := conditions.get("LBBB", 0):
        w[Q, 3:] = (1 - v) * w[Q, 3:] + v * np.array([0.22, 0.12, 0.10])
        w[[R, RS], 1:3] *= 1 + 0.6 * v
        w[[R, RS], 3:] *= 1 - 0.25 * v
        w[RS, 0] += 0.012 * v
        w[S] = (1 - v) * w[S] + v * np.array([0.088, 0.016, 0.018, 0.22, -0.05, 0.35])
        w[LATE] = (1 - v) * w[LATE] + v * np.array([0.060, 0.020, 0.018, 0.75, 0.20, 0.55])
        w[ST, 3:] -= v * np.array([0.11, 0.02, 0.12])
        w[T, 3:] = (1 - v) * w[T, 3:] + v * np.array([-0.26, -0.02, -0.32])
        w[T, 0] += 0.035 * v
    if v := conditions.get("RBBB", 0):
        w[S, 3:] *= 1 - 0.8 * v
        w[LATE, 3:] += v * np.array([-0.62, -0.02, -0.60])
        w[LATE, :3] += v * np.array([0.004, 0.004, 0.006])
        w[T, 3:] += v * np.array([0.04, 0.00, 0.24])
        w[T, 0] += 0.020 * v
    if v := conditions.get("STE", 0):
        w[ST, 3:] += 0.33 * v * injury
        w[T, 3:] += 0.22 * v * injury
    if v := conditions.get("STD", 0):
        w[ST, 3:] -= v * np.array([0.22, 0.14, -0.05])
        w[T, 3:] *= 1 - 0.35 * v
    return w


def beat_times(rng, owner, rhythm, ectopy, seconds):
    """R times in seconds (some just outside the record), with flags for PVC and for unlabelled
    early atrial beats."""
    low, high = BEATS_PER_MINUTE[rhythm]
    place = np.clip(0.5 + 0.25 * owner.rate_shift + 0.22 * rng.standard_normal(), 0, 1)
    mean_rr = 60 / (low + (high - low) * place)
    n = int((seconds + 4) / mean_rr * 1.4) + 12
    if rhythm == "AFIB":
        cv = rng.uniform(0.05, 0.22)
        rr = np.maximum(mean_rr * rng.gamma(cv**-2, cv**2, n), 0.30)
    else:
        t = mean_rr * np.arange(n)
        slow, phases = rng.uniform(0.005, 0.035), rng.uniform(0, 2 * np.pi, 2)
        swing = owner.sinus_arrhythmia * np.sin(2 * np.pi * owner.breathing * t + phases[0])
        rr = mean_rr * (
            1
            + swing
            + slow * np.sin(2 * np.pi * 0.095 * t + phases[1])
            + 0.008 * rng.standard_normal(n)
        )
    # premature beats, with the pause after each
    times = -1.0 - mean_rr * rng.random() + np.cumsum(rr)
    ectopic, early = np.zeros(n, bool), np.zeros(n, bool)
    inside = np.flatnonzero((times > 0.9) & (times < seconds - 0.5))
    premature = ectopic if ectopy else early if rhythm != "AFIB" and rng.random() < 0.3 else None
    if premature is not None and len(inside):
        count = min(len(inside), rng.choice([1, 2, 3, 4], p=[0.4, 0.3, 0.2, 0.1]))
        for i in np.sort(rng.choice(inside, count, replace=False)):
            if not premature[i - 1]:
                premature[i] = True
                times[i] = times[i - 1] + max(rng.uniform(0.55, 0.82) * mean_rr, 0.32)
                times[i + 1 :] += max(0.0, times[i] + 1.05 * mean_rr - times[i + 1])  # the pause
                if early[i]:  # the sinus node is reset, so the pause is not fully compensatory
                    times[i + 1 :] -= rng.uniform(0, 0.8) * (times[i + 1] - times[i] - mean_rr)
    keep = (times > -1.0) & (times < seconds + 0.6)
    return times[keep], ectopic[keep], early[keep]


def heart_dipole(rng, owner, beat, times, ectopic, early, fibrillating, samples, rate):
    """The dipole [T,3]: the sum of every beat's kernels, plus f waves in atrial fibrillation."""
    # a table per beat: T moves with the rate, sizes with breathing
    n = len(times)
    rr = np.clip(
        np.diff(times, prepend=2 * times[0] - times[1] if n > 1 else times[0] - 0.8), 0.3, 1.6
    )
    rr = 0.5 * rr + 0.5 * np.median(rr)
    w = np.where(ectopic[:, None, None], owner.pvc, beat)  # [n,9,6]
    breath = np.sin(2 * np.pi * owner.breathing * times)
    w[:, :, 3:] *= (1 + 0.04 * breath + 0.02 * rng.standard_normal(n))[:, None, None]
    w[:, [ST, T], :3] *= np.sqrt(rr)[:, None, None]
    w[:, [P, P2], 0] *= (rr**0.25)[:, None]
    if fibrillating:
        w[:, [P, P2], 3:] = 0
    w[early, P, 3:] *= -0.4

    # the sum of all kernels around each beat
    width = int(1.35 * rate)
    first = np.floor((times - 0.45) * rate).astype(int)
    # [n,width]
    tau = ((first[:, None] + np.arange(width)) / rate - times[:, None]).astype(np.float32)
    w = w.astype(np.float32)
    z = tau[:, None, :] - w[:, :, :1]
    z *= np.where(z < 0, 1 / w[:, :, 1:2], 1 / w[:, :, 2:3])
    kernels = np.exp(-0.5 * z * z)  # [n,9,width]
    patches = np.swapaxes(w[:, :, 3:], 1, 2) @ kernels  # [n,3,width]
    pad = 2 * width
    total = np.zeros((3, samples + 2 * pad))
    for start, patch in zip(first + pad, patches, strict=True):
        total[:, start : start + width] += patch
    vcg = total[:, pad : pad + samples].T
    if fibrillating:
        t = np.arange(samples) / rate
        wobble = np.sin(2 * np.pi * rng.uniform(0.1, 0.4) * t + rng.uniform(0, 6)) + np.sin(
            2 * np.pi * 0.9 * t
        )
        phase = 2 * np.pi * rng.uniform(4.5, 7.5) * t + 0.9 * wobble
        shape = (np.sin(phase) + 0.35 * np.sin(2 * phase + 0.7)) * (
            1 + 0.35 * np.sin(2 * np.pi * rng.uniform(0.2, 0.7) * t)
        )
        direction = _jitter(rng, np.array([-0.25, 0.45, -0.75]), 0.3)
        vcg = vcg + rng.uniform(0.025, 0.10) * shape[:, None] * direction
    return vcg


def true_peaks(vcg, times, ectopic, rate):
    """R peaks: the largest dipole within 90 ms of each beat, without beats that the edge of the
    record cuts."""
    reach = round(0.09 * rate)
    centre = np.round(times * rate).astype(int)
    keep = (centre - reach >= 0) & (centre + reach < len(vcg))
    centre, ectopic = centre[keep], ectopic[keep]
    size = (vcg**2).sum(axis=1)
    return centre - reach + np.argmax(
        size[centre[:, None] + np.arange(-reach, reach + 1)], axis=1
    ), ectopic


def electrode_noise(rng, owner, samples, rate):
    """Baseline wander, muscle, mains and sometimes one bad electrode: [9,T] in mV."""
    t = np.arange(samples) / rate
    level = float(np.exp(0.7 * rng.standard_normal()))
    hertz = np.array(
        [rng.uniform(0.03, 0.12), rng.uniform(0.12, 0.2), owner.breathing, 2 * owner.breathing]
    )
    waves = np.sin(2 * np.pi * hertz[:, None] * t + rng.uniform(0, 2 * np.pi, (4, 1)))
    noise = (0.05 * level * rng.standard_normal((9, 4)) * [1, 0.8, 0.7, 0.2]) @ waves
    muscle = rng.standard_normal((9, samples + 1), dtype=np.float32)
    muscle = muscle[:, 1:] - 0.6 * muscle[:, :-1]  # more at high frequencies
    effort = 1 + 0.6 * np.sin(2 * np.pi * rng.uniform(0.05, 0.3) * t + rng.uniform(0, 6))
    loudness = (
        0.011 * math.exp(0.7 * rng.standard_normal()) * np.exp(0.3 * rng.standard_normal((9, 1)))
    )
    if rng.random() < 0.15:  # a loose electrode
        bad = rng.integers(9)
        loudness[bad] *= rng.uniform(3, 8)
        bumps = rng.uniform(0, samples / rate, 3)
        noise[bad] += (0.3 * rng.standard_normal(3)) @ np.exp(
            -0.5 * ((t - bumps[:, None]) / 0.25) ** 2
        )
    noise += muscle * loudness * effort
    if rate > 110:  # below that, mains would be aliased
        hum = 0.006 * math.exp(0.8 * rng.standard_normal()) * rng.standard_normal((9, 1))
        noise += hum * np.sin(2 * np.pi * 50 * t + rng.uniform(0, 6))
    return noise
