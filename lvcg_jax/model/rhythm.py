"""Rhythm encoder: the R-R intervals of a record -> one vector; and the head that trains it.

Three branches see the intervals in seconds: their statistics, their log ratios to the mean on a
sinusoidal basis pooled by attention with one learned query, and the statistics of their successive
differences.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import gelu
from lvcg_jax.model.masking import masked_mean, safe_std
from lvcg_jax.model.parts import Rhythm


def rr_statistics(rr: jax.Array, mask: jax.Array) -> jax.Array:
    """Intervals [b,n] in seconds -> mean, standard deviation, range, coefficient of variation:
    [b,4]."""
    mean = masked_mean(rr, mask, -1)
    std = safe_std(masked_mean((rr - mean[..., None]) ** 2, mask, -1))
    any_valid = mask.any(-1)
    high = jnp.where(any_valid, jnp.where(mask, rr, -jnp.inf).max(-1), 0.0)
    low = jnp.where(any_valid, jnp.where(mask, rr, jnp.inf).min(-1), 0.0)
    return jnp.stack([mean, std, high - low, std / jnp.maximum(mean, 1e-3)], axis=-1)


def rr_difference_statistics(rr: jax.Array, mask: jax.Array) -> jax.Array:
    """Successive differences in seconds -> their mean and standard deviation: [b,2]."""
    both = mask[..., 1:] & mask[..., :-1]
    steps = rr[..., 1:] - rr[..., :-1]
    mean = masked_mean(steps, both, -1)
    return jnp.stack(
        [mean, safe_std(masked_mean((steps - mean[..., None]) ** 2, both, -1))], axis=-1
    )


def log_rr_ratio(rr: jax.Array, mask: jax.Array, largest: float) -> jax.Array:
    """log(r_n / mean), clipped to +-largest, 0 where masked: [b,n]."""
    mean = jnp.maximum(masked_mean(rr, mask, -1), 1e-3)[..., None]
    ratio = jnp.where(mask, rr, mean) / mean
    return jnp.clip(jnp.log(jnp.maximum(ratio, 1e-3)), -largest, largest)


def sinusoidal_basis(x: jax.Array, size: int) -> jax.Array:
    """sin(k pi x), cos(k pi x) for k = 1..size: [...] -> [...,2*size]."""
    angle = x[..., None] * (jnp.pi * jnp.arange(1, size + 1))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class AttentionPool(nn.Module):
    """One learned query attends over the valid slots; an empty record pools to zero."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """x [b,n,c], mask [b,n] -> [b,c]."""
        channels = x.shape[-1]
        query = self.param("query", nn.initializers.normal(0.02), (channels,))
        split = lambda y: y.reshape(*y.shape[:-1], self.heads, channels // self.heads)  # noqa: E731
        q = split(nn.Dense(channels, name="q")(query))  # [h,c/h]
        # [b,n,h,c/h]
        k, v = split(nn.Dense(channels, name="k")(x)), split(nn.Dense(channels, name="v")(x))
        score = jnp.einsum("hc,bnhc->bnh", q, k) / jnp.sqrt(channels / self.heads)
        score = jnp.where(mask[..., None], score, -1e9)
        weight = jnp.where(mask[..., None], jax.nn.softmax(score, axis=1), 0.0)
        pooled = jnp.einsum("bnh,bnhc->bhc", weight, v).reshape(x.shape[0], channels)
        return nn.Dense(channels, name="out")(pooled)


class RhythmEncoder(nn.Module):
    """R-R intervals in seconds [b,n] with mask -> e_rhythm [b,c]."""

    config: Rhythm
    rate: float = 100.0  # samples per second, for statistics in samples
    gelu_exact: bool = False

    @nn.compact
    def __call__(
        self, rr: jax.Array, mask: jax.Array, hidden: jax.Array | None = None
    ) -> jax.Array:
        """`hidden` [b,n] marks intervals that the sequence branch must not see (the pretext task of
        RhythmHead)."""
        c = self.config
        seen = mask if hidden is None else mask & ~hidden
        measured = rr * self.rate if c.unit == "samples" else rr

        # Statistics of the intervals.
        stats = nn.Dense(c.hidden, name="stats1")(rr_statistics(measured, mask))
        stats = nn.Dense(c.hidden, name="stats2")(gelu(stats, self.gelu_exact))

        # The sequence of intervals.
        basis = sinusoidal_basis(log_rr_ratio(rr, mask, c.max_log_ratio), c.basis)
        slots = nn.Dense(c.hidden, name="basis")(basis)
        if c.positions:
            shape = (c.positions, c.hidden)
            slots += self.param("positions", nn.initializers.normal(0.02), shape)[: rr.shape[1]]
        sequence = AttentionPool(c.heads, name="pool")(slots, seen)

        # Statistics of the successive differences.
        mean = jnp.maximum(masked_mean(rr, mask, -1), 1e-3)[:, None]
        steps = rr_difference_statistics(rr / mean if c.steps == "relative" else measured, seen)
        steps = nn.Dense(c.hidden, name="differences")(steps)

        joined = jnp.concatenate([stats, sequence, steps], axis=-1)
        fused = nn.Dense(c.dim, name="fuse1")(joined)
        return nn.Dense(c.dim, name="fuse2")(gelu(fused, self.gelu_exact))


class RhythmHead(nn.Module):
    """Reads e_rhythm back: each slot's log R-R ratio and the four statistics. Trained only when
    lambda_rhythm > 0."""

    hidden_dim: int

    @nn.compact
    def __call__(self, rhythm: jax.Array, max_beats: int) -> tuple[jax.Array, jax.Array]:
        """e_rhythm [b,r] -> log ratios [b,n] and statistics [b,4]."""
        # the slot number, the same for any number of slots
        place = sinusoidal_basis(jnp.arange(max_beats) / 64.0, 4)
        where = nn.Dense(self.hidden_dim, name="place")(place)
        what = nn.Dense(self.hidden_dim, name="what")(rhythm)
        ratios = nn.Dense(1, name="ratio")(jax.nn.gelu(what[:, None] + where))[..., 0]
        return ratios, nn.Dense(4, name="statistics")(jax.nn.gelu(what))
