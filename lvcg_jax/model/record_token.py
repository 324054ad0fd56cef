"""A token of the whole record, read from its leads in millivolts.

The token of a beat knows the beat as a heart vector, each lead in units of its own size and
stretched from R peak to R peak. Here one ResNet1D reads all twelve leads of the record as they were
recorded: in mV, at their own speed, and between the beats too.

    fill     leads that are not seen, by those that are (unseen_leads.py)
    read     the stages of the beat encoder, with a feature for every step of 0.32 s
    pool     the mean of each feature over the record, and its highest value

It learns by itself, without labels (peers/record_views.py), and joins the structure of trained
weights afterwards (`lvcg add_parts --record_token=RUN`). Axis letters: those of model/__init__.py,
and t sample of a record, s step, b record.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.masking import step_mask
from lvcg_jax.model.signal import record_signal
from lvcg_jax.model.unseen_leads import fill_leads

NAME = "record_token"  # of its parameters in a Network
UNIT = 0.2  # mV of one unit of the input
STATISTICS = "mean+max"  # of the features over the record, see pooling.py
LARGEST = 25.0  # units; what is further from zero counts as this


def as_input(signal: jax.Array, seen: jax.Array, covariance: jax.Array) -> jax.Array:
    """What the encoder reads [t,l] of one signal in mV [l,t], of which only the leads `seen` [l]
    may be used. Without any it is zero."""
    filled, _ = fill_leads(signal, seen, covariance)
    return jnp.clip(filled.T / UNIT, -LARGEST, LARGEST)


class RecordToken(nn.Module):
    """Signals -> features of their steps; the token is the STATISTICS of them."""

    encoder: nn.Module  # a BeatEncoder of twelve channels

    def __call__(
        self, x: jax.Array, samples: jax.Array, seeds: jax.Array, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Inputs [b,t,l] as `as_input` makes them, the samples [b] that each record has of t, and
        dropout seeds [b] -> features [b,s,d] and the steps that count [b,s]."""
        features = self.encoder(x, samples > 0, seeds, train, False)
        return features, step_mask(samples, features.shape[1], x.shape[1])


def whole_records(
    token: RecordToken,
    records: tuple[jax.Array, ...],
    covariance: jax.Array,
    samples: int,
    train: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """What `token` makes of whole records of at most so many samples: of their beats [b,n,l,p] and
    lengths [b,n], the sizes of their leads in mV [b,l], and the leads that are seen [b,l]."""

    def of_record(beats, length, scale, seen):
        signal, _ = record_signal(beats, length, scale, samples)
        return as_input(signal, seen, covariance), length.sum()

    x, there = jax.vmap(of_record)(*records)
    return token(x, there, jnp.zeros(there.shape, jnp.uint32), train)
