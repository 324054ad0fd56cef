"""VAE-CNN: a convolutional variational autoencoder from the visible leads to all twelve.

The encoder turns the visible leads of a beat into a Gaussian over a short code, the decoder turns a
code into twelve leads; training maximises the evidence lower bound (Kingma and Welling,
'Auto-encoding variational Bayes', ICLR 2014) of the hidden leads, and leads are derived from the
mean code. Convolutional variational autoencoders for missing leads: Matyschik et al., 'Feasibility
of ECG reconstruction from minimal lead sets using convolutional neural networks', Computing in
Cardiology 2020, and WearECG (2025), whose encoder, like this one, reads twelve channels with zeros
in the place of hidden leads.

Scaled down or different: 4 strided convolutions of 32 to 96 channels each way (WearECG: residual
blocks of up to 512); group norm in the place of batch norm, so that rows of a batch are
independent; one network for all sets of visible leads, which are also told to it as a mask.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.layers import Conv1D
from lvcg_jax.reconstruct.learned.network import LeadNetwork, hidden_error


class Encoder(nn.Module):
    features: Sequence[int]
    code: int

    @nn.compact
    def __call__(self, shown: dict) -> tuple[jax.Array, jax.Array]:
        """The mean and the logarithm of the variance of the code, [b,c] each."""
        visible = jnp.broadcast_to(shown["visible"][..., None], shown["x"].shape)
        y = jnp.concatenate([shown["x"], visible.astype(jnp.float32)], 1).swapaxes(1, 2)
        for features in self.features:
            y = nn.gelu(nn.GroupNorm(8)(Conv1D(features, 7, stride=2)(y)))
        y = y.reshape(len(y), -1)
        return nn.Dense(self.code)(y), nn.Dense(self.code)(y)


class Decoder(nn.Module):
    features: Sequence[int]

    @nn.compact
    def __call__(self, code: jax.Array, leads: int, samples: int) -> jax.Array:
        """All leads [b,l,p] of a code [b,c]."""
        first = -(-samples // 2 ** len(self.features))
        y = nn.gelu(nn.Dense(first * self.features[-1])(code))
        y = y.reshape(len(code), first, self.features[-1])
        for features in self.features[::-1]:
            y = nn.gelu(nn.GroupNorm(8)(Conv1D(features, 5, upsample=True)(y)))
        return Conv1D(leads, 5)(y)[:, :samples].swapaxes(1, 2)


class VaeCnn(LeadNetwork):
    features: Sequence[int] = (32, 48, 64, 96)
    code: int = 64
    noise: float = 0.05  # variance of a sample around what is decoded, in normalised units

    def setup(self):
        self.encoder = Encoder(self.features, self.code)
        self.decoder = Decoder(self.features)

    def __call__(self, shown: dict) -> jax.Array:
        return self.decoder(self.encoder(shown)[0], *shown["x"].shape[1:])

    def loss(self, shown: dict, truth: dict) -> jax.Array:
        """The negative bound, but for constants, by sample and in units of 1 / (2 noise)."""
        mean, log_variance = self.encoder(shown)
        noise = jax.random.normal(self.make_rng("noise"), mean.shape)
        derived = self.decoder(mean + jnp.exp(log_variance / 2) * noise, *shown["x"].shape[1:])
        samples = shown["x"][0].size
        divergence = kl_divergence(mean, log_variance).mean() / samples
        return hidden_error(derived, truth) + 2 * self.noise * divergence


def kl_divergence(mean: jax.Array, log_variance: jax.Array) -> jax.Array:
    """Of Gaussians [b,c] from the standard normal distribution: [b]."""
    return (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1) / 2
