"""ST-MEM (Na et al., 2024): most patches of all leads are hidden, and reconstructed from the rest;
tokens know their lead and their time."""

import jax
import jax.numpy as jnp

from lvcg_jax.model.masking import masked_mean
from lvcg_jax.peers.peer import Records, Terms
from lvcg_jax.peers.vit import LeadDecoder, PatchPeer, choose, put_back


def patch_error(
    predicted: jax.Array, patches: jax.Array, hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean squared error over the hidden patches [b,l,s] of each record, and their mean power (the
    error of predicting zero): [b] each."""
    hidden = hidden[..., None]
    axes = (-1, -2, -3)
    return masked_mean((predicted - patches) ** 2, hidden, axes), masked_mean(
        patches**2, hidden, axes
    )


class STMEM(PatchPeer):
    least_records = 1

    def add_heads(self):
        self.decoder = LeadDecoder(self.choices, self.choices.patch)

    def terms(self, records: Records, keys: jax.Array, train: bool) -> Terms:
        # the patches that are seen, encoded alone
        x, there = self.patches(records)
        shape, flat = there.shape, there.reshape(len(there), -1)
        count = max(1, round((1.0 - self.choices.hidden_share) * flat.shape[1]))
        number, real = choose(keys, flat, count)
        tokens = self.encoder.tokens(x, jnp.arange(self.places)).reshape(*flat.shape, -1)
        seen_tokens = jnp.take_along_axis(tokens, number[..., None], 1)
        encoded = self.encoder(seen_tokens, real)
        # the others, filled in lead by lead
        whole, seen = put_back(encoded, number, real, flat.shape[1])
        seen = seen.reshape(shape)
        predicted = self.decoder(whole.reshape(*shape, -1), seen, there)
        error, power = patch_error(predicted, x, there & ~seen)
        pooled = masked_mean(encoded, real[..., None], 1)
        return {"loss": error, "patch": error, "patch_power": power, "embedding": pooled}
