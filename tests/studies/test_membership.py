"""The membership test finds a leak that is there, and none where there is none."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from lvcg_jax.studies import membership


@pytest.mark.parametrize("leak, found", [(1.0, True), (0.0, False)])
def test_a_leak_is_found_only_where_there_is_one(leak, found):
    rng = np.random.default_rng(0)
    member = np.repeat([True, False], 200)
    x = rng.normal(size=(400, 20))
    x[member, 3] += leak
    patients = [f"p{i}" for i in range(400)]
    told = membership.measure(member, membership.attack(x, member), patients, 200)
    assert (told["low"] > 0.6) == found and (told["low"] < 0.5 < told["high"]) != found


def test_every_model_and_way_gets_a_line(trained_run, shards_dir, capsys):
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}"]
    assert membership.main([*flags, "--records=8", "--resamples=20"]) == 0
    said = capsys.readouterr().out
    assert "train 8" in said and "validation 8" in said
    lines = [line for line in said.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == 8 and sum("random weights" in line for line in lines) == 4


def test_data_without_held_out_records_is_refused(shards_dir, monkeypatch):
    monkeypatch.setattr(membership, "read_metadata", lambda _: {"splits": {"train": {}}})
    with pytest.raises(InputError, match="has no split test"):
        membership.main([f"--data={shards_dir}"])
