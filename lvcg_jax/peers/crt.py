"""CRT (Zhang et al., 2022): a transformer sees some patches of the signal, of its spectrum's
magnitude and of its phase, and reconstructs the others; records must stay apart."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.masking import masked_mean, step_mask
from lvcg_jax.peers.contrast import NEVER, similarities
from lvcg_jax.peers.peer import Choices, Records, Terms
from lvcg_jax.peers.vit import Transformer, TransformerPeer, choose, put_back

APART = 0.1  # weight of the instance discrimination constraint
DOMAINS = ("time", "magnitude", "phase")


def domains(signal: jax.Array, places: int) -> list[jax.Array]:
    """Signals [b,t,l] as patches of time, magnitude and phase: [b,s,l,w] each.

    The spectrum's lowest frequency, which is the mean, is left out. Magnitudes are of the size of
    the signal, phases are given as cosine and sine.
    """
    b, t, leads = signal.shape
    spectrum = jnp.fft.rfft(signal, axis=1)[:, 1 : t // 2 + 1] * jnp.sqrt(2.0 / t)
    size = jnp.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-12)
    phase = jnp.concatenate([spectrum.real / size, spectrum.imag / size], axis=-1)

    def cut(x):  # [b,n,c*l] -> [b,s,l,w]
        width = x.shape[1] // places
        x = x[:, : width * places].reshape(b, places, width, -1, leads)
        return jnp.moveaxis(x, -1, 2).reshape(b, places, leads, -1)

    return [cut(signal), cut(size), cut(phase)]


def apart(x: jax.Array, valid: jax.Array, temperature: float) -> jax.Array:
    """How alike a record's vector [b,d] is to those of other records: the soft maximum of its
    cosines with them, [b]."""
    others = valid[None, :] & ~jnp.eye(len(valid), dtype=bool)
    scores = jnp.where(others, similarities(x, x, temperature), NEVER)
    count = jnp.maximum(others.sum(-1), 1)
    return temperature * (jax.nn.logsumexp(scores, axis=-1) - jnp.log(count))


def drop_error(
    predicted: list[jax.Array], truth: list[jax.Array], hidden: jax.Array, leads: jax.Array
) -> list[jax.Array]:
    """Mean squared error [b] of each domain's patches [b,s,l,w], over the hidden ones [b,3*s] of
    leads that there are [b,l]."""
    places = truth[0].shape[1]
    masks = hidden.reshape(len(hidden), len(truth), places)
    return [
        masked_mean((p - x) ** 2, masks[:, i, :, None, None] & leads[:, None, :, None], (1, 2, 3))
        for i, (p, x) in enumerate(zip(predicted, truth, strict=True))
    ]


class CrossEncoder(nn.Module):
    """Patches of all domains -> tokens (`tokens`) -> encoded tokens (the call)."""

    choices: Choices
    places: int

    def setup(self):
        c = self.choices
        self.patch = [nn.Dense(c.vit_dim, name=f"patch_{name}") for name in DOMAINS]
        size = (len(DOMAINS) * self.places, c.vit_dim)
        self.place = self.param("place", nn.initializers.normal(0.02), size)
        self.trunk = Transformer(c.vit_dim, c.vit_layers, c.vit_heads)

    def tokens(self, patches: list[jax.Array]) -> jax.Array:
        """Patches [b,s,l,w] of each domain -> [b,q,d]."""
        flat = [x.reshape(*x.shape[:2], -1) for x in patches]
        found = [layer(x) for layer, x in zip(self.patch, flat, strict=True)]
        return jnp.concatenate(found, axis=1) + self.place

    def __call__(self, tokens: jax.Array, there: jax.Array) -> jax.Array:
        return self.trunk(tokens, there)


class CRT(TransformerPeer):
    def setup(self):
        c = self.choices
        self.encoder = CrossEncoder(c, self.places)
        self.enter = nn.Dense(c.decoder_dim)
        size = (len(DOMAINS) * self.places, c.decoder_dim)
        self.place = self.param("place", nn.initializers.normal(0.02), size)
        self.hidden = self.param("hidden", nn.initializers.normal(0.02), size[1:])
        self.decoder = Transformer(c.decoder_dim, c.decoder_layers, c.vit_heads)
        widths = (c.patch, c.patch // 2, 2 * (c.patch // 2))
        self.leave = [nn.Dense(len(LEADS) * width) for width in widths]

    def tokens_there(self, records: Records) -> jax.Array:
        """Which tokens exist, [b,q]: patches of time before the record's end, and all of the
        spectrum."""
        time = step_mask(records.samples, self.places, records.signal.shape[1])
        return jnp.concatenate([time, jnp.ones_like(time), jnp.ones_like(time)], axis=1)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # some patches of every domain are seen, the others are dropped
        patches, there = domains(records.signal, self.places), self.tokens_there(records)
        size = there.shape[1]
        count = max(1, round((1.0 - self.choices.hidden_share) * size))
        number, real = choose(keys, there, count)
        seen_tokens = jnp.take_along_axis(self.encoder.tokens(patches), number[..., None], 1)
        encoded = self.encoder(seen_tokens, real)

        # all patches are reconstructed from these
        whole, seen = put_back(self.enter(encoded), number, real, size)
        x = jnp.where(seen[..., None], whole, self.hidden) + self.place
        parts = jnp.split(self.decoder(x, there), len(DOMAINS), axis=1)
        predicted = [
            layer(x).reshape(truth.shape)
            for layer, x, truth in zip(self.leave, parts, patches, strict=True)
        ]
        errors = drop_error(predicted, patches, there & ~seen, records.leads)
        pooled = masked_mean(encoded, real[..., None], 1)
        alike = apart(pooled, records.valid, self.choices.temperature)
        named = dict(zip(DOMAINS, errors, strict=True))
        loss = sum(errors) + APART * alike
        return {"loss": loss, **named, "alike": alike, "embedding": pooled}

    def encode(self, records: Records) -> tuple[jax.Array, jax.Array]:
        there = self.tokens_there(records)
        encoded = self.encoder(self.encoder.tokens(domains(records.signal, self.places)), there)
        return encoded[:, : self.places], there[:, : self.places]
