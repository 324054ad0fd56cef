"""Optimiser, schedule and train state: what moves, what decays, and by how much."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.commands import get_config
from helpers.packed_batch import pack, random_records, random_variables, tiny_config

from data_prep.base.errors import InputError
from lvcg_jax.config.build import make_model
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.runs.state import (
    TrainState,
    decay_mask,
    make_optimizer,
    make_schedule,
    trained_labels,
)
from lvcg_jax.runs.trained import fresh_state
from lvcg_jax.train.sharding import make_mesh, put_batch, state_sharding
from lvcg_jax.train.steps import Watch, make_train_step


def _small(scale=1.0):
    """Parameters named as the model names them."""
    kernel = np.arange(1, 7, dtype=np.float32).reshape(2, 3) * scale
    layer = lambda: {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(kernel[0])}  # noqa: E731
    return {
        "encoder": {"token": layer(), "norm": {"scale": jnp.ones(3) * scale}},
        "rhythm": {"fuse1": layer()},
    }


@pytest.fixture(scope="module")
def paper_shapes():
    config = get_config("paper")
    config.loss.lambda_rhythm = 1.0
    config.geometry.learnable = True
    model, batch = make_model(config), pack(random_records((2,), 128), groups=1, capacity=2)
    init = lambda: model.init(jax.random.key(0), batch, batch["lead_mask"], None, 20)  # noqa: E731
    return jax.eval_shape(init)["params"]


def test_only_kernels_decay(paper_shapes):
    shapes, decayed = (
        jax.tree.leaves_with_path(paper_shapes),
        jax.tree.leaves(decay_mask(paper_shapes)),
    )
    names = {True: set(), False: set()}
    for (path, leaf), decays in zip(shapes, decayed, strict=True):
        names[decays].add(path[-1].key)
        if len(leaf.shape) < 2:
            assert not decays, path  # every bias, norm and query
    assert names[True] == {"kernel"}
    assert names[False] == {"bias", "scale", "query", "directions"}


@pytest.mark.parametrize("part", ["shape", "patterns"])
def test_what_was_fitted_to_records_stays_as_it_is_even_if_all_weights_decay(part):
    config = get_config("paper")
    config.optim.decay = "all"
    params = _small() | {part: {"modes": jnp.ones((4, 2))}}
    tx = make_optimizer(config)
    still = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(still, tx.init(params), params)
    assert not np.any(updates[part]["modes"])
    assert np.any(updates["encoder"]["token"]["kernel"])


def test_the_rhythm_encoder_alone_is_outside_the_optimiser(paper_shapes):
    config = get_config("paper")
    labels = {
        name: set(jax.tree.leaves(tree))
        for name, tree in trained_labels(paper_shapes, config).items()
    }
    assert {name for name, found in labels.items() if found == {"frozen"}} == {"rhythm"}
    assert all(found == {"train"} for name, found in labels.items() if name != "rhythm")
    config.loss.lambda_rhythm = 0.5
    assert set(jax.tree.leaves(trained_labels(paper_shapes, config))) == {"train"}


def test_frozen_parameters_do_not_move_or_decay_and_leave_the_clip_alone():
    config = get_config("smoke")
    config.optim.weight_decay = 0.5
    config.optim.warmup_steps = 0
    params = _small()
    tx = make_optimizer(config)
    gradient = jax.tree.map(jnp.ones_like, params)
    loud = {**gradient, "rhythm": jax.tree.map(lambda x: x * 1e6, gradient["rhythm"])}
    updates, state = tx.update(gradient, tx.init(params), params)
    moved = optax.apply_updates(params, updates)
    jax.tree.map(np.testing.assert_array_equal, moved["rhythm"], params["rhythm"])
    assert all(np.all(x != 0) for x in jax.tree.leaves(updates["encoder"]))
    jax.tree.map(
        np.testing.assert_array_equal, tx.update(loud, tx.init(params), params)[0], updates
    )
    for name in ("mu", "nu"):  # no moments are kept for what is frozen
        assert len(jax.tree.leaves(optax.tree.get(state, name))) == 3


def test_update_is_adamw_with_decoupled_decay_on_kernels():
    config = get_config("smoke")
    config.optim.warmup_steps = 0
    config.optim.schedule = "constant"
    config.optim.weight_decay = 0.1
    params, tx = _small(), make_optimizer(config)
    state = tx.init(params)
    for sign in (1.0, -0.5):
        gradient = jax.tree.map(lambda x, sign=sign: sign * 0.01 * jnp.ones_like(x), params)
        updates, state = tx.update(gradient, state, params)
    mean = (0.1 * -0.005 + 0.9 * 0.1 * 0.01) / (1 - 0.9**2)
    square = (0.001 * 0.005**2 + 0.999 * 0.001 * 0.01**2) / (1 - 0.999**2)
    adam = -config.optim.learning_rate * mean / np.sqrt(square)
    token = params["encoder"]["token"]
    np.testing.assert_allclose(updates["encoder"]["token"]["bias"], np.full(3, adam), rtol=1e-4)
    expected = adam - config.optim.learning_rate * 0.1 * token["kernel"]
    np.testing.assert_allclose(updates["encoder"]["token"]["kernel"], expected, rtol=1e-4)


def test_gradients_are_clipped_to_the_norm_over_trained_parameters():
    config = get_config("smoke")
    params, tx = _small(), make_optimizer(config)
    gradient = jax.tree.map(lambda x: 3.0 * jnp.ones_like(x), params)
    norm = np.sqrt(9.0 * sum(x.size for x in jax.tree.leaves(params["encoder"])))
    moments = optax.tree.get(tx.update(gradient, tx.init(params), params)[1], "mu")
    np.testing.assert_allclose(moments["encoder"]["token"]["kernel"], 0.1 * 3.0 / norm, rtol=1e-5)
    small = jax.tree.map(lambda x: 1e-3 * jnp.ones_like(x), params)  # under the bound: as it is
    moments = optax.tree.get(tx.update(small, tx.init(params), params)[1], "mu")
    np.testing.assert_allclose(moments["encoder"]["token"]["kernel"], 1e-4, rtol=1e-5)


def test_schedule_of_the_paper():
    config = get_config("paper")
    schedule = make_schedule(config)
    steps = config.train.steps
    rate = lambda update: float(schedule(update - 1)) / 5e-4  # noqa: E731  the rate of the update'th update, from 1
    assert rate(1) == pytest.approx(1 / 2000)
    assert rate(1000) == pytest.approx(0.5, rel=1e-5)
    assert rate(2000) == pytest.approx(1.0, rel=1e-5)
    assert rate(2000 + (steps - 2000) // 2) == pytest.approx(0.5, abs=1e-4)
    assert rate(steps) == pytest.approx(0.0, abs=1e-6)
    assert 0 < rate(steps - 1000) < 1e-4
    config.optim.schedule = "constant"
    assert float(make_schedule(config)(steps - 1)) == pytest.approx(5e-4)
    assert float(make_schedule(config)(999)) == pytest.approx(2.5e-4, rel=1e-5)


def test_schedule_edge_cases():
    config = get_config("smoke")
    config.optim.warmup_steps = 0
    assert float(make_schedule(config)(0)) == pytest.approx(config.optim.learning_rate, rel=0.01)
    # longer than the run: still reaches its peak
    config.optim.warmup_steps = 10 * config.train.steps
    assert float(make_schedule(config)(config.train.steps - 1)) > 0


@pytest.mark.parametrize("field, word", [("schedule", "cosin"), ("decay", "biases")])
def test_a_misspelt_word_is_refused_before_any_optimiser_is_made(field, word):
    config = get_config("smoke")
    config.optim[field] = word
    with pytest.raises(InputError, match=f"optim.{field} is '{word}': choose"):
        fresh_state(config, 0)


def test_a_train_step_moves_everything_trained_and_its_moving_average():
    config = tiny_config()
    config.optim.ema_decay = 0.75
    config.optim.warmup_steps = 4
    config.optim.weight_decay = 10.0
    model, tx, mesh = make_model(config), make_optimizer(config), make_mesh(config)
    batch = pack(
        random_records((4, 2, 5, 3), config.preprocess.beat_samples), groups=1, capacity=14
    )
    variables = jax.tree.map(jnp.asarray, random_variables(model, batch, 20))
    params = variables["params"]
    average = jax.tree.map(lambda x: x + 1.0, params)  # somewhere else, to see it move
    zero = jnp.zeros((), jnp.uint32)
    state = TrainState(
        zero, zero.astype(jnp.int32), params, variables["batch_stats"], tx.init(params), average
    )
    before, average = jax.tree.map(np.array, (params, average))
    step = make_train_step(
        model, tx, config, make_subsets(config), 20, mesh, state_sharding(mesh, state, config)
    )
    batch = put_batch({k: v[None] for k, v in batch.items()}, mesh)
    (state, watch), numbers = step((state, Watch.new((1, 1, 4))), batch)
    metrics = numbers.fetch()

    assert int(state.step) == int(watch.step) == 1 and metrics["finite"] == 1.0
    assert metrics["learning_rate"] == pytest.approx(config.optim.learning_rate / 4)
    assert metrics["loss"] == pytest.approx(float(watch.losses.mean()), rel=1e-5)
    expected = metrics["ecg"] + metrics["vcg"] + 0.1 * metrics["temp"]
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state.params["rhythm"], before["rhythm"])
    for part in ("encoder", "temporal", "decoder"):
        moved = jax.tree.map(
            lambda old, new: bool(np.isfinite(new).all() and np.any(old != new)),
            before[part],
            state.params[part],
        )
        still = {
            jax.tree_util.keystr(path) for path, x in jax.tree.leaves_with_path(moved) if not x
        }
        biases = {name for name in still if re.search(r"conv\d?'\]\['bias'\]$", name)}
        assert still == biases, "only the biases that a batch norm takes away again may rest"
    jax.tree.map(
        lambda ema, old, new: np.testing.assert_allclose(ema, 0.75 * old + 0.25 * new, atol=1e-5),
        state.ema_params,
        average,
        state.params,
    )
    assert state.eval_params is state.ema_params
    assert state.replace(ema_params={}).eval_params is state.params


@pytest.mark.parametrize(("rule", "times"), [("none", 1.0), ("sqrt", 4.0), ("linear", 16.0)])
def test_the_rate_follows_the_batch_as_the_config_says(rule, times):
    config = get_config("paper")
    config.data.batch_size, config.optim.batch_rule = 1024, rule
    config.optim.warmup_steps = 0
    assert float(make_schedule(config)(0)) == pytest.approx(times * 5e-4, rel=1e-4)
