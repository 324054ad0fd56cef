"""The one bootstrap: confidence intervals from drawing whole patients with replacement.

Axis letters: m row, n patient, r resample.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

SUMMARY = ("mean", "low", "high", "median", "median_low", "median_high")


class PatientBootstrap:
    """Draws as many patients as there are, again and again; rows of one patient come and go
    together.

    The draws depend only on the patients' ids and the seed. Whatever is measured on the same rows
    is resampled alike, so that resampled values may be subtracted: a paired comparison.
    """

    def __init__(self, patients: Sequence[str] | np.ndarray, resamples: int = 1000, seed: int = 0):
        names, self.patient = np.unique(np.asarray(patients), return_inverse=True)  # [n], [m]
        self.count, self.resamples, self.seed = len(names), resamples, seed

    def draws(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of resamples, each with the numbers of the patients drawn, [r,n]."""
        rng = np.random.default_rng(self.seed)
        size = int(np.clip(2**18 // max(len(self.patient), 1), 8, 256))  # a block stays in cache
        for first in range(0, self.resamples, size):
            block = slice(first, min(first + size, self.resamples))
            yield block, rng.integers(0, self.count, (block.stop - first, self.count))

    def weights(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The same blocks with how often each row is drawn, float64 [m,r]."""
        for block, drawn in self.draws():
            offsets = self.count * np.arange(len(drawn))[:, None]
            counts = np.bincount((drawn + offsets).ravel(), minlength=drawn.size)
            by_row = counts.reshape(drawn.shape)[:, self.patient].T
            yield block, np.ascontiguousarray(by_row, dtype=np.float64)

    def summary(self, values: np.ndarray) -> dict[str, float]:
        """The mean over rows [m] and the median over patients, each with its 95% interval.

        A patient's value is the mean of its rows; rows of NaN are left out.
        """
        known = np.isfinite(values)
        total = np.bincount(self.patient[known], values[known], self.count)
        rows = np.bincount(self.patient[known], minlength=self.count)
        if not known.any():
            return dict.fromkeys(SUMMARY, math.nan)
        each = np.where(rows > 0, total / np.maximum(rows, 1), np.nan)  # [n]
        means, medians = np.full((2, self.resamples), np.nan)
        for block, drawn in self.draws():
            weight = rows[drawn].sum(1)
            some = weight > 0  # the others drew only patients without a value
            means[block][some] = total[drawn[some]].sum(1) / weight[some]
            medians[block][some] = np.nanmedian(each[drawn[some]], axis=1)
        found = (values[known].mean(), *interval(means), np.nanmedian(each), *interval(medians))
        return dict(zip(SUMMARY, map(float, found), strict=True))


def interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of resampled values [r], ignoring resamples without a value; (NaN, NaN)
    if none has one."""
    values = samples[~np.isnan(samples)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
