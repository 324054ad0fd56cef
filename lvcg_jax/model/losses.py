"""The objective, one function a term. Each gives one value a record [g,r]; the mean over records is
the loss.

    L = L_ecg + lambda_vcg L_vcg + lambda_temp L_temp
        + lambda_rhythm L_rhythm + lambda_base L_base + lambda_view L_view

A term is a SUM over its elements ('sum', as printed in the paper) or a mean over them ('mean').
'mixed' is what the published code does: sums over the batch, divided by its hidden samples (ECG),
beats (VCG) or transitions (tokens).
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from lvcg_jax.model.authors_code import ANCHOR, record_error, restored_records
from lvcg_jax.model.masking import masked_mean, masked_sum, to_beats, to_records
from lvcg_jax.model.rhythm import log_rr_ratio, rr_statistics
from lvcg_jax.model.views import visible_leads

TERMS = ("ecg", "vcg", "temp", "rhythm", "base", "view")


def _per_record(per_beat: jax.Array, batch, mask: jax.Array) -> jax.Array:
    """Values of packed beats [g,m] -> their sum over each record's beats [g,r]."""
    return masked_sum(to_records(per_beat, batch["num_beats"], mask.shape[-1]), mask, -1)


def _reduce(
    total: jax.Array, count: jax.Array, size: int, mask: jax.Array, reduction: str
) -> jax.Array:
    """Sums over a record's `count` items of `size` elements each, [g,r], as the reduction wants
    them.

    'mixed' divides by the items of the whole batch, so that the mean over its records is their sum
    over all items.
    """
    if reduction == "sum":
        return total
    count = count.astype(jnp.float32)
    if reduction == "mean":
        return total / jnp.maximum(count * size, 1.0)
    record_valid = mask[..., 0]
    return total * record_valid.sum() / jnp.maximum(masked_sum(count, record_valid), 1.0)


def ecg_terms(outputs, batch, visible: jax.Array, reduction: str) -> tuple[jax.Array, jax.Array]:
    """Squared error on the hidden leads of the record, and their own power (the error of predicting
    zero): [g,r] each.

    If the leads were decoded from the encoder's tokens too, the mean of the two errors. A beat's P
    samples stand for `length` samples of the record, so weighting by length / P gives the error
    over the full-length record without stitching.
    """
    beats = batch["beats"].astype(jnp.float32)
    hidden = visible_leads(batch["lead_mask"] & ~visible)  # [g,r,12]
    target = to_beats(hidden, outputs["row"])[..., None]  # [g,m,12,1]
    weight = batch["length"].astype(jnp.float32) / beats.shape[-1]
    decoded = [outputs[name] for name in ("ecg", "ecg_encoded") if name in outputs]
    error = (
        sum((jnp.where(target, y - beats, 0.0) ** 2).sum((-1, -2)) for y in decoded)
        * weight
        / len(decoded)
    )
    power = (jnp.where(target, beats, 0.0) ** 2).sum((-1, -2)) * weight
    count = hidden.sum(-1) * _per_record(
        batch["length"].astype(jnp.float32), batch, outputs["mask"]
    )
    mask = outputs["mask"]
    return tuple(
        _reduce(_per_record(x, batch, mask), count, 1, mask, reduction) for x in (error, power)
    )


def record_ecg_terms(
    outputs, batch, visible: jax.Array, reduction: str, target=None
) -> tuple[jax.Array, jax.Array]:
    """ecg_terms on whole records [g,r,12,t] that the model has stitched; the target is made of the
    batch's beats."""
    ecg, mask = outputs["record_ecg"], outputs["mask"]
    restored, inside = restored_records(batch, mask, ecg.shape[-1])
    hidden = visible_leads(batch["lead_mask"] & ~visible)
    error, power, count = record_error(ecg, restored if target is None else target, hidden, inside)
    return tuple(_reduce(x, count, 1, mask, reduction) for x in (error, power))


def vcg_terms(outputs, batch, reduction: str) -> tuple[jax.Array, jax.Array]:
    """Squared error between decoded and lifted beats, and the power of the lifted beats: [g,r]
    each."""
    lifted = jax.lax.stop_gradient(
        outputs["vcg"]
    )  # a learnable geometry must not lower the term by shrinking its target
    error = ((outputs["vcg_decoded"] - lifted) ** 2).sum((-1, -2))
    power = (lifted**2).sum((-1, -2))
    elements, mask = lifted.shape[-1] * lifted.shape[-2], outputs["mask"]
    counts = batch["num_beats"]
    return tuple(
        _reduce(_per_record(x, batch, mask), counts, elements, mask, reduction)
        for x in (error, power)
    )


