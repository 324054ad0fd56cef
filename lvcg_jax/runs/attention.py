"""Attention over the beats of a record: what an attention head (lvcg_jax/probe/attention.py learns
it) adds to the scores of a linear layer.

Each of some heads has a query of its own, which says how much every beat counts; the tokens,
averaged with these weights, are projected to a few values for each head. Values and facts of the
record go through one hidden layer to an output for each class.

Beside each token stand the R-R interval of the beat, of the one before and of the one after (log
ratio to the mean), which of these are whole intervals, and the beat's place; facts of the record
are statistics of its R-R intervals and the leads' sizes in mV.

Axis letters: m row, b row of a batch, n beat, d feature of a beat, f feature of a record, h head,
k value of a head, c class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import mask_leads
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.model.masking import beat_mask
from lvcg_jax.model.pooling import log_lead_sizes
from lvcg_jax.model.rhythm import log_rr_ratio, rr_difference_statistics, rr_statistics

SCORE_ROWS = 1024  # rows that are computed at once
MAX_LOG_RATIO = 2.0  # of an R-R interval to the mean
PLACES = 20  # beats; the place of one is its number as a share of these
SCALES = ("token_mean", "token_scale", "record_mean", "record_scale")


@dataclass(frozen=True)
class Setting:
    """One choice of the sizes and of how they are learnt."""

    heads: int
    values: int = 256  # numbers that all heads give together
    hidden: int = 128
    dropout: float = 0.5
    weight_decay: float = 0.1
    learning_rate: float = 2e-3


@dataclass(frozen=True)
class Facts:
    """What windows say of each row beside its tokens."""

    num_beats: np.ndarray  # [m]
    beat: np.ndarray  # [m,n,7]
    record: np.ndarray  # [m,f]


@dataclass(frozen=True)
class BeatInputs:
    """All that attention reads of some rows."""

    record: np.ndarray  # [m,f] facts of the record
    tokens: np.ndarray  # [m,n,d] float16: tokens with facts of the beat; zeros where there is none
    num_beats: np.ndarray  # [m]

    def take(self, rows: np.ndarray) -> "BeatInputs":
        """Some rows, in this order."""
        return BeatInputs(self.record[rows], self.tokens[rows], self.num_beats[rows])


def facts_of(windows: Sequence[Mapping[str, Any]], preprocess: Preprocess) -> Facts:
    """R-R intervals and lead sizes of windows (see lvcg_jax/data/windows.py)."""
    counts = np.array([len(window["length"]) for window in windows], np.int32)
    shape = (len(windows), preprocess.max_beats)
    there = np.arange(shape[1]) < counts[:, None]
    rr, complete = np.zeros(shape, np.float32), np.zeros(shape, bool)
    rr[there] = np.concatenate([window["length"] for window in windows]) / preprocess.rate
    complete[there] = np.concatenate([window["complete"] for window in windows])
    scale = np.array([window["scale"] for window in windows], np.float32)
    leads = mask_leads([window["visible"] for window in windows])
    # beside a beat: its interval, the one before and the one after, and where it stands
    ratio = np.asarray(log_rr_ratio(rr, complete, MAX_LOG_RATIO)) * complete
    place = np.broadcast_to(np.arange(shape[1]) / PLACES, shape)
    beat = np.stack([*_with_neighbours(ratio), *_with_neighbours(complete), place], axis=-1)
    # beside a record: how its intervals vary, and the leads' sizes
    statistics = np.asarray(rr_statistics(rr, complete))
    record = [
        statistics,
        np.log(np.maximum(statistics[:, :1], 0.1)),
        rr_difference_statistics(rr, complete),
        log_lead_sizes(scale, leads, jnp.asarray(lead_matrix(preprocess.geometry))),
    ]
    return Facts(counts, beat, np.concatenate(record, axis=1).astype(np.float32))


def _with_neighbours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of beats [m,n] -> the same, those of the beat before and of the beat after; 0 at the
    ends."""
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1)))
    return padded[:, 1:-1], padded[:, :-2], padded[:, 2:]


def join_tokens(facts: Facts, tokens: np.ndarray) -> BeatInputs:
    """Facts of some rows with the tokens [sum of num_beats,d] of their beats, row after row."""
    m, n, more = facts.beat.shape
    size = tokens.shape[1]
    there = np.arange(n) < facts.num_beats[:, None]
    joined = np.zeros((m, n, size + more), np.float16)
    joined[there, :size] = tokens
    joined[there, size:] = facts.beat[there]
    if not np.isfinite(joined).all():
        raise InputError("beat tokens are not finite, or too large for 16 bits")
    return BeatInputs(facts.record, joined, facts.num_beats)


