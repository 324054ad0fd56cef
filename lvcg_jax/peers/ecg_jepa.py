"""ECG-JEPA (Kim, 2024): the encoding of hidden stretches of time is predicted from the rest, as a
moving average of the encoder has it; no waveform is reconstructed."""

import jax
import jax.numpy as jnp

from lvcg_jax.model.losses import huber
from lvcg_jax.model.masking import masked_mean
from lvcg_jax.peers.heads import Teacher, apply_frozen
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.vit import LeadDecoder, PatchPeer, put_back

BLOCK = 4  # patches, about: hidden ones stand in blocks


def latent_error(predicted: jax.Array, target: jax.Array, hidden: jax.Array) -> jax.Array:
    """Huber distance [b] between predicted and target tokens [b,l,s,d], which have no gradient,
    over the hidden ones [b,l,s]. Targets are normalised, each token by itself."""
    target = jax.lax.stop_gradient(target)
    target = target - target.mean(-1, keepdims=True)
    target = target * jax.lax.rsqrt((target * target).mean(-1, keepdims=True) + 1e-6)
    return masked_mean(huber(predicted - target, 1.0), hidden[..., None], (-1, -2, -3))


def hide_blocks(keys: jax.Array, places: int, count: int) -> jax.Array:
    """For each record, `count` places to hide, most of them side by side: [b,s]. They are the
    highest of a smoothed noise."""

    def one(key):
        noise = jax.random.normal(key, (places + BLOCK - 1,))
        smooth = jnp.convolve(noise, jnp.ones(BLOCK), mode="valid")
        return jnp.argsort(jnp.argsort(-smooth)) < count

    return jax.vmap(one)(keys)


def cross_pattern(number: jax.Array, there: jax.Array, places: int) -> jax.Array:
    """Cross-pattern attention [b,c,c]: a token sees those of its own lead and those of its own
    time; tokens by their numbers [b,c], lead after lead."""
    lead, place = number // places, number % places
    same = (lead[:, :, None] == lead[:, None]) | (place[:, :, None] == place[:, None])
    return same & there[:, None]


class ECGJEPA(PatchPeer):
    least_records = 1

    def add_heads(self):
        self.predictor = LeadDecoder(self.choices, self.choices.vit_dim)
        self.teacher = Teacher(self.choices.momentum)

    def allowed(self, there: jax.Array) -> jax.Array:
        flat = there.reshape(len(there), -1)
        number = jnp.broadcast_to(jnp.arange(flat.shape[1]), flat.shape)
        return cross_pattern(number, flat, self.places)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # the student encodes the times that are not hidden
        x, there = self.patches(records)
        b, leads, s = there.shape
        count = min(s - 1, max(1, round(self.choices.hidden_share * s)))
        hidden = hide_blocks(keys, s, count)
        place = jnp.argsort(hidden, axis=-1, stable=True)[:, : s - count]  # those that are seen
        number = (jnp.arange(leads)[:, None] * s + place[:, None]).reshape(b, -1)
        real = jnp.take_along_axis(there.reshape(b, -1), number, 1)
        tokens = self.encoder.tokens(x, jnp.arange(s)).reshape(b, leads * s, -1)
        seen_tokens = jnp.take_along_axis(tokens, number[..., None], 1)
        encoded = self.encoder(seen_tokens, cross_pattern(number, real, s))

        # the teacher encodes everything, and the predictor guesses what it makes of the hidden ones
        kept = self.teacher(self.encoder.variables, train)
        whole = (x, jnp.arange(s), self.allowed(there))
        target = apply_frozen(self.encoder, kept, *whole, method="whole")
        known, seen = put_back(encoded, number, real, leads * s)
        predicted = self.predictor(known.reshape(b, leads, s, -1), seen.reshape(there.shape), there)
        loss = latent_error(predicted, target, there & hidden[:, None])
        return {"loss": loss, "embedding": masked_mean(encoded, real[..., None], 1)}
