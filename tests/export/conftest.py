"""What the tests of exports share."""

import jax
import numpy as np
import pytest
from helpers.commands import get_config

from lvcg_jax import LVCG
from lvcg_jax.model.beat_levels import ANSWERS
from lvcg_jax.model.patterns import SHARES
from lvcg_jax.train.patterns import draw_leads


@pytest.fixture(scope="session")
def with_shape():
    """A small model with random modes of beats, so that conjugate gradients have work to do, of
    patterns and of the median beat's levels, and with a record token."""
    config = get_config("smoke")
    config.model.beat_modes, config.model.lead_sizes = (6, 4), True
    config.model.dynamics_start, config.model.patterns = "each", 4
    config.model.update(beat_levels=5, record_token=8, record_stem=4)
    config.model.update(record_features=(4, 4, 4, 8), record_blocks=(1, 1, 1, 1))
    made = LVCG.random(config, seed=1, shards=None)
    rng = np.random.default_rng(0)
    shape = {
        name: {
            "mean": rng.normal(size=(12, 48)).astype(np.float32),
            "modes": (0.1 * rng.normal(size=(12, 48, count))).astype(np.float32),
            "noise": np.full(1, 0.3, np.float32),
        }
        for name, count in (("mean", 6), ("change", 4))
    }
    mixed = rng.normal(size=(12, 12))
    found = {
        "leads": draw_leads(),
        "covariance": mixed @ mixed.T / 12,
        "levels": 0.1 * rng.normal(size=SHARES),
        "ramps": np.full(SHARES[::2], 0.1),
        "mean": np.full(SHARES, 0.5),
        "modes": 0.01 * rng.normal(size=(*SHARES, 4)),
    }
    levels = {
        "levels": 0.1 * rng.normal(size=ANSWERS),
        "ramps": np.full((ANSWERS[0], *ANSWERS[2:]), 0.1),
        "mean": np.full(ANSWERS, 0.5),
        "modes": 0.01 * rng.normal(size=(*ANSWERS, 5)),
    }
    fitted = {"patterns": found, "levels": levels, "lead_covariance": found["covariance"]}
    fitted = jax.tree.map(lambda x: x.astype(np.float32), fitted)
    params = made.variables["params"] | {"shape": shape} | fitted
    return LVCG(config, made.variables | {"params": params}, "shaped")
