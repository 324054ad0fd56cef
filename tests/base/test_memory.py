"""A command's freed arrays stay with its process, its main thread is the one that makes them, and
what compiling freed goes back."""

import platform
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from data_prep.base import memory

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings"
)

HELD = """
import os
from pathlib import Path
import jax
import jax.numpy as jnp
import numpy as np
from data_prep.base.command import run_command
from data_prep.base.memory import KeptRoom, give_back_freed_memory
from data_prep.base.memory import peak_memory
from lvcg_jax.train.compiled import CompiledStep

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

AFTER_AN_ARRAY = """
def main(argv):
    before = held()
    np.ones(200_000_000, np.uint8)
    print(held() - before)
    print(jax.config.read("jax_cpu_enable_async_dispatch"))
"""

AFTER_STEPS = """
@jax.jit
def step(state, batch):  # 400 MB of its own
    rows = jnp.sin(batch[:100_000, None] * jnp.arange(1000.0))
    return state + (rows @ rows[:1].T).sum()

def main(argv):
    call, state, highest = CompiledStep(step, KeptRoom()), jnp.zeros(()), []
    for k in range(8):
        # returns before it is copied
        batch = jax.device_put(np.full(5_000_000, 1.0 + k, np.float32))
        state = call(state, batch)
        highest.append(peak_memory())
    print(int((highest[-1] - highest[0]) * 2**30))
"""

AFTER_SMALL_PIECES = """
def main(argv):
    pieces = [bytes(100_000) for _ in range(2000)]
    before = held()
    del pieces[:-1]  # the last one stands above what the others leave
    kept = held()
    give_back_freed_memory()
    print(before - kept, before - held())
"""


def printed(main: str, run: str, head: str = HELD) -> list[str]:
    """The words that a process prints which runs this function."""
    done = subprocess.run(
        [sys.executable, "-c", f"{head}{main}{run}"], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_commands_keep_what_they_free():
    """Bytes that a process holds when it has made and dropped an array of 200 MB; if other threads
    run JAX's steps."""
    kept, elsewhere = printed(AFTER_AN_ARRAY, "run_command(main)")
    assert int(kept) > 150_000_000 and elsewhere == "False"
    given_back, elsewhere = printed(AFTER_AN_ARRAY, "main(None)")
    assert int(given_back) < 50_000_000 and elsewhere == "True", (
        "by itself the C library gives it back"
    )


LATE = """
import jax
from data_prep.base.memory import KeptRoom

def main(argv):
    print(KeptRoom.useful)
"""


def test_lvcg_keeps_it_too(tmp_path):
    """`lvcg NAME` imports the command, and JAX with it, after it has started itself."""
    (tmp_path / "late.py").write_text(LATE)
    script = f"""
import sys
from lvcg_jax import __main__ as lvcg
sys.path.append({str(tmp_path)!r})
sys.argv, lvcg.MODULES["late"] = ["lvcg", "late"], "late"
lvcg.console()
"""
    assert printed(script, "", head="") == ["True"]


@pytest.mark.parametrize(
    "platforms, plugins, touched",
    [
        (None, [], True),
        ("cpu", ["cuda"], True),
        ("cuda,cpu", [], False),
        ("tpu", [], False),
        (None, ["xla_cuda12"], False),
    ],
)
def test_hosts_of_accelerators_are_left_alone(monkeypatch, platforms, plugins, touched):
    calls = []
    c = SimpleNamespace(mallopt=lambda *option: calls.append(option))
    config = SimpleNamespace(jax_platforms=platforms, update=lambda name, value: calls.append(name))
    monkeypatch.setattr(memory, "_c_library", lambda: c)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(memory.importlib.metadata, "entry_points", lambda group: plugins)
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(memory.KeptRoom, "useful", False)
    memory.keep_freed_memory()
    assert (len(calls) == 3) == memory.KeptRoom.useful == touched
    assert touched or not calls


def test_steps_find_the_memory_of_the_step_before():
    """Two batches of 20 MB are there at a time, and what they are copied from. A batch that settles
    in what a step of 400 MB has left, or a step that another thread runs because its batch is still
    being copied, costs as much again."""
    (growth,) = printed(AFTER_STEPS, "run_command(main)")
    assert int(growth) < 200_000_000


def test_what_will_not_be_asked_for_again_is_given_back():
    freed, given_back = map(int, printed(AFTER_SMALL_PIECES, "run_command(main)"))
    assert freed < 50_000_000 and given_back > 100_000_000


@pytest.mark.parametrize("system, unit", [("linux", 2**10), ("darwin", 1)])
def test_peak_memory_without_proc_knows_the_unit_of_the_system(monkeypatch, tmp_path, system, unit):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", system)
    usage = SimpleNamespace(ru_maxrss=3 * 2**30 // unit)
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    assert memory.peak_memory() == 3.0
