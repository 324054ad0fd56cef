"""The one helper for masked reductions, and the packed layout of beats.

A batch holds its beats packed: `beats` [g,m,...] has, for each of g groups of records, the valid
beats of its r records one after another, then padding up to m. `num_beats` [g,r] alone says which
beat is whose. Encoder and decoder run on the packed array; the temporal module and the pooling run
on [g,r,n,...]. A group is what one data-parallel device holds, so packing never moves a beat
between devices.
"""

import jax
import jax.numpy as jnp


def masked_sum(x: jax.Array, mask: jax.Array, axis=None) -> jax.Array:
    """Sum of x where mask is true; what is masked out cannot reach the result, not even as NaN."""
    return jnp.sum(jnp.where(mask, x, 0), axis=axis)


def masked_mean(x: jax.Array, mask: jax.Array, axis=None) -> jax.Array:
    """Mean of x where mask is true, 0 where nothing is; mask broadcasts against x."""
    count = jnp.sum(jnp.broadcast_to(mask, x.shape), axis=axis, dtype=jnp.float32)
    return masked_sum(x, mask, axis) / jnp.maximum(count, 1.0).astype(x.dtype)


def safe_std(variance: jax.Array) -> jax.Array:
    """Square root with a zero (not infinite) gradient where the variance is zero."""
    positive = variance > 1e-12
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def beat_owner(num_beats: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """num_beats [g,r] -> for each of the `capacity` packed slots: record row, position in it,
    valid; each [g,m]."""
    ends = jnp.cumsum(num_beats, axis=1)  # [g,r]
    slot = jnp.arange(capacity)
    row = jax.vmap(lambda e: jnp.searchsorted(e, slot, side="right"))(ends)
    valid = slot < ends[:, -1:]
    row = jnp.where(valid, row, 0).astype(jnp.int32)
    starts = ends - num_beats
    position = jnp.where(valid, slot - jnp.take_along_axis(starts, row, axis=1), 0)
    return row, position.astype(jnp.int32), valid


def to_beats(x: jax.Array, row: jax.Array) -> jax.Array:
    """A value of each record [g,r,...] -> the value of each packed beat's record [g,m,...]."""
    return jax.vmap(lambda values, rows: values[rows])(x, row)


def to_records(x: jax.Array, num_beats: jax.Array, max_beats: int) -> jax.Array:
    """Packed beats [g,m,...] -> [g,r,n,...] with zeros in the slots that a record does not fill."""
    starts = jnp.cumsum(num_beats, axis=1) - num_beats
    index = starts[..., None] + jnp.arange(max_beats)  # [g,r,n]
    valid = beat_mask(num_beats, max_beats)
    index = jnp.where(valid, index, 0)
    values = jax.vmap(lambda beats, i: beats[i])(x, index)
    return jnp.where(
        valid.reshape(valid.shape + (1,) * (values.ndim - 3)), values, jnp.zeros((), values.dtype)
    )


def to_packed(x: jax.Array, row: jax.Array, position: jax.Array) -> jax.Array:
    """The inverse of to_records: [g,r,n,...] -> packed beats [g,m,...]."""
    return jax.vmap(lambda values, rows, places: values[rows, places])(x, row, position)


def beat_mask(num_beats: jax.Array, max_beats: int) -> jax.Array:
    """num_beats [...] -> true for the slots a record fills, [...,n]."""
    return jnp.arange(max_beats) < num_beats[..., None]
