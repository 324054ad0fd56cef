"""Attention probe: learned queries over the frozen beat tokens of a record, beside the linear
probe.

The linear probe reads one vector of a record, in which its beats are averaged already. Here each of
some heads has a query of its own, which says how much every beat counts; the tokens, averaged with
these weights, are projected to a few values for each head. Values and facts of the record go
through one hidden layer to an output for each class. A share of it, chosen by validation, is added
to the scores of protocol `ridge` on the embedding. The output starts at zero, so the start is the
linear probe, which is kept where nothing beats it on the validation rows.

Beside each token stand the R-R interval of the beat, of the one before and of the one after (log
ratio to the mean), which of these are whole intervals, and the beat's place; facts of the record
are statistics of its R-R intervals and the leads' sizes in mV. All of this is in the shards. The
embedding does not enter the hidden layer: in trials within the training folds of PTB-XL the gain
was no smaller without it.

AdamW on the binary cross-entropy of all classes, with dropout; what is judged and kept is a running
average of the weights. An epoch is one pass over the labelled rows, and at least ten steps; five
epochs without a better validation macro AUROC end it. Validation also chooses among SETTINGS.

Axis letters: m row, b row of a batch, n beat, d feature of a beat, f feature of a record, h head,
k value of a head, c class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import mask_leads
from lvcg_jax.data.windows import dataset_windows
from lvcg_jax.embed.table import Table
from lvcg_jax.model.masking import beat_mask
from lvcg_jax.model.pooling import log_lead_sizes
from lvcg_jax.model.rhythm import log_rr_ratio, rr_difference_statistics, rr_statistics
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.stats import auroc
from lvcg_jax.stats.scaling import mean_and_scale

BATCH_SIZE, SCORE_ROWS, MIN_STEPS, EPOCHS, PATIENCE = 128, 1024, 10, 20, 5
SHARES = (0.3, 0.6, 1.0)  # of the head's output, to choose from
AVERAGE = 0.99  # share of the running average that a step keeps
MAX_LOG_RATIO = 2.0  # of an R-R interval to the mean


@dataclass(frozen=True)
class Setting:
    """One choice of the head's sizes and of how it learns."""

    heads: int
    values: int = 256  # numbers that all heads give together
    hidden: int = 128
    dropout: float = 0.5
    weight_decay: float = 0.1
    learning_rate: float = 2e-3


SETTINGS = (Setting(heads=4, dropout=0.3), Setting(heads=16, dropout=0.5))


@dataclass(frozen=True)
class Facts:
    """What shards know of each row of a table beside its tokens."""

    num_beats: np.ndarray  # [m]
    beat: np.ndarray  # [m,n,7]
    record: np.ndarray  # [m,f]


def read_facts(data: str | Path, table: Table) -> Facts:
    """R-R intervals and lead sizes of the rows of a table, from the shards that it was made of."""
    row_of = {key: i for i, key in enumerate(table.keys)}
    counts = np.zeros(len(row_of), np.int32)
    preprocess = ShardSet(data, next(iter(read_metadata(data)["splits"]))).preprocess
    shape = (len(row_of), preprocess.max_beats)
    rr, complete = np.zeros(shape, np.float32), np.zeros(shape, bool)
    scale, leads = np.ones((len(row_of), 12), np.float32), np.zeros((len(row_of), 12), bool)
    missing = len(row_of)
    for window in dataset_windows(data):
        row = row_of.get(f"{window['record_id']}#{window['window']}")
        if row is None:
            continue
        n = counts[row] = len(window["length"])
        rr[row, :n] = window["length"] / preprocess.rate
        complete[row, :n] = window["complete"]
        scale[row], leads[row] = window["scale"], mask_leads(window["lead_mask"])
        missing -= 1
        if not missing:
            break
    else:
        absent = table.record_id[counts == 0][0]
        raise InputError(
            f"{missing} rows of the embeddings are no windows of {data} (record {absent}):"
            " embed this data set, with a row for each window"
        )
    # beside a beat: its interval, the one before and the one after, and where it stands
    ratio = np.asarray(log_rr_ratio(rr, complete, MAX_LOG_RATIO)) * complete
    place = np.broadcast_to(np.arange(shape[1]) / shape[1], shape)
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


