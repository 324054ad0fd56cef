"""The one helper for masked reductions, and the packed layout of beats.

A batch holds its beats packed: `beats` [g,m,...] has, for each of g groups of records, the valid
beats of its r records one after another, then padding up to m. `num_beats` [g,r] alone says which
beat is whose. Encoder and decoder run on the packed array; the temporal module and the pooling run
on [g,r,n,...]. A group is what one data-parallel device holds, so packing never moves a beat
between devices.
"""

import jax
import jax.numpy as jnp
import numpy as np


def masked_sum(x: jax.Array, mask: jax.Array, axis=None) -> jax.Array:
    """Sum of x where mask is true; what is masked out cannot reach the result, not even as NaN."""
    return jnp.sum(jnp.where(mask, x, 0), axis=axis)


def masked_mean(x: jax.Array, mask: jax.Array, axis=None) -> jax.Array:
    """Mean of x where mask is true, 0 where nothing is; mask broadcasts against x.

    Over axes that stay and along which the mask is the same, it is counted once: between devices a
    count is then one number.
    """
    mask = jnp.expand_dims(mask, tuple(range(jnp.ndim(x) - jnp.ndim(mask))))
    gone = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis)]
    spread = [x.shape[a] if a in gone else mask.shape[a] for a in range(x.ndim)]
    count = jnp.sum(jnp.broadcast_to(mask, spread), axis=axis, dtype=jnp.float32)
    return masked_sum(x, mask, axis) / jnp.maximum(count, 1.0).astype(x.dtype)


def masked_median(x: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """Median along one axis of x where mask is true, 0 where nothing is; mask broadcasts against x.

    By ranks instead of sorting: the axis is short, and every exporter knows a comparison.
    """
    mask = jnp.broadcast_to(mask, x.shape)
    x, mask = (jnp.moveaxis(a, axis, 0) for a in (jnp.where(mask, x, jnp.inf), mask))
    at = jnp.arange(len(x))
    first = (at[:, None] < at).reshape(len(x), len(x), *[1] * (x.ndim - 1))
    before = (x[:, None] < x) | ((x[:, None] == x) & first)  # [one,other,...]: one comes first
    rank, count = before.sum(0), mask.sum(0)
    middle = jnp.abs(2 * rank + 1 - count) <= 1  # one of an odd number, two of an even one
    return masked_mean(x, mask & middle, 0)


def safe_std(variance: jax.Array) -> jax.Array:
    """Square root with a zero (not infinite) gradient where the variance is zero."""
    positive = variance > 1e-12
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def step_mask(samples: jax.Array, steps: int, length: int) -> jax.Array:
    """Which of the steps that divide `length` samples begin before a record's end: [b,s]."""
    return jnp.arange(steps) * length < samples[:, None] * steps


# Places in the packed layout are never out of bounds, and ascend where slots or records do: the
# compiler need not check the one, and its gradient, a sum over the same places, can use the other.
IN_ORDER = {"mode": "promise_in_bounds", "indices_are_sorted": True}


def beat_owner(num_beats: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """num_beats [g,r] -> for each of the `capacity` packed slots: record row, position in it,
    valid; each [g,m]. Padding counts as the last beat of the last row."""
    ends = jnp.cumsum(num_beats, axis=1)  # [g,r]
    slot = jnp.arange(capacity)
    row = jax.vmap(lambda e: jnp.searchsorted(e, slot, "right", method="compare_all"))(ends)
    valid = slot < ends[:, -1:]
    row = jnp.minimum(row, num_beats.shape[1] - 1).astype(jnp.int32)
    last = jnp.maximum(num_beats - 1, 0)
    position = jnp.minimum(slot - to_beats(ends - num_beats, row), to_beats(last, row))
    return row, position.astype(jnp.int32), valid


def to_beats(x: jax.Array, row: jax.Array) -> jax.Array:
    """A value of each record [g,r,...] -> the value of each packed beat's record [g,m,...]."""
    return jax.vmap(lambda values, rows: values.at[rows].get(**IN_ORDER))(x, row)


def beat_slots(num_beats: jax.Array, max_beats: int, capacity: int) -> jax.Array:
    """num_beats [g,r] -> the packed slot of each beat of a record, [g,r,n]. After its last beat a
    record stays there, so that slots ascend."""
    starts = jnp.cumsum(num_beats, axis=1) - num_beats
    place = jnp.minimum(jnp.arange(max_beats), jnp.maximum(num_beats - 1, 0)[..., None])
    return jnp.minimum(starts[..., None] + place, capacity - 1)


def to_records(x: jax.Array, num_beats: jax.Array, max_beats: int) -> jax.Array:
    """Packed beats [g,m,...] -> [g,r,n,...] with zeros in the slots that a record does not fill."""
    index = beat_slots(num_beats, max_beats, x.shape[1])
    values = jax.vmap(lambda beats, i: beats.at[i].get(**IN_ORDER))(x, index)
    valid = beat_mask(num_beats, max_beats)
    return jnp.where(
        valid.reshape(valid.shape + (1,) * (values.ndim - 3)), values, jnp.zeros((), values.dtype)
    )


def to_packed(x: jax.Array, row: jax.Array, position: jax.Array) -> jax.Array:
    """The inverse of to_records: [g,r,n,...] -> packed beats [g,m,...]."""

    def of_group(values: jax.Array, rows: jax.Array, places: jax.Array) -> jax.Array:
        return values.at[rows, places].get(**IN_ORDER)

    return jax.vmap(of_group)(x, row, position)


def beat_mask(num_beats: jax.Array, max_beats: int) -> jax.Array:
    """num_beats [...] -> true for the slots a record fills, [...,n]."""
    return jnp.arange(max_beats) < num_beats[..., None]
