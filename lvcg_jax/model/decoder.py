"""Beat decoder: one token [d] -> one beat of the heart vector [p,k]."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Conv1D, ConvPair, Norm, gelu, maybe_remat
from lvcg_jax.model.ops.conv1d import upsample2
from lvcg_jax.model.parts import Decoding, Layers

SEED_LENGTH = 4  # samples the token is spread over before the x2 blocks
FIRST_BLOCK = 1000  # keys dropout apart from the encoder's blocks


class UpBlock(nn.Module):
    """x2 linear up-sampling, then a residual pair of convolutions with a 1x1 shortcut.

    The pair up-samples as it convolves. The shortcut is taken before it is up-sampled, as the two
    commute: one maps channels, the other samples.
    """

    pair: ConvPair

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        pair, c = self.pair, self.pair.config
        shortcut = upsample2(Conv1D(pair.features, 1, 1, c.compute_dtype, name="shortcut")(x))
        return gelu(shortcut + pair(x, valid, seeds, train), c.gelu_exact)


class BeatDecoder(nn.Module):
    """Token -> channels x 4 samples -> x2 blocks -> axes x P samples."""

    config: Decoding
    layers: Layers
    axes: int = 3

    @nn.compact
    def __call__(
        self, tokens: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Tokens [m,d], validity [m], dropout seeds [m] -> beats [m,p,k] with p = 4 * 2^blocks."""
        c, layers, dtype = self.config, self.layers, self.layers.compute_dtype
        x = nn.Dense(SEED_LENGTH * c.seed_features, dtype=dtype, name="seed")(tokens)
        x = x.reshape(-1, SEED_LENGTH, c.seed_features)
        x = Norm(layers, name="seed_norm")(x, 0.0, valid, train)
        for number, features in enumerate(c.features):
            pair = ConvPair(
                features, c.width, FIRST_BLOCK + number, layers, upsample=True, parent=None
            )
            up = maybe_remat(UpBlock, layers.remat)
            x = up(pair, name=f"up{number}")(x, valid, seeds, train)
        out = Conv1D(c.features[-1], c.width, 1, dtype, name="out_conv")
        x, bias = out.without_bias(x)
        x = gelu(Norm(layers, name="out_norm")(x, bias, valid, train), layers.gelu_exact)
        return Conv1D(self.axes, 1, 1, dtype, name="out")(x).astype(jnp.float32)
