"""How wide a network's bands must be, learned from the records that no training step saw.

A network that has a `spread` says how large it expects its errors to be. On records that it was
trained on they are smaller than elsewhere, so what it says is multiplied by a factor for each
number of visible leads and each hidden lead, such that LEVEL of the true samples of held-out
records lie within REACH of it (bands.py). Axis letters: b row, l lead, p sample.
"""

import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.reconstruct.bands import LEVEL, REACH
from lvcg_jax.reconstruct.learned.examples import Examples, draw_visible
from lvcg_jax.reconstruct.learned.network import LeadNetwork
from lvcg_jax.reconstruct.learned.trained import derive, expected_error

DRAWS = 3  # sets of visible leads for each number of them


def learn_widths(
    network: LeadNetwork,
    examples: Examples,
    held: np.ndarray,
    learned: dict[str, np.ndarray],
    seed: int,
    params: dict,
) -> np.ndarray:
    """The factors [12,l] by the number of visible leads, 0 to 11."""
    ratios: dict[tuple[int, int], list[np.ndarray]] = {}  # by number and lead
    rows, variables = network.rows, {"params": params}
    for draw in range(DRAWS * (len(LEADS) - 1)):
        rng = np.random.default_rng([seed, 2**32 + draw])
        visible = draw_visible(rng, 1 + draw // DRAWS)
        extra = network.prepare(learned, visible)
        for first in range(0, len(held), rows):
            some = held[first : first + rows]
            shown, truth = examples.draw(np.resize(some, rows), visible, rng)
            shown |= extra
            error = np.abs(np.asarray(derive(network, variables, shown)) - truth["x"])
            ratio = (error / np.asarray(expected_error(network, variables, shown)))[: len(some)]
            for lead in np.flatnonzero(~visible):
                there = truth["counted"][: len(some), lead]
                ratios.setdefault((int(visible.sum()), lead), []).append(ratio[there, lead].ravel())

    # a number or lead that was not drawn gets the factor of the nearest number, of all leads
    factors = np.full((len(LEADS), len(LEADS)), np.nan)
    for (number, lead), some in ratios.items():
        if sum(map(len, some)):
            factors[number, lead] = np.quantile(np.concatenate(some), LEVEL) / REACH
    drawn = np.flatnonzero(np.isfinite(factors).any(1))
    for number in range(len(factors)):
        usual = np.nanmedian(factors[drawn[np.abs(drawn - number).argmin()]])
        factors[number] = np.where(np.isfinite(factors[number]), factors[number], usual)
    return factors.astype(np.float32)
