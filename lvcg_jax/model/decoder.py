"""Beat decoder: one token [d] -> one VCG beat [p,3]."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Conv1D, ConvPair, Norm, gelu, maybe_remat
from lvcg_jax.model.ops.upsample import upsample2

SEED_LENGTH = 4  # samples the token is spread over before the x2 blocks
FIRST_LAYER = 1000  # keys dropout apart from the encoder's blocks


class UpBlock(nn.Module):
    """x2 linear up-sampling, then a residual pair of convolutions with a 1x1 shortcut.

    The pair up-samples as it convolves. The shortcut is taken before it is up-sampled, as the two
    commute: one maps channels, the other samples.
    """

    pair: ConvPair

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        shortcut = upsample2(Conv1D(self.pair.features, 1, 1, self.pair.dtype, name="shortcut")(x))
        return gelu(shortcut + self.pair(x, valid, seeds, train), self.pair.gelu_exact)


class BeatDecoder(nn.Module):
    """Token -> channels x 4 samples -> x2 blocks -> three axes x P samples."""

    seed_features: int
    features: Sequence[int]
    width: int
    norm: str
    dropout: float
    gelu_exact: bool
    dtype: jnp.dtype
    remat: bool
    axes: int = 3

    @nn.compact
    def __call__(
        self, tokens: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Tokens [m,d], validity [m], dropout seeds [m] -> beats [m,p,axes] with p = 4 *
        2^blocks."""
        x = nn.Dense(SEED_LENGTH * self.seed_features, dtype=self.dtype, name="seed")(tokens)
        x = x.reshape(-1, SEED_LENGTH, self.seed_features)
        x = Norm(self.norm, dtype=self.dtype, name="seed_norm")(x, 0.0, valid, train)
        for k, features in enumerate(self.features):
            pair = ConvPair(
                features=features,
                stride=1,
                layer=FIRST_LAYER + k,
                width=self.width,
                norm=self.norm,
                dropout=self.dropout,
                gelu_exact=self.gelu_exact,
                dtype=self.dtype,
                upsample=True,
                parent=None,
            )
            x = maybe_remat(UpBlock, self.remat)(pair, name=f"up{k}")(x, valid, seeds, train)
        x, bias = Conv1D(
            self.features[-1], self.width, 1, self.dtype, name="out_conv"
        ).without_bias(x)
        x = gelu(
            Norm(self.norm, dtype=self.dtype, name="out_norm")(x, bias, valid, train),
            self.gelu_exact,
        )
        return Conv1D(self.axes, 1, 1, self.dtype, name="out")(x).astype(jnp.float32)
