"""Temporal module: a GRU that starts from the first beat's token and predicts the others, fed its own predictions.

    h_1 = Linear(z_1);   z^_n = W_o h_n;   h_{n+1} = GRU(z^_n, h_n)

The state freezes after a record's last valid beat, so nothing depends on padding or on batch mates.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class _Step(nn.Module):
    """One beat of the scan: read the prediction off the state, then move the state if another beat follows."""

    token_dim: int
    state_dim: int

    @nn.compact
    def __call__(self, state: jax.Array, moves: jax.Array) -> tuple[jax.Array, jax.Array]:
        predicted = nn.Dense(self.token_dim, name="readout")(state)
        following, _ = nn.GRUCell(self.state_dim, name="gru")(state, predicted)
        return jnp.where(moves[:, None], following, state), predicted


class TemporalModule(nn.Module):
    """Beat-to-beat dynamics over the records of a batch."""

    token_dim: int
    state_dim: int
    unroll: int = 1

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tokens z [b,n,d] and beat mask [b,n] -> predicted tokens z^ [b,n,d] and the last valid state [b,h]."""
        state = nn.Dense(self.state_dim, name="start")(tokens[:, 0])
        moves = jnp.concatenate([mask[:, 1:], jnp.zeros_like(mask[:, :1])], axis=1)  # does a valid beat follow?
        scan = nn.scan(
            _Step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
            unroll=self.unroll,
        )
        last, predicted = scan(self.token_dim, self.state_dim, name="step")(state, moves)
        return predicted, last
