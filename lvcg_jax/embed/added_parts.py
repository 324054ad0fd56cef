"""Other parts beside the tokens, put into the embedding of trained weights."""

from typing import Any, Protocol

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.model.record_token import NAME as RECORD_TOKEN
from lvcg_jax.train import fitted

REPLACED = (*fitted.NAMES, RECORD_TOKEN)  # parameters that trained weights may have had before


class Model(Protocol):
    """Trained weights, as an LVCG has them."""

    config: ConfigDict
    variables: dict[str, Any]
    checkpoint: str


def with_parts(
    trained: Model,
    shards: ShardSet,
    beat_modes: tuple[int, int],
    patterns: int,
    beat_levels: int,
    record_token: Model | None,
    structure: str | None,
) -> tuple[ConfigDict, dict[str, Any]]:
    """The config and the variables of `trained` with these parts, and without those that it had;
    the arguments are those of LVCG.with_parts."""
    config = trained.config.copy_and_resolve_references()
    config.model.update(
        beat_modes=beat_modes, patterns=patterns, beat_levels=beat_levels, record_token=0
    )
    config.model.structure = structure or config.model.structure
    variables = {
        kind: {name: x for name, x in given.items() if name not in REPLACED}
        for kind, given in trained.variables.items()
    }
    variables["params"] |= fitted.fit_parts(config, shards)
    if record_token is not None:
        _require_record_token(record_token, config)
        given = record_token.config.model
        config.model.update({name: x for name, x in given.items() if name.startswith("record_")})
        # in the training of its own its parameters are 'token'
        own = "token" if "peer" in record_token.config else RECORD_TOKEN
        for kind in ("params", "batch_stats"):
            variables[kind][RECORD_TOKEN] = record_token.variables[kind][own]
        covariance = record_token.variables["params"]["lead_covariance"]
        variables["params"]["lead_covariance"] = covariance
    return config, variables


def _require_record_token(given: Model, config: ConfigDict) -> None:
    """An InputError unless the model has a record token for the preprocessing of `config`."""
    name = given.checkpoint
    if not given.config.model.record_token:
        raise InputError(f"{name} has no record token: train one by configs/record_token.py")
    asked, other = (make_preprocess(c).hash() for c in (config, given.config))
    if asked != other:
        raise InputError(
            f"the record token of {name} was trained with another preprocessing ({other},"
            f" not {asked})"
        )
    for field in ("encoder_width", "norm_epsilon", "gelu_exact"):
        theirs, ours = given.config.model[field], config.model[field]
        if theirs != ours:
            raise InputError(
                f"the record token of {name} has model.{field}={theirs}, these weights have {ours}"
            )
