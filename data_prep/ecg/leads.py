"""The twelve leads, always by name: spelling, order, bit masks, and what a user typed."""

import difflib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from data_prep.base.errors import InputError

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
_BY_LOWER = {lead.lower(): i for i, lead in enumerate(LEADS)}
_BITS = 1 << np.arange(len(LEADS))
# The six limb leads in terms of (I, II), in the order of LEADS; any two rows are independent.
LIMB = np.array([[1, 0], [0, 1], [-1, 1], [-0.5, -0.5], [1, -0.5], [-0.5, 1]])


@lru_cache(maxsize=4096)
def canonical(name: str) -> str | None:
    """The spelling in LEADS of a lead name in any case and spacing ('AVR', ' avr ', 'Lead II'), or
    None.

    Only the name counts: 'MLII' (a modified lead) and the Frank leads 'vx', 'vy', 'vz' are not
    among the twelve.
    """
    plain = re.sub(r"[\s_\-.]+", "", str(name)).lower()
    index = _BY_LOWER.get(plain.removeprefix("lead"))
    return None if index is None else LEADS[index]


def order_leads(signal: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Columns in any order [T,c] -> rows in the order of LEADS, float32 [12,T]; and unknown names.

    A lead that the record does not have is a row of NaN.
    """
    signal = np.asarray(signal)
    if signal.ndim != 2 or signal.shape[1] != len(names):
        raise InputError(
            f"signal has shape {signal.shape} but {len(names)} lead names:"
            " give [samples, leads], a name each"
        )
    ordered = np.full((len(LEADS), signal.shape[0]), np.nan, np.float32)
    seen: dict[str, str] = {}
    unknown = []
    for column, name in enumerate(names):
        lead = canonical(name)
        if lead is None:
            unknown.append(str(name))
            continue
        if lead in seen:
            raise InputError(
                f"lead {lead} is there twice ('{seen[lead]}' and '{name}'): keep one of them"
            )
        seen[lead] = str(name)
        ordered[_BY_LOWER[lead.lower()]] = signal[:, column]
    if not seen:
        raise InputError(
            f"none of the leads {', '.join(map(str, names)) or '(none)'}"
            f" is one of {', '.join(LEADS)}"
        )
    return ordered, unknown


def lead_mask(present: np.ndarray) -> int:
    """Booleans [12] -> bit mask; bit i is LEADS[i]."""
    return int(_BITS[np.asarray(present, bool)].sum())


def mask_leads(mask: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Bit masks, one integer or several [...] -> booleans [...,12]; bit i is LEADS[i]."""
    masks = np.asarray(mask)
    wrong = (masks < 0) | (masks >= 1 << len(LEADS))
    if wrong.any():
        raise InputError(
            f"lead mask {masks[wrong][0]} is not between 0 and {(1 << len(LEADS)) - 1}"
        )
    return (masks[..., None] & _BITS) != 0


def parse_leads(text: str) -> list[str]:
    """'ii, v2,V5' -> ['II', 'V2', 'V5'], in the order given and without repeats."""
    chosen = []
    for word in filter(None, (w.strip() for w in text.split(","))):
        lead = canonical(word)
        if lead is None:
            near = difflib.get_close_matches(word.lower(), _BY_LOWER, n=1, cutoff=0.4)
            hint = (
                f"did you mean {LEADS[_BY_LOWER[near[0]]]}?"
                if near
                else f"choose from {', '.join(LEADS)}"
            )
            raise InputError(f"unknown lead '{word}': {hint}")
        if lead not in chosen:
            chosen.append(lead)
    if not chosen:
        raise InputError(f"no lead given: choose from {', '.join(LEADS)}, separated by commas")
    return chosen
