"""Leads that are not seen, as the most likely ones given those that are: a linear map of the seen
leads, sample by sample, from how leads go together in training records.

It is the lift of data_prep/ecg/geometry.py with as many modes as leads, projected back. Axis
letters: those of model/__init__.py, and T sample of a record, s and c of patterns.py.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from data_prep.ecg.leads import LEADS

NOISE = 1e-3  # of a lead, as a share of the mean power of leads


def lead_covariance(module: nn.Module) -> jax.Array:
    """The parameter [l,l] that leads are filled in by: fitted to training records, not trained
    (train/fitted.py)."""
    found = module.param("lead_covariance", lambda _: jnp.eye(len(LEADS)))
    return jax.lax.stop_gradient(found)


def eliminate(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """right matrix^-1 for a small symmetric positive matrix [l,l], with rows `right` [...,l]: Gauss
    and Jordan's elimination, which is as exact as float32 is and takes the same steps wherever it
    runs."""
    size = len(matrix)

    def without(both: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        row, column = (jax.lax.dynamic_index_in_dim(both, k, axis) for axis in (0, 1))
        row = row / jax.lax.dynamic_index_in_dim(row, k, 1)
        return jnp.where(jnp.arange(size)[:, None] == k, row, both - column * row), None

    both = jnp.concatenate([matrix, right.T], axis=1)
    return jax.lax.scan(without, both, jnp.arange(size))[0][:, size:].T


def fill_leads(
    signal: jax.Array, seen: jax.Array, covariance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A signal [l,T] in which leads that are not `seen` [l] are the most likely ones, and the
    covariance [l,l] of what the true ones may differ by."""
    noise = NOISE * jnp.trace(covariance) / len(covariance)
    both = seen[:, None] & seen[None, :]
    within = jnp.where(both, covariance, 0.0) + jnp.diag(jnp.where(seen, noise, 1.0))
    # rows of the map from seen leads to each lead, [l,l]; in units in which its diagonal is 1
    units = jax.lax.rsqrt(jnp.diagonal(within))
    right = jnp.where(seen, covariance, 0.0) * units
    rows = eliminate(within * units[:, None] * units, right) * units
    known = jnp.where(seen[:, None], signal, 0.0)
    neither = ~seen[:, None] & ~seen[None, :]
    left_over = jnp.where(neither, covariance - rows @ covariance, 0.0)
    return jnp.where(seen[:, None], known, rows @ known), left_over


def known_share(leads: jax.Array, covariance: jax.Array, left_over: jax.Array) -> jax.Array:
    """How much of the power of each pattern's sum of leads [s,c] is known; 1 if all are seen."""

    def power(of: jax.Array) -> jax.Array:
        return jnp.einsum("scl,lm,scm->sc", leads, of, leads)

    return jnp.clip(1.0 - power(left_over) / jnp.maximum(power(covariance), 1e-12), 0.0, 1.0)
