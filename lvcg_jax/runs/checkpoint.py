"""Run directories: what a run is (config, versions), its checkpoints, and how it continues.

    RUN/config.json   versions.json   metrics.jsonl   checkpoints/STEP   lowest/STEP

A checkpoint holds the train state with a hash of its numbers, the position in the data, the config,
the hash of the preprocessing and the identity of the data set. Orbax writes it in the background
under a temporary name and renames it, or on object storage marks it when it is whole, so a killed
process leaves the previous one intact.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import platform
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, run_place, write_whole
from data_prep.base.memory import give_back_freed_memory
from data_prep.base.words import first_line
from data_prep.dataset.shards import ALL_SPLITS
from lvcg_jax.config.files import as_tuples, differences, load_config, save_config
from lvcg_jax.config.folders import times
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.runs.history import read_versions

LOCK = "lock"  # held by the training that writes into a run directory
_PACKAGES = (
    "lvcg-jax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "scipy",
    "wfdb",
)


def open_run(workdir: Path, config: ConfigDict) -> None:
    """Makes the run directory, or checks that the one that is there belongs to this config."""
    path = workdir / "config.json"
    if path.exists():
        changed = differences(load_config(path), config)
        if changed:
            some = "; ".join(changed[:5]) + (" ..." if len(changed) > 5 else "")
            raise InputError(
                f"{workdir} belongs to another config ({some}): use another --workdir, or the"
                " config it was started with"
            )
        _write_versions(workdir)
        return
    if workdir.exists() and any(workdir.iterdir()):
        known = {"data", "synthetic", "config.json.tmp", LOCK}
        foreign = [p.name for p in workdir.iterdir() if p.name not in known]
        if foreign:
            some = ", ".join(sorted(foreign)[:3])
            raise InputError(
                f"{workdir} holds other files ({some}) and no config.json: use another --workdir"
            )
    save_config(config, path)
    _write_versions(workdir)


def _write_versions(workdir: Path) -> None:
    """Notes what a run is made with; the note that is there, of its first start, stays."""
    if (workdir / "versions.json").exists():
        return
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    versions |= {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
    }
    write_whole(workdir / "versions.json", json.dumps(versions, indent=2) + "\n")


def note_data(workdir: Path, words: str) -> None:
    """Writes what a run is trained on into its versions.json, unless it says so already."""
    path = workdir / "versions.json"
    versions = read_versions(workdir)
    if "data" not in versions:
        write_whole(path, json.dumps(versions | {"data": words}, indent=2) + "\n")


class DamagedCheckpoint(InputError):
    """A checkpoint is there and cannot be read; the message says what is wrong with it."""


def data_identity(metadata: dict, trained_on: str = "train") -> dict:
    """What a checkpoint stores of the data set that it was trained on, from its dataset.json.

    `trained_on` is the config's data.splits. The identity depends on what the training and
    validation shards hold, not on the folder they are in, so a data set may be moved, renamed or
    copied to another machine.
    """
    there = metadata["splits"]
    trained = list(there) if trained_on == ALL_SPLITS else [trained_on]
    read = dict.fromkeys([*trained, "validation"])
    sums = [[s["sha256"] for s in there[n]["shards"]] if n in there else [] for n in read]
    return {
        "corpus": metadata["corpus"],
        "train_windows": sum(there[name]["examples"] for name in trained),
        "sha256": hashlib.sha256(json.dumps(sums).encode()).hexdigest(),
    }


def mixed_identity(identities: Sequence[dict], weights: Sequence[float]) -> dict:
    """The data_identity of several data sets, which also knows their order and weights; that of a
    single set of weight 1 is its own."""
    if list(weights) == [1]:
        return identities[0]
    sums = [[one["sha256"], float(weight)] for one, weight in zip(identities, weights, strict=True)]
    names = [one["corpus"] + times(weight) for one, weight in zip(identities, weights, strict=True)]
    return {
        "corpus": ", ".join(names),
        "train_windows": sum(one["train_windows"] for one in identities),
        "sha256": hashlib.sha256(json.dumps(sums).encode()).hexdigest(),
    }


def _identity_words(data: dict) -> str:
    return f"{data['corpus']} ({data['train_windows']:,} training windows, {data['sha256'][:8]})"


class Checkpoints:
    """The newest few checkpoints of a run, and the one with the lowest validation loss.

    Without a config they are only read. `data` is the data_identity of the data set.
    """

    def __init__(
        self,
        workdir: Path,
        config: ConfigDict | None = None,
        keep: int = 3,
        data: dict | None = None,
    ):
        self.workdir, self.config, self.data = run_place(workdir), config, data
        _quiet_repeats()
        self._latest = self._manager("checkpoints", keep)
        self._lowest = self._manager("lowest", 1)
        self._damaged: set[int] = set()  # steps of checkpoints that restore_latest could not read
        self.lowest_loss = float("inf")
        step = self._lowest.latest_step()
        if step is not None:
            try:
                self.lowest_loss = float(_read_meta(self._lowest, step, "validation_loss"))
            except DamagedCheckpoint as error:
                _warn(f"the checkpoint of lowest validation loss cannot be read ({error})")

    def _manager(self, name: str, keep: int) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=self.config is not None,
            enable_async_checkpointing=self.config is not None,
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        place = self.workdir / name
        place = place if is_remote(place) else place.absolute()
        return ocp.CheckpointManager(place, options=options, item_handlers=handlers)

    def _save(self, manager: ocp.CheckpointManager, step: int, state, meta: dict) -> None:
        meta = {
            "position": {"next_index": step},
            "preprocess_hash": make_preprocess(self.config).hash(),
            "data": self.data,
            "config": json.loads(self.config.to_json()),
            "sha256": state_hash(state),
            **meta,
        }
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta))
        # One save at a time: processes meet at numbered barriers, and two saves at once may number
        # them differently.
        self.wait()
        give_back_freed_memory()  # the threads of the save before have left some tens of megabytes
        with self._writing():
            if step in manager.all_steps():  # a damaged one
                manager.delete(step)
            manager.save(step, args=items, force=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A checkpoint that cannot be written, this one or the one under way, is told in one
        line."""
        try:
            yield
        except Exception as error:
            if not is_storage_error(error):
                raise
            cause, remedy = (
                ("can the bucket be reached", "see to it")
                if is_remote(self.workdir)
                else ("is the disk full", "make room")
            )
            raise InputError(
                f"a checkpoint could not be written to {self.workdir} ({first_line(error)[:120]}):"
                f" {cause}? The one before is intact: {remedy} and start the same command again"
            ) from error

    def save(self, step: int, state) -> None:
        """Saves the newest state; a step that is already there is left as it is, unless it was
        found damaged."""
        if step not in self._latest.all_steps() or step in self._damaged:
            self._save(self._latest, step, state, {})
            self._damaged.discard(step)

    def save_if_lowest(self, step: int, state, validation_loss: float) -> bool:
        """Keeps the state if no earlier one had a lower validation loss."""
        if not validation_loss < self.lowest_loss:
            return False
        self.lowest_loss = validation_loss
        self._save(self._lowest, step, state, {"validation_loss": validation_loss})
        return True

    def restore_latest(self, abstract_state):
        """The newest readable state and its data position, or None for a new run.

        Damaged checkpoints are passed over; one of other data is refused.
        """
        steps = sorted(self._latest.all_steps(), reverse=True)
        for step in steps:
            try:
                meta = _read_meta(self._latest, step)
                self._check_data(meta.get("data"))
                return _read_state(self._latest, step, abstract_state, meta), meta["position"]
            except DamagedCheckpoint as error:
                self._damaged.add(step)
                _warn(f"checkpoint {step} cannot be read ({error}); trying the one before")
        if steps:
            raise InputError(
                f"no checkpoint in {self.workdir / 'checkpoints'} can be read: start a new"
                " --workdir"
            )
        return None

    def _check_data(self, stored: dict | None) -> None:
        """Refuses to continue with a data set that is not the one of the checkpoint."""
        if stored and self.data and stored["sha256"] != self.data["sha256"]:
            raise InputError(
                f"{self.workdir} was trained on {_identity_words(stored)}, data.dir now holds"
                f" {_identity_words(self.data)}: give the data set that the run was started with,"
                " or another --workdir"
            )

    def restore_for_use(self, abstract_state, which: str = "lowest", meta: dict | None = None):
        """The state to evaluate, and its step: of lowest validation loss, or the latest (also where
        none was validated). `meta` is what check_config has read."""
        manager, step = self._for_use(which)
        meta = _read_meta(manager, step) if meta is None else meta
        return _read_state(manager, step, abstract_state, meta), step

    def check_config(self, config: ConfigDict, which: str = "lowest") -> dict:
        """Refuses a config other than the one that the checkpoint to evaluate was trained with: it
        would give other embeddings without a word. Returns what the checkpoint says of itself."""
        manager, step = self._for_use(which)
        meta = _read_meta(manager, step)
        changed = differences(_as_config(meta.get("config")), config) if "config" in meta else []
        if changed:
            some = "; ".join(changed[:5]) + (" ..." if len(changed) > 5 else "")
            raise InputError(
                f"{self.workdir / 'config.json'} is not the config that checkpoint {step} was"
                f" trained with ({some}): put back what was changed"
            )
        if meta.get("preprocess_hash") not in (None, make_preprocess(config).hash()):
            raise InputError(
                f"{self.workdir} was trained with preprocessing {meta['preprocess_hash']}, which"
                " this version of the code does not do: use the version that trained it"
            )
        return meta

    def _for_use(self, which: str) -> tuple[ocp.CheckpointManager, int]:
        manager = (
            self._lowest
            if which == "lowest" and self._lowest.latest_step() is not None
            else self._latest
        )
        step = manager.latest_step()
        if step is None:
            raise InputError(
                f"{self.workdir} has no checkpoint yet: train first (lvcg train"
                f" --workdir={self.workdir})"
            )
        return manager, step

    def wait(self) -> None:
        """Blocks until background saves are on disk."""
        with self._writing():
            self._latest.wait_until_finished()
            self._lowest.wait_until_finished()

    def close(self) -> None:
        """Ends both managers; one that fails does not keep the other from closing."""
        with self._writing(), contextlib.ExitStack() as stack:
            stack.callback(self._lowest.close)
            stack.callback(self._latest.close)


