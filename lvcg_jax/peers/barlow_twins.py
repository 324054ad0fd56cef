"""Barlow Twins (Zbontar et al., 2021): over a batch, each feature of one view must agree with the
same feature of the other view and with no other feature."""

import jax
import jax.numpy as jnp

from lvcg_jax.model.masking import masked_mean
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer

REDUNDANCY = 5e-3  # weight of the correlations between different features


def cross_correlation(a: jax.Array, b: jax.Array, valid: jax.Array) -> jax.Array:
    """Correlations [d,d] between the features of two views [b,d], over the valid records."""

    def standard(x):
        x = x - masked_mean(x, valid[:, None], 0)
        x = x * jax.lax.rsqrt(masked_mean(x * x, valid[:, None], 0) + 1e-5)
        return jnp.where(valid[:, None], x, 0.0)

    return standard(a).T @ standard(b) / jnp.maximum(valid.sum(), 1)


def off_identity(correlation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How far a matrix of correlations is from the identity: squares on its diagonal, and off it
    with their weight."""
    same = jnp.diagonal(correlation)
    others = (correlation**2).sum() - (same**2).sum()
    return ((1.0 - same) ** 2).sum(), REDUNDANCY * others


class BarlowTwins(ResNetPeer):
    def add_heads(self):
        self.projector = Head(self.choices.projection, self.layers)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        inputs = self.two_views(records, keys)
        pooled = self.steps(inputs, train).mean(1)
        one, other = self.projector(pooled, inputs[1], train).reshape(2, len(records.valid), -1)
        agree, redundant = off_identity(cross_correlation(one, other, records.valid))
        terms = {"loss": agree + redundant, "agreement": agree, "redundancy": redundant}
        return terms | {"embedding": pooled[: len(records.valid)]}
