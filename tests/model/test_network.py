"""The whole model: sizes, what may and what must not change its outputs, and where the gradient
goes."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import get_config
from helpers.packed_batch import owners, pack, random_records, random_variables, tiny_config

from data_prep.ecg.geometry import lead_matrix, lift_matrix, lift_table
from data_prep.ecg.leads import mask_leads
from lvcg_jax.config.build import make_model
from lvcg_jax.model import network
from lvcg_jax.model.dynamics import TemporalModule
from lvcg_jax.model.flops import conv_flops, flops_per_beat
from lvcg_jax.model.losses import loss_terms
from lvcg_jax.model.network import AHEAD, Network, dropout_seeds, tikhonov_lift

COUNTS = (5, 3, 7, 1, 6, 4)
SLOTS = 20
CONFIG = tiny_config()
MODEL = make_model(CONFIG)
P = CONFIG.preprocess.beat_samples
LEAD_MASKS = (4095, 4095, 0b101111111011, 4095, 0b000111111111, 4095)
RECORDS = random_records(COUNTS, P, 0, LEAD_MASKS)
BATCH = pack(RECORDS, groups=1, capacity=26)
VISIBLE = np.array(
    [[0b000010000011, 0b10010010, 0b100000100010, 0b111, 0b10001001, 0b110000000001]], np.int32
)
KEY = jax.random.key(3)

# Gradients that are zero by algebra: a bias before a batch norm, and one that shifts all attention
# scores alike.
BEFORE_NORM = ("stem_conv", "conv1", "conv2", "shortcut_conv", "out_conv")


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL, BATCH, SLOTS)


@jax.jit(static_argnums=3)
def _embed(variables, batch, visible, slots=SLOTS):
    return MODEL.apply(variables, batch, visible, slots, method="embed")


def _value_and_gradient(config):
    """(variables, batch, visible, key) -> (terms, new statistics), gradient, in training mode,
    jitted."""
    model = make_model(config)

    def loss(params, batch_stats, batch, visible, key):
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, updates = model.apply(
            variables, batch, visible, key, SLOTS, mutable=["batch_stats"]
        )
        terms = loss_terms(outputs, batch, visible, config.loss)
        return terms["loss"].mean(), (terms, updates["batch_stats"])

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def run(variables, batch, visible, key):
        (_, aux), gradient = both(
            variables["params"], variables["batch_stats"], batch, visible, key
        )
        return aux, gradient

    return run


@pytest.fixture(scope="module")
def train():
    return _value_and_gradient(CONFIG)


def _leaves(tree):
    return {
        "/".join(k.key for k in path): np.asarray(x) for path, x in jax.tree.leaves_with_path(tree)
    }


def _close(found, expected, tolerance=1e-5):
    """Equal within a share of the largest value of the array."""
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(
        found, expected, atol=tolerance * max(1.0, np.abs(expected).max()), rtol=0
    )


# ---- sizes


def test_paper_model_has_the_published_numbers_of_parameters():
    config = get_config("paper")
    model = make_model(config)
    batch = pack(random_records((2, 3), 128), groups=1, capacity=5)
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), batch, batch["lead_mask"], None, 20)
    )
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))  # noqa: E731
    params = shapes["params"]
    assert size(params["encoder"]) == 6_466_848
    assert size(params["decoder"]) == 462_979
    # the geometry has no parameter
    assert set(params) == {"encoder", "temporal", "decoder", "rhythm"}
    parts = jax.eval_shape(
        lambda v: model.apply(v, batch, batch["lead_mask"], 20, method="embed"), shapes
    )
    assert sum(parts[name].shape[-1] for name in ("structure", "dynamics", "rhythm")) == 640


def test_decoder_blocks_must_make_the_beats_samples():
    config = tiny_config()
    config.preprocess.beat_samples = 32
    with pytest.raises(ValueError, match="do not make 32 samples"):
        jax.eval_shape(lambda: make_model(config).init(KEY, BATCH, BATCH["lead_mask"], None, SLOTS))


def test_a_network_without_any_argument_is_the_papers():
    assert Network() == make_model(get_config("paper"))


def test_the_example_in_the_networks_docstring_runs():
    found = doctest.testmod(network, optionflags=doctest.FAIL_FAST)
    assert found.attempted and not found.failed


# ---- the lift


def test_differentiable_lift_is_the_table():
    a, every = lead_matrix("paper"), mask_leads(np.arange(4096))
    # float32 of a matrix with condition number up to 1 / eps
    for eps, tolerance in ((1e-2, 1e-4), (1e-4, 5e-3)):
        found = tikhonov_lift(jnp.asarray(a, jnp.float32), every, eps)
        expected = lift_table(a, eps)
        scale = np.abs(expected).max((1, 2), keepdims=True) + 1e-6
        assert np.abs((found - expected) / scale).max() < tolerance


def test_differentiable_lift_has_finite_gradients_on_every_subset():
    every = mask_leads(np.arange(4096))
    a = jnp.asarray(lead_matrix("paper"), jnp.float32)
    gradient = jax.vmap(
        jax.grad(lambda a, visible: (tikhonov_lift(a, visible, 1e-4) ** 2).sum()), (None, 0)
    )(a, every)
    assert np.isfinite(gradient).all()
    assert np.all(np.asarray(gradient)[~every] == 0)  # directions of invisible leads do not matter


def test_learnable_geometry_starts_as_the_fixed_one_and_gets_gradient(variables):
    config = tiny_config()
    config.geometry.learnable = True
    config.geometry.eps = 1e-2
    model = make_model(config)
    row, _, valid = owners(BATCH)
    params = {**variables["params"], "directions": jnp.asarray(lead_matrix("paper"), jnp.float32)}

    def lift(params):
        return model.apply({"params": params}, BATCH["beats"], VISIBLE, row, method="lift")

    matrices = lift_matrix(lead_matrix("paper"), mask_leads(VISIBLE[0]), 1e-2)[row[0]]
    expected = np.einsum("mkl,mlp->mpk", matrices, BATCH["beats"][0].astype(np.float64))
    _close(lift(params)[0][valid[0]], expected[valid[0]], 1e-4)
    gradient = jax.grad(lambda params: (lift(params) ** 2).sum())(params)["directions"]
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


def test_lift_and_project_are_the_geometry(variables):
    row, _, valid = owners(BATCH)
    lifted = np.asarray(MODEL.apply(variables, BATCH["beats"], VISIBLE, row, method="lift"))
    for m in np.flatnonzero(valid[0]):
        matrix = lift_matrix(
            lead_matrix("paper"), mask_leads(VISIBLE[0, row[0, m]]), CONFIG.geometry.eps
        )
        _close(lifted[0, m].T, matrix @ BATCH["beats"][0, m].astype(np.float64))
    projected = MODEL.apply(variables, lifted, method="project")
    _close(projected[0, 4], lead_matrix("paper") @ lifted[0, 4].T)


# ---- a field of eight modes instead of three directions


def _field_config():
    config = tiny_config()
    modes = np.random.default_rng(8).normal(size=(12, 8))
    with config.ignore_type():
        config.geometry.matrix = tuple(map(tuple, modes.tolist()))
    return config


@pytest.mark.parametrize("learnable", [False, True])
def test_a_network_of_eight_modes_trains(learnable):
    """Traced only: every shape of a step fits, and each parameter has its gradient."""
    config = _field_config()
    config.geometry.learnable, config.model.lead_sizes = learnable, True
    model = make_model(config)
    shapes = jax.eval_shape(lambda: model.init(KEY, BATCH, BATCH["lead_mask"], None, SLOTS))
    assert shapes["params"]["encoder"]["stem_conv"]["kernel"].shape[1] == 8
    assert shapes["params"]["decoder"]["out"]["kernel"].shape[-1] == 8

    def loss(params, batch_stats):
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, _ = model.apply(variables, BATCH, VISIBLE, KEY, SLOTS, mutable=["batch_stats"])
        assert outputs["vcg"].shape == outputs["vcg_decoded"].shape == (1, 26, P, 8)
        assert outputs["ecg"].shape == (1, 26, 12, P)
        return loss_terms(outputs, BATCH, VISIBLE, config.loss)["loss"].mean()

    gradient = jax.eval_shape(jax.grad(loss), shapes["params"], shapes["batch_stats"])
    assert gradient == shapes["params"]
    assert ("directions" in gradient) == learnable


def test_hidden_leads_cannot_reach_a_field_and_visible_ones_are_lifted_as_the_table_says():
    config = _field_config()
    model, (row, _, valid) = make_model(config), owners(BATCH)
    shown = np.asarray(mask_leads(VISIBLE[0]))[row[0]]  # [m,l]
    other = np.where(shown[None, ..., None], BATCH["beats"], np.float16(np.nan))
    lifted, again = (
        np.asarray(model.apply({"params": {}}, beats, VISIBLE, row, method="lift"))
        for beats in (BATCH["beats"], other)
    )
    np.testing.assert_array_equal(lifted, again)
    matrices = lift_matrix(
        lead_matrix(config.geometry.matrix), mask_leads(VISIBLE[0]), config.geometry.eps
    )[row[0]]
    expected = np.einsum("mkl,mlp->mpk", matrices, BATCH["beats"][0].astype(np.float64))
    _close(lifted[0][valid[0]], expected[valid[0]], 1e-4)


def test_floating_point_operations_count_the_modes():
    few, many = flops_per_beat(tiny_config()), flops_per_beat(_field_config())
    stem, out = CONFIG.model.stem_features, CONFIG.model.decoder_features[-1]
    width = CONFIG.model.encoder_width
    more = conv_flops(P, width, 8, stem, 2) - conv_flops(P, width, 3, stem, 2)
    assert many["encoder"] - few["encoder"] == more
    assert many["decoder"] - few["decoder"] == 2 * P * out * (8 - 3)


# ---- embeddings


@pytest.fixture(scope="module")
def embedding(variables):
    return jax.tree.map(np.asarray, _embed(variables, BATCH, BATCH["lead_mask"]))


@pytest.mark.parametrize("alone", [0, 3])
def test_a_record_has_the_same_embedding_alone_and_in_a_batch(variables, embedding, alone):
    batch = pack(RECORDS[alone : alone + 1], groups=1, capacity=8)
    found = _embed(variables, batch, batch["lead_mask"])
    for part in ("structure", "dynamics", "rhythm"):
        _close(found[part][0, 0], embedding[part][0, alone])


def test_batch_mates_order_slots_capacity_and_groups_do_not_change_embeddings(variables, embedding):
    others = random_records((2, 9, 4, 3, 1, 5), P, seed=5)
    cases = [
        (RECORDS[::-1], 1, 26, SLOTS, [5, 4, 3, 2, 1, 0]),  # another order
        (RECORDS[:3] + others[:3], 1, 30, SLOTS, [0, 1, 2]),  # other mates, more slots in the batch
        (RECORDS, 1, 120, 40, range(6)),  # 40 slots a record, no packing
        (RECORDS, 2, 15, SLOTS, range(6)),  # two groups
    ]
    for records, groups, capacity, slots, order in cases:
        batch = pack(records, groups, capacity, padding=9.0)
        found = _embed(variables, batch, batch["lead_mask"], slots)
        for part in ("structure", "dynamics", "rhythm"):
            flat = found[part].reshape(len(records), -1)
            for here, there in enumerate(order):
                _close(flat[here], embedding[part][0, there])


def test_structure_is_the_mean_token_and_every_part_differs_between_records(embedding):
    for r, n in enumerate(COUNTS):
        _close(embedding["structure"][0, r], embedding["tokens"][0, r, :n].mean(0))
        assert embedding["mask"][0, r].sum() == n
    for part in ("structure", "dynamics", "rhythm"):
        assert np.abs(np.diff(embedding[part][0], axis=0)).max(1).min() > 1e-3


def test_rhythm_part_uses_complete_intervals_unless_told_otherwise(variables, embedding):
    longer = [
        {**r, "length": np.where(r["complete"], r["length"], r["length"] + 30)} for r in RECORDS
    ]
    batch = pack(longer, groups=1, capacity=26)
    np.testing.assert_array_equal(
        _embed(variables, batch, batch["lead_mask"])["rhythm"], embedding["rhythm"]
    )
    config = tiny_config()
    config.model.rhythm_intervals = "all"
    model = make_model(config)
    rr, mask = model.apply(variables, BATCH, SLOTS, method="rr")
    assert mask.dtype == bool and mask.sum() == sum(COUNTS)
    np.testing.assert_allclose(rr[0, :5], RECORDS[0]["length"] / 100, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, 6e4])
def test_an_invisible_leads_samples_cannot_reach_the_encoder(variables, value):
    row, _, valid = owners(BATCH)
    hidden = ~np.take_along_axis(mask_leads(VISIBLE), row[..., None], 1) & valid[..., None]
    dirty = {**BATCH, "beats": np.where(hidden[..., None], np.float16(value), BATCH["beats"])}
    plain, found = _embed(variables, BATCH, VISIBLE), _embed(variables, dirty, VISIBLE)
    jax.tree.map(np.testing.assert_array_equal, plain, found)
    shown = {**BATCH, "beats": np.where(hidden[..., None], BATCH["beats"], np.float16(0.5))}
    assert np.abs(_embed(variables, shown, VISIBLE)["structure"] - plain["structure"]).max() > 1e-3


# ---- where the temporal module starts


def _with_fragment(value):
    """BATCH with a first slot of each record that holds this value in all leads."""
    changed = [{**r, "beats": r["beats"].copy()} for r in RECORDS]
    for record in changed:
        record["beats"][0] = value
    # a peak at the first sample does not make the first slot a beat that was seen whole
    changed[4]["complete"] = changed[4]["complete"] | (np.arange(6) == 0)
    return pack(changed, groups=1, capacity=26)


def test_the_piece_before_the_first_complete_beat_is_no_part_of_the_dynamics(variables):
    """Records 0, 1, 2, 4 and 5 have complete beats from slot 1 on; record 3 has none and starts at
    its only slot."""
    one, other = (_embed(variables, _with_fragment(v), VISIBLE) for v in (0.3, -2.0))
    same = np.array([0, 1, 2, 4, 5])
    np.testing.assert_array_equal(one["dynamics"][0, same], other["dynamics"][0, same])
    assert np.abs(one["dynamics"][0, 3] - other["dynamics"][0, 3]).max() > 1e-3
    assert np.abs(one["structure"] - other["structure"]).max(-1).min() > 1e-3
    config = tiny_config()
    config.model.dynamics_start = "first"
    first = make_model(config)
    embed = jax.jit(lambda batch: first.apply(variables, batch, VISIBLE, SLOTS, method="embed"))
    one, other = (embed(_with_fragment(v)) for v in (0.3, -2.0))
    assert np.abs(one["dynamics"] - other["dynamics"]).max(-1).min() > 1e-3


def test_that_piece_is_in_no_term_of_the_predictions_and_still_reconstructed(variables):
    batch = _with_fragment(0.3)
    run = jax.jit(lambda batch: MODEL.apply(variables, batch, VISIBLE, None, SLOTS))
    outputs, others = run(batch), run(_with_fragment(-2.0))
    mask, modelled = np.asarray(outputs["mask"][0]), np.asarray(outputs["modelled"][0])
    for r, n in enumerate(COUNTS):
        assert modelled[r].tolist() == [k >= (n > 2) and k < n for k in range(SLOTS)]
        np.testing.assert_array_equal(outputs["transitions"][0, r].sum(), max(n - 1 - (n > 2), 0))
    one, other = (loss_terms(x, batch, VISIBLE, CONFIG.loss) for x in (outputs, others))
    for term in ("ecg", "ecg_power", "temp"):
        np.testing.assert_array_equal(
            one[term][0, [0, 1, 2, 4, 5]], other[term][0, [0, 1, 2, 4, 5]]
        )
    piece = mask & ~modelled
    np.testing.assert_array_equal(
        np.asarray(outputs["predicted"][0])[piece], np.asarray(outputs["tokens"][0])[piece]
    )
    assert np.abs(np.asarray(outputs["ecg"] - others["ecg"])[0, 0]).max() > 1e-3  # decoded from it


def test_without_a_temporal_module_the_dynamics_are_the_mean_of_complete_beats(variables):
    config = tiny_config()
    config.model.dynamics, config.model.state_dim = "none", config.model.token_dim
    model = make_model(config)
    found = jax.jit(lambda v: model.apply(v, BATCH, VISIBLE, SLOTS, method="embed"))(variables)
    for r, n in enumerate(COUNTS):
        tokens = np.asarray(found["tokens"][0, r, :n])
        _close(found["dynamics"][0, r], (tokens[1:-1] if n > 2 else tokens).mean(0))
    outputs = jax.jit(lambda v: model.apply(v, BATCH, VISIBLE, None, SLOTS))(variables)
    np.testing.assert_array_equal(outputs["modelled"], outputs["mask"])  # each beat from its token


def test_an_interval_above_the_bound_is_no_r_r_interval(variables):
    """A missed beat: 2.4 s between two peaks."""

    @jax.jit(static_argnums=0)
    def parts_of(model, batch):
        embedding = model.apply(variables, batch, batch["lead_mask"], SLOTS, method="embed")
        return *model.apply(variables, batch, SLOTS, method="rr"), embedding["rhythm"]

    def rhythm(length, bound):
        records = [{**RECORDS[2], "length": np.where(np.arange(7) == 3, length, 90)}]
        config = tiny_config()
        config.model.rhythm_max_rr = bound
        batch = pack(records, groups=1, capacity=8)
        rr, mask, part = parts_of(make_model(config), batch)
        return np.asarray(rr[0])[np.asarray(mask[0])].tolist(), np.asarray(part)

    assert len(rhythm(200, 2.0)[0]) == 5  # the bound itself counts
    steady = pytest.approx([0.9] * 4)
    assert rhythm(240, 2.0)[0] == rhythm(320, 2.0)[0] == steady
    np.testing.assert_array_equal(rhythm(240, 2.0)[1], rhythm(320, 2.0)[1])
    assert len(rhythm(240, 0.0)[0]) == 5
    np.testing.assert_array_equal(rhythm(150, 0.0)[1], rhythm(150, 2.0)[1])  # nothing to leave out


# ---- reconstruction


def test_reconstructions_are_the_two_decoded_tokens_projected(variables):
    reconstruct = jax.jit(
        lambda v: [
            MODEL.apply(v, BATCH, VISIBLE, SLOTS, s, method="reconstruct")
            for s in ("predicted", "encoded")
        ]
    )
    predicted, encoded = reconstruct(variables)
    outputs = jax.jit(lambda v: MODEL.apply(v, BATCH, VISIBLE, None, SLOTS))(variables)
    assert predicted.shape == encoded.shape == BATCH["beats"].shape
    _close(predicted, outputs["ecg"])
    _close(encoded, np.einsum("lk,gmpk->gmlp", lead_matrix("paper"), outputs["vcg_decoded"]))
    assert np.abs(predicted - encoded).max() > 1e-2
    assert outputs["vcg"].shape == outputs["vcg_decoded"].shape == (1, 26, P, 3)
    # III = II - I
    _close(np.asarray(predicted)[0, 3, 2], np.asarray(predicted[0, 3, 1] - predicted[0, 3, 0]))
    with pytest.raises(KeyError):
        MODEL.apply(variables, BATCH, VISIBLE, SLOTS, "other", method="reconstruct")


# ---- training mode


def test_every_parameter_but_the_rhythm_encoders_gets_gradient(variables, train):
    _, gradient = train(variables, BATCH, VISIBLE, KEY)
    for name, value in _leaves(gradient).items():
        assert np.isfinite(value).all(), name
        module, last = name.split("/")[-2:]
        if name.startswith("rhythm/"):
            assert np.all(value == 0), name
        elif not (last == "bias" and module in BEFORE_NORM):
            assert np.abs(value).max() > 1e-3, name


def test_lambda_rhythm_trains_the_rhythm_encoder():
    config = tiny_config()
    config.loss.lambda_rhythm = 1.0
    model = make_model(config)
    variables = random_variables(model, BATCH, SLOTS)

    @jax.jit
    @jax.grad
    def gradient_of(params):
        outputs = model.apply({**variables, "params": params}, BATCH, VISIBLE, None, SLOTS)
        return loss_terms(outputs, BATCH, VISIBLE, config.loss)["loss"].sum()

    gradient = _leaves(gradient_of(variables["params"]))
    names = [name for name in gradient if name.startswith(("rhythm/", "head/"))]
    assert any(name.startswith("head/") for name in names)
    for name in names:
        assert np.isfinite(gradient[name]).all(), name
        assert np.abs(gradient[name]).max() > 1e-5 or name == "rhythm/pool/k/bias", name


def test_packed_layout_and_one_record_a_group_train_alike(variables, train):
    (terms, statistics), gradient = train(variables, BATCH, VISIBLE, KEY)
    padded = pack(RECORDS, groups=6, capacity=SLOTS, padding=9.0)  # [b,n]: the plain padded layout
    (other_terms, other_statistics), other_gradient = train(
        variables, padded, VISIBLE.reshape(6, 1), KEY
    )
    for name, term in terms.items():
        _close(other_terms[name].ravel() / np.abs(term).max(), term.ravel() / np.abs(term).max())
    jax.tree.map(_close, other_statistics, statistics)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(gradient))
    jax.tree.map(lambda a, b: _close(a / scale, b / scale), other_gradient, gradient)


def test_training_does_not_depend_on_order_padding_or_missing_leads(variables, train):
    (terms, statistics), gradient = train(variables, BATCH, VISIBLE, KEY)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(gradient))
    row, _, valid = owners(BATCH)
    missing = (
        ~np.take_along_axis(mask_leads(BATCH["lead_mask"]), row[..., None], 1) & valid[..., None]
    )
    assert missing.any()
    dirty = np.where(missing[..., None], np.float16(np.nan), BATCH["beats"])
    dirty = np.where(valid[..., None, None], dirty, np.float16(6e4))
    found = train(variables, {**BATCH, "beats": dirty}, VISIBLE, KEY)
    jax.tree.map(np.testing.assert_array_equal, found, ((terms, statistics), gradient))
    (other_terms, _), other_gradient = train(
        variables, pack(RECORDS[::-1], groups=1, capacity=26), VISIBLE[:, ::-1], KEY
    )
    _close(
        other_terms["loss"][:, ::-1] / np.abs(terms["loss"]).max(),
        terms["loss"] / np.abs(terms["loss"]).max(),
    )
    jax.tree.map(lambda a, b: _close(a / scale, b / scale), other_gradient, gradient)


def test_another_key_is_another_dropout(variables, train):
    (terms, _), _ = train(variables, BATCH, VISIBLE, KEY)
    (other, _), _ = train(variables, BATCH, VISIBLE, jax.random.key(4))
    assert np.all(terms["vcg"] != other["vcg"])


def test_dropout_seeds_belong_to_record_and_beat():
    row, position, valid = owners(BATCH)
    seeds = np.asarray(dropout_seeds(KEY, BATCH["uid"], row, position))[valid]
    assert len(np.unique(seeds)) == len(seeds)
    flipped = pack(RECORDS[::-1], groups=2, capacity=15)
    row, position, valid = owners(flipped)
    found = np.asarray(dropout_seeds(KEY, flipped["uid"], row, position))[valid]
    by_record = np.split(seeds, np.cumsum(COUNTS)[:-1])
    np.testing.assert_array_equal(found, np.concatenate(by_record[::-1]))


def test_blocks_computed_again_give_the_same_gradient(variables, train):
    """Dropout draws the same masks again; parameters and running statistics are where they were."""
    config = tiny_config()
    config.model.remat = True
    usual, again = (
        run(variables, BATCH, VISIBLE, KEY) for run in (train, _value_and_gradient(config))
    )
    jax.tree.map(_close, again, usual)


def test_dynamics_from_each_complete_beat_are_the_mean_of_their_states(variables):
    """By hand: the temporal module alone, on the beats that follow each complete one."""
    config = tiny_config()
    config.model.dynamics_start = "each"
    model = make_model(config)
    found = model.apply(variables, BATCH, VISIBLE, SLOTS, method="embed")
    temporal = {"params": variables["params"]["temporal"]}
    alone = TemporalModule(model.dynamics, model.encoding.token_dim)
    for r, n in enumerate(COUNTS):
        tokens = found["tokens"][0, r, :n]
        starts = range(1, n - 1) if n > 2 else range(n)
        states = []
        for start in starts:
            some = tokens[None, start : start + AHEAD + 1]
            states.append(alone.apply(temporal, some, np.ones(some.shape[:2], bool))[1][0])
        _close(found["dynamics"][0, r], np.mean(states, axis=0))
    # trained as from the first complete beat alone
    trained = (make_model(c) for c in (config, tiny_config()))
    one, other = (m.apply(variables, BATCH, VISIBLE, None, SLOTS) for m in trained)
    np.testing.assert_array_equal(one["predicted"], other["predicted"])
