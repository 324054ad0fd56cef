"""The same network in plain PyTorch: the other baseline of the bench.

It is written as one would write it first: library modules, channels before samples, records padded
to the same number of beats, with masks. Modules have the names of those of Network, so that
`load_variables` takes a JAX tree, and a test holds both to the same numbers.

A batch has one record per group, as plain_model.pad_batch makes it. All padded slots go through
encoder and decoder, and count in the batch norms of a training step, as they do in the authors'
code. With `packed`, encoder and decoder see valid beats only: the statistics are then those of
Network. Axis letters are those of lvcg_jax/model.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from torch import Tensor, nn

from data_prep.ecg.geometry import lead_matrix, lift_table
from data_prep.ecg.leads import LEADS
from lvcg_jax.config.inputs import as_geometry
from lvcg_jax.model.decoder import SEED_LENGTH

Tensors = Mapping[str, Tensor]
# what PyTorch calls arrays of a module
KINDS = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def to_tensors(batch: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """What the model reads of a padded batch: arrays [b,n,...], and [b] of records."""
    beats = {name: torch.tensor(batch[name]) for name in ("beats", "length", "complete")}
    records = {name: torch.tensor(batch[name][:, 0]).long() for name in ("num_beats", "lead_mask")}
    return beats | records


def visible_leads(mask: Tensor) -> Tensor:
    """Lead bit masks [...] -> booleans [...,12]."""
    return (mask[..., None] >> torch.arange(len(LEADS))) & 1 == 1


def masked_mean(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Mean of x where mask is true, 0 where nothing is."""
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1)


def safe_std(variance: Tensor) -> Tensor:
    """Square root with a zero gradient where the variance is zero."""
    return torch.where(variance > 1e-12, variance.clamp(min=1e-12).sqrt(), 0.0)


class Gelu(nn.GELU):
    def __init__(self, exact: bool):
        super().__init__("none" if exact else "tanh")


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [m,c,p]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def _norm(c: ConfigDict, features: int) -> nn.Module:
    return ChannelNorm(features) if c.norm == "layer" else nn.BatchNorm1d(features)


def _conv(inputs: int, features: int, width: int, stride: int = 1) -> nn.Conv1d:
    return nn.Conv1d(inputs, features, width, stride, padding=width // 2)


class Pair(nn.Module):
    """conv-norm-GELU-dropout-conv-norm."""

    def __init__(self, c: ConfigDict, inputs: int, features: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, features, width, stride), _norm(c, features)
        self.conv2, self.norm2 = _conv(features, features, width), _norm(c, features)
        self.gelu, self.dropout = Gelu(c.gelu_exact), nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.gelu(self.norm1(self.conv1(x))))
        return self.norm2(self.conv2(x))


class EncoderBlock(nn.Module):
    """A pair plus a shortcut, which has a convolution and a norm where the shape changes."""

    def __init__(self, c: ConfigDict, inputs: int, features: int, stride: int):
        super().__init__()
        self.pair = Pair(c, inputs, features, c.encoder_width, stride)
        self.changes = stride != 1 or inputs != features
        if self.changes:
            self.shortcut_conv = _conv(inputs, features, 1, stride)
            self.shortcut_norm = _norm(c, features)
        self.gelu = Gelu(c.gelu_exact)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut_norm(self.shortcut_conv(x)) if self.changes else x
        return self.gelu(shortcut + self.pair(x))


