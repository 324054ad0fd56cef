"""How alike two sets of unit rows are, whose product is their cosine (see scaling.unit_rows).

Axis letters: t row, d feature.
"""

import numpy as np

CHUNK = 1024  # rows compared with all others at a time


def own_is_nearest(views: np.ndarray, full: np.ndarray, records: np.ndarray) -> np.ndarray:
    """1 where the row of `full` [t,d] most like a view [t,d] is of the same record, else 0; ties
    share the 1; [t]."""
    shares = []
    for first in range(0, len(views), CHUNK):
        some = slice(first, first + CHUNK)
        cosine = views[some] @ full.T
        nearest = cosine == cosine.max(1, keepdims=True)
        shares.append((nearest & (records[some, None] == records)).sum(1) / nearest.sum(1))
    return np.concatenate(shares)


def stranger_cosine(full: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Mean cosine of each row [t,d] with the rows of other records; NaN where there is no other;
    [t]."""
    means = []
    for first in range(0, len(full), CHUNK):
        some = slice(first, first + CHUNK)
        other = records[some, None] != records
        total = np.where(other, full[some] @ full.T, 0.0).sum(1)
        means.append(np.where(other.any(1), total / np.maximum(other.sum(1), 1), np.nan))
    return np.concatenate(means)
