"""Features brought to one scale: zero mean and unit variance, unit length, principal components;
and the rows of a record to one row."""

from typing import TYPE_CHECKING

import numpy as np

from data_prep.base.errors import InputError

if TYPE_CHECKING:
    from sklearn.decomposition import PCA


def mean_and_scale(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of features [m,d]; infinite for a constant one, so that it says
    nothing."""
    mean, scale = x.mean(0), x.std(0)
    return mean, np.where(scale > 1e-6 * (np.abs(x).max(0) + 1e-30), scale, np.inf)


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
