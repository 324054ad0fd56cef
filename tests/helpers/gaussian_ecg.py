"""An ECG of Gaussian waves from a moving dipole, where it is known how long every wave lasts."""

import numpy as np

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.signal import bandpass

# delay after R and width (one standard deviation) in seconds, height in mV, direction of the dipole
WAVES = {
    "P": (-0.16, 0.022, 0.15, (0.6, 0.8, 0.2)),
    "Q": (-0.025, 0.009, 0.2, (-0.5, -0.2, 0.8)),
    "R": (0.0, 0.012, 1.5, (0.7, 0.6, -0.3)),
    "S": (0.03, 0.012, 0.4, (-0.4, 0.3, -0.8)),
    "T": (0.26, 0.040, 0.35, (0.6, 0.6, 0.4)),
}
REGULAR = np.arange(0.45, 9.8, 0.8)


def raw_ecg(beats, rate=100.0, seconds=10.0, noise=0.0, seed=0, **waves):
    """Twelve leads [12,T] in mV with beats at these R peaks (s); waves={'T': (delay, width, height,
    axis)} differ."""
    t = np.arange(round(seconds * rate)) / rate
    vcg = np.zeros((3, len(t)))
    for r in beats:
        for delay, width, height, axis in {**WAVES, **waves}.values():
            vcg += height * np.array(axis)[:, None] * np.exp(-0.5 * ((t - r - delay) / width) ** 2)
    return lead_matrix("paper") @ vcg + np.random.default_rng(seed).normal(0, noise, (12, len(t)))


def filtered_ecg(beats, rate=100.0, **more):
    """The same, band-passed as for training."""
    return bandpass(raw_ecg(beats, rate, **more), rate, 0.67, 40, 3)


def changed(wave, **change):
    """A wave of WAVES with another delay, width, height or axis."""
    names = ("delay", "width", "height", "axis")
    return tuple(change.get(name, value) for name, value in zip(names, WAVES[wave], strict=True))


def dense_tachycardia(rate=100.0, seconds=10.0, seed=0):
    """Twelve leads [12,T] of 182 regular beats a minute whose waves leave nothing quiet between
    them, so that no QRS stands out."""
    waves = {
        "Q": changed("Q", height=0.0),
        "R": changed("R", width=0.03, height=1.0),
        "S": changed("S", height=0.0),
        "P": changed("P", width=0.04, height=0.8, delay=-0.14),
        "T": changed("T", height=0.0),
    }
    return raw_ecg(np.arange(0.1, seconds, 0.33), rate, seconds, 0.01, seed, **waves)
