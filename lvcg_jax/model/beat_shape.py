"""The shape of a record's beats in millivolts and milliseconds, as coordinates beside the tokens.

Tokens are trained to redraw beats that were stretched from R peak to R peak, each lead in units of
its own size. A linear read-out of them knows little of what is measured in mV or ms: ST levels,
voltages, PR, QT. Here the beats are laid around their R peaks as they were recorded, and two
pictures of a record are made of all leads and samples at once:

    mean     of the beats, compressed so that large voltages do not decide alone
    change   the logarithm of how much the beats differ at each sample

Both are given as coordinates in the leading modes of training records (a principal component
analysis; train/beat_modes.py fits it). Of leads that are not seen, the coordinates are the most
likely ones under the Gaussian of these modes: the lift of data_prep/ecg/geometry.py in a larger
space. Axis letters: those of model/__init__.py, and w sample around the R peak, f mode.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from scipy.fft import dct

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.masking import masked_mean, safe_std
from lvcg_jax.model.signal import at_times

TIMES = np.arange(-18, 30) * 0.02  # seconds [w] around the R peak: P wave to the end of T
BEND = 1 / 3  # mV at which the compression sets in
STEPS, SMALL = 128, 1e-8  # of conjugate gradients, at most; power of what may be left over
LEAST = 0.03  # mV, a difference between beats that counts as none


def around_peaks(
    beats: jax.Array, length: jax.Array, count: jax.Array, rate: float
) -> tuple[jax.Array, jax.Array]:
    """Beats [n,l,p] of a record and their lengths [n] in samples -> windows [n,l,w] around the R
    peaks at which they begin, and which of them [n] to use: those inside the record or, if there
    are none, all `count` beats, with what lies outside as it is at the record's end."""
    n = len(beats)
    end = jnp.cumsum(length)
    start = end - length
    at = start[:, None] + (TIMES * rate).astype(np.float32)  # [n,w]
    peaks = (jnp.arange(n) > 0) & (jnp.arange(n) < count)
    inside = peaks & (at[:, 0] >= 0) & (at[:, -1] <= end[-1] - 1)
    windows = at_times(beats, length, at)  # [l,n,w]
    used = jnp.where(inside.any(), inside, jnp.arange(n) < count)
    return jnp.swapaxes(windows, 0, 1), used


def mean_and_change(
    beats: jax.Array, length: jax.Array, count: jax.Array, scale: jax.Array, rate: float
) -> tuple[jax.Array, jax.Array]:
    """Both pictures [...,l,w] of records: beats [...,n,l,p], their lengths [...,n] and numbers
    [...], and the leads' sizes in mV [...,l]."""

    def of_record(beats, length, count, scale):
        windows, used = around_peaks(beats, length, count, rate)
        used = used[:, None, None]
        mean = masked_mean(windows, used, 0)
        spread = safe_std(masked_mean((windows - mean) ** 2, used, 0))
        mean, spread = mean * scale[:, None], spread * scale[:, None]
        return jnp.sign(mean) * jnp.log1p(jnp.abs(mean) / BEND), jnp.log(spread + LEAST)

    of_records = jnp.vectorize(of_record, signature="(n,l,p),(n),(),(l)->(l,w),(l,w)")
    return of_records(beats, length, count, scale)


def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix^-1 right for symmetric positive matrices [...,f,f], by conjugate gradients.

    With twelve leads the matrix is the identity, and the first step is the last one. Each row stops
    by itself, so its batch mates do not matter. (A factorisation would be exact, but with many of
    them in one program JAX stops for ever on a CPU with two threads.)
    """
    enough = SMALL * (right * right).sum(-1, keepdims=True)

    def go_on(state):
        step, _, _, _, power = state
        return (step < STEPS) & (power > enough).any()

    def turn(state):
        step, x, rest, direction, power = state
        along = jnp.einsum("...fh,...h->...f", matrix, direction)
        product = (direction * along).sum(-1, keepdims=True)
        goes = power > enough
        length = jnp.where(goes, power / jnp.where(goes, product, 1.0), 0.0)
        rest = rest - length * along
        left = (rest * rest).sum(-1, keepdims=True)
        turned = rest + jnp.where(goes, left / jnp.where(goes, power, 1.0), 0.0) * direction
        power = jnp.where(goes, left, power)
        return step + 1, x + length * direction, rest, turned, power

    start = (0, jnp.zeros_like(right), right, right, (right * right).sum(-1, keepdims=True))
    return jax.lax.while_loop(go_on, turn, start)[1]


class Modes(nn.Module):
    """Coordinates [...,f] of pictures [...,l,w], of which some leads [...,l] are seen.

    `modes` are scaled so that coordinates have unit variance in training records; until they are
    fitted they are zero, and so are all coordinates. What is given is scaled half way back to the
    modes' own sizes and rotated, so that no coordinate stands for one mode: a probe that
    standardises its features would take away again that small modes are mostly noise.
    """

    count: int

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        shape = (len(LEADS), len(TIMES), self.count)
        mean = self.param("mean", nn.initializers.zeros, shape[:2])
        modes = self.param("modes", nn.initializers.zeros, shape)
        noise = self.param("noise", nn.initializers.ones, (1,))
        mean, modes, noise = jax.lax.stop_gradient((mean, modes, noise))  # fitted, never trained
        rest = jnp.where(seen[..., None], x - mean, 0.0)
        # in units in which the matrix of all leads, whose modes are orthogonal, is the identity
        units = jax.lax.rsqrt((modes**2).sum((0, 1)) + noise)
        modes_in_units = modes * units
        gram = jnp.einsum("lwf,lwh->lfh", modes_in_units, modes_in_units)
        within = jnp.einsum("...l,lfh->...fh", seen.astype(x.dtype), gram)
        within = within + jnp.diag(noise * units**2)
        likely = units * solve(within, jnp.einsum("...lw,lwf->...f", rest, modes_in_units))
        sizes = (modes**2).sum((0, 1)) ** 0.25
        rotation = dct(np.eye(self.count), norm="ortho").astype(np.float32)
        return (likely * sizes) @ rotation


class BeatShape(nn.Module):
    """Coordinates of both pictures, joined."""

    mean_modes: int
    change_modes: int
    rate: float

    def setup(self):
        self.mean, self.change = Modes(self.mean_modes), Modes(self.change_modes)

    def __call__(
        self, beats: jax.Array, length: jax.Array, count: jax.Array, scale: jax.Array, seen
    ) -> jax.Array:
        """As in mean_and_change, with the leads that are seen [...,l] -> [...,f]."""
        mean, change = mean_and_change(beats, length, count, scale, self.rate)
        return jnp.concatenate([self.mean(mean, seen), self.change(change, seen)], axis=-1)
