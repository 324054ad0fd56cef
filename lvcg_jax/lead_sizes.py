"""The sizes of the leads, which normalisation takes away: hypertrophy and low voltage are read from them."""

import jax
import jax.numpy as jnp

from data_prep.leads import LEADS
from lvcg_jax.masking import masked_mean

NUM_SIZES = len(LEADS)


def log_lead_sizes(scale: jax.Array, visible: jax.Array, directions: jax.Array) -> jax.Array:
    """Scale of each lead in mV [...,12], which leads are seen [...,12] and their directions [12,3] -> logarithms.

    A lead that is not seen gets what the geometry says of a heart vector without preferred direction: the mean of those
    that are seen, each relative to the length of its direction. Nothing else of an unseen lead enters.
    """
    length = jnp.log(jnp.linalg.norm(directions, axis=-1))
    relative = jnp.log(jnp.where(visible, scale, 1.0)) - length
    expected = masked_mean(relative, visible, -1)[..., None]
    return length + jnp.where(visible, relative, expected)
