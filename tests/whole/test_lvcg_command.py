"""The `lvcg` command: it lists every door at once, helps with wrong names, and every door answers
--help."""

import ast
import os
import resource
import subprocess
import sys

import pytest
from helpers.commands import ROOT, assert_one_line_error, run

from lvcg_jax.__main__ import COMMANDS, MODULES, main

MOST_CPU_SECONDS = 0.3


def test_help_lists_every_door_with_a_line(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group, commands in COMMANDS.items():
        assert f"{group}:" in lines
        for name, (_, what) in commands.items():
            assert [line.split(maxsplit=1) for line in lines].count([name, what]) == 1
            assert what and what[0].islower() and not what.endswith(".")
    assert max(map(len, lines)) <= 100


def test_every_module_with_a_main_is_a_door():
    """A command that is not listed cannot be found."""
    found = set()
    for package in ("lvcg_jax", "data_prep"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found - {"lvcg_jax.__main__"} == set(MODULES.values())


def test_help_is_quick_and_needs_no_jax():
    script = (
        "import sys\n"
        "from lvcg_jax.__main__ import main\n"
        "main(['--help'])\n"
        "heavy = {'jax', 'numpy', 'flax', 'scipy', 'tensorflow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == 0, done.stderr
    assert used < MOST_CPU_SECONDS, f"{used:.2f} s of CPU time"


def test_without_a_command_help_is_shown_and_the_version_is_known(capsys):
    from lvcg_jax import __version__

    assert main([]) == 0
    assert "usage: lvcg COMMAND" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lvcg_jax {__version__}\n"


def test_a_wrong_name_gets_the_nearest_one():
    assert_one_line_error(run("lvcg_jax", "embedd"), "no command 'embedd'", "did you mean embed?")
    assert_one_line_error(run("lvcg_jax", "geometry-reports"), "did you mean geometry_report?")
    assert_one_line_error(run("lvcg_jax", "xyzzy"), "`lvcg --help` lists all commands")


@pytest.mark.parametrize("name", MODULES)
def test_a_door_answers_help(name, capsys):
    try:
        code = main([name, "--help"])
    except SystemExit as left:
        code = left.code
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert f"lvcg {name}" in shown or f"lvcg_jax.{name}" in shown
    assert "--" in shown and len(shown.splitlines()) > 4


def test_training_without_a_workdir_says_where_it_goes():
    script = (
        "import lvcg_jax.train.__main__ as train\n"
        "from data_prep.base.command import run_command\n"
        "train.train_and_evaluate = lambda config, workdir: print('trained in', workdir)\n"
        "run_command(train.main, ['--config=configs/pretrain.py:smoke'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "trained in runs/pretrain-smoke\n"
    (line,) = (line for line in done.stderr.splitlines() if "workdir" in line)
    assert "runs/pretrain-smoke" in line


def test_help_of_training_lists_its_flags(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--config", "--workdir", "--cluster", "--coordinator", "--processes", "--process"):
        assert f"  {flag} " in shown, flag
