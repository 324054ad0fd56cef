"""The baseline of the bench: the same model as one would write it first, with library modules on
beats padded to N_max.

Parameters and statistics have the names and shapes of those of Network, so one tree serves both,
and a test holds the two to the same numbers. A batch has one record per group (g = b, r = 1,
m = n): no beat is packed, every empty slot goes through encoder and decoder.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from data_prep.ecg.geometry import lead_matrix, lift_table
from lvcg_jax.config.fields import flatten
from lvcg_jax.config.inputs import as_geometry
from lvcg_jax.data.packing import empty, fill, unpack
from lvcg_jax.model import losses, parts
from lvcg_jax.model.decoder import SEED_LENGTH
from lvcg_jax.model.dynamics import TemporalModule
from lvcg_jax.model.masking import beat_mask, masked_mean
from lvcg_jax.model.network import Batch
from lvcg_jax.model.randomness import record_keys
from lvcg_jax.model.rhythm import RhythmEncoder, RhythmHead, log_rr_ratio, rr_statistics
from lvcg_jax.model.views import visible_leads

# What the plain model knows of fields with alternatives: the paper's value of each.
KNOWN = {
    "model.space": "vcg",
    "model.token_scope": "beat",
    "model.decoder_passes": "one",
    "model.dynamics": "learned",
    "model.dynamics_input": "predicted",
    "model.dynamics_start": "complete",
    "model.dynamics_layers": 1,
    "model.unroll": "record",
    "model.rhythm_unit": "seconds",
    "model.rhythm_steps": "seconds",
    "model.rhythm_positions": 0,
    "model.structure": "mean",
    "model.lead_sizes": False,
    "model.beat_modes": [0, 0],
    "model.patterns": 0,
    "model.beat_levels": 0,
    "model.record_token": 0,
    "model.embedding_norm": False,
    "model.stitch": False,
    "model.refine": 0,
    "model.padding": "ignored",
    "model.norm_momentum": 0.9,
    "model.norm_epsilon": 1e-5,
    "loss.ecg_source": "predicted",
    "loss.vcg_source": "encoded",
    "loss.lambda_base": 0.0,
    "loss.lambda_view": 0.0,
}


def _fold(key: jax.Array | None, number: int) -> jax.Array | None:
    """The key of one block's dropout; no key outside training."""
    return None if key is None else jax.random.fold_in(key, number)


def _conv(features: int, width: int, stride: int, dtype, name: str) -> nn.Conv:
    return nn.Conv(
        features, (width,), stride, padding=[(width // 2, width // 2)], dtype=dtype, name=name
    )


def _norm(kind: str, x: jax.Array, valid: jax.Array, train: bool, dtype, name: str) -> jax.Array:
    """Batch norm over valid beats, or layer norm; x [m,p,c], valid [m]."""
    if kind == "layer":
        return nn.LayerNorm(epsilon=1e-5, dtype=dtype, name=name)(x)
    norm = nn.BatchNorm(
        use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=dtype, name=name
    )
    return norm(x, mask=valid[:, None, None])


class _Pair(nn.Module):
    """conv-norm-GELU-dropout-conv-norm."""

    features: int
    stride: int
    width: int
    norm: str
    dropout: float
    exact: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, key: jax.Array | None) -> jax.Array:
        train = key is not None
        x = _conv(self.features, self.width, self.stride, self.dtype, "conv1")(x)
        x = nn.gelu(
            _norm(self.norm, x, valid, train, self.dtype, "norm1"), approximate=not self.exact
        )
        x = nn.Dropout(self.dropout)(x, deterministic=not train, rng=key)
        x = _conv(self.features, self.width, 1, self.dtype, "conv2")(x)
        return _norm(self.norm, x, valid, train, self.dtype, "norm2")


class _Residual(nn.Module):
    """A pair and its shortcut; `up` doubles the samples first (decoder), else the shortcut has a
    norm (encoder)."""

    pair: _Pair
    up: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, key: jax.Array | None) -> jax.Array:
        pair = self.pair
        if self.up:
            x = jax.image.resize(x, (x.shape[0], 2 * x.shape[1], x.shape[2]), "linear")
        y = pair(x, valid, key)
        if self.up:
            x = _conv(pair.features, 1, 1, pair.dtype, "shortcut")(x)
        elif pair.stride != 1 or x.shape[-1] != pair.features:
            x = _conv(pair.features, 1, pair.stride, pair.dtype, "shortcut_conv")(x)
            x = _norm(pair.norm, x, valid, key is not None, pair.dtype, "shortcut_norm")
        return nn.gelu(x + y, approximate=not pair.exact)