class Encoder(nn.Module):
    """Lifted beats [m,k,p] -> tokens [m,d]."""

    def __init__(self, c: ConfigDict, axes: int):
        super().__init__()
        self.stem_conv = _conv(axes, c.stem_features, c.encoder_width, 2)
        self.stem_norm, self.gelu = _norm(c, c.stem_features), Gelu(c.gelu_exact)
        inputs, self.names = c.stem_features, []
        for stage, (features, blocks) in enumerate(
            zip(c.stage_features, c.stage_blocks, strict=True)
        ):
            for block in range(blocks):
                self.names.append(f"stage{stage}_block{block}")
                stride = 2 if block == 0 else 1
                self.add_module(self.names[-1], EncoderBlock(c, inputs, features, stride))
                inputs = features
        self.token = nn.Linear(inputs, c.token_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gelu(self.stem_norm(self.stem_conv(x)))
        for name in self.names:
            x = self.get_submodule(name)(x)
        return self.token(x.mean(-1))


class DecoderBlock(nn.Module):
    """x2 linear up-sampling, then a pair with a 1x1 shortcut."""

    def __init__(self, c: ConfigDict, inputs: int, features: int):
        super().__init__()
        self.pair = Pair(c, inputs, features, c.decoder_width, 1)
        self.shortcut, self.gelu = _conv(inputs, features, 1), Gelu(c.gelu_exact)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="linear")
        return self.gelu(self.shortcut(x) + self.pair(x))


class Decoder(nn.Module):
    """Tokens [m,d] -> beats [m,k,p]."""

    def __init__(self, c: ConfigDict, axes: int):
        super().__init__()
        self.seed = nn.Linear(c.token_dim, c.decoder_seed_features * SEED_LENGTH)
        self.seed_norm, self.gelu = _norm(c, c.decoder_seed_features), Gelu(c.gelu_exact)
        inputs, self.names = c.decoder_seed_features, []
        for number, features in enumerate(c.decoder_features):
            self.names.append(f"up{number}")
            self.add_module(self.names[-1], DecoderBlock(c, inputs, features))
            inputs = features
        self.out_conv = _conv(inputs, inputs, c.decoder_width)
        self.out_norm, self.out = _norm(c, inputs), _conv(inputs, axes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.seed_norm(self.seed(x).unflatten(1, (-1, SEED_LENGTH)))
        for name in self.names:
            x = self.get_submodule(name)(x)
        return self.out(self.gelu(self.out_norm(self.out_conv(x))))


class Temporal(nn.Module):
    """A GRU that starts from the first token and is fed its own predictions."""

    def __init__(self, c: ConfigDict):
        super().__init__()
        self.start = nn.Linear(c.token_dim, c.state_dim)
        self.readout = nn.Linear(c.state_dim, c.token_dim)
        self.gru = nn.GRUCell(c.token_dim, c.state_dim)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [b,n,d] and the beats to run over [b,n] -> predicted tokens, last state [b,h]."""
        records, first = torch.arange(len(tokens)), mask.int().argmax(1)
        state, predicted = self.start(tokens[records, first]), []
        moves = mask & F.pad(mask[:, 1:], (0, 1))  # where another beat follows
        for n in range(tokens.shape[1]):
            predicted.append(self.readout(state))
            state = torch.where(moves[:, n, None], self.gru(predicted[-1], state), state)
        return torch.stack(predicted, 1), state


def rr_statistics(rr: Tensor, mask: Tensor) -> Tensor:
    """Intervals [b,n] -> mean, standard deviation, range, coefficient of variation: [b,4]."""
    mean = masked_mean(rr, mask, 1)
    std = safe_std(masked_mean((rr - mean[:, None]) ** 2, mask, 1))
    high = rr.masked_fill(~mask, -torch.inf).amax(1)
    low = rr.masked_fill(~mask, torch.inf).amin(1)
    span = torch.where(mask.any(1), high - low, 0.0)
    return torch.stack([mean, std, span, std / mean.clamp(min=1e-3)], -1)


def rr_difference_statistics(rr: Tensor, mask: Tensor) -> Tensor:
    """Successive differences -> their mean and standard deviation: [b,2]."""
    both, steps = mask[:, 1:] & mask[:, :-1], rr.diff(dim=1)
    mean = masked_mean(steps, both, 1)
    std = safe_std(masked_mean((steps - mean[:, None]) ** 2, both, 1))
    return torch.stack([mean, std], -1)


def log_rr_ratio(rr: Tensor, mask: Tensor, largest: float) -> Tensor:
    """log(r_n / mean), clipped to +-largest, 0 where masked: [b,n]."""
    mean = masked_mean(rr, mask, 1).clamp(min=1e-3)[:, None]
    ratio = torch.where(mask, rr, mean) / mean
    return ratio.clamp(min=1e-3).log().clamp(-largest, largest)


def sinusoidal_basis(x: Tensor, size: int) -> Tensor:
    """sin(k pi x), cos(k pi x) for k = 1..size: [...] -> [...,2*size]."""
    angle = x[..., None] * (torch.pi * torch.arange(1, size + 1))
    return torch.cat([angle.sin(), angle.cos()], -1)


class AttentionPool(nn.Module):
    """One learned query attends over the valid slots; an empty record pools to zero."""

    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.heads, self.query = heads, nn.Parameter(torch.zeros(channels))
        self.q, self.k, self.v, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [b,n,c], mask [b,n] -> [b,c]."""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)) for y in (self.q(self.query), self.k(x), self.v(x))
        )
        score = torch.einsum("hc,bnhc->bnh", q, k) / q.shape[-1] ** 0.5
        weight = score.masked_fill(~mask[..., None], -1e9).softmax(1) * mask[..., None]
        return self.out(torch.einsum("bnh,bnhc->bhc", weight, v).flatten(1))


