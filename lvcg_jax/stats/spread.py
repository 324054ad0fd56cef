"""How far a row lies from the rows that something was learned from.

The distance is Mahalanobis's, with a covariance of a few leading axes and the variance that each
feature has beside them (as in factor analysis): a full covariance of 988 features would be larger
than the weights that it stands beside. Each term counts for CLIP at most, so that many features
that are a little off weigh more than one that is far off. A usual row is about 1 away.

Axis letters: m row, d feature, k leading axis, q quantile.
"""

from dataclasses import dataclass

import numpy as np

from lvcg_jax.stats.scaling import mean_by

AXES = 16
CLIP = 9.0  # a term of three standard deviations
LEAST_VARIANCE = 1e-4  # of a scaled feature beside the axes
LEVELS = np.linspace(0, 1, 501)  # of the quantiles that are kept


@dataclass(frozen=True)
class Spread:
    """Where training rows lie, and the distribution of their own distances."""

    shift: np.ndarray  # [d]
    scale: np.ndarray  # [d], infinite for a feature that is constant
    axes: np.ndarray  # [d,k] int8, of scaled features, in proportion
    along: np.ndarray  # [k] variance along the axes
    beside: np.ndarray  # [d] variance of each feature beside them
    quantiles: np.ndarray  # [q] distances of training records at LEVELS

    def distance(self, x: np.ndarray) -> np.ndarray:
        """Rows [m,d] -> [m]."""
        return _distance((x - self.shift) / self.scale, self.axes, self.along, self.beside)

    def share_nearer(self, distance: np.ndarray) -> np.ndarray:
        """The share of training records that lie nearer than this, from 0 to 1."""
        return np.interp(distance, self.quantiles, LEVELS)


def fit_spread(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, numbers: np.ndarray) -> Spread:
    """The spread of training rows [m,d]; `numbers` [m] say which rows are of one record, whose
    distance is the mean of theirs."""
    z = ((x - shift) / scale).astype(np.float32)
    _, vectors = np.linalg.eigh((z.T @ z / len(z)).astype(np.float64))
    k = min(AXES, z.shape[1] - 1)
    leading = vectors[:, ::-1][:, :k]
    # a byte for each number is enough, and makes the file small
    axes = np.round(127 * leading / np.abs(leading).max(0)).astype(np.int8)
    on, off = _parts(z, axes)
    along = np.maximum((on**2).mean(0), LEAST_VARIANCE)
    beside = np.maximum((off**2).mean(0), LEAST_VARIANCE).astype(np.float32)
    distance = mean_by(numbers, _distance(z, axes, along, beside)[:, None])[:, 0]
    return Spread(shift, scale, axes, along, beside, np.quantile(distance, LEVELS))


def _parts(z: np.ndarray, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates [m,k] of rows [m,d] along the axes, and what is left of the rows, [m,d]."""
    unit = axes / np.linalg.norm(axes.astype(np.float32), axis=0)
    on = z @ unit
    return on, z - on @ unit.T


def _distance(z: np.ndarray, axes, along: np.ndarray, beside: np.ndarray) -> np.ndarray:
    on, off = _parts(z, axes)
    total = np.minimum(on**2 / along, CLIP).sum(1) + np.minimum(off**2 / beside, CLIP).sum(1)
    return np.sqrt(total.astype(np.float64) / z.shape[1])
