"""Embeddings of a data set that studies compare, each made once and then kept in a folder.

A trained model stands beside its own config with random weights, and beside median beats, which
learn nothing. A table's file is named after all that it depends on, so what has changed is made
anew.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.dataset.shards import METADATA_FILE, ShardSet, file_sha256
from lvcg_jax.config.fields import flatten
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, load_table, save_table
from lvcg_jax.probe.median_beat import median_beat_table

MODEL, RANDOM, RAW, MEDIAN = "LVCG", "random weights", "random weights, raw", "median beat"
CONTROLS = (RANDOM, RAW, MEDIAN)


@dataclass(frozen=True)
class Features:
    """Embeddings of a data set: their name, all that they depend on, and how to make them."""

    name: str
    key: list[str]
    make: Callable[[], Table]

    def table(self, folder: Path) -> Table:
        """Read from the folder, or made and stored there."""
        path = folder / f"{self.name}-{digest_of(self.key)}.npz"
        if path.exists():
            return load_table(path)
        print(f"embedding: {self.name}")
        table = self.make()
        save_table(path, table)
        return table


def digest_of(key: Sequence[str]) -> str:
    """A short name for a key."""
    return hashlib.sha256("|".join(key).encode()).hexdigest()[:12]


def data_key(data: Path) -> str:
    """Names a data set: its metadata hold the checksums of its shards, and the preprocessing."""
    return file_sha256(data / METADATA_FILE)


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
