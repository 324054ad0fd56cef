"""The library-module model is the same model: else a ratio of speeds would mean nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.commands import get_config
from helpers.packed_batch import ALL_LEADS, pack, random_records, random_variables, tiny_config

from lvcg_jax.bench.plain_model import make_plain_model, pad_batch
from lvcg_jax.config.build import make_model
from lvcg_jax.model.network import PARTS

N = 6  # max_beats here


def _setting(norm="batch", lambda_rhythm=0.0):
    """Both models, one set of variables, and the same seven records (one of them empty) packed and
    padded."""
    config = tiny_config()
    config.model.norm, config.model.dropout = norm, 0.0
    config.model.gelu_exact = norm == "layer"
    config.loss.lambda_rhythm = lambda_rhythm
    config.geometry.eps = 1e-2
    lead_masks = [
        ALL_LEADS,
        0b111111111000,
        ALL_LEADS,
        ALL_LEADS & ~2,
        ALL_LEADS,
        ALL_LEADS,
        ALL_LEADS,
        ALL_LEADS,
    ]
    counts = (4, 1, N, 3, 0, 5, 2, 3)
    packed = pack(
        random_records(counts, config.preprocess.beat_samples, lead_masks=lead_masks),
        groups=2,
        capacity=15,
    )
    model = make_model(config)
    return config, model, make_plain_model(config), random_variables(model, packed, N), packed


@pytest.mark.parametrize("modes", [3, 8])
def test_parameters_and_statistics_are_those_of_the_model_at_paper_size(modes):
    config = get_config("paper")
    config.loss.lambda_rhythm = 1.0
    if modes > 3:
        with config.ignore_type():
            config.geometry.matrix = tuple(map(tuple, np.eye(12, modes).tolist()))
    packed = pack(random_records((2,), 128), groups=1, capacity=2)
    shapes = [
        jax.eval_shape(
            lambda b, m=model: m.init(jax.random.key(0), b, b["lead_mask"], None, 20), batch
        )
        for model, batch in (
            (make_model(config), packed),
            (make_plain_model(config), pad_batch(packed, 20)),
        )
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_same_embeddings(norm):
    _, model, plain, variables, packed = _setting(norm)
    padded = pad_batch(packed, N)
    ours = jax.jit(lambda b: model.apply(variables, b, b["lead_mask"], N, method="embed"))(packed)
    theirs = jax.jit(lambda b: plain.apply(variables, b, b["lead_mask"], N, method="embed"))(padded)
    for name in PARTS:
        one, other = np.asarray(ours[name]).reshape(8, -1), np.asarray(theirs[name]).reshape(8, -1)
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(one).max(), err_msg=name)
        assert np.abs(one).max() > 0.1


@pytest.mark.parametrize("train, lambda_rhythm", [(False, 0.0), (True, 1.0)])
def test_same_losses_gradients_and_norm_statistics(train, lambda_rhythm):
    config, model, plain, variables, packed = _setting(lambda_rhythm=lambda_rhythm)

    def loss(params, model, batch):
        visible = batch["lead_mask"] & 0b100110010111
        key = jax.random.key(3) if train else None
        full = {**variables, "params": params}
        outputs, updates = model.apply(full, batch, visible, key, N, mutable=["batch_stats"])
        terms = model.loss_terms(outputs, batch, visible, config.loss)
        return terms["loss"].sum() / 100.0, (terms, updates["batch_stats"])

    results = []
    for module, batch in ((model, packed), (plain, pad_batch(packed, N))):
        run = jax.jit(lambda params, b, m=module: jax.grad(loss, has_aux=True)(params, m, b))
        results.append(run(variables["params"], batch))
    (our_gradient, (our_terms, our_stats)), (gradient, (terms, stats)) = results
    assert our_terms.keys() == terms.keys()
    for name in terms:
        np.testing.assert_allclose(
            our_terms[name].reshape(-1), terms[name].reshape(-1), rtol=1e-4, err_msg=name
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), our_stats, stats
    )
    norm, wrong = (
        optax.tree.norm(gradient),
        optax.tree.norm(jax.tree.map(jnp.subtract, gradient, our_gradient)),
    )
    assert norm > 1.0 and wrong < 1e-4 * norm


def test_padding_puts_every_beat_in_its_records_row():
    records = random_records((2, 3, 1, 4), 16)
    padded = pad_batch(pack(records, groups=2, capacity=6), max_beats=5)
    assert padded["beats"].shape == (4, 5, 12, 16) and padded["num_beats"].tolist() == [
        [2],
        [3],
        [1],
        [4],
    ]
    for row, record in enumerate(records):
        n = len(record["length"])
        np.testing.assert_array_equal(padded["beats"][row, :n], record["beats"])
        np.testing.assert_array_equal(padded["length"][row, :n], record["length"])
        assert not padded["beats"][row, n:].any() and padded["uid"][row, 0] == record["uid"]
