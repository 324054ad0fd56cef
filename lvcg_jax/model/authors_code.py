"""What only the authors' published code does, reached by config fields and used by nothing else.

    model.padding='counted'       empty slots are beats too: for norm statistics, tokens and the temporal module
    model.dynamics='zero'         a GRU from a zero state, fed the token of slot 1, then its own output
    model.decoder_passes='apart'  one decoder call for the anchor beat, one for slots 1.., one for slot 0
    model.stitch=True             the ECG term compares whole records, put together with zeros at beat boundaries
    model.refine=128              a learned residual on the projected leads

Axis letters: g group, r record, b all records, n slot, m packed beat, p sample of a beat, t sample
of a record, k axis.
"""

from collections.abc import Callable, Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model.dynamics import next_states, over_beats
from lvcg_jax.model.layers import Conv1D, torch_uniform
from lvcg_jax.model.masking import beat_owner, masked_sum, to_packed, to_records

ANCHOR = 1  # the slot of the first whole beat
# of the two heads of the published model that no loss trains and no embedding reads
HEAD_SIZES = (512, 256)
FADE_SHARE = 0.1  # of a beat's samples, at each side


def head_parameters(
    token_dim: int, hidden: int = HEAD_SIZES[0], outputs: int = HEAD_SIZES[1]
) -> int:
    """Parameters of one such head (linear, batch norm, linear), which exists here only as a
    number."""
    return (token_dim + 1) * hidden + 2 * hidden + (hidden + 1) * outputs


def fill_slots(batch: Mapping[str, jax.Array], max_beats: int) -> dict[str, jax.Array]:
    """The batch with every record as long as the longest of the batch, its further beats all
    zero."""
    counts = batch["num_beats"]
    filled = jnp.where(counts > 0, counts.max(), 0)  # [g,r]
    row, position, _ = beat_owner(filled, counts.shape[1] * max_beats)
    beats = {
        name: to_packed(to_records(batch[name], counts, max_beats), row, position)
        for name in ("beats", "length", "complete")
    }
    return {**batch, **beats, "num_beats": filled}


class TwoBiasGRU(nn.Module):
    """A GRU cell whose gates each have an input and a state bias."""

    state_dim: int

    @nn.compact
    def __call__(self, state: jax.Array, x: jax.Array) -> jax.Array:
        start = torch_uniform(self.state_dim)
        gates = partial(nn.Dense, 3 * self.state_dim, kernel_init=start, bias_init=start)
        x_reset, x_keep, x_new = jnp.split(gates(name="input")(x), 3, axis=-1)
        h_reset, h_keep, h_new = jnp.split(gates(name="state")(state), 3, axis=-1)
        keep = jax.nn.sigmoid(x_keep + h_keep)
        new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
        return (1.0 - keep) * new + keep * state


class _OpenStep(nn.Module):
    """One slot of the scan: the token goes through all layers, and the top state is the next
    token."""

    state_dim: int
    dropout: float

    @nn.compact
    def __call__(self, carry, inputs):
        (states, token), (moves, seeds) = carry, inputs
        cells = [TwoBiasGRU(self.state_dim, name=f"gru{k}") for k in range(len(states))]
        following = next_states(cells, states, token, seeds, self.dropout)
        choose = lambda new, old: jnp.where(moves[:, None], new, old)  # noqa: E731
        token = choose(following[-1], token)
        return (tuple(map(choose, following, states)), token), token


