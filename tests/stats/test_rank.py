"""The effective rank: how many dimensions embeddings use."""

import numpy as np
import pytest

from lvcg_jax.stats.rank import effective_rank


def test_rows_in_all_directions_use_all_dimensions_and_opposite_ones_a_single_one():
    rng = np.random.default_rng(0)
    assert effective_rank(rng.normal(size=(20_000, 5))) == pytest.approx(5, abs=0.01)
    opposite = np.array([[1.0, 2.0, 3.0]]) * rng.choice([-1.0, 1.0], (50, 1))
    assert effective_rank(7 + opposite) == pytest.approx(1)
    assert effective_rank(np.full((4, 3), 2.5, np.float32)) == 0
    # variances 1 and 4: shares of a fifth and four fifths
    x = np.array([[1, 0], [-1, 0], [0, 2], [0, -2]])
    assert effective_rank(x) == pytest.approx(5 / 4**0.8)
