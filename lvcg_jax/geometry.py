"""The fixed geometry between leads and heart vector: lead directions, Tikhonov lift, projection.

A record's twelve leads are `ecg = a @ vcg` with `a` [12,3]; the lift goes back from any visible subset of leads.
Numpy in float64 only: the 4,096 lift matrices are made once and looked up by lead bit mask in the train step.
Axes of the paper's matrix: +x to the patient's left, +y down, +z to the FRONT (V1 and V2 have z > 0). Frank's z, and
so Dower's, points to the back: `dower` rows are given in Frank's axes.
"""

from functools import lru_cache

import numpy as np

from data_prep.errors import InputError
from data_prep.leads import LEADS, mask_leads

NUM_SUBSETS = 2 ** len(LEADS)
RANK_TOLERANCE = 1e-6  # singular values under this share of the largest count as zero

_LIMB_DEGREES = (0, 60, 120, -150, -30, 90)  # I, II, III, aVR, aVL, aVF in the frontal plane
_CHEST_DEGREES = (110, 70, 40, 10, -20, -50)  # V1..V6 in a plane tilted down by 10 degrees
_DOWER_1968 = {
    "I": (0.632, -0.235, 0.059),
    "II": (0.235, 1.066, -0.132),
    "V1": (-0.515, 0.157, -0.917),
    "V2": (0.044, 0.164, -1.387),
    "V3": (0.882, 0.098, -1.277),
    "V4": (1.213, 0.127, -0.601),
    "V5": (1.125, 0.127, -0.086),
    "V6": (0.831, 0.076, 0.230),
}


def _paper_matrix() -> np.ndarray:
    limb, chest, tilt = np.deg2rad(_LIMB_DEGREES), np.deg2rad(_CHEST_DEGREES), np.deg2rad(10)
    frontal = np.stack([np.cos(limb), np.sin(limb), np.zeros(6)], axis=1)
    precordial = np.stack(
        [np.cos(tilt) * np.cos(chest), np.full(6, np.sin(tilt)), np.cos(tilt) * np.sin(chest)], axis=1
    )
    return np.concatenate([frontal, precordial])


def _dower_matrix() -> np.ndarray:
    one, two = (np.array(_DOWER_1968[lead]) for lead in ("I", "II"))
    limb = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    return np.stack(limb + [np.array(_DOWER_1968[f"V{k}"]) for k in range(1, 7)])


_MATRICES = {"paper": _paper_matrix, "dower": _dower_matrix}


def lead_matrix(geometry: str | tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Lead directions [12,3], rows in the order of LEADS: a name ('paper', 'dower') or twelve rows of three numbers."""
    if isinstance(geometry, str):
        if geometry not in _MATRICES:
            raise InputError(
                f"unknown geometry '{geometry}': choose from {', '.join(_MATRICES)} or give 12 rows of 3 numbers"
            )
        return _MATRICES[geometry]()
    matrix = np.asarray(geometry, np.float64)
    if matrix.shape != (len(LEADS), 3) or not np.isfinite(matrix).all():
        raise InputError(
            f"a geometry has 12 rows of 3 finite numbers in the order {', '.join(LEADS)}; got shape {matrix.shape}"
        )
    return matrix


def lift_matrix(a: np.ndarray, visible: np.ndarray, eps: float = 1e-4) -> np.ndarray:
    """Tikhonov pseudo-inverse W diag(s / (s^2 + eps)) U^T of the visible rows: visible [...,12] -> [...,3,12].

    Invisible leads have zero columns. Singular values under the relative tolerance count as zero.
    """
    shown = np.asarray(visible, bool)[..., None]
    rows = np.where(shown, np.asarray(a, np.float64), 0.0)  # [...,12,3]
    u, s, wt = np.linalg.svd(rows, full_matrices=False)
    lift = u * _gains(s, eps)[..., None, :] @ wt
    return np.swapaxes(np.where(shown, lift, 0.0), -1, -2)


def _gains(s: np.ndarray, eps: float) -> np.ndarray:
    """Singular values [...,3] of lead directions, largest first -> those of the lift, 0 where s counts as zero."""
    kept = s > RANK_TOLERANCE * s[..., :1]
    return np.where(kept, s / (np.where(kept, s * s, 1.0) + eps), 0.0)


def lift_table(a: np.ndarray, eps: float) -> np.ndarray:
    """The lift of every lead subset, [4096,3,12], indexed by the lead bit mask."""
    return lift_matrix(a, mask_leads(np.arange(NUM_SUBSETS)), eps)


def subset_facts(a: np.ndarray, visible: np.ndarray, eps: float = 1e-4) -> dict[str, np.ndarray]:
    """Facts of a lead subset: `rank`, `condition` (inf when rank < 3) and `gain`, the lift's largest singular value."""
    rows = np.where(np.asarray(visible, bool)[..., None], np.asarray(a, np.float64), 0.0)
    s = np.linalg.svd(rows, compute_uv=False)  # [...,3]
    gains = _gains(s, eps)
    rank = (gains > 0).sum(-1)
    condition = np.where(rank == 3, s[..., 0] / np.maximum(s[..., 2], 1e-300), np.inf)
    return {"rank": rank, "condition": condition, "gain": gains.max(-1)}


@lru_cache(maxsize=32)
def _subsets_of_size(size: int) -> tuple[int, ...]:
    masks = np.arange(NUM_SUBSETS)
    return tuple(int(m) for m in masks[mask_leads(masks).sum(-1) == size])


def training_subsets(
    a: np.ndarray, num_visible: int, eps: float, identifiable_only: bool, max_gain: float | None
) -> np.ndarray:
    """The lead bit masks [m] that training views are drawn from: K leads, spanning R^3 and of bounded lift if asked."""
    masks = np.array(_subsets_of_size(num_visible))
    facts = subset_facts(a, mask_leads(masks), eps)
    keep = np.ones(len(masks), bool)
    if identifiable_only:
        keep &= facts["rank"] == 3
    if max_gain is not None:
        keep &= facts["gain"] <= max_gain
    if not keep.any():
        raise InputError(
            f"no subset of {num_visible} leads is left with identifiable_only={identifiable_only} and"
            f" max_gain={max_gain}: raise max_gain or num_visible"
        )
    return masks[keep]


def project(a: np.ndarray, vcg: np.ndarray) -> np.ndarray:
    """Heart vector [...,3,t] -> twelve leads [...,12,t]."""
    return a @ vcg
