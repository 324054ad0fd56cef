"""Presets are fields: each field alone, at both of its values."""

import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import get_config
from helpers.packed_batch import owners, pack, random_records, random_variables, tiny_config

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import mask_leads
from data_prep.ecg.segment import cut_beats, stitch_beats
from lvcg_jax.config.build import make_model
from lvcg_jax.config.fields import CHOICES, flatten
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.model import authors_code
from lvcg_jax.model.layers import gelu
from lvcg_jax.model.losses import loss_terms
from lvcg_jax.model.masking import beat_mask
from lvcg_jax.model.parts import Rhythm
from lvcg_jax.model.pooling import pool_tokens, pooled_size
from lvcg_jax.model.rhythm import RhythmEncoder, rr_statistics
from lvcg_jax.model.views import draw_views
from lvcg_jax.runs.state import decay_mask, make_optimizer, make_schedule

COUNTS, SLOTS = (4, 2, 5, 3), 20
RECORDS = random_records(COUNTS, 16)
BATCH = pack(RECORDS, groups=1, capacity=16)
VISIBLE = np.array([[0b000010000011, 0b10010010, 0b100000100010, 0b10001001]], np.int32)
KEY = jax.random.key(0)

# Values that the paper does not have.
PAPER = flatten(get_config("paper"))
OTHERS = [(name, value) for name in CHOICES for value in CHOICES[name] if value != PAPER[name]]
OTHERS += [("model.dynamics_layers", 2), ("model.rhythm_positions", SLOTS), ("model.refine", 4)]
OTHERS += [("model.embedding_norm", True), ("model.stitch", True), ("loss.lambda_base", 1.0)]
OTHERS += [
    ("model.structure", "anchor"),
    ("model.structure", "mean+std"),
    ("loss.lambda_view", 1.0),
]
OTHERS += [
    ("geometry.most_visible", 6),
    ("model.lead_sizes", True),
    ("model.beat_modes", (3, 2)),
    ("model.beat_levels", 4),
    ("train.start_from", "runs/other"),
]
OTHERS += [("model.remat", True)]


def changed(**fields):
    """tiny_config with some fields changed, written section__field=value."""
    config = tiny_config()
    config.update_from_flattened_dict(
        {name.replace("__", "."): value for name, value in fields.items()}
    )
    return config


# ---- configs


def test_best_differs_from_paper_in_what_docs_presets_lists():
    paper, best = flatten(get_config("paper")), flatten(get_config("best"))
    assert {name for name in best if best[name] != paper[name]} == {
        "geometry.eps", "loss.lambda_rhythm", "model.dynamics_start", "model.lead_sizes",
        "model.beat_levels", "model.patterns", "model.rhythm_max_rr", "preprocess.peaks",
    }  # fmt: skip


def test_a_word_that_a_field_cannot_be_is_refused():
    for name in CHOICES:
        with pytest.raises(InputError, match=f"{name} is 'nonsense': choose"):
            make_model(changed(**{name.replace(".", "__"): "nonsense"}))
    for structure in ("median", "mean+mean", ""):
        with pytest.raises(
            InputError, match=f"model.structure is '{re.escape(structure)}': choose from mean, std"
        ):
            make_model(changed(model__structure=structure))
    with pytest.raises(InputError, match="dynamics_input='encoded' needs"):
        make_model(changed(model__dynamics="zero", model__dynamics_input="encoded"))
    with pytest.raises(InputError, match="ecg_source='both' needs"):
        make_model(changed(loss__vcg_source="predicted", loss__ecg_source="both"))
    with pytest.raises(InputError, match="ecg_source='encoded' needs"):
        make_model(changed(model__stitch=True, loss__ecg_source="encoded"))
    with pytest.raises(InputError, match="4 to 3 visible leads"):
        make_subsets(changed(geometry__num_visible=4, geometry__most_visible=3))
    with pytest.raises(InputError, match="no read-out"):
        make_model(changed(model__dynamics="zero", model__state_dim=24))
    with pytest.raises(InputError, match="rhythm_positions"):
        make_model(changed(model__rhythm_positions=7))


