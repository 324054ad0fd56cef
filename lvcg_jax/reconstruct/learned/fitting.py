"""The trainer of all networks that derive leads: one budget, one schedule, one file at the end.

The budget is a number of floating-point operations (budget.py), three times those of the loss for
a step, so that every network has the same and the number of steps follows. Two learning rates are
tried for a tenth of the budget each; the one whose error on held-out training patients is smaller
starts again and has the other eight tenths. A single rate has all of it. Adam, the rate rising
over the first steps and then falling along a cosine. Everything is drawn by seed and step, so that
a training that was stopped and goes on ends with the same weights: what it has so far is in
FILE.part.
"""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.lottery import ticket
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.entries import list_entries
from lvcg_jax.model.flops import TRAIN_FACTOR
from lvcg_jax.reconstruct.lead_sizes import fit_sizes
from lvcg_jax.reconstruct.learned.budget import count_flops
from lvcg_jax.reconstruct.learned.examples import (
    Examples,
    draw_visible,
    hold_out,
    read_examples,
)
from lvcg_jax.reconstruct.learned.network import LeadNetwork
from lvcg_jax.reconstruct.learned.networks import NETWORKS, sizes_of
from lvcg_jax.reconstruct.learned.trained import (
    TrainedLeadsWithBars,
    derive,
    save_network,
)
from lvcg_jax.reconstruct.views import Windows

RATES = (1e-3, 3e-3)
TRIAL = 0.1  # of the budget, for each of them
WARM_UP = 100  # steps, or a tenth of all
CLIP = 1.0  # norm of a gradient, at most
CHECKPOINT_STEPS = 100
_ADAM = optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam())


class State(NamedTuple):
    """All that a training that goes on needs."""

    errors: list[float]  # of the trials that are done, on held-out patients
    step: int  # steps done of the trial, or of the training, under way
    params: dict
    moments: optax.OptState


def fit_network(
    name: str,
    data: str | Path,
    flops: float,
    out: str | Path,
    seed: int = 0,
    limit: int | None = None,
    sizes: dict | None = None,
    rates: Sequence[float] = RATES,
) -> dict:
    """Trains NETWORKS[name] on the training split of a data set, at most `limit` records of it,
    and writes it to `out`; returns its facts. Goes on where an earlier call was stopped."""
    # what is asked for: the network, the records, the budget in steps
    network = NETWORKS[name](**sizes or {})
    shards = ShardSet(data, "train")
    entries = list_entries([shards], limit)
    with progress_bar(total=len(entries), unit="rec", desc="read", leave=False) as bar:
        examples = read_examples(
            Windows(entries, bar.update), network.reads, shards.preprocess.rate
        )
    train, held = hold_out(examples.patients)
    apart = {examples.patients[i] for i in held}
    learned = network.learn(Windows([e for e in entries if e.patient_id not in apart]))
    batches = Batches(network, examples, train, learned, seed)
    each = flops_of_step(network, batches)
    trials = rates if len(rates) > 1 else ()
    steps = [int(TRIAL * flops / each)] * len(trials)
    steps.append(int(flops / each) - sum(steps))
    if not steps[0]:
        raise InputError(
            f"--flops={flops:g}: a step of {name} has {each:.3g} FLOPs, and a tenth must be at"
            f" least one step: give {math.ceil(each / TRIAL):.3g} or more"
        )
    facts = {
        "network": name,
        "sizes": sizes_of(network),
        "seed": seed,
        "tried": list(trials),
        "flops": flops,
        "flops_per_row": each / network.rows,
        "rows": network.rows,
        "corpus": shards.metadata["corpus"],
        "shards": [shard["sha256"][:12] for shard in shards.metadata["splits"]["train"]["shards"]],
        "preprocess_hash": shards.preprocess.hash(),
        "preprocess": shards.preprocess.to_dict(),
        "records": len(train),
        "held_records": len(held),
        "held_ticket": max(ticket(patient) for patient in apart),
    }

    # two trials and the training, one after another
    part = Path(f"{out}.part")
    start = fresh_state(network, batches, seed)
    state = read_state(part, facts, start)
    done = sum(steps[: len(state.errors)]) + state.step
    judge = partial(held_error, network, examples, held, learned, seed)
    with progress_bar(total=sum(steps), initial=done, unit="step", desc=name) as bar:
        while len(state.errors) < len(steps):
            stage = len(state.errors)
            rate = rates[stage] if stage < len(trials) else best_rate(rates, state.errors, name)
            while state.step < steps[stage]:
                size = rate_at(rate, state.step, steps[stage])
                params, moments, loss = train_step(
                    network, state.params, state.moments, *batches[state.step], size
                )
                state = State(state.errors, state.step + 1, params, moments)
                bar.update()
                if state.step % CHECKPOINT_STEPS == 0:
                    bar.set_postfix(rate=f"{rate:g}", loss=f"{float(loss):.3f}")
                    write_state(part, facts, state)
            errors = [*state.errors, judge(state.params)]
            if stage < len(trials):
                state = State(errors, 0, start.params, start.moments)
                write_state(part, facts, state)
            else:
                state = State(errors, state.step, state.params, state.moments)
    if not math.isfinite(state.errors[-1]):
        raise InputError(f"the training of {name} diverged at rate {rate:g}: try another --seed")

    facts |= {
        "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
        "rates": {f"{rate:g}": e for rate, e in zip(trials, state.errors, strict=False)},
        "rate": rate,
        "steps": steps[-1],
        "held_error": state.errors[-1],
    } | fit_sizes(np.where(examples.present, examples.sizes, np.nan)).facts()
    if hasattr(network, "spread"):
        method = TrainedLeadsWithBars(name, out, (state.params, learned, facts))
        unseen = Windows([e for e in entries if e.patient_id in apart])
        learned["bands"] = method.learn_bands(unseen)
    save_network(out, jax.device_get(state.params), learned, facts)
    part.unlink(missing_ok=True)
    return facts


