"""Beat encoder: one lifted beat [p,3] -> one token [d], the same ResNet1D for every beat."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.layers import Conv1D, Norm, gelu, keyed_dropout


class ResidualBlock(nn.Module):
    """conv-norm-GELU-dropout-conv-norm plus a shortcut (1x1 conv and norm if the shape changes), GELU after the sum."""

    features: int
    stride: int
    layer: int  # number of this block, keys its dropout
    width: int
    norm: str
    dropout: float
    gelu_exact: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, valid, seeds, train):
        y = Conv1D(self.features, self.width, self.stride, self.dtype, name="conv1")(x)
        y = gelu(Norm(self.norm, dtype=self.dtype, name="norm1")(y, valid, train), self.gelu_exact)
        if train:
            y = keyed_dropout(y, seeds, self.layer, self.dropout)
        y = Conv1D(self.features, self.width, 1, self.dtype, name="conv2")(y)
        y = Norm(self.norm, dtype=self.dtype, name="norm2")(y, valid, train)
        if self.stride != 1 or x.shape[-1] != self.features:
            x = Conv1D(self.features, 1, self.stride, self.dtype, name="shortcut_conv")(x)
            x = Norm(self.norm, dtype=self.dtype, name="shortcut_norm")(x, valid, train)
        return gelu(x + y, self.gelu_exact)


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

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        """Lifted beats [m,p,3], validity [m], dropout seeds [m] -> tokens [m,d]."""
        x = Conv1D(self.stem_features, self.width, 2, self.dtype, name="stem_conv")(x)
        x = gelu(Norm(self.norm, dtype=self.dtype, name="stem_norm")(x, valid, train), self.gelu_exact)
        layer = 0
        for stage, (features, blocks) in enumerate(zip(self.stage_features, self.stage_blocks, strict=True)):
            for block in range(blocks):
                x = ResidualBlock(
                    features=features,
                    stride=2 if block == 0 else 1,
                    layer=layer,
                    width=self.width,
                    norm=self.norm,
                    dropout=self.dropout,
                    gelu_exact=self.gelu_exact,
                    dtype=self.dtype,
                    name=f"stage{stage}_block{block}",
                )(x, valid, seeds, train)
                layer += 1
        pooled = x.astype(jnp.float32).mean(axis=1)
        return nn.Dense(self.token_dim, kernel_init=nn.initializers.xavier_uniform(), name="token")(pooled)
