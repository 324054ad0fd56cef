"""Steps compiled apart from their first call: once a shape, with the numbers of the jitted
function."""

import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_prep.base.memory import KeptRoom
from lvcg_jax.train import compiled


def test_a_step_is_compiled_once_for_each_shape_and_memory_is_given_back_around_it(monkeypatch):
    log = []
    monkeypatch.setattr(compiled, "give_back_freed_memory", lambda: log.append("given back"))

    @jax.jit
    def step(state, batch):
        log.append("traced")
        return {"sum": state["sum"] + batch["x"].sum()}, batch["x"] * state["sum"]

    call, state, expected = compiled.CompiledStep(step, KeptRoom()), {"sum": jnp.ones(())}, 1.0
    for size in (3, 5, 3, 5, 3):
        x = np.arange(size, dtype=np.float32)
        state, scaled = call(state, {"x": jax.device_put(x)})
        np.testing.assert_array_equal(scaled, x * expected)
        expected += x.sum()
    assert float(state["sum"]) == expected
    assert log == ["given back", "traced", "given back"] * 2


@pytest.mark.parametrize("useful", {False, platform.libc_ver()[0] == "glibc"})
def test_a_room_can_be_left_in_any_way(useful, monkeypatch):
    """Not useful: as in a user's own process, or with another C library."""
    monkeypatch.setattr(KeptRoom, "useful", useful)
    room = KeptRoom()
    for size in (1 << 20, 1 << 22, 1 << 20):
        with room.open(size):
            pass
        with pytest.raises(RuntimeError), room.open(size):
            raise RuntimeError("the program failed")
        room.give_up()
        room.give_up()
