"""CLOCS (Kiyasseh et al., 2021): pieces of a patient's ECG from other times and other leads belong
together, those of other patients do not (its variant CMSMLC)."""

import jax
import jax.numpy as jnp

from lvcg_jax.peers.augment import split_keys
from lvcg_jax.peers.contrast import info_nce, similarities
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer


def patient_contrast(
    a: jax.Array, b: jax.Array, patient: jax.Array, valid: jax.Array, temperature: float
) -> jax.Array:
    """InfoNCE of two pieces of each record [b,d], in both directions, [b]: all pieces of the same
    patient are positives."""
    same = patient[:, None] == patient[None, :]
    scores = similarities(a, b, temperature)
    allowed = valid[None, :]
    return 0.5 * (info_nce(scores, same, allowed) + info_nce(scores.T, same, allowed))


def share_leads(keys: jax.Array, leads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The leads of each record [b,l] dealt out at random to two views; the only lead of a record
    goes to both."""
    draws = jax.vmap(lambda key: jax.random.uniform(key, leads.shape[1:]))(keys)
    place = jnp.argsort(jnp.argsort(jnp.where(leads, draws, 2.0), axis=-1), axis=-1)
    alone = leads.sum(-1, keepdims=True) == 1
    return leads & (place % 2 == 0), leads & ((place % 2 == 1) | alone)


class CLOCS(ResNetPeer):
    least_patients = 2

    def add_heads(self):
        self.projector = Head(self.choices.projection[-1:], self.layers)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        lead_keys, noise = split_keys(keys, 2)
        shares = share_leads(lead_keys, records.leads)
        half = records.signal.shape[1] // 2
        times = records.signal[:, :half], records.signal[:, half : 2 * half]
        pieces = [jnp.where(leads[:, None], x, 0.0) for leads, x in zip(shares, times, strict=True)]
        inputs = self.inputs(pieces, records, noise)
        pooled = self.steps(inputs, train).mean(1)
        a, b = self.projector(pooled, inputs[1], train).reshape(2, len(records.valid), -1)
        loss = patient_contrast(a, b, records.patient, records.valid, self.choices.temperature)
        return {"loss": loss, "embedding": pooled[: len(loss)]}
