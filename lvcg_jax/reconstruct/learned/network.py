"""What a network that derives leads offers to the trainer (fitting.py) and to tables (trained.py).

It is a linen module. Its call derives all leads from the visible ones, its `loss` is what training
lowers, and its fields are its sizes, which are stored with its weights. The two dicts it is given:

    shown   x        [b,l,p]   the visible leads in normalised units, 0 where a lead is hidden
            mean     [b,l,p]   the same of the record's mean beat; only if it reads beats
            visible  bool [b,l]
            size     [b,l]     logarithm of a visible lead's standard deviation in SIZE mV, else 0
            length   [b]       logarithm of the row's length in LENGTH seconds
            and what `prepare` returned for these visible leads
    truth   x        [b,l,p]   all leads
            counted  bool [b,l]   hidden leads that the record has: those that count

Rows are independent: nothing in a network may look along b. In training all rows of a batch have
the same visible leads, so what `prepare` gives has no axis b. Axis letters: b row (a beat or a
record), l lead, p sample of it.
"""

from collections.abc import Iterable

import flax.linen as nn
import jax
import numpy as np

from lvcg_jax.model.masking import masked_mean

BEATS, SIGNAL = "beats", "signal"
SIZE, LENGTH = 0.15, 0.8


class LeadNetwork(nn.Module):
    """A network that needs nothing beyond its own weights overrides `__call__` alone."""

    reads = BEATS  # a row is a complete beat [l,p] stretched from R to R; SIGNAL: a record [l,t]
    rows = 64  # of a batch in training

    def __call__(self, shown: dict) -> jax.Array:
        """All leads [b,l,p]; those that are visible are ignored by whoever asks."""
        raise NotImplementedError

    def loss(self, shown: dict, truth: dict) -> jax.Array:
        """A number; for randomness there is self.make_rng('noise')."""
        return hidden_error(self(shown), truth)

    @nn.nowrap
    def learn(self, windows: Iterable[dict]) -> dict[str, np.ndarray]:
        """Arrays that are computed from the training windows before the first step and stored with
        the weights, such as the covariance of a closed form."""
        return {}

    @nn.nowrap
    def prepare(self, learned: dict[str, np.ndarray], visible: np.ndarray) -> dict:
        """Arrays that belong to these visible leads, bool [l], made of what `learn` gave; they
        become part of `shown`. The same names and shapes for any leads."""
        return {}


def hidden_error(derived: jax.Array, truth: dict) -> jax.Array:
    """Mean squared error of the hidden leads, each lead of each row counting the same."""
    return masked_mean(((derived - truth["x"]) ** 2).mean(-1), truth["counted"])
