"""The objective, one function a term. Each gives one value a record [g,r]; the mean over records is the loss.

    L = L_ecg + lambda_vcg L_vcg + lambda_temp L_temp + lambda_rhythm L_rhythm

A term is a SUM over its elements ('sum', as printed in the paper) or a mean over them ('mean').
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from lvcg_jax.masking import masked_mean, masked_sum, to_beats, to_records
from lvcg_jax.rhythm import log_rr_ratio, rr_statistics
from lvcg_jax.views import visible_leads

TERMS = ("ecg", "vcg", "temp", "rhythm")


def _per_record(per_beat: jax.Array, batch, mask: jax.Array) -> jax.Array:
    """Values of packed beats [g,m] -> their sum over each record's beats [g,r]."""
    return masked_sum(to_records(per_beat, batch["num_beats"], mask.shape[-1]), mask, -1)


def _reduce(total: jax.Array, count: jax.Array, reduction: str) -> jax.Array:
    return total if reduction == "sum" else total / jnp.maximum(count, 1.0)


def ecg_terms(outputs, batch, visible: jax.Array, reduction: str) -> tuple[jax.Array, jax.Array]:
    """Squared error on the hidden leads of the record, and their own power (the error of predicting zero): [g,r] each.

    A beat's P samples stand for `length` samples of the record, so weighting by length / P gives the error over the
    full-length record without stitching.
    """
    beats = batch["beats"].astype(jnp.float32)
    hidden = visible_leads(batch["lead_mask"] & ~visible)  # [g,r,12]
    target = to_beats(hidden, outputs["row"])[..., None]  # [g,m,12,1]
    weight = batch["length"].astype(jnp.float32) / beats.shape[-1]
    error = (jnp.where(target, outputs["ecg"] - beats, 0.0) ** 2).sum((-1, -2)) * weight
    power = (jnp.where(target, beats, 0.0) ** 2).sum((-1, -2)) * weight
    count = hidden.sum(-1) * _per_record(batch["length"].astype(jnp.float32), batch, outputs["mask"])
    return tuple(_reduce(_per_record(x, batch, outputs["mask"]), count, reduction) for x in (error, power))


def vcg_terms(outputs, batch, reduction: str) -> tuple[jax.Array, jax.Array]:
    """Squared error between decoded and lifted beats, and the power of the lifted beats: [g,r] each."""
    lifted = jax.lax.stop_gradient(
        outputs["vcg"]
    )  # a learnable geometry must not lower the term by shrinking its target
    error = ((outputs["vcg_decoded"] - lifted) ** 2).sum((-1, -2))
    power = (lifted**2).sum((-1, -2))
    elements = lifted.shape[-1] * lifted.shape[-2]
    count = (batch["num_beats"] * elements).astype(jnp.float32)
    return tuple(_reduce(_per_record(x, batch, outputs["mask"]), count, reduction) for x in (error, power))


def huber(x: jax.Array, delta: float) -> jax.Array:
    """Quadratic up to delta, linear beyond."""
    size = jnp.abs(x)
    return jnp.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))


def temporal_term(outputs, reduction: str, delta: float) -> jax.Array:
    """Huber between the steps of predicted tokens and the (fixed) steps of encoder tokens, valid transitions: [g,r]."""
    predicted, real, mask = outputs["predicted"], jax.lax.stop_gradient(outputs["tokens"]), outputs["mask"]
    both = (mask[..., 1:] & mask[..., :-1])[..., None]
    wrong = huber((predicted[..., 1:, :] - predicted[..., :-1, :]) - (real[..., 1:, :] - real[..., :-1, :]), delta)
    count = both.sum((-1, -2)) * real.shape[-1]
    return _reduce(masked_sum(wrong, both, (-1, -2)), count.astype(jnp.float32), reduction)


def rhythm_term(outputs, shape: tuple[int, int], reduction: str) -> jax.Array:
    """Squared error on the hidden log R-R ratios and on the R-R statistics, read back from e_rhythm: [g,r]."""
    rr, mask, hidden = outputs["rr"], outputs["rr_mask"], outputs["rr_hidden"]
    ratio_error = (outputs["rr_ratio"] - log_rr_ratio(rr, mask)) ** 2
    ratios = masked_sum(ratio_error, hidden, -1) if reduction == "sum" else masked_mean(ratio_error, hidden, -1)
    statistics = (outputs["rr_statistics"] - rr_statistics(rr, mask)) ** 2
    return (ratios + (statistics.sum(-1) if reduction == "sum" else statistics.mean(-1))).reshape(shape)


def loss_terms(outputs: Mapping, batch: Mapping, visible: jax.Array, config) -> dict[str, jax.Array]:
    """Every term and the weighted `loss` of each record [g,r], with the powers that turn errors into R2."""
    ecg, ecg_power = ecg_terms(outputs, batch, visible, config.reduction)
    vcg, vcg_power = vcg_terms(outputs, batch, config.reduction)
    terms = {"ecg": ecg, "vcg": vcg, "temp": temporal_term(outputs, config.reduction, config.huber_delta)}
    loss = config.lambda_ecg * ecg + config.lambda_vcg * vcg + config.lambda_temp * terms["temp"]
    if config.lambda_rhythm > 0:
        terms["rhythm"] = rhythm_term(outputs, ecg.shape, config.reduction)
        loss = loss + config.lambda_rhythm * terms["rhythm"]
    return {"loss": loss, **terms, "ecg_power": ecg_power, "vcg_power": vcg_power}


def worst_share(term: jax.Array, record_valid: jax.Array, share: float = 0.05) -> jax.Array:
    """How much of a term the worst 5% of the records (at least one) carry: near 1 means that a few decide the step."""
    values = jnp.where(record_valid, term, 0.0).reshape(-1)
    k = max(1, round(share * values.size))
    return jax.lax.top_k(values, k)[0].sum() / jnp.maximum(values.sum(), 1e-9)
