"""Fine-tuning for the probe: a linear head on the frozen embedding first, then encoder and head
together.

Head: protocol `ridge` on the stored embeddings, which are exactly what the frozen model computes.
Then AdamW on the binary cross-entropy of all classes, with the encoder at a tenth of the head's
rate and gradients clipped to norm 1; an epoch is one pass over the labelled rows, and at least ten
steps. The epoch with the best validation macro AUROC is kept, epoch 0 (the head alone) included;
three epochs without a better one end it.

The model runs as it does when it embeds: all leads of a record visible, no dropout, and batch norm
with the running statistics of pre-training, frozen. So a record's score never depends on its batch
mates, and a batch may be small. What the embedding reads is tuned (beat encoder, temporal module,
rhythm encoder); the decoder and the geometry stay.

Axis letters: g group (one), r record row of a batch, m row, d feature, c class.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table
from lvcg_jax.model.masking import masked_mean
from lvcg_jax.probe.linear import STRENGTHS, Linear, fit_ridge
from lvcg_jax.runs.state import decay_mask
from lvcg_jax.runs.trained import save_trained
from lvcg_jax.stats import auroc

TUNED = ("encoder", "temporal", "rhythm")  # parameter groups that the embedding reads
HEAD_FACTOR, WEIGHT_DECAY, CLIP_NORM = 10.0, 0.01, 1.0
BATCH_SIZE, MIN_STEPS, PATIENCE = 64, 10, 3


class AllSplits:
    """The examples of all splits of a data set as one list, in the order of embed_dataset's
    rows."""

    def __init__(self, data: str | Path):
        self._sets = [ShardSet(data, split) for split in read_metadata(data)["splits"]]
        self._starts = np.cumsum([0, *map(len, self._sets)])
        self.counts = np.concatenate([shards.counts for shards in self._sets])
        self.preprocess = self._sets[0].preprocess

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, numbers: Iterable[int]) -> list[dict]:
        numbers = np.asarray(list(numbers), np.int64)
        owner = np.searchsorted(self._starts, numbers, side="right") - 1
        examples: list = [None] * len(numbers)
        for k in np.unique(owner):
            where = np.flatnonzero(owner == k)
            for i, example in zip(
                where, self._sets[k].read(numbers[where] - self._starts[k]), strict=True
            ):
                examples[i] = example
        return examples


@cache
def make_optimizer(learning_rate: float) -> optax.GradientTransformation:
    """AdamW for {'backbone', 'head'}, each at its own rate; cached, so that jit compiles once."""
    rates = {"backbone": learning_rate, "head": HEAD_FACTOR * learning_rate}
    parts = {
        name: optax.adamw(rate, weight_decay=WEIGHT_DECAY, mask=decay_mask)
        for name, rate in rates.items()
    }
    labels = partial(jax.tree.map_with_path, lambda path, _: path[0].key)
    return optax.chain(optax.clip_by_global_norm(CLIP_NORM), optax.partition(parts, labels))


def logits(params, fixed, batch, model, max_beats: int) -> jax.Array:
    """Scores of each record of a batch, [g,r,c]."""
    variables = {
        "params": {**fixed["params"], **params["backbone"]},
        "batch_stats": fixed["batch_stats"],
    }
    parts = model.apply(variables, batch, batch["lead_mask"], max_beats, method="embed")
    embedding = jnp.concatenate([parts[name] for name in model.part_sizes], axis=-1)
    standard = (embedding - fixed["shift"]) / fixed["scale"]
    return standard @ params["head"]["kernel"] + params["head"]["bias"]


@partial(jax.jit, static_argnames=("model", "max_beats", "tx"))
def train_step(params, opt_state, fixed, batch, labels, *, model, max_beats: int, tx):
    """One update on a batch with labels [g,r,c]; rows without a beat only fill the batch."""

    def loss(params):
        losses = optax.sigmoid_binary_cross_entropy(
            logits(params, fixed, batch, model, max_beats), labels
        ).mean(-1)
        return masked_mean(losses, batch["num_beats"] > 0)

    value, gradient = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


_logits = jax.jit(logits, static_argnames=("model", "max_beats"))


class FineTune:
    """A fit (see study.py) that tunes a model on the rows of a task; `rows` [m] are their numbers
    in the table. `variables` and `layer` are the weights and the head of the last call."""

    seeded = True

    def __init__(
        self,
        embedder: LVCG,
        data: str | Path,
        table: Table,
        rows: np.ndarray,
        epochs: int,
        learning_rate: float,
        progress: bool = True,
    ):
        shards = AllSplits(data)
        if not np.array_equal(table.extra["num_beats"], shards.counts):
            raise ValueError(f"the table does not hold every window of {data}, in its order")
        self._make = BatchMaker(shards, 1, 1, [0], True, embedder.model.signal_samples)
        self._max_beats = embedder.max_beats
        self._model, self._rows, self._features = embedder.model, rows, table.embedding[rows]
        self._parts = table.part_sizes
        params, stats = embedder.variables["params"], embedder.variables["batch_stats"]
        self._backbone = {name: params[name] for name in TUNED if name in params}
        self._fixed = {
            "params": {name: params[name] for name in params if name not in TUNED},
            "batch_stats": stats,
        }
        self._epochs, self.limit, self._progress = epochs, epochs or None, progress
        self._tx = make_optimizer(learning_rate)

    def __call__(self, rows, y, val, y_val, test, seed):
        params, fixed, epoch = self.tune(rows, y, val, y_val, seed)
        kernel, bias = (np.asarray(params["head"][name]) for name in ("kernel", "bias"))
        self.layer = Linear(kernel, bias, np.asarray(fixed["shift"]), np.asarray(fixed["scale"]))
        self.variables = {
            "params": {**fixed["params"], **params["backbone"]},
            "batch_stats": fixed["batch_stats"],
        }
        return self.scores(params, fixed, val), self.scores(params, fixed, test), epoch

    def tune(self, rows, y, val, y_val, seed: int) -> tuple[dict, dict, int]:
        """The parameters with the best validation macro AUROC, what is fixed beside them, and their
        epoch."""
        x, parts = self._features, self._parts
        head, _ = fit_ridge(x[rows], y, x[val], y_val, seed, STRENGTHS, parts)
        params, fixed = self.start(head)
        kept, best, kept_epoch = params, auroc.macro_auroc(y_val, head(x[val]))[0], 0
        opt_state, rng = self._tx.init(params), np.random.default_rng(seed)
        steps = max(-(-len(rows) // BATCH_SIZE), MIN_STEPS)
        with progress_bar(
            total=self._epochs * steps, unit="step", disable=not self._progress, leave=False
        ) as bar:
            for epoch in range(1, self._epochs + 1):
                for chosen in _shuffled(rng, len(rows), steps):
                    params, opt_state, loss = self.step(
                        params, opt_state, fixed, rows[chosen], y[chosen]
                    )
                    bar.update()
                if not np.isfinite(loss):
                    raise InputError(
                        f"the loss of epoch {epoch} is not finite: lower --learning_rate"
                    )
                value = auroc.macro_auroc(y_val, self.scores(params, fixed, val))[0]
                bar.set_postfix_str(
                    f"loss {float(loss):.3g}, validation AUROC {value:.4f}", refresh=False
                )
                if value > best:
                    kept, best, kept_epoch = params, value, epoch
                elif epoch - kept_epoch >= PATIENCE:
                    break
        return kept, fixed, kept_epoch

    def start(self, head: Linear) -> tuple[dict, dict]:
        """The pre-trained model with this head: what is tuned, and what is fixed."""
        kernel, bias, shift, scale = (
            jnp.asarray(x, jnp.float32) for x in (head.weights, head.bias, head.shift, head.scale)
        )
        fixed = self._fixed | {"shift": shift, "scale": scale}
        return {"backbone": self._backbone, "head": {"kernel": kernel, "bias": bias}}, fixed

    def step(self, params, opt_state, fixed, rows: np.ndarray, y: np.ndarray):
        """One update on a batch of rows with labels [r,c] -> (params, opt_state, loss)."""
        options = {"model": self._model, "max_beats": self._max_beats, "tx": self._tx}
        return train_step(params, opt_state, fixed, self.batch(rows), y[None], **options)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The records of these rows of the task; rows below zero only fill the batch."""
        numbers = np.where(rows >= 0, self._rows[np.maximum(rows, 0)], -1)
        return {name: x[0] for name, x in self._make(numbers).items()}

    def scores(self, params, fixed, rows: np.ndarray) -> np.ndarray:
        """Logits [m,c] of rows of the task."""
        # fetched at the end, so that the next batch is read during the computation
        found = []
        for start in range(0, len(rows), BATCH_SIZE):
            chosen = rows[start : start + BATCH_SIZE]
            padded = np.concatenate([chosen, np.full(BATCH_SIZE - len(chosen), -1)])
            found.append(
                _logits(
                    params, fixed, self.batch(padded), model=self._model, max_beats=self._max_beats
                )
            )
        return np.concatenate([scores[0] for scores in jax.device_get(found)])[: len(rows)].astype(
            np.float64
        )


def save_tuned(embedder: LVCG, variables: dict, run: Path, data: str | Path, table: Table) -> Table:
    """Writes tuned weights as a run directory; returns the table with the embeddings that they give
    of the data set."""
    save_trained(run, embedder.config, variables, embedder.step)
    tuned = embed_dataset(LVCG.load(run), data)
    named = table.metadata | {"checkpoint": tuned.metadata["checkpoint"]}
    return replace(table, embedding=tuned.embedding, metadata=named)


def _shuffled(rng: np.random.Generator, rows: int, steps: int) -> Iterator[np.ndarray]:
    """`steps` full batches of row positions: whole shuffled passes, one after another, until they
    are filled."""
    passes = -(-steps * BATCH_SIZE // rows)
    order = np.concatenate([rng.permutation(rows) for _ in range(passes)])
    yield from order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE)
