"""LVCG: lift the visible leads of each beat, encode, model the dynamics, decode, project back onto the leads.

A batch is a dict of arrays in the packed layout of masking.py (g groups of r records, m packed beats a group):
    beats [g,m,l,p]   normalised samples          length [g,m]     interval length in samples
    complete [g,m]    a whole R-R interval?       num_beats [g,r]  0 for a row that only fills the batch
    lead_mask [g,r]   bit i: LEADS[i] exists      uid [g,r]        uint32, keys the record's randomness
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lvcg_jax.decoder import SEED_LENGTH, BeatDecoder
from lvcg_jax.dynamics import TemporalModule
from lvcg_jax.geometry import lead_matrix, lift_table
from lvcg_jax.layers import mix_bits
from lvcg_jax.masking import beat_mask, beat_owner, masked_mean, to_beats, to_packed, to_records
from lvcg_jax.resnet1d import BeatEncoder
from lvcg_jax.rhythm import RhythmEncoder, RhythmHead
from lvcg_jax.views import record_keys, visible_leads

Batch = Mapping[str, jax.Array]
PARTS = ("structure", "dynamics", "rhythm")
HIDDEN_SHARE = 0.3  # R-R intervals that the rhythm loss hides from the rhythm encoder


def tikhonov_lift(a: jax.Array, visible: jax.Array, eps: float) -> jax.Array:
    """(A^T A + eps I)^-1 A^T of the visible rows, [...,3,12]: the differentiable form, for a learnable geometry.

    It equals the SVD form of geometry.lift_matrix; gradients of an SVD are not finite where singular values repeat.
    """
    rows = jnp.where(visible[..., None], a, 0.0)  # [...,12,3]
    gram = jnp.swapaxes(rows, -1, -2) @ rows + eps * jnp.eye(3)
    return jnp.linalg.solve(gram, jnp.swapaxes(rows, -1, -2))


def dropout_seeds(key: jax.Array, uid: jax.Array, row: jax.Array, position: jax.Array) -> jax.Array:
    """One uint32 seed for each packed beat [g,m], from the step's key, the record's uid and the beat's number in it."""
    record_seed = jax.vmap(lambda k: jax.random.bits(k, (), jnp.uint32))(record_keys(key, uid).reshape(-1))
    record_seed = record_seed.reshape(uid.shape)
    return mix_bits(to_beats(record_seed, row) + position.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))