class Rhythm(nn.Module):
    """R-R intervals in seconds [b,n] with mask -> e_rhythm [b,c]."""

    def __init__(self, c: ConfigDict):
        super().__init__()
        self.basis_size, self.largest = c.rhythm_basis, c.rhythm_max_log_ratio
        hidden, dim = c.rhythm_hidden, c.rhythm_dim
        self.stats1, self.stats2 = nn.Linear(4, hidden), nn.Linear(hidden, hidden)
        self.basis = nn.Linear(2 * c.rhythm_basis, hidden)
        self.pool = AttentionPool(hidden, c.rhythm_heads)
        self.differences = nn.Linear(2, hidden)
        self.fuse1, self.fuse2 = nn.Linear(3 * hidden, dim), nn.Linear(dim, dim)
        self.gelu = Gelu(c.gelu_exact)

    def forward(self, rr: Tensor, mask: Tensor, hidden: Tensor | None = None) -> Tensor:
        """`hidden` [b,n] marks intervals that the sequence branch must not see."""
        seen = mask if hidden is None else mask & ~hidden
        stats = self.stats2(self.gelu(self.stats1(rr_statistics(rr, mask))))
        slots = self.basis(sinusoidal_basis(log_rr_ratio(rr, mask, self.largest), self.basis_size))
        steps = self.differences(rr_difference_statistics(rr, seen))
        joined = torch.cat([stats, self.pool(slots, seen), steps], -1)
        return self.fuse2(self.gelu(self.fuse1(joined)))


class RhythmHead(nn.Module):
    """Reads e_rhythm [b,c] back: each slot's log R-R ratio [b,n] and the four statistics [b,4]."""

    def __init__(self, dim: int):
        super().__init__()
        self.place, self.what = nn.Linear(8, dim), nn.Linear(dim, dim)
        self.ratio, self.statistics = nn.Linear(dim, 1), nn.Linear(dim, 4)
        self.gelu = Gelu(exact=False)

    def forward(self, rhythm: Tensor, max_beats: int) -> tuple[Tensor, Tensor]:
        where = self.place(sinusoidal_basis(torch.arange(max_beats) / 64.0, 4))
        what = self.what(rhythm)
        ratios = self.ratio(self.gelu(what[:, None] + where))[..., 0]
        return ratios, self.statistics(self.gelu(what))