@dataclass(frozen=True)
class Inputs:
    """All that the attention probe reads of the rows of a table."""

    embedding: np.ndarray  # [m,e], what the linear probe reads
    parts: Sequence[int]  # sizes of its parts
    record: np.ndarray  # [m,f] facts of the record
    tokens: np.ndarray  # [m,n,d] float16: tokens with facts of the beat; zeros where there is none
    num_beats: np.ndarray  # [m]


def join_inputs(facts: Facts, embedding: np.ndarray, table: Table, keys: Sequence[str]) -> Inputs:
    """Inputs for the rows with these keys, those of `facts` and `embedding`, with the tokens of a
    table in any order."""
    if table.tokens is None:
        model = table.metadata.get("checkpoint", "this model")
        raise InputError(f"no beat tokens in the embeddings of {model}: use lvcg embed --tokens")
    counts = table.extra["num_beats"]
    row_of = {key: i for i, key in enumerate(table.keys)}
    order = np.array([row_of[key] for key in keys])
    if not np.array_equal(counts[order], facts.num_beats):
        raise InputError(
            "the embeddings were made of other beats than these shards hold: embed them again"
        )
    ends = np.cumsum(counts)
    m, n, size = *facts.beat.shape[:2], table.tokens.shape[1]
    tokens = np.zeros((m, n, size + facts.beat.shape[2]), np.float16)
    for row, i in enumerate(order):
        tokens[row, : counts[i], :size] = table.tokens[ends[i] - counts[i] : ends[i]]
    tokens[..., size:] = facts.beat
    tokens[np.arange(n) >= facts.num_beats[:, None]] = 0
    if not np.isfinite(tokens).all():
        raise InputError("beat tokens are not finite, or too large for 16 bits")
    return Inputs(embedding, table.part_sizes, facts.record, tokens, facts.num_beats)


class Head(nn.Module):
    """What beats and facts of a record add to the scores of the linear probe.

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


@cache
def make_optimizer(setting: Setting) -> optax.GradientTransformation:
    """AdamW, with decay for all matrices; cached, so that jit compiles once."""
    matrices = partial(jax.tree.map, lambda x: x.ndim > 1)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(setting.learning_rate, weight_decay=setting.weight_decay, mask=matrices),
    )


def apply_head(params, batch: dict, scales: dict, head: Head, key: jax.Array | None) -> jax.Array:
    """The head's output [b,c] for a batch; with a key there is dropout."""
    mask = beat_mask(batch["num_beats"], batch["tokens"].shape[1])
    tokens = (batch["tokens"].astype(jnp.float32) - scales["token_mean"]) / scales["token_scale"]
    tokens = jnp.where(mask[..., None], tokens, 0.0)
    record = (batch["record"] - scales["record_mean"]) / scales["record_scale"]
    rngs = None if key is None else {"dropout": key}
    return head.apply({"params": params}, tokens, mask, record, key is not None, rngs=rngs)


_apply_head = jax.jit(partial(apply_head, key=None), static_argnames="head")


@partial(jax.jit, static_argnames="head")
def train_step(params, average, opt_state, batch, scales, linear, labels, seed, step, *, head):
    """One update on a batch with scores of the linear probe and labels, [b,c] each -> parameters,
    their running average, optimiser state."""
    key = jax.random.fold_in(jax.random.key(seed), step)

    def loss(params):
        scores = linear + apply_head(params, batch, scales, head, key)
        return optax.sigmoid_binary_cross_entropy(scores, labels).mean()

    tx = make_optimizer(head.setting)
    updates, opt_state = tx.update(jax.grad(loss)(params), opt_state, params)
    params = optax.apply_updates(params, updates)
    kept = jnp.minimum(AVERAGE, step / (step + 10.0))  # the first steps are soon forgotten
    average = jax.tree.map(lambda a, p: kept * a + (1.0 - kept) * p, average, params)
    return params, average, opt_state


