"""Probabilities that can be taken at their word: Platt's scaling, Brier score, calibration error.

Axis letters: m row, c class, b bin.
"""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

BINS = 15  # of equal width, from probability 0 to 1
SLOPES = (0.05, 50.0)  # least and largest slope for all classes, of scores of unit spread
LEAST_SLOPE = 0.05  # of one class: a higher score is always a higher probability
STEPS = 50  # of Newton's method at most


def fit_platt(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Slopes and offsets [2,c] with which expit(slope * score + offset) is a probability.

    First one slope about the mean score for all classes, a temperature; then slope and offset of
    each class, held near these by a penalty that counts like a normal prior of variance 1 (of the
    slope, if that is larger). So a class with many positives is fitted to them, and one with few or
    none keeps the common slope.

    Args:
      labels: bool [m,c] of rows that the scores were not fitted to: the validation split.
      scores: logits [m,c].
    """
    y, scores = np.asarray(labels, np.float64), np.asarray(scores, np.float64)
    # scores about the mean of their class, and of unit spread; a constant one stays 0
    mean = scores.mean(0)
    size = max(float((scores - mean).std()), 1e-12)
    scores = (scores - mean) / size

    def around(slope: float) -> np.ndarray:
        return np.stack([np.full(y.shape[1], slope), mean])

    options = {"bounds": SLOPES, "method": "bounded"}
    common = minimize_scalar(lambda s: _entropy(y, scores, around(s)).sum(), **options).x
    centre = around(common)
    penalty = np.array([[1 / max(common, 1.0) ** 2], [1.0]])

    def loss(found: np.ndarray) -> np.ndarray:
        return _entropy(y, scores, found) + 0.5 * (penalty * (found - centre) ** 2).sum(0)

    # Newton's method, all classes at once
    found, value = centre, loss(centre)
    for _ in range(STEPS):
        p = expit(found[0] * scores + found[1])
        weight = p * (1 - p)
        gradient = np.stack([((p - y) * scores).sum(0), (p - y).sum(0)])
        to_slope, to_offset = gradient + penalty * (found - centre)
        aa, bb = (weight * scores**2).sum(0) + penalty[0], weight.sum(0) + penalty[1]
        ab = (weight * scores).sum(0)
        step = np.stack([ab * to_offset - bb * to_slope, ab * to_slope - aa * to_offset])
        step = step / (aa * bb - ab**2)
        # a slope that would fall below the least one goes there, and the offset moves by itself
        held = found[0] + step[0] < LEAST_SLOPE
        step = np.where(held, np.stack([LEAST_SLOPE - found[0], -to_offset / bb]), step)
        # half the step, again and again, until no class is worse off
        for _ in range(30):
            lower = loss(found + step)
            worse = lower > value + 1e-12 * np.abs(value)
            if not worse.any():
                break
            step = np.where(worse, 0.5 * step, step)
        found, value = found + step, lower
        if np.abs(step).max() < 1e-9:
            break
    slope = found[0] / size
    return np.stack([slope, found[1] - slope * mean])


def _entropy(y: np.ndarray, scores: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Cross-entropy of slopes and offsets [2,c], added up over rows, [c]."""
    f = found[0] * scores + found[1]
    return (np.maximum(f, 0) + np.log1p(np.exp(-np.abs(f))) - y * f).sum(0)


def apply_platt(platt: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Logits [...,c] -> probabilities."""
    return expit(platt[0] * np.asarray(scores, np.float64) + platt[1])


def brier(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Mean squared difference of probability and outcome of each class, [m,c] -> [c]."""
    return ((probabilities - labels) ** 2).mean(0)


def reliability(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Rows, their probabilities added up and their positives in each bin, [b,3]; labels and
    probabilities of any shape, all of them together."""
    y, p = np.ravel(labels).astype(np.float64), np.ravel(probabilities)
    place = np.minimum((p * BINS).astype(int), BINS - 1)
    return np.stack([np.bincount(place, w, BINS) for w in (np.ones_like(p), p, y)], axis=1)


def error_of(bins: np.ndarray) -> float:
    """Expected calibration error of `reliability`: the mean distance of probability and share of
    positives over bins, weighted by their rows."""
    return float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