# ---- Reading --------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What Orbax and tensorstore raise for a damaged checkpoint, as DamagedCheckpoint."""
    try:
        yield
    except Exception as error:
        # Orbax raises anything on a description that makes no sense; KeyError: a folder or an entry
        # that it looks up is gone
        of_files = is_storage_error(error) or isinstance(error, KeyError)
        if not of_files and not _went_through_orbax(error.__traceback__):
            raise
        raise DamagedCheckpoint(first_line(error)[:120]) from error


def _read_meta(manager: ocp.CheckpointManager, step: int, key: str | None = None):
    """What a checkpoint says of itself, or one entry of it."""
    with _reading():
        args = ocp.args.Composite(meta=ocp.args.JsonRestore())
        meta = manager.restore(step, args=args)["meta"]
    if not isinstance(meta, dict) or "position" not in meta or key not in (None, *meta):
        raise DamagedCheckpoint(f"its metadata has no {key or 'position'}")
    return meta if key is None else meta[key]


def _as_config(data) -> ConfigDict:
    try:
        return ConfigDict(as_tuples(data))
    except (AttributeError, TypeError, ValueError):
        raise DamagedCheckpoint("its metadata has no config") from None


def _read_state(manager: ocp.CheckpointManager, step: int, abstract_state, meta: dict):
    _check_shapes(manager, step, abstract_state)
    with _reading():
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state))
        state = manager.restore(step, args=args)["state"]
    saved, found = meta.get("sha256"), state_hash(state)
    if None not in (saved, found) and saved != found:
        raise DamagedCheckpoint("its numbers are not those that were saved")
    return state


