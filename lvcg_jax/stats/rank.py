"""How many dimensions the rows of a table use."""

import numpy as np


def effective_rank(x: np.ndarray) -> float:
    """Of rows [m,d], from 1 to d: e to the entropy of the shares that the principal components
    have of the variance. 0 if all rows are alike.

    Directions that differ are not enough: rows at two opposite points use one dimension.
    """
    x = x - x.mean(0, dtype=np.float64)
    power = np.linalg.eigvalsh(x.T @ x).clip(0)
    if power[-1] == 0:
        return 0.0
    share = power[power > 0] / power.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
