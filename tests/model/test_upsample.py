"""Up-sampling is the library's, and the convolution that up-samples is the one after the other,
edges included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.ops.conv1d import conv1d, upsample2, upsampled_conv1d


def test_upsampling_is_linear_with_half_pixel_centres_and_clamped_edges():
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    library = jax.image.resize(x, (2, 10, 3), "linear")
    np.testing.assert_allclose(upsample2(x), library, atol=1e-6)
    at = (np.arange(10) + 0.5) / 2 - 0.5
    np.testing.assert_allclose(
        upsample2(x)[0, :, 0], np.interp(at, np.arange(5), x[0, :, 0]), atol=1e-6
    )


@pytest.mark.parametrize("width", [1, 3, 5, 7, 9])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_convolution_that_upsamples_is_up_sampling_and_then_convolution(length, width):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, length, 2)).astype(np.float32)
    kernel = rng.normal(size=(width, 2, 4)).astype(np.float32)
    weight = rng.normal(size=(3, 2 * length, 4)).astype(np.float32)

    def values_and_gradients(form):
        def loss(x, kernel):
            return (form(x, kernel) * weight).sum()

        return form(x, kernel), *jax.grad(loss, (0, 1))(x, kernel)

    in_turn = values_and_gradients(lambda x, kernel: conv1d(upsample2(x), kernel))
    for found, expected in zip(values_and_gradients(upsampled_conv1d), in_turn, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("length", [4, 16])
def test_half_precision_stays_half_precision(length):
    x, kernel = jnp.ones((3, length, 2), jnp.bfloat16), jnp.ones((5, 2, 4), jnp.bfloat16)
    found = upsampled_conv1d(x, kernel)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        found.astype(jnp.float32), conv1d(upsample2(x), kernel).astype(jnp.float32), rtol=0.02
    )