def state_hash(state) -> str | None:
    """A hash of all numbers of a state; None if other processes hold some of them."""
    digest = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return None
        digest.update(f"{_name(path)} {x.dtype} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x))
    return digest.hexdigest()


def _check_shapes(manager: ocp.CheckpointManager, step: int, abstract_state) -> None:
    """A checkpoint of another architecture is refused in one line that names the first parameter
    that differs."""
    with _reading():
        stored = manager.item_metadata(step)["state"]
    if stored is None:
        raise DamagedCheckpoint("its state is missing")
    have = {_name(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(stored)}
    want = {
        _name(path): tuple(x.shape)
        for path, x in jax.tree_util.tree_leaves_with_path(abstract_state)
    }
    for name in sorted(have.keys() | want.keys()):
        if have.get(name) != want.get(name):
            raise InputError(
                f"checkpoint {manager.directory / str(step)} is of another architecture: '{name}'"
                f" has shape {have.get(name, 'absent')}, the config wants"
                f" {want.get(name, 'absent')}"
            )


def _name(path) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


# ---- Errors of others -----------------------------------------------------------------------

# tensorstore raises a plain ValueError for everything; only its text says that it is about
# storage: it begins with the status, as in 'OUT_OF_RANGE: Error writing local file ...'.
_STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
_CLOUD_PACKAGES = ("gcsfs", "aiohttp", "google")  # have errors of their own for object storage


def is_storage_error(error: Exception) -> bool:
    """Whether it is about a disk, a bucket or the content of a file, not a mistake of the code."""
    if isinstance(error, OSError | json.JSONDecodeError | UnicodeDecodeError):
        return True
    if type(error) is ValueError:
        return _STATUS.match(str(error)) is not None
    return type(error).__module__.partition(".")[0] in _CLOUD_PACKAGES


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _quiet_repeats() -> None:
    """An exception of a save or a restore is told once, when it is raised.

    Orbax also logs it, with a trace for each of its threads and tasks; and when one array cannot be
    read or written, the threads that work on the others find their event loop closed.
    """
    for name in ("absl", "asyncio"):  # Orbax logs to absl's logger
        logging.getLogger(name).addFilter(_is_not_of_orbax)
    before = sys.unraisablehook
    if getattr(before, "quiet_closed_loops", False):
        return

    def hook(unraisable) -> None:
        # asyncio has no type of its own for it: the function that raised it says what it is
        frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(unraisable.exc_traceback)]
        if not (unraisable.exc_type is RuntimeError and frames[-1:] == ["_check_closed"]):
            before(unraisable)

    hook.quiet_closed_loops = True
    sys.unraisablehook = hook


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """False for a log record of an exception that went through Orbax."""
    return not record.exc_info or not _went_through_orbax(record.exc_info[2])


def _went_through_orbax(trace: TracebackType | None) -> bool:
    frames = traceback.walk_tb(trace)
    return any("orbax" in Path(frame.f_code.co_filename).parts for frame, _ in frames)
