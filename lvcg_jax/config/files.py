"""Configs as plain data: reading, writing and comparing them, and what a config describes: model,
preprocessing."""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.base.files import require_local, write_whole
from data_prep.base.words import first_line
from lvcg_jax.config.fields import FREE_FIELDS, flatten

SECTIONS = ("preprocess", "geometry", "model", "loss", "optim", "data", "train", "mesh")
PAPER_CONFIG = "configs/pretrain.py"  # the paper's table of hyper-parameters


def config_folder() -> Path:
    """The folder `configs`: inside an installed package, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(
        (folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()),
        package,
    )


def find_config(path: str | Path) -> tuple[Path, str]:
    """The file and the variant of 'configs/pretrain.py:demo'.

    A file that is not there is looked for by its name among the configs of the package, so that a
    preset can be named from any folder: 'configs/pretrain.py:demo', 'pretrain.py:demo' and
    'pretrain:demo' all find it.
    """
    file, _, variant = str(path).partition(":")
    packaged = config_folder() / Path(file).with_suffix(".py").name
    if Path(file).is_file():
        return Path(file), variant
    if Path(file).parent.name in ("", "configs") and packaged.is_file():
        return packaged, variant
    known = ", ".join(f"configs/{each.name}" for each in sorted(config_folder().glob("*.py")))
    raise InputError(
        f"no config file {file}: give a file, or one of the package ({known or 'none found'})"
    )


def read_config_file(path: str | Path) -> ConfigDict:
    """The config of a file with get_config, or of one of its variants:
    'configs/pretrain.py:demo'."""
    file, variant = find_config(path)
    module = runpy.run_path(str(file))
    if "get_config" not in module:
        raise InputError(f"{file} is no config file: it has no get_config")
    return module["get_config"](*([variant] if variant else []))


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
        raise InputError(
            f"no config.json in {path.parent}: is it a run directory of lvcg_jax.train?"
        ) from None
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        raise _unreadable(path, first_line(error, 120)) from None
    if not isinstance(data, dict) or any("." in key for key in _keys(data)):
        raise _unreadable(path, "it does not hold fields by section")
    for section in SECTIONS:
        if section in data and not isinstance(data[section], dict):
            raise _unreadable(path, f"{section} is no section")
    return ConfigDict(as_tuples(data))


def _keys(data: dict) -> Iterator[str]:
    for key, value in data.items():
        yield key
        yield from _keys(value) if isinstance(value, dict) else ()


def _unreadable(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} is not a readable config ({what}): restore it from the run's checkpoint"
    )


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
