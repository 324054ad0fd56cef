"""Features brought to one scale: zero mean and unit variance, unit length, principal components;
and the rows of a record to one row."""

from typing import TYPE_CHECKING

import numpy as np

from data_prep.base.errors import InputError
from lvcg_jax.stats.blocks import Features, blocks

if TYPE_CHECKING:
    from sklearn.decomposition import PCA


def mean_and_scale(x: Features) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of features [m,d]; infinite for a constant one, so that it says
    nothing."""
    found = [(len(some), some.mean(0), some.std(0), np.abs(some).max(0)) for some in blocks(x)]
    counts, means, scales, largest = map(np.array, zip(*found, strict=True))
    mean, scale = means[0], scales[0]
    if len(found) > 1:  # the variance is that within blocks and that of their means
        share = (counts / counts.sum())[:, None]
        exact = (share * means).sum(0)
        within = share * (scales.astype(np.float64) ** 2 + (means - exact) ** 2)
        mean, scale = (a.astype(means.dtype) for a in (exact, np.sqrt(within.sum(0))))
    return mean, np.where(scale > 1e-6 * (largest.max(0) + 1e-30), scale, np.inf)


def unit_rows(x: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Features [...,d] centred, scaled and of length one: a product of two is their cosine. Zeros
    stay zeros."""
    x = (np.asarray(x, np.float64) - mean) / scale
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def mean_by(number: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows [m,c] -> the mean over the rows of each number, [number of numbers,c]."""
    total = np.zeros((number.max() + 1, values.shape[1]))
    np.add.at(total, number, values)
    return total / np.bincount(number)[:, None]


def fit_pca(x: np.ndarray, components: int = 256) -> "PCA":
    """scikit-learn's PCA of rows [m,D], with fewer components than asked for where the rows span
    fewer dimensions.

    The solvers are the exact ones. The usual choice of scikit-learn draws random numbers here.
    """
    from sklearn.decomposition import PCA  # late: it takes a second, and few commands need it

    x = np.asarray(x, np.float64)
    if len(x) < 2 or not np.isfinite(x).all():
        raise InputError(f"PCA needs at least two rows of finite numbers, got {x.shape}")
    m, size = x.shape
    solver = "covariance_eigh" if m >= size else "full"
    with np.errstate(invalid="ignore"):  # rows that are all alike have no share of variance
        pca = PCA(min(components, m - 1, size), svd_solver=solver).fit(x)
        variance = pca.explained_variance_
        rank = int((variance > 1e-10 * variance[0]).sum())
        return pca if rank == len(variance) else PCA(rank, svd_solver=solver).fit(x)
