"""A small transformer over tokens of an ECG, and what masked methods share: which tokens are seen,
and a decoder that fills in the others.

A token is a patch of one lead, with a learned vector for its lead and one for its place in time.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.masking import masked_mean, step_mask
from lvcg_jax.peers.contrast import NEVER
from lvcg_jax.peers.peer import Choices, Peer, Records

_table = nn.initializers.normal(0.02)


class Block(nn.Module):
    """Attention and a two-layer network, each on normalised tokens and added to them."""

    dim: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array) -> jax.Array:
        """Tokens [b,q,d], and which may look at which [b,q,q] or [b,1,q]."""
        b, q, _ = x.shape
        y = nn.Dense(3 * self.dim, name="qkv")(nn.LayerNorm(name="norm1")(x))
        # heads before tokens, [b,h,q,c]: on a CPU four times as fast as tokens before heads
        query, key, value = jnp.moveaxis(y.reshape(b, q, 3, self.heads, -1), (2, 3), (0, 2))
        scores = query @ jnp.swapaxes(key, -1, -2) / jnp.sqrt(query.shape[-1])
        weight = jax.nn.softmax(jnp.where(allowed[:, None], scores, NEVER), axis=-1)
        mixed = jnp.swapaxes(weight @ value, 1, 2).reshape(b, q, self.dim)
        x = x + nn.Dense(self.dim, name="mixed")(mixed)
        y = nn.Dense(4 * self.dim, name="wide")(nn.LayerNorm(name="norm2")(x))
        return x + nn.Dense(self.dim, name="narrow")(jax.nn.gelu(y))


class Transformer(nn.Module):
    """Blocks, and a layer norm at the end."""

    dim: int
    num_layers: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array) -> jax.Array:
        """Tokens [b,q,d], and which may look at which [b,q,q], or which are there [b,q]."""
        allowed = allowed[:, None] if allowed.ndim == 2 else allowed
        for i in range(self.num_layers):
            x = Block(self.dim, self.heads, name=f"block{i}")(x, allowed)
        return nn.LayerNorm(name="norm")(x)


class PatchEncoder(nn.Module):
    """Patches of leads -> tokens (`tokens`) -> encoded tokens (the call)."""

    choices: Choices
    places: int

    def setup(self):
        c = self.choices
        self.patch = nn.Dense(c.vit_dim)
        self.lead = self.param("lead", _table, (len(LEADS), c.vit_dim))
        self.place = self.param("place", _table, (self.places, c.vit_dim))
        self.trunk = Transformer(c.vit_dim, c.vit_layers, c.vit_heads)

    def where(self, place: jax.Array) -> jax.Array:
        """What says lead and time: of places [s] or [b,s], [l,s,d] or [b,l,s,d]."""
        return self.lead[:, None] + self.place[place][..., None, :, :]

    def tokens(self, patches: jax.Array, place: jax.Array) -> jax.Array:
        """Patches [b,l,s,w] and the place in time of each, [s] or [b,s] -> [b,l,s,d]."""
        return self.patch(patches) + self.where(place)

    def __call__(self, tokens: jax.Array, allowed: jax.Array) -> jax.Array:
        """Tokens [b,q,d] -> [b,q,d]; `allowed` as in Transformer."""
        return self.trunk(tokens, allowed)

    def whole(self, patches: jax.Array, place: jax.Array, allowed: jax.Array) -> jax.Array:
        """Patches [b,l,s,w] -> encoded tokens [b,l,s,d]; all that are allowed see each other."""
        tokens = self.tokens(patches, place)
        b, leads, s, d = tokens.shape
        return self(tokens.reshape(b, leads * s, d), allowed).reshape(b, leads, s, d)


def choose(keys: jax.Array, there: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """For each record, `count` of its tokens [b,q] at random, in order, those that are there first:
    their numbers [b,count] and whether they are there."""
    draws = jax.vmap(lambda key: jax.random.uniform(key, there.shape[1:]))(keys)
    number = jnp.sort(jnp.argsort(jnp.where(there, draws, 2.0), axis=-1)[:, :count], axis=-1)
    return number, jnp.take_along_axis(there, number, 1)


def put_back(x: jax.Array, number: jax.Array, there: jax.Array, size: int):
    """Tokens [b,c,d] with their numbers [b,c] -> all tokens [b,q,d], zero where there is none, and
    where there is one [b,q]."""
    row = jnp.arange(len(x))[:, None]
    whole = jnp.zeros((len(x), size, x.shape[-1]), x.dtype)
    whole = whole.at[row, number].set(jnp.where(there[..., None], x, 0.0))
    return whole, jnp.zeros((len(x), size), bool).at[row, number].set(there)


class LeadDecoder(nn.Module):
    """Fills in tokens that were not seen, from those of the same lead that were."""

    choices: Choices
    outputs: int

    @nn.compact
    def __call__(self, tokens: jax.Array, seen: jax.Array, there: jax.Array) -> jax.Array:
        """Encoded tokens [b,l,s,d], which were seen, and which exist [b,l,s] -> [b,l,s,outputs]."""
        b, leads, s, _ = tokens.shape
        dim = self.choices.decoder_dim
        hidden = self.param("hidden", _table, (dim,))
        x = jnp.where(seen[..., None], nn.Dense(dim, name="enter")(tokens), hidden)
        x = x + self.param("place", _table, (s, dim))
        x = x + self.param("lead", _table, (leads, 1, dim))
        trunk = Transformer(dim, self.choices.decoder_layers, self.choices.vit_heads, name="trunk")
        x = trunk(x.reshape(b * leads, s, dim), there.reshape(b * leads, s))
        return nn.Dense(self.outputs, name="leave")(x).reshape(b, leads, s, self.outputs)


class TransformerPeer(Peer):
    """A peer whose encoder is a transformer."""

    @property
    def feature_dim(self) -> int:
        return self.choices.vit_dim

    @property
    def places(self) -> int:
        """Patches that a record is long."""
        return self.signal.num_samples // self.choices.patch


class PatchPeer(TransformerPeer):
    """A peer whose tokens are patches of fixed length of each lead."""

    def setup(self):
        self.encoder = PatchEncoder(self.choices, self.places)
        self.add_heads()

    def add_heads(self) -> None:
        """Further modules of a method."""

    def patches(self, records: Records) -> tuple[jax.Array, jax.Array]:
        """Patches [b,l,s,w], and which of them are of a lead that is seen and of a time before the
        record's end [b,l,s]."""
        b, t, leads = records.signal.shape
        x = jnp.swapaxes(records.signal, 1, 2).reshape(b, leads, self.places, self.choices.patch)
        return x, records.leads[..., None] & step_mask(records.samples, self.places, t)[:, None]

    def encode(self, records: Records) -> tuple[jax.Array, jax.Array]:
        x, there = self.patches(records)
        encoded = self.encoder.whole(x, jnp.arange(self.places), self.allowed(there))
        return masked_mean(encoded, there[..., None], 1), there.any(1)

    def allowed(self, there: jax.Array) -> jax.Array:
        """Which tokens may look at which, of a whole record: all at all that exist [b,l,s]."""
        return there.reshape(len(there), -1)
