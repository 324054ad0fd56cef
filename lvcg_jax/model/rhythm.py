"""Rhythm encoder: the R-R intervals of a record -> one vector; and the optional head that trains
it.

Three branches see the intervals in seconds: their statistics, their log ratios to the mean on a
sinusoidal basis pooled by attention with one learned query, and the statistics of their successive
differences.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import gelu
from lvcg_jax.model.masking import masked_mean

MAX_LOG_RATIO = 2.0  # an interval counts as at most e^2 times the mean, or as little


def safe_std(variance: jax.Array) -> jax.Array:
    """Square root with a zero (not infinite) gradient where the variance is zero."""
    positive = variance > 1e-12
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


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


def log_rr_ratio(rr: jax.Array, mask: jax.Array) -> jax.Array:
    """log(r_n / mean), clipped, 0 where masked: [b,n]."""
    mean = jnp.maximum(masked_mean(rr, mask, -1), 1e-3)[..., None]
    ratio = jnp.where(mask, rr, mean) / mean
    return jnp.clip(jnp.log(jnp.maximum(ratio, 1e-3)), -MAX_LOG_RATIO, MAX_LOG_RATIO)


def sinusoidal_basis(x: jax.Array, size: int) -> jax.Array:
    """sin(k pi x), cos(k pi x) for k = 1..size: [...] -> [...,2*size]."""
    angle = x[..., None] * (jnp.pi * jnp.arange(1, size + 1))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class AttentionPool(nn.Module):
    """One learned query attends over the valid slots; an empty record pools to zero."""

    heads: int

    @nn.compact
    # x [b,n,c], mask [b,n] -> [b,c]
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
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
    """R-R intervals in seconds [b,n] with mask -> e_rhythm [b,rhythm_dim]."""

    rhythm_dim: int
    hidden_dim: int
    basis_size: int
    heads: int
    scale: float = 1.0  # of the intervals in the statistics: 1 for seconds, the rate for samples
    relative_steps: bool = False  # successive differences as shares of the mean interval
    # slots with a learned vector each; 0: the sequence branch does not know a slot's number
    positions: int = 0
    gelu_exact: bool = False

    @nn.compact
    def __call__(
        self, rr: jax.Array, mask: jax.Array, hidden: jax.Array | None = None
    ) -> jax.Array:
        """`hidden` [b,n] marks intervals that the sequence branch must not see (the pretext task of
        RhythmHead)."""
        seen = mask if hidden is None else mask & ~hidden
        stats = nn.Dense(self.hidden_dim, name="stats1")(rr_statistics(rr * self.scale, mask))
        stats = nn.Dense(self.hidden_dim, name="stats2")(gelu(stats, self.gelu_exact))
        basis = sinusoidal_basis(log_rr_ratio(rr, mask), self.basis_size)
        slots = nn.Dense(self.hidden_dim, name="basis")(basis)
        if self.positions:
            shape = (self.positions, self.hidden_dim)
            slots += self.param("positions", nn.initializers.normal(0.02), shape)[: rr.shape[1]]
        sequence = AttentionPool(self.heads, name="pool")(slots, seen)
        mean = jnp.maximum(masked_mean(rr, mask, -1), 1e-3)[:, None]
        steps = rr_difference_statistics(
            rr / mean if self.relative_steps else rr * self.scale, seen
        )
        steps = nn.Dense(self.hidden_dim, name="differences")(steps)
        fused = nn.Dense(self.rhythm_dim, name="fuse1")(
            jnp.concatenate([stats, sequence, steps], axis=-1)
        )
        return nn.Dense(self.rhythm_dim, name="fuse2")(gelu(fused, self.gelu_exact))


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
