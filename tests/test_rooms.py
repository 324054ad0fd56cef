"""The house rule: a room is a folder, rooms stand in one order and import downwards only.

The order is in pyproject.toml (tool.importlinter); docs/architecture.md shows it.
"""

import runpy
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.commands import ROOT

from lvcg_jax.__main__ import MODULES

ROOMS = runpy.run_path(str(ROOT / "launch" / "draw_rooms.py"))
PACKAGES, room_of = ROOMS["PACKAGES"], ROOMS["room_of"]
MOST_DIRECT_MODULES = 3  # lvcg_jax/: __init__, __main__ and at most one more
DEEPEST = 13
JAX = ("jax", "jaxlib", "flax", "optax", "orbax", "chex")


@pytest.fixture(scope="module")
def graph():
    return ROOMS["read_graph"]()


def lint_imports(folder: Path) -> subprocess.CompletedProcess:
    """import-linter on the packages of a folder, by the contracts of its pyproject.toml."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_rooms_import_downwards_only():
    done = lint_imports(ROOT)
    assert done.returncode == 0 and "Contracts: 3 kept, 0 broken." in done.stdout, done.stdout


def test_an_upward_import_is_noticed(tmp_path):
    only_python = shutil.ignore_patterns("packaged", "__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=only_python)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    losses = tmp_path / "lvcg_jax" / "model" / "losses.py"
    losses.write_text("from lvcg_jax.report import page\n" + losses.read_text())
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and "Contracts: 2 kept, 1 broken." in done.stdout, done.stdout
    assert "lvcg_jax.model.losses -> lvcg_jax.report.page (l.1)" in done.stdout


def test_modules_lie_in_rooms():
    direct = sorted(path.name for path in (ROOT / "lvcg_jax").glob("*.py"))
    assert len(direct) <= MOST_DIRECT_MODULES, direct


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_its_place_and_is_there(package):
    """No folder outside the contract, no name in the contract without a folder or a module."""
    ordered = {room for row in ROOMS["rows_of"](package) for room in row}
    folder = ROOT / package
    there = {path.parent.name for path in folder.glob("*/__init__.py")}
    there |= {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert ordered == {f"{package}.{name}" for name in there}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_chain_of_imports_is_short(package, graph):
    """The most modules of one package on a chain on which each imports the next, imports within
    functions included. A package's __init__ only hands out names and is no link."""
    inner = {name for name in graph.modules if name.split(".")[0] in PACKAGES}
    facades = {name for name in inner if graph.find_children(name)}

    @cache
    def chain(module: str) -> tuple[str, ...]:
        below = [
            chain(other)
            for other in graph.find_modules_directly_imported_by(module) - facades
            if other.startswith(f"{package}.")
        ]
        return (module, *max(below, key=len, default=()))

    modules = [name for name in inner if name.startswith(f"{package}.")]
    longest = max(map(chain, modules), key=len)
    assert len(longest) <= DEEPEST, longest


@pytest.mark.parametrize("name", MODULES)
def test_a_door_is_no_library(name, graph):
    """Beside its own room, at most one room imports the module of a command."""
    door = MODULES[name]
    users = {room_of(module) for module in graph.find_modules_that_directly_import(door)}
    assert len(users - {room_of(door)}) <= 1, users


def test_data_prep_is_free_of_jax(graph):
    for library in JAX:
        if library in graph.modules:
            users = graph.find_modules_that_directly_import(library)
            assert [module for module in users if module.startswith("data_prep")] == [], library


def test_the_picture_of_the_model_is_of_this_code(tmp_path):
    """Where this fails: python launch/draw_model.py"""
    model = runpy.run_path(str(ROOT / "launch" / "draw_model.py"))
    drawn = model["draw"](tmp_path / "model.svg")
    assert model["PICTURE"].read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")


def test_the_picture_of_the_rooms_is_of_this_code():
    """Where this fails: python launch/draw_rooms.py"""
    assert ROOMS["PICTURE"].read_text(encoding="utf-8") == ROOMS["draw"]()
