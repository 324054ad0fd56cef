"""Embeddings of a data set that studies compare, each made once and then kept in a folder.

A trained model stands beside its own config with random weights, and beside median beats, which
learn nothing. What has changed is made anew (lvcg_jax/studies/kept.py).
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.dataset.shards import ShardSet
from lvcg_jax.config.fields import flatten
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.probe.median_beat import median_beat_table
from lvcg_jax.studies.kept import Features, data_key


def random_weights_key(config: ConfigDict) -> str:
    """All of a config that its random weights depend on."""
    sections = ("preprocess", "geometry", "model", "peer")
    fields = flatten(config).items()
    same = {name: value for name, value in fields if name.split(".")[0] in sections}
    return json.dumps(same, sort_keys=True)


def trained_features(model: LVCG, data: Path, tokens: bool = False) -> Features:
    """A trained model, with its beat tokens if an attention head is to read them."""
    name = "trained_tokens" if tokens else "trained"
    make = lambda: embed_dataset(model, data, tokens=tokens)  # noqa: E731
    return Features(name, [model.checkpoint, data_key(data)], make)


def random_features(
    config: ConfigDict,
    seed: int,
    data: Path,
    splits: Sequence[str] | None = None,
    tokens: bool = False,
) -> Features:
    """The control: random weights, with norm statistics measured on training records."""
    key = [random_weights_key(config), str(seed), data_key(data), *(splits or ())]
    model = lambda: LVCG.random(config, seed, ShardSet(data, "train"))  # noqa: E731
    make = lambda: embed_dataset(model(), data, splits=splits, tokens=tokens)  # noqa: E731
    return Features(f"random{seed}{'_tokens' * tokens}", key, make)


def raw_features(config: ConfigDict, data: Path) -> Features:
    """The control as others have it: random weights with norm statistics as initialised."""
    key = [random_weights_key(config), "raw", data_key(data)]
    return Features("raw", key, lambda: embed_dataset(LVCG.random(config, 0, None), data))


def median_features(data: Path, splits: Sequence[str] | None = None) -> Features:
    """The control without learning."""
    key = [data_key(data), *(splits or ())]
    return Features("median_beat", key, lambda: median_beat_table(data, splits))
