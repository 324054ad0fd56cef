"""LVCG's network: lift the visible leads of each beat, encode, model the dynamics, decode, project.

    v_n  = A_I^+ beat_n        heart vector of beat n, lifted from its visible leads I
    z_n  = encoder(v_n)        one token per beat
    z^_n = temporal(z_1)       tokens that the temporal module predicts from the first whole beat's
    v^_n = decoder(z^_n)       decoded back to the heart vector ...
    A v^_n                     ... and projected onto all twelve leads, hidden ones included
    e    = [pool(z_1..z_N); last state of the temporal module; rhythm(R-R intervals)]

A batch is a dict of arrays; data/packing.py says which, masking.py how its beats are packed, and
model/__init__.py what the axis letters mean. The parts' sizes and choices are in parts.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_prep.ecg.geometry import lead_matrix, lift_table
from lvcg_jax.model import losses, parts
from lvcg_jax.model.beat_levels import BeatLevels
from lvcg_jax.model.beat_shape import BeatShape
from lvcg_jax.model.decoder import SEED_LENGTH, BeatDecoder
from lvcg_jax.model.dynamics import TemporalModule
from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.masking import (
    beat_mask,
    beat_owner,
    masked_mean,
    to_beats,
    to_packed,
    to_records,
)
from lvcg_jax.model.patterns import Patterns
from lvcg_jax.model.pooling import (
    NUM_SIZES,
    log_lead_sizes,
    pool_tokens,
    pooled_size,
    steps_to_beats,
)
from lvcg_jax.model.randomness import (
    beat_seeds,
    mix_bits,
    record_keys,
    record_seeds,
)
from lvcg_jax.model.record_token import (
    STATISTICS,
    RecordToken,
    whole_records,
)
from lvcg_jax.model.rhythm import RhythmEncoder, RhythmHead, log_rr_ratio, rr_statistics
from lvcg_jax.model.unseen_leads import lead_covariance
from lvcg_jax.model.views import visible_leads

Batch = Mapping[str, jax.Array]
PARTS = ("structure", "dynamics", "rhythm")
AHEAD = 4  # beats, see Network.mean_state
# Leads and heart vector are turned into each other by products too small to cost anything.
# Accelerators would round their factors to 8 bits, and all that is learned with them.
EXACT = jax.lax.Precision.HIGHEST


class Slots(NamedTuple):
    """Whose beat each packed one is, each [g,m]."""

    row: jax.Array  # its record in the group
    position: jax.Array  # its number in the record
    valid: jax.Array  # False for padding


@dataclass(frozen=True)
class Encoded:
    """A batch up to the predicted tokens."""

    counts: jax.Array  # [g,r] beats of each record, as they are packed here
    slots: Slots
    seeds: jax.Array  # [g,m] dropout seeds
    vcg: jax.Array  # [g,m,p,k] lifted beats
    packed: jax.Array  # [g,m,d] the encoder's tokens, packed
    tokens: jax.Array  # [g,r,n,d] the same by record
    mask: jax.Array  # [g,r,n] the valid ones
    predicted: jax.Array  # [g,r,n,d] the temporal module's tokens; before its start the encoder's
    state: jax.Array  # [g,r,h] its last state
    started: jax.Array  # [g,r,n] slots from its start on


def dropout_seeds(key: jax.Array, uid: jax.Array, row: jax.Array, position: jax.Array) -> jax.Array:
    """One uint32 seed for each packed beat [g,m], from the step's key, the record's uid [g,r] and
    the beat's number in its record."""
    return beat_seeds(to_beats(record_seeds(key, uid), row), position)


def tikhonov_lift(a: jax.Array, visible: jax.Array, eps: float) -> jax.Array:
    """(A^T A + eps I)^-1 A^T of the visible rows, [...,k,12], for a learnable geometry.

    It equals the SVD form of geometry.lift_matrix, and can be differentiated: gradients of an SVD
    are not finite where singular values repeat.
    """
    rows = jnp.where(visible[..., None], a, 0.0)  # [...,12,k]
    across = jnp.swapaxes(rows, -1, -2)
    gram = jnp.matmul(across, rows, precision=EXACT) + eps * jnp.eye(a.shape[-1])
    return jnp.linalg.solve(gram, across)


