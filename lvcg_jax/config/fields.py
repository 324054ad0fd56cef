"""The fields of a config by their flat names, what each may be, and which may change between two
starts of a run."""

import json
import math

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from lvcg_jax.model.pooling import check_statistics

# Fields that may change when a run is resumed: they do not touch what is computed. A data set may
# move to another folder; that it is the same one, the checkpoint knows.
FREE_FIELDS = (
    "data.cache",
    "data.dir",
    "data.prefetch",
    "data.threads",
    "train.log_every",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "model.scan_unroll",
    "model.remat",
    "mesh.group_records",
    "mesh.model",
    "mesh.shard_parameters",
    "mesh.shard_min_size",
)
# Fields that a run divides by, counts with or waits for: zero or less makes no sense.
POSITIVE_FIELDS = (
    "data.batch_size",
    "data.synthetic_patients",
    "mesh.group_records",
    "mesh.model",
    "optim.accumulate",
    "train.steps",
    "train.log_every",
    "train.validate_every",
    "train.validate_records",
    "train.checkpoint_every",
    "train.keep_checkpoints",
)
# Sizes of the network, and how many layers may be stacked: beyond that it would not compile within
# a day.
SIZES = (
    "model.token_dim",
    "model.stem_features",
    "model.stage_features",
    "model.stage_blocks",
    "model.encoder_width",
    "model.state_dim",
    "model.decoder_seed_features",
    "model.decoder_features",
    "model.decoder_width",
)
MOST_LAYERS = {"model.stage_blocks": 256, "model.dynamics_layers": 64}
# The words that a field may be.
CHOICES = {
    "model.space": ("vcg", "ecg"),
    "model.token_scope": ("beat", "axis"),
    "model.decoder_passes": ("one", "apart"),
    "model.dynamics": ("learned", "zero", "none"),
    "model.dynamics_input": ("predicted", "encoded"),
    "model.dynamics_start": ("complete", "first", "each"),
    "model.unroll": ("record", "batch"),
    "model.rhythm_intervals": ("complete", "all"),
    "model.rhythm_unit": ("seconds", "samples"),
    "model.rhythm_steps": ("seconds", "relative"),
    "model.norm": ("batch", "layer"),
    "model.padding": ("ignored", "counted"),
    "loss.reduction": ("sum", "mean", "mixed"),
    "loss.ecg_source": ("predicted", "encoded", "both"),
    "loss.vcg_source": ("encoded", "predicted"),
    "optim.decay": ("kernels", "all"),
    "optim.schedule": ("cosine", "constant"),
    "optim.batch_rule": ("none", "sqrt", "linear"),
}


def flatten(config: ConfigDict) -> dict[str, object]:
    """{'optim.learning_rate': 5e-4, ...}, with tuples as lists, as JSON has them."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat.update({f"{key}.{inner}": v for inner, v in flatten(value).items()})
        else:
            flat[key] = json.loads(json.dumps(value))
    return flat


def check_positive(config: ConfigDict) -> None:
    """An InputError for a field that must be 1 or more and is not."""
    for name in POSITIVE_FIELDS:
        section, field = name.split(".")
        if config[section][field] < 1:
            raise InputError(f"{name} is {config[section][field]}: give 1 or more")


def _check_sizes(fields: dict[str, object]) -> None:
    """InputErrors for numbers with which a model would never be made, or mean nothing."""
    for name, value in fields.items():
        numbers = value if isinstance(value, list) else [value]
        numbers = [x for x in numbers if isinstance(x, int | float) and not isinstance(x, bool)]
        if name.startswith(("model.", "geometry.")) and not all(map(math.isfinite, numbers)):
            raise InputError(f"{name} is {value}: give finite numbers")
        if name.startswith("model.") and (len(numbers) > 64 or any(x > 2**16 for x in numbers)):
            raise InputError(f"{name} is larger than any model's: give at most {2**16}")
    for name, most in MOST_LAYERS.items():
        if sum(fields[name]) > most if isinstance(fields[name], list) else fields[name] > most:
            raise InputError(f"{name} is {fields[name]}: give at most {most} in all")
    for name in SIZES:
        numbers = fields[name] if isinstance(fields[name], list) else [fields[name]]
        if any(x < 1 for x in numbers):
            raise InputError(f"{name} is {fields[name]}: give 1 or more")


def check_choices(config: ConfigDict) -> None:
    """An InputError for a field with a word that it cannot be, or fields that do not go
    together."""
    fields = flatten(config)
    for name, choices in CHOICES.items():
        if fields[name] not in choices:
            raise InputError(
                f"{name} is '{fields[name]}': choose {', '.join(choices[:-1])} or {choices[-1]}"
            )
    _check_sizes(fields)
    model, loss = config.model, config.loss
    check_statistics(model.structure)
    for field, word in (("dynamics_input", "encoded"), ("dynamics_start", "each")):
        if model[field] == word and model.dynamics != "learned":
            raise InputError(f"model.{field}='{word}' needs model.dynamics='learned'")
    if loss.ecg_source != "predicted" and (loss.vcg_source != "encoded" or model.stitch):
        raise InputError(
            f"loss.ecg_source='{loss.ecg_source}' needs loss.vcg_source='encoded' and no"
            " model.stitch"
        )
    if model.dynamics != "learned" and model.state_dim != model.token_dim:
        sizes = f"state_dim {model.state_dim} and token_dim {model.token_dim}"
        raise InputError(
            f"model.dynamics='{model.dynamics}' has no read-out: {sizes} must be the same"
        )
    if 0 < model.rhythm_positions < config.preprocess.max_beats:
        raise InputError(
            "model.rhythm_positions must be 0 or"
            f" preprocess.max_beats={config.preprocess.max_beats}"
        )