class TorchLVCG(nn.Module):
    """Network in PyTorch, for the configs that the plain JAX model knows."""

    def __init__(self, config: ConfigDict, packed: bool = False):
        super().__init__()
        c = config.model
        directions = lead_matrix(as_geometry(config.geometry.matrix))
        table = lift_table(directions, config.geometry.eps)
        self.config, self.packed = config, packed
        for name, x in (("directions", directions), ("table", table)):
            self.register_buffer(name, torch.tensor(x, dtype=torch.float32), persistent=False)
        self.encoder = Encoder(c, directions.shape[1])
        self.decoder = Decoder(c, directions.shape[1])
        self.temporal, self.rhythm = Temporal(c), Rhythm(c)
        if config.loss.lambda_rhythm > 0:
            self.head = RhythmHead(c.rhythm_dim)

    def _beatwise(self, module: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
        """A module of single beats over [m,...]; with `packed`, over the valid ones alone."""
        if not self.packed:
            return module(x)
        y = module(x[valid])
        padded = y.new_zeros(len(x), *y.shape[1:])
        padded[valid] = y
        return padded

    def _encode(self, batch: Tensors, visible: Tensor) -> dict[str, Tensor]:
        """Heart vector [b,n,k,p], tokens [b,n,d] with their mask, the beats that are predicted,
        predicted tokens, last state [b,h]."""
        slots = torch.arange(batch["beats"].shape[1])
        vcg = self.table[visible][:, None] @ batch["beats"].float()
        mask = slots < batch["num_beats"][:, None]
        tokens = self._beatwise(self.encoder, vcg.flatten(0, 1), mask.flatten())
        tokens = tokens.unflatten(0, mask.shape) * mask[..., None]
        whole = mask & batch["complete"] & (slots > 0)
        modelled = mask & (slots >= whole.int().argmax(1, keepdim=True))
        predicted, state = self.temporal(tokens, modelled)
        return {"vcg": vcg, "tokens": tokens, "mask": mask, "modelled": modelled,
                "predicted": predicted, "state": state}  # fmt: skip

    def _rr(self, batch: Tensors, mask: Tensor) -> tuple[Tensor, Tensor]:
        """R-R intervals in seconds and the mask of those that count, [b,n]."""
        c, rate = self.config.model, self.config.preprocess.rate
        seen = mask & batch["complete"] if c.rhythm_intervals == "complete" else mask
        if c.rhythm_max_rr:
            seen = seen & (batch["length"] <= c.rhythm_max_rr * rate)
        return batch["length"] * mask / rate, seen

    def forward(
        self, batch: Tensors, visible: Tensor, hidden: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One view of each record, with what every loss term compares. `hidden` [b,n] are the R-R
        intervals that the rhythm term asks for; None draws them."""
        x = self._encode(batch, visible)
        both = torch.cat([x["tokens"], x["predicted"]]).flatten(0, 1)
        valid = torch.cat([x["mask"], x["modelled"]]).flatten()
        decoded = self._beatwise(self.decoder, both, valid)
        own, following = decoded.unflatten(0, (2, *x["mask"].shape))
        outputs = x | {"vcg_decoded": own, "ecg": self.directions @ following}
        if self.config.loss.lambda_rhythm > 0:
            rr, seen = self._rr(batch, x["mask"])
            if hidden is None:
                hidden = seen & (torch.rand(rr.shape) < self.config.loss.rhythm_hidden_share)
            ratio, statistics = self.head(self.rhythm(rr, seen, hidden), rr.shape[1])
            true = log_rr_ratio(rr, seen, self.config.model.rhythm_max_log_ratio)
            outputs |= {
                "rr_hidden": hidden,
                "rr_ratio_error": (ratio - true) ** 2,
                "rr_statistics_error": (statistics - rr_statistics(rr, seen)) ** 2,
            }
        return outputs

    def embed(self, batch: Tensors, visible: Tensor) -> dict[str, Tensor]:
        """The parts of the embedding, each [b,.]."""
        x = self._encode(batch, visible)
        return {
            "structure": masked_mean(x["tokens"], x["mask"][..., None], 1),
            "dynamics": x["state"],
            "rhythm": self.rhythm(*self._rr(batch, x["mask"])),
        }


def record_losses(
    outputs: Tensors, batch: Tensors, visible: Tensor, config: ConfigDict
) -> dict[str, Tensor]:
    """Every term and the weighted `loss` of each record [b]; see lvcg_jax/model/losses.py."""
    reduction, mask, modelled = config.reduction, outputs["mask"], outputs["modelled"]

    def reduced(total: Tensor, count: Tensor, size: int) -> Tensor:
        if reduction == "sum":
            return total
        if reduction == "mean":
            return total / (count * size).clamp(min=1)
        return total * mask[:, 0].sum() / count.sum().clamp(min=1)

    # hidden leads, in samples of the record
    beats, length = batch["beats"].float(), batch["length"] * modelled
    hidden = visible_leads(batch["lead_mask"] & ~visible)  # [b,12]
    error = ((outputs["ecg"] - beats) ** 2).sum(-1) * hidden[:, None]  # [b,n,12]
    total = (error.sum(-1) * length).sum(-1) / beats.shape[-1]
    ecg = reduced(total, hidden.sum(-1) * length.sum(-1), 1)

    # the heart vector of the visible leads
    error = ((outputs["vcg_decoded"] - outputs["vcg"]) ** 2).sum((-1, -2)) * mask
    vcg = reduced(error.sum(-1), mask.sum(-1), outputs["vcg"][0, 0].numel())

    # steps between tokens
    real, both = outputs["tokens"].detach(), modelled[:, 1:] & modelled[:, :-1]
    steps = outputs["predicted"].diff(dim=1), real.diff(dim=1)
    error = F.huber_loss(*steps, reduction="none", delta=config.huber_delta).sum(-1) * both
    temp = reduced(error.sum(-1), both.sum(-1), real.shape[-1])

    terms = {"ecg": ecg, "vcg": vcg, "temp": temp}
    loss = config.lambda_ecg * ecg + config.lambda_vcg * vcg + config.lambda_temp * temp
    if config.lambda_rhythm > 0:
        asked, ratios = outputs["rr_hidden"], outputs["rr_ratio_error"]
        statistics = outputs["rr_statistics_error"]
        terms["rhythm"] = (
            (ratios * asked).sum(-1) + statistics.sum(-1)
            if reduction == "sum"
            else masked_mean(ratios, asked, 1) + statistics.mean(-1)
        )
        loss = loss + config.lambda_rhythm * terms["rhythm"]
    return {"loss": loss, **terms}


def load_variables(model: TorchLVCG, variables: Mapping) -> None:
    """Gives the model the parameters and norm statistics of a tree of Network."""
    flat = flatten_dict(variables["params"]) | flatten_dict(variables.get("batch_stats", {}))
    arrays = {path: np.asarray(x) for path, x in flat.items()}
    state, gates = {}, ("temporal", "step", "gru")
    for (*path, kind), x in arrays.items():
        if tuple(path[:3]) == gates:
            continue
        if path[-1:] == ["seed"]:  # samples before channels in JAX
            x = x.reshape(*x.shape[:-1], SEED_LENGTH, -1).swapaxes(-1, -2).reshape(x.shape)
        name = ".".join([*(part for part in path if part != "step"), KINDS.get(kind, kind)])
        state[name] = x.T if kind == "kernel" else x

    # reset, update and new of the cell; of the state's biases flax has only the last
    for side, letter in (("ih", "i"), ("hh", "h")):
        three = [arrays[(*gates, letter + gate, "kernel")].T for gate in "rzn"]
        state[f"temporal.gru.weight_{side}"] = np.concatenate(three)
    state["temporal.gru.bias_ih"] = np.concatenate(
        [arrays[(*gates, "i" + gate, "bias")] for gate in "rzn"]
    )
    new = arrays[(*gates, "hn", "bias")]
    state["temporal.gru.bias_hh"] = np.concatenate([np.zeros(2 * len(new), new.dtype), new])
    tensors = {name: torch.tensor(np.ascontiguousarray(x)) for name, x in state.items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unknown:
        raise ValueError(f"no values for {missing}, no place for {unknown}")
