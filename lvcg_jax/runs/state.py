"""Train state, learning-rate schedule and optimiser."""

from typing import Any

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from data_prep.base.errors import InputError

# Top-level parameter groups that no loss term reaches, and those that only the rhythm term reaches.
ALWAYS_FROZEN = (
    "norm_structure",
    "norm_dynamics",
    "norm_rhythm",
    "shape",
    "patterns",
    "levels",
    "record_token",
    "lead_covariance",
)
FROZEN_WITHOUT_RHYTHM_LOSS = ("rhythm",)


@flax.struct.dataclass
class TrainState:
    """All that a step reads and writes; its randomness comes from `seed` and `step`."""

    seed: jax.Array
    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any
    ema_params: Any  # {} without a moving average

    @property
    def eval_params(self):
        """The parameters to evaluate: the moving average if there is one."""
        return self.ema_params or self.params


PAPER_BATCH = 64  # records a step, which the paper's learning rate belongs to
BATCH_POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}  # by optim.batch_rule


def make_schedule(config) -> optax.Schedule:
    """Linear warm-up to the full rate at step `warmup_steps`, then cosine to zero at the last step,
    or constant."""
    optim, steps = config.optim, config.train.steps
    warmup = min(optim.warmup_steps, steps)
    times = config.data.batch_size / PAPER_BATCH
    full_rate = optim.learning_rate * times ** BATCH_POWERS[optim.batch_rule]

    def schedule(count):  # updates done so far
        rising = jnp.minimum(1.0, (count + 1) / max(warmup, 1))
        done = jnp.clip((count + 1 - warmup) / max(steps - warmup, 1), 0.0, 1.0)
        falling = 0.5 * (1.0 + jnp.cos(jnp.pi * done)) if optim.schedule == "cosine" else 1.0
        return full_rate * rising * falling

    return schedule


def decay_mask(params):
    """Weight decay is for kernels only: not for biases, norms, the pooling query or lead
    directions."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)


def trained_labels(params, config):
    """'train' or 'frozen' for each parameter. The optimiser leaves frozen ones, which no loss term
    reaches, as they are."""
    frozen = ALWAYS_FROZEN + (() if config.loss.lambda_rhythm > 0 else FROZEN_WITHOUT_RHYTHM_LOSS)
    return jax.tree.map_with_path(
        lambda path, _: "frozen" if path[0].key in frozen else "train", params
    )


def make_optimizer(config) -> optax.GradientTransformation:
    """AdamW with clipping by the global norm of the trained parameters; weight decay on kernels, or
    on all of them."""
    optim = config.optim
    train = optax.chain(
        optax.clip_by_global_norm(optim.clip_norm),
        optax.adamw(
            make_schedule(config),
            b1=optim.beta1,
            b2=optim.beta2,
            weight_decay=optim.weight_decay,
            mask=decay_mask if optim.decay == "kernels" else None,
        ),
    )
    return optax.partition(
        {"train": train, "frozen": optax.set_to_zero()},
        lambda params: trained_labels(params, config),
    )


def create_state(config, model, tx, batch, max_beats: int, seed) -> TrainState:
    """A fresh state from a seed; under jit with output shardings its parameters are made where they
    live."""
    variables = model.init(jax.random.key(seed), batch, batch["lead_mask"], None, max_beats)
    params = variables["params"]
    return TrainState(
        seed=jnp.asarray(seed, jnp.uint32),
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=tx.init(params),
        ema_params=jax.tree.map(jnp.copy, params) if config.optim.ema_decay else {},
    )


def take_weights(state: TrainState, variables) -> tuple[TrainState, list[str]]:
    """The state with these parameters and norm statistics wherever names and shapes agree, and the
    names of those that stay as they are."""
    new = []

    def take(path, mine, given):
        name = tuple(key.key for key in path)
        if name in given and given[name].shape == mine.shape:
            return jnp.asarray(given[name], mine.dtype)
        new.append("/".join(name))
        return mine

    def merge(mine, given):
        given = flax.traverse_util.flatten_dict(given)
        return jax.tree.map_with_path(lambda path, x: take(path, x, given), mine)

    params = merge(state.params, variables["params"])
    if len(new) == len(jax.tree.leaves(params)):
        raise InputError(
            "train.start_from: no parameter of that run has the name and shape of one of this"
            " config"
        )
    batch_stats = merge(state.batch_stats, variables.get("batch_stats", {}))
    ema = jax.tree.map(jnp.copy, params) if state.ema_params else {}
    return state.replace(params=params, batch_stats=batch_stats, ema_params=ema), new
