"""What all peers are: a linen module with the surface that training and embedding use of
lvcg_jax.model.network.Network.

    __call__(batch, visible, key, max_beats)   the terms of the loss, one value per record [g,r]
    embed(batch, visible, max_beats)           one vector per record, and one per beat

A method says how a record is encoded (`encode`) and what its loss is (`terms`). All records of a
batch, whatever device they are on, are compared with each other: the groups are one axis b here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model import parts
from lvcg_jax.model.masking import beat_mask, masked_mean, safe_std, to_records
from lvcg_jax.model.pooling import steps_to_beats
from lvcg_jax.model.randomness import record_keys
from lvcg_jax.model.views import visible_leads
from lvcg_jax.peers.contrast import unit

Terms = dict[str, jax.Array]


@dataclass(frozen=True)
class Choices:
    """What a config may choose of a peer; configs/peers.py says what each method uses."""

    unit_mv: float = 0.2  # mV of one unit of the input; 0: the deviation of each lead is its unit
    projection: tuple[int, ...] = (256, 128)  # sizes of the projection head
    predictor: int = 128  # hidden size of a predictor
    temperature: float = 0.1
    momentum: float = 0.99  # of the teacher
    patch: int = 50  # samples
    hidden_share: float = 0.75  # of the patches
    vit_dim: int = 96
    vit_layers: int = 5
    vit_heads: int = 4
    decoder_dim: int = 64
    decoder_layers: int = 1
    teacher: str = ""  # a run or packaged weights whose embeddings a student learns
    targets: int = 256  # principal components of them
    contrast: float = 0.1  # weight of telling records apart, beside them
    codes: int = 512  # words of the vocabulary
    code_dim: int = 32


class Records(NamedTuple):
    """The records of a batch."""

    signal: jax.Array  # [b,t,l]; zero in leads that are not seen, and after a record's end
    leads: jax.Array  # [b,l] leads that are seen
    samples: jax.Array  # [b] samples of the record
    valid: jax.Array  # [b] False: a row that only fills the batch
    uid: jax.Array  # [b]
    patient: jax.Array  # [b] a number for each patient
    start: jax.Array  # [b,n] first sample of each beat
    length: jax.Array  # [b,n]
    beats: jax.Array  # [b,n] slots that hold a beat


def spread(x: jax.Array, valid: jax.Array) -> jax.Array:
    """How far the directions of vectors [b,d] differ: 0 if all are the same (collapsed), 1 if they
    cancel. Root mean square distance of the unit vectors from their mean."""
    x = unit(x)
    away = x - masked_mean(x, valid[:, None], 0)
    return safe_std(masked_mean((away * away).sum(-1), valid))


class Peer(nn.Module):
    """A self-supervised method. Subclasses are in one file each."""

    signal: parts.Signal = parts.Signal()
    geometry: parts.Geometry = parts.Geometry()  # only to say what visible leads span
    layers: parts.Layers = parts.Layers()
    encoding: parts.Encoding = parts.Encoding()
    choices: Choices = Choices()

    least_records = 2  # of a micro-batch: records are compared, or normalised, with each other
    least_patients = 1
    lowest_is_best = False  # targets move with the model: losses of two steps do not compare

    @staticmethod
    def loss_terms(outputs: Terms, batch, visible, config) -> Terms:
        """A call returns the terms already."""
        return outputs

    @property
    def signal_samples(self) -> int:
        """Samples of the signal that a batch must have for each record."""
        return self.signal.num_samples

    @property
    def feature_dim(self) -> int:
        """Numbers of the embedding."""
        return self.encoding.token_dim

    @property
    def part_sizes(self) -> dict[str, int]:
        """Names and sizes of the parts of the embedding: there is one."""
        return {"structure": self.feature_dim}

    def records(self, batch: Mapping[str, jax.Array], seen: jax.Array, max_beats: int) -> Records:
        """The batch as one axis of records, with only the leads of the masks `seen` [g,r]."""
        leads = visible_leads(seen)  # [g,r,l]
        signal = batch["signal"].astype(jnp.float32)
        if self.choices.unit_mv:
            signal = signal * (batch["scale"] / self.choices.unit_mv)[..., None]
        signal = jnp.swapaxes(jnp.where(leads[..., None], signal, 0.0), -1, -2)
        length = to_records(batch["length"], batch["num_beats"], max_beats)
        found = Records(
            signal=signal,
            leads=leads,
            samples=length.sum(-1),
            valid=batch["num_beats"] > 0,
            uid=batch["uid"],
            patient=batch["patient"],
            start=jnp.cumsum(length, -1) - length,  # beats divide the whole record
            length=length,
            beats=beat_mask(batch["num_beats"], max_beats),
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    def __call__(
        self, batch: Mapping[str, jax.Array], visible: jax.Array, key, max_beats: int
    ) -> Terms:
        """The terms of each record [g,r]: `loss`, what it consists of, and the spread of the
        embeddings. With a key: training, with norm statistics of the batch.

        A method hides what it hides itself: `visible` does not matter here.
        """
        records = self.records(batch, batch["lead_mask"], max_beats)
        train, key = key is not None, jax.random.key(0) if key is None else key
        terms = self.terms(records, record_keys(key, records.uid), train)
        terms["embedding_std"] = spread(terms.pop("embedding"), records.valid)
        shape = batch["num_beats"].shape
        return {
            name: jnp.broadcast_to(x, records.valid.shape).reshape(shape)
            for name, x in terms.items()
        }

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        """The `loss` and its parts, [b] or one value for all, and the `embedding` [b,d]; keys [b]
        are of records and step."""
        raise NotImplementedError

    def encode(self, records: Records) -> tuple[jax.Array, jax.Array]:
        """Whole records, as they are embedded -> features of places in time [b,s,d] and which of
        them count [b,s]."""
        raise NotImplementedError

    def beat_tokens(self, features: jax.Array, mask: jax.Array, records: Records) -> jax.Array:
        """Features of places in time -> of beats, [b,n,d]."""
        return steps_to_beats(features, mask, records.length, self.signal.num_samples)

    def embed(
        self, batch: Mapping[str, jax.Array], visible: jax.Array, max_beats: int
    ) -> dict[str, jax.Array]:
        """The embedding of each record [g,r,d], and a token for each beat [g,r,n,d] with its
        mask."""
        records = self.records(batch, visible, max_beats)
        features, mask = self.encode(records)
        found = {
            "structure": masked_mean(features, mask[..., None], 1),
            "tokens": self.beat_tokens(features, mask, records),
            "mask": records.beats,
        }
        shape = batch["num_beats"].shape
        return {name: x.reshape(*shape, *x.shape[1:]) for name, x in found.items()}
