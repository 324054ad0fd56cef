"""Scores of predictions: AUROC and average precision with ties, F1, thresholds, and all of them
under the weights of a bootstrap (numpy only).

A class that has no positive (or no negative) row has no AUROC. It is left out of every mean and
named, never counted as 0.5. Axis letters: m row, c class, r resample.
"""

from collections.abc import Sequence

import numpy as np

from data_prep.base.errors import InputError
from lvcg_jax.stats.bootstrap import PatientBootstrap


def auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a positive row scores above a negative one, a tie counting half; NaN when
    one side is empty."""
    labels, scores = _binary(labels), _finite(scores)
    if labels.shape != scores.shape or labels.ndim != 1:
        raise InputError(
            f"auroc needs labels [m] and scores [m] of one length, got {labels.shape} and"
            f" {scores.shape}"
        )
    positive, negative = scores[labels], np.sort(scores[~labels])
    if not positive.size or not negative.size:
        return float("nan")
    below = np.searchsorted(negative, positive, "left") + np.searchsorted(
        negative, positive, "right"
    )
    return float(below.sum(dtype=np.float64) / (2.0 * positive.size * negative.size))


def macro_auroc(
    labels: np.ndarray, scores: np.ndarray, class_names: Sequence[str] | None = None
) -> tuple[float, dict[str, float], list[str]]:
    """Mean AUROC over the classes that have both outcomes, each class's own by name, and the
    classes left out."""
    labels, scores, class_names = _matrices(labels, scores, class_names)
    values = {name: auroc(labels[:, c], scores[:, c]) for c, name in enumerate(class_names)}
    per_class = {name: value for name, value in values.items() if not np.isnan(value)}
    left_out = [name for name in class_names if name not in per_class]
    return (
        (float(np.mean(list(per_class.values()))) if per_class else float("nan")),
        per_class,
        left_out,
    )


def average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the precision-recall curve as steps (AUPRC); rows of one score enter together, so
    that a constant score has the share of positives. NaN without a positive row."""
    labels, scores, _ = _matrices(
        np.asarray(labels)[:, None], np.asarray(scores)[:, None], ["the class"]
    )
    order = np.argsort(scores[:, 0], kind="stable")
    return float(_weighted_ranks(labels[:, 0], scores[:, 0], order, np.ones((len(order), 1)))[1, 0])


def bootstrap_ranks(
    labels: np.ndarray, scores: np.ndarray, bootstrap: PatientBootstrap
) -> tuple[np.ndarray, np.ndarray]:
    """AUROC and average precision of every class in every resample of the rows' patients, [r,c]
    each; NaN for a class with one outcome only."""
    labels, scores, _ = _matrices(labels, scores, None)
    order = np.argsort(scores, axis=0, kind="stable")  # [m,c]
    out = np.full((2, bootstrap.resamples, labels.shape[1]), np.nan)
    for block, weights in bootstrap.weights():
        for c in range(labels.shape[1]):
            out[:, block, c] = _weighted_ranks(labels[:, c], scores[:, c], order[:, c], weights)
    return out[0], out[1]


def bootstrap_f1(
    labels: np.ndarray, predicted: np.ndarray, bootstrap: PatientBootstrap
) -> np.ndarray:
    """F1 of yes/no predictions [m,c] in every resample, [r,c]; NaN for a class without a
    positive."""
    labels, predicted = _binary(labels), _binary(predicted)
    # [m,3c]
    counted = np.concatenate([labels & predicted, labels, predicted], axis=1).astype(np.float64)
    out = np.full((bootstrap.resamples, labels.shape[1]), np.nan)
    for block, weights in bootstrap.weights():
        hits, positive, yes = np.split(weights.T @ counted, 3, axis=1)  # [r,c] each
        out[block] = np.where(positive > 0, 2.0 * hits / np.maximum(positive + yes, 1e-300), np.nan)
    return out


