"""Nef-Net: one field of the heart from a few views, and any view of it by the angles of a lead.

Chen et al., 'Electrocardio panorama: synthesizing new ECG views with self-supervision', IJCAI 2021.
A convolutional encoder reads each visible lead by itself. The angles (theta, phi) of that lead,
expanded by sums, differences, sines and cosines and turned into a weight for every channel, take
its direction out. What is left is split in two: z1 for the whole cycle, and z2 for its deflections,
each of which is cut out, brought to one length and has convolutions of its own. The means of z1 and
of z2 over the visible leads are the field. To ask for a view, its angles give weights to the
channels of the field, and a decoder makes the lead. In training ('stand-in learning'), the z1 or z2
of a single view must do as well as the mean.

Scaled down or different: 32 channels instead of 128, and two residual blocks instead of ResNet-34;
the encoder's weights are shared by all leads. Deflections are not annotated, but fixed parts of the
cycle from R peak to R peak. One view stands in for either z1 or z2, by a coin for each row, where
the original decodes both. Angles are those of the paper's lead directions
(data_prep/ecg/geometry.py). Group norm in the decoder, and no squashing of the output, as leads are
z-scored. All twelve leads pass through the encoder and hidden ones are left out of the means, so
about half of its arithmetic is for nothing.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_prep.ecg.geometry import lead_matrix
from lvcg_jax.model.layers import Conv1D
from lvcg_jax.model.masking import masked_mean
from lvcg_jax.reconstruct.learned.network import LeadNetwork, hidden_error

# where deflections end, as a share of the cycle from R to R: rest of QRS, ST, T, rest, P, PQ and Q
DEFLECTIONS = (0.06, 0.19, 0.47, 0.72, 0.88, 1.0)
ALIGNED = 8  # samples that each of them is brought to
OCTAVES = 1  # of sines and cosines of angles


def lead_angles() -> np.ndarray:
    """Polar angle and azimuth of the twelve leads, [12,2]."""
    x, y, z = lead_matrix("paper").T
    return np.stack([np.arccos(np.clip(z, -1, 1)), np.arctan2(y, x)], 1).astype(np.float32)


def expand_angles(angles: jax.Array) -> jax.Array:
    """Angles [q,2], their sum and difference, and the sines and cosines of these four."""
    theta, phi = angles.T
    four = jnp.stack([theta, phi, theta + phi, theta - phi], -1)
    waves = [wave(2.0**i * four) for i in range(OCTAVES) for wave in (jnp.sin, jnp.cos)]
    return jnp.concatenate([four, *waves], -1)


class Block(nn.Module):
    """Two convolutions beside a shortcut; with `parts`, [b,d,p,c] and kernels for each of d."""

    features: int
    parts: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(PartConv, self.parts) if self.parts else partial(Conv1D, width=3)
        y = conv(features=self.features)(nn.relu(conv(features=self.features)(x)))
        same = x.shape[-1] == self.features
        return nn.relu(y + (x if same else nn.Dense(self.features)(x)))


class PartConv(nn.Module):
    """Convolutions of three taps over [b,d,p,c], with other taps for each d."""

    parts: int
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        start = nn.initializers.variance_scaling(2.0, "fan_in", "normal", batch_axis=(0,))
        shape = (self.parts, 3 * x.shape[-1], self.features)
        kernel = self.param("kernel", start, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.parts, 1, self.features))
        padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
        taps = [padded[:, :, i : i + x.shape[2]] for i in range(3)]
        return jnp.einsum("bdpc,dcf->bdpf", jnp.concatenate(taps, -1), kernel) + bias


class Deflections(nn.Module):
    """Each deflection of [b,p,c] cut out, brought to one length, convolved, and put back."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        ends = np.round(np.array(DEFLECTIONS) * x.shape[1]).astype(int)
        pieces = [x[:, a:b] for a, b in zip((0, *ends[:-1]), ends, strict=True) if b > a]
        y = jnp.stack([_stretch(piece, ALIGNED) for piece in pieces], 1)
        y = Block(self.features, len(pieces))(y)
        back = [_stretch(y[:, i], piece.shape[1]) for i, piece in enumerate(pieces)]
        return jnp.concatenate(back, 1)