class LVCG(nn.Module):
    """The whole model; every field is a field of the config (see configs/pretrain.py)."""

    geometry: str | tuple[tuple[float, ...], ...]
    eps: float
    learnable_geometry: bool
    beat_samples: int
    rate: float
    token_dim: int
    state_dim: int
    rhythm_dim: int
    stem_features: int
    stage_features: tuple[int, ...]
    stage_blocks: tuple[int, ...]
    encoder_width: int
    decoder_seed_features: int
    decoder_features: tuple[int, ...]
    decoder_width: int
    rhythm_hidden: int
    rhythm_basis: int
    rhythm_heads: int
    rhythm_intervals: str
    rhythm_head: bool
    norm: str
    dropout: float
    gelu_exact: bool
    scan_unroll: int
    dtype: str

    def setup(self):
        if SEED_LENGTH * 2 ** len(self.decoder_features) != self.beat_samples:
            raise ValueError(f"{len(self.decoder_features)} decoder blocks do not make {self.beat_samples} samples")
        shared = {
            "norm": self.norm,
            "dropout": self.dropout,
            "gelu_exact": self.gelu_exact,
            "dtype": jnp.dtype(self.dtype),
        }
        self.encoder = BeatEncoder(
            stem_features=self.stem_features,
            stage_features=self.stage_features,
            stage_blocks=self.stage_blocks,
            width=self.encoder_width,
            token_dim=self.token_dim,
            **shared,
        )
        self.temporal = TemporalModule(self.token_dim, self.state_dim, self.scan_unroll)
        self.decoder = BeatDecoder(
            seed_features=self.decoder_seed_features,
            features=self.decoder_features,
            width=self.decoder_width,
            **shared,
        )
        self.rhythm = RhythmEncoder(self.rhythm_dim, self.rhythm_hidden, self.rhythm_basis, self.rhythm_heads)
        if self.rhythm_head:
            self.head = RhythmHead(self.rhythm_dim)
        fixed = lead_matrix(self.geometry)
        if self.learnable_geometry:
            self.directions = self.param("directions", lambda key: jnp.asarray(fixed, jnp.float32))
        else:
            self.directions = fixed.astype(np.float32)
            self.table = lift_table(fixed, self.eps).astype(np.float32)

    def lift(self, beats: jax.Array, visible: jax.Array, row: jax.Array) -> jax.Array:
        """Beats [g,m,l,p] and visible lead masks [g,r] -> heart vector [g,m,p,3]; invisible leads cannot reach it."""
        if self.learnable_geometry:
            lift = tikhonov_lift(self.directions, visible_leads(visible), self.eps)
        else:
            lift = jnp.asarray(self.table)[visible]  # [g,r,3,12]
        shown = to_beats(visible_leads(visible), row)[..., None]  # [g,m,12,1]
        beats = jnp.where(shown, beats.astype(jnp.float32), 0.0)
        return jnp.einsum("gmkl,gmlp->gmpk", to_beats(lift, row), beats)

    def project(self, vcg: jax.Array) -> jax.Array:
        """Heart vector [g,m,p,3] -> twelve leads [g,m,12,p]."""
        return jnp.einsum("lk,gmpk->gmlp", self.directions, vcg)

    def _encode(self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int) -> dict[str, Any]:
        """Everything up to the predicted tokens; training mode if a key is given."""
        g, m, _, p = batch["beats"].shape
        row, position, valid = beat_owner(batch["num_beats"], m)
        train = key is not None
        seeds = dropout_seeds(key, batch["uid"], row, position) if train else jnp.zeros((g, m), jnp.uint32)
        vcg = self.lift(batch["beats"], visible, row)
        tokens = self.encoder(vcg.reshape(g * m, p, 3), valid.reshape(-1), seeds.reshape(-1), train).reshape(g, m, -1)
        records = to_records(tokens, batch["num_beats"], max_beats)  # [g,r,n,d]
        mask = beat_mask(batch["num_beats"], max_beats)
        predicted, last = self.temporal(_merge(records), _merge(mask))
        r = batch["num_beats"].shape[1]
        return {
            "row": row, "position": position, "valid": valid, "seeds": seeds, "vcg": vcg,
            "packed_tokens": tokens, "tokens": records, "mask": mask,
            "predicted": _split(predicted, g, r), "state": _split(last, g, r),
        }  # fmt: skip

    def _decode(self, tokens: jax.Array, valid: jax.Array, seeds: jax.Array, train: bool) -> jax.Array:
        """Tokens [g,s,d] -> heart vector [g,s,p,3]."""
        g, s, d = tokens.shape
        decoded = self.decoder(tokens.reshape(g * s, d), valid.reshape(-1), seeds.reshape(-1), train)
        return decoded.reshape(g, s, self.beat_samples, 3)

    def _rr(self, batch: Batch, max_beats: int) -> tuple[jax.Array, jax.Array]:
        """R-R intervals in seconds and their mask, [b,n]."""
        length = to_records(batch["length"], batch["num_beats"], max_beats)
        mask = beat_mask(batch["num_beats"], max_beats)
        if self.rhythm_intervals == "complete":
            mask &= to_records(batch["complete"], batch["num_beats"], max_beats)
        return _merge(length).astype(jnp.float32) / self.rate, _merge(mask)

    def __call__(self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int) -> dict[str, jax.Array]:
        """One view of each record, with what every loss term compares. A key means training mode (dropout, batch norm).

        -> tokens, predicted [g,r,n,d]; vcg, vcg_decoded [g,m,p,3]; ecg [g,m,l,p] (from the predicted tokens); valid.
        """
        x = self._encode(batch, visible, key, max_beats)
        m = x["valid"].shape[1]
        predicted = to_packed(x["predicted"], x["row"], x["position"])
        both = jnp.concatenate([x["packed_tokens"], predicted], axis=1)  # one decoder call, one set of norm statistics
        seeds = jnp.concatenate([x["seeds"], mix_bits(x["seeds"] + jnp.uint32(1))], axis=1)
        decoded = self._decode(both, jnp.concatenate([x["valid"]] * 2, axis=1), seeds, key is not None)
        outputs = {
            "tokens": x["tokens"], "predicted": x["predicted"], "mask": x["mask"], "row": x["row"], "valid": x["valid"],
            "vcg": x["vcg"], "vcg_decoded": decoded[:, :m], "ecg": self.project(decoded[:, m:]),
        }  # fmt: skip
        rr, rr_mask = self._rr(batch, max_beats)
        if self.rhythm_head:
            hide_key = jax.random.key(0) if key is None else jax.random.fold_in(key, 1)
            draws = jax.vmap(lambda k: jax.random.uniform(k, (max_beats,)))(
                record_keys(hide_key, batch["uid"]).reshape(-1)
            )
            hidden = rr_mask & (draws < HIDDEN_SHARE)
            outputs["rr"], outputs["rr_mask"], outputs["rr_hidden"] = rr, rr_mask, hidden
            outputs["rr_ratio"], outputs["rr_statistics"] = self.head(self.rhythm(rr, rr_mask, hidden), max_beats)
        elif self.is_initializing():
            self.rhythm(rr, rr_mask)
        return outputs

    def embed(self, batch: Batch, visible: jax.Array, max_beats: int) -> dict[str, jax.Array]:
        """The parts of the embedding, each [g,r,.], and the beat tokens [g,r,n,d] with their mask."""
        x = self._encode(batch, visible, None, max_beats)
        g, r = batch["num_beats"].shape
        return {
            "structure": masked_mean(x["tokens"], x["mask"][..., None], 2),
            "dynamics": x["state"],
            "rhythm": _split(self.rhythm(*self._rr(batch, max_beats)), g, r),
            "tokens": x["tokens"],
            "mask": x["mask"],
        }

    def reconstruct(self, batch: Batch, visible: jax.Array, max_beats: int, source: str = "predicted") -> jax.Array:
        """All twelve leads of each beat [g,m,l,p] from the visible ones, decoded from the temporal module's tokens
        ('predicted', what the objective trains for hidden leads) or from the encoder's own ('encoded')."""
        x = self._encode(batch, visible, None, max_beats)
        predicted = to_packed(x["predicted"], x["row"], x["position"])
        tokens = {"predicted": predicted, "encoded": x["packed_tokens"]}[source]
        return self.project(self._decode(tokens, x["valid"], x["seeds"], False))


def _merge(x: jax.Array) -> jax.Array:
    """[g,r,...] -> [b,...]."""
    return x.reshape(-1, *x.shape[2:])


def _split(x: jax.Array, g: int, r: int) -> jax.Array:
    """[b,...] -> [g,r,...]."""
    return x.reshape(g, r, *x.shape[1:])
