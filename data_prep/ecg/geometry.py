"""The geometry between leads and heart vector: lead directions, and the Tikhonov lift.

The twelve leads of a record are `ecg = a @ vcg` with `a` [12,3]; the lift goes back to the heart
vector from any visible subset of leads. Everything here is numpy in float64: the 4,096 lift
matrices are computed once, and the train step looks them up by lead bit mask. Axes of the paper's
matrix: +x to the patient's left, +y down, +z to the FRONT (V1 and V2 have z > 0). Frank's z, and so
Dower's, points to the back: the rows of `dower` are in Frank's axes, and those of a file should be.

A geometry can also be a field of up to twelve modes, `a` [12,k], which are no directions in space
(`lvcg field_modes` makes one). The same lift and projection serve it; `dipole_matrix` is for what
needs a vector in space.
"""

import csv
import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from data_prep.ecg.leads import LEADS, LIMB, mask_leads, parse_leads
from data_prep.ecg.signal import recover_limb_leads

NUM_SUBSETS = 2 ** len(LEADS)
SPACE = 3  # columns of a geometry whose rows are directions in space
RANK_TOLERANCE = 1e-6  # singular values under this share of the largest count as zero
LARGE_GAIN = 10.0  # a lift that amplifies more shows the noise of the leads, not the heart
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
# Kors et al. 1990: Frank's x, y, z by regression on eight leads in mV
_KORS_1990 = {
    "I": (0.38, -0.07, 0.11),
    "II": (-0.07, 0.93, -0.23),
    "V1": (-0.13, 0.06, -0.43),
    "V2": (0.05, -0.02, -0.06),
    "V3": (-0.01, -0.05, -0.14),
    "V4": (0.14, 0.06, -0.20),
    "V5": (0.06, -0.17, -0.11),
    "V6": (0.54, 0.13, 0.31),
}


def kors_matrix() -> np.ndarray:
    """The heart vector in Frank's axes by Kors' regression: [3,12], to be multiplied by leads in
    mV; limb leads beside I and II have no weight."""
    return np.array([_KORS_1990.get(lead, (0.0, 0.0, 0.0)) for lead in LEADS]).T


def _paper_matrix() -> np.ndarray:
    limb, chest, tilt = np.deg2rad(_LIMB_DEGREES), np.deg2rad(_CHEST_DEGREES), np.deg2rad(10)
    frontal = np.stack([np.cos(limb), np.sin(limb), np.zeros(6)], axis=1)
    precordial = np.stack(
        [np.cos(tilt) * np.cos(chest), np.full(6, np.sin(tilt)), np.cos(tilt) * np.sin(chest)],
        axis=1,
    )
    return np.concatenate([frontal, precordial])


def _dower_matrix() -> np.ndarray:
    rows = np.array(list(_DOWER_1968.values()))
    return np.concatenate([LIMB @ rows[:2], rows[2:]])


_MATRICES = {"paper": _paper_matrix, "dower": _dower_matrix}
GEOMETRIES = tuple(_MATRICES)


