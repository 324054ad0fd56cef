"""Beat encoder: one lifted beat [p,k] -> one token [d], the same ResNet1D for every beat."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Conv1D, ConvPair, Norm, gelu, maybe_remat
from lvcg_jax.model.parts import Encoding, Layers


class ResidualBlock(nn.Module):
    """A pair of convolutions plus a shortcut (1x1 conv and norm where the shape changes), GELU
    after the sum."""

    pair: ConvPair

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        pair, c = self.pair, self.pair.config
        y = pair(x, valid, seeds, train)
        if pair.stride != 1 or x.shape[-1] != pair.features:
            shortcut = Conv1D(pair.features, 1, pair.stride, c.compute_dtype, name="shortcut_conv")
            x, bias = shortcut.without_bias(x)
            x = Norm(c, name="shortcut_norm")(x, bias, valid, train)
        return gelu(x + y, c.gelu_exact)


class BeatEncoder(nn.Module):
    """ResNet1D over the samples of a beat, global average pool, linear to the token."""

    config: Encoding
    layers: Layers
    token_dim: int

    @nn.compact
    def __call__(
        self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool, pool: bool = True
    ) -> jax.Array:
        """Beats [m,p,k], validity [m], dropout seeds [m] -> tokens [m,d]; without the pool, one for
        each step of the last stage."""
        c, layers = self.config, self.layers
        stem = Conv1D(c.stem_features, c.width, 2, layers.compute_dtype, name="stem_conv")
        x, bias = stem.without_bias(x)
        x = gelu(Norm(layers, name="stem_norm")(x, bias, valid, train), layers.gelu_exact)
        number = 0
        for stage, (features, blocks) in enumerate(
            zip(c.stage_features, c.stage_blocks, strict=True)
        ):
            for block in range(blocks):
                stride = 2 if block == 0 else 1
                pair = ConvPair(features, c.width, number, layers, stride, parent=None)
                residual = maybe_remat(ResidualBlock, layers.remat)
                x = residual(pair, name=f"stage{stage}_block{block}")(x, valid, seeds, train)
                number += 1
        x = x.astype(jnp.float32)
        start = nn.initializers.xavier_uniform()
        token = nn.Dense(self.token_dim, kernel_init=start, name="token")
        return token(x.mean(axis=1) if pool else x)
