"""Features brought to one scale: zero mean and unit variance, unit length, principal components."""

from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError


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


@dataclass(frozen=True)
class Pca:
    """Principal axes of training rows."""

    mean: np.ndarray  # [D]
    axes: np.ndarray  # [D,k] orthonormal columns, largest variance first
    variance: np.ndarray  # [k]
    total_variance: float

    def project(self, x: np.ndarray) -> np.ndarray:
        """[m,D] -> float32 [m,k]"""
        return ((np.asarray(x, np.float64) - self.mean) @ self.axes).astype(np.float32)


def fit_pca(x: np.ndarray, components: int = 256) -> Pca:
    """Principal axes of rows [m,D]; fewer than asked when the rows span fewer dimensions. Signs are
    fixed."""
    x = np.asarray(x, np.float64)
    if len(x) < 2 or not np.isfinite(x).all():
        raise InputError(f"PCA needs at least two rows of finite numbers, got {x.shape}")
    mean = x.mean(0)
    x = x - mean
    m, size = x.shape
    if m >= size:
        variance, axes = np.linalg.eigh(x.T @ x / m)
        variance, axes = variance[::-1], axes[:, ::-1]
    else:
        _, singular, axes = np.linalg.svd(x, full_matrices=False)
        variance, axes = singular**2 / m, axes.T
    keep = np.flatnonzero(variance > 1e-10 * max(variance[0], 1e-300))[:components]
    variance, axes = variance[keep], axes[:, keep]
    largest = axes[np.abs(axes).argmax(0), np.arange(len(keep))]
    return Pca(
        mean, axes * np.where(largest < 0, -1.0, 1.0), variance, float(np.square(x).sum() / m)
    )
