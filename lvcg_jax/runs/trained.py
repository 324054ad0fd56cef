"""Trained weights of a run directory, or of the package; and a run directory of given weights."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, run_place
from data_prep.base.words import first_line
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import load_config
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.data.packing import silent_batch
from lvcg_jax.runs import weights

WHICH = ("lowest", "latest")  # of a run's checkpoints: lowest validation loss, or the newest
WHICH_HELP = "checkpoint of the run: the one of lowest validation loss (default), or the latest"


@dataclass(frozen=True)
class Trained:
    """A config with its weights."""

    config: ConfigDict
    variables: dict[str, Any]  # params, batch_stats
    name: str  # "RUN@STEP", or the name of packaged weights
    facts: dict = field(default_factory=dict)  # of packaged weights: the content of NAME.json


def load_trained(checkpoint: str | Path, which: str = "lowest") -> Trained:
    """The weights of a run directory or an exported folder, or packaged ones by name; a directory
    of that name goes first."""
    if which not in WHICH:
        raise InputError(f"which checkpoint is '{which}': choose {' or '.join(WHICH)}")
    run = run_place(checkpoint)
    if not is_remote(run) and weights.is_folder(run):
        found = weights.load_folder(run)
        return _packaged(found, str(found.facts.get("name", run.name)), which)
    if is_remote(run) or run.is_dir():
        return _of_run(run, which)
    return _packaged(weights.load(str(checkpoint)), str(checkpoint), which)


def _packaged(found: weights.Packaged, name: str, which: str) -> Trained:
    if which != "lowest":
        raise InputError(
            f"--which={which} is for run directories: of the packaged weights '{name}' there is"
            " one checkpoint only"
        )
    return Trained(
        found.config, jax.device_put(found.variables, _first_device()), name, found.facts
    )


def _of_run(run: Path, which: str) -> Trained:
    # imported late: Orbax takes a second, and packaged weights do without
    from lvcg_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint

    config = model_config(run / "config.json")
    checkpoints = Checkpoints(run)
    try:
        with _of_model(run / "config.json"):
            meta = checkpoints.check_config(config, which)
            abstract = jax.eval_shape(partial(fresh_state, config), 0)
        here = _first_device()
        placed = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), abstract
        )
        state, step = checkpoints.restore_for_use(placed, which, meta)
    except DamagedCheckpoint as error:
        raise InputError(
            f"the {which} checkpoint of {run} cannot be read ({error}): try another --which"
        ) from None
    finally:
        checkpoints.close()
    return Trained(
        config,
        {"params": state.eval_params, "batch_stats": state.batch_stats},
        f"{run.name}@{step}",
    )


def model_config(path: Path) -> ConfigDict:
    """The config of a run; an InputError if it describes no model of this version."""
    config = load_config(path)
    with _of_model(path):
        make_preprocess(config)
        make_model(config)
    return config


@contextlib.contextmanager
def _of_model(path: Path) -> Iterator[None]:
    """Whatever a config that describes no model raises, as one line."""
    wrong = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError)
    try:
        yield
    except InputError:
        raise
    except (*wrong, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not the config of a model of this version ({first_line(error, 120)})"
        ) from None


def save_trained(run: Path, config: ConfigDict, variables: dict[str, Any], step: int):
    """Makes a run directory with one checkpoint, of these params and batch_stats, and returns its
    train state: that of an optimiser that starts anew."""
    from lvcg_jax.runs.checkpoint import Checkpoints, open_run
    from lvcg_jax.runs.state import TrainState, make_optimizer

    if run.exists() and any(run.iterdir()):
        raise InputError(f"--out={run} is not empty: give a new run directory")
    params, batch_stats = jax.tree.map(jnp.asarray, (variables["params"], variables["batch_stats"]))
    seed, number = jnp.zeros((), jnp.uint32), jnp.asarray(step, jnp.int32)
    state = TrainState(seed, number, params, batch_stats, make_optimizer(config).init(params), {})
    open_run(run, config)
    checkpoints = Checkpoints(run, config)
    checkpoints.save(step, state)
    checkpoints.wait()
    checkpoints.close()
    return state


def fresh_state(config: ConfigDict, seed):
    """A train state as initialised from a seed, on a batch of one empty record."""
    # imported late: optax is not needed for inference
    from lvcg_jax.runs.state import create_state, make_optimizer

    preprocess, model = make_preprocess(config), make_model(config)
    batch = silent_batch(preprocess.beat_samples, model.signal_samples)
    return create_state(config, model, make_optimizer(config), batch, preprocess.max_beats, seed)


def _first_device() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
