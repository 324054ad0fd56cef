"""Configs as plain data: reading, writing and comparing them, and what a config describes: model, preprocessing."""

import json
import runpy
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from data_prep.errors import InputError
from data_prep.leads import LEADS
from data_prep.preprocess import Preprocess
from data_prep.storage import require_local
from data_prep.whole_file import write_whole
from lvcg_jax.geometry import GEOMETRIES, lead_matrix, training_subsets
from lvcg_jax.model import LVCG
from lvcg_jax.pooling import check_statistics

# Fields that may change when a run is resumed: they do not touch what is computed.
FREE_FIELDS = (
    "data.dir",
    "data.prefetch",
    "data.threads",
    "train.log_every",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "model.scan_unroll",
    "model.remat",
    "mesh.model",
    "mesh.shard_parameters",
    "mesh.shard_min_size",
)

# Fields that runs from before they existed lack, and the values that those runs had: the paper's.
LATER_FIELDS = {
    "geometry.most_visible": None,
    "model.space": "vcg",
    "model.token_scope": "beat",
    "model.decoder_passes": "one",
    "model.dynamics": "learned",
    "model.dynamics_input": "predicted",
    "model.dynamics_layers": 1,
    "model.unroll": "record",
    "model.rhythm_unit": "seconds",
    "model.rhythm_steps": "seconds",
    "model.rhythm_positions": 0,
    "model.structure": "mean",
    "model.lead_sizes": False,
    "model.embedding_norm": False,
    "model.stitch": False,
    "model.refine": 0,
    "model.padding": "ignored",
    "model.remat": False,
    "loss.ecg_source": "predicted",
    "loss.vcg_source": "encoded",
    "loss.lambda_base": 0.0,
    "loss.lambda_view": 0.0,
    "optim.decay": "kernels",
    "train.start_from": "",
}

# The words that a field may be.
CHOICES = {
    "model.space": ("vcg", "ecg"),
    "model.token_scope": ("beat", "axis"),
    "model.decoder_passes": ("one", "apart"),
    "model.dynamics": ("learned", "zero", "none"),
    "model.dynamics_input": ("predicted", "encoded"),
    "model.unroll": ("record", "batch"),
    "model.rhythm_intervals": ("complete", "all"),
    "model.rhythm_unit": ("seconds", "samples"),
    "model.rhythm_steps": ("seconds", "relative"),
    "model.norm": ("batch", "layer"),
    "model.padding": ("ignored", "counted"),
    "loss.reduction": ("sum", "mean", "mixed"),
    "loss.ecg_source": ("predicted", "both"),
    "loss.vcg_source": ("encoded", "predicted"),
    "optim.decay": ("kernels", "all"),
    "optim.schedule": ("cosine", "constant"),
}


def read_config_file(path: str | Path) -> ConfigDict:
    """The config of a file with get_config, or of one of its variants: 'configs/pretrain.py:demo'."""
    file, _, variant = str(path).partition(":")
    if not Path(file).is_file():
        raise InputError(f"no config file {file}")
    module = runpy.run_path(file)
    if "get_config" not in module:
        raise InputError(f"{file} is no config file: it has no get_config")
    return module["get_config"](*([variant] if variant else []))


def make_model(config: ConfigDict) -> LVCG:
    """The model that a config describes."""
    check_choices(config)
    return LVCG(
        geometry=as_geometry(config.geometry.matrix),
        eps=config.geometry.eps,
        learnable_geometry=config.geometry.learnable,
        beat_samples=config.preprocess.beat_samples,
        num_samples=round(config.preprocess.seconds * config.preprocess.rate),
        rate=config.preprocess.rate,
        rhythm_head=config.loss.lambda_rhythm > 0,
        ecg_source=config.loss.ecg_source,
        vcg_source=config.loss.vcg_source,
        view_term=config.loss.lambda_view > 0,
        anchor_term=config.loss.lambda_base > 0,
        **config.model.to_dict(),
    )