class _Encoder(nn.Module):
    """Lifted beats [m,p,k] -> tokens [m,d]."""

    config: FrozenConfigDict  # config.model

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, key: jax.Array | None) -> jax.Array:
        c = self.config
        dtype, exact = jnp.dtype(c.dtype), c.gelu_exact
        x = _conv(c.stem_features, c.encoder_width, 2, dtype, "stem_conv")(x)
        x = nn.gelu(
            _norm(c.norm, x, valid, key is not None, dtype, "stem_norm"), approximate=not exact
        )
        for stage, (features, blocks) in enumerate(
            zip(c.stage_features, c.stage_blocks, strict=True)
        ):
            for block in range(blocks):
                stride = 2 if block == 0 else 1
                pair = _Pair(
                    features, stride, c.encoder_width, c.norm, c.dropout, exact, dtype, parent=None
                )
                x = _Residual(pair, name=f"stage{stage}_block{block}")(
                    x, valid, _fold(key, 100 * stage + block)
                )
        return nn.Dense(c.token_dim, name="token")(x.astype(jnp.float32).mean(axis=1))


class _Decoder(nn.Module):
    """Tokens [m,d] -> beats [m,p,k]."""

    config: FrozenConfigDict
    axes: int = 3  # k

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, key: jax.Array | None) -> jax.Array:
        c = self.config
        dtype, exact, train = jnp.dtype(c.dtype), c.gelu_exact, key is not None
        x = nn.Dense(SEED_LENGTH * c.decoder_seed_features, dtype=dtype, name="seed")(x)
        x = x.reshape(-1, SEED_LENGTH, c.decoder_seed_features)
        x = _norm(c.norm, x, valid, train, dtype, "seed_norm")
        for k, features in enumerate(c.decoder_features):
            pair = _Pair(features, 1, c.decoder_width, c.norm, c.dropout, exact, dtype, parent=None)
            x = _Residual(pair, up=True, name=f"up{k}")(x, valid, _fold(key, k))
        x = _conv(c.decoder_features[-1], c.decoder_width, 1, dtype, "out_conv")(x)
        x = nn.gelu(_norm(c.norm, x, valid, train, dtype, "out_norm"), approximate=not exact)
        return _conv(self.axes, 1, 1, dtype, "out")(x).astype(jnp.float32)


