"""One supervised training: a small ResNet1D over crops of records, all tasks at once, for so many
floating-point operations.

AdamW with one cycle of the learning rate; binary cross-entropy of every class, averaged over the
records that are labelled for a task, then over tasks. A crop is drawn anew each time a record
comes, and its leads are made up to about 10% larger or smaller. A record is judged by the mean of
its logits over crops that hold all of it, with the weights of the last step.

Axis letters as in inputs.py; s step of the last stage, d feature.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from data_prep.base.errors import InputError
from lvcg_jax.bench.timing import count_flops
from lvcg_jax.model.encoder import BeatEncoder
from lvcg_jax.model.masking import masked_mean, step_mask
from lvcg_jax.model.parts import Encoding, Layers
from lvcg_jax.model.randomness import keyed_dropout, record_keys
from lvcg_jax.peers.augment import scale_leads, split_keys
from lvcg_jax.runs.state import decay_mask
from lvcg_jax.stats.auroc import macro_auroc
from lvcg_jax.studies.ceiling.inputs import Crops

Batch = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Regime:
    """What all trainings share."""

    encoding: Encoding
    layers: Layers
    head_dropout: float = 0.2
    clip_input: float = 20.0  # of the leads' usual size
    jitter: float = 0.1
    rows: int = 64
    # At its highest. 5e-3 was worse for whole records in validation after two passes (form 79.2,
    # not 80.4, with more dropout), and mixed for beats (form 80.2, not 81.2; rhythm 80.9, not
    # 77.9).
    rate: float = 1e-2
    rise: float = 0.3  # share of the steps until there
    weight_decay: float = 0.05
    clip_norm: float = 1.0

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.scale_by_adam(),
            optax.add_decayed_weights(self.weight_decay, decay_mask),
        )

    def rates(self, steps: int) -> np.ndarray:
        """The learning rate of each step: up along a cosine, then down to nothing."""
        rise = max(round(self.rise * steps), 1)
        up = (1 - np.cos(np.pi * (np.arange(rise) + 1) / rise)) / 2
        down = (1 + np.cos(np.pi * (np.arange(steps - rise) + 1) / (steps - rise + 1))) / 2
        return np.concatenate([up, down]).astype(np.float32)[:steps] * np.float32(self.rate)


REGIME = Regime(
    Encoding(token_dim=128, stem_features=24, stage_features=(32, 64, 128), stage_blocks=(1, 1, 1)),
    Layers(dropout=0.1),
)
JUDGE_ROWS = 256
FEWEST_STEPS = 10
LOG_STEPS = 20


class Classifier(nn.Module):
    """Crops of records -> logits of all classes."""

    regime: Regime
    classes: int

    @nn.compact
    def __call__(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """[b,y]; with a key, as in training."""
        c, train = self.regime, key is not None
        b, k, p, _ = batch["x"].shape
        keys = record_keys(jax.random.key(0) if key is None else key, batch["uid"])
        jitter, noise = split_keys(keys, 2)
        seeds = jax.vmap(lambda key: jax.random.bits(key, (k + 1,), jnp.uint32))(noise)

        # channels
        mask = batch["mask"]
        x = jnp.where(mask[..., None, None], batch["x"], 0).astype(jnp.float32)
        x = x * batch["gain"][:, None, None]
        x = jnp.clip(x, -c.clip_input, c.clip_input)
        if train:
            x = scale_leads(jitter, x.reshape(b, k * p, -1), c.jitter).reshape(x.shape)
        if "lift" in batch:
            x = jnp.einsum("bkpl,bcl->bkpc", x, batch["lift"])
        if "seconds" in batch:
            intervals = jnp.broadcast_to(batch["seconds"][:, :, None], (b, k, p, 2))
            x = jnp.concatenate([x, intervals], -1)

        # features of steps: of each unit by itself, or of the whole crop where units are samples
        if p > 1:
            valid, of_beats = mask.reshape(-1), seeds[:, :k].reshape(-1)
            x = x.reshape(b * k, p, -1)
        else:
            valid, of_beats, x = mask.any(1), seeds[:, 0], x[:, :, 0]
        encoder = BeatEncoder(c.encoding, c.layers, c.encoding.token_dim)
        x = encoder(x, valid, of_beats, train, pool=False)
        steps, dim = x.shape[-2:]
        x = x.reshape(b, -1, dim)
        counted = jnp.repeat(mask, steps, 1) if p > 1 else step_mask(mask.sum(1), steps, k)

        # mean and max over all of them
        counted = counted[..., None]
        highest = jnp.where(counted, x, -jnp.inf).max(1)
        highest = jnp.where(counted.any(1), highest, 0.0)
        x = nn.gelu(jnp.concatenate([masked_mean(x, counted, 1), highest], -1))
        if train:
            x = keyed_dropout(x, seeds[:, k], 0, c.head_dropout)
        return nn.Dense(self.classes, name="head")(x)


class State(NamedTuple):
    """What a step changes."""

    variables: dict
    moments: optax.OptState


def loss_of(logits: jax.Array, batch: Batch, sizes: Sequence[int]) -> jax.Array:
    """Mean over tasks, whose numbers of classes are `sizes`; a record without labels of a task
    does not count in it."""
    each = optax.sigmoid_binary_cross_entropy(logits, batch["labels"].astype(jnp.float32))
    ends = np.cumsum(sizes)[:-1]
    parts = zip(*(jnp.split(x, ends, 1) for x in (each, batch["labelled"])), strict=True)
    return jnp.stack([masked_mean(x, known) for x, known in parts]).mean()


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_step(
    network: Classifier, sizes: tuple[int, ...], state: State, batch: Batch, key, rate
) -> tuple[State, jax.Array]:
    """The state after a step, and the loss before it."""
    params, statistics = state.variables["params"], state.variables["batch_stats"]

    def loss(params):
        variables = {"params": params, "batch_stats": statistics}
        logits, changed = network.apply(variables, batch, key, mutable=["batch_stats"])
        return loss_of(logits, batch, sizes), changed["batch_stats"]

    (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, moments = network.regime.optimizer.update(gradient, state.moments, params)
    params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    return State({"params": params, "batch_stats": statistics}, moments), value


@partial(jax.jit, static_argnums=0)
def fresh_state(network: Classifier, batch: Batch, key) -> State:
    variables = network.init(key, batch)
    return State(variables, network.regime.optimizer.init(variables["params"]))


@partial(jax.jit, static_argnums=0)
def logits_of(network: Classifier, variables: dict, batch: Batch) -> jax.Array:
    return network.apply(variables, batch)


def scores_of(network: Classifier, variables: dict, crops: Crops) -> np.ndarray:
    """Logits [m,y] of every record, the mean over its crops."""
    starts = [crops.covering(row) for row in range(len(crops))]
    rows = np.repeat(np.arange(len(crops)), [len(some) for some in starts])
    start = np.concatenate(starts)
    total = np.zeros((len(crops), network.classes))
    for first in range(0, len(rows), JUDGE_ROWS):
        some = rows[first : first + JUDGE_ROWS]
        short = JUDGE_ROWS - len(some)
        batch = crops.batch(
            np.pad(some, (0, short), constant_values=-1),
            np.pad(start[first : first + JUDGE_ROWS], (0, short)),
        )
        found = logits_of(network, variables, batch)
        np.add.at(total, some, np.asarray(found, np.float64)[: len(some)])
    return total / np.bincount(rows)[:, None]


def train(
    crops: Crops,
    sizes: Sequence[int],
    flops: float,
    seed: int,
    done: Callable[[float, float], None],
) -> tuple[Classifier, dict, dict]:
    """The network, its variables after the last step, and facts of the training. `done` is told
    now and then which share of it is over, and the loss."""
    network, sizes = Classifier(REGIME, sum(sizes)), tuple(sizes)
    start_key, step_key = jax.random.split(jax.random.key(seed))
    rng = np.random.default_rng([seed, 0])
    batch = crops.draw(np.resize(np.arange(len(crops)), REGIME.rows), rng)
    state = fresh_state(network, batch, start_key)
    each = count_flops(train_step, network, sizes, state, batch, step_key, np.float32(0))
    steps = int(flops / each)
    if steps < FEWEST_STEPS:
        least = math.ceil(1000 * FEWEST_STEPS * each / 1e12) / 1000
        raise InputError(f"--tflop={flops / 1e12:g} is under {FEWEST_STEPS} steps: give {least:g}")
    losses = []
    for step, rate in enumerate(REGIME.rates(steps)):
        batch = crops.draw(rows_of(len(crops), seed, step), np.random.default_rng([seed, 1, step]))
        key = jax.random.fold_in(step_key, step)
        state, loss = train_step(network, sizes, state, batch, key, rate)
        if step % LOG_STEPS == LOG_STEPS - 1 or step == steps - 1:
            losses.append(float(loss))
            done((step + 1) / steps, losses[-1])
    if not np.isfinite(losses[-1]):
        raise InputError(f"the training with seed {seed} diverged: its loss is not finite")
    facts = {
        "parameters": sum(x.size for x in jax.tree.leaves(state.variables["params"])),
        "flops": steps * each,
        "flops_of_a_record": each / REGIME.rows,
        "steps": steps,
        "records_seen": steps * REGIME.rows,
        "passes": steps * REGIME.rows / len(crops),
        "losses": losses,
    }
    return network, state.variables, facts


def rows_of(records: int, seed: int, step: int) -> np.ndarray:
    """The records of a step: shuffled passes, one after another."""
    first = step * REGIME.rows
    places = np.arange(first, first + REGIME.rows)
    passes = range(places[0] // records, places[-1] // records + 1)
    orders = {n: np.random.default_rng([seed, 2, n]).permutation(records) for n in passes}
    return np.array([orders[place // records][place % records] for place in places])


def judge(
    scores: np.ndarray, crops: Crops, tasks: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Macro AUROC of each task over the records that have its labels, and the classes that none of
    them has, or all."""
    found, left_out, first = {}, {}, 0
    for task, classes in tasks.items():
        columns = slice(first, first + len(classes))
        rows = crops.records.labelled[:, first]
        labels = crops.records.labels[rows, columns]
        found[task], _, left_out[task] = macro_auroc(labels, scores[rows, columns], classes)
        first += len(classes)
    return found, left_out
