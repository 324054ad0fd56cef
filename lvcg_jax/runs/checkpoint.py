"""Run directories: what a run is (config, versions), its checkpoints, and going on where it
stopped.

    RUN/config.json   versions.json   metrics.jsonl   checkpoints/STEP   lowest/STEP

A checkpoint holds the train state, the position in the data, the config and the preprocessing hash.
Orbax writes it in the background under a temporary name and renames it, or on object storage marks
it when it is whole, so a killed process leaves the previous one intact.
"""

import contextlib
import importlib.metadata
import json
import logging
import platform
import sys
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, run_place, write_whole
from data_prep.base.memory import give_back_freed_memory
from lvcg_jax.config.build import make_preprocess
from lvcg_jax.config.files import differences, load_config, save_config

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
            raise InputError(
                f"{workdir} belongs to another config ({'; '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}):"
                " use another --workdir, or the config it was started with"
            )
        return
    if workdir.exists() and any(workdir.iterdir()):
        known = {"data", "synthetic", "config.json.tmp"}
        foreign = [p.name for p in workdir.iterdir() if p.name not in known]
        if foreign:
            some = ", ".join(sorted(foreign)[:3])
            raise InputError(
                f"{workdir} holds other files ({some}) and no config.json: use another --workdir"
            )
    save_config(config, path)
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    versions |= {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
    }
    write_whole(workdir / "versions.json", json.dumps(versions, indent=2) + "\n")


class Checkpoints:
    """The newest few checkpoints of a run, and the one with the lowest validation loss."""

    def __init__(self, workdir: Path, config: ConfigDict | None = None, keep: int = 3):
        self.workdir, self.config = run_place(workdir), config
        _quiet_closed_loops()
        self._latest = self._manager("checkpoints", keep)
        self._lowest = self._manager("lowest", 1)
        self.lowest_loss = float("inf")
        if self._lowest.latest_step() is not None:
            meta = self._lowest.restore(
                self._lowest.latest_step(), args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )["meta"]
            self.lowest_loss = meta["validation_loss"]

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
            "config": json.loads(self.config.to_json()),
            **meta,
        }
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta))
        # one save at a time: processes meet at numbered barriers, which two at once may number
        # differently
        self.wait()
        give_back_freed_memory()  # the threads of the save before have left some tens of megabytes
        with self._told():
            manager.save(step, args=items, force=True)

    @contextlib.contextmanager
    def _told(self):
        """A checkpoint that cannot be written (now, or the one under way) ends the run with one
        line, not a trace."""
        try:
            yield
        # the file system, tensorstore and orbax each have their own ways to say it
        except Exception as error:
            # a trace for every array that was not written
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            lines = str(error).splitlines() or [type(error).__name__]
            remote = is_remote(self.workdir)
            cause, remedy = (
                ("can the bucket be reached", "see to it")
                if remote
                else ("is the disk full", "make room")
            )
            raise InputError(
                f"a checkpoint could not be written to {self.workdir} ({lines[0][:120]}): {cause}? The one before is"
                f" intact: {remedy} and start the same command again"
            ) from error

    def save(self, step: int, state) -> None:
        """Saves the newest state; a step that is already there is left as it is."""
        if step not in self._latest.all_steps():
            self._save(self._latest, step, state, {})

    def save_if_lowest(self, step: int, state, validation_loss: float) -> bool:
        """Keeps the state if no earlier one had a lower validation loss."""
        if not validation_loss < self.lowest_loss:
            return False
        self.lowest_loss = validation_loss
        self._save(self._lowest, step, state, {"validation_loss": validation_loss})
        return True

    def restore_latest(self, abstract_state):
        """The newest readable state and its data position, or None for a new run; damaged ones are
        passed over."""
        for step in sorted(self._latest.all_steps(), reverse=True):
            try:
                restored = _restore(self._latest, step, abstract_state)
            except InputError:
                raise
            except Exception as error:
                message = str(error).splitlines()[0] if str(error) else type(error).__name__
                print(
                    f"warning: checkpoint {step} cannot be read ({message}); trying the one before",
                    file=sys.stderr,
                )
                continue
            return restored
        if self._latest.all_steps():
            raise InputError(
                f"no checkpoint in {self.workdir / 'checkpoints'} can be read: start a new --workdir"
            )
        return None

    def restore_for_use(self, abstract_state, which: str = "lowest"):
        """The state to evaluate, and its step: of lowest validation loss, or the latest (also where
        none was validated)."""
        manager = (
            self._lowest
            if which == "lowest" and self._lowest.latest_step() is not None
            else self._latest
        )
        if manager.latest_step() is None:
            raise InputError(
                f"{self.workdir} has no checkpoint yet: train first (python -m lvcg_jax.train --workdir={self.workdir})"
            )
        return _restore(manager, manager.latest_step(), abstract_state)[0], manager.latest_step()

    def wait(self) -> None:
        """Blocks until background saves are on disk."""
        with self._told():
            self._latest.wait_until_finished()
            self._lowest.wait_until_finished()

    def close(self) -> None:
        self._latest.close()
        self._lowest.close()


def _restore(manager: ocp.CheckpointManager, step: int, abstract_state):
    _check_shapes(manager, step, abstract_state)
    args = ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract_state), meta=ocp.args.JsonRestore()
    )
    restored = manager.restore(step, args=args)
    return restored["state"], restored["meta"]["position"]


def _quiet_closed_loops() -> None:
    """When one array cannot be read or written, the others find their event loop closed: no trace
    for each of them."""
    before = sys.unraisablehook
    if getattr(before, "quiet_closed_loops", False):
        return

    def hook(unraisable) -> None:
        if "loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    hook.quiet_closed_loops = True
    sys.unraisablehook = hook


def _check_shapes(manager: ocp.CheckpointManager, step: int, abstract_state) -> None:
    """A checkpoint of another architecture is refused in one line that names the first parameter
    that differs."""
    stored = manager.item_metadata(step)["state"]
    if stored is None:
        raise OSError("its state is missing")
    have = {_name(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(stored)}
    want = {
        _name(path): tuple(x.shape)
        for path, x in jax.tree_util.tree_leaves_with_path(abstract_state)
    }
    for name in sorted(have.keys() | want.keys()):
        if have.get(name) != want.get(name):
            raise InputError(
                f"checkpoint {manager.directory / str(step)} is of another architecture: '{name}' has shape"
                f" {have.get(name, 'absent')}, the config wants {want.get(name, 'absent')}"
            )


def _name(path) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)
