"""Building blocks of encoder and decoder: convolution with bias, masked batch norm, keyed dropout.

Arrays are [m,p,c]: beats, samples, channels.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lvcg_jax.model.masking import masked_mean
from lvcg_jax.model.ops.conv1d import conv1d
from lvcg_jax.model.ops.upsample import upsampled_conv1d


def torch_uniform(fan_in: int) -> Callable[..., jax.Array]:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): how biases of convolutions and dense layers start."""
    bound = 1.0 / np.sqrt(fan_in)
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -bound, bound
    )


class Conv1D(nn.Module):
    """Convolution with bias over [m,p,c], or over its samples up-sampled by two."""

    features: int
    width: int
    stride: int = 1
    dtype: jnp.dtype = jnp.float32
    kernel_init: Callable[..., jax.Array] = nn.initializers.variance_scaling(
        2.0, "fan_out", "normal"
    )
    upsample: bool = False

    def __call__(self, x: jax.Array) -> jax.Array:
        x, bias = self.without_bias(x)
        return x + bias.astype(self.dtype)

    @nn.compact
    def without_bias(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The convolution, and the bias [c] that is still to be added: what a Norm takes."""
        shape = (self.width, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", torch_uniform(self.width * x.shape[-1]), (self.features,))
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        return (
            upsampled_conv1d(x, kernel) if self.upsample else conv1d(x, kernel, self.stride)
        ), bias


class Norm(nn.Module):
    """Batch norm whose statistics see valid beats only ('batch'), or layer norm over channels
    ('layer').

    Under jit over a mesh the sums run over the global batch, so statistics do not depend on the
    number of devices. A constant `shift` [c] of x is not added but accounted for: a batch norm in
    training takes it away again, so that only the running mean sees it, and its gradient is zero.
    """

    kind: str
    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, shift: jax.Array | float, valid: jax.Array, train: bool
    ) -> jax.Array:
        """x [m,p,c], shift [c] or 0, valid [m]."""
        channels = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        x = x.astype(jnp.float32)
        if self.kind == "layer":
            x = x + shift
            mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
            var = jnp.maximum(square - mean * mean, 0.0)
        else:
            running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
            running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
            mean, var = running_mean.value - shift, running_var.value
            if train:
                # Over the samples first, then over the beats: on CPU over twice as fast as over
                # both at once.
                mean = masked_mean(x.mean(1), valid[:, None], 0)
                var = jnp.maximum(
                    masked_mean((x * x).mean(1), valid[:, None], 0) - mean * mean, 0.0
                )
                if not self.is_initializing():
                    running_mean.value = self.momentum * running_mean.value + (
                        1 - self.momentum
                    ) * (mean + shift)
                    running_var.value = (
                        self.momentum * running_var.value + (1 - self.momentum) * var
                    )
        factor = jax.lax.rsqrt(var + self.epsilon) * scale
        return (x * factor + (bias - mean * factor)).astype(self.dtype)


class ConvPair(nn.Module):
    """conv-norm-GELU-dropout-conv-norm: the main branch of every residual block; it may halve or
    double the samples."""

    features: int
    stride: int
    layer: int  # number of the block, keys its dropout
    width: int
    norm: str
    dropout: float
    gelu_exact: bool
    dtype: jnp.dtype
    upsample: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        first = Conv1D(
            self.features, self.width, self.stride, self.dtype, upsample=self.upsample, name="conv1"
        )
        x, bias = first.without_bias(x)
        x = gelu(
            Norm(self.norm, dtype=self.dtype, name="norm1")(x, bias, valid, train), self.gelu_exact
        )
        if train:
            x = keyed_dropout(x, seeds, self.layer, self.dropout)
        x, bias = Conv1D(self.features, self.width, 1, self.dtype, name="conv2").without_bias(x)
        return Norm(self.norm, dtype=self.dtype, name="norm2")(x, bias, valid, train)


def maybe_remat(block: type[nn.Module], remat: bool) -> type[nn.Module]:
    """A block (x, valid, seeds, train) that, with remat, keeps its inputs only and is computed
    again for gradients."""
    return nn.remat(block, static_argnums=(4,)) if remat else block  # counted from self


def gelu(x: jax.Array, exact: bool) -> jax.Array:
    """GELU with the error function (exact) or its tanh form."""
    return jax.nn.gelu(x, approximate=not exact)


def mix_bits(x: jax.Array) -> jax.Array:
    """A well-mixing hash of uint32 values: neighbouring inputs give unrelated outputs."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def keyed_dropout(x: jax.Array, seeds: jax.Array, layer: int, rate: float) -> jax.Array:
    """Dropout whose mask depends on the beat's own seed [m] and the layer number, never on the
    place in the batch."""
    if rate == 0.0:
        return x
    place = jnp.arange(np.prod(x.shape[1:]), dtype=jnp.uint32).reshape((1, *x.shape[1:]))
    start = mix_bits(seeds + jnp.uint32((layer + 1) * 0x9E3779B9 & 0xFFFFFFFF))
    bits = mix_bits(start.reshape(-1, *(1,) * (x.ndim - 1)) + place * jnp.uint32(0x85EBCA77))
    keep = bits >= jnp.uint32(int(rate * 2**32))
    return jnp.where(keep, x / (1.0 - rate), 0)
