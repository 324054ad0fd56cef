"""Each term of the objective against plain loops over records, beats and leads."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.packed_batch import owners, pack, random_records

from data_prep.ecg.leads import mask_leads
from data_prep.ecg.segment import cut_beats, stitch_beats
from lvcg_jax.model.authors_code import base_term
from lvcg_jax.model.losses import (
    ecg_terms,
    huber,
    loss_terms,
    rhythm_term,
    temporal_term,
    vcg_terms,
    worst_share,
)
from lvcg_jax.model.masking import beat_mask
from lvcg_jax.model.rhythm import log_rr_ratio, rr_statistics

P, SLOTS, TOKEN = 8, 6, 5
COUNTS = (4, 0, 6, 1, 3, 2)
LEAD_MASKS = (4095, 4095, 0b110111111011, 4095, 0b000000111111, 0b000000000111)
VISIBLE = np.array([[0b000010000011, 0b111, 0b100000100010], [0b111, 0b1011, 0b111]], np.int32)


@pytest.fixture
def case():
    """A batch of two groups of three records with outputs that have nothing to do with it."""
    batch = pack(random_records(COUNTS, P, 0, LEAD_MASKS), groups=2, capacity=13)
    rng = np.random.default_rng(1)
    row, _, valid = owners(batch)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    outputs = {
        "row": row,
        "valid": valid,
        "mask": np.asarray(beat_mask(batch["num_beats"], SLOTS)),
        "ecg": normal(2, 13, 12, P),
        "vcg": normal(2, 13, P, 3),
        "vcg_decoded": normal(2, 13, P, 3),
        "tokens": normal(2, 3, SLOTS, TOKEN),
        "predicted": normal(2, 3, SLOTS, TOKEN),
    }
    outputs["transitions"] = outputs["mask"][..., 1:] & outputs["mask"][..., :-1]
    outputs["modelled"] = outputs["mask"]
    return batch, outputs


def _records(batch):
    """(group, row, slice of packed beats) of each record."""
    for g, counts in enumerate(batch["num_beats"]):
        ends = np.cumsum(counts)
        for r, n in enumerate(counts):
            yield g, r, range(ends[r] - n, ends[r])


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_leads_from_predicted_tokens_count_only_where_there_is_a_prediction(case, reduction):
    """Beats before the temporal module's start are in no sum; the encoder's own tokens have no such
    beats, and of both kinds the term is the mean."""
    batch, outputs = case
    later = outputs["mask"] & (np.arange(SLOTS) >= 1)
    start = np.concatenate([[0], np.cumsum(batch["num_beats"][0])[:-1]])
    batch["beats"][0, start[0]] = 50.0  # of a first beat
    found = ecg_terms(outputs | {"modelled": later}, batch, VISIBLE, reduction)
    shorter = batch["length"].copy()
    for g, _, beats in _records(batch):
        shorter[g, list(beats)[:1]] = 0  # as if the first beat had no samples
    expected = ecg_terms(outputs, batch | {"length": shorter}, VISIBLE, reduction)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    own = {**outputs, "ecg_encoded": outputs["ecg"]}
    whole = ecg_terms({k: v for k, v in own.items() if k != "ecg"}, batch, VISIBLE, reduction)
    np.testing.assert_allclose(whole, ecg_terms(outputs, batch, VISIBLE, reduction), rtol=1e-6)
    both = ecg_terms(own | {"modelled": later}, batch, VISIBLE, reduction)
    np.testing.assert_allclose(both, (np.add(found, whole)) / 2, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_ecg_term_is_the_weighted_error_on_hidden_leads(case, reduction):
    batch, outputs = case
    error, power = ecg_terms(outputs, batch, VISIBLE, reduction)
    for g, r, beats in _records(batch):
        hidden = mask_leads(batch["lead_mask"][g, r]) & ~mask_leads(VISIBLE[g, r])
        expected, reference, elements = 0.0, 0.0, 0
        for k in beats:
            for lead in np.flatnonzero(hidden):
                target = batch["beats"][g, k, lead].astype(np.float64)
                weight = batch["length"][g, k] / P
                expected += weight * ((outputs["ecg"][g, k, lead] - target) ** 2).sum()
                reference += weight * (target**2).sum()
                elements += batch["length"][g, k]
        scale = max(elements, 1) if reduction == "mean" else 1
        np.testing.assert_allclose(
            [error[g, r], power[g, r]], [expected / scale, reference / scale], rtol=1e-5
        )
    assert error[1, 2] == 0  # three leads, all of them visible: nothing to predict


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_vcg_term_is_the_error_over_valid_beats(case, reduction):
    batch, outputs = case
    error, power = vcg_terms(outputs, batch, reduction)
    for g, r, beats in _records(batch):
        real, decoded = (
            outputs["vcg"][g, beats].astype(np.float64),
            outputs["vcg_decoded"][g, beats],
        )
        scale = max(real.size, 1) if reduction == "mean" else 1
        expected = [((decoded - real) ** 2).sum() / scale, (real**2).sum() / scale]
        np.testing.assert_allclose([error[g, r], power[g, r]], expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_temporal_term_is_huber_on_token_steps(case, reduction):
    batch, outputs = case
    found = temporal_term(outputs, reduction, 0.7)
    for g, r, beats in _records(batch):
        n = len(beats)
        difference = np.diff(outputs["predicted"][g, r, :n], axis=0) - np.diff(
            outputs["tokens"][g, r, :n], axis=0
        )
        total = sum(
            0.5 * e * e if abs(e) <= 0.7 else 0.7 * (abs(e) - 0.35) for e in difference.ravel()
        )
        np.testing.assert_allclose(
            found[g, r], total / (max(difference.size, 1) if reduction == "mean" else 1), 1e-5
        )


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_rhythm_term_is_the_error_on_hidden_ratios_and_on_statistics(reduction):
    rng = np.random.default_rng(0)
    rr = rng.uniform(0.5, 1.2, (6, SLOTS)).astype(np.float32)
    mask = np.arange(SLOTS) < np.array([6, 4, 1, 0, 5, 3])[:, None]
    hidden = mask & (rng.random(mask.shape) < 0.4)
    ratio, statistics = rng.normal(size=(6, SLOTS)), rng.normal(size=(6, 4))
    outputs = {
        "rr_ratio_true": log_rr_ratio(rr, mask, 2.0),
        "rr_statistics_true": rr_statistics(rr, mask),
        "rr_hidden": hidden,
        "rr_ratio": ratio,
        "rr_statistics": statistics,
    }
    found = np.asarray(rhythm_term(jax.tree.map(jnp.asarray, outputs), (2, 3), reduction)).ravel()
    for b in range(6):
        r = rr[b][mask[b]]
        real = [r.mean(), r.std(), np.ptp(r), r.std() / r.mean()] if len(r) else [0] * 4
        errors = [
            (ratio[b, n] - np.log(rr[b, n] / r.mean())) ** 2 for n in np.flatnonzero(hidden[b])
        ]
        squares = (statistics[b] - real) ** 2
        if reduction == "sum":
            expected = sum(errors) + squares.sum()
        else:
            expected = (np.mean(errors) if errors else 0.0) + squares.mean()
        np.testing.assert_allclose(found[b], expected, rtol=2e-5)


def test_mixed_reduction_divides_by_the_items_of_the_whole_batch(case):
    """The mean over records is the published normalisation: hidden samples, beats, transitions."""
    batch, outputs = case
    records = batch["num_beats"] > 0
    of_batch = lambda term: float(np.asarray(term)[records].mean())  # noqa: E731
    hidden = (mask_leads(batch["lead_mask"]) & ~mask_leads(VISIBLE)).sum(-1)
    samples = sum(
        int(hidden[g, r] * batch["length"][g, list(beats)].sum()) for g, r, beats in _records(batch)
    )
    error, power = ecg_terms(outputs, batch, VISIBLE, "mixed")
    sums = ecg_terms(outputs, batch, VISIBLE, "sum")
    np.testing.assert_allclose(
        [of_batch(error), of_batch(power)], [x.sum() / samples for x in sums], rtol=1e-5
    )
    total = float(vcg_terms(outputs, batch, "sum")[0].sum())
    assert of_batch(vcg_terms(outputs, batch, "mixed")[0]) == pytest.approx(
        total / sum(COUNTS), rel=1e-5
    )
    total = float(temporal_term(outputs, "sum", 0.7).sum())
    transitions = sum(max(n - 1, 0) for n in COUNTS)
    assert of_batch(temporal_term(outputs, "mixed", 0.7)) == pytest.approx(
        total / transitions, rel=1e-5
    )
    # the step from slot 0 to 1 is not counted
    from_slot_1 = outputs["transitions"] & (np.arange(SLOTS - 1) >= 1)
    later = temporal_term({**outputs, "transitions": from_slot_1}, "mixed", 0.7)
    steps = np.diff(outputs["predicted"] - outputs["tokens"], axis=2)[:, :, 1:]
    both = outputs["mask"][:, :, 2:]
    assert of_batch(later) == pytest.approx(
        np.asarray(huber(steps, 0.7))[both].sum() / both.sum(), rel=1e-5
    )


@pytest.mark.parametrize("reduction", ["sum", "mean", "mixed"])
def test_base_term_is_the_error_of_slot_1(case, reduction):
    batch, outputs = case
    decoded = np.random.default_rng(2).normal(size=(2, 3, P, 3)).astype(np.float32)
    found = base_term({**outputs, "vcg_anchor": decoded}, batch, reduction)
    for g, r, beats in _records(batch):
        lifted = outputs["vcg"][g, beats[1]] if len(beats) > 1 else np.zeros((P, 3))
        square = (decoded[g, r] - lifted) ** 2
        assert float(found[g, r]) == pytest.approx(
            square.sum() if reduction == "sum" else square.mean(), rel=1e-5
        )


@pytest.mark.parametrize("lengths", [(P, P, P, P), (5, 12, P, 20)])
def test_patch_error_is_the_full_length_error_where_interpolation_is_exact(lengths):
    """Beats of P samples are the record's own samples; and a constant offset is the same at any
    length."""
    rng = np.random.default_rng(0)
    length = np.array(lengths, np.int32)
    start = np.cumsum(length) - length
    total = int(length.sum())
    signal = rng.normal(size=(12, total))
    same = set(lengths) == {P}
    if not same:  # straight lines within each interval survive resampling
        slope, level = rng.normal(size=(2, 12, len(length)))
        inside = np.arange(total) - np.repeat(start, length)
        signal = np.repeat(level, length, axis=1) + np.repeat(slope, length, axis=1) * inside / 10
    beats = cut_beats(signal, start, length, P)
    offset = (
        rng.normal(size=beats.shape)
        if same
        else np.broadcast_to(rng.normal(size=(4, 12, 1)), beats.shape)
    )
    restored = stitch_beats(beats + offset, start, length, total)
    batch = {
        "beats": beats[None].astype(np.float32),
        "length": length[None],
        "num_beats": np.array([[4]], np.int32),
        "lead_mask": np.array([[4095]], np.int32),
    }
    outputs = {
        "ecg": (beats + offset)[None].astype(np.float32),
        "row": np.zeros((1, 4), np.int32),
        "mask": np.ones((1, 1, 4), bool),
        "modelled": np.ones((1, 1, 4), bool),
    }
    visible = np.array([[0b100000000011]], np.int32)
    hidden = ~mask_leads(visible[0, 0])
    np.testing.assert_allclose(stitch_beats(beats, start, length, total), signal, atol=1e-9)
    expected = ((restored - signal)[hidden] ** 2).sum()
    np.testing.assert_allclose(
        ecg_terms(outputs, batch, visible, "sum")[0][0, 0], expected, rtol=1e-5
    )
    mean = ((restored - signal)[hidden] ** 2).mean()
    np.testing.assert_allclose(ecg_terms(outputs, batch, visible, "mean")[0][0, 0], mean, rtol=1e-5)


def test_only_hidden_leads_of_valid_beats_get_gradient(case):
    batch, outputs = case
    gradient = np.asarray(
        jax.grad(lambda ecg: ecg_terms({**outputs, "ecg": ecg}, batch, VISIBLE, "sum")[0].sum())(
            outputs["ecg"]
        )
    )
    wanted = np.zeros(gradient.shape[:3], bool)
    for g, r, beats in _records(batch):
        wanted[g, beats] = mask_leads(batch["lead_mask"][g, r]) & ~mask_leads(VISIBLE[g, r])
    np.testing.assert_array_equal(np.abs(gradient).max(-1) > 0, wanted)
    decoded = outputs["vcg_decoded"]
    gradient = jax.grad(lambda x: vcg_terms({**outputs, "vcg_decoded": x}, batch, "sum")[0].sum())(
        decoded
    )
    np.testing.assert_array_equal(np.abs(gradient).max((-1, -2)) > 0, outputs["valid"])


def test_missing_leads_and_padding_cannot_change_a_term(case):
    batch, outputs = case
    row, _, valid = owners(batch)
    absent = (
        ~np.take_along_axis(mask_leads(batch["lead_mask"]), row[..., None], 1) | ~valid[..., None]
    )
    dirty_batch = {**batch, "beats": np.where(absent[..., None], np.nan, batch["beats"])}
    dirty = {
        **outputs,
        "vcg": np.where(valid[..., None, None], outputs["vcg"], np.nan),
        "tokens": np.where(outputs["mask"][..., None], outputs["tokens"], 1e6),
        "predicted": np.where(outputs["mask"][..., None], outputs["predicted"], -1e6),
    }
    config = SimpleNamespace(
        reduction="sum",
        lambda_ecg=1.0,
        lambda_vcg=0.5,
        lambda_temp=0.1,
        lambda_rhythm=0.0,
        huber_delta=1.0,
    )
    plain, found = (
        loss_terms(outputs, batch, VISIBLE, config),
        loss_terms(dirty, dirty_batch, VISIBLE, config),
    )
    jax.tree.map(np.testing.assert_array_equal, plain, found)
    np.testing.assert_allclose(
        plain["loss"], plain["ecg"] + 0.5 * plain["vcg"] + 0.1 * plain["temp"], rtol=1e-6
    )
    assert np.all(plain["loss"][batch["num_beats"] == 0] == 0)


def test_no_gradient_into_the_temporal_target(case):
    _, outputs = case
    term = lambda tokens, predicted: temporal_term(  # noqa: E731
        {**outputs, "tokens": tokens, "predicted": predicted}, "sum", 1.0
    ).sum()
    tokens, predicted = jax.grad(term, (0, 1))(outputs["tokens"], outputs["predicted"])
    assert np.all(tokens == 0)
    reached = np.abs(predicted).max(-1) > 0
    np.testing.assert_array_equal(
        reached, outputs["mask"] & (outputs["mask"].sum(-1, keepdims=True) > 1)
    )


def test_huber_is_smooth_where_its_two_branches_meet():
    slope = jax.vmap(jax.grad(lambda x: huber(x, 0.7)))(
        jnp.array([-9.0, -0.7001, -0.2, 0.0, 0.6999, 0.7001, 9.0])
    )
    np.testing.assert_allclose(slope, [-0.7, -0.7, -0.2, 0.0, 0.7, 0.7, 0.7], atol=2e-4)


def test_worst_share():
    valid = np.ones((2, 20), bool)
    assert worst_share(jnp.ones((2, 20)), valid) == pytest.approx(0.05)
    one = jnp.zeros((2, 20)).at[1, 3].set(7.0)
    assert worst_share(one, valid) == pytest.approx(1.0)
    term = np.random.default_rng(0).gamma(1.0, size=(2, 20)).astype(np.float32)
    top = np.sort(term.ravel())[-2:].sum() / term.sum()
    assert worst_share(jnp.asarray(term), valid) == pytest.approx(top, rel=1e-5)
    valid[1, 3] = False  # a row that only fills the batch
    assert worst_share(one + 1.0, valid) == pytest.approx(2 / 39)
    assert worst_share(jnp.zeros((2, 20)), valid) == 0