def lead_matrix(geometry: str | tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Lead directions [12,3] or modes of a field [12,k], rows in the order of LEADS.

    `geometry` is a name ('paper', 'dower'), a file for read_matrix, or twelve rows of 3 to 12
    numbers.
    """
    if isinstance(geometry, str):
        if geometry in _MATRICES:
            return _MATRICES[geometry]()
        if Path(geometry).suffix.lower() in (".json", ".csv"):
            return read_matrix(geometry)
        raise InputError(
            f"unknown geometry '{geometry}': choose from {', '.join(_MATRICES)},"
            " a .json or .csv file of lead directions, or give 12 rows of 3 to 12 numbers"
        )
    try:
        matrix = np.asarray(geometry, np.float64)
        got = f"shape {matrix.shape}"
    except (TypeError, ValueError):
        matrix, got = np.zeros(0), "rows of different lengths, or what is no number"
    sizes = [(len(LEADS), columns) for columns in range(SPACE, len(LEADS) + 1)]
    if matrix.shape not in sizes or not np.isfinite(matrix).all():
        raise InputError(
            "a geometry has 12 rows of 3 finite numbers, or up to 12 for a field, in the order"
            f" {', '.join(LEADS)}; got {got}"
        )
    return matrix


def dipole_matrix(geometry: str | tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Lead directions [12,3], where a vector in space is needed; an InputError for a field of more
    modes."""
    matrix = lead_matrix(geometry)
    if matrix.shape[1] != SPACE:
        name = geometry if isinstance(geometry, str) else "the geometry"
        raise InputError(
            f"{name} has {matrix.shape[1]} modes, which are no directions in space: give a geometry"
            f" of three numbers for each lead, such as {' or '.join(GEOMETRIES)}"
        )
    return matrix


def read_matrix(path: str | Path) -> np.ndarray:
    """Lead directions [12,3] or modes [12,k] from a file, by lead name and in any order.

    The file is JSON {"I": [0.63, -0.24, 0.06], ...} with 3 to 12 numbers for each lead, or CSV with
    the columns lead, x, y, z. A lead is the product of its row with the heart vector. Limb leads
    that are left out follow from two that are given, so the eight rows that are usually published
    (I, II, V1..V6) are enough.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the geometry file {path}: {first_line(error)}") from None
    rows = _csv_rows(text, path) if path.suffix.lower() == ".csv" else _json_rows(text, path)
    matrix, given = np.zeros((len(LEADS), 0)), np.zeros(len(LEADS), bool)
    for name, row in rows:
        try:
            lead = parse_leads(name)[0]
        except InputError as error:
            raise InputError(f"geometry file {path}: {error}") from None
        try:
            numbers = [float(value) for value in row]
        except (TypeError, ValueError):
            numbers = []
        if not given.any():
            matrix = np.zeros((len(LEADS), len(numbers)))
        if len(numbers) != matrix.shape[1] or not SPACE <= len(numbers) <= len(LEADS):
            raise InputError(
                f"geometry file {path}: lead {lead} needs three numbers, or every lead the same"
                f" number of modes up to {len(LEADS)}; got {str(row)[:60]}"
            )
        i = LEADS.index(lead)
        if given[i]:
            raise InputError(f"geometry file {path}: lead {lead} is there twice")
        matrix[i], given[i] = numbers, True
    matrix, given = recover_limb_leads(matrix, given)
    if not given.all():
        absent = ", ".join(lead for lead, there in zip(LEADS, given, strict=True) if not there)
        raise InputError(
            f"geometry file {path} has no row for {absent}: give all twelve leads by name"
        )
    if not np.isfinite(matrix).all():
        raise InputError(f"geometry file {path} holds a number that is not finite")
    return matrix


def _json_rows(text: str, path: Path) -> list[tuple[str, object]]:
    """(lead name, numbers) of a JSON file; repeated names are kept."""
    try:
        rows = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        raise InputError(f"geometry file {path} is not JSON: {error}") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, tuple) for row in rows):
        raise InputError(
            f'geometry file {path} needs lead names with three numbers: {{"I": [1, 0, 0], ...}}'
        )
    return rows


def _csv_rows(text: str, path: Path) -> list[tuple[str, object]]:
    """(lead name, numbers) of a CSV file."""
    table = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = [name.strip().lower() for name in table.fieldnames or ()]
    if not {"lead", "x", "y", "z"} <= set(columns):
        raise InputError(
            f"geometry file {path} needs the columns lead, x, y, z (more modes than three:"
            f" as JSON); found: {', '.join(columns)[:80]}"
        )
    table.fieldnames = columns
    return [(row["lead"] or "", [row[axis] for axis in "xyz"]) for row in table]


def save_matrix(path: str | Path, a: np.ndarray) -> None:
    """Writes lead directions [12,3], or modes [12,k], as the JSON that read_matrix reads."""
    rows = ",\n".join(
        f'  "{lead}": {json.dumps(row)}'
        for lead, row in zip(LEADS, np.round(a, 6).tolist(), strict=True)
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


def frank_axes(a: np.ndarray) -> np.ndarray:
    """The same directions [12,3] with +z to the back, as Frank has it.

    V2 looks at the heart from the front, so the sign of its z shows which way +z points.
    """
    return a * np.array([1.0, 1.0, -1.0]) if a[LEADS.index("V2"), 2] > 0 else a


def lift_matrix(a: np.ndarray, visible: np.ndarray, eps: float = 1e-4) -> np.ndarray:
    """The Tikhonov pseudo-inverse W diag(s / (s^2 + eps)) U^T of the visible rows: [...,12] ->
    [...,k,12] for `a` [12,k].

    Invisible leads have zero columns. Singular values under the relative tolerance count as zero.
    """
    shown = np.asarray(visible, bool)[..., None]
    rows = np.where(shown, np.asarray(a, np.float64), 0.0)  # [...,12,k]
    u, s, wt = np.linalg.svd(rows, full_matrices=False)
    lift = u * _gains(s, eps)[..., None, :] @ wt
    return np.swapaxes(np.where(shown, lift, 0.0), -1, -2)


def _gains(s: np.ndarray, eps: float) -> np.ndarray:
    """Singular values [...,k] of lead directions, largest first -> those of the lift; 0 if s counts
    as zero."""
    kept = s > RANK_TOLERANCE * s[..., :1]
    return np.where(kept, s / (np.where(kept, s * s, 1.0) + eps), 0.0)


def lift_table(a: np.ndarray, eps: float) -> np.ndarray:
    """The lift of every lead subset, [4096,k,12], indexed by the lead bit mask."""
    return lift_matrix(a, mask_leads(np.arange(NUM_SUBSETS)), eps)


def subset_facts(a: np.ndarray, visible: np.ndarray, eps: float = 1e-4) -> dict[str, np.ndarray]:
    """`rank`, `condition` (inf if the rank is below the columns of `a`) and `gain` (the lift's
    largest singular value) of a lead subset."""
    rows = np.where(np.asarray(visible, bool)[..., None], np.asarray(a, np.float64), 0.0)
    s = np.linalg.svd(rows, compute_uv=False)  # [...,k]
    gains = _gains(s, eps)
    rank = (gains > 0).sum(-1)
    condition = np.where(rank == s.shape[-1], s[..., 0] / np.maximum(s[..., -1], 1e-300), np.inf)
    return {"rank": rank, "condition": condition, "gain": gains.max(-1)}


def seen_directions(a: np.ndarray, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How strongly the visible leads [12] see each of k orthogonal directions, for `a` [12,k].

    Returns strengths [k], largest first, and unit vectors [k,k]. A strength of 0 is a direction
    that these leads do not see at all.
    """
    rows = np.where(np.asarray(visible, bool)[:, None], np.asarray(a, np.float64), 0.0)
    _, s, vectors = np.linalg.svd(rows, full_matrices=False)
    return np.where(s > RANK_TOLERANCE * s[0], s, 0.0), vectors


def direction_words(vector: np.ndarray) -> str:
    """A direction in words, whatever its sign: 'front-back', or 'oblique, head-feet 0.71 and
    front-back 0.70'."""
    shares = sorted(
        zip(np.abs(vector), ("left-right", "head-feet", "front-back"), strict=True), reverse=True
    )
    if shares[0][0] >= 0.9:
        return shares[0][1]
    return "oblique, " + " and ".join(
        f"{word} {share:.2f}" for share, word in shares if share >= 0.25
    )


def describe_view(a: np.ndarray, visible: np.ndarray, eps: float = 1e-4) -> list[str]:
    """Sentences on what the visible leads do not or hardly see, and on the gain of the lift; none
    if all is well."""
    strengths, vectors = seen_directions(a, visible)
    gain = float(subset_facts(a, visible, eps)["gain"])
    names = [lead for lead, shown in zip(LEADS, visible, strict=True) if shown]
    source = f"From lead{'s' * (len(names) > 1)} {', '.join(names)}"
    rank = int((strengths > 0).sum())
    modes = len(strengths)
    if rank == modes and gain <= LARGE_GAIN:
        return []
    if modes > SPACE:
        text = f"{source}, {rank} of {modes} dimensions are seen; the others are set to zero."
    elif rank == 3:
        text = f"{source} the direction {_in_full(vectors[2])} is hardly seen."
    elif rank == 2:
        text = (
            f"{source} (2 of 3 dimensions) the direction {_in_full(vectors[2])}"
            " is not seen and is set to zero."
        )
    else:
        text = (
            f"{source} (1 of 3 dimensions) only {_in_full(vectors[0])} is seen;"
            " all across it is set to zero."
        )
    return [text, f"The regularised lift amplifies by up to {gain:.1f}."]


def _in_full(vector: np.ndarray) -> str:
    vector = vector * np.sign(vector[np.abs(vector).argmax()])
    numbers = ", ".join(
        f"{axis} {value + 0.0:.2f}" for axis, value in zip("xyz", np.round(vector, 2), strict=True)
    )
    return f"{direction_words(vector)} ({numbers})"


@lru_cache(maxsize=32)
def _subsets_of_size(size: int) -> tuple[int, ...]:
    masks = np.arange(NUM_SUBSETS)
    return tuple(int(m) for m in masks[mask_leads(masks).sum(-1) == size])


def training_subsets(
    a: np.ndarray, num_visible: int, eps: float, identifiable_only: bool, max_gain: float | None
) -> np.ndarray:
    """The lead bit masks [m] from which training views are drawn.

    They have `num_visible` leads; if asked, only those that span R^3 and whose lift has a bounded
    gain. In a field of more modes than three no few leads span it, so that all may be drawn: the
    lift is what is most likely given any of them.
    """
    masks = np.array(_subsets_of_size(num_visible))
    facts = subset_facts(a, mask_leads(masks), eps)
    keep = np.ones(len(masks), bool)
    if identifiable_only and a.shape[1] == SPACE:
        keep &= facts["rank"] == SPACE
    if max_gain is not None:
        keep &= facts["gain"] <= max_gain
    if not keep.any():
        raise InputError(
            f"no subset of {num_visible} leads is left with"
            f" identifiable_only={identifiable_only} and max_gain={max_gain}:"
            " raise max_gain or num_visible"
        )
    return masks[keep]
