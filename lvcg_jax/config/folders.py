"""The folders of shards that a config trains on, and how much each gives to an epoch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.base.errors import InputError


@dataclass(frozen=True)
class Folder:
    """A dataset directory, and how often an epoch shows each of its records."""

    path: Path
    weight: float = 1.0


def read_folders(words: str | Sequence[str]) -> list[Folder]:
    """The folders that data.dir names: one, or several with commas between them, or a tuple of
    them. Each may end in a weight: 'data/ptbxl,data/csn:0.5'.

    What is a directory as it stands is never taken apart, and only a number after the last colon
    is a weight. So names with a comma or a colon work. Empty: no folder.
    """
    if isinstance(words, str):
        words = [words] if os.path.isdir(words) else words.split(",") if words else []
    folders = [_read_folder(word.strip(), ",".join(words)) for word in words]
    places: dict[Path, Folder] = {}
    for folder in folders:
        other = places.setdefault(folder.path.resolve(), folder)
        if other is not folder:
            raise InputError(
                f"data.dir names {folder.path} twice: name it once, with the weight"
                f" {other.weight + folder.weight:g}"
            )
    return folders


def _read_folder(word: str, whole: str) -> Folder:
    if not word:
        raise InputError(f"data.dir={whole}: there is no folder beside one of the commas")
    path, _, number = word.rpartition(":")
    try:
        weight = float(number)
    except ValueError:
        return Folder(Path(word))
    if not path or os.path.isdir(word):
        return Folder(Path(word))
    if not (isfinite(weight) and weight > 0):
        raise InputError(
            f"data.dir={whole}: the weight of {path} is {number}: give a number above 0, or leave"
            " out the folder"
        )
    return Folder(Path(path), weight)


def times(weight: float) -> str:
    """' x 0.5'; nothing for a weight of 1."""
    return "" if weight == 1 else f" x {weight:g}"


def trained_folders(config: ConfigDict, run: Path) -> list[Folder]:
    """The folders that a run was trained on: of its config, or its own synthetic data set."""
    return read_folders(config.data.dir) or [Folder(run / "data")]
