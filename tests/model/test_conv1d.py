"""Every form of the convolution is the library's: values, gradients, and what other devices are
given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.ops.conv1d import (
    SPLIT_BEATS,
    SPLIT_CHANNELS,
    _banded_conv1d,
    _gradient_of_taps,
    _library_conv1d,
    _split_conv1d,
    conv1d,
)


def values_and_gradients(form, x, kernel, stride, weight):
    def loss(x, kernel):
        return (form(x, kernel, stride) * weight).sum()

    return form(x, kernel, stride), *jax.grad(loss, (0, 1))(x, kernel)


def arrays(m, length, stride, width, ci, co):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(m, length, ci)).astype(np.float32)
    kernel = rng.normal(size=(width, ci, co)).astype(np.float32)
    return x, kernel, stride, rng.normal(size=(m, -(-length // stride), co)).astype(np.float32)


@pytest.mark.parametrize("width", [5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("length", [4, 5, 8])
def test_banded_convolution_is_the_library_one(length, stride, width):
    given = arrays(3, length, stride, width, 2, 4)
    banded, library, chosen = (
        values_and_gradients(form, *given) for form in (_banded_conv1d, _library_conv1d, conv1d)
    )
    x, _, _, weight = given
    on_accelerators = _gradient_of_taps(x, weight, width, stride)
    several = zip(
        (*banded, *chosen, on_accelerators), (*library, *library, library[2]), strict=True
    )
    for found, expected in several:
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("width", [3, 5, 7, 9])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("length", [2, 4, 6, 8, 12])
def test_split_convolution_is_the_library_one(length, stride, width):
    given = arrays(3, length, stride, width, 2, 4)
    split, library = (
        values_and_gradients(form, *given) for form in (_split_conv1d, _library_conv1d)
    )
    for found, expected in zip(split, library, strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("length, stride", [(4, 1), (8, 1), (8, 2)])
def test_wide_convolutions_are_split_on_cpu_and_keep_to_one_form_elsewhere(length, stride):
    sizes = (SPLIT_BEATS, length, stride, 7, SPLIT_CHANNELS, SPLIT_CHANNELS)
    x, kernel, stride, weight = arrays(*sizes)
    chosen = values_and_gradients(conv1d, x, kernel, stride, weight)
    for found, expected in zip(
        chosen, values_and_gradients(_library_conv1d, x, kernel, stride, weight), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    forward = jax.jit(lambda x, kernel: conv1d(x, kernel, stride)).trace(x, kernel)
    products = {
        p: forward.lower(lowering_platforms=(p,)).as_text().count("stablehlo.dot")
        for p in ("cpu", "tpu")
    }
    assert products["cpu"] >= 9, "the split form: three products for each halving"
    assert products["tpu"] <= 1


def test_half_precision_is_not_split():
    x, kernel, *_ = arrays(SPLIT_BEATS, 8, 1, 7, SPLIT_CHANNELS, SPLIT_CHANNELS)
    lowered = jax.jit(conv1d).lower(jnp.bfloat16(x), jnp.bfloat16(kernel)).as_text()
    assert "stablehlo.convolution" in lowered and "stablehlo.dot" not in lowered


def test_the_beats_of_one_record_are_not_split_so_that_they_compile_fast():
    x, kernel, *_ = arrays(SPLIT_BEATS - 1, 8, 1, 7, SPLIT_CHANNELS, SPLIT_CHANNELS)
    lowered = jax.jit(conv1d).lower(x, kernel).as_text()
    assert "stablehlo.convolution" in lowered and "stablehlo.dot" not in lowered


@pytest.mark.parametrize("length, stride, width", [(4, 1, 7), (8, 2, 7), (9, 2, 5), (16, 1, 1)])
def test_convolution_is_a_sum_over_taps(length, stride, width):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, length, 3)), rng.normal(size=(width, 3, 4))
    padded = np.pad(x, [(0, 0), (width // 2, width // 2), (0, 0)])
    expected = np.stack(
        [
            np.einsum("mkc,kcd->md", padded[:, p : p + width], kernel)
            for p in range(0, length, stride)
        ],
        axis=1,
    )
    found = conv1d(jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32), stride)
    np.testing.assert_allclose(found, expected, atol=2e-5)
