"""The jitted train and validation steps."""

from collections.abc import Callable, Iterable, Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lvcg_jax.model.losses import worst_share
from lvcg_jax.model.masking import masked_mean, masked_sum
from lvcg_jax.model.views import draw_views
from lvcg_jax.runs.state import TrainState, make_schedule
from lvcg_jax.train.sharding import batch_sharding, replicated

VALIDATION_STREAM = 0xFFFF7A11  # keys the fixed validation views apart from the training views


@flax.struct.dataclass
class Numbers:
    """Numbers of a step in one array on the devices, so that one transfer fetches them all."""

    values: jax.Array  # [k]
    names: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def of(cls, values: Mapping[str, jax.Array]) -> "Numbers":
        array = jnp.stack([jnp.asarray(x, jnp.float32) for x in values.values()])
        return cls(array, tuple(values))

    def fetch(self) -> dict[str, float]:
        return dict(zip(self.names, jax.device_get(self.values).tolist(), strict=True))


@flax.struct.dataclass
class Watch:
    """The losses of the newest step, or of the first one with a loss that is not finite.

    Each step hands it on to the next, on the devices. The host looks at it only if the numbers of
    a later step say that a loss was not finite.
    """

    step: jax.Array  # its number
    losses: jax.Array  # [a,g,r] of its records

    @classmethod
    def new(cls, shape: tuple[int, ...]) -> "Watch":
        """Before the first step, for batches of so many micro-batches, groups and records."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros(shape, jnp.float32))

    def all_finite(self) -> jax.Array:
        return jnp.isfinite(self.losses).all()

    def after(self, step: jax.Array, losses: jax.Array) -> "Watch":
        finite = self.all_finite()
        return Watch(jnp.where(finite, step, self.step), jnp.where(finite, losses, self.losses))


def make_train_step(
    model, tx, config, subsets: np.ndarray, max_beats: int, mesh, state_shardings
) -> Callable:
    """The function ((state, watch), batch [a,g,...]) -> ((state, watch), numbers); it donates state
    and watch. Of the numbers, `finite` is 1 as long as all losses were."""
    schedule, everywhere = make_schedule(config), replicated(mesh)

    def loss_of_view(params, batch_stats, batch, key):
        view_key, noise_key = jax.random.split(key)
        visible = draw_views(
            view_key, batch["uid"], batch["lead_mask"], subsets, config.geometry.num_visible
        )
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, updates = model.apply(
            variables, batch, visible, noise_key, max_beats, mutable=["batch_stats"]
        )
        terms = model.loss_terms(outputs, batch, visible, config.loss)
        valid = batch["num_beats"] > 0
        return masked_mean(terms["loss"], valid), (updates.get("batch_stats", {}), terms)

    def step(carried: tuple[TrainState, Watch], batch):
        state, watch = carried
        key = jax.random.fold_in(jax.random.key(state.seed), state.step)

        # Micro-batches are unrolled: XLA's CPU convolutions run tens of times slower inside a loop.
        batch_stats, gradients, terms = state.batch_stats, [], []
        for k in range(config.optim.accumulate):
            micro_batch = jax.tree.map(lambda x: x[k], batch)  # noqa: B023
            gradient_of = jax.grad(loss_of_view, has_aux=True)
            gradient, (batch_stats, record_terms) = gradient_of(
                state.params, batch_stats, micro_batch, key
            )
            gradients.append(gradient)
            terms.append(record_terms)
        gradient = jax.tree.map(lambda *g: sum(g) / config.optim.accumulate, *gradients)
        terms = jax.tree.map(lambda *t: jnp.stack(t), *terms)

        # Update of the parameters, and of their moving average.
        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema_params
        if config.optim.ema_decay:
            ema = optax.incremental_update(params, ema, 1.0 - config.optim.ema_decay)

        # What is logged. The terms of all records are gathered once; the rest needs no exchange.
        counted = jnp.stack([*terms.values(), batch["num_beats"].astype(jnp.float32)])
        *gathered, num_beats = jax.lax.with_sharding_constraint(counted, everywhere)
        terms, valid = dict(zip(terms, gathered, strict=True)), num_beats > 0
        watch = watch.after(state.step + 1, terms["loss"])
        numbers = {
            **{name: masked_mean(x, valid) for name, x in terms.items() if not _is_power(name)},
            **{f"{name}_r2": _r2(terms, valid, name) for name in reconstructions(terms)},
            **{
                f"{name}_worst5": worst_share(terms[name], valid) for name in reconstructions(terms)
            },
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": schedule(state.step),
            "finite": watch.all_finite(),
        }
        state = TrainState(state.seed, state.step + 1, params, batch_stats, opt_state, ema)
        return (state, watch), Numbers.of(numbers)

    carried = (state_shardings, everywhere)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(carried, batch_sharding(mesh)),
        out_shardings=(carried, everywhere),
    )


def _is_power(name: str) -> bool:
    return name.endswith("_power")


def reconstructions(terms: Iterable[str]) -> list[str]:
    """The terms that are errors of something whose power is also there: they have an R2."""
    return [name.removesuffix("_power") for name in terms if _is_power(name)]


def _r2(terms, valid, name: str) -> jax.Array:
    """1 - error / power: 1 is perfect, 0 is no better than predicting zero."""
    return 1.0 - masked_sum(terms[name], valid) / jnp.maximum(
        masked_sum(terms[f"{name}_power"], valid), 1e-9
    )


def make_validation_step(
    model, config, subsets: np.ndarray, max_beats: int, mesh, state_shardings
) -> Callable:
    """The function (state, batch [1,g,...]) -> sums of each term and power over the records of the
    batch, and the number of records. Views are the same every time."""

    def step(state: TrainState, batch):
        batch = jax.tree.map(lambda x: x[0], batch)
        key = jax.random.fold_in(jax.random.key(state.seed), VALIDATION_STREAM)
        visible = draw_views(
            key, batch["uid"], batch["lead_mask"], subsets, config.geometry.num_visible
        )
        variables = {"params": state.eval_params, "batch_stats": state.batch_stats}
        outputs = model.apply(variables, batch, visible, None, max_beats)
        terms = model.loss_terms(outputs, batch, visible, config.loss)
        valid = batch["num_beats"] > 0
        return {**{name: masked_sum(x, valid) for name, x in terms.items()}, "records": valid.sum()}

    return jax.jit(
        step, in_shardings=(state_shardings, batch_sharding(mesh)), out_shardings=replicated(mesh)
    )


def summarise_validation(sums: list[dict]) -> dict[str, float]:
    """Means over all records from the sums of the batches, and R2 of reconstructions."""
    total = {name: float(sum(float(s[name]) for s in sums)) for name in sums[0]}
    records = max(total.pop("records"), 1.0)
    r2 = {
        f"{name}_r2": 1.0 - total[name] / max(total.pop(f"{name}_power"), 1e-9)
        for name in reconstructions(sums[0])
    }
    return {**{name: value / records for name, value in total.items()}, **r2}
