"""The building blocks give what their library counterparts give, and padding or place in the batch
changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.layers import Conv1D, Norm
from lvcg_jax.model.parts import Layers
from lvcg_jax.model.randomness import keyed_dropout


def _norm(kind="batch", channels=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 2.0, size=(6, 4, channels)).astype(np.float32)
    params = {
        "scale": rng.uniform(0.5, 2, channels).astype(np.float32),
        "bias": rng.normal(size=channels).astype(np.float32),
    }
    stats = {"mean": np.full(channels, 0.5, np.float32), "var": np.full(channels, 3.0, np.float32)}
    return (
        Norm(Layers(norm=kind)),
        {"params": params, "batch_stats": stats},
        x,
        np.array([1, 1, 0, 1, 0, 1], bool),
    )


def test_norm_standardises_the_valid_beats():
    norm, variables, x, valid = _norm()
    y, _ = norm.apply(variables, x, 0.0, valid, True, mutable=["batch_stats"])
    inside, params = x[valid], variables["params"]
    expected = (inside - inside.mean((0, 1))) / np.sqrt(inside.var((0, 1)) + 1e-5) * params[
        "scale"
    ] + params["bias"]
    np.testing.assert_allclose(y[valid], expected, atol=1e-5)


def test_padding_changes_neither_norm_nor_its_gradients_nor_running_statistics():
    norm, variables, x, valid = _norm()

    @jax.jit
    def everything(x):
        def loss(params, x):
            y, updates = norm.apply(
                {**variables, "params": params}, x, 0.0, valid, True, mutable=["batch_stats"]
            )
            y = jnp.where(valid[:, None, None], y, 0.0)
            return jnp.sum(y**3), (y, updates)

        return jax.grad(loss, (0, 1), has_aux=True)(variables["params"], x)

    plain = everything(x)
    padded = everything(np.where(valid[:, None, None], x, 1e6).astype(np.float32))
    jax.tree.map(np.testing.assert_array_equal, plain, padded)


def test_running_statistics_follow_the_momentum_and_serve_evaluation():
    norm, variables, x, valid = _norm()
    _, updates = norm.apply(variables, x, 0.0, valid, True, mutable=["batch_stats"])
    old, new, inside = variables["batch_stats"], updates["batch_stats"], x[valid]
    np.testing.assert_allclose(
        new["mean"], 0.9 * old["mean"] + 0.1 * inside.mean((0, 1)), rtol=1e-5
    )
    np.testing.assert_allclose(new["var"], 0.9 * old["var"] + 0.1 * inside.var((0, 1)), rtol=1e-5)
    y = norm.apply(variables, x, 0.0, valid, False)
    params = variables["params"]
    expected = (x - old["mean"]) / np.sqrt(old["var"] + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["batch", "layer"])
@pytest.mark.parametrize("train", [False, True])
def test_a_shift_of_a_norm_is_as_good_as_added(kind, train):
    norm, variables, x, valid = _norm(kind)
    shift = np.float32([0.3, -2.0, 1.0])
    given, updates = norm.apply(variables, x, shift, valid, train, mutable=["batch_stats"])
    added, expected = norm.apply(variables, x + shift, 0.0, valid, train, mutable=["batch_stats"])
    np.testing.assert_allclose(given, added, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, expected)


def test_a_convolution_without_its_bias_is_the_same_with_it_added():
    x = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)
    conv = Conv1D(4, 5)
    variables = conv.init(jax.random.key(0), x)
    y, bias = conv.apply(variables, x, method="without_bias")
    np.testing.assert_array_equal(conv.apply(variables, x), y + bias)


def test_layer_norm_treats_each_place_alone():
    norm, variables, x, valid = _norm("layer")
    y = norm.apply({"params": variables["params"]}, x, 0.0, valid, True)
    standard = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = standard * variables["params"]["scale"] + variables["params"]["bias"]
    np.testing.assert_allclose(y, expected, atol=1e-4)


def _kept(seeds, layer=0, rate=0.3, shape=(16, 24)):
    x = jnp.ones((len(seeds), *shape))
    return np.asarray(keyed_dropout(x, jnp.asarray(seeds, jnp.uint32), layer, rate))


def test_a_beats_dropout_mask_does_not_depend_on_its_batch():
    seeds = np.random.default_rng(0).integers(2**32, size=8, dtype=np.uint32)
    together = _kept(seeds)
    np.testing.assert_array_equal(_kept(seeds[::-1]), together[::-1])
    np.testing.assert_array_equal(_kept(seeds[3:4]), together[3:4])


def test_dropout_keeps_its_share_in_beats_and_in_places_and_keeps_the_mean():
    rate, seeds = 0.1, np.arange(400)  # neighbouring seeds, the worst case for a hash
    kept = _kept(seeds, rate=rate)
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1) / np.float32(1 - rate)}
    for share, draws in (
        ((kept > 0).mean(), kept.size),
        ((kept > 0).mean((1, 2)), 384),
        ((kept > 0).mean(0), 400),
    ):
        error = np.sqrt(rate * (1 - rate) / draws)
        assert np.abs(share - (1 - rate)).max() < 5 * error
    assert keyed_dropout(kept, seeds, 0, 0.0) is kept


def test_dropout_differs_between_layers_and_seeds():
    seeds = np.arange(50)
    one, two = _kept(seeds) > 0, _kept(seeds, layer=1) > 0
    independent = 0.7**2 + 0.3**2
    error = 5 * np.sqrt(independent * (1 - independent) / one.size)
    assert abs((one == two).mean() - independent) < error  # another layer
    assert abs((one[1:] == one[:-1]).mean() - independent) < error  # another seed
    assert abs((one[:, 1:] == one[:, :-1]).mean() - independent) < error  # another place