def _stretch(x: jax.Array, samples: int) -> jax.Array:
    return jax.image.resize(x, (len(x), samples, x.shape[-1]), "linear")


class NefNet(LeadNetwork):
    features: int = 32

    rows = 32

    def setup(self):
        c = self.features
        self.encoder = nn.Sequential(
            [Conv1D(c, 7, stride=2), nn.relu, Block(c), Conv1D(c, 3, stride=2), nn.relu, Block(c)]
        )
        self.view_weights, self.mix = nn.Dense(c), Block(c)
        self.whole, self.deflections = Block(c), Deflections(c)
        self.query_weights = nn.Dense(2 * c)
        self.decoder = nn.Sequential(
            [
                *(Conv1D(c, 3, upsample=True), nn.GroupNorm(8), nn.relu, Conv1D(c, 3), nn.relu),
                *(Conv1D(c // 2, 3, upsample=True), nn.GroupNorm(8), nn.relu),
                *(Conv1D(c // 2, 3), nn.relu, Conv1D(1, 3)),
            ]
        )

    def __call__(self, shown: dict) -> jax.Array:
        return self.query(shown, lead_angles())

    def query(self, shown: dict, angles: jax.Array) -> jax.Array:
        """The views [b,q,p] from these angles [q,2]."""
        z1, z2 = self.views(shown)
        seen = shown["visible"][..., None, None]
        return self.decode(masked_mean(z1, seen, 1), masked_mean(z2, seen, 1), angles, shown)

    def loss(self, shown: dict, truth: dict) -> jax.Array:
        z1, z2 = self.views(shown)
        seen = shown["visible"][..., None, None]
        mean1, mean2 = masked_mean(z1, seen, 1), masked_mean(z2, seen, 1)
        # one view of each row in the place of a mean
        which, coin = jax.random.split(self.make_rng("noise"))
        drawn = jax.random.categorical(which, jnp.where(shown["visible"], 0.0, -jnp.inf))
        one1, one2 = (z[jnp.arange(len(z)), drawn] for z in (z1, z2))
        first = jax.random.bernoulli(coin, shape=(len(z1), 1, 1))
        pairs = ((mean1, mean2), (jnp.where(first, one1, mean1), jnp.where(first, mean2, one2)))
        errors = [hidden_error(self.decode(*pair, lead_angles(), shown), truth) for pair in pairs]
        return sum(errors) / 2

    def views(self, shown: dict) -> tuple[jax.Array, jax.Array]:
        """z1 and z2 of every lead, [b,l,p/4,c] each."""
        b, leads, samples = shown["x"].shape
        y = self.encoder(shown["x"].reshape(b * leads, samples, 1))
        weights = self.view_weights(expand_angles(lead_angles()))  # [l,c]
        y = self.mix(y * jnp.tile(weights, (b, 1))[:, None])
        half = self.features // 2
        parts = self.whole(y[..., :half]), self.deflections(y[..., half:])
        return tuple(z.reshape(b, leads, *z.shape[1:]) for z in parts)

    def decode(self, z1: jax.Array, z2: jax.Array, angles, shown: dict) -> jax.Array:
        field = jnp.concatenate([z1, z2], -1)  # [b,p/4,2c]
        weights = self.query_weights(expand_angles(jnp.asarray(angles)))  # [q,2c]
        asked = field[:, None] * weights[:, None]  # [b,q,p/4,2c]
        y = self.decoder(asked.reshape(-1, *asked.shape[2:]))[:, : shown["x"].shape[-1], 0]
        return y.reshape(len(field), len(weights), -1)
