"""Commands keep what they compile for their next start, unless they are told not to."""

import os
import subprocess
import sys

import pytest

from data_prep.base.compiled import OF_JAX, SWITCH, keep_compiled_programs


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(OF_JAX, "")
    monkeypatch.delenv(OF_JAX)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    return tmp_path


def test_a_command_keeps_programs_in_the_users_cache_folder(home):
    keep_compiled_programs()
    assert os.environ[OF_JAX].startswith(str(home / "lvcg_jax")) and os.path.isdir(
        os.environ[OF_JAX]
    )


@pytest.mark.parametrize("word", ["off", "0"])
def test_a_variable_turns_it_off(home, monkeypatch, word):
    monkeypatch.setenv(SWITCH, word)
    keep_compiled_programs()
    assert OF_JAX not in os.environ and not list(home.iterdir())


def test_a_variable_chooses_another_folder_and_that_of_jax_goes_first(home, monkeypatch):
    monkeypatch.setenv(SWITCH, str(home / "elsewhere"))
    keep_compiled_programs()
    assert os.environ[OF_JAX].startswith(str(home / "elsewhere"))
    monkeypatch.setenv(OF_JAX, "mine")
    keep_compiled_programs()
    assert os.environ[OF_JAX] == "mine"


def test_a_home_that_cannot_be_written_is_no_error(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    keep_compiled_programs()
    assert OF_JAX not in os.environ


def test_jax_uses_it_even_if_it_was_imported_before(tmp_path):
    code = (
        "import jax; from data_prep.base.compiled import keep_compiled_programs;"
        "keep_compiled_programs(); print(jax.config.jax_compilation_cache_dir)"
    )
    keep = {key: value for key, value in os.environ.items() if key != OF_JAX}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=keep | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(tmp_path / "lvcg_jax")), done.stderr
