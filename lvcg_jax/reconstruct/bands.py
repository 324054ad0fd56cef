"""Bands that hold a stated share of the true samples: their width, learned from held-out records.

A model's own standard deviations are right on average over the records that it is like. Two things
are learned from records that it was not fitted on: how large the errors of a record are, given what
can be seen of it (how far it is from what the model expects, and what it looks like), and by which
factor the deviations of each lead and sample of the beat must then be multiplied, so that LEVEL of
the true samples lie within REACH of them. Both are closed forms: ridge regression and quantiles.

Axis letters: k record, n beat, l lead, p sample in beat, f feature of a record.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.9  # share of the true samples that a band is to hold
REACH = 1.6449  # standard deviations that hold this share of a normal distribution
FEWEST = 20  # records from which a width is learned
RIDGE = 20.0  # records that a weight must be worth
FARTHEST = 3.0  # standard deviations; a coordinate beyond them says no more
AROUND = 3  # samples to either side that share a quantile
FOLDS = 5  # of held-out records; each is judged by what the others teach


def features(distance: np.ndarray, place: np.ndarray) -> np.ndarray:
    """What a record is known by [f]: logarithms of its distances from what is expected, and its
    coordinates in standard deviations, with their squares; NaN for what is not known."""
    near = np.clip(place, -FARTHEST, FARTHEST)
    return np.concatenate([np.log(np.maximum(distance, 1e-12)), near, near**2])


class Widening(NamedTuple):
    """What a model's standard deviations are multiplied by."""

    sample: np.ndarray  # [l,p]
    weight: np.ndarray  # [f]
    centre: np.ndarray  # [f]
    spread: np.ndarray  # [f]
    least: float  # logarithm of the smallest factor that a record can have

    def of_record(self, known: np.ndarray) -> np.ndarray:
        """The factor of a record with these features [f], or of several [k,f]."""
        far = np.nan_to_num((known - self.centre) / self.spread)
        return np.exp(np.maximum(far @ self.weight, self.least))


def learn_widening(
    known: np.ndarray, growing: int, errors: Sequence[np.ndarray], hidden: np.ndarray
) -> Widening:
    """From held-out records: features [k,f], errors of each in the model's standard deviations
    [n,l,p], and which of its leads [k,l] these are known for.

    Errors may not become smaller with the first `growing` features, the distances. A lead that too
    few records have gets the factor 1.
    """
    # the size of a record's errors, from what it is known by
    centre, spread = known.mean(0), np.maximum(known.std(0), 1e-9)
    x = (known - centre) / spread
    size = np.array(
        [np.log((e[:, h] ** 2).mean() + 1e-12) / 2 for e, h in zip(errors, hidden, strict=True)]
    )
    size -= size.mean()
    found = Widening(
        np.ones(errors[0].shape[1:]), _weights(x, size, growing), centre, spread, float(size.min())
    )

    # what is left of the errors, given what the other records teach
    fold = np.arange(len(x)) * FOLDS // len(x)
    left = []
    for number in range(FOLDS):
        others = found._replace(weight=_weights(x[fold != number], size[fold != number], growing))
        left += [errors[i] / others.of_record(known[i]) for i in np.flatnonzero(fold == number)]

    # its quantile at each sample of a lead and those around it; the beat is a ring, from R peak
    # to R peak
    for lead in np.flatnonzero(hidden.sum(0) >= FEWEST):
        beats = np.abs(
            np.concatenate([e[:, lead] for e, h in zip(left, hidden, strict=True) if h[lead]])
        )
        around = np.stack([np.roll(beats, i, 1) for i in range(-AROUND, AROUND + 1)])
        found.sample[lead] = np.quantile(around, LEVEL, axis=(0, 1)) / REACH
    return found


def _weights(x: np.ndarray, size: np.ndarray, growing: int) -> np.ndarray:
    """Ridge weights [f] of features [k,f] for the logarithm of errors [k]."""
    weight = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ size)
    weight[:growing] = np.maximum(weight[:growing], 0.0)
    return weight
