"""Costs of several methods: operations are counted without compiling, speed is relative."""

from types import SimpleNamespace

import numpy as np
from helpers.packed_batch import tiny_config

from lvcg_jax.bench import cost
from lvcg_jax.bench.cost import Cost, compare_speed
from lvcg_jax.model.flops import model_flops


def test_operations_are_counted_per_record_and_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr("lvcg_jax.bench.timing.compile_program", None)
    config = tiny_config()
    config.data.batch_size = 4
    found = Cost(config).count()
    assert found["parameters"] > 1000 and found["batch_size"] == 4
    assert found["train"]["gflop"] > 2 * found["embed"]["gflop"] > 0
    # by hand norms and activations are left out, which are much of so small a model
    assert found["train"]["gflop"] > 0.5 * model_flops(config, np.full(4, 13))["train"] / 4e9


def test_speed_is_of_records_not_of_batches(monkeypatch):
    seconds = {"it": [2.0, 2.0, 9.0], "other": [1.0, 1.0, 1.0]}
    monkeypatch.setattr(cost, "take_turns", lambda calls, repeats: seconds)
    program = SimpleNamespace(program_memory=lambda: 0.5)
    mine = SimpleNamespace(records=8, programs=lambda: {"train": program})
    other = SimpleNamespace(records=4)
    found = compare_speed(mine, other, {"train": program}, 3)
    assert found == {"train": {"times_the_speed": 1.0, "program_memory_gib": 0.5}}
