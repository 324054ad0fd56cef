"""What only the authors' published code does: the network and the loss terms with its quirks.

Each quirk can be switched on alone, by the config field that names it:

    model.padding='counted'       empty slots are beats too: for norm statistics, tokens and the GRU
    model.dynamics='zero'         a GRU from a zero state, fed the token of slot 1, then its output
    model.unroll='batch'          the GRU runs over as many beats as the longest record has
    model.decoder_passes='apart'  decoder calls apart for the anchor beat, slots 1.. and slot 0
    model.stitch=True             the ECG term compares whole records, stitched with zeros between
    model.refine=128              a learned residual on the projected leads
    model.embedding_norm=True     layer norm of each part of the embedding
    loss.lambda_base=1.0          the beat of slot 1, decoded from its own token, once more

Nothing else in the project uses them. Axis letters as in model/__init__.py, and q any sample.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from lvcg_jax.model import losses
from lvcg_jax.model.dynamics import next_states, over_beats
from lvcg_jax.model.layers import Conv1D, torch_uniform
from lvcg_jax.model.masking import beat_mask, beat_owner, masked_sum, to_packed, to_records
from lvcg_jax.model.network import PARTS, Batch, Encoded, Network, Slots, merge, split
from lvcg_jax.model.pooling import ANCHOR
from lvcg_jax.model.randomness import mix_bits
from lvcg_jax.model.views import visible_leads

FADE_SHARE = 0.1  # of a beat's samples, at each side


@dataclass(frozen=True)
class Quirks:
    """Which of the quirks a network has."""

    count_padding: bool = False
    zero_start: bool = False
    unroll_batch: bool = False
    passes_apart: bool = False
    stitch: bool = False
    refine: int = 0  # channels
    embedding_norm: bool = False
    anchor_term: bool = False


class AuthorsNetwork(Network):
    """The network as the authors' published code has it."""

    quirks: Quirks = Quirks()

    def setup(self):
        super().setup()
        if self.quirks.refine:
            self.refiner = LeadRefiner(self.quirks.refine)
        if self.quirks.embedding_norm:
            self.norm_structure = nn.LayerNorm(epsilon=1e-5)
            self.norm_dynamics = nn.LayerNorm(epsilon=1e-5)
            self.norm_rhythm = nn.LayerNorm(epsilon=1e-5)

    def make_temporal(self) -> nn.Module:
        if not self.quirks.zero_start:
            return super().make_temporal()
        c = self.dynamics
        return OpenLoopGRU(c.state_dim, c.layers, self.layers.dropout, c.scan_unroll)

    def encode(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> Encoded:
        if self.quirks.count_padding:
            batch = fill_slots(batch, max_beats)
        return super().encode(batch, visible, key, max_beats)

    def beats_of(self, batch: Batch, max_beats: int) -> jax.Array:
        return beat_mask(batch.get("own_num_beats", batch["num_beats"]), max_beats)

    def predict(
        self, tokens: jax.Array, mask: jax.Array, complete: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        if self.quirks.unroll_batch and self.dynamics.kind != "none":
            mask = jnp.broadcast_to(mask.any((0, 1)), mask.shape)
        return super().predict(tokens, mask, complete, seeds)

    def to_decode(self, x: Encoded) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
        wanted = super().to_decode(x)
        if self.quirks.anchor_term:
            seeds = to_records(x.seeds, x.counts, ANCHOR + 1)[:, :, ANCHOR]
            there, tokens = x.counts > ANCHOR, x.tokens[:, :, ANCHOR]
            wanted["anchor"] = (tokens, there, mix_bits(seeds + jnp.uint32(2)))
        return wanted

    def decode_all(self, x: Encoded, train: bool) -> dict[str, jax.Array]:
        if not (train and self.quirks.passes_apart):
            return super().decode_all(x, train)
        decode, wanted = partial(self.decode, train=True), self.to_decode(x)
        decoded = {name: decode(*wanted[name]) for name in ("encoded", "anchor") if name in wanted}
        if "predicted" not in wanted:
            return decoded
        owner, max_beats = (x.slots.row, x.slots.position), x.mask.shape[-1]
        tokens, _, seeds = wanted["predicted"]  # slot 0 counts in its own call, predicted or not
        later = decode_in_passes(decode, tokens, x.slots.valid, seeds, owner, x.counts, max_beats)
        return decoded | {"predicted": later}

    def leads(self, vcg: jax.Array, batch: Batch, max_beats: int) -> jax.Array:
        """Of beats [g,m,l,p], or stitched of whole records [g,r,l,t]."""
        if self.quirks.stitch:
            beats, length = (
                to_records(x, batch["num_beats"], max_beats) for x in (vcg, batch["length"])
            )
            record = stitch(merge(beats), merge(length), self.signal.num_samples)
            vcg = split(record, *length.shape[:2])
        leads = super().leads(vcg, batch, max_beats)
        return self.refiner(leads) if self.quirks.refine else leads

    def own(self, beats: jax.Array, x: Encoded, batch: Batch) -> jax.Array:
        """Beats [g,m,...] packed as `x` has them -> packed as the batch has them."""
        if not self.quirks.count_padding:
            return beats
        row, position, _ = beat_owner(batch["num_beats"], batch["beats"].shape[1])
        return to_packed(to_records(beats, x.counts, x.mask.shape[-1]), row, position)

    def outputs(
        self, x: Encoded, decoded: dict[str, jax.Array], batch: Batch, visible, key, max_beats: int
    ) -> dict[str, jax.Array]:
        anchor = decoded.pop("anchor", None)
        decoded = {name: self.own(beats, x, batch) for name, beats in decoded.items()}
        slots = Slots(*beat_owner(batch["num_beats"], batch["beats"].shape[1]))
        mine = dataclasses.replace(x, vcg=self.own(x.vcg, x, batch), slots=slots)
        outputs = super().outputs(mine, decoded, batch, visible, key, max_beats)
        if self.quirks.stitch:
            outputs["record_ecg"] = outputs.pop("ecg")
        if anchor is not None:
            outputs["vcg_anchor"] = anchor
        if self.quirks.zero_start:  # the tokens before are not the temporal module's
            steps = jnp.arange(outputs["transitions"].shape[-1])
            outputs["transitions"] &= steps >= ANCHOR
        return outputs

    def embedding_parts(self, x: Encoded, batch: Batch, visible: jax.Array) -> dict[str, jax.Array]:
        parts = super().embedding_parts(x, batch, visible)
        if not self.quirks.embedding_norm:
            return parts
        norms = (self.norm_structure, self.norm_dynamics, self.norm_rhythm)
        return parts | {name: norm(parts[name]) for name, norm in zip(PARTS, norms, strict=True)}

    def reconstruct(
        self, batch: Batch, visible: jax.Array, max_beats: int, source: str = "predicted"
    ) -> jax.Array:
        if source == "both":
            return super().reconstruct(batch, visible, max_beats, source)
        x = self.encode(batch, visible, None, max_beats)
        vcg = self.own(self.decode_one(x, source), x, batch)
        leads = self.leads(vcg, batch, max_beats)
        if not self.quirks.stitch:
            return leads
        # Stitched records are cut into beats again.
        length = merge(to_records(batch["length"], batch["num_beats"], max_beats))
        record = jnp.swapaxes(merge(leads), -1, -2)
        beats = jnp.swapaxes(cut(record, length, self.signal.beat_samples), -1, -2)  # [b,n,l,p]
        row, position, _ = beat_owner(batch["num_beats"], batch["beats"].shape[1])
        return to_packed(split(beats, *leads.shape[:2]), row, position)

    @staticmethod
    def loss_terms(outputs: Mapping, batch: Batch, visible: jax.Array, config) -> dict:
        """losses.loss_terms, with leads compared by record and with the anchor's beat."""
        by_record = "record_ecg" in outputs
        of_ecg = record_ecg_terms if by_record else losses.ecg_terms
        found = losses.loss_terms(outputs, batch, visible, config, of_ecg)
        if "vcg_anchor" in outputs:
            found["base"] = base_term(outputs, batch, config.reduction)
            found["loss"] = found["loss"] + config.lambda_base * found["base"]
        return found


def fill_slots(batch: Mapping[str, jax.Array], max_beats: int) -> dict[str, jax.Array]:
    """The batch with every record as long as the longest of the batch, its further beats all
    zero; how many beats are its own is in `own_num_beats`."""
    counts = batch["num_beats"]
    filled = jnp.where(counts > 0, counts.max(), 0)  # [g,r]
    row, position, _ = beat_owner(filled, counts.shape[1] * max_beats)
    beats = {
        name: to_packed(to_records(batch[name], counts, max_beats), row, position)
        for name in ("beats", "length", "complete")
    }
    return {**batch, **beats, "num_beats": filled, "own_num_beats": counts}


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

        def choose(new, old):
            return jnp.where(moves[:, None], new, old)

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

    def take(index):
        return jnp.take_along_axis(x, (first + index.astype(jnp.int32))[..., None], axis=1)

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


def record_ecg_terms(
    outputs, batch, visible: jax.Array, reduction: str, target=None
) -> tuple[jax.Array, jax.Array]:
    """losses.ecg_terms on whole records [g,r,l,t] that the network has stitched.

    The target is put together from the batch's beats if none is given. Samples before the
    temporal module's start do not count.
    """
    ecg, mask = outputs["record_ecg"], outputs["mask"]
    restored, inside = restored_records(batch, mask, ecg.shape[-1])
    length = to_records(batch["length"], batch["num_beats"], mask.shape[-1])
    skipped = masked_sum(length, mask & ~outputs["modelled"], -1)  # [g,r]
    inside &= jnp.arange(ecg.shape[-1]) >= skipped[..., None]
    hidden = visible_leads(batch["lead_mask"] & ~visible)
    error, power, count = record_error(ecg, restored if target is None else target, hidden, inside)
    return tuple(losses.reduce(x, count, 1, mask, reduction) for x in (error, power))


def base_term(outputs, batch, reduction: str) -> jax.Array:
    """Squared error of the beat decoded from the token of the anchor slot, [g,r].

    It counts whether the record has that beat or not, and a second time beside L_vcg.
    """
    lifted = to_records(jax.lax.stop_gradient(outputs["vcg"]), batch["num_beats"], ANCHOR + 1)[
        :, :, ANCHOR
    ]
    error = (outputs["vcg_anchor"] - lifted) ** 2
    return error.sum((-1, -2)) if reduction == "sum" else error.mean((-1, -2))