class Network(nn.Module):
    """What beats and facts of a record add to the scores of a linear layer.

    A head's learned query and key matrix only ever act as their product, one vector of the size of
    a token; so that is what is learnt. Values are linear, so tokens are averaged first.
    """

    setting: Setting
    classes: int

    @nn.compact
    def __call__(
        self, tokens: jax.Array, mask: jax.Array, record: jax.Array, train: bool
    ) -> jax.Array:
        """Tokens [b,n,d] with their mask [b,n] and features [b,f], all standardised -> [b,c]."""
        s, d = self.setting, tokens.shape[-1]
        query = self.param("query", nn.initializers.normal(1.0), (d, s.heads))
        score = tokens @ query / np.sqrt(d)  # [b,n,h]
        weight = jax.nn.softmax(score, axis=1, where=mask[..., None])
        pooled = jnp.einsum("bnh,bnd->bhd", weight, tokens)
        kernel = nn.initializers.lecun_normal(in_axis=1, out_axis=2, batch_axis=0)
        value = self.param("value", kernel, (s.heads, d, s.values // s.heads))
        values = jnp.einsum("bhd,hdk->bhk", pooled, value).reshape(len(tokens), -1)
        x = jnp.concatenate([values, record], axis=-1)
        x = nn.Dropout(s.dropout, deterministic=not train)(x)
        x = jax.nn.gelu(nn.Dense(s.hidden)(x))
        x = nn.Dropout(s.dropout, deterministic=not train)(x)
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(x)


def initial(network: Network, inputs: BeatInputs, seed: int) -> dict:
    """Parameters before any learning, for rows like these."""
    n, d = inputs.tokens.shape[1:]
    shapes = np.zeros((1, n, d)), np.ones((1, n), bool), inputs.record[:1]
    return network.init(jax.random.key(seed), *shapes, False)["params"]


def apply_network(
    params, batch: dict, scales: dict, network: Network, key: jax.Array | None
) -> jax.Array:
    """The output [b,c] for a batch; with a key there is dropout."""
    mask = beat_mask(batch["num_beats"], batch["tokens"].shape[1])
    tokens = (batch["tokens"].astype(jnp.float32) - scales["token_mean"]) / scales["token_scale"]
    tokens = jnp.where(mask[..., None], tokens, 0.0)
    record = (batch["record"] - scales["record_mean"]) / scales["record_scale"]
    rngs = None if key is None else {"dropout": key}
    return network.apply({"params": params}, tokens, mask, record, key is not None, rngs=rngs)


_apply = jax.jit(partial(apply_network, key=None), static_argnames="network")


def batch_of(inputs: BeatInputs, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Some rows, as `apply_network` takes them."""
    return {name: getattr(inputs, name)[rows] for name in ("tokens", "num_beats", "record")}


def added_scores(
    params, network: Network, scales: dict, inputs: BeatInputs, rows: np.ndarray
) -> np.ndarray:
    """The output [m,c] for some rows; the last batch is filled up by repeated rows."""
    found = []
    for start in range(0, len(rows), SCORE_ROWS):
        some = np.resize(rows[start : start + SCORE_ROWS], SCORE_ROWS)
        found.append(_apply(params, batch_of(inputs, some), scales, network=network))
    return np.concatenate(found)[: len(rows)].astype(np.float64)


@dataclass(frozen=True)
class Attention:
    """What was learnt, as a head keeps it."""

    setting: Setting
    share: float  # of the output, that is added to the scores of the linear layer
    params: dict
    scales: dict[str, np.ndarray]  # SCALES, of what is read

    def __call__(self, inputs: BeatInputs) -> np.ndarray:
        """What is added to the scores of these rows, [m,c]."""
        network = Network(self.setting, len(self.params["Dense_1"]["bias"]))
        rows = np.arange(len(inputs.num_beats))
        return self.share * added_scores(self.params, network, self.scales, inputs, rows)

    def facts(self) -> dict[str, Any]:
        return {"setting": asdict(self.setting), "share": self.share}

    def tensors(self) -> dict[str, np.ndarray]:
        """All arrays by name; `from_tensors` puts them together again."""
        params = flatten_dict(jax.device_get(self.params), sep="/")
        return {f"attention/{name}": np.asarray(x) for name, x in (params | self.scales).items()}

    @classmethod
    def from_tensors(cls, facts: dict, tensors: dict[str, np.ndarray], classes: int) -> "Attention":
        """The inverse of `facts` and `tensors`; a ValueError if the arrays do not fit together."""
        mine = {
            name.removeprefix("attention/"): x
            for name, x in tensors.items()
            if name.startswith("attention/")
        }
        scales = {name: mine.pop(name) for name in SCALES}
        setting, (d,), (f,) = Setting(**facts["setting"]), *(scales[n].shape for n in SCALES[::2])
        one = BeatInputs(np.zeros((1, f)), np.zeros((1, 1, d)), np.ones(1))
        expected = jax.eval_shape(lambda: initial(Network(setting, classes), one, 0))
        if {n: x.shape for n, x in flatten_dict(expected, sep="/").items()} != {
            n: x.shape for n, x in mine.items()
        }:
            raise ValueError("its attention is of a wrong shape")
        return cls(setting, facts["share"], unflatten_dict(mine, sep="/"), scales)