@pytest.mark.parametrize(
    "name, value", [other for other in OTHERS if not other[0].startswith("optim")]
)
def test_each_field_alone_fits_the_papers_others(name, value):
    """Shapes only: a training view, its loss and a reconstruction; making the variables embeds,
    too."""
    config = changed(**{name.replace(".", "__"): value})
    model = make_model(config)

    def everything(key):
        variables = model.init(KEY, BATCH, VISIBLE, None, SLOTS)
        outputs, _ = model.apply(variables, BATCH, VISIBLE, key, SLOTS, mutable=["batch_stats"])
        leads = model.apply(variables, BATCH, VISIBLE, SLOTS, method="reconstruct")
        return model.loss_terms(outputs, BATCH, VISIBLE, config.loss)["loss"], leads

    loss, leads = jax.eval_shape(everything, KEY)
    assert loss.shape == (1, 4) and leads.shape == BATCH["beats"].shape


# ---- geometry and views (D1, D14)


def test_views_are_drawn_from_all_subsets_in_release():
    assert [len(make_subsets(get_config(name))) for name in ("paper", "release")] == [199, 220]


def test_views_of_several_sizes_are_drawn_as_often():
    subsets = make_subsets(changed(geometry__num_visible=3, geometry__most_visible=6))
    sizes = np.bitwise_count(subsets)
    assert set(sizes) == {3, 4, 5, 6} and (sizes == 6).sum() > 4 * (sizes == 3).sum()
    uid = np.arange(4000, dtype=np.uint32)
    drawn = np.bitwise_count(
        np.asarray(draw_views(KEY, uid, np.full(4000, 0xFFF, np.int32), subsets, 3))
    )
    # 4 standard deviations
    np.testing.assert_allclose(np.bincount(drawn, minlength=7)[3:], 1000, atol=110)


# ---- temporal module (D6, D7)


def torch_gru(params, state, x):
    """The gates as PyTorch documents them."""
    a, b = (
        np.split(v @ params[k]["kernel"] + params[k]["bias"], 3, -1)
        for k, v in (("input", x), ("state", state))
    )
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    reset, keep = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    return (1 - keep) * np.tanh(a[2] + reset * b[2]) + keep * state


@pytest.mark.parametrize("layers", [1, 2])
def test_zero_start_feeds_the_anchor_token_and_then_its_own_output(layers):
    module = authors_code.OpenLoopGRU(5, layers, 0.5)
    rng, counts = np.random.default_rng(0), np.array([6, 4, 2, 1])
    tokens, mask = rng.normal(size=(4, 6, 5)).astype(np.float32), np.asarray(beat_mask(counts, 6))
    params = jax.tree.map(np.asarray, module.init(KEY, tokens, mask, None)["params"])
    predicted, last = module.apply({"params": params}, tokens, mask, None)
    for b, count in enumerate(counts):
        states, token = [np.zeros(5)] * layers, tokens[b, 1]
        np.testing.assert_array_equal(predicted[b, :2], tokens[b, :2])
        for n in range(2, 6):
            if n < count:
                x = token
                for k in range(layers):
                    x = states[k] = torch_gru(params["step"][f"gru{k}"], states[k], x)
                token = x
            np.testing.assert_allclose(predicted[b, n], token, atol=1e-5)
        np.testing.assert_allclose(last[b], states[-1], atol=1e-5)
    seeds = [np.full((4, 6), s, np.uint32) for s in (1, 1, 2)]
    once, again, other = (module.apply({"params": params}, tokens, mask, s)[1] for s in seeds)
    np.testing.assert_array_equal(once, again)
    assert (np.abs(once - other).max() > 0) == (layers > 1)  # dropout is between layers


