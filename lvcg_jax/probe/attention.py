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

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.data.windows import dataset_windows
from lvcg_jax.embed.table import Table
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.runs.attention import (
    SCALES,
    Attention,
    BeatInputs,
    Facts,
    Network,
    Setting,
    added_scores,
    apply_network,
    batch_of,
    facts_of,
    initial,
    join_tokens,
)
from lvcg_jax.stats import auroc
from lvcg_jax.stats.scaling import mean_and_scale

BATCH_SIZE, MIN_STEPS, EPOCHS, PATIENCE = 128, 10, 20, 5
SHARES = (0.3, 0.6, 1.0)  # of the head's output, to choose from
AVERAGE = 0.99  # share of the running average that a step keeps
SETTINGS = (Setting(heads=4, dropout=0.3), Setting(heads=16, dropout=0.5))


@dataclass(frozen=True)
class Inputs(BeatInputs):
    """All that the attention probe reads of the rows of a table."""

    embedding: np.ndarray  # [m,e], what the linear probe reads
    parts: Sequence[int]  # sizes of its parts


def read_facts(data: str | Path, table: Table) -> Facts:
    """R-R intervals and lead sizes of the rows of a table, from the shards that it was made of."""
    row_of = {key: i for i, key in enumerate(table.keys)}
    preprocess = ShardSet(data, next(iter(read_metadata(data)["splits"]))).preprocess
    found: dict[int, dict] = {}
    for window in dataset_windows(data):
        row = row_of.get(f"{window['record_id']}#{window['window']}")
        if row is not None:
            names = ("length", "complete", "scale", "visible")
            found[row] = {name: window[name] for name in names}
        if len(found) == len(row_of):
            break
    else:
        absent = next(i for i in range(len(row_of)) if i not in found)
        raise InputError(
            f"{len(row_of) - len(found)} rows of the embeddings are no windows of {data} (record"
            f" {table.record_id[absent]}): embed this data set, with a row for each window"
        )
    return facts_of([found[row] for row in range(len(found))], preprocess)


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
    tokens = [table.tokens[ends[i] - counts[i] : ends[i]].astype(np.float16) for i in order]
    joined = join_tokens(facts, np.concatenate(tokens))
    return Inputs(joined.record, joined.tokens, joined.num_beats, embedding, table.part_sizes)


@cache
def make_optimizer(setting: Setting) -> optax.GradientTransformation:
    """AdamW, with decay for all matrices; cached, so that jit compiles once."""
    matrices = partial(jax.tree.map, lambda x: x.ndim > 1)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(setting.learning_rate, weight_decay=setting.weight_decay, mask=matrices),
    )


@partial(jax.jit, static_argnames="network")
def train_step(params, average, opt_state, batch, scales, linear, labels, seed, step, *, network):
    """One update on a batch with scores of the linear probe and labels, [b,c] each -> parameters,
    their running average, optimiser state."""
    key = jax.random.fold_in(jax.random.key(seed), step)

    def loss(params):
        scores = linear + apply_network(params, batch, scales, network, key)
        return optax.sigmoid_binary_cross_entropy(scores, labels).mean()

    tx = make_optimizer(network.setting)
    updates, opt_state = tx.update(jax.grad(loss)(params), opt_state, params)
    params = optax.apply_updates(params, updates)
    kept = jnp.minimum(AVERAGE, step / (step + 10.0))  # the first steps are soon forgotten
    average = jax.tree.map(lambda a, p: kept * a + (1.0 - kept) * p, average, params)
    return params, average, opt_state


class AttentionFit:
    """A fit (see study.py) of the attention probe; `rows` [m] are the task's rows in the table.
    `layer` and `attention` are those of the last call; the latter is None where nothing was better
    than the linear probe."""

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
        scales = dict(zip(SCALES, (np.float32(a) for a in pairs), strict=True))
        # the best epoch of all settings, if one is better than the start
        best, chosen = auroc.macro_auroc(y_val, linear["val"])[0], "linear probe"
        found = linear["val"], linear["test"]
        self.layer, self.attention = ridge, None
        for setting in self._settings:
            network, own, own_epoch = Network(setting, y.shape[1]), -1.0, 0
            epochs = self._epochs(network, scales, rows, linear["train"], y, seed)
            for epoch, params in enumerate(epochs, start=1):
                added = added_scores(params, network, scales, x, val)
                tried = [(linear["val"] + share * added, share) for share in SHARES]
                values = [auroc.macro_auroc(y_val, scores)[0] for scores, _ in tried]
                value, (scores, share) = max(values), tried[int(np.argmax(values))]
                if value > best:
                    best, chosen = value, f"{setting.heads} heads, epoch {epoch}, share {share}"
                    more = added_scores(params, network, scales, x, test)
                    found = scores, linear["test"] + share * more
                    self.attention = Attention(setting, share, params, scales)
                if value > own:
                    own, own_epoch = value, epoch
                elif epoch - own_epoch >= PATIENCE:
                    break
        return *found, chosen

    def _epochs(self, network: Network, scales, rows, linear, y, seed: int) -> Iterator[dict]:
        """The averaged parameters after each epoch; `linear` and y [m,c] belong to the rows."""
        params = initial(network, self._inputs, seed)
        average, opt_state = params, make_optimizer(network.setting).init(params)
        linear = linear.astype(np.float32)
        # full batches: shuffled passes one after another, until the epoch is filled
        rng, step = np.random.default_rng(seed), 0
        steps = max(-(-len(rows) // BATCH_SIZE), MIN_STEPS)
        passes = -(-steps * BATCH_SIZE // len(rows))
        for _ in range(EPOCHS):
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(passes)])
            for some in order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE):
                given = batch_of(self._inputs, rows[some]), scales, linear[some], y[some]
                params, average, opt_state = train_step(
                    params, average, opt_state, *given, seed, step, network=network
                )
                step += 1
            yield average
