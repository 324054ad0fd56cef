"""Temporal module: a GRU that starts from one beat's token and predicts the later ones, fed its
own predictions.

    h_1 = Linear(z_1);   z^_n = W_o h_n;   h_{n+1} = GRU(z^_n, h_n)

Or it reads the encoder's tokens, h_{n+1} = GRU(z_n, h_n): then the last state has seen every beat,
and each prediction the beats before it. Beat 1 is the first that the mask holds. The state stands
still before it and after a record's last one, so nothing depends on padding or batch mates.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.parts import Dynamics
from lvcg_jax.model.randomness import keyed_dropout

FIRST_BLOCK = 2000  # keys dropout apart from encoder and decoder


def next_states(
    cells: Sequence[Callable],
    states: Sequence[jax.Array],
    x: jax.Array,
    seeds: jax.Array | None,
    dropout: float,
) -> tuple[jax.Array, ...]:
    """One step of stacked GRU cells (state, x) -> state: the states [b,h] that follow, lowest layer
    first.

    Between layers there is dropout if seeds [b] are given.
    """
    following = []
    for k, (cell, state) in enumerate(zip(cells, states, strict=True)):
        if k and seeds is not None:
            x = keyed_dropout(x, seeds, FIRST_BLOCK + k, dropout)
        x = cell(state, x)
        following.append(x)
    return tuple(following)


def over_beats(step: type[nn.Module], unroll: int) -> Callable[..., nn.Module]:
    """A module of one step (state, inputs [b,...]) as one over all beats [b,n,...] that share its
    weights."""
    shared = {"variable_broadcast": "params", "split_rngs": {"params": False}}
    return nn.scan(step, in_axes=1, out_axes=1, unroll=unroll, **shared)


class _Step(nn.Module):
    """One beat of the scan: read the prediction off the state, then move the state if it is to
    move."""

    token_dim: int
    state_dim: int
    dropout: float

    @nn.compact
    def __call__(
        self, states: tuple[jax.Array, ...], inputs
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        moves, tokens, seeds = inputs
        predicted = nn.Dense(self.token_dim, name="readout")(states[-1])
        names = ["gru", *(f"gru{k}" for k in range(1, len(states)))]
        modules = [nn.GRUCell(self.state_dim, name=name) for name in names]
        cells = [lambda state, x, module=module: module(state, x)[0] for module in modules]
        read = predicted if tokens is None else tokens
        following = next_states(cells, states, read, seeds, self.dropout)
        return tuple(
            jnp.where(moves[:, None], new, old) for new, old in zip(following, states, strict=True)
        ), predicted


class TemporalModule(nn.Module):
    """Beat-to-beat dynamics over the records of a batch."""

    config: Dynamics
    token_dim: int
    dropout: float = 0.0  # between layers

    @nn.compact
    def __call__(
        self, tokens: jax.Array, mask: jax.Array, seeds: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens z [b,n,d] and the beats to run over [b,n], which follow one another -> predicted
        tokens z^ [b,n,d] and the last state [b,h].

        Slots before the first of these beats have its prediction, and mean nothing. Dropout seeds
        [b,n] mean training mode.
        """
        c = self.config
        first = jnp.take_along_axis(tokens, jnp.argmax(mask, axis=1)[:, None, None], axis=1)[:, 0]
        start = nn.Dense(c.layers * c.state_dim, name="start")(first)
        if c.reads == "encoded":
            moves, read = mask, tokens
        else:  # the state moves on only if another of the beats follows
            follows = jnp.concatenate([mask[:, 1:], jnp.zeros_like(mask[:, :1])], axis=1)
            moves, read = mask & follows, None
        step = over_beats(_Step, c.scan_unroll)(
            self.token_dim, c.state_dim, self.dropout, name="step"
        )
        states = tuple(jnp.split(start, c.layers, axis=-1))
        states, predicted = step(states, (moves, read, seeds))
        return predicted, states[-1]
