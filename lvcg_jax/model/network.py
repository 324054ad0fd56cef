"""LVCG: lift the visible leads of each beat, encode, model the dynamics, decode, project back onto
the leads.

A batch is a dict of arrays in the packed layout of masking.py (g groups of r records, m packed beats a group):
    beats [g,m,l,p]   normalised samples          length [g,m]     interval length in samples
    complete [g,m]    a whole R-R interval?       num_beats [g,r]  0 for a row that only fills the batch
    lead_mask [g,r]   bit i: LEADS[i] exists      uid [g,r]        uint32, keys the record's randomness
    scale [g,r,l]     mV of one normalised unit
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_prep.ecg.geometry import lead_matrix, lift_table
from data_prep.ecg.leads import LEADS
from lvcg_jax.model import authors_code
from lvcg_jax.model.decoder import SEED_LENGTH, BeatDecoder
from lvcg_jax.model.dynamics import TemporalModule
from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.layers import mix_bits
from lvcg_jax.model.masking import beat_mask, beat_owner, to_beats, to_packed, to_records
from lvcg_jax.model.pooling import log_lead_sizes, pool_tokens
from lvcg_jax.model.rhythm import RhythmEncoder, RhythmHead
from lvcg_jax.model.views import record_keys, visible_leads

Batch = Mapping[str, jax.Array]
PARTS = ("structure", "dynamics", "rhythm")
# of the encoder's tokens in leads decoded from both: chosen on PTB-XL's validation fold
ENCODED_SHARE = 1 / 3
HIDDEN_SHARE = 0.3  # R-R intervals that the rhythm loss hides from the rhythm encoder


def tikhonov_lift(a: jax.Array, visible: jax.Array, eps: float) -> jax.Array:
    """(A^T A + eps I)^-1 A^T of the visible rows, [...,3,12]: the differentiable form, for a
    learnable geometry.

    It equals the SVD form of geometry.lift_matrix; gradients of an SVD are not finite where
    singular values repeat.
    """
    rows = jnp.where(visible[..., None], a, 0.0)  # [...,12,3]
    gram = jnp.swapaxes(rows, -1, -2) @ rows + eps * jnp.eye(3)
    return jnp.linalg.solve(gram, jnp.swapaxes(rows, -1, -2))


def record_seeds(key: jax.Array, uid: jax.Array) -> jax.Array:
    """One uint32 seed for each record [g,r], from the step's key and the record's uid."""
    seeds = jax.vmap(lambda k: jax.random.bits(k, (), jnp.uint32))(
        record_keys(key, uid).reshape(-1)
    )
    return seeds.reshape(uid.shape)


def beat_seeds(seeds: jax.Array, position: jax.Array) -> jax.Array:
    """The seeds of a record's beats from the record's own and their numbers in it."""
    return mix_bits(seeds + position.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))


def dropout_seeds(key: jax.Array, uid: jax.Array, row: jax.Array, position: jax.Array) -> jax.Array:
    """One uint32 seed for each packed beat [g,m], from the step's key, the record's uid and the
    beat's number in it."""
    return beat_seeds(to_beats(record_seeds(key, uid), row), position)


