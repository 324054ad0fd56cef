"""SimCLR (Chen et al., 2020): two views of a record find each other among the views of all
others."""

import jax
import jax.numpy as jnp

from lvcg_jax.peers.contrast import info_nce, similarities
from lvcg_jax.peers.heads import Head
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.resnet import ResNetPeer


def nt_xent(z: jax.Array, valid: jax.Array, temperature: float) -> jax.Array:
    """Normalised, temperature-scaled cross-entropy of each record [b], from both of its views
    z [2b,d], the first views before the second ones: the other view among all but itself."""
    b = len(valid)
    itself = jnp.eye(2 * b, dtype=bool)
    partner = jnp.roll(itself, b, axis=1)
    allowed = jnp.tile(valid, 2)[None, :] & ~itself
    return info_nce(similarities(z, z, temperature), partner, allowed).reshape(2, b).mean(0)


class SimCLR(ResNetPeer):
    def add_heads(self):
        self.projector = Head(self.choices.projection, self.layers)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        inputs = self.two_views(records, keys)
        pooled = self.steps(inputs, train).mean(1)
        z = self.projector(pooled, inputs[1], train)
        loss = nt_xent(z, records.valid, self.choices.temperature)
        return {"loss": loss, "embedding": pooled[: len(loss)]}