@pytest.mark.parametrize("unroll", ["record", "batch"])
def test_unrolling_to_the_longest_record_or_to_the_own_end(unroll):
    model = make_model(changed(model__unroll=unroll))
    variables = random_variables(model, BATCH, SLOTS)
    tokens = np.random.default_rng(0).normal(size=(1, 4, SLOTS, 16)).astype(np.float32)

    def last_state(counts):
        mask = beat_mask(np.array([counts]), SLOTS)
        return model.apply(variables, tokens, mask, mask, None, method="predict")[1][0]

    short, long = last_state([4, 2, 5, 3]), last_state([4, 2, 9, 3])  # another record gets longer
    assert (np.abs(short[0] - long[0]).max() > 1e-3) == (unroll == "batch")
    assert np.abs(short[2] - long[2]).max() > 1e-3


# ---- embedding (D5)


@pytest.mark.parametrize("structure", ["mean", "anchor"])
@pytest.mark.parametrize("norm", [False, True])
def test_structure_part_and_its_norm(structure, norm):
    model = make_model(changed(model__structure=structure, model__embedding_norm=norm))
    variables = random_variables(model, BATCH, SLOTS)
    rng, mask = np.random.default_rng(0), np.asarray(beat_mask(BATCH["num_beats"], SLOTS))
    tokens = np.where(mask[..., None], rng.normal(size=(1, 4, SLOTS, 16)), 0.0).astype(np.float32)
    x = SimpleNamespace(tokens=tokens, mask=mask, state=tokens[:, :, 0])
    parts = model.apply(variables, x, BATCH, VISIBLE, method="embedding_parts")
    for r, n in enumerate(COUNTS):
        expected = tokens[0, r, 1] if structure == "anchor" else tokens[0, r, :n].mean(0)
        if norm:
            scale = variables["params"]["norm_structure"]
            expected = (expected - expected.mean()) / np.sqrt(expected.var() + 1e-5) * scale[
                "scale"
            ] + scale["bias"]
        np.testing.assert_allclose(parts["structure"][0, r], expected, atol=1e-5)


def test_pooled_statistics_are_those_of_the_valid_beats():
    rng, counts = np.random.default_rng(0), np.array([5, 2, 1, 0])
    tokens, mask = rng.normal(size=(4, 6, 3)).astype(np.float32), np.asarray(beat_mask(counts, 6))
    pooled = np.asarray(pool_tokens(tokens, mask, "mean+std+steps+max+min"))
    assert pooled.shape == (4, pooled_size(3, "mean+std+steps+max+min"))
    for row, beats, n in zip(pooled, tokens, counts, strict=True):
        beats = beats[:n] if n else np.zeros((1, 3))
        steps = np.diff(beats, axis=0) if n > 1 else np.zeros((1, 3))
        expected = [
            beats.mean(0),
            beats.std(0),
            np.sqrt((steps**2).mean(0)),
            beats.max(0),
            beats.min(0),
        ]
        np.testing.assert_allclose(row, np.concatenate(expected), atol=1e-5)


def test_lead_sizes_are_those_in_mv_and_unseen_leads_get_what_the_seen_ones_suggest():
    config = changed(model__lead_sizes=True, geometry__matrix="dower")
    model, plain = make_model(config), make_model(changed(geometry__matrix="dower"))
    variables = random_variables(model, BATCH, SLOTS)
    structure = model.apply(variables, BATCH, VISIBLE, SLOTS, method="embed")["structure"][0]
    sizes = np.asarray(structure)[:, -12:]
    tokens_only = plain.apply(variables, BATCH, VISIBLE, SLOTS, method="embed")["structure"][0]
    np.testing.assert_array_equal(structure[:, :-12], tokens_only)
    length = np.log(np.linalg.norm(lead_matrix("dower"), axis=1))
    for r, seen in enumerate(mask_leads(VISIBLE[0])):
        np.testing.assert_allclose(sizes[r, seen], np.log(RECORDS[r]["scale"][seen]), atol=1e-5)
        expected = length[~seen] + (np.log(RECORDS[r]["scale"]) - length)[seen].mean()
        np.testing.assert_allclose(sizes[r, ~seen], expected, atol=1e-5)
    spoiled = BATCH | {"scale": np.where(mask_leads(VISIBLE), BATCH["scale"], np.nan)}
    other = model.apply(variables, spoiled, VISIBLE, SLOTS, method="embed")["structure"][0]
    np.testing.assert_array_equal(other, structure)


