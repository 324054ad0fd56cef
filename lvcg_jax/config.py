"""Configs as plain data: reading, writing and comparing them, and what a config describes: model, preprocessing."""

import json
import runpy
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.errors import InputError
from data_prep.preprocess import Preprocess
from lvcg_jax.geometry import GEOMETRIES, lead_matrix, training_subsets
from lvcg_jax.model import LVCG

# Fields that may change when a run is resumed: they do not touch what is computed.
FREE_FIELDS = (
    "data.dir",
    "data.prefetch",
    "data.threads",
    "train.log_every",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "mesh.model",
    "mesh.shard_parameters",
    "mesh.shard_min_size",
)


def read_config_file(path: str | Path) -> ConfigDict:
    """The config of a file with get_config, or of one of its variants: 'configs/pretrain.py:demo'."""
    file, _, variant = str(path).partition(":")
    if not Path(file).is_file():
        raise InputError(f"no config file {file}")
    module = runpy.run_path(file)
    return module["get_config"](*([variant] if variant else []))


def make_model(config: ConfigDict) -> LVCG:
    """The model that a config describes."""
    return LVCG(
        geometry=as_geometry(config.geometry.matrix),
        eps=config.geometry.eps,
        learnable_geometry=config.geometry.learnable,
        beat_samples=config.preprocess.beat_samples,
        rate=config.preprocess.rate,
        rhythm_head=config.loss.lambda_rhythm > 0,
        **config.model.to_dict(),
    )


def as_geometry(matrix) -> str | tuple[tuple[float, ...], ...]:
    """A geometry's name, or its rows as nested tuples (as linen wants its fields); a file of rows is read."""
    if isinstance(matrix, str) and matrix in GEOMETRIES:
        return matrix
    return tuple(tuple(float(v) for v in row) for row in lead_matrix(matrix))


def make_subsets(config: ConfigDict):
    """Lead bit masks that training views are drawn from."""
    geometry = config.geometry
    matrix = lead_matrix(as_geometry(geometry.matrix))
    return training_subsets(matrix, geometry.num_visible, geometry.eps, geometry.identifiable_only, geometry.max_gain)


def make_preprocess(config: ConfigDict) -> Preprocess:
    """The preprocessing that a config describes."""
    return Preprocess.from_dict(config.preprocess.to_dict())


def flatten(config: ConfigDict) -> dict[str, object]:
    """{'optim.learning_rate': 5e-4, ...}, with tuples as lists, as JSON has them."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat.update({f"{key}.{inner}": v for inner, v in flatten(value).items()})
        else:
            flat[key] = json.loads(json.dumps(value))
    return flat


def save_config(config: ConfigDict, path: Path) -> None:
    """Writes the config as JSON, by a rename so that a killed process leaves no half file."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(json.loads(config.to_json()), indent=2, sort_keys=True) + "\n")
    temporary.replace(path)


def load_config(path: Path) -> ConfigDict:
    """Reads a config that save_config wrote."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"no config.json in {path.parent}: is it a run directory of lvcg_jax.train?") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not a readable config ({error}): restore it from the run's checkpoint") from None
    return ConfigDict(_tuples(data))


def _tuples(value):
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """The fields, other than FREE_FIELDS, in which two configs differ, as 'name: old -> new'."""
    a, b = flatten(old), flatten(new)
    names = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k) and k not in FREE_FIELDS)
    return [f"{name}: {a.get(name, 'absent')} -> {b.get(name, 'absent')}" for name in names]
