"""Records as they would be with electrodes in other places, for models of any kind.

`lvcg robustness` changes what LVCG believes of its leads, which no other method has. Here the leads
themselves change: what is recorded becomes a mixture M [12,12] of the leads in mV.

    electrodes mixed up   a lead has the signal of another one
    other directions      leads see the heart vector from A' [12,3] instead of A. The part of the
                          leads that a heart vector explains changes with them and the rest stays:
                          M = I + (A' - A) A^+

Beats stay where they were found, and every lead is normalised again. Axis letters: l lead, n beat,
T sample.
"""

from collections.abc import Callable

import numpy as np

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.reconstruct.unlike import ARMS_SWAPPED, CHEST_MOVED, wiring

Change = Callable[[dict], dict]
GEOMETRY = "paper"  # the lead directions A


def add_noise(a: np.ndarray, level: float, seed: int) -> np.ndarray:
    """A [12,3] with normal noise of standard deviation `level` on each entry; levels of one seed
    lie on one line."""
    return a + level * np.random.default_rng(seed).standard_normal(a.shape)


def rotate(a: np.ndarray, degrees: float, seed: int) -> np.ndarray:
    """A [12,3] with every row turned by an angle about an axis that is uniform on the sphere."""
    axis = np.random.default_rng(seed).standard_normal(3)
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(degrees)
    turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross  # Rodrigues
    return a @ turn.T


def mix(matrix: np.ndarray) -> Change:
    """A change of windows (see lvcg_jax/data/windows.py) whose leads are normalised one by one:
    their mixture by M [12,12] in mV."""

    def change(window: dict) -> dict:
        scale = np.asarray(window["scale"], np.float64)
        signal = np.asarray(window["signal"], np.float64)  # [l,T]
        beats = np.asarray(window["beats"], np.float64)  # [n,l,p]
        mixed = (matrix * scale) @ signal
        size = mixed.std(1)
        size = np.where(size > 1e-6, size, 1.0)  # a lead that is missing
        beats = np.einsum("kl,nlp->nkp", (matrix * scale) / size[:, None], beats)
        return window | {
            "signal": (mixed / size[:, None]).astype(np.float32),
            "beats": beats.astype(np.float32),
            "scale": size.astype(np.float32),
        }

    return change


def wired(leads: dict[str, tuple[int, str]]) -> np.ndarray:
    """M [12,12] of electrodes that were mixed up: lead -> (sign, lead whose signal it has)."""
    sign, place = wiring(leads)
    return sign[:, None] * np.eye(len(LEADS))[place]


def seen_from(directions: np.ndarray) -> np.ndarray:
    """M [12,12] of leads that see the heart vector from these directions [12,3]."""
    a = lead_matrix(GEOMETRY)
    return np.eye(len(LEADS)) + (directions - a) @ np.linalg.pinv(a)


def moves(seeds: int) -> dict[str, list[Change]]:
    """What electrodes do by name, with a change for each draw."""
    a, draws = lead_matrix(GEOMETRY), range(seeds)
    return {
        "arm electrodes swapped": [mix(wired(ARMS_SWAPPED))],
        "chest electrodes one place on": [mix(wired(CHEST_MOVED))],
        "directions turned by 15 degrees": [mix(seen_from(rotate(a, 15.0, s))) for s in draws],
        "directions turned by 30 degrees": [mix(seen_from(rotate(a, 30.0, s))) for s in draws],
        "noise 0.1 on directions": [mix(seen_from(add_noise(a, 0.1, s))) for s in draws],
    }