def check_choices(config: ConfigDict) -> None:
    """An InputError for a field with a word that it cannot be, or fields that do not go together."""
    fields = flatten(config)
    for name, choices in CHOICES.items():
        if fields[name] not in choices:
            raise InputError(f"{name} is '{fields[name]}': choose {', '.join(choices[:-1])} or {choices[-1]}")
    model, loss = config.model, config.loss
    check_statistics(model.structure)
    if model.dynamics_input == "encoded" and model.dynamics != "learned":
        raise InputError("model.dynamics_input='encoded' needs model.dynamics='learned'")
    if loss.ecg_source == "both" and (loss.vcg_source != "encoded" or model.stitch):
        raise InputError("loss.ecg_source='both' needs loss.vcg_source='encoded' and no model.stitch")
    if model.dynamics != "learned" and model.state_dim != model.token_dim:
        sizes = f"state_dim {model.state_dim} and token_dim {model.token_dim}"
        raise InputError(f"model.dynamics='{model.dynamics}' has no read-out: {sizes} must be the same")
    if 0 < model.rhythm_positions < config.preprocess.max_beats:
        raise InputError(f"model.rhythm_positions must be 0 or preprocess.max_beats={config.preprocess.max_beats}")


def as_geometry(matrix) -> str | tuple[tuple[float, ...], ...]:
    """A geometry's name, or its rows as nested tuples (as linen wants its fields); a file of rows is read."""
    if isinstance(matrix, str) and matrix in GEOMETRIES:
        return matrix
    return tuple(tuple(float(v) for v in row) for row in lead_matrix(matrix))


def make_subsets(config: ConfigDict):
    """Lead bit masks that training views are drawn from."""
    geometry = config.geometry
    matrix = lead_matrix(as_geometry(geometry.matrix))
    most = geometry.most_visible or geometry.num_visible
    if not 1 <= geometry.num_visible <= most <= len(LEADS):
        raise InputError(f"geometry: {geometry.num_visible} to {most} visible leads: give 1 to {len(LEADS)}")
    limits = (geometry.eps, geometry.identifiable_only, geometry.max_gain)
    sizes = range(geometry.num_visible, most + 1)
    return np.concatenate([training_subsets(matrix, size, *limits) for size in sizes])


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


def telling_fields(config: ConfigDict) -> dict[str, object]:
    """The flat fields without those that have the value of before they existed: a new field changes no older key."""
    then = {name: json.dumps(value) for name, value in LATER_FIELDS.items()}
    return {name: value for name, value in flatten(config).items() if then.get(name) != json.dumps(value)}


def save_config(config: ConfigDict, path: Path) -> None:
    """Writes the config as JSON."""
    write_whole(path, json.dumps(json.loads(config.to_json()), indent=2, sort_keys=True) + "\n")


def load_config(path: Path) -> ConfigDict:
    """Reads a config that save_config wrote, to a Path or a run_place."""
    if isinstance(path, Path):
        require_local(path)
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"no config.json in {path.parent}: is it a run directory of lvcg_jax.train?") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not a readable config ({error}): restore it from the run's checkpoint") from None
    return complete_config(data)


def complete_config(data: dict) -> ConfigDict:
    """A stored config; fields that are younger than it get their value of then."""
    for name, value in LATER_FIELDS.items():
        section, field = name.split(".")
        if section in data:
            data[section].setdefault(field, value)
    return ConfigDict(as_tuples(data))


def as_tuples(value):
    """Lists, as JSON has them, to the tuples that configs have; nested ones too."""
    if isinstance(value, dict):
        return {k: as_tuples(v) for k, v in value.items()}
    return tuple(as_tuples(v) for v in value) if isinstance(value, list) else value


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """The fields, other than FREE_FIELDS, in which two configs differ, as 'name: old -> new'."""
    a, b = flatten(old), flatten(new)
    names = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k) and k not in FREE_FIELDS)
    return [f"{name}: {a.get(name, 'absent')} -> {b.get(name, 'absent')}" for name in names]
