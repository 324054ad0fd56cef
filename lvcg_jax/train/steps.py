"""The jitted train and validation steps."""

from collections.abc import Callable, Iterable

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


def make_train_step(
    model, tx, config, subsets: np.ndarray, max_beats: int, mesh, state_shardings
) -> Callable:
    """The function (state, batch [a,g,...]) -> (state, metrics, loss of each record [a,g,r]); it
    donates the state."""
    schedule = make_schedule(config)

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

    def step(state: TrainState, batch):
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

        # What is logged.
        valid = batch["num_beats"] > 0
        metrics = {
            **{name: masked_mean(x, valid) for name, x in terms.items() if not _is_power(name)},
            **{f"{name}_r2": _r2(terms, valid, name) for name in reconstructions(terms)},
            **{
                f"{name}_worst5": worst_share(terms[name], valid) for name in reconstructions(terms)
            },
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": schedule(state.step),
        }
        state = TrainState(state.seed, state.step + 1, params, batch_stats, opt_state, ema)
        return state, metrics, terms["loss"]

    everywhere = replicated(mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(state_shardings, batch_sharding(mesh)),
        out_shardings=(state_shardings, everywhere, everywhere),
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