def whole_beats(mask: jax.Array, complete: jax.Array) -> jax.Array:
    """Which slots [g,r,n] of those in the mask hold a complete beat; all where none does. Slot 0
    never counts as complete."""
    complete = complete & (jnp.arange(mask.shape[-1]) > 0)
    return jnp.where(complete.any(-1, keepdims=True), complete, mask)


def merge(x: jax.Array) -> jax.Array:
    """[g,r,...] -> [b,...]."""
    return x.reshape(-1, *x.shape[2:])


def split(x: jax.Array, g: int, r: int) -> jax.Array:
    """[b,...] -> [g,r,...]."""
    return x.reshape(g, r, *x.shape[1:])


class Network(nn.Module):
    """The whole model. Every part has the paper's values by default.

    >>> import jax
    >>> from data_prep.ecg.leads import LEADS
    >>> from data_prep.ecg.preprocess import Preprocess
    >>> from data_prep.synthetic_heart.records import make_record
    >>> from lvcg_jax.data.packing import record_batch
    >>> from lvcg_jax.data.windows import corpus_windows, signal_corpus
    >>> signal, info = make_record(seed=0)
    >>> corpus = signal_corpus(signal, 250, LEADS, "mV", "made up")
    >>> (window,) = corpus_windows(corpus, Preprocess(), failures=[])
    >>> batch = record_batch(window, capacity=20)
    >>> network = Network()
    >>> init = jax.jit(network.init, static_argnums=4)
    >>> variables = init(jax.random.key(0), batch, batch["lead_mask"], None, 20)
    >>> parts = network.apply(variables, batch, batch["lead_mask"], 20, method="embed")
    >>> {name: parts[name].shape for name in ("structure", "dynamics", "rhythm")}
    {'structure': (1, 1, 256), 'dynamics': (1, 1, 256), 'rhythm': (1, 1, 128)}
    """

    signal: parts.Signal = parts.Signal()
    geometry: parts.Geometry = parts.Geometry()
    layers: parts.Layers = parts.Layers()
    encoding: parts.Encoding = parts.Encoding()
    dynamics: parts.Dynamics = parts.Dynamics()
    decoding: parts.Decoding = parts.Decoding()
    intervals: parts.Rhythm = parts.Rhythm()
    embedding: parts.Embedding = parts.Embedding()
    objective: parts.Objective = parts.Objective()

    loss_terms = staticmethod(losses.loss_terms)
    signal_samples = 0  # of each record that a batch must have: it reads beats alone
    least_patients = 1  # of a data set to train on
    lowest_is_best = True  # the state of lowest validation loss is the one to use

    def setup(self):
        blocks = len(self.decoding.features)
        if SEED_LENGTH * 2**blocks != self.signal.beat_samples:
            raise ValueError(
                f"{blocks} decoder blocks do not make {self.signal.beat_samples} samples"
            )
        axes, token_dim = self.geometry.axes, self.encoding.token_dim
        alone = self.encoding.token_scope == "axis"  # each axis has its share of the token
        share = -(-token_dim // axes) if alone else token_dim
        self.encoder = BeatEncoder(self.encoding, self.layers, share)
        self.decoder = BeatDecoder(self.decoding, self.layers, axes)
        if self.dynamics.kind != "none":
            self.temporal = self.make_temporal()
        self.rhythm = RhythmEncoder(self.intervals, self.signal.rate, self.layers.gelu_exact)
        if self.objective.rhythm:
            self.head = RhythmHead(self.intervals.dim)
        if any(self.embedding.beat_modes):
            self.shape = BeatShape(*self.embedding.beat_modes, self.signal.rate)
        if self.embedding.patterns:
            self.patterns = Patterns(
                self.embedding.patterns, self.signal.rate, self.signal.num_samples
            )
        if self.embedding.beat_levels or self.embedding.record_token:
            self.covariance = lead_covariance(self)
        if self.embedding.beat_levels:
            self.levels = BeatLevels(self.embedding.beat_levels, self.signal.rate)
        if self.embedding.record_token:
            reading = self.embedding.record_token
            self.record_token = RecordToken(
                BeatEncoder(reading, self.layers, reading.token_dim, parent=None)
            )
        fixed = lead_matrix(self.geometry.matrix)
        if self.geometry.learnable:
            self.directions = self.param("directions", lambda key: jnp.asarray(fixed, jnp.float32))
        else:
            self.directions = fixed.astype(np.float32)
            self.table = lift_table(fixed, self.geometry.eps).astype(np.float32)

    def make_temporal(self) -> nn.Module:
        """The module that predicts tokens [b,n,d] and a last state [b,h] from tokens [b,n,d]."""
        return TemporalModule(self.dynamics, self.encoding.token_dim, self.layers.dropout)

    @property
    def feature_dim(self) -> int:
        """Numbers of a token as `embed` gives it: the encoder's own, and those of the record
        token's network, if there is one."""
        reading = self.embedding.record_token
        return self.encoding.token_dim + (reading.token_dim if reading else 0)

    @property
    def part_sizes(self) -> dict[str, int]:
        """Names and sizes of the parts of the embedding, in order."""
        sizes = NUM_SIZES if self.embedding.lead_sizes else 0
        wanted = self.embedding
        sizes += sum(wanted.beat_modes) + wanted.patterns + wanted.beat_levels
        if self.embedding.record_token:
            sizes += pooled_size(self.embedding.record_token.token_dim, STATISTICS)
        structure = pooled_size(self.encoding.token_dim, self.embedding.structure) + sizes
        return dict(
            zip(PARTS, (structure, self.dynamics.state_dim, self.intervals.dim), strict=True)
        )

    # ---- Geometry: leads <-> heart vector

    def lift(self, beats: jax.Array, visible: jax.Array, row: jax.Array) -> jax.Array:
        """Beats [g,m,l,p] and visible lead masks [g,r] -> heart vector [g,m,p,k].

        Invisible leads cannot reach it. In lead space: the leads themselves, zero where invisible.
        """
        leads = visible_leads(visible)  # [g,r,l]
        beats = jnp.where(to_beats(leads, row)[..., None], beats.astype(jnp.float32), 0.0)
        if self.geometry.space == "ecg":
            return jnp.swapaxes(beats, -1, -2)
        if self.geometry.learnable:
            lift = tikhonov_lift(self.directions, leads, self.geometry.eps)
        else:
            lift = jnp.asarray(self.table)[visible]  # [g,r,k,l]
        return jnp.einsum("gmkl,gmlp->gmpk", to_beats(lift, row), beats, precision=EXACT)

    def project(self, vcg: jax.Array) -> jax.Array:
        """Heart vector [g,m,p,k] -> twelve leads [g,m,l,p]; in lead space, what it is already."""
        if self.geometry.space == "ecg":
            return jnp.swapaxes(vcg, -1, -2)
        return jnp.einsum("lk,gmpk->gmlp", self.directions, vcg, precision=EXACT)

    # ---- Beats -> tokens -> predicted tokens

    def encode(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> Encoded:
        """Everything up to the predicted tokens; training mode if a key is given."""
        counts, train = batch["num_beats"], key is not None
        slots = Slots(*beat_owner(counts, batch["beats"].shape[1]))
        seeds = jnp.zeros(slots.row.shape, jnp.uint32)
        if train:
            seeds = dropout_seeds(key, batch["uid"], slots.row, slots.position)
        vcg = self.lift(batch["beats"], visible, slots.row)
        packed = self.tokens_of(vcg, slots.valid, seeds, train)
        tokens = to_records(packed, counts, max_beats)
        mask = self.beats_of(batch, max_beats)
        between_layers = train and self.dynamics.layers > 1
        noise = record_seeds(key, batch["uid"]) if between_layers else None
        complete = to_records(batch["complete"], counts, max_beats)
        predicted, state, started = self.predict(tokens, mask, complete, noise)
        return Encoded(counts, slots, seeds, vcg, packed, tokens, mask, predicted, state, started)

    def beats_of(self, batch: Batch, max_beats: int) -> jax.Array:
        """Which slots of a record hold a beat, [g,r,n]."""
        return beat_mask(batch["num_beats"], max_beats)

    def tokens_of(
        self, vcg: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Beats [g,m,p,k] -> tokens [g,m,d]: of all axes together, or of each alone and joined."""
        g, m, p, k = vcg.shape
        valid, seeds = valid.reshape(-1), seeds.reshape(-1)
        if self.encoding.token_scope == "beat":
            return self.encoder(vcg.reshape(g * m, p, k), valid, seeds, train).reshape(g, m, -1)
        axes = jnp.swapaxes(vcg, -1, -2).reshape(g * m * k, p, 1)
        axis_seeds = mix_bits(seeds[:, None] + jnp.arange(k, dtype=jnp.uint32)).reshape(-1)
        tokens = self.encoder(axes, jnp.repeat(valid, k), axis_seeds, train)
        # The last axis' share is cut where the token's size does not divide by the axes.
        return tokens.reshape(g, m, -1)[..., : self.encoding.token_dim]

    def predict(
        self, tokens: jax.Array, mask: jax.Array, complete: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Tokens [g,r,n,d], their mask, which are of complete beats, seeds of records [g,r] ->
        `predicted`, `state` and `started` of Encoded.

        A piece of a beat before the start has no prediction: there the encoder's own token stands,
        so that a whole record can be decoded. Slot 0 is taken for such a piece even if a peak was
        found at the first sample, as nobody saw what came before. A record without a complete beat
        starts at its first slot. Without a temporal module the state is the mean token of the
        complete beats.
        """
        g, r, n = mask.shape
        whole = whole_beats(mask, complete)
        if self.dynamics.kind == "none":
            return tokens, masked_mean(tokens, whole[..., None], -2), jnp.ones_like(mask)
        first = 0 if self.dynamics.start == "first" else jnp.argmax(whole, axis=-1)
        started = jnp.arange(n) >= jnp.broadcast_to(first, (g, r))[..., None]
        if seeds is not None:
            seeds = merge(beat_seeds(seeds[..., None], jnp.arange(n)))
        predicted, state = self.temporal(merge(tokens), merge(mask & started), seeds)
        predicted = jnp.where(started[..., None], split(predicted, g, r), tokens)
        return predicted, split(state, g, r), started

    def mean_state(self, x: Encoded, complete: jax.Array) -> jax.Array:
        """The state [g,r,h] that the temporal module reaches AHEAD beats after its start, or at the
        record's end if that comes first: the mean over starts at all complete beats [g,r,n]."""
        g, m, _ = x.packed.shape
        steps = jnp.arange(AHEAD + 1)
        # the beats of a record are packed one after another: those that follow each, [g,m,a]
        follows = x.slots.position[..., None] + steps < to_beats(x.counts, x.slots.row)[..., None]
        tokens = x.packed[:, jnp.minimum(jnp.arange(m)[:, None] + steps, m - 1)]
        _, state = self.temporal(merge(tokens), merge(follows & x.slots.valid[..., None]))
        states = to_records(split(state, g, m), x.counts, x.mask.shape[-1])
        return masked_mean(states, whole_beats(x.mask, complete)[..., None], -2)

    # ---- Tokens -> heart vector -> leads

    def decode(
        self, tokens: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Tokens [g,m,d] -> heart vector [g,m,p,k]."""
        g, m, d = tokens.shape
        decoded = self.decoder(
            tokens.reshape(g * m, d), valid.reshape(-1), seeds.reshape(-1), train
        )
        return decoded.reshape(g, m, *decoded.shape[1:])

    def to_decode(self, x: Encoded) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
        """What the objective compares, by name: (tokens, validity, dropout seeds)."""
        wanted, compared = {}, {self.objective.ecg_source, self.objective.vcg_source}
        if compared & {"encoded", "both"}:
            wanted["encoded"] = (x.packed, x.slots.valid, x.seeds)
        if compared & {"predicted", "both"}:
            place = (x.slots.row, x.slots.position)
            predicted, started = (to_packed(y, *place) for y in (x.predicted, x.started))
            seeds = mix_bits(x.seeds + jnp.uint32(1))
            wanted["predicted"] = (predicted, x.slots.valid & started, seeds)
        return wanted

    def decode_all(self, x: Encoded, train: bool) -> dict[str, jax.Array]:
        """All of `to_decode` in one decoder call, and so with one set of norm statistics."""
        wanted = self.to_decode(x)
        joined = (jnp.concatenate(parts, axis=1) for parts in zip(*wanted.values(), strict=True))
        decoded = self.decode(*joined, train)
        ends = np.cumsum([tokens.shape[1] for tokens, _, _ in wanted.values()])
        return dict(zip(wanted, jnp.split(decoded, ends[:-1].tolist(), axis=1), strict=True))

    def decode_one(self, x: Encoded, source: str) -> jax.Array:
        """The heart vector [g,m,p,k] from the 'predicted' tokens or from the 'encoded' ones."""
        predicted = to_packed(x.predicted, x.slots.row, x.slots.position)
        tokens = {"predicted": predicted, "encoded": x.packed}[source]
        return self.decode(tokens, x.slots.valid, x.seeds, False)

    def leads(self, vcg: jax.Array, batch: Batch, max_beats: int) -> jax.Array:
        """Decoded beats [g,m,p,k] -> the leads [g,m,l,p] that the objective compares."""
        return self.project(vcg)

    # ---- What is asked of the network

    def __call__(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> dict[str, jax.Array]:
        """One view of each record, with what every loss term compares.

        A key means training mode: dropout, and norm statistics of the batch. Returns

            tokens, predicted [g,r,n,d]  mask [g,r,n]      of the encoder and the temporal module
            modelled [g,r,n]                               beats that the latter predicts
            transitions [g,r,n-1]                          steps between beats that L_temp compares
            vcg, vcg_decoded [g,m,p,k]                     lifted beats, and decoded ones
            ecg, ecg_encoded [g,m,l,p]                     leads, decoded from z^ and from z: those
                                                           of objective.ecg_source
            row, valid [g,m]                               of the packed beats
            whole_tokens, rr_*                             for the optional terms, see losses.py
        """
        x = self.encode(batch, visible, key, max_beats)
        decoded = self.decode_all(x, key is not None)
        return self.outputs(x, decoded, batch, visible, key, max_beats)

    def outputs(
        self, x: Encoded, decoded: dict[str, jax.Array], batch: Batch, visible, key, max_beats: int
    ) -> dict[str, jax.Array]:
        """The result of a call, from what was encoded and decoded."""
        own = decoded[self.objective.vcg_source]
        if self.geometry.space == "ecg":  # an invisible lead is no target of the encoder's tokens
            own = jnp.where(to_beats(visible_leads(visible), x.slots.row)[:, :, None], own, 0.0)
        modelled = x.mask & x.started
        outputs = {
            "tokens": x.tokens,
            "predicted": x.predicted,
            "mask": x.mask,
            "modelled": modelled,
            "transitions": modelled[..., 1:] & modelled[..., :-1],
            "row": x.slots.row,
            "valid": x.slots.valid,
            "vcg": x.vcg,
            "vcg_decoded": own,
        }
        if self.objective.ecg_source in ("predicted", "both"):
            outputs["ecg"] = self.leads(decoded["predicted"], batch, max_beats)
        if self.objective.ecg_source in ("encoded", "both"):
            outputs["ecg_encoded"] = self.leads(decoded["encoded"], batch, max_beats)
        if self.objective.view:
            whole = self.encode(batch, batch["lead_mask"], None, max_beats).tokens
            outputs["whole_tokens"] = jax.lax.stop_gradient(whole)
        if self.objective.rhythm:
            outputs |= self.read_rhythm(batch, key, max_beats)
        if self.is_initializing():
            self.embedding_parts(x, batch, visible)
        return outputs

    def rr(self, batch: Batch, max_beats: int) -> tuple[jax.Array, jax.Array]:
        """R-R intervals in seconds and the mask of those that count, [b,n]."""
        length = to_records(batch["length"], batch["num_beats"], max_beats)
        mask = beat_mask(batch["num_beats"], max_beats)
        if self.intervals.intervals == "complete":
            mask &= to_records(batch["complete"], batch["num_beats"], max_beats)
        if self.intervals.max_rr:
            mask &= length <= self.intervals.max_rr * self.signal.rate
        return merge(length).astype(jnp.float32) / self.signal.rate, merge(mask)

    def read_rhythm(
        self, batch: Batch, key: jax.Array | None, max_beats: int
    ) -> dict[str, jax.Array]:
        """Some R-R intervals are hidden from the rhythm encoder; what its head reads back, and the
        truth, [b,n] and [b,4]."""
        rr, mask = self.rr(batch, max_beats)
        hide_key = jax.random.key(0) if key is None else jax.random.fold_in(key, 1)
        keys = record_keys(hide_key, batch["uid"]).reshape(-1)
        draws = jax.vmap(lambda k: jax.random.uniform(k, (max_beats,)))(keys)
        hidden = mask & (draws < self.objective.rhythm_hidden_share)
        ratio, statistics = self.head(self.rhythm(rr, mask, hidden), max_beats)
        return {
            "rr_hidden": hidden,
            "rr_ratio": ratio,
            "rr_ratio_true": log_rr_ratio(rr, mask, self.intervals.max_log_ratio),
            "rr_statistics": statistics,
            "rr_statistics_true": rr_statistics(rr, mask),
        }

    def embedding_parts(self, x: Encoded, batch: Batch, visible: jax.Array) -> dict[str, jax.Array]:
        """The parts of the embedding, each [g,r,.], and the beat tokens [g,r,n,d]."""
        tokens = x.tokens
        structure = pool_tokens(tokens, x.mask, self.embedding.structure)
        if self.embedding.lead_sizes:
            directions = jnp.asarray(self.directions)
            sizes = log_lead_sizes(batch["scale"], visible_leads(visible), directions)
            structure = jnp.concatenate([structure, sizes], axis=-1)
        g, r, n = x.mask.shape
        wanted = self.embedding
        if any(wanted.beat_modes) or wanted.patterns or wanted.beat_levels or wanted.record_token:
            beats, length = (to_records(batch[name], x.counts, n) for name in ("beats", "length"))
            scale, leads = batch["scale"], visible_leads(visible)
        if any(wanted.beat_modes):
            shape = self.shape(beats, length, x.counts, scale, leads)
            structure = jnp.concatenate([structure, shape], axis=-1)
        if wanted.patterns:
            patterns = self.patterns(beats, length, scale, leads)
            structure = jnp.concatenate([structure, patterns], axis=-1)
        if wanted.beat_levels:
            levels = self.levels(beats, length, x.counts, scale, leads, self.covariance)
            structure = jnp.concatenate([structure, levels], axis=-1)
        if wanted.record_token:
            features, steps = self.read_records(batch, visible, n)
            token = pool_tokens(features, steps, STATISTICS)
            structure = jnp.concatenate([structure, token], axis=-1)
            merged = (merge(features), merge(steps), merge(length))
            of_beats = split(steps_to_beats(*merged, self.signal.num_samples), g, r)
            tokens = jnp.concatenate([tokens, of_beats], axis=-1)
        rhythm = split(self.rhythm(*self.rr(batch, n)), g, r)
        state = x.state
        if self.dynamics.start == "each":
            state = self.mean_state(x, to_records(batch["complete"], x.counts, n))
        parts = dict(zip(PARTS, (structure, state, rhythm), strict=True))
        return parts | {"tokens": tokens}

    def read_records(
        self, batch: Batch, visible: jax.Array, max_beats: int, train: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """What the record token is pooled from: features of the steps [g,r,s,d] of each whole
        record and the steps that count [g,r,s]; in training mode with norm statistics of the
        batch."""
        counts, leads = batch["num_beats"], visible_leads(visible)
        beats, length = (to_records(batch[name], counts, max_beats) for name in ("beats", "length"))
        records = tuple(map(merge, (beats, length, batch["scale"], leads)))
        samples = self.signal.num_samples
        found = whole_records(self.record_token, records, self.covariance, samples, train)
        return tuple(split(x, *counts.shape) for x in found)

    def embed(self, batch: Batch, visible: jax.Array, max_beats: int) -> dict[str, jax.Array]:
        """The parts of the embedding, each [g,r,.], and the beat tokens [g,r,n,d] with their
        mask."""
        x = self.encode(batch, visible, None, max_beats)
        return self.embedding_parts(x, batch, visible) | {"mask": x.mask}

    def reconstruct(
        self, batch: Batch, visible: jax.Array, max_beats: int, source: str = "predicted"
    ) -> jax.Array:
        """All twelve leads of each beat [g,m,l,p] from the visible ones.

        They are decoded from the temporal module's tokens ('predicted', what the objective trains
        for hidden leads), from the encoder's own ('encoded'), or from 'both', weighted. Beats
        before the temporal module's start are decoded from the encoder's tokens in any case.
        """
        if source == "both":
            share = self.objective.encoded_share
            predicted = self.reconstruct(batch, visible, max_beats, "predicted")
            encoded = self.reconstruct(batch, visible, max_beats, "encoded")
            return (1.0 - share) * predicted + share * encoded
        x = self.encode(batch, visible, None, max_beats)
        return self.leads(self.decode_one(x, source), batch, max_beats)