class Network(nn.Module):
    """The whole model; every field is a field of the config (see configs/pretrain.py)."""

    geometry: str | tuple[tuple[float, ...], ...]
    eps: float
    learnable_geometry: bool
    beat_samples: int
    num_samples: int  # of a record
    rate: float
    space: str
    token_dim: int
    token_scope: str
    state_dim: int
    rhythm_dim: int
    stem_features: int
    stage_features: tuple[int, ...]
    stage_blocks: tuple[int, ...]
    encoder_width: int
    decoder_seed_features: int
    decoder_features: tuple[int, ...]
    decoder_width: int
    decoder_passes: str
    dynamics: str
    dynamics_input: str
    dynamics_layers: int
    unroll: str
    rhythm_hidden: int
    rhythm_basis: int
    rhythm_heads: int
    rhythm_intervals: str
    rhythm_unit: str
    rhythm_steps: str
    rhythm_positions: int
    rhythm_head: bool
    structure: str
    lead_sizes: bool
    embedding_norm: bool
    stitch: bool
    refine: int
    ecg_source: str
    vcg_source: str
    anchor_term: bool
    view_term: bool
    norm: str
    padding: str
    dropout: float
    gelu_exact: bool
    scan_unroll: int
    remat: bool
    dtype: str

    def setup(self):
        if SEED_LENGTH * 2 ** len(self.decoder_features) != self.beat_samples:
            raise ValueError(
                f"{len(self.decoder_features)} decoder blocks do not make {self.beat_samples} samples"
            )
        axes = 3 if self.space == "vcg" else len(LEADS)
        shared = {
            "norm": self.norm,
            "dropout": self.dropout,
            "gelu_exact": self.gelu_exact,
            "dtype": jnp.dtype(self.dtype),
            "remat": self.remat,
        }
        self.encoder = BeatEncoder(
            stem_features=self.stem_features,
            stage_features=self.stage_features,
            stage_blocks=self.stage_blocks,
            width=self.encoder_width,
            token_dim=self.token_dim if self.token_scope == "beat" else -(-self.token_dim // axes),
            **shared,
        )
        sizes = {
            "layers": self.dynamics_layers,
            "dropout": self.dropout,
            "unroll": self.scan_unroll,
        }
        if self.dynamics == "learned":
            self.temporal = TemporalModule(
                self.token_dim, self.state_dim, reads=self.dynamics_input, **sizes
            )
        elif self.dynamics == "zero":
            self.temporal = authors_code.OpenLoopGRU(self.state_dim, **sizes)
        self.decoder = BeatDecoder(
            seed_features=self.decoder_seed_features,
            features=self.decoder_features,
            width=self.decoder_width,
            axes=axes,
            **shared,
        )
        if self.refine:
            self.refiner = authors_code.LeadRefiner(self.refine)
        self.rhythm = RhythmEncoder(
            self.rhythm_dim,
            self.rhythm_hidden,
            self.rhythm_basis,
            self.rhythm_heads,
            scale=self.rate if self.rhythm_unit == "samples" else 1.0,
            relative_steps=self.rhythm_steps == "relative",
            positions=self.rhythm_positions,
            gelu_exact=self.gelu_exact,
        )
        if self.rhythm_head:
            self.head = RhythmHead(self.rhythm_dim)
        if self.embedding_norm:
            self.norm_structure, self.norm_dynamics, self.norm_rhythm = (
                nn.LayerNorm(epsilon=1e-5) for _ in PARTS
            )
        fixed = lead_matrix(self.geometry)
        if self.learnable_geometry:
            self.directions = self.param("directions", lambda key: jnp.asarray(fixed, jnp.float32))
        else:
            self.directions = fixed.astype(np.float32)
            self.table = lift_table(fixed, self.eps).astype(np.float32)

    def lift(self, beats: jax.Array, visible: jax.Array, row: jax.Array) -> jax.Array:
        """Beats [g,m,l,p] and visible lead masks [g,r] -> heart vector [g,m,p,3]; invisible leads
        cannot reach it.

        In lead space: the leads themselves [g,m,p,12], zero where invisible.
        """
        shown = to_beats(visible_leads(visible), row)[..., None]  # [g,m,12,1]
        beats = jnp.where(shown, beats.astype(jnp.float32), 0.0)
        if self.space == "ecg":
            return jnp.swapaxes(beats, -1, -2)
        if self.learnable_geometry:
            lift = tikhonov_lift(self.directions, visible_leads(visible), self.eps)
        else:
            lift = jnp.asarray(self.table)[visible]  # [g,r,3,12]
        return jnp.einsum("gmkl,gmlp->gmpk", to_beats(lift, row), beats)

    def project(self, vcg: jax.Array) -> jax.Array:
        """Heart vector [g,m,p,3] -> twelve leads [g,m,12,p]; in lead space they are there
        already."""
        return (
            jnp.swapaxes(vcg, -1, -2)
            if self.space == "ecg"
            else jnp.einsum("lk,gmpk->gmlp", self.directions, vcg)
        )

    def _tokens(
        self, vcg: jax.Array, counted: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Beats [g,m,p,k] -> tokens [g,m,d]: of all axes together, or of each alone and then
        joined."""
        g, m, p, k = vcg.shape
        if self.token_scope == "beat":
            return self.encoder(
                vcg.reshape(g * m, p, k), counted.reshape(-1), seeds.reshape(-1), train
            ).reshape(g, m, -1)
        alone = jnp.swapaxes(vcg, -1, -2).reshape(g * m * k, p, 1)
        axis_seeds = mix_bits(seeds[..., None] + jnp.arange(k, dtype=jnp.uint32)).reshape(-1)
        tokens = self.encoder(alone, jnp.repeat(counted.reshape(-1), k), axis_seeds, train)
        # the last axis is cut if the size does not divide
        return tokens.reshape(g, m, -1)[..., : self.token_dim]

    def _predict(
        self, tokens: jax.Array, mask: jax.Array, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens [g,r,n,d], their mask, seeds of records [g,r] -> predicted tokens and the last
        state [g,r,h]."""
        g, r, n = mask.shape
        if self.dynamics == "none":
            last = jnp.maximum(mask.sum(-1) - 1, 0)[..., None, None]
            return tokens, jnp.take_along_axis(tokens, last, axis=2)[:, :, 0]
        if self.unroll == "batch":
            mask = jnp.broadcast_to(mask.any((0, 1)), mask.shape)
        if seeds is not None:
            seeds = _merge(beat_seeds(seeds[..., None], jnp.arange(n)))
        predicted, last = self.temporal(_merge(tokens), _merge(mask), seeds)
        return _split(predicted, g, r), _split(last, g, r)

    def _encode(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> dict[str, Any]:
        """Everything up to the predicted tokens; training mode if a key is given.

        What is packed here is packed as `counts` says: the batch's beats, or all slots up to the
        longest record's.
        """
        filled = authors_code.fill_slots(batch, max_beats) if self.padding == "counted" else batch
        counts, train = filled["num_beats"], key is not None
        g, m = filled["beats"].shape[:2]
        row, position, counted = own = beat_owner(counts, m)
        if filled is not batch:
            own = beat_owner(batch["num_beats"], batch["beats"].shape[1])
        seeds = (
            dropout_seeds(key, batch["uid"], row, position)
            if train
            else jnp.zeros((g, m), jnp.uint32)
        )
        vcg = self.lift(filled["beats"], visible, row)
        tokens = self._tokens(vcg, counted, seeds, train)
        records = to_records(tokens, counts, max_beats)  # [g,r,n,d]
        mask = beat_mask(batch["num_beats"], max_beats)
        between_layers = train and self.dynamics_layers > 1
        predicted, last = self._predict(
            records, mask, record_seeds(key, batch["uid"]) if between_layers else None
        )
        return {
            "row": row, "position": position, "counted": counted, "counts": counts, "seeds": seeds, "vcg": vcg,
            "packed_tokens": tokens, "tokens": records, "mask": mask, "predicted": predicted, "state": last,
            "owner": own,  # row, position and validity of the batch's own beats
        }  # fmt: skip

    def _decode(
        self, tokens: jax.Array, counted: jax.Array, seeds: jax.Array, train: bool
    ) -> jax.Array:
        """Tokens [g,s,d] -> heart vector [g,s,p,3]."""
        g, s, d = tokens.shape
        decoded = self.decoder(
            tokens.reshape(g * s, d), counted.reshape(-1), seeds.reshape(-1), train
        )
        return decoded.reshape(g, s, *decoded.shape[1:])

    def _decode_all(self, x: dict[str, Any], train: bool) -> dict[str, jax.Array]:
        """The beats that the objective compares: decoded from 'predicted' tokens, from 'encoded'
        ones, of the 'anchor'.

        One decoder call, and so one set of norm statistics, for all of them, or calls apart.
        """
        seeds, counted = x["seeds"], x["counted"]
        sets = {}
        if self.vcg_source == "encoded":
            sets["encoded"] = (x["packed_tokens"], counted, seeds)
        predicted = to_packed(x["predicted"], x["row"], x["position"])
        sets["predicted"] = (predicted, counted, mix_bits(seeds + jnp.uint32(1)))
        if self.anchor_term:
            there, anchor_seeds = (
                x["counts"] > authors_code.ANCHOR,
                to_records(seeds, x["counts"], authors_code.ANCHOR + 1),
            )
            anchor_seeds = mix_bits(anchor_seeds[:, :, authors_code.ANCHOR] + jnp.uint32(2))
            sets["anchor"] = (x["tokens"][:, :, authors_code.ANCHOR], there, anchor_seeds)
        if train and self.decoder_passes == "apart":
            decode, max_beats = partial(self._decode, train=True), x["mask"].shape[-1]
            decoded = {name: decode(*sets[name]) for name in ("encoded", "anchor") if name in sets}
            owner = (x["row"], x["position"])
            slots = authors_code.decode_in_passes(
                decode, *sets["predicted"], owner, x["counts"], max_beats
            )
            return decoded | {"predicted": slots}
        joined = (jnp.concatenate(parts, axis=1) for parts in zip(*sets.values(), strict=True))
        decoded, sizes = (
            self._decode(*joined, train),
            [tokens.shape[1] for tokens, _, _ in sets.values()],
        )
        ends = np.cumsum(sizes).tolist()
        return {name: decoded[:, e - n : e] for name, n, e in zip(sets, sizes, ends, strict=True)}

    def _leads(self, decoded: jax.Array, batch: Batch, max_beats: int) -> jax.Array:
        """Decoded beats [g,m,p,3] of the batch's own packing -> leads, of beats [g,m,12,p] or of
        records [g,r,12,t]."""
        if self.stitch:
            beats, length = (
                to_records(y, batch["num_beats"], max_beats) for y in (decoded, batch["length"])
            )
            decoded = _split(
                authors_code.stitch(_merge(beats), _merge(length), self.num_samples),
                *length.shape[:2],
            )
        leads = self.project(decoded)
        return self.refiner(leads) if self.refine else leads

    def _own(self, beats: jax.Array, x: dict[str, Any]) -> jax.Array:
        """Beats [g,m,...] packed as `x` has them -> packed as the batch has them."""
        if self.padding == "ignored":
            return beats
        row, position, _ = x["owner"]
        return to_packed(to_records(beats, x["counts"], x["mask"].shape[-1]), row, position)

    def _rr(self, batch: Batch, max_beats: int) -> tuple[jax.Array, jax.Array]:
        """R-R intervals in seconds and their mask, [b,n]."""
        length = to_records(batch["length"], batch["num_beats"], max_beats)
        mask = beat_mask(batch["num_beats"], max_beats)
        if self.rhythm_intervals == "complete":
            mask &= to_records(batch["complete"], batch["num_beats"], max_beats)
        return _merge(length).astype(jnp.float32) / self.rate, _merge(mask)

    def __call__(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> dict[str, jax.Array]:
        """One view of each record, with what every loss term compares. A key means training mode
        (dropout, batch norm).

        -> tokens, predicted [g,r,n,d]; vcg, vcg_decoded [g,m,p,3]; ecg [g,m,l,p] (from the predicted tokens), or
        record_ecg [g,r,l,t] if beats are stitched; valid.
        """
        x = self._encode(batch, visible, key, max_beats)
        row, _, valid = x["owner"]
        decoded = self._decode_all(x, key is not None)
        compared = (x["vcg"], decoded[self.vcg_source], decoded["predicted"])
        vcg, own, predicted = (self._own(y, x) for y in compared)
        if self.space == "ecg":  # an invisible lead is no target of the encoder's own tokens
            own = jnp.where(to_beats(visible_leads(visible), row)[:, :, None], own, 0.0)
        outputs = {
            "tokens": x["tokens"], "predicted": x["predicted"], "mask": x["mask"], "row": row, "valid": valid,
            "vcg": vcg, "vcg_decoded": own,
        }  # fmt: skip
        outputs["record_ecg" if self.stitch else "ecg"] = self._leads(predicted, batch, max_beats)
        if self.ecg_source == "both":
            outputs["ecg_encoded"] = self._leads(self._own(decoded["encoded"], x), batch, max_beats)
        if self.view_term:
            whole = self._encode(batch, batch["lead_mask"], None, max_beats)["tokens"]
            outputs["whole_tokens"] = jax.lax.stop_gradient(whole)
        if self.anchor_term:
            outputs["vcg_anchor"] = decoded["anchor"]
        if self.dynamics == "zero":
            outputs["first_predicted"] = authors_code.ANCHOR
        rr, rr_mask = self._rr(batch, max_beats)
        if self.rhythm_head:
            hide_key = jax.random.key(0) if key is None else jax.random.fold_in(key, 1)
            draws = jax.vmap(lambda k: jax.random.uniform(k, (max_beats,)))(
                record_keys(hide_key, batch["uid"]).reshape(-1)
            )
            hidden = rr_mask & (draws < HIDDEN_SHARE)
            outputs["rr"], outputs["rr_mask"], outputs["rr_hidden"] = rr, rr_mask, hidden
            outputs["rr_ratio"], outputs["rr_statistics"] = self.head(
                self.rhythm(rr, rr_mask, hidden), max_beats
            )
        if self.is_initializing():
            self._parts(x, batch, visible)
        return outputs

    def _parts(self, x: dict[str, Any], batch: Batch, visible: jax.Array) -> dict[str, jax.Array]:
        """The parts of the embedding, each [g,r,.]."""
        mask, structure = x["mask"], pool_tokens(x["tokens"], x["mask"], self.structure)
        if self.lead_sizes:
            sizes = log_lead_sizes(
                batch["scale"], visible_leads(visible), jnp.asarray(self.directions)
            )
            structure = jnp.concatenate([structure, sizes], axis=-1)
        parts = {
            "structure": structure,
            "dynamics": x["state"],
            "rhythm": _split(self.rhythm(*self._rr(batch, mask.shape[-1])), *mask.shape[:2]),
        }
        if self.embedding_norm:
            parts = {name: getattr(self, f"norm_{name}")(part) for name, part in parts.items()}
        return parts

    def embed(self, batch: Batch, visible: jax.Array, max_beats: int) -> dict[str, jax.Array]:
        """The parts of the embedding, each [g,r,.], and the beat tokens [g,r,n,d] with their
        mask."""
        x = self._encode(batch, visible, None, max_beats)
        return self._parts(x, batch, visible) | {"tokens": x["tokens"], "mask": x["mask"]}

    def reconstruct(
        self, batch: Batch, visible: jax.Array, max_beats: int, source: str = "predicted"
    ) -> jax.Array:
        """All twelve leads of each beat [g,m,l,p] from the visible ones, decoded from the temporal
        module's tokens ('predicted', what the objective trains for hidden leads), from the
        encoder's own ('encoded'), or 'both'."""
        if source == "both":
            predicted, encoded = (
                self.reconstruct(batch, visible, max_beats, one) for one in ("predicted", "encoded")
            )
            return (1.0 - ENCODED_SHARE) * predicted + ENCODED_SHARE * encoded
        x = self._encode(batch, visible, None, max_beats)
        predicted = to_packed(x["predicted"], x["row"], x["position"])
        tokens = {"predicted": predicted, "encoded": x["packed_tokens"]}[source]
        decoded = self._own(self._decode(tokens, x["counted"], x["seeds"], False), x)
        leads = self._leads(decoded, batch, max_beats)
        if not self.stitch:
            return leads
        length = _merge(to_records(batch["length"], batch["num_beats"], max_beats))
        # [b,n,p,l]
        beats = authors_code.cut(jnp.swapaxes(_merge(leads), -1, -2), length, self.beat_samples)
        row, position, _ = x["owner"]
        return to_packed(_split(jnp.swapaxes(beats, -1, -2), *leads.shape[:2]), row, position)


def _merge(x: jax.Array) -> jax.Array:
    """[g,r,...] -> [b,...]."""
    return x.reshape(-1, *x.shape[2:])


def _split(x: jax.Array, g: int, r: int) -> jax.Array:
    """[b,...] -> [g,r,...]."""
    return x.reshape(g, r, *x.shape[1:])