# ---- objective: ours


def test_hidden_leads_decoded_from_both_kinds_of_tokens_share_the_term():
    config = changed(loss__ecg_source="both")
    model = make_model(config)
    variables = random_variables(model, BATCH, SLOTS)
    outputs = dict(model.apply(variables, BATCH, VISIBLE, None, SLOTS))
    encoded = outputs.pop("ecg_encoded")
    expected = model.apply(variables, BATCH, VISIBLE, SLOTS, "encoded", method="reconstruct")
    np.testing.assert_allclose(encoded, expected, atol=1e-5)
    predicted_term = loss_terms(outputs, BATCH, VISIBLE, config.loss)["ecg"]
    both = loss_terms(outputs | {"ecg_encoded": encoded}, BATCH, VISIBLE, config.loss)["ecg"]
    del outputs["ecg"]
    alone = outputs | {"ecg_encoded": encoded}
    encoded_term = loss_terms(alone, BATCH, VISIBLE, config.loss)["ecg"]
    np.testing.assert_allclose(both, (predicted_term + encoded_term) / 2, rtol=1e-5)
    assert np.abs(predicted_term - encoded_term).min() > 1e-3


@pytest.mark.parametrize("source", ["predicted", "encoded", "both"])
def test_hidden_leads_train_the_tokens_of_all_beats_only_if_decoded_from_them(source):
    """The GRU reads the first complete beat alone (slot 1), so the printed objective's hidden leads
    say nothing to the other beats' tokens. Decoded from the encoder's tokens only, they say nothing
    to the GRU."""
    config = changed(loss__ecg_source=source)
    model = make_model(config)
    variables = random_variables(model, BATCH, SLOTS)

    def ecg_loss(beats, temporal):  # of record 0; the visible leads of `beats` reach the encoder
        params = variables["params"] | {"temporal": temporal}
        batch = BATCH | {"beats": beats}
        outputs = model.apply({**variables, "params": params}, batch, VISIBLE, None, SLOTS)
        assert (set(outputs) & {"ecg", "ecg_encoded"}) == {
            "predicted": {"ecg"}, "encoded": {"ecg_encoded"}, "both": {"ecg", "ecg_encoded"}
        }[source]  # fmt: skip
        return loss_terms(outputs, BATCH, VISIBLE, config.loss)["ecg"][0, 0]

    start = (BATCH["beats"].astype(np.float32), variables["params"]["temporal"])
    gradient, of_gru = jax.grad(ecg_loss, (0, 1))(*start)
    reached = [bool(np.abs(gradient[0, slot]).max() > 0) for slot in range(COUNTS[0])]
    assert reached == ([False, True, False, False] if source == "predicted" else [True] * 4)
    moved = max(np.abs(x).max() for x in jax.tree.leaves(of_gru))
    assert (moved == 0) == (source == "encoded")


def test_view_term_is_zero_for_all_leads_and_moves_only_the_view():
    config = changed(loss__lambda_view=1.0)
    model = make_model(config)
    variables = random_variables(model, BATCH, SLOTS)

    def term(variables, visible):
        outputs = model.apply(variables, BATCH, visible, None, SLOTS)
        return loss_terms(outputs, BATCH, visible, config.loss)["view"]

    np.testing.assert_allclose(term(variables, BATCH["lead_mask"]), 0.0, atol=1e-6)
    assert term(variables, VISIBLE).min() > 1e-3
    gradient = jax.grad(lambda v: term(v, BATCH["lead_mask"]).sum())(variables)
    np.testing.assert_allclose(
        jax.tree.leaves(jax.tree.map(lambda x: np.abs(x).max(), gradient)), 0.0, atol=1e-6
    )


