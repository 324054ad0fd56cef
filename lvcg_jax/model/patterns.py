"""How often short patterns occur in a record, as coordinates beside the tokens.

A token draws the outline of a beat. What is small, local or between the beats (a notch, a
depressed ST segment in two leads, a flat T wave, fibrillation of the baseline) moves it little, and
one linear layer finds it hard to read. Here thousands of fixed patterns are looked for in the whole
record instead, in the way of MINIROCKET (Dempster, Schmidt, Webb: KDD 2021), and what is
kept of each is the share of time at which it is there:

    fill       leads that are not seen, by those that are (unseen_leads.py); a pattern in such leads
               counts by the share of its power that is known
    compare    a pattern has nine samples, three of them high and six low, at one of fifteen
               distances from each other, in the sum of a few leads
    count      the share of samples at which the response is over a level; several levels
    reduce     coordinates of all shares in the leading modes of training records

Nothing here is trained: the patterns are drawn once, and levels and modes are fitted to training
records without their labels (train/patterns.py). Axis letters: those of model/__init__.py, and
s distance, c pattern, v level, f mode, T sample of a record.
"""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.signal import record_signal
from lvcg_jax.model.unseen_leads import fill_leads, known_share

TAPS, HIGH = 9, 3
# seconds between neighbouring samples of a pattern: from a sharp corner to a sequence of beats
DISTANCES = np.array([1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 37, 50, 68, 92, 124]) / 100
LEVELS = 3
# weights [c,9] of all 84 patterns; each sums to zero, so that a constant is no pattern
KERNELS = np.array(
    [
        np.where(np.isin(np.arange(TAPS), high), TAPS - HIGH, -HIGH) / HIGH
        for high in itertools.combinations(range(TAPS), HIGH)
    ],
    np.float32,
)
SHARES = (len(DISTANCES), LEVELS, len(KERNELS))  # [s,v,c] of a record
RECORDS = 8  # at a time: their responses fit the cache of a CPU


def steps_of(rate: float) -> list[int]:
    """The distances in samples, at least 1."""
    return np.maximum(np.round(DISTANCES * rate), 1).astype(int).tolist()


def responses(signal: jax.Array, leads: jax.Array, step: jax.Array | int, most: int) -> jax.Array:
    """[T,c] of the patterns with samples `step` apart, at most `most`; leads [c,l] are 1 where a
    pattern looks.

    Beyond the ends of the record the signal is zero.
    """
    samples, middle = signal.shape[1], TAPS // 2
    wide = jnp.pad(signal.T @ leads.T, ((most * middle, most * middle), (0, 0)))

    def later(taps: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(wide, most * middle + taps * step, samples)

    return sum(KERNELS[:, i] * later(i - middle) for i in range(TAPS))


def shares_over(
    response: jax.Array, there: jax.Array, levels: jax.Array, ramp: jax.Array
) -> jax.Array:
    """The share of the record's samples at which a response [T,c] is over its levels [v,c].

    A sample counts in full from half a `ramp` [c] over the level on, and in part before, so that
    rounding does not matter.
    """
    over = jnp.clip((response[:, None] - levels) / ramp + 0.5, 0.0, 1.0)
    count = jnp.maximum(there.sum(), 1)
    return jnp.where(there[:, None, None], over, 0.0).sum(0) / count


class Patterns(nn.Module):
    """Coordinates [...,f] of the shares, scaled as those of beat_shape.Modes. Until its parameters
    are fitted they are zero."""

    count: int
    rate: float
    samples: int

    @nn.compact
    def __call__(
        self, beats: jax.Array, length: jax.Array, scale: jax.Array, seen: jax.Array
    ) -> jax.Array:
        """Of records with beats [...,n,l,p], their lengths [...,n], the leads' sizes in mV [...,l]
        and the leads that are seen [...,l]; slots after the last beat have length 0."""
        distances, _, kernels = SHARES
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        leads = self.param("leads", zeros, (distances, kernels, len(LEADS)))
        covariance = self.param("covariance", lambda _: jnp.eye(len(LEADS)))
        levels = self.param("levels", zeros, SHARES)
        ramps = self.param("ramps", ones, (distances, kernels))
        mean = self.param("mean", zeros, SHARES)
        modes = self.param("modes", zeros, (*SHARES, self.count))
        fixed = jax.lax.stop_gradient((leads, covariance, levels, ramps, mean, modes))

        def of_record(record):
            return coordinates(*record, *fixed, self.rate, self.samples)

        records = (beats, length, scale, seen)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[seen.ndim - 1 :]), records)
        if isinstance(flat[0].shape[0], int):
            found = jax.lax.map(of_record, flat, batch_size=RECORDS)
        else:  # exported for any number of records
            found = jax.vmap(of_record)(flat)
        return found.reshape(*seen.shape[:-1], self.count)


def coordinates(
    beats, length, scale, seen, leads, covariance, levels, ramps, mean, modes, rate, samples
) -> jax.Array:
    """Of one record, [f]."""
    signal, there = record_signal(beats, length, scale, samples)
    signal, left_over = fill_leads(signal, seen, covariance)
    found = record_shares(signal, there, leads, levels, ramps, rate)
    trust = known_share(leads, covariance, left_over)[:, None]
    known = jnp.any(seen & (scale > 0))
    # in two steps: one float32 sum of all 3,780 shares would lose a digit
    sums = jnp.einsum("svc,svcf->svf", (found - mean) * trust, modes)
    return jnp.where(known, sums.sum((0, 1)), 0.0)


def record_shares(signal, there, leads, levels, ramps, rate) -> jax.Array:
    """All shares [s,v,c] of a signal [l,T]. A loop, as fifteen copies take seconds to compile."""
    steps = steps_of(rate)

    def of_distance(_: None, at: tuple) -> tuple[None, jax.Array]:
        step, leads, levels, ramp = at
        return None, shares_over(responses(signal, leads, step, max(steps)), there, levels, ramp)

    return jax.lax.scan(of_distance, None, (jnp.array(steps), leads, levels, ramps))[1]
