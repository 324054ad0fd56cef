"""Confidence intervals from resampling patients."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.base.errors import InputError


def _resample(
    rows: int, groups: np.ndarray | None, resamples: int, seed: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """How often each row is drawn in each resample: blocks of resamples with their row weights
    [m,r]."""
    if groups is None:
        index, draws = np.arange(rows), rows
    else:
        if len(groups) != rows:
            raise InputError(
                f"the bootstrap got {len(groups)} group ids for {rows} rows; give one id per row"
            )
        names, index = np.unique(np.asarray(groups), return_inverse=True)
        draws = len(names)
    rng = np.random.default_rng(seed)
    chunk = int(np.clip(2**18 // max(rows, 1), 8, 256))  # keeps one block of weights in cache
    for first in range(0, resamples, chunk):
        size = min(chunk, resamples - first)
        drawn = rng.integers(0, draws, (size, draws)) + draws * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * draws).reshape(size, draws)
        yield slice(first, first + size), np.ascontiguousarray(counts[:, index].T, dtype=np.float64)


def interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap values [r], ignoring resamples without a value; (NaN, NaN)
    if none has one."""
    values = samples[~np.isnan(samples)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class PatientBootstrap:
    """Resamples whole patients, the same ones for every method, so that differences between methods
    are paired."""

    def __init__(self, patients: Sequence[str], resamples: int = 1000, seed: int = 0):
        names, self.patient = np.unique(np.asarray(patients).astype(str), return_inverse=True)
        self.count = len(names)
        # [r,m]
        self.drawn = np.random.default_rng(seed).integers(0, self.count, (resamples, self.count))

    def summary(self, values: np.ndarray) -> dict[str, float]:
        """Rows [k] -> mean over rows and median over patients, each with its 95% interval; rows of
        NaN are left out."""
        there = np.isfinite(values)
        total = np.bincount(self.patient[there], values[there], self.count)
        rows = np.bincount(self.patient[there], minlength=self.count)
        known = rows > 0
        if not known.any():
            return dict.fromkeys(
                ("mean", "low", "high", "median", "median_low", "median_high"), math.nan
            )
        weight = np.maximum(rows[self.drawn].sum(1), 1)
        low, high = interval(
            np.where(rows[self.drawn].any(1), total[self.drawn].sum(1) / weight, np.nan)
        )
        each = np.where(known, total / np.maximum(rows, 1), np.nan)  # [m]
        resampled = each[self.drawn]
        resampled = resampled[np.isfinite(resampled).any(1)]
        median_low, median_high = interval(np.nanmedian(resampled, axis=1))
        return {
            "mean": float(values[there].mean()),
            "low": low,
            "high": high,
            "median": float(np.median(each[known])),
            "median_low": median_low,
            "median_high": median_high,
        }