def base_term(outputs, batch, reduction: str) -> jax.Array:
    """Squared error of the beat decoded from the anchor's own token, there or not: a second time in
    the sum: [g,r]."""
    lifted = to_records(jax.lax.stop_gradient(outputs["vcg"]), batch["num_beats"], ANCHOR + 1)[
        :, :, ANCHOR
    ]
    error = (outputs["vcg_anchor"] - lifted) ** 2
    return error.sum((-1, -2)) if reduction == "sum" else error.mean((-1, -2))


def huber(x: jax.Array, delta: float) -> jax.Array:
    """Quadratic up to delta, linear beyond."""
    size = jnp.abs(x)
    return jnp.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))


def temporal_term(outputs, reduction: str, delta: float) -> jax.Array:
    """Huber between the steps of predicted tokens and the (fixed) steps of encoder tokens, valid
    transitions: [g,r]."""
    predicted, real, mask = (
        outputs["predicted"],
        jax.lax.stop_gradient(outputs["tokens"]),
        outputs["mask"],
    )
    both = (mask[..., 1:] & mask[..., :-1])[..., None]
    if "first_predicted" in outputs:  # the tokens before are not the temporal module's
        both = both & (jnp.arange(both.shape[-2])[:, None] >= outputs["first_predicted"])
    wrong = huber(
        (predicted[..., 1:, :] - predicted[..., :-1, :]) - (real[..., 1:, :] - real[..., :-1, :]),
        delta,
    )
    return _reduce(
        masked_sum(wrong, both, (-1, -2)), both.sum((-1, -2)), real.shape[-1], mask, reduction
    )


def view_term(outputs, reduction: str) -> jax.Array:
    """Squared distance of the tokens from those of all leads (fixed), in units of the latter's mean
    variance: [g,r]."""
    tokens, whole, mask = outputs["tokens"], outputs["whole_tokens"], outputs["mask"]
    everywhere, each = (0, 1, 2), mask[..., None]
    spread = whole - masked_mean(whole, each, everywhere)
    variance = masked_mean(spread * spread, each, everywhere).mean()
    wrong = (tokens - whole) ** 2 / jnp.maximum(variance, 1e-6)
    return _reduce(
        masked_sum(wrong, each, (-1, -2)), mask.sum(-1), whole.shape[-1], mask, reduction
    )


def rhythm_term(outputs, shape: tuple[int, int], reduction: str) -> jax.Array:
    """Squared error on the hidden log R-R ratios and on the R-R statistics, read back from
    e_rhythm: [g,r]."""
    rr, mask, hidden = outputs["rr"], outputs["rr_mask"], outputs["rr_hidden"]
    ratio_error = (outputs["rr_ratio"] - log_rr_ratio(rr, mask)) ** 2
    ratios = (
        masked_sum(ratio_error, hidden, -1)
        if reduction == "sum"
        else masked_mean(ratio_error, hidden, -1)
    )
    statistics = (outputs["rr_statistics"] - rr_statistics(rr, mask)) ** 2
    return (ratios + (statistics.sum(-1) if reduction == "sum" else statistics.mean(-1))).reshape(
        shape
    )


def loss_terms(
    outputs: Mapping, batch: Mapping, visible: jax.Array, config
) -> dict[str, jax.Array]:
    """Every term and the weighted `loss` of each record [g,r], with the powers that turn errors
    into R2."""
    of_ecg = record_ecg_terms if "record_ecg" in outputs else ecg_terms
    ecg, ecg_power = of_ecg(outputs, batch, visible, config.reduction)
    vcg, vcg_power = vcg_terms(outputs, batch, config.reduction)
    terms = {
        "ecg": ecg,
        "vcg": vcg,
        "temp": temporal_term(outputs, config.reduction, config.huber_delta),
    }
    loss = config.lambda_ecg * ecg + config.lambda_vcg * vcg + config.lambda_temp * terms["temp"]
    if config.lambda_rhythm > 0:
        terms["rhythm"] = rhythm_term(outputs, ecg.shape, config.reduction)
        loss = loss + config.lambda_rhythm * terms["rhythm"]
    if "vcg_anchor" in outputs:
        terms["base"] = base_term(outputs, batch, config.reduction)
        loss = loss + config.lambda_base * terms["base"]
    if "whole_tokens" in outputs:
        terms["view"] = view_term(outputs, config.reduction)
        loss = loss + config.lambda_view * terms["view"]
    return {"loss": loss, **terms, "ecg_power": ecg_power, "vcg_power": vcg_power}


def worst_share(term: jax.Array, record_valid: jax.Array, share: float = 0.05) -> jax.Array:
    """How much of a term the worst 5% of the records (at least one) carry: near 1 means that a few
    decide the step."""
    values = jnp.where(record_valid, term, 0.0).reshape(-1)
    k = max(1, round(share * values.size))
    return jax.lax.top_k(values, k)[0].sum() / jnp.maximum(values.sum(), 1e-9)
