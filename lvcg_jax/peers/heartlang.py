"""HeartLang (Jin et al., 2025): a heartbeat of one lead is a word of a learned vocabulary, a record
is a sentence, and hidden words are guessed from the others."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Norm
from lvcg_jax.model.masking import masked_mean
from lvcg_jax.model.parts import Layers
from lvcg_jax.peers.contrast import unit
from lvcg_jax.peers.peer import Choices, Records, Terms
from lvcg_jax.peers.vit import PatchEncoder, TransformerPeer

SECONDS = 0.96  # of a word, around its R peak
KEEP = 0.99  # of the vocabulary in each step
COMMITMENT = 0.25  # weight of the distance of words from their codes


def cut_words(records: Records, width: int) -> tuple[jax.Array, jax.Array]:
    """Patches around R peaks: [b,l,n,w] for the beats of each record, and which of them exist
    [b,l,n]. A beat starts at its R peak; the first piece of a record, before any peak, is no word
    unless it is all that there is."""
    t = records.signal.shape[1]
    place = records.start[..., None] - width // 2 + jnp.arange(width)  # [b,n,w]
    inside = (place >= 0) & (place < t)
    words = jax.vmap(lambda x, i: x[i])(records.signal, jnp.clip(place, 0, t - 1))  # [b,n,w,l]
    words = jnp.moveaxis(jnp.where(inside[..., None], words, 0.0), -1, 1)
    alone = records.beats.sum(-1, keepdims=True) == 1
    beats = records.beats & ((jnp.arange(records.beats.shape[1]) > 0) | alone)
    return words, records.leads[..., None] & beats[:, None]


def nearest_code(x: jax.Array, codes: jax.Array) -> jax.Array:
    """The number of the code [k,c] that a unit vector [...,c] is nearest to."""
    return jnp.argmax(x @ codes.T, axis=-1)


def guess_error(scores: jax.Array, code: jax.Array, hidden: jax.Array) -> jax.Array:
    """Cross-entropy [b] of the scores [b,l,n,k] of the codes of hidden words [b,l,n]."""
    right = jnp.take_along_axis(scores, code[..., None], -1)[..., 0]
    return masked_mean(jax.nn.logsumexp(scores, axis=-1) - right, hidden, (1, 2))


class Vocabulary(nn.Module):
    """Words as codes: an auto-encoder whose middle is the nearest of some learned unit vectors.

    The codes follow the words that are nearest to them as moving averages, kept with the norm
    statistics.
    """

    choices: Choices
    layers: Layers

    @nn.compact
    def __call__(self, words: jax.Array, there: jax.Array, train: bool):
        """Words [m,w], which exist [m] -> the number of each one's code [m], what is reconstructed
        from the codes [m,w], and the distance of the words from their codes [m]."""
        c = self.choices
        codes = self.variable("batch_stats", "codes", self.first_codes)
        x = nn.Dense(c.decoder_dim, name="read1")(words)
        x = nn.Dense(c.code_dim, name="read2")(jax.nn.gelu(x))
        x = unit(Norm(self.layers, name="norm")(x[:, None], 0.0, there, train)[:, 0])
        code = nearest_code(jax.lax.stop_gradient(x), codes.value)
        found = codes.value[code]
        if train:
            fixed = jnp.where(there[:, None], jax.lax.stop_gradient(x), 0.0)
            total = jax.ops.segment_sum(fixed, code, c.codes)
            moved = unit(KEEP * codes.value + (1.0 - KEEP) * unit(total))
            codes.value = jnp.where(jnp.any(total != 0, axis=-1, keepdims=True), moved, codes.value)
        distance = ((x - found) ** 2).sum(-1)
        through = x + jax.lax.stop_gradient(found - x)  # codes have the gradient of their words
        y = nn.Dense(c.decoder_dim, name="write1")(through)
        return code, nn.Dense(words.shape[-1], name="write2")(jax.nn.gelu(y)), distance

    def first_codes(self) -> jax.Array:
        shape = (self.choices.codes, self.choices.code_dim)
        return unit(jax.random.normal(self.make_rng("params"), shape))


class HeartLang(TransformerPeer):
    def setup(self):
        self.encoder = PatchEncoder(self.choices, self.places)
        self.vocabulary = Vocabulary(self.choices, self.layers)
        self.guess = nn.Dense(self.choices.codes)
        self.blank = self.param("blank", nn.initializers.normal(0.02), (self.choices.vit_dim,))

    @property
    def width(self) -> int:
        """Samples of a word."""
        return 2 * round(SECONDS * self.signal.rate / 2)

    def times(self, records: Records) -> jax.Array:
        """When each word is, in patches [b,n]."""
        return jnp.clip(records.start // self.choices.patch, 0, self.places - 1)

    def tokens(self, records: Records, words: jax.Array, hidden: jax.Array) -> jax.Array:
        """Words [b,l,n,w] -> [b,l,n,d]; of the hidden ones [b,l,n] only lead and time are told."""
        place = self.times(records)
        blank = self.blank + self.encoder.where(place)
        return jnp.where(hidden[..., None], blank, self.encoder.tokens(words, place))

    def read(self, tokens: jax.Array, there: jax.Array) -> jax.Array:
        """A sentence [b,l,n,d], of words that exist [b,l,n] -> encoded."""
        b, _, _, d = tokens.shape
        return self.encoder(tokens.reshape(b, -1, d), there.reshape(b, -1)).reshape(tokens.shape)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # the vocabulary
        words, there = cut_words(records, self.width)
        shape, flat = there.shape, there.reshape(-1)
        code, again, distance = self.vocabulary(words.reshape(len(flat), -1), flat, train)
        error = (again.reshape(words.shape) - words) ** 2
        rebuilt = masked_mean(error, there[..., None], (1, 2, 3))
        power = masked_mean(words**2, there[..., None], (1, 2, 3))
        far = masked_mean(distance.reshape(shape), there, (1, 2))

        # the sentence, with some of its words blank
        draws = jax.vmap(lambda key: jax.random.uniform(key, shape[1:]))(keys)
        hidden = there & (draws < self.choices.hidden_share)
        encoded = self.read(self.tokens(records, words, hidden), there)
        guessed = guess_error(self.guess(encoded), code.reshape(shape), hidden)
        loss = guessed + rebuilt + COMMITMENT * far
        pooled = masked_mean(encoded, there[..., None], (1, 2))
        terms = {"loss": loss, "guess": guessed, "word": rebuilt, "word_power": power}
        return terms | {"distance": far, "embedding": pooled}

    def encode(self, records: Records) -> tuple[jax.Array, jax.Array]:
        """Of beats instead of places in time."""
        words, there = cut_words(records, self.width)
        encoded = self.read(self.tokens(records, words, jnp.zeros_like(there)), there)
        return masked_mean(encoded, there[..., None], 1), there.any(1)

    def beat_tokens(self, features: jax.Array, mask: jax.Array, records: Records) -> jax.Array:
        """Those of the beats themselves; a piece that is no word gets the mean."""
        mean = masked_mean(features, mask[..., None], 1)[:, None]
        return jnp.where(mask[..., None], features, mean)
