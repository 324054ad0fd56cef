"""How the record token of our own network learns (lvcg_jax/model/record_token.py): from a short
stretch of a record, often with few of its leads, it must tell what a finished model says of the
whole record with all leads.

    teacher    the finished embedding, in principal components (train/teacher.py); it never changes
    views      two stretches of 2.56 s at random places; half of them show all leads, the others one
               to eleven, few more often than many, and each has a slightly different gain
    loss       the absolute error of what both views tell of the teacher, and in a small part that
               they find each other among the views of all other records, as in SimCLR

A teacher reads every record once, as it is. The student sees each in hundreds of views and has to
find what holds for all of them, so that it knows the same in fewer and steadier numbers. Nothing
else is changed in a view: millivolts and milliseconds stay what they are.

Unlike the peers beside it, this one reads the beats of a batch, not stored signals: whatever shards
train LVCG train this too.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.masking import beat_mask, to_records
from lvcg_jax.model.pooling import pool_tokens, pooled_size, steps_to_beats
from lvcg_jax.model.record_token import (
    STATISTICS,
    RecordToken,
    as_input,
    whole_records,
)
from lvcg_jax.model.signal import at_times
from lvcg_jax.model.unseen_leads import lead_covariance
from lvcg_jax.model.views import visible_leads
from lvcg_jax.peers.augment import split_keys
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Peer, Terms
from lvcg_jax.peers.simclr import nt_xent

STRETCH = 2.56  # seconds of a view
ALL_LEADS = 0.5  # of the views show all leads of the record
GAINS = 0.05  # standard deviation of the logarithm of a view's gain


class Records(NamedTuple):
    """The records of a batch, as beats."""

    beats: jax.Array  # [b,n,l,p]
    length: jax.Array  # [b,n]
    scale: jax.Array  # [b,l]
    leads: jax.Array  # [b,l] leads that are seen
    samples: jax.Array  # [b] samples of the record
    valid: jax.Array  # [b] False: a row that only fills the batch
    uid: jax.Array  # [b]
    target: jax.Array  # [b,k] what the teacher says; zero without one


def draw_view(
    key: jax.Array, samples: jax.Array, leads: jax.Array, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where a view of so many samples begins in a record, the leads [l] that it shows of those that
    the record has [l], and its gain."""
    place, kind, number, order, gain = jax.random.split(key, 5)
    first = jax.random.randint(place, (), 0, jnp.maximum(samples - size, 0) + 1)
    # the leads that come first in a random order, at least one
    draws = jnp.where(leads, jax.random.uniform(order, leads.shape), 2.0)
    ranks = jnp.argsort(jnp.argsort(draws))
    # one lead is as likely as two or three, and as four to seven
    few = ranks < jnp.floor(len(LEADS) ** jax.random.uniform(number))
    every = jax.random.uniform(kind) < ALL_LEADS
    return first, leads & (every | few), jnp.exp(GAINS * jax.random.normal(gain))


class RecordViews(Peer):
    least_records = 2
    signal_samples = 0  # it reads beats

    def setup(self):
        self.covariance = lead_covariance(self)
        c, size = self.choices, self.encoding.token_dim
        self.token = RecordToken(BeatEncoder(self.encoding, self.layers, size, parent=None))
        self.projector = Head(c.projection, self.layers)
        self.teller = Head((c.predictor, c.targets), self.layers)

    @property
    def part_sizes(self) -> dict[str, int]:
        return {"structure": pooled_size(self.encoding.token_dim, STATISTICS)}

    def records(self, batch: Mapping[str, jax.Array], seen: jax.Array, max_beats: int) -> Records:
        counts = batch["num_beats"]
        beats, length = (to_records(batch[name], counts, max_beats) for name in ("beats", "length"))
        found = Records(
            beats=beats,
            length=length,
            scale=batch["scale"],
            leads=visible_leads(seen),
            samples=length.sum(-1),
            valid=counts > 0,
            uid=batch["uid"],
            target=batch.get("target", jnp.zeros((*counts.shape, self.choices.targets))),
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    def views(self, records: Records, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One view of each record, as the encoder reads it [b,t,l], and how many of its samples
        [b] the record has."""
        size = round(STRETCH * self.signal.rate)

        def of_record(key, record):
            first, seen, gain = draw_view(key, record.samples, record.leads, size)
            at = first + jnp.arange(size)
            found = at_times(record.beats, record.length, at.astype(jnp.float32))
            known = seen[:, None] & (at < record.samples)
            found = jnp.where(known, found * record.scale[:, None] * gain, 0.0)
            there = jnp.clip(record.samples - first, 0, size)
            return as_input(found, seen, self.covariance), there

        return jax.vmap(of_record)(keys, records)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        one, other, noise = split_keys(keys, 3)
        views = [self.views(records, some) for some in (one, other)]
        x, samples = (jnp.concatenate(both) for both in zip(*views, strict=True))
        seeds = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(noise).T.reshape(-1)
        pooled = pool_tokens(*self.token(x, samples, seeds, train), STATISTICS)
        valid = jnp.tile(records.valid, 2)
        told = self.teller(pooled, valid, train).reshape(2, *records.target.shape)
        error = jnp.abs(told - records.target.astype(jnp.float32)).mean((0, 2))
        z = self.projector(pooled, valid, train)
        apart = nt_xent(z, records.valid, self.choices.temperature)
        return {
            "loss": error + self.choices.contrast * apart,
            "teacher": error,
            "contrast": apart,
            "embedding": pooled[: len(error)],
        }

    def embed(
        self, batch: Mapping[str, jax.Array], visible: jax.Array, max_beats: int
    ) -> dict[str, jax.Array]:
        """The token of each whole record [g,r,d], and of each beat the mean feature of its steps
        [g,r,n,d/2] with its mask."""
        records = self.records(batch, visible, max_beats)
        features, mask = whole_records(
            self.token,
            (records.beats, records.length, records.scale, records.leads),
            self.covariance,
            self.signal.num_samples,
        )
        found = {
            "structure": pool_tokens(features, mask, STATISTICS),
            "tokens": steps_to_beats(features, mask, records.length, self.signal.num_samples),
        }
        shape = batch["num_beats"].shape
        found = {name: x.reshape(*shape, *x.shape[1:]) for name, x in found.items()}
        return found | {"mask": beat_mask(batch["num_beats"], max_beats)}