class OpenLoopGRU(nn.Module):
    """z^_0 = z_0, z^_1 = z_1, then z^_{n+1} = GRU(z^_n) from a zero state; the read-out is the
    identity."""

    state_dim: int
    layers: int
    dropout: float
    unroll: int = 1

    @nn.compact
    def __call__(
        self, tokens: jax.Array, mask: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens [b,n,d], slots to run over [b,n], dropout seeds [b,n] -> predicted tokens [b,n,d],
        last state [b,d].

        The last state is zero where fewer than three slots are run over.
        """
        first, anchor = tokens[:, :ANCHOR], tokens[:, ANCHOR]
        zero = (jnp.zeros_like(anchor),) * self.layers
        later = slice(ANCHOR + 1, None)
        inputs = (mask[:, later], None if seeds is None else seeds[:, later])
        step = over_beats(_OpenStep, self.unroll)(self.state_dim, self.dropout, name="step")
        (states, _), predicted = step((zero, anchor), inputs)
        return jnp.concatenate([first, anchor[:, None], predicted], axis=1), states[-1]


def decode_in_passes(
    decode: Callable, tokens, counted, seeds, owner, counts, max_beats: int
) -> jax.Array:
    """Packed tokens [g,m,d] -> packed beats [g,m,p,k], slots 1.. of all records in one decoder
    call, slot 0 in another.

    `owner` is the row and position of each packed beat; `counts` [g,r] the beats of each record.
    """
    slots = [to_records(x, counts, max_beats) for x in (tokens, counted, seeds)]  # [g,r,n,...]
    g, r, n = slots[1].shape
    later = decode(*(x[:, :, 1:].reshape(g, r * (n - 1), *x.shape[3:]) for x in slots))
    first = decode(*(x[:, :, 0] for x in slots))  # [g,r,p,k]
    beats = jnp.concatenate(
        [first[:, :, None], later.reshape(g, r, n - 1, *later.shape[2:])], axis=2
    )
    return to_packed(beats, *owner)


class LeadRefiner(nn.Module):
    """Leads [...,t] plus two convolutions over time of each, the same for all leads."""

    features: int

    @nn.compact
    def __call__(self, ecg: jax.Array) -> jax.Array:
        start = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        x = Conv1D(self.features, 3, kernel_init=start, name="conv1")(
            ecg.reshape(-1, ecg.shape[-1], 1)
        )
        x = Conv1D(1, 3, kernel_init=start, name="conv2")(jax.nn.relu(x))
        return ecg + x.reshape(ecg.shape)


def _owner_of_samples(length: jax.Array, num_samples: int) -> tuple[jax.Array, ...]:
    """Interval lengths [b,n], 0 where there is none -> of each sample [b,t]: its beat, its place in
    it, the beat's length, whether it is in any."""
    ends = jnp.cumsum(length, axis=1)
    time = jnp.arange(num_samples)
    beat = jax.vmap(lambda e: jnp.searchsorted(e, time, side="right"))(ends)
    inside = beat < length.shape[1]
    beat = jnp.where(inside, beat, 0)
    own = jnp.maximum(jnp.take_along_axis(length, beat, axis=1), 1)
    place = time - jnp.take_along_axis(ends - length, beat, axis=1)
    return beat, jnp.where(inside, place, 0), own, inside


def _between(x: jax.Array, first: jax.Array, position: jax.Array, last) -> jax.Array:
    """x [b,q,k] at first + position, linearly between samples; 0 <= position <= last: [b,t,k]."""
    left = jnp.floor(position)
    weight = (position - left)[..., None]
    take = lambda index: jnp.take_along_axis(
        x, (first + index.astype(jnp.int32))[..., None], axis=1
    )
    return take(left) * (1.0 - weight) + take(jnp.minimum(left + 1, last)) * weight


def stitch(beats: jax.Array, length: jax.Array, num_samples: int) -> jax.Array:
    """Beats [b,n,p,k], each back at its length (half-pixel centres), one after another: [b,t,k].

    The published windows fade every inner boundary in and out and are then divided away, except
    where they are exactly zero: there, at the first sample of a beat and the last of the one
    before, the record is zero.
    """
    b, n, p, k = beats.shape
    beat, place, own, inside = _owner_of_samples(length, num_samples)
    position = jnp.clip((place + 0.5) * (p / own) - 0.5, 0.0, p - 1.0)
    record = _between(beats.reshape(b, n * p, k), beat * p, position, p - 1.0)
    last = (length > 0).sum(1, keepdims=True) - 1
    fades = own * FADE_SHARE >= 2  # a fade-out of one sample stays at one
    ends = (place == own - 1) & (beat < last)
    starts = (place == 0) & (beat > 0) & ~(ends & (own == 1))
    return jnp.where((inside & ~starts & ~(ends & fades))[..., None], record, 0.0)


def restore(beats: jax.Array, length: jax.Array, num_samples: int) -> tuple[jax.Array, jax.Array]:
    """data_prep.ecg.segment.stitch_beats: [b,n,p,k] -> [b,t,k], both end samples of a beat kept;
    and which t are of it."""
    b, n, p, k = beats.shape
    beat, place, own, inside = _owner_of_samples(length, num_samples)
    position = place * ((p - 1) / jnp.maximum(own - 1, 1))
    record = _between(beats.reshape(b, n * p, k), beat * p, jnp.minimum(position, p - 1.0), p - 1.0)
    return jnp.where(inside[..., None], record, 0.0), inside


def cut(record: jax.Array, length: jax.Array, beat_samples: int) -> jax.Array:
    """data_prep.ecg.segment.cut_beats: [b,t,k] -> [b,n,p,k]."""
    (b, n), k = length.shape, record.shape[-1]
    start = jnp.minimum(jnp.cumsum(length, axis=1) - length, record.shape[1] - 1)
    last = jnp.maximum(jnp.minimum(start + length, record.shape[1]) - start - 1, 0)[
        ..., None
    ].astype(jnp.float32)
    position = jnp.linspace(0.0, 1.0, beat_samples) * last  # [b,n,p]
    last = jnp.broadcast_to(last, position.shape)
    first = jnp.broadcast_to(start[..., None], position.shape)
    flat = [x.reshape(b, n * beat_samples) for x in (first, position, last)]
    return _between(record, *flat).reshape(b, n, beat_samples, k)


def restored_records(
    batch: Mapping[str, jax.Array], mask: jax.Array, num_samples: int
) -> tuple[jax.Array, jax.Array]:
    """The leads of each record at full length from the batch's beats: [g,r,12,t], and which samples
    exist [g,r,t]."""
    g, r, n = mask.shape
    beats = to_records(batch["beats"], batch["num_beats"], n).reshape(
        g * r, n, *batch["beats"].shape[2:]
    )
    length = to_records(batch["length"], batch["num_beats"], n).reshape(g * r, n)
    record, inside = restore(jnp.swapaxes(beats.astype(jnp.float32), -1, -2), length, num_samples)
    leads = jnp.swapaxes(record, -1, -2)
    return leads.reshape(g, r, *leads.shape[1:]), inside.reshape(g, r, num_samples)


def record_error(
    ecg: jax.Array, target: jax.Array, hidden: jax.Array, inside: jax.Array
) -> tuple[jax.Array, ...]:
    """Squared error of the hidden leads [g,r,12] over the samples [g,r,t] of whole records
    [g,r,12,t], the power of the target there, and the number of values: [g,r] each."""
    chosen = hidden[..., None] & inside[..., None, :]
    error = (jnp.where(chosen, ecg - target, 0.0) ** 2).sum((-1, -2))
    return error, masked_sum(target**2, chosen, (-1, -2)), chosen.sum((-1, -2))
