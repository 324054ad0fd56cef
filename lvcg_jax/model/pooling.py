"""The tokens of a record's beats -> one vector: statistics over its valid beats, joined.

    mean    what the beats share
    std     how much they differ
    steps   root mean square difference to the beat before: sudden changes, not slow drift
    max     largest value of each feature, min the smallest: single abnormal beats

`structure = "mean+std"` joins two of them, and "none" leaves the tokens out. 'anchor', the token of
slot 1 alone, is what the authors' code does.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from lvcg_jax.model.masking import masked_mean, safe_std

NUM_SIZES = len(LEADS)  # numbers that log_lead_sizes adds
ANCHOR = 1  # the slot of the first whole beat; slot 0 is the piece before the first R peak


def _mean(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    return masked_mean(tokens, mask[..., None], -2)


def _std(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    deviation = tokens - _mean(tokens, mask)[..., None, :]
    return safe_std(_mean(deviation * deviation, mask))


def _steps(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    step = tokens[..., 1:, :] - tokens[..., :-1, :]
    return safe_std(_mean(step * step, mask[..., 1:] & mask[..., :-1]))


def _max(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    highest = jnp.where(mask[..., None], tokens, -jnp.inf).max(-2)
    return jnp.where(mask.any(-1)[..., None], highest, 0.0)


def _min(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    return -_max(-tokens, mask)


def _anchor(tokens: jax.Array, mask: jax.Array) -> jax.Array:
    return tokens[..., ANCHOR, :]


STATISTICS: dict[str, Callable] = {
    "mean": _mean, "std": _std, "steps": _steps, "max": _max, "min": _min, "anchor": _anchor
}  # fmt: skip


def _names(structure: str) -> list[str]:
    return [] if structure == "none" else structure.split("+")


def check_statistics(structure: str) -> None:
    """An InputError for a name that is none of STATISTICS, or comes twice."""
    names = _names(structure)
    unknown = [name for name in names if name not in STATISTICS]
    if unknown or len(set(names)) < len(names):
        raise InputError(
            f"model.structure is '{structure}': choose from {', '.join(STATISTICS)}, each once,"
            " joined by '+', or none"
        )


def pool_tokens(tokens: jax.Array, mask: jax.Array, structure: str) -> jax.Array:
    """Tokens [...,n,d] and their mask [...,n] -> [...,k*d] for k statistics."""
    nothing = jnp.zeros((*tokens.shape[:-2], 0), tokens.dtype)
    found = [STATISTICS[name](tokens, mask) for name in _names(structure)]
    return jnp.concatenate([nothing, *found], axis=-1)


def pooled_size(token_dim: int, structure: str) -> int:
    """Numbers of the structure part."""
    return token_dim * len(_names(structure))


def steps_to_beats(
    features: jax.Array, mask: jax.Array, length: jax.Array, samples: int
) -> jax.Array:
    """Features of the steps [b,s,d] that divide `samples`, of which those of the mask [b,s] count,
    -> of the beats of these lengths [b,n], one after another: [b,n,d]. Each is the mean over its
    beat, a step weighted by the samples that it shares with the beat."""
    steps = features.shape[1]
    first = jnp.arange(steps) * (samples / steps)
    end = jnp.cumsum(length, -1)[..., None].astype(jnp.float32)
    start = end - length[..., None]
    shared = jnp.minimum(first + samples / steps, end) - jnp.maximum(first, start)
    shared = jnp.where(mask[:, None], jnp.maximum(shared, 0.0), 0.0)
    weight = shared / jnp.maximum(shared.sum(-1, keepdims=True), 1e-6)
    return jnp.einsum("bns,bsd->bnd", weight, features)


def log_lead_sizes(scale: jax.Array, visible: jax.Array, directions: jax.Array) -> jax.Array:
    """Scale of each lead in mV [...,12], which leads are seen [...,12] and their directions [12,k]
    -> logarithms.

    A lead that is not seen gets what the geometry says of a heart vector without preferred
    direction: the mean of those that are seen, each relative to the length of its direction.
    Nothing else of an unseen lead enters.
    """
    length = jnp.log(jnp.linalg.norm(directions, axis=-1))
    relative = jnp.log(jnp.where(visible, scale, 1.0)) - length
    expected = masked_mean(relative, visible, -1)[..., None]
    return length + jnp.where(visible, relative, expected)
