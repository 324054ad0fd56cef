"""Weights that the package carries, by name: LVCG.load("paper") works offline, right after the
installation.

    PACKAGED/NAME.safetensors   weights and norm statistics, in half precision where that is exact
                                enough (see `halve`)
             NAME.json          config, preprocessing, step and facts of the training run, checksums
                                of the weights and of the file itself
             NAME.md            model card

`lvcg package_weights` makes them from a run directory. Wherever a checkpoint is asked for, an
existing directory is a run; anything else is the name of packaged weights.

A folder of `lvcg export --format=huggingface` holds the same as model.safetensors, config.json and
README.md, and is read wherever a run directory is.
"""

import difflib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, run_place
from lvcg_jax.config.files import as_tuples, load_config
from lvcg_jax.config.inputs import make_preprocess

PACKAGED = Path(__file__).resolve().parent / "packaged"
DEFAULTS = ("best", "paper")  # what commands use without --checkpoint: the first that is packaged
FORMAT = 1  # of NAME.json
FACTS_HASH = "facts_sha256"  # of NAME.json: a hash of everything else in it
LARGEST_ERROR = 1e-3  # relative; an array that half precision changes by more stays float32
FOLDER_FILES = ("model.safetensors", "config.json")  # of an exported folder
CHECKPOINT_HELP = (
    f"run directory of lvcg train, or packaged weights by name (default {', or '.join(DEFAULTS)})"
)


@dataclass(frozen=True)
class Packaged:
    """Packaged weights, as far as inference needs them."""

    config: ConfigDict
    variables: dict  # float32: params, batch_stats
    facts: dict  # NAME.json


def names() -> list[str]:
    """The names of the packaged weights."""
    return sorted(
        {path.stem for path in PACKAGED.glob("*") if path.suffix in (".safetensors", ".json")}
    )


def is_packaged(checkpoint: str | Path) -> bool:
    """Whether a checkpoint argument means packaged weights: a directory of that name goes first."""
    return not Path(checkpoint).is_dir() and str(checkpoint) in names()


def choose(checkpoint: str | Path | None, otherwise: str = "") -> str | Path:
    """The --checkpoint of a command, or else the first of DEFAULTS that is packaged, which is then
    printed. `otherwise` ends the message if there is none."""
    if checkpoint is not None:
        return checkpoint
    name = next((name for name in DEFAULTS if name in names()), None)
    if name is None:
        raise InputError(
            f"no weights '{DEFAULTS[0]}' are packaged: give --checkpoint=RUN, a run"
            f" directory{otherwise}"
        )
    kind = "packaged weights" if is_packaged(name) else "run directory"
    print(f"no --checkpoint given: the {kind} '{name}'")
    return name


def load(name: str) -> Packaged:
    """Packaged weights by name, checked against their checksum."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        there = f"packaged are {', '.join(names())}" if names() else "none are packaged"
        hint = f"did you mean {near[0]}? {there}" if near else there
        raise InputError(
            f"no run directory {name}, and no packaged weights of that name ({hint}): give the"
            " --workdir of a training run, or the name of packaged weights"
        )
    return _read(PACKAGED / f"{name}.safetensors", PACKAGED / f"{name}.json", _REINSTALL)


def is_folder(place: Path) -> bool:
    """Whether a directory is one of `lvcg export --format=huggingface`, and no run."""
    return (place / FOLDER_FILES[0]).is_file()


def load_folder(folder: Path) -> Packaged:
    """The weights of such a folder, checked against their checksum."""
    file, facts = FOLDER_FILES
    return _read(folder / file, folder / facts, "export or download it again")


def _read(path: Path, facts_path: Path, remedy: str) -> Packaged:
    facts = _facts_of(facts_path, remedy)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _damaged(path, str(error.strerror), remedy) from None
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise _damaged(path, f"its checksum is not that in {facts_path.name}", remedy)
    config = ConfigDict(as_tuples(facts["config"]))
    if make_preprocess(config).hash() != facts["preprocess_hash"]:
        raise InputError(
            f"{path} was trained with preprocessing {facts['preprocess_hash']}, which this version"
            " of the code does not do: install the version of lvcg-jax that the weights came with"
        )
    return Packaged(config, from_bytes(data), facts)


def read_facts(name: str) -> dict:
    """NAME.json."""
    return _facts_of(PACKAGED / f"{name}.json", _REINSTALL)


def _facts_of(path: Path, remedy: str) -> dict:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise _damaged(path, "it is no readable JSON", remedy) from None
    if not isinstance(facts, dict):
        raise _damaged(path, "it holds no facts", remedy)
    missing = {"format", "sha256", "config", "preprocess_hash"} - facts.keys()
    if missing or facts["format"] != FORMAT:
        what = f"no {', '.join(sorted(missing))}" if missing else f"format {facts['format']}"
        raise _damaged(path, what, remedy)
    if facts.get(FACTS_HASH) not in (None, facts_hash(facts)):
        raise _damaged(path, "its checksum is not the one in it", remedy)
    return facts


def facts_hash(facts: dict) -> str:
    """A hash of NAME.json, but for the hash in it."""
    rest = {key: value for key, value in facts.items() if key != FACTS_HASH}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


_REINSTALL = "reinstall lvcg-jax (pip install --force-reinstall --no-deps)"


def _damaged(path: Path, what: str, remedy: str) -> InputError:
    return InputError(f"{path} is damaged ({what}): {remedy}")


def config_of(checkpoint: str | Path) -> ConfigDict:
    """The config of a run directory or of packaged weights."""
    run = run_place(checkpoint)
    if not is_remote(run) and is_folder(run):
        return load_folder(run).config
    return (
        load_config(run / "config.json")
        if is_remote(run) or run.is_dir()
        else load(str(checkpoint)).config
    )


def halve(x: np.ndarray) -> np.ndarray:
    """x as float16, or unchanged where that would change it by more than LARGEST_ERROR.

    The error of a matrix or kernel is relative to its norm, as small elements matter little in it.
    That of a vector is relative to each element, as norm statistics and scales act one by one.
    """
    if x.dtype != np.float32:
        return x
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    error, size = np.abs(half.astype(np.float64) - x), np.abs(x.astype(np.float64))
    if x.ndim > 1:
        error, size = np.array(np.linalg.norm(error)), np.array(np.linalg.norm(size))
    return half if np.all(error <= LARGEST_ERROR * size) else x


def halve_exactly(x: np.ndarray) -> np.ndarray:
    """x as float16 where that changes nothing."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16) if x.dtype == np.float32 else x
    return half if np.array_equal(half.astype(x.dtype), x) else x


def to_bytes(
    variables: dict, shorten: Callable[[np.ndarray], np.ndarray] = halve, **metadata: str
) -> bytes:
    """A safetensors file of params and batch_stats, named 'params/encoder/...'."""
    tensors = {name: np.asarray(x) for name, x in flatten_dict(variables, sep="/").items()}
    held = {name: np.ascontiguousarray(shorten(x)) for name, x in tensors.items()}
    return tensor_bytes(held, metadata or None)


def from_bytes(data: bytes) -> dict:
    """The inverse: params and batch_stats, in single precision."""
    tensors = read_tensors(data)
    wide = {
        name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in tensors.items()
    }
    return {"params": {}, "batch_stats": {}} | unflatten_dict(wide, sep="/")


def weights_hash(variables) -> str:
    """Eight hex digits of the content of all weights and norm statistics."""
    digest = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(variables):
        digest.update(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}".encode())
        digest.update(np.asarray(x).tobytes())
    return digest.hexdigest()[:8]
