"""Augmentations of whole records: signals [b,t,l] with one key per record [b].

What happens to a record depends on its own key alone. Missing leads stay zero.
"""

from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
import numpy as np


def each(function: Callable) -> Callable:
    """A function of one key and one record [t,l], for keys [b] and records [b,t,l]."""

    @wraps(function)
    def of_all(keys: jax.Array, x: jax.Array, *options) -> jax.Array:
        return jax.vmap(lambda key, one: function(key, one, *options))(keys, x)

    return of_all


def split_keys(keys: jax.Array, number: int) -> list[jax.Array]:
    """Keys [b] -> so many other keys for each."""
    return list(jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, number))(keys), 1, 0))


@each
def add_noise(key, x, size: float):
    """White noise of this standard deviation, in leads that are there."""
    return jnp.where((x != 0).any(0), x + size * jax.random.normal(key, x.shape), 0.0)


@each
def scale_leads(key, x, spread: float):
    """Each lead times a number around 1, with this standard deviation of its logarithm."""
    return x * jnp.exp(spread * jax.random.normal(key, (1, x.shape[1])))


@each
def crop_resize(key, x, least: float):
    """A stretch of at least this share of the record, at a random place, stretched to the whole."""
    t = x.shape[0]
    size_key, place_key = jax.random.split(key)
    size = (t - 1) * jax.random.uniform(size_key, minval=least, maxval=1.0)
    first = (t - 1 - size) * jax.random.uniform(place_key)
    position = first + size * jnp.linspace(0.0, 1.0, t)
    left = jnp.clip(position.astype(jnp.int32), 0, t - 2)
    share = (position - left)[:, None]
    return (1.0 - share) * x[left] + share * x[left + 1]


@each
def cut_out(key, x, most: float):
    """Zeros in one stretch of up to this share of the record, in all leads."""
    t = x.shape[0]
    size_key, place_key = jax.random.split(key)
    size = most * t * jax.random.uniform(size_key)
    first = (t - size) * jax.random.uniform(place_key)
    place = jnp.arange(t)
    gone = (place >= first) & (place < first + size)
    return jnp.where(gone[:, None], 0.0, x)


@each
def drop_leads(key, x, share: float):
    """Zeros in each lead with this probability; one at least of those that are not zero stays."""
    draws = jax.random.uniform(key, (x.shape[1],))
    last = jnp.argmax(jnp.where((x != 0).any(0), draws, -1.0))
    return jnp.where((draws >= share) | (jnp.arange(x.shape[1]) == last), x, 0.0)


@each
def wander(key, x, size: float):
    """A slow wave of the baseline, another in each lead that is there: 1 to 5 periods."""
    periods, phase, height = jax.random.uniform(key, (3, 1, x.shape[1]))
    turn = (1.0 + 4.0 * periods) * jnp.linspace(0.0, 1.0, x.shape[0])[:, None] + phase
    return jnp.where((x != 0).any(0), x + size * height * jnp.sin(2 * np.pi * turn), 0.0)


@each
def permute(key, x, pieces: int):
    """The record cut into so many pieces, in another order."""
    size = x.shape[0] // pieces
    whole = x[: size * pieces].reshape(pieces, size, -1)
    shuffled = whole[jax.random.permutation(key, pieces)].reshape(size * pieces, -1)
    return jnp.concatenate([shuffled, x[size * pieces :]])


@each
def smooth(key, x, most: int):
    """A running mean over one of the odd widths up to `most`."""
    width = 1 + 2 * jax.random.randint(key, (), 0, most // 2 + 1)
    reach = jnp.arange(most) - most // 2
    kernel = jnp.where(2 * jnp.abs(reach) < width, 1.0 / width, 0.0)
    padded = jnp.pad(x, ((most // 2, most // 2), (0, 0)), mode="edge")
    place = np.arange(x.shape[0])[:, None] + np.arange(most)
    return jnp.einsum("tkl,k->tl", padded[place], kernel)


def ecg_view(keys: jax.Array, x: jax.Array) -> jax.Array:
    """The view of the image methods carried over to ECG: crop and stretch, sizes of leads, noise, a
    gap in time, and missing leads."""
    crop, size, noise, gap, leads = split_keys(keys, 5)
    x = scale_leads(size, crop_resize(crop, x, 0.5), 0.2)
    return drop_leads(leads, cut_out(gap, add_noise(noise, x, 0.1), 0.2), 0.2)
