"""Scores of predictions: AUROC with ties, F1, thresholds, and both scores in resamples of patients
(numpy only).

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


def bootstrap_auroc(
    labels: np.ndarray, scores: np.ndarray, bootstrap: PatientBootstrap
) -> np.ndarray:
    """AUROC of every class in every resample of the rows' patients, [r,c]; NaN where a resample
    holds one outcome only."""
    labels, scores, _ = _matrices(labels, scores, None)
    order = np.argsort(scores, axis=0, kind="stable")  # [m,c]
    out = np.full((bootstrap.resamples, labels.shape[1]), np.nan)
    for block, weights in bootstrap.weights():
        for c in range(labels.shape[1]):
            out[block, c] = _weighted_auroc(labels[:, c], scores[:, c], order[:, c], weights)
    return out


def bootstrap_f1(
    labels: np.ndarray, predicted: np.ndarray, bootstrap: PatientBootstrap
) -> np.ndarray:
    """F1 of yes/no predictions [m,c] in every resample, [r,c]; NaN where one has no positive."""
    labels, predicted = _binary(labels), _binary(predicted)
    # [m,3c]
    counted = np.concatenate([labels & predicted, labels, predicted], axis=1).astype(np.float64)
    out = np.full((bootstrap.resamples, labels.shape[1]), np.nan)
    for block, weights in bootstrap.weights():
        hits, positive, yes = np.split(weights.T @ counted, 3, axis=1)  # [r,c] each
        out[block] = np.where(positive > 0, 2.0 * hits / np.maximum(positive + yes, 1.0), np.nan)
    return out


def _weighted_auroc(
    labels: np.ndarray, scores: np.ndarray, order: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """AUROC of one class under row weights [m,r], with one sort for all resamples; [r]."""
    sorted_labels = labels[order]
    positive, negative = order[sorted_labels], order[~sorted_labels]
    # weight of the first k negatives in score order
    below = np.zeros((len(negative) + 1, weights.shape[1]))
    np.cumsum(weights[negative], axis=0, out=below[1:])
    first = np.searchsorted(scores[negative], scores[positive], "left")
    last = np.searchsorted(scores[negative], scores[positive], "right")
    positive_weights = weights[positive]
    wins = np.einsum("mr,mr->r", below[first], positive_weights) + np.einsum(
        "mr,mr->r", below[last], positive_weights
    )  # ties are counted once here and once not: half
    pairs = positive_weights.sum(0) * below[-1]
    return np.divide(wins, 2.0 * pairs, out=np.full_like(wins, np.nan), where=pairs > 0)


def macro_of_resamples(resampled: np.ndarray) -> np.ndarray:
    """Mean over the classes present in each resample: [r,c] -> [r]; NaN if a resample has none."""
    present = ~np.isnan(resampled)
    count = present.sum(-1)
    total = np.where(present, resampled, 0.0).sum(-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


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


def best_f1_threshold(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """(threshold, F1) with the highest F1 for `scores >= threshold`; ties take the highest
    threshold.

    Choose it on the validation split and apply it to the test split. Without a positive row: (NaN,
    NaN).
    """
    labels, scores = _binary(labels), _finite(scores)
    if not labels.any():
        return float("nan"), float("nan")
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
