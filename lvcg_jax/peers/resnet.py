"""Peers whose encoder is LVCG's own ResNet1D, over whole records of twelve leads."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.masking import step_mask
from lvcg_jax.peers.augment import ecg_view, split_keys
from lvcg_jax.peers.peer import Peer, Records


class ResNetPeer(Peer):
    """A peer with a ResNet1D: the stages of the beat encoder, with a feature for every step instead
    of one for the whole."""

    def setup(self):
        self.encoder = BeatEncoder(self.encoding, self.layers, self.encoding.token_dim)
        self.add_heads()

    def add_heads(self) -> None:
        """Further modules of a method."""

    def inputs(
        self, views: Sequence[jax.Array], records: Records, keys: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Views [b,t,l] one after another [v*b,t,l], with zeros in missing leads; validity and
        dropout seeds [v*b]."""
        leads = records.leads[:, None]
        joined = jnp.concatenate([jnp.where(leads, view, 0.0) for view in views])
        seeds = jax.vmap(lambda key: jax.random.bits(key, (len(views),), jnp.uint32))(keys)
        return joined, jnp.tile(records.valid, len(views)), seeds.T.reshape(-1)

    def steps(self, inputs: tuple[jax.Array, ...], train: bool) -> jax.Array:
        """What `inputs` gives -> features of steps [v*b,s,d]."""
        return self.encoder(*inputs, train, False)

    def encode(self, records: Records) -> tuple[jax.Array, jax.Array]:
        seeds = jnp.zeros(records.valid.shape, jnp.uint32)
        features = self.encoder(records.signal, records.valid, seeds, False, False)
        steps, samples = features.shape[1], records.signal.shape[1]
        return features, step_mask(records.samples, steps, samples)

    def two_views(self, records: Records, keys: jax.Array) -> tuple[jax.Array, ...]:
        """`inputs` of two views of each record, as the methods that come from images have them."""
        one, other, noise = split_keys(keys, 3)
        views = [ecg_view(some, records.signal) for some in (one, other)]
        return self.inputs(views, records, noise)