def _weighted_ranks(
    labels: np.ndarray, scores: np.ndarray, order: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """AUROC and average precision of one class under row weights [m,r], with one sort for all
    resamples; [2,r]."""
    sorted_labels = labels[order]
    positive, negative = order[sorted_labels], order[~sorted_labels]
    # weight of the first k negatives, and of the first k positives, in score order
    below = _sums_of_first(weights[negative])
    first = np.searchsorted(scores[negative], scores[positive], "left")
    last = np.searchsorted(scores[negative], scores[positive], "right")
    positive_weights = weights[positive]
    positive_below = _sums_of_first(positive_weights)
    found = positive_below[-1]
    wins = np.einsum("mr,mr->r", below[first], positive_weights) + np.einsum(
        "mr,mr->r", below[last], positive_weights
    )  # ties are counted once here and once not: half
    pairs = found * below[-1]
    area = np.divide(wins, 2.0 * pairs, out=np.full_like(wins, np.nan), where=pairs > 0)
    # precision at the score of each positive: of all rows that score as high or higher
    tied = np.searchsorted(scores[positive], scores[positive], "left")
    hits = found - positive_below[tied]
    called = hits + below[-1] - below[first]
    precision = np.divide(hits, called, out=np.zeros_like(hits), where=called > 0)
    total = np.einsum("mr,mr->r", precision, positive_weights)
    average = np.divide(total, found, out=np.full_like(total, np.nan), where=found > 0)
    return np.stack([area, average])


def _sums_of_first(weights: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, ... m rows: [m,r] -> [m+1,r]."""
    sums = np.zeros((len(weights) + 1, weights.shape[1]))
    np.cumsum(weights, axis=0, out=sums[1:])
    return sums


def f1_score(labels: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of yes/no predictions [m]; 0 when nothing is found, NaN when there is no positive row to
    find."""
    labels, predicted = _binary(labels), _binary(predicted)
    if not labels.any():
        return float("nan")
    return float(2.0 * (labels & predicted).sum() / (labels.sum() + predicted.sum()))


def f1_always_yes(labels: np.ndarray) -> float:
    """F1 of answering yes for every row, 2p / (1 + p) at a share p of positives: what no knowledge
    at all reaches."""
    share = float(_binary(labels).mean())
    return 2.0 * share / (1.0 + share) if share else float("nan")


def best_f1_threshold(
    labels: np.ndarray, scores: np.ndarray, tried: np.ndarray | None = None
) -> tuple[float, float]:
    """(threshold, F1) with the highest F1 for `scores >= threshold`; ties take the highest
    threshold, among a few that are `tried` the first.

    Choose it on the validation split and apply it to the test split. Without a positive row: (NaN,
    NaN).
    """
    labels, scores = _binary(labels), _finite(scores)
    if not labels.any():
        return float("nan"), float("nan")
    if tried is not None:
        values = [f1_score(labels, scores >= threshold) for threshold in tried]
        return float(tried[np.argmax(values)]), float(np.max(values))
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    f1 = 2.0 * hits / (labels.sum() + np.arange(1, len(scores) + 1))
    ranked = scores[order]
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # a threshold cannot fall between equal scores
    best = int(np.argmax(f1))
    return float(ranked[best]), float(f1[best])


def _binary(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.dtype != bool and not np.isin(labels, (0, 1)).all():
        raise InputError(
            "labels must be 0 or 1 (or booleans); leave unlabelled rows out before scoring"
        )
    return labels.astype(bool)


def _finite(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise InputError(
            f"{int((~np.isfinite(scores)).sum())} of {scores.size} scores are not finite numbers"
        )
    return scores


def _matrices(
    labels: np.ndarray, scores: np.ndarray, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    labels, scores = _binary(labels), _finite(scores)
    if labels.ndim != 2 or labels.shape != scores.shape:
        raise InputError(
            f"labels and scores must both be [rows, classes], got {labels.shape} and {scores.shape}"
        )
    names = (
        [f"class_{c}" for c in range(labels.shape[1])]
        if class_names is None
        else [str(n) for n in class_names]
    )
    if len(names) != labels.shape[1] or len(set(names)) != len(names):
        raise InputError(
            f"{labels.shape[1]} label columns need as many different class names, got {names}"
        )
    return labels, scores, names
