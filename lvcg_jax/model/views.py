"""Which leads of a record are visible in a training step, drawn per record and step."""

import jax
import jax.numpy as jnp
import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.randomness import record_keys

_BITS = 1 << np.arange(len(LEADS))


def visible_leads(mask: jax.Array) -> jax.Array:
    """Lead bit masks [...] -> booleans [...,12]."""
    return (mask[..., None] & _BITS) != 0


def draw_views(
    key: jax.Array, uid: jax.Array, available: jax.Array, subsets: np.ndarray, num_visible: int
) -> jax.Array:
    """The visible lead bit mask of each record [...], one of the `subsets` [s] that its available
    leads allow.

    Subsets of the same size are equally likely. With all twelve leads available, so is every size.
    A record whose leads allow no subset shows `num_visible` random leads of those it has, or all
    of them if it has fewer.
    """
    subsets = jnp.asarray(subsets, jnp.int32)
    size = jax.lax.population_count(subsets)
    # [s] subsets of the same size
    rivals = jnp.bincount(size, length=len(LEADS) + 1)[size].astype(jnp.float32)

    def draw(record_key, leads):
        subset_key, lead_key = jax.random.split(record_key)
        allowed = (subsets & ~leads) == 0
        score = jnp.where(
            allowed, rivals * jnp.log(jax.random.uniform(subset_key, subsets.shape)), -jnp.inf
        )
        has = (leads & _BITS) != 0
        ticket = jnp.where(has, jax.random.uniform(lead_key, (len(LEADS),)), -1.0)
        chosen = has & (ticket >= jnp.sort(ticket)[-num_visible])
        return jnp.where(
            allowed.any(), subsets[jnp.argmax(score)], jnp.sum(jnp.where(chosen, _BITS, 0))
        )

    keys = record_keys(key, uid)
    return (
        jax.vmap(draw)(keys.reshape(-1), available.reshape(-1))
        .reshape(available.shape)
        .astype(jnp.int32)
    )
