"""How wide a network's bands must be, learned from the records that no training step saw.

A network that has a `spread` says how large it expects its errors to be. On records that it was
trained on they are smaller than elsewhere, so what it says is multiplied by a factor for each
hidden lead and each of PARTS parts of the beat, such that LEVEL of the true samples of held-out
records lie within REACH of it (bands.py). Where training records are at hand the factors are those
of the visible leads at hand; with the network alone, of their number. Axis letters: b row, l lead,
p sample, q part of the beat.
"""

from collections.abc import Callable

import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.reconstruct.bands import FEWEST, LEVEL, REACH
from lvcg_jax.reconstruct.learned.examples import Examples, draw_visible

DRAWS = 6  # sets of visible leads for each number of them
PARTS = 16  # of a beat, as it is stretched from R peak to R peak

# `shown` -> the derived leads and the errors that are expected, [b,l,p] each
Compute = Callable[[dict], tuple[np.ndarray, np.ndarray]]


def error_ratios(
    compute: Compute, examples: Examples, records: np.ndarray, visible: np.ndarray, rows: int
) -> dict[int, np.ndarray]:
    """Errors of hidden leads as multiples of what was expected, [b,q,p] by lead; one drawn row of
    each of these records."""
    found: dict[int, list[np.ndarray]] = {int(lead): [] for lead in np.flatnonzero(~visible)}
    rng = np.random.default_rng(len(records))
    for first in range(0, len(records), rows):
        some = records[first : first + rows]
        shown, truth = examples.draw(np.resize(some, rows), visible, rng)
        derived, expected = compute(shown)
        ratio = (np.abs(derived - truth["x"]) / expected)[: len(some)]
        for lead, several in found.items():
            there = truth["counted"][: len(some), lead]
            several.append(ratio[there, lead].reshape(there.sum(), PARTS, -1))
    return {lead: np.concatenate(several) for lead, several in found.items()}


def factor_of(ratios: np.ndarray) -> np.ndarray:
    """The factors [q] of a lead, from its ratios [b,q,p]; NaN if there are too few."""
    if len(ratios) < FEWEST:
        return np.full(PARTS, np.nan)
    return np.quantile(ratios, LEVEL, axis=(0, 2)) / REACH


def factors_by_number(
    compute_for: Callable[[np.ndarray], Compute], examples: Examples, held: np.ndarray, rows: int
) -> np.ndarray:
    """The factors [12,l,q] by the number of visible leads, 0 to 11, from drawn sets of leads."""
    ratios: dict[tuple[int, int], list[np.ndarray]] = {}  # by number and lead
    for draw in range(DRAWS * (len(LEADS) - 1)):
        visible = draw_visible(np.random.default_rng(draw), 1 + draw // DRAWS)
        found = error_ratios(compute_for(visible), examples, held, visible, rows)
        for lead, ratio in found.items():
            ratios.setdefault((int(visible.sum()), lead), []).append(ratio)

    # a number or lead that was not drawn gets the factor of the nearest number, of all leads
    factors = np.full((len(LEADS), len(LEADS), PARTS), np.nan)
    for (number, lead), some in ratios.items():
        factors[number, lead] = factor_of(np.concatenate(some))
    drawn = np.flatnonzero(np.isfinite(factors).any((1, 2)))
    if not len(drawn):  # a handful of records
        return np.ones_like(factors, np.float32)
    for number in range(len(factors)):
        usual = np.nanmedian(factors[drawn[np.abs(drawn - number).argmin()]], axis=0)
        factors[number] = np.where(np.isfinite(factors[number]), factors[number], usual)
    return factors.astype(np.float32)
