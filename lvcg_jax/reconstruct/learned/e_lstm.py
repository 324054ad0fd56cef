"""E-LSTM: a recurrent encoder that reads the visible leads sample by sample, both ways.

Two stacked bidirectional LSTM layers run over the record, and at every sample a linear layer turns
both states into twelve leads. Recurrent networks for this task: Sohn et al., 'Reconstruction of
12-lead electrocardiogram from a three-lead patch-type device using a LSTM network', Sensors 2020.

Scaled down or different: 32 units in each direction; records of 10 s at 100 Hz; not fitted to one
person or one set of leads, but to all sets of visible leads, which are told to it as a mask.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.reconstruct.learned.network import SIGNAL, LeadNetwork


class ELstm(LeadNetwork):
    units: int = 32
    layers: int = 2

    reads = SIGNAL
    rows = 32

    @nn.compact
    def __call__(self, shown: dict) -> jax.Array:
        visible = jnp.broadcast_to(shown["visible"][..., None], shown["x"].shape)
        y = jnp.concatenate([shown["x"], visible.astype(jnp.float32)], 1).swapaxes(1, 2)
        for _ in range(self.layers):
            ways = (nn.RNN(nn.OptimizedLSTMCell(self.units)) for _ in range(2))
            y = nn.Bidirectional(*ways)(y)
        return nn.Dense(shown["x"].shape[1])(y).swapaxes(1, 2)
