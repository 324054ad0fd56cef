"""A config and changes of it, trained at one budget and embedded, to be compared by a probe.

What lvcg_jax.studies.ablate and lvcg_jax.studies.search share. Everything is made once and kept in
a folder under a name that follows from config and data. So a command that was stopped continues,
and a change that was edited is trained anew.
"""

import runpy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.base.command import Parser
from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import differences, find_config
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table
from lvcg_jax.studies.kept import Features, data_key, digest_of
from lvcg_jax.studies.trials import Stopped, fingerprint, reason_of
from lvcg_jax.text.flags import add_shared
from lvcg_jax.train.loop import train_and_evaluate

BASE = "base"


@dataclass
class Variant:
    """One row of the table: a config with its shards, or the reason why there is none."""

    name: str
    change: str  # fields that differ from the base
    config: ConfigDict | None = None
    data: Path | None = None
    reason: str = ""


def plan(
    base: ConfigDict,
    changes: dict[str, Callable],
    data: dict[str, Path],
    only: Sequence[str] | None,
) -> list[Variant]:
    """The base and its changes, each with shards that fit it or a reason."""
    ShardSet(data[BASE], "train").require_preprocess(make_preprocess(base))
    variants = [Variant(BASE, "", base, data[BASE])]
    for name in changes if only is None else only:
        variant = Variant(name, "")
        try:
            config = base.copy_and_resolve_references()
            changes[name](config)
            variant.change = describe_change(base, config)
            if not variant.change:
                raise InputError("the base has this already")
            make_model(config)  # refuses fields that do not go together
            variant.data = data.get(name, data[BASE])
            _require_shards(variant, make_preprocess(config), name in data)
            variant.config = config
        except Exception as error:  # a change may be anybody's code
            variant.reason = reason_of(error, variant.data)
        variants.append(variant)
    return variants


def _require_shards(variant: Variant, preprocess: Preprocess, own: bool) -> None:
    """Shards that fit, or what builds them."""
    metadata = read_metadata(variant.data)
    if own or metadata["preprocess_hash"] == preprocess.hash():
        ShardSet(variant.data, "train").require_preprocess(preprocess)
        return
    usual = Preprocess().to_dict()
    fields = [
        f"--preprocess={name}={value}"
        for name, value in preprocess.to_dict().items()
        if value != usual[name]
    ]
    command = f"lvcg build --corpus={metadata['corpus']} --raw=RAW --out=SHARDS {' '.join(fields)}"
    raise InputError(f"needs shards of its own: {command}, then --data={variant.name}:SHARDS")


def describe_change(old: ConfigDict, new: ConfigDict) -> str:
    """The fields in which two configs differ, without the numbers of a matrix."""
    found = differences(old, new)
    return "; ".join(x if len(x) < 100 else f"{x.split(':')[0]}: other rows" for x in found)


def run_of(variant: Variant, seed: int, out: Path) -> tuple[ConfigDict, list[str], Path]:
    """Config, key and run directory of one training."""
    config = variant.config.copy_and_resolve_references()
    config.seed = seed
    key = [fingerprint(config), data_key(variant.data)]
    return config, key, out / "runs" / f"{variant.name}-seed{seed}-{digest_of(key)}"


def train_and_embed(
    config: ConfigDict, data: Path, run: Path, splits: Sequence[str] | None
) -> Table:
    """Trains a run to its end, or continues it, and embeds the data set with the last
    checkpoint."""
    config.data.dir = str(data)
    if train_and_evaluate(config, run) != "finished":
        raise Stopped
    return embed_dataset(LVCG.load(run, "latest"), data, splits=splits)


def variant_features(
    variant: Variant, seed: int, out: Path, splits: Sequence[str] | None = None
) -> Features:
    """The embeddings of a variant trained with a seed, of these splits (default: all)."""
    config, key, run = run_of(variant, seed, out)
    make = lambda: train_and_embed(config, variant.data, run, splits)  # noqa: E731
    return Features(f"{variant.name}-seed{seed}", [*key, *(splits or ())], make)


def features_elsewhere(variant: Variant, seed: int, out: Path, data: Path) -> Features:
    """The embeddings of a data set that a variant was not trained on, by its finished run."""
    _, key, run = run_of(variant, seed, out)
    make = lambda: embed_dataset(LVCG.load(run, "latest"), data)  # noqa: E731
    return Features(f"{variant.name}-seed{seed}", [*key, data_key(data)], make)


def drop_checkpoints(variant: Variant, seed: int, out: Path) -> None:
    """Deletes what takes room of a finished run."""
    for folder in ("checkpoints", "lowest"):
        shutil.rmtree(run_of(variant, seed, out)[2] / folder, ignore_errors=True)


def add_change_flags(parser: Parser) -> None:
    """The flags of a command that compares changes of a config."""
    add = parser.add_argument
    add(
        "--data",
        required=True,
        action="append",
        metavar="[NAME:]SHARDS",
        help="shards of the base, and with NAME: of one change; may be repeated",
    )
    add("--out", required=True, type=Path, help="folder for tables, embeddings and runs")
    add("--only", metavar="A,B", help="changes to run (default: all)")
    add_shared(parser, "task", "fractions", "probe_seeds", "resamples", "page")


def parse_changes(
    file: str, name: str, only: str | None, data: Sequence[str]
) -> tuple[dict[str, Callable], list[str] | None, dict[str, Path]]:
    """The changes of a file, those of --only (None: all), and the shards of each by name."""
    changes = read_changes(file, name)
    chosen = only.split(",") if only else None
    for word in chosen or ():
        if word not in changes:
            raise InputError(f"--only: {file} has no '{word}', choose from {', '.join(changes)}")
    return changes, chosen, parse_data(data, list(changes))


def read_changes(file: str | Path, name: str) -> dict[str, Callable]:
    """The dictionary of this name in a config file: {name: change(config)}."""
    path, _ = find_config(file)
    changes = runpy.run_path(str(path)).get(name)
    if not isinstance(changes, dict) or not changes:
        raise InputError(
            f"{path} has no {name}, a dictionary of names and functions that change a config"
        )
    return changes


def parse_data(flags: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """['SHARDS', 'NAME:SHARDS', ...] -> {'base': Path, NAME: Path}."""
    found: dict[str, Path] = {}
    for text in flags:
        name, colon, folder = text.partition(":")
        key, path = (name, Path(folder)) if colon and name in names else (BASE, Path(text))
        if key in found:
            raise InputError(f"--data={text}: there are shards for '{key}' already ({found[key]})")
        found[key] = path
    if BASE not in found:
        raise InputError("--data=SHARDS, the shards of the base config, is needed")
    return found
