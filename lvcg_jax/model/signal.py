"""The signal of a record, from the beats that it is kept as. Axis letters: those of
model/__init__.py, and T sample of a record."""

import jax
import jax.numpy as jnp


def at_times(beats: jax.Array, length: jax.Array, at: jax.Array) -> jax.Array:
    """A record's leads [l,...] at the times `at` [...], in samples from its start, from its beats
    [n,l,p] and their lengths [n]; beyond its ends as they are there."""
    n, leads, p = beats.shape
    end = jnp.cumsum(length)
    start = end - length
    at = jnp.clip(at, 0, jnp.maximum(end[-1] - 1, 0))
    # where each sample is kept: its slot, and its position in the slot's p samples
    slot = jnp.searchsorted(end.astype(at.dtype), at, side="right", method="compare_all")
    slot = jnp.minimum(slot, n - 1)
    position = (at - start[slot]) * (p - 1) / jnp.maximum(length[slot] - 1, 1)
    left = jnp.clip(position.astype(jnp.int32), 0, p - 2)
    flat = jnp.swapaxes(beats, 0, 1).reshape(leads, n * p).astype(jnp.float32)
    here, there = flat[:, slot * p + left], flat[:, slot * p + left + 1]
    return here + jnp.clip(position - left, 0.0, 1.0) * (there - here)


def record_signal(
    beats: jax.Array, length: jax.Array, scale: jax.Array, samples: int
) -> tuple[jax.Array, jax.Array]:
    """The leads of a record in mV [l,T] from its beats [n,l,p], their lengths [n] and the leads'
    sizes [l]; and which samples [T] it has."""
    at = jnp.arange(samples)
    there = at < length.sum()
    signal = at_times(beats, length, at.astype(jnp.float32))
    return jnp.where(there, signal * scale[:, None], 0.0), there
