"""How far a platform may be from another whose matrix products round their factors to bfloat16:
what accelerators do to float32 unless they are told not to, emulated here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.packed_batch import owners, pack, random_records, random_variables, tiny_config
from helpers.rounded_products import rounded

from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.config.build import make_model
from lvcg_jax.data.packing import record_batch
from lvcg_jax.data.windows import corpus_windows, signal_corpus
from lvcg_jax.model.losses import loss_terms

SLOTS = 20
CONFIG = tiny_config()
MODEL = make_model(CONFIG)
BATCH = pack(random_records((5, 3, 7, 4), CONFIG.preprocess.beat_samples), groups=1, capacity=20)
VISIBLE = np.array([[0b000010000011, 0b10010010, 0b100000100010, 0b111]], np.int32)
KEY = jax.random.key(3)
EMBEDDING_TOLERANCE = 0.02  # of the length of each part, see docs/scaling.md
LOSS_TOLERANCE = 0.02  # of each term of a record


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL, BATCH, SLOTS)


def test_the_emulation_rounds_products_and_leaves_exact_ones_alone():
    a, b = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    bfloat16 = [x.astype(jnp.bfloat16).astype(np.float32) for x in (a, b)]
    expected = bfloat16[0] @ bfloat16[1]
    product = jax.jit(lambda a, b: a @ b)
    np.testing.assert_allclose(rounded(product)(a, b), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(product(a, b) - expected).max() > 1e-3
    in_a_loop = rounded(lambda a, b: jax.lax.scan(lambda s, x: (s, x @ s), b, a[None])[1][0])
    np.testing.assert_allclose(in_a_loop(a, b), expected, rtol=1e-5, atol=1e-6)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_array_equal(rounded(lambda a, b: a @ b)(a, b), product(a, b))


@pytest.mark.parametrize("learnable", [False, True])
def test_leads_and_heart_vector_are_the_same_on_every_platform(learnable):
    config = tiny_config()
    config.geometry.learnable = learnable
    model = make_model(config)
    variables = random_variables(model, BATCH, SLOTS)
    row, _, _ = owners(BATCH)

    def there_and_back(variables):
        lifted = model.apply(variables, BATCH["beats"], VISIBLE, row, method="lift")
        return lifted, model.apply(variables, lifted, method="project")

    for one, other in zip(
        jax.jit(there_and_back)(variables), rounded(there_and_back)(variables), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_losses_of_two_platforms_agree_to_a_fiftieth(variables):
    def terms(variables):
        outputs, _ = MODEL.apply(variables, BATCH, VISIBLE, KEY, SLOTS, mutable=["batch_stats"])
        return loss_terms(outputs, BATCH, VISIBLE, CONFIG.loss)

    exact, other = jax.jit(terms)(variables), rounded(terms)(variables)
    far = {name: np.abs(other[name] / x - 1.0).max() for name, x in exact.items()}
    assert 0.0 < max(far.values()) < LOSS_TOLERANCE, far


def test_embeddings_of_two_platforms_agree_to_a_fiftieth_and_wholly_if_asked():
    signal, _ = make_record(seed=0)
    corpus = signal_corpus(signal, 250, LEADS, "mV", "made up")
    (window,) = corpus_windows(corpus, Preprocess(), failures=[])
    batch, model = record_batch(window, capacity=SLOTS), LVCG.load("small")

    def embed(variables):
        return model.model.apply(variables, batch, batch["lead_mask"], SLOTS, method="embed")

    exact = jax.jit(embed)(model.variables)
    other = rounded(embed)(model.variables)
    far = {
        name: float(jnp.linalg.norm(other[name] - exact[name]) / jnp.linalg.norm(exact[name]))
        for name in model.part_sizes
    }
    assert 0.0 < max(far.values()) < EMBEDDING_TOLERANCE, far
    with jax.default_matmul_precision("highest"):
        asked = rounded(embed)(model.variables)
    for name in model.part_sizes:
        np.testing.assert_array_equal(asked[name], exact[name])
