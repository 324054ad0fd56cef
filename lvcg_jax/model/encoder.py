"""Beat encoder: one lifted beat [p,3] -> one token [d], the same ResNet1D for every beat."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Conv1D, ConvPair, Norm, gelu, maybe_remat


class ResidualBlock(nn.Module):
    """A pair of convolutions plus a shortcut (1x1 conv and norm where the shape changes), GELU
    after the sum."""

    pair: ConvPair

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        pair = self.pair
        y = pair(x, valid, seeds, train)
        if pair.stride != 1 or x.shape[-1] != pair.features:
            x, bias = Conv1D(
                pair.features, 1, pair.stride, pair.dtype, name="shortcut_conv"
            ).without_bias(x)
            x = Norm(pair.norm, dtype=pair.dtype, name="shortcut_norm")(x, bias, valid, train)
        return gelu(x + y, pair.gelu_exact)


class BeatEncoder(nn.Module):
    """ResNet1D over the samples of a beat, global average pool, linear to the token."""

    stem_features: int
    stage_features: Sequence[int]
    stage_blocks: Sequence[int]
    width: int
    token_dim: int
    norm: str
    dropout: float
    gelu_exact: bool
    dtype: jnp.dtype
    remat: bool

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        """Lifted beats [m,p,3], validity [m], dropout seeds [m] -> tokens [m,d]."""
        x, bias = Conv1D(
            self.stem_features, self.width, 2, self.dtype, name="stem_conv"
        ).without_bias(x)
        x = gelu(
            Norm(self.norm, dtype=self.dtype, name="stem_norm")(x, bias, valid, train),
            self.gelu_exact,
        )
        layer = 0
        for stage, (features, blocks) in enumerate(
            zip(self.stage_features, self.stage_blocks, strict=True)
        ):
            for block in range(blocks):
                pair = ConvPair(
                    features=features,
                    stride=2 if block == 0 else 1,
                    layer=layer,
                    width=self.width,
                    norm=self.norm,
                    dropout=self.dropout,
                    gelu_exact=self.gelu_exact,
                    dtype=self.dtype,
                    parent=None,
                )
                residual = maybe_remat(ResidualBlock, self.remat)(
                    pair, name=f"stage{stage}_block{block}"
                )
                x = residual(x, valid, seeds, train)
                layer += 1
        pooled = x.astype(jnp.float32).mean(axis=1)
        return nn.Dense(self.token_dim, kernel_init=nn.initializers.xavier_uniform(), name="token")(
            pooled
        )