# ---- rhythm encoder (D12)


def test_rhythm_unit_steps_and_positions():
    rr = np.array([[0.8, 0.9, 0.7, 1.1, 0.0]], np.float32)
    mask = rr > 0
    sizes = {"dim": 6, "hidden": 8, "basis": 4, "heads": 2}
    paper = RhythmEncoder(Rhythm(**sizes))
    params = paper.init(KEY, rr, mask)["params"]
    encode = lambda module, params, rr=rr: np.asarray(module.apply({"params": params}, rr, mask))  # noqa: E731
    # Statistics and steps in samples are those of seconds with the first kernel scaled; the ratios
    # have no unit.
    branches = {"stats1": np.array([100, 100, 100, 1.0])[:, None], "differences": 100.0}
    scaled = params | {
        name: {**params[name], "kernel": params[name]["kernel"] * factor}
        for name, factor in branches.items()
    }
    np.testing.assert_allclose(
        encode(RhythmEncoder(Rhythm(**sizes, unit="samples")), params),
        encode(paper, scaled),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        rr_statistics(rr * 100, mask)[0, :3], 100 * rr_statistics(rr, mask)[0, :3], rtol=1e-5
    )
    # Relative steps: twice as slow a heart has the same steps.
    cut = params | {"stats1": jax.tree.map(jnp.zeros_like, params["stats1"])}
    relative = RhythmEncoder(Rhythm(**sizes, steps="relative"))
    np.testing.assert_allclose(encode(relative, cut, 2 * rr), encode(relative, cut), atol=1e-5)
    assert np.abs(encode(paper, cut, 2 * rr) - encode(paper, cut)).max() > 1e-3
    mean = rr[mask].mean()
    factor = params | {
        "differences": {**params["differences"], "kernel": params["differences"]["kernel"] / mean}
    }
    np.testing.assert_allclose(encode(relative, params), encode(paper, factor), atol=1e-5)
    # Positions: without them the pooled sequence does not know the order of the intervals.
    placed = RhythmEncoder(Rhythm(**sizes, positions=5))
    placed_params = {**cut, "positions": jax.random.normal(KEY, (5, 8))}
    placed_params["differences"] = jax.tree.map(jnp.zeros_like, params["differences"])
    turned = rr[:, [3, 1, 2, 0, 4]]
    assert (
        np.abs(encode(placed, placed_params, turned) - encode(placed, placed_params)).max() > 1e-4
    )
    without = {name: x for name, x in placed_params.items() if name != "positions"}
    np.testing.assert_allclose(encode(paper, without, turned), encode(paper, without), atol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_gelu_is_exact_or_its_tanh_form(exact):
    x = np.linspace(-4, 4, 81)
    true = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    gap = np.abs(np.asarray(gelu(jnp.asarray(x, jnp.float32), exact)) - true).max()
    assert gap < 1e-6 if exact else 1e-5 < gap < 1e-3


# ---- whole records (D4, and the zeros of the published stitching)


def published_stitch(beats, length, num_samples):
    """The published loop in words: resample, window, place, divide; [n,p,k] -> [t,k]."""
    total, weight, offset = np.zeros((num_samples, beats.shape[-1])), np.zeros(num_samples), 0
    last = len(length) - 1
    for i, (beat, n) in enumerate(zip(beats, length, strict=True)):
        place = np.clip((np.arange(n) + 0.5) * len(beat) / n - 0.5, 0, len(beat) - 1)
        resampled = np.stack(
            [np.interp(place, np.arange(len(beat)), axis) for axis in beat.T], axis=1
        )
        window, fade = np.ones(n), max(1, int(0.1 * n))
        if i > 0:
            window[:fade] = np.linspace(0, 1, fade)
        if i < last:
            window[-fade:] = np.linspace(1, 0, fade)
        end = min(offset + n, num_samples)
        total[offset:end] += (resampled * window[:, None])[: end - offset]
        weight[offset:end] += window[: end - offset]
        offset = end
    return total / np.maximum(weight, 1e-6)[:, None]


@pytest.mark.parametrize("lengths", [(12, 30, 1, 19, 20, 40), (3, 1), (50, 60, 70)])
def test_stitching_is_the_published_loop_and_restoring_and_cutting_are_the_shards(lengths):
    rng, total = np.random.default_rng(0), 130
    beats = rng.normal(size=(len(lengths), 16, 3)).astype(np.float32)
    padded, slots = np.zeros((1, 8, 16, 3), np.float32), np.zeros((1, 8), np.int32)
    padded[0, : len(lengths)], slots[0, : len(lengths)] = beats, lengths
    found = np.asarray(authors_code.stitch(padded, slots, total))[0]
    np.testing.assert_allclose(found, published_stitch(beats, lengths, total), atol=1e-5)
    if sum(lengths) <= total:
        length = np.array(lengths, np.int32)
        start, real = np.cumsum(length) - length, sum(lengths)
        record, inside = authors_code.restore(padded, slots, total)
        np.testing.assert_array_equal(inside[0], np.arange(total) < real)
        expected = stitch_beats(np.swapaxes(beats, 1, 2), start, length, real)
        np.testing.assert_allclose(np.asarray(record)[0, :real].T, expected, atol=1e-5)
        cut = np.asarray(authors_code.cut(record, slots, 16))[0, : len(lengths)]
        np.testing.assert_allclose(
            np.swapaxes(cut, 1, 2), cut_beats(expected, start, length, 16), atol=1e-5
        )


def test_refinement_is_a_residual_of_each_lead_alone():
    refiner = authors_code.LeadRefiner(4)
    ecg = np.random.default_rng(0).normal(size=(1, 2, 12, 20)).astype(np.float32)
    params = refiner.init(KEY, ecg)["params"]
    still = {**params, "conv2": jax.tree.map(jnp.zeros_like, params["conv2"])}
    np.testing.assert_array_equal(refiner.apply({"params": still}, ecg), ecg)
    other = ecg.copy()
    other[0, 1, 3] += 1.0
    moved = np.asarray(
        refiner.apply({"params": params}, other) - refiner.apply({"params": params}, ecg)
    )
    assert np.argwhere(np.abs(moved).max(-1) > 0).tolist() == [[0, 1, 3]]


def test_filled_slots_are_zeros_up_to_the_longest_record():
    filled = authors_code.fill_slots(BATCH | {"num_beats": np.array([[4, 2, 5, 0]], np.int32)}, 6)
    assert filled["num_beats"].tolist() == [[5, 5, 5, 0]]
    assert filled["beats"].shape == (1, 24, 12, 16)
    beats = np.asarray(filled["beats"])[0, :15].reshape(3, 5, 12, 16)
    for r, n in enumerate((4, 2, 5)):
        np.testing.assert_array_equal(beats[r, :n], RECORDS[r]["beats"])
        assert not beats[r, n:].any()


# ---- objective and optimiser (D8, D9)


@pytest.mark.parametrize("source", ["encoded", "predicted"])
def test_tokens_that_the_vcg_term_decodes(source):
    model = make_model(changed(loss__vcg_source=source))
    variables = random_variables(model, BATCH, SLOTS)
    outputs = jax.jit(lambda v: model.apply(v, BATCH, VISIBLE, None, SLOTS))(variables)
    own = model.apply(variables, outputs["vcg_decoded"], method="project")
    gap = np.abs(np.asarray(own - outputs["ecg"]))[owners(BATCH)[2]].max()
    assert (gap < 1e-5) if source == "predicted" else (gap > 1e-2)


@pytest.mark.parametrize("decay", ["kernels", "all"])
def test_what_decays(decay):
    config = changed(
        optim__decay=decay,
        optim__weight_decay=0.5,
        optim__warmup_steps=0,
        optim__schedule="constant",
    )
    names = ("kernel", "bias", "scale")
    params = {
        "encoder": {name: jnp.ones(3) for name in names},
        "norm_rhythm": {"scale": jnp.ones(3)},
    }
    tx = make_optimizer(config)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    shrunk = {name for name in names if np.all(updates["encoder"][name] < 0)}
    assert shrunk == ({"kernel"} if decay == "kernels" else set(names))
    # nothing trains it, and so nothing decays it
    assert np.all(updates["norm_rhythm"]["scale"] == 0)
    assert decay_mask(params)["encoder"] == {"kernel": True, "bias": False, "scale": False}


def test_release_has_no_warm_up_and_a_constant_rate():
    rates = {name: make_schedule(get_config(name)) for name in ("paper", "release")}
    assert float(rates["release"](0)) == float(rates["release"](499_999)) == pytest.approx(5e-4)
    assert (
        float(rates["paper"](0)) == pytest.approx(5e-4 / 2000)
        and float(rates["paper"](499_999)) < 1e-9
    )


# ---- ablations


def test_axis_tokens_know_one_axis_each():
    model = make_model(changed(model__token_scope="axis"))
    variables = random_variables(model, BATCH, SLOTS)
    vcg = np.random.default_rng(0).normal(size=(1, 2, 16, 3)).astype(np.float32)
    valid, seeds = np.ones((1, 2), bool), np.zeros((1, 2), np.uint32)
    encode = jax.jit(lambda x: model.apply(variables, x, valid, seeds, False, method="tokens_of"))
    plain = encode(vcg)
    assert plain.shape == (1, 2, 16)  # 6 + 6 + 4 of three axes: the size of a joint token
    for axis, place in enumerate((range(6), range(6, 12), range(12, 16))):
        other = vcg.copy()
        other[..., axis] *= 2.0
        moved = np.abs(np.asarray(encode(other) - plain)).max((0, 1)) > 0
        assert np.flatnonzero(moved).tolist() == list(place)


def test_lead_space_sees_visible_leads_only_and_has_no_geometry():
    model = make_model(changed(model__space="ecg"))
    variables = random_variables(model, BATCH, SLOTS)
    row, _, valid = owners(BATCH)
    shown = np.take_along_axis(mask_leads(VISIBLE), row[..., None], 1)
    lifted = np.asarray(model.apply(variables, BATCH["beats"], VISIBLE, row, method="lift"))
    np.testing.assert_array_equal(
        np.swapaxes(lifted, -1, -2), np.where(shown[..., None], BATCH["beats"], 0)
    )
    outputs = jax.jit(lambda v: model.apply(v, BATCH, VISIBLE, None, SLOTS))(variables)
    decoded = np.abs(np.asarray(outputs["vcg_decoded"])).max(2)[valid]  # [m,12]
    np.testing.assert_array_equal(decoded > 0, shown[valid])  # an invisible lead is no target there
    assert np.all(np.abs(outputs["ecg"])[valid].max(-1) > 0)
    ecg = np.asarray(outputs["ecg"])
    # nothing ties III to II - I
    assert np.abs(ecg[0, 0, 2] - (ecg[0, 0, 1] - ecg[0, 0, 0])).max() > 1e-3


def test_without_dynamics_every_beat_predicts_itself():
    model = make_model(changed(model__dynamics="none"))
    tokens = np.random.default_rng(0).normal(size=(1, 4, SLOTS, 16)).astype(np.float32)
    mask = np.asarray(beat_mask(BATCH["num_beats"], SLOTS))
    complete = mask & (np.arange(SLOTS) < np.maximum(np.array(COUNTS)[:, None] - 1, 1))
    predicted, state, _ = model.apply({}, tokens, mask, complete, None, method="predict")
    np.testing.assert_array_equal(predicted, tokens)
    # the mean token of the complete beats, of which slot 0 is none; without any, of what there is
    whole = [slice(1, n - 1) if n > 2 else slice(0, n) for n in COUNTS]
    expected = [tokens[0, r, some].mean(0) for r, some in enumerate(whole)]
    np.testing.assert_allclose(state[0], expected, atol=1e-6)
