"""How large leads are that a record does not show, from the sizes of those that it shows.

The size of a lead is its standard deviation in mV. Over training records the logarithms of the
twelve sizes are taken for a Gaussian, so that in closed form the sizes of the visible leads give
the median of each hidden one, and how far it may be from that.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS

MEDIANS, COVARIANCE = "lead_sizes_mv", "lead_sizes_covariance"  # in the facts of a trained file
ROUNDING = 0.01  # of a visible size: differences below are nothing to go by
FARTHEST = 3.0  # spreads from the median; a size beyond them counts as this far


class LeadSizes(NamedTuple):
    """The Gaussian of the logarithms."""

    median: np.ndarray  # [12] mV
    covariance: np.ndarray  # [12,12]; zeros: nothing is known but the median
    # [12] how much logarithms differ between two records of a patient; None: too few have two
    revisit: np.ndarray | None = None

    @property
    def spread(self) -> np.ndarray:
        """Standard deviations [12] of the logarithms, before anything is seen."""
        return np.sqrt(np.diag(self.covariance))

    def given(self, sizes: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sizes [12] in mV, of which those `seen` are true, and the others replaced by their
        medians; and the standard deviations [12] of the logarithms, 0 where they are seen."""
        to_seen = self.covariance[:, seen]
        among = to_seen[seen] + ROUNDING**2 * np.eye(int(seen.sum()))
        weight = np.linalg.solve(among, to_seen.T).T
        far = np.log(sizes[seen] / self.median[seen])
        reach = FARTHEST * self.spread[seen]
        median = self.median * np.exp(weight @ np.clip(far, -reach, reach))
        left = np.diag(self.covariance) - (weight * to_seen).sum(1)
        spread = np.sqrt(np.maximum(left, 0.0))
        return np.where(seen, sizes, median), np.where(seen, 0.0, spread)

    def facts(self) -> dict:
        """As JSON takes it."""
        medians = {lead: round(float(x), 5) for lead, x in zip(LEADS, self.median, strict=True)}
        return {MEDIANS: medians, COVARIANCE: np.round(self.covariance, 5).tolist()}


def independent(median: np.ndarray, spread: np.ndarray) -> LeadSizes:
    """Sizes of which the visible ones say nothing about the others."""
    return LeadSizes(median, np.diag(spread**2))


def sizes_of_facts(facts: dict) -> LeadSizes | None:
    """What `facts` gave; files of older versions have medians alone, or nothing."""
    medians = facts.get(MEDIANS)
    if medians is None:
        return None
    covariance = np.array(facts.get(COVARIANCE, np.zeros((len(LEADS), len(LEADS)))))
    return LeadSizes(np.array([medians[lead] for lead in LEADS]), covariance)


def fit_sizes(rows: Sequence[np.ndarray] | np.ndarray) -> LeadSizes:
    """From the sizes [12] of training records, NaN in leads that a record does not have.

    Sizes far from the median are drawn in, so that a few loose electrodes do not widen the rest.
    """
    logs = np.log(rows)
    absent = np.isnan(logs).all(0)
    if absent.any():
        raise InputError(
            f"no training record has {', '.join(np.array(LEADS)[absent])}, so their usual size is"
            " not known: give other --data"
        )
    median = np.nanmedian(logs, axis=0)
    reach = FARTHEST * log_spread(logs)
    there = ~np.isnan(logs)
    far = np.where(there, np.clip(logs - median, -reach, reach), 0.0)
    together = np.maximum(there.T.astype(float) @ there, 1.0)  # records that have both leads
    values, vectors = np.linalg.eigh(far.T @ far / together)
    # leads that few records have together may ask for a negative variance
    return LeadSizes(np.exp(median), (vectors * np.maximum(values, 0.0)) @ vectors.T)


def log_spread(logs: np.ndarray) -> np.ndarray:
    """Half of what holds two thirds [12] of logarithms [k,12]."""
    low, high = np.nanquantile(logs, [1 / 6, 5 / 6], axis=0)
    return (high - low) / 2
