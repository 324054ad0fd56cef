"""Checkpoints: what damages one is told, what is a mistake of the code is not hidden, and the data
set is known."""

import errno
import json
import logging
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers.commands import get_config

from data_prep.base.errors import InputError
from lvcg_jax.runs.checkpoint import (
    Checkpoints,
    DamagedCheckpoint,
    data_identity,
    is_storage_error,
    open_run,
)

STATE = {"kernel": jnp.arange(12.0).reshape(3, 4), "norm": {"scale": jnp.ones(5)}}
HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
ABSTRACT = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=HERE), STATE)


@pytest.fixture
def run(tmp_path):
    """A run directory with two checkpoints and a lowest one."""
    checkpoints = Checkpoints(tmp_path / "run", get_config("smoke"))
    for step in (1, 2):
        checkpoints.save(step, STATE | {"kernel": STATE["kernel"] * step})
    checkpoints.save_if_lowest(2, STATE, 0.5)
    checkpoints.wait()
    checkpoints.close()
    return tmp_path / "run"


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def each_file(folder, damage):
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        damage(file)


DAMAGE = {
    "arrays cut short": lambda step: each_file(step / "state" / "d", cut),
    "arrays gone": lambda step: shutil.rmtree(step / "state" / "d"),
    "manifest empty": lambda step: (step / "state" / "manifest.ocdbt").write_bytes(b""),
    "description cut short": lambda step: cut(step / "state" / "_METADATA"),
    "description gone": lambda step: (step / "state" / "_METADATA").unlink(),
    "description not text": lambda step: (step / "state" / "_METADATA").write_bytes(b"\xff" * 9),
    "state gone": lambda step: shutil.rmtree(step / "state"),
    "meta cut short": lambda step: cut(step / "meta" / "metadata"),
    "meta empty": lambda step: (step / "meta" / "metadata").write_bytes(b""),
    "meta gone": lambda step: shutil.rmtree(step / "meta"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run, what, capsys):
    DAMAGE[what](run / "checkpoints" / "2")
    checkpoints = Checkpoints(run)
    state, position = checkpoints.restore_latest(ABSTRACT)
    assert position == {"next_index": 1}
    np.testing.assert_array_equal(state["kernel"], STATE["kernel"])
    said = capsys.readouterr().err
    assert said.startswith("warning: checkpoint 2 cannot be read (") and said.count("\n") == 1
    DAMAGE[what](run / "checkpoints" / "1")
    with pytest.raises(InputError, match="no checkpoint in .* can be read: start a new --workdir"):
        checkpoints.restore_latest(ABSTRACT)
    if not what.startswith("meta"):  # not needed to use a state
        with pytest.raises(DamagedCheckpoint):
            checkpoints.restore_for_use(ABSTRACT, "latest")
    checkpoints.close()


def test_a_damaged_lowest_checkpoint_does_not_keep_a_run_from_continuing(run, capsys):
    shutil.rmtree(run / "lowest" / "2" / "meta")
    checkpoints = Checkpoints(run)
    assert checkpoints.lowest_loss == float("inf")
    assert "the checkpoint of lowest validation loss cannot be read" in capsys.readouterr().err
    assert checkpoints.restore_latest(ABSTRACT)[1] == {"next_index": 2}
    checkpoints.close()


def test_mistakes_of_the_code_are_not_called_damage_or_a_full_disk(run, monkeypatch):
    checkpoints = Checkpoints(run, get_config("smoke"))

    def fail(*_, **__):
        raise TypeError("a mistake")

    for method, use in (
        ("restore", lambda: checkpoints.restore_latest(ABSTRACT)),
        ("restore", lambda: checkpoints.restore_for_use(ABSTRACT)),
        ("save", lambda: checkpoints.save(3, STATE)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(checkpoints._latest), method, fail)
            with pytest.raises(TypeError, match="a mistake"):
                use()
    checkpoints.close()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError('RESOURCE_EXHAUSTED: Error writing local file "/run/d/1"'),
    ],
)
def test_a_full_disk_is_told_in_one_line(run, monkeypatch, error):
    checkpoints = Checkpoints(run, get_config("smoke"))

    def fail(*_, **__):
        raise error

    for method, use in (
        ("save", lambda: checkpoints.save(3, STATE)),
        ("wait_until_finished", checkpoints.wait),
        ("close", checkpoints.close),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(checkpoints._latest), method, fail)
            with pytest.raises(InputError, match=r"could not be written to .*disk full\?.*intact"):
                use()
    checkpoints.close()


def test_what_is_an_error_of_storage():
    assert is_storage_error(TimeoutError()) and is_storage_error(ValueError("DATA_LOSS: x"))
    assert is_storage_error(json.JSONDecodeError("Expecting value", "", 0))
    # what Orbax says of a state that it cannot store
    assert not is_storage_error(ValueError("Unsupported type: <class 'object'> for key: ('a',)."))
    assert not is_storage_error(type("Wrong", (ValueError,), {})("NOT_FOUND: x"))
    assert not is_storage_error(KeyError("params"))
    cloud = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})
    assert is_storage_error(cloud("503"))


