"""What the median beat of a record measures, as coordinates beside the tokens.

Physicians read a beat by rules: an ST segment that is depressed by more than 0.1 mV in two leads, a
Q wave of a certain depth, a T wave that is flat. Such a rule asks whether one lead, at one moment,
is over a limit, and a linear layer cannot ask that of a voltage. Here it is asked of every lead at
every moment around the R peak, for a few limits:

    median    of the beats around their R peaks, in mV, as they were recorded
    fill      leads that are not seen, by those that are (unseen_leads.py)
    compare   the height of each sample, its slope and its bend: how far each is over a level,
              from 0 (a good deal under it) to 1; several levels
    reduce    coordinates of all answers in the leading modes of training records

Nothing here is trained: levels and modes are fitted to training records without their labels
(train/beat_levels.py). Axis letters: those of model/__init__.py, and w sample around the R peak,
o order (height, slope, bend), v level, f mode.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from data_prep.ecg.leads import LEADS
from lvcg_jax.model.beat_shape import TIMES, around_peaks
from lvcg_jax.model.masking import masked_median
from lvcg_jax.model.unseen_leads import fill_leads

ORDERS = 3  # height, slope, bend
QUANTILES = (0.1, 0.5, 0.9)  # of training records: the levels
ANSWERS = (ORDERS, len(QUANTILES), len(LEADS), len(TIMES))  # [o,v,l,w] of a record


def median_beat(
    beats: jax.Array, length: jax.Array, count: jax.Array, scale: jax.Array, rate: float
) -> jax.Array:
    """The median beat in mV [l,w] of a record with `count` beats [n,l,p] of some lengths [n], the
    leads' sizes being [l]."""
    windows, used = around_peaks(beats, length, count, rate)
    return masked_median(windows, used[:, None, None], 0) * scale[:, None]


def orders(beat: jax.Array) -> jax.Array:
    """Height, slope and bend [o,...,w] of a beat [...,w], in mV a sample."""
    slope = jnp.gradient(beat, axis=-1)
    return jnp.stack([beat, slope, jnp.gradient(slope, axis=-1)])


def answers(beat: jax.Array, levels: jax.Array, ramps: jax.Array) -> jax.Array:
    """How far a beat [l,w] is over its levels [o,v,l,w]: 0 half a ramp [o,l,w] below, 1 half a ramp
    above, so that rounding does not matter."""
    return jnp.clip((orders(beat)[:, None] - levels) / ramps[:, None] + 0.5, 0.0, 1.0)


class BeatLevels(nn.Module):
    """Coordinates [...,f] of the answers. Until its parameters are fitted they are zero."""

    count: int
    rate: float

    @nn.compact
    def __call__(
        self,
        beats: jax.Array,
        length: jax.Array,
        count: jax.Array,
        scale: jax.Array,
        seen: jax.Array,
        covariance: jax.Array,
    ) -> jax.Array:
        """Of records with `count` [...] beats [...,n,l,p], their lengths [...,n], the leads' sizes
        in mV [...,l] and the leads that are seen [...,l]; unseen leads are filled in by the
        covariance [l,l] of leads."""
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        levels = self.param("levels", zeros, ANSWERS)
        ramps = self.param("ramps", ones, (ANSWERS[0], *ANSWERS[2:]))
        mean = self.param("mean", zeros, ANSWERS)
        modes = self.param("modes", zeros, (*ANSWERS, self.count))
        levels, ramps, mean, modes = jax.lax.stop_gradient((levels, ramps, mean, modes))

        def of_record(beats, length, count, scale, seen):
            beat = median_beat(beats, length, count, scale, self.rate)
            beat, left_over = fill_leads(beat, seen, covariance)
            power = jnp.maximum(jnp.diagonal(covariance), 1e-12)
            trust = jnp.clip(1.0 - jnp.diagonal(left_over) / power, 0.0, 1.0)
            found = (answers(beat, levels, ramps) - mean) * trust[:, None]
            # in two steps: one float32 sum of all answers would lose a digit
            sums = jnp.einsum("ovlw,ovlwf->ovlf", found, modes)
            return jnp.where(jnp.any(seen & (scale > 0)), sums.sum((0, 1, 2)), 0.0)

        signature = "(n,l,p),(n),(),(l),(l)->(f)"
        return jnp.vectorize(of_record, signature=signature)(beats, length, count, scale, seen)
