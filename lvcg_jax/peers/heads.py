"""Projection heads and predictors, and the teacher that follows a student."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import unfreeze

from lvcg_jax.model.layers import Norm
from lvcg_jax.model.parts import Layers


class Head(nn.Module):
    """Linear layers, with batch norm over valid records and ReLU between them."""

    sizes: tuple[int, ...]
    layers: Layers
    last_norm: bool = False  # batch norm after the last layer, too

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, train: bool) -> jax.Array:
        """x [b,d], valid [b]."""
        normed, last = replace(self.layers, norm="batch"), len(self.sizes) - 1
        for i, size in enumerate(self.sizes):
            x = nn.Dense(size, name=f"dense{i}")(x)
            if i < last or self.last_norm:
                x = Norm(normed, name=f"norm{i}")(x[:, None], 0.0, valid, train)[:, 0]
            if i < last:
                x = jax.nn.relu(x)
        return x


class Teacher(nn.Module):
    """Variables that follow those of a student as a moving average.

    They are kept with the norm statistics, so that checkpoints, resuming and sharding know them. In
    training they move before they are used: once for each micro-batch.
    """

    momentum: float

    @nn.compact
    def __call__(self, student, train: bool):
        """The student's variables -> the teacher's, without a gradient."""
        student = jax.lax.stop_gradient(unfreeze(student))
        kept = self.variable("batch_stats", "weights", lambda: jax.tree.map(jnp.copy, student))
        if train and not self.is_initializing():
            keep = self.momentum
            kept.value = jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, kept.value, student)
        return kept.value


def apply_frozen(module: nn.Module, variables, *arguments, method: str = "__call__"):
    """A module's output with other variables; statistics that it would update are dropped."""
    free = module.clone(parent=None, name=None)
    return free.apply(variables, *arguments, method=method, mutable=["batch_stats"])[0]
