"""Comparing vectors of records: what several losses are made of."""

import jax
import jax.numpy as jnp

from lvcg_jax.model.masking import masked_mean

NEVER = -1e9  # the score of what is not compared


def unit(x: jax.Array) -> jax.Array:
    """Vectors [...,d] of length 1."""
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-12)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine of the angle between vectors [...,d]."""
    return (unit(a) * unit(b)).sum(-1)


def similarities(a: jax.Array, b: jax.Array, temperature: float) -> jax.Array:
    """Cosines of all pairs, divided by the temperature: [i,d], [j,d] -> [i,j]."""
    return unit(a) @ unit(b).T / temperature


def info_nce(scores: jax.Array, positive: jax.Array, allowed: jax.Array) -> jax.Array:
    """Scores [i,j] -> for each i, how surprising its positives are among all that is allowed: minus
    the logarithm of the softmax, the mean over the positives."""
    among = jax.nn.logsumexp(jnp.where(allowed, scores, NEVER), axis=-1)
    return among - masked_mean(scores, positive & allowed, -1)


def own_partner(queries: jax.Array, keys: jax.Array, valid: jax.Array, temperature: float):
    """InfoNCE [b] of queries [b,d] that must find the key [b,d] of their own record among those of
    all valid records."""
    scores = similarities(queries, keys, temperature)
    return info_nce(scores, jnp.eye(len(queries), dtype=bool), valid[None, :])
