"""The objective, one function per term.

Each term gives one value per record [g,r]; the mean over records is the loss.

    L = lambda_ecg L_ecg + lambda_vcg L_vcg + lambda_temp L_temp
        + lambda_rhythm L_rhythm + lambda_view L_view

A term is a SUM over its elements ('sum', as printed in the paper) or a mean over them ('mean').
'mixed' is what the published code does: sums over the batch, divided by its hidden samples (ECG),
beats (VCG) or transitions (tokens).
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from lvcg_jax.model.masking import masked_mean, masked_sum, to_beats, to_records
from lvcg_jax.model.views import visible_leads


def _per_record(per_beat: jax.Array, batch, mask: jax.Array) -> jax.Array:
    """Values of packed beats [g,m] -> their sum over those of each record's beats that the mask
    [g,r,n] holds, [g,r]."""
    return masked_sum(to_records(per_beat, batch["num_beats"], mask.shape[-1]), mask, -1)


def reduce(
    total: jax.Array, count: jax.Array, size: int, mask: jax.Array, reduction: str
) -> jax.Array:
    """A record's total over `count` items of `size` elements, [g,r], as the reduction wants it.

    'mixed' divides by the items of the whole batch, so that the mean over its records is the mean
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

    Leads decoded from the temporal module's tokens count where it predicts, those from the
    encoder's own on all beats; of both kinds it is the mean. A beat's P samples stand for `length`
    samples of the record, so weighting by length / P gives the error over the full-length record
    without stitching.
    """
    beats = batch["beats"].astype(jnp.float32)
    hidden = visible_leads(batch["lead_mask"] & ~visible)  # [g,r,12]
    target = to_beats(hidden, outputs["row"])[..., None]  # [g,m,12,1]
    length = batch["length"].astype(jnp.float32)
    weight = length / beats.shape[-1]
    power = (jnp.where(target, beats, 0.0) ** 2).sum((-1, -2)) * weight
    kinds = []
    for name, counted in (("ecg", "modelled"), ("ecg_encoded", "mask")):
        if name not in outputs:
            continue
        error = (jnp.where(target, outputs[name] - beats, 0.0) ** 2).sum((-1, -2)) * weight
        values = (_per_record(x, batch, outputs[counted]) for x in (error, power, length))
        error_sum, power_sum, samples = values
        count = hidden.sum(-1) * samples
        kinds.append(
            [reduce(x, count, 1, outputs["mask"], reduction) for x in (error_sum, power_sum)]
        )
    return tuple(sum(several) / len(kinds) for several in zip(*kinds, strict=True))


def vcg_terms(outputs, batch, reduction: str) -> tuple[jax.Array, jax.Array]:
    """Squared error between decoded and lifted beats, and the power of the lifted beats: [g,r]
    each."""
    # A learnable geometry must not lower the term by shrinking its target.
    lifted = jax.lax.stop_gradient(outputs["vcg"])
    error = ((outputs["vcg_decoded"] - lifted) ** 2).sum((-1, -2))
    power = (lifted**2).sum((-1, -2))
    elements, mask = lifted.shape[-1] * lifted.shape[-2], outputs["mask"]
    counts = batch["num_beats"]
    return tuple(
        reduce(_per_record(x, batch, mask), counts, elements, mask, reduction)
        for x in (error, power)
    )


def huber(x: jax.Array, delta: float) -> jax.Array:
    """Quadratic up to delta, linear beyond."""
    size = jnp.abs(x)
    return jnp.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))


def temporal_term(outputs, reduction: str, delta: float) -> jax.Array:
    """Huber between the steps of predicted tokens and the (fixed) steps of encoder tokens, valid
    transitions: [g,r]."""
    predicted, real = outputs["predicted"], jax.lax.stop_gradient(outputs["tokens"])
    counted = outputs["transitions"][..., None]
    wrong = huber(jnp.diff(predicted, axis=-2) - jnp.diff(real, axis=-2), delta)
    total, count = masked_sum(wrong, counted, (-1, -2)), counted.sum((-1, -2))
    return reduce(total, count, real.shape[-1], outputs["mask"], reduction)


def view_term(outputs, reduction: str) -> jax.Array:
    """Squared distance of the tokens from those of all leads (fixed), in units of the latter's mean
    variance: [g,r]."""
    tokens, whole, mask = outputs["tokens"], outputs["whole_tokens"], outputs["mask"]
    everywhere, each = (0, 1, 2), mask[..., None]
    spread = whole - masked_mean(whole, each, everywhere)
    variance = masked_mean(spread * spread, each, everywhere).mean()
    wrong = (tokens - whole) ** 2 / jnp.maximum(variance, 1e-6)
    return reduce(masked_sum(wrong, each, (-1, -2)), mask.sum(-1), whole.shape[-1], mask, reduction)


def rhythm_term(outputs, shape: tuple[int, int], reduction: str) -> jax.Array:
    """Squared error on the hidden log R-R ratios and on the R-R statistics, read back from
    e_rhythm: [g,r]."""
    ratios = (outputs["rr_ratio"] - outputs["rr_ratio_true"]) ** 2
    statistics = (outputs["rr_statistics"] - outputs["rr_statistics_true"]) ** 2
    if reduction == "sum":
        term = masked_sum(ratios, outputs["rr_hidden"], -1) + statistics.sum(-1)
    else:
        term = masked_mean(ratios, outputs["rr_hidden"], -1) + statistics.mean(-1)
    return term.reshape(shape)


def loss_terms(
    outputs: Mapping, batch: Mapping, visible: jax.Array, config, of_ecg: Callable = ecg_terms
) -> dict[str, jax.Array]:
    """Every term and the weighted `loss` of each record [g,r], with the powers that turn errors
    into R2. `of_ecg` computes L_ecg and its power."""
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