class PlainLVCG(nn.Module):
    """Network from library modules; called like it, on batches with one record per group. The
    geometry is fixed."""

    config: FrozenConfigDict  # the whole config

    loss_terms = staticmethod(losses.loss_terms)

    def setup(self):
        c, geometry = self.config.model, self.config.geometry
        if geometry.learnable:
            raise ValueError("the plain model has no learnable geometry")
        directions = lead_matrix(as_geometry(geometry.matrix))
        self.encoder, self.decoder = _Encoder(c), _Decoder(c, directions.shape[1])
        # Temporal module and rhythm encoder are made of library modules already.
        self.temporal = TemporalModule(parts.Dynamics(state_dim=c.state_dim), c.token_dim)
        sizes = (c.rhythm_dim, c.rhythm_hidden, c.rhythm_basis, c.rhythm_heads)
        rhythm = parts.Rhythm(*sizes, max_log_ratio=c.rhythm_max_log_ratio)
        self.rhythm = RhythmEncoder(rhythm, gelu_exact=c.gelu_exact)
        if self.config.loss.lambda_rhythm > 0:
            self.head = RhythmHead(c.rhythm_dim)
        self.directions = directions.astype(np.float32)
        self.table = lift_table(directions, geometry.eps).astype(np.float32)

    def _encode(self, batch: Batch, visible: jax.Array, key: jax.Array | None):
        """Heart vector [b,n,p,k], tokens [b,n,d], their mask [b,n], the beats that are predicted
        [b,n], predicted tokens [b,n,d], last state [b,h]."""
        b, n, _, p = batch["beats"].shape
        shown = visible_leads(visible)[..., None]  # [b,1,12,1]
        beats = jnp.where(shown, batch["beats"].astype(jnp.float32), 0.0)
        vcg = jnp.einsum("bkl,bnlp->bnpk", jnp.asarray(self.table)[visible[:, 0]], beats)
        mask = beat_mask(batch["num_beats"][:, 0], n)
        tokens = self.encoder(vcg.reshape(b * n, p, -1), mask.reshape(-1), key).reshape(b, n, -1)
        tokens = jnp.where(mask[..., None], tokens, 0.0)
        whole = mask & batch["complete"] & (jnp.arange(n) > 0)
        first = jnp.where(whole.any(1), jnp.argmax(whole, axis=1), 0)
        modelled = mask & (jnp.arange(n) >= first[:, None])
        predicted, last = self.temporal(tokens, modelled)
        return vcg, tokens, mask, modelled, predicted, last

    def _rr(self, batch: Batch, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config.model
        seen = mask & batch["complete"] if c.rhythm_intervals == "complete" else mask
        if c.rhythm_max_rr:
            seen &= batch["length"] <= c.rhythm_max_rr * self.config.preprocess.rate
        return jnp.where(mask, batch["length"], 0).astype(
            jnp.float32
        ) / self.config.preprocess.rate, seen

    def __call__(
        self, batch: Batch, visible: jax.Array, key: jax.Array | None, max_beats: int
    ) -> dict[str, jax.Array]:
        """What Network gives, for g = b, r = 1, m = n = max_beats."""
        vcg, tokens, mask, modelled, predicted, _ = self._encode(batch, visible, key)
        b, n, d = tokens.shape
        both = jnp.concatenate([tokens, predicted]).reshape(2 * b * n, d)
        valid = jnp.concatenate([mask, modelled]).reshape(-1)
        decoded = self.decoder(both, valid, _fold(key, 2))
        own, following = decoded.reshape(2, *vcg.shape)
        outputs = {
            "tokens": tokens[:, None], "predicted": predicted[:, None], "mask": mask[:, None],
            "modelled": modelled[:, None],
            "transitions": (modelled[:, 1:] & modelled[:, :-1])[:, None],
            "row": jnp.zeros((b, n), jnp.int32), "valid": mask, "vcg": vcg, "vcg_decoded": own,
            "ecg": jnp.einsum("lk,bnpk->bnlp", self.directions, following),
        }  # fmt: skip
        rr, seen = self._rr(batch, mask)
        if self.config.loss.lambda_rhythm > 0:
            share = self.config.loss.rhythm_hidden_share
            hide_key = jax.random.key(0) if key is None else jax.random.fold_in(key, 1)
            draw = jax.vmap(lambda k: jax.random.uniform(k, (n,)))
            hidden = seen & (draw(record_keys(hide_key, batch["uid"]).reshape(-1)) < share)
            ratio = log_rr_ratio(rr, seen, self.config.model.rhythm_max_log_ratio)
            outputs |= {"rr_hidden": hidden, "rr_ratio_true": ratio}
            outputs["rr_statistics_true"] = rr_statistics(rr, seen)
            outputs["rr_ratio"], outputs["rr_statistics"] = self.head(
                self.rhythm(rr, seen, hidden), n
            )
        elif self.is_initializing():
            self.rhythm(rr, seen)
        return outputs

    def embed(self, batch: Batch, visible: jax.Array, max_beats: int) -> dict[str, jax.Array]:
        """The parts of the embedding, each [b,1,.]."""
        _, tokens, mask, _, _, last = self._encode(batch, visible, None)
        structure = masked_mean(tokens, mask[..., None], 1)
        parts = {
            "structure": structure,
            "dynamics": last,
            "rhythm": self.rhythm(*self._rr(batch, mask)),
        }
        return {name: part[:, None] for name, part in parts.items()}


def unknown_fields(config: ConfigDict) -> list[str]:
    """Fields of a config whose values the plain model does not know."""
    fields = flatten(config)
    return [f"{name}={fields[name]}" for name, value in KNOWN.items() if fields[name] != value]


def make_plain_model(config: ConfigDict) -> PlainLVCG:
    """The plain model that a config describes, as config.make_model makes ours."""
    if unknown_fields(config):
        raise ValueError(f"the plain model does not know {', '.join(unknown_fields(config))}")
    return PlainLVCG(FrozenConfigDict(config))


def pad_batch(batch: Batch, max_beats: int) -> Batch:
    """A packed batch [g,...] as one with one record per group and `max_beats` slots: arrays
    [g*r,n,...] and [g*r,1,...]."""
    records = list(unpack(batch))
    padded = empty((len(records),), max_beats, 1, batch["beats"].shape[-1])
    for group, record in enumerate(records):
        fill(padded, [record], (group,))
    return padded
