"""ASTCL (Wang et al., 2023): a noisy and a denoised view of a record predict each other, across
times, without negatives; a discriminator must not be able to tell the views apart."""

import jax

from lvcg_jax.peers.augment import add_noise, drop_leads, smooth, split_keys, wander
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer
from lvcg_jax.peers.simsiam import mutual_prediction

ADVERSARIAL = 0.1  # weight of the discriminator's term
SMOOTHEST = 7  # samples, the widest running mean of a denoised view


def reverse(x: jax.Array) -> jax.Array:
    """x itself, with the gradient turned round: what lowers a term before it raises it behind."""
    return 2.0 * jax.lax.stop_gradient(x) - x


def told_apart(scores: jax.Array) -> jax.Array:
    """Cross-entropy [b] of a discriminator's scores [2b,1], of noisy views and then of denoised
    ones; log 2 if it can only guess."""
    noisy, clean = scores.reshape(2, -1)
    return 0.5 * (jax.nn.softplus(-noisy) + jax.nn.softplus(clean))


class ASTCL(ResNetPeer):
    def add_heads(self):
        c = self.choices
        self.projector = Head(c.projection, self.layers, last_norm=True)
        self.predictor = Head((c.predictor, c.projection[-1]), self.layers)
        self.forecast = Head((c.predictor, c.projection[-1]), self.layers)
        self.discriminator = Head((c.predictor, 1), self.layers)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # a view with more noise and fewer leads, and one with less noise
        slow, white, leads, width, other, seeds = split_keys(keys, 6)
        noisy = add_noise(white, wander(slow, records.signal, 0.5), 0.2)
        noisy = drop_leads(leads, noisy, 0.3)
        clean = drop_leads(other, smooth(width, records.signal, SMOOTHEST), 0.3)
        inputs = self.inputs((noisy, clean), records, seeds)
        steps, valid = self.steps(inputs, train), inputs[1]

        # views of a patient predict each other: whole records, and the late part from the early one
        pooled, half = steps.mean(1), steps.shape[1] // 2
        z = self.projector(pooled, valid, train)
        whole = mutual_prediction(self.predictor(z, valid, train), z)
        early = self.projector(steps[:, :half].mean(1), valid, train)
        late = self.projector(steps[:, half:].mean(1), valid, train)
        later = mutual_prediction(self.forecast(early, valid, train), late)
        adversarial = told_apart(self.discriminator(reverse(pooled), valid, train))
        loss = whole + later + ADVERSARIAL * adversarial
        terms = {"loss": loss, "patient": whole, "time": later, "adversarial": adversarial}
        return terms | {"embedding": pooled[: len(loss)]}