class AttentionFit:
    """A fit (see study.py) of the attention probe; `rows` [m] are the task's rows in the table."""

    seeded, limit = True, None

    def __init__(self, inputs: Inputs, rows: np.ndarray, settings: Sequence[Setting] = SETTINGS):
        self._inputs, self._rows, self._settings = inputs, rows, settings

    def __call__(self, rows, y, val, y_val, test, seed):
        x, (rows, val, test) = self._inputs, (self._rows[r] for r in (rows, val, test))
        # the linear probe, which is the start, and the scales of everything else
        e = x.embedding
        ridge, _ = fit_ridge(e[rows], y, e[val], y_val, seed, STRENGTHS, x.parts)
        linear = {name: ridge(e[r]) for name, r in (("train", rows), ("val", val), ("test", test))}
        beats = x.tokens[rows][np.arange(x.tokens.shape[1]) < x.num_beats[rows][:, None]]
        pairs = *mean_and_scale(beats.astype(np.float32)), *mean_and_scale(x.record[rows])
        names = ("token_mean", "token_scale", "record_mean", "record_scale")
        scales = dict(zip(names, (np.float32(a) for a in pairs), strict=True))
        # the best epoch of all settings, if one is better than the start
        best, chosen = auroc.macro_auroc(y_val, linear["val"])[0], "linear probe"
        found = linear["val"], linear["test"]
        for setting in self._settings:
            head, own, own_epoch = Head(setting, y.shape[1]), -1.0, 0
            epochs = self._epochs(head, scales, rows, linear["train"], y, seed)
            for epoch, params in enumerate(epochs, start=1):
                added = self._added(params, head, scales, val)
                tried = [(linear["val"] + share * added, share) for share in SHARES]
                values = [auroc.macro_auroc(y_val, scores)[0] for scores, _ in tried]
                value, (scores, share) = max(values), tried[int(np.argmax(values))]
                if value > best:
                    best, chosen = value, f"{setting.heads} heads, epoch {epoch}, share {share}"
                    more = self._added(params, head, scales, test)
                    found = scores, linear["test"] + share * more
                if value > own:
                    own, own_epoch = value, epoch
                elif epoch - own_epoch >= PATIENCE:
                    break
        return *found, chosen

    def _epochs(self, head: Head, scales, rows, linear, y, seed: int) -> Iterator[dict]:
        """The averaged parameters after each epoch; `linear` and y [m,c] belong to the rows."""
        n, d = self._inputs.tokens.shape[1:]
        shapes = np.zeros((1, n, d)), np.ones((1, n), bool), self._inputs.record[:1]
        params = head.init(jax.random.key(seed), *shapes, False)["params"]
        average, opt_state = params, make_optimizer(head.setting).init(params)
        linear = linear.astype(np.float32)
        # full batches: shuffled passes one after another, until the epoch is filled
        rng, step = np.random.default_rng(seed), 0
        steps = max(-(-len(rows) // BATCH_SIZE), MIN_STEPS)
        passes = -(-steps * BATCH_SIZE // len(rows))
        for _ in range(EPOCHS):
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(passes)])
            for some in order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE):
                given = self._batch(rows[some]), scales, linear[some], y[some]
                params, average, opt_state = train_step(
                    params, average, opt_state, *given, seed, step, head=head
                )
                step += 1
            yield average

    def _batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        names = ("tokens", "num_beats", "record")
        return {name: getattr(self._inputs, name)[rows] for name in names}

    def _added(self, params, head: Head, scales, rows: np.ndarray) -> np.ndarray:
        """The head's output [m,c]; the last batch is filled up by repeated rows."""
        found = []
        for start in range(0, len(rows), SCORE_ROWS):
            some = np.resize(rows[start : start + SCORE_ROWS], SCORE_ROWS)
            found.append(_apply_head(params, self._batch(some), scales, head=head))
        return np.concatenate(found)[: len(rows)].astype(np.float64)
