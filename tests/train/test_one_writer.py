"""Two commands that write into one place: the second is told before it does anything."""

import numpy as np
import pytest
from helpers.commands import get_config

from data_prep.base.errors import InputError
from data_prep.base.lock import only_one
from data_prep.ecg.leads import LEADS
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.train.loop import train_and_evaluate


def test_a_second_training_in_a_run_directory_is_refused(tmp_path):
    with only_one(tmp_path / "run" / "lock", "held by the test"):
        with pytest.raises(
            InputError, match=r"another training writes .* \(process \d+ on .*since"
        ):
            train_and_evaluate(get_config("smoke"), tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_second_embed_into_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(embed_door, "write_table", lambda *_: pytest.fail("it went on"))
    np.savez(tmp_path / "a.npz", signal=np.zeros((999, 12)), rate=100, unit="mV", leads=LEADS)
    out = tmp_path / "out.npz"
    with (
        only_one(f"{out}.lock", "held by the test"),
        pytest.raises(InputError, match=r"out.npz is being written \(process \d+ on"),
    ):
        embed_door.main([f"--record={tmp_path / 'a.npz'}", f"--out={out}"])