def test_only_what_orbax_raises_as_well_is_kept_from_the_log(run, caplog):
    caplog.set_level(logging.WARNING, logger="absl")
    Checkpoints(run).close()
    absl = logging.getLogger("absl")
    absl.warning("a warning of Orbax or of anybody")
    try:
        int("x")
    except ValueError:
        absl.exception("somebody's error")
    code = compile("raise ValueError('raised by Orbax')", "/site/orbax/checkpoint/x.py", "exec")
    try:
        exec(code)
    except ValueError:
        absl.exception("one thread of Orbax")
    assert [record.getMessage() for record in caplog.records] == [
        "a warning of Orbax or of anybody",
        "somebody's error",
    ]


def test_the_hook_for_closed_loops_leaves_all_others_to_the_one_before(run, monkeypatch):
    import asyncio
    from types import SimpleNamespace

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    Checkpoints(run).close()
    loop = asyncio.new_event_loop()
    loop.close()
    for raises in (lambda: loop.call_soon(print), lambda: int("x"), lambda: [][1]):
        try:
            raises()
        except Exception as error:
            sys.unraisablehook(
                SimpleNamespace(
                    exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__
                )
            )
    assert [unraisable.exc_type for unraisable in seen] == [ValueError, IndexError]


def make_metadata(shards=("a", "b"), corpus="mine"):
    files = [{"file": f"{corpus}-{i}", "sha256": name} for i, name in enumerate(shards)]
    return {"corpus": corpus, "splits": {"train": {"examples": 20, "shards": files}}}


def test_a_checkpoint_knows_its_data_set_by_what_it_holds(tmp_path):
    mine, other = data_identity(make_metadata()), data_identity(make_metadata(("a", "c")))
    assert mine == data_identity(make_metadata()) and mine["sha256"] != other["sha256"]
    more = make_metadata()
    more["splits"]["test"] = {"examples": 5, "shards": [{"file": "t", "sha256": "t"}]}
    assert data_identity(more) == mine and data_identity(more, "all")["train_windows"] == 25
    assert data_identity(more, "all")["sha256"] != mine["sha256"]
    config = get_config("smoke")
    first = Checkpoints(tmp_path, config, data=mine)
    first.save(1, STATE)
    first.wait()
    first.close()
    for data in (mine, None):
        again = Checkpoints(tmp_path, config, data=data)
        assert again.restore_latest(ABSTRACT)[1] == {"next_index": 1}
        again.close()
    wrong = Checkpoints(tmp_path, config, data=other)
    with pytest.raises(
        InputError, match=r"was trained on mine \(20 .*data.dir now holds mine \(20"
    ):
        wrong.restore_latest(ABSTRACT)
    wrong.close()


def test_a_damaged_newest_checkpoint_is_written_again(run):
    DAMAGE["arrays cut short"](run / "checkpoints" / "2")
    (run / "lowest" / "2" / "meta" / "metadata").write_text("{}")
    checkpoints = Checkpoints(run, get_config("smoke"))
    assert checkpoints.restore_latest(ABSTRACT)[1] == {"next_index": 1}
    checkpoints.save(1, STATE)  # readable: left as it is
    checkpoints.save(2, STATE | {"kernel": STATE["kernel"] + 7})
    assert checkpoints.save_if_lowest(2, STATE, 0.7)
    checkpoints.close()
    again = Checkpoints(run)
    state, position = again.restore_latest(ABSTRACT)
    assert position == {"next_index": 2} and again.lowest_loss == 0.7
    np.testing.assert_array_equal(state["kernel"], STATE["kernel"] + 7)
    again.close()


def test_other_numbers_than_were_saved_are_damage(run, monkeypatch):
    """As a flipped bit gives, where Orbax does not notice it."""
    restore = ocp.CheckpointManager.restore

    def flipped(self, step, args=None):
        found = restore(self, step, args=args)
        if step == 2 and "state" in dict(found.items()):
            found["state"]["kernel"] = found["state"]["kernel"].at[0, 1].add(1e-6)
        return found

    monkeypatch.setattr(ocp.CheckpointManager, "restore", flipped)
    checkpoints = Checkpoints(run)
    assert checkpoints.restore_latest(ABSTRACT)[1] == {"next_index": 1}
    with pytest.raises(DamagedCheckpoint, match="its numbers are not those that were saved"):
        checkpoints.restore_for_use(ABSTRACT, "latest")
    checkpoints.close()


def test_an_edited_config_is_refused_by_the_checkpoint(run):
    config, checkpoints = get_config("smoke"), Checkpoints(run)
    checkpoints.check_config(config)
    config.data.dir = "elsewhere"  # may change
    checkpoints.check_config(config, "latest")
    config.geometry.eps = 1e-3
    with pytest.raises(
        InputError, match=r"not the config that .* \(geometry.eps: 0.0001 -> 0.001\)"
    ):
        checkpoints.check_config(config)
    checkpoints.close()


def test_versions_are_noted_later_if_the_disk_was_full_before(tmp_path):
    open_run(tmp_path, get_config("smoke"))
    (tmp_path / "versions.json").unlink()
    open_run(tmp_path, get_config("smoke"))
    assert "jax" in json.loads((tmp_path / "versions.json").read_text())


@pytest.mark.parametrize("old, new", [(b"key_type", b"key_tyqe"), (b"jax.Array", b"jax.Arrcy")])
def test_a_flipped_bit_in_a_description_is_damage(run, old, new):
    path = run / "checkpoints" / "2" / "state" / "_METADATA"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    checkpoints = Checkpoints(run)
    assert checkpoints.restore_latest(ABSTRACT)[1] == {"next_index": 1}
    checkpoints.close()
