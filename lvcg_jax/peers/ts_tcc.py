"""TS-TCC (Eldele et al., 2021): the past of a weakly changed view predicts the future of a strongly
changed one, and the other way round; and the two contexts find each other in the batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.peers.augment import add_noise, permute, scale_leads, split_keys
from lvcg_jax.peers.contrast import info_nce
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Choices, Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer
from lvcg_jax.peers.simclr import nt_xent
from lvcg_jax.peers.vit import Transformer

TEMPORAL, CONTEXTUAL = 1.0, 0.7  # weights of the two terms
PIECES = 5  # of the strong view


class Context(nn.Module):
    """What the steps up to a moment say, as one vector."""

    choices: Choices

    @nn.compact
    def __call__(self, steps: jax.Array, now: jax.Array) -> jax.Array:
        """Features [b,s,d] and the last step that is seen [b] -> [b,c]."""
        c, s = self.choices, steps.shape[1]
        place = self.param("place", nn.initializers.normal(0.02), (s, c.decoder_dim))
        x = nn.Dense(c.decoder_dim, name="enter")(steps) + place
        past = jnp.arange(s) <= now[:, None]
        trunk = Transformer(c.decoder_dim, c.decoder_layers, c.vit_heads, name="trunk")
        return jnp.take_along_axis(trunk(x, past), now[:, None, None], 1)[:, 0]


def temporal_contrast(predicted: jax.Array, future: jax.Array, valid: jax.Array) -> jax.Array:
    """InfoNCE [b] of predicted steps [b,k,d]: at each, the record's own future [b,k,d] among those
    of all records; the mean over the steps."""
    scores = jnp.einsum("ikd,jkd->kij", predicted, future) / jnp.sqrt(future.shape[-1])
    own = jnp.eye(len(valid), dtype=bool)
    return info_nce(scores, own, valid[None, None, :]).mean(0)


class TSTCC(ResNetPeer):
    def add_heads(self):
        self.context = Context(self.choices)
        self.foresee = nn.DenseGeneral((self.ahead, self.encoding.token_dim))
        self.projector = Head(self.choices.projection, self.layers)

    @property
    def ahead(self) -> int:
        """Steps that are predicted: a quarter of the record."""
        halvings = 1 + len(self.encoding.stage_features)
        return max(1, -(-self.signal.num_samples // 2**halvings) // 4)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # a weak view, and a strong one in another order of time
        size, noise, order, more, moment, seeds = split_keys(keys, 6)
        weak = add_noise(noise, scale_leads(size, records.signal, 0.1), 0.05)
        strong = add_noise(more, permute(order, records.signal, PIECES), 0.1)
        inputs = self.inputs((weak, strong), records, seeds)
        steps, b = self.steps(inputs, train), len(records.valid)

        # the moment up to which both are seen, and the steps after it
        last = steps.shape[1] - 1 - self.ahead
        now = jax.vmap(lambda key: jax.random.randint(key, (), last // 2, last + 1))(moment)
        now = jnp.tile(now, 2)
        context = self.context(steps, now)
        predicted = self.foresee(context)  # [2b,k,d]
        after = now[:, None] + 1 + jnp.arange(self.ahead)
        future = jnp.take_along_axis(steps, after[..., None], 1)
        temporal = 0.5 * (
            temporal_contrast(predicted[:b], future[b:], records.valid)
            + temporal_contrast(predicted[b:], future[:b], records.valid)
        )
        z = self.projector(context, inputs[1], train)
        contextual = nt_xent(z, records.valid, self.choices.temperature)
        loss = TEMPORAL * temporal + CONTEXTUAL * contextual
        terms = {"loss": loss, "temporal": temporal, "contextual": contextual}
        return terms | {"embedding": steps[:b].mean(1)}
