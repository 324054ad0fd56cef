"""Randomness that belongs to a record and a step, never to a place in the batch.

Batch mates, padding, device count and process count therefore change nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np


def record_keys(key: jax.Array, uid: jax.Array) -> jax.Array:
    """One random key for each record uid (uint32) [...]."""
    return jax.vmap(lambda u: jax.random.fold_in(key, u))(uid.reshape(-1)).reshape(uid.shape)


def record_seeds(key: jax.Array, uid: jax.Array) -> jax.Array:
    """One uint32 seed for each record [g,r], from the step's key and the record's uid."""
    keys = record_keys(key, uid).reshape(-1)
    return jax.vmap(lambda k: jax.random.bits(k, (), jnp.uint32))(keys).reshape(uid.shape)


def beat_seeds(seeds: jax.Array, position: jax.Array) -> jax.Array:
    """The seeds of a record's beats from the record's own and their numbers in it."""
    return mix_bits(seeds + position.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))


def mix_bits(x: jax.Array) -> jax.Array:
    """A well-mixing hash of uint32 values: neighbouring inputs give unrelated outputs."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def keyed_dropout(x: jax.Array, seeds: jax.Array, layer: int, rate: float) -> jax.Array:
    """Dropout whose mask depends on the beat's own seed [m] and the layer number alone."""
    if rate == 0.0:
        return x
    place = jnp.arange(np.prod(x.shape[1:]), dtype=jnp.uint32).reshape((1, *x.shape[1:]))
    start = mix_bits(seeds + jnp.uint32((layer + 1) * 0x9E3779B9 & 0xFFFFFFFF))
    bits = mix_bits(start.reshape(-1, *(1,) * (x.ndim - 1)) + place * jnp.uint32(0x85EBCA77))
    keep = bits >= jnp.uint32(int(rate * 2**32))
    return jnp.where(keep, x / (1.0 - rate), 0)