class Batches:
    """The batch of every step: `shown`, `truth` and a key."""

    def __init__(
        self,
        network: LeadNetwork,
        examples: Examples,
        train: np.ndarray,
        learned: dict[str, np.ndarray],
        seed: int,
    ):
        self.network, self.examples, self.train = network, examples, train
        self.learned, self.seed = learned, seed

    def __getitem__(self, step: int) -> tuple[dict, dict, jax.Array]:
        rng = np.random.default_rng([self.seed, step])
        visible = draw_visible(rng)
        records = self.train[rng.integers(len(self.train), size=self.network.rows)]
        shown, truth = self.examples.draw(records, visible, rng)
        shown |= self.network.prepare(self.learned, visible)
        return shown, truth, jax.random.fold_in(jax.random.key(self.seed), step)


def loss_of(network: LeadNetwork, params: dict, shown: dict, truth: dict, key) -> jax.Array:
    return network.apply({"params": params}, shown, truth, method="loss", rngs={"noise": key})


@partial(jax.jit, static_argnums=0)
def train_step(network: LeadNetwork, params, moments, shown, truth, key, rate):
    """The parameters and Adam's moments after a step, and the loss before it."""
    loss, gradient = jax.value_and_grad(partial(loss_of, network))(params, shown, truth, key)
    updates, moments = _ADAM.update(gradient, moments, params)
    return jax.tree.map(lambda p, u: p - rate * u, params, updates), moments, loss


def flops_of_step(network: LeadNetwork, batches: Batches) -> int:
    """Of one training step; what is prepared on the host is not counted."""
    shown, truth, key = batches[0]
    params = jax.eval_shape(partial(_start, network), key, shown, truth)
    return TRAIN_FACTOR * count_flops(partial(loss_of, network), params, shown, truth, key)


def _start(network: LeadNetwork, key, shown: dict, truth: dict) -> dict:
    keys = {"params": key, "noise": key}
    return network.init(keys, shown, truth, method="loss")["params"]


def fresh_state(network: LeadNetwork, batches: Batches, seed: int) -> State:
    shown, truth, _ = batches[0]
    key = jax.random.fold_in(jax.random.key(seed), 2**31)  # no step has it
    params = jax.jit(partial(_start, network))(key, shown, truth)
    return State([], 0, params, _ADAM.init(params))


def rate_at(rate: float, step: int, steps: int) -> np.float32:
    """The learning rate of a step: a rise over the first ones, then a cosine down to zero."""
    rise = min(WARM_UP, steps // 10)
    if step < rise:
        return np.float32(rate * (step + 1) / (rise + 1))
    return np.float32(rate * (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2)


def best_rate(rates: Sequence[float], errors: list[float], name: str) -> float:
    """The rate with the smallest error; the only one if there were no trials."""
    if len(rates) == 1:
        return rates[0]
    finite = [(error, rate) for error, rate in zip(errors, rates, strict=True) if error < math.inf]
    if not finite:
        raise InputError(f"the training of {name} diverged at both rates: try another --seed")
    return min(finite)[1]


def held_error(
    network: LeadNetwork,
    examples: Examples,
    held: np.ndarray,
    learned: dict[str, np.ndarray],
    seed: int,
    params: dict,
) -> float:
    """The mean squared error of hidden leads in records that no step saw, over 1 to 11 visible
    leads; one drawn row of each record, the same for every network that reads the same."""
    total = count = 0.0
    for number in range(1, len(LEADS)):
        rng = np.random.default_rng([seed, 2**31 + number])
        visible = draw_visible(rng, number)
        extra = network.prepare(learned, visible)
        for first in range(0, len(held), network.rows):
            some = held[first : first + network.rows]
            filled = np.resize(some, network.rows)  # repeated to one shape, and not counted twice
            shown, truth = examples.draw(filled, visible, rng)
            derived = np.asarray(derive(network, {"params": params}, shown | extra))
            counted = truth["counted"][: len(some)]
            errors = ((derived - truth["x"])[: len(some)] ** 2).mean(-1)
            total, count = total + float(errors[counted].sum()), count + counted.sum()
    return float(total / max(count, 1.0))


def write_state(path: Path, facts: dict, state: State) -> None:
    tree = {
        "facts": json.dumps(facts),
        "errors": np.array(state.errors, np.float64),
        "step": state.step,
        "params": jax.device_get(state.params),
        "moments": serialization.to_state_dict(jax.device_get(state.moments)),
    }
    write_whole(path, serialization.msgpack_serialize(tree))


def read_state(path: Path, facts: dict, start: State) -> State:
    """Where an earlier call was stopped, or the start."""
    if not path.is_file():
        return start
    remedy = "delete it to start anew"
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        earlier = json.loads(tree["facts"])
    except Exception:  # a damaged file makes msgpack raise many things
        raise InputError(f"{path}: damaged; {remedy}") from None
    facts = json.loads(json.dumps(facts))
    changed = [key for key in facts if earlier.get(key) != facts[key]]
    if changed:
        key = changed[0]
        raise InputError(
            f"{path} was begun with {key} {earlier.get(key)}, not {facts[key]}: give the same"
            f" flags and data to go on, or {remedy}"
        )
    moments = serialization.from_state_dict(start.moments, tree["moments"])
    params = jax.tree.map(jnp.asarray, tree["params"])
    return State(list(tree["errors"]), int(tree["step"]), params, moments)
