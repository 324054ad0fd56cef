"""Building blocks of encoder and decoder: convolution with bias, masked batch norm, the conv pair.

Arrays are [m,p,c]: beats, samples, channels.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lvcg_jax.model.masking import masked_mean
from lvcg_jax.model.ops.conv1d import conv1d, upsampled_conv1d
from lvcg_jax.model.parts import Layers
from lvcg_jax.model.randomness import keyed_dropout


def torch_uniform(fan_in: int) -> Callable[..., jax.Array]:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): how biases of convolutions and dense layers start."""
    bound = 1.0 / np.sqrt(fan_in)

    def start(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return start


def gelu(x: jax.Array, exact: bool) -> jax.Array:
    """GELU with the error function (exact) or its tanh form."""
    return jax.nn.gelu(x, approximate=not exact)


class Conv1D(nn.Module):
    """Convolution with bias over [m,p,c], or over its samples up-sampled by two."""

    features: int
    width: int
    stride: int = 1
    dtype: jnp.dtype = jnp.float32
    kernel_init: Callable = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
    upsample: bool = False

    def __call__(self, x: jax.Array) -> jax.Array:
        x, bias = self.without_bias(x)
        return x + bias.astype(self.dtype)

    @nn.compact
    def without_bias(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The convolution, and the bias [c] that is still to be added: what a Norm takes."""
        kernel = self.param("kernel", self.kernel_init, (self.width, x.shape[-1], self.features))
        bias = self.param("bias", torch_uniform(self.width * x.shape[-1]), (self.features,))
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        y = upsampled_conv1d(x, kernel) if self.upsample else conv1d(x, kernel, self.stride)
        return y, bias


class Norm(nn.Module):
    """Batch norm whose statistics see valid beats only ('batch'), or layer norm over channels.

    Under jit over a mesh the sums run over the global batch, so statistics do not depend on the
    number of devices. A constant `shift` [c] of x is not added but accounted for: a batch norm in
    training takes it away again, so that only the running mean sees it, and its gradient is zero.
    """

    config: Layers

    @nn.compact
    def __call__(
        self, x: jax.Array, shift: jax.Array | float, valid: jax.Array, train: bool
    ) -> jax.Array:
        """x [m,p,c], shift [c] or 0, valid [m]."""
        c, channels = self.config, x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        x = x.astype(jnp.float32)
        if c.norm == "layer":
            x = x + shift
            mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
            var = jnp.maximum(square - mean * mean, 0.0)
        else:
            running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
            running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
            mean, var = running_mean.value - shift, running_var.value
            if train:
                # Over samples first, then over beats: on CPU twice as fast as over both at once.
                # Side by side, so that devices sum both in one exchange.
                moments = jnp.concatenate([x.mean(1), (x * x).mean(1)], axis=-1)
                mean, square = jnp.split(masked_mean(moments, valid[:, None], 0), 2)
                var = jnp.maximum(square - mean * mean, 0.0)
                if not self.is_initializing():
                    keep = c.norm_momentum
                    running_mean.value = keep * running_mean.value + (1 - keep) * (mean + shift)
                    running_var.value = keep * running_var.value + (1 - keep) * var
        factor = jax.lax.rsqrt(var + c.norm_epsilon) * scale
        return (x * factor + (bias - mean * factor)).astype(c.compute_dtype)


class ConvPair(nn.Module):
    """conv-norm-GELU-dropout-conv-norm: the main branch of every residual block.

    It may halve (stride 2) or double (upsample) the samples.
    """

    features: int
    width: int
    block: int  # number of the block, keys its dropout
    config: Layers
    stride: int = 1
    upsample: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        c, dtype = self.config, self.config.compute_dtype
        first = Conv1D(
            self.features, self.width, self.stride, dtype, upsample=self.upsample, name="conv1"
        )
        x, bias = first.without_bias(x)
        x = gelu(Norm(c, name="norm1")(x, bias, valid, train), c.gelu_exact)
        if train:
            x = keyed_dropout(x, seeds, self.block, c.dropout)
        x, bias = Conv1D(self.features, self.width, 1, dtype, name="conv2").without_bias(x)
        return Norm(c, name="norm2")(x, bias, valid, train)


def maybe_remat(block: type[nn.Module], remat: bool) -> type[nn.Module]:
    """A block (x, valid, seeds, train) that, with remat, keeps only its inputs and is computed
    again for gradients."""
    return nn.remat(block, static_argnums=(4,)) if remat else block  # counted from self
