"""The one bootstrap: confidence intervals from resampling whole patients.

Axis letters: m row, n patient, r resample, c class.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import expit, logit, stdtrit

STEEPEST = 4.0  # half an interval on the logit scale, at most
SUMMARY = ("mean", "low", "high", "median", "median_low", "median_high")


class PatientBootstrap:
    """Resamples patients, again and again; rows of one patient are treated alike.

    Means and medians (`summary`) come from as many patients as there are, drawn with replacement.
    Scores of classes come from random weights of the patients (`weights`), under which no patient
    vanishes, and so no class: their mean is over the same classes in every resample.

    The draws depend only on the patients' ids and the seed. Whatever is measured on the same rows
    is resampled alike, so that resampled values may be subtracted: a paired comparison.
    """

    def __init__(self, patients: Sequence[str] | np.ndarray, resamples: int = 1000, seed: int = 0):
        names, self.patient = np.unique(np.asarray(patients), return_inverse=True)  # [n], [m]
        self.count, self.resamples, self.seed = len(names), resamples, seed

    def draws(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of resamples, each with the numbers of the patients drawn, [r,n]."""
        rng = np.random.default_rng(self.seed)
        for block in self._blocks():
            yield block, rng.integers(0, self.count, (block.stop - block.start, self.count))

    def weights(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of resamples, each with the weight of every row, float64 [m,r]: exponential and
        of mean 1, the same for all rows of a patient (the Bayesian bootstrap)."""
        rng = np.random.default_rng(self.seed)
        for block in self._blocks():
            drawn = rng.exponential(size=(block.stop - block.start, self.count))
            yield block, np.ascontiguousarray(drawn[:, self.patient].T)

    def _blocks(self) -> Iterator[slice]:
        size = int(np.clip(2**18 // max(len(self.patient), 1), 8, 256))  # a block stays in cache
        for first in range(0, self.resamples, size):
            yield slice(first, min(first + size, self.resamples))

    def carriers(self, labels: np.ndarray) -> np.ndarray:
        """How many patients have the rarer outcome of each class: bool [m,c] -> [c]."""
        found = np.zeros((2, self.count, labels.shape[1]), bool)
        np.logical_or.at(found[0], self.patient, labels)
        np.logical_or.at(found[1], self.patient, ~labels)
        return found.sum(1).min(0)

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


def class_intervals(
    values: np.ndarray,
    resampled: np.ndarray,
    carriers: np.ndarray,
    bounded: bool = True,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of the scores [c] of several classes, [c,2], and of their mean, [2].

    resampled [r,c] are the scores under the weights of `PatientBootstrap`; `carriers` [c] is how
    many patients have the rarer outcome, 0 where the score does not depend on the patients. A
    standard error comes from the spread of the resampled scores, with three amendments for classes
    of few patients:

    - Weights of n patients spread a mean by (n - 1) / (n + 1) of its true variance: divided out.
    - Two or three patients say little about their own spread, one says nothing. Each class counts
      one patient more, an average one: of the mean score of all classes, and as variable as the
      patients of all classes are, relative to the most that a score from 0 to 1 can vary.
    - The error itself is uncertain, so its factor is that of Student's t. A class has as many
      degrees of freedom as carriers (two at least), their mean those of Welch and Satterthwaite.

    Scores between 0 and 1 (`bounded`) have symmetric intervals on the logit scale, except right
    beside 0 and 1, and differences of scores on their own.
    """
    values, n = np.asarray(values), np.asarray(carriers, np.float64)
    some, many = n > 0, n > 1
    factor = np.where(many, (n + 1) / np.maximum(n - 1, 1), ~some)
    deviation = np.sqrt(factor) * (resampled - resampled.mean(0))  # [r,c]
    own = deviation.var(0)
    # the variance that one patient adds, as a share of the most it could be
    likely = (n * values + values.mean()) / (n + 1)
    most = likely * (1 - likely) if bounded else np.ones_like(n)
    share = (n * own)[many].sum() / max(most[many].sum(), 1e-300) if many.any() else 1.0
    at_least = np.maximum(n, 1)
    variance = np.where(some, (share * most / at_least + (n - 1) * own) / at_least, own)
    # the mean over classes: classes vary together, and each has its amendment
    total = deviation.mean(1).var() + (variance - own).sum() / len(n) ** 2
    certain = np.where(some, np.maximum(n, 2), 1e9)
    freedom = variance.sum() ** 2 / max((variance**2 / certain).sum(), 1e-300)
    error = np.sqrt(np.maximum(np.append(variance, total), 0.0))
    half = stdtrit(np.append(certain, max(freedom, 1.0)), (1 + level) / 2) * error
    value, sides = np.append(values, np.mean(values))[:, None], np.array([-1.0, 1.0])
    bounds = value + half[:, None] * sides
    if bounded:
        # so near to 0 or 1 that its own slope there says nothing: as a difference, cut off
        inside = half[:, None] < STEEPEST * value * (1 - value)
        safe = np.where(inside, value, 0.5)
        on_logit = expit(logit(safe) + half[:, None] * sides / (safe * (1 - safe)))
        bounds = np.where(inside, on_logit, np.clip(bounds, 0.0, 1.0))
    return bounds[:-1], bounds[-1]
