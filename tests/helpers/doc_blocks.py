"""Code blocks and commands of the documentation: found, parsed, and held against the flags that
commands know."""

import argparse
import contextlib
import importlib
import importlib.util
import io
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from helpers.commands import ROOT

# In this order: a command that stands on several pages is run on the first of them.
FIRST = (
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/data.md",
    "docs/evaluation.md",
)
# written by commands, which it shows: not run again
GENERATED = ("docs/results.md", "docs/experiments.md")
# of others: nothing to check, nothing to run
OTHER_PROGRAMS = ("wget", "pip", ".venv/bin/pip", "python3")
TRAIN_SCRIPTS = ("launch/local_multihost.sh", "launch/slurm.sbatch", "launch/tpu_pod.sh")
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
FENCE = re.compile(r"```(\w*)")
INLINE = re.compile(
    r"`((?:python\s-m\s(?:lvcg_jax|data_prep)|python\slaunch/|bash\slaunch/)[^`]*)`"
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `why` says why it is not run."""

    page: str
    line: int
    language: str
    text: str
    why: str | None

    @property
    def where(self) -> str:
        return f"{self.page} line {self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in ("bash", "python") and self.why is None

    @property
    def commands(self) -> list[str]:
        """The lines of a bash block, continued ones joined, without those that hold only a
        comment."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if shlex.split(line, comments=True)]


def pages() -> list[str]:
    there = [
        "README.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
    ]
    return sorted(
        there, key=lambda page: (FIRST.index(page) if page in FIRST else len(FIRST), page)
    )


@cache
def read_blocks(page: str) -> tuple[Block, ...]:
    """Every fenced block, of any language."""
    found, opened, before = [], None, ""
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            mark = NOT_RUN.fullmatch(before)
            opened = (
                number,
                fence[1],
                mark[1] if mark else "generated" if page in GENERATED else None,
                [],
            )
        elif opened is not None and fence:
            first, language, why, lines = opened
            found.append(Block(page, first, language, "\n".join(lines), why))
            opened = None
        elif opened is not None:
            opened[3].append(line)
        before = line.strip() or before
    assert opened is None, f"{page} line {opened[0]}: the block has no end"
    return tuple(found)


def inline_commands(page: str) -> list[str]:
    """Commands in running text and in tables."""
    text = re.sub(
        r"^```.*?^```",
        "",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return INLINE.findall(text)


def split_command(line: str) -> list[str]:
    """Words of a command, without VARIABLE=value before it and > file after it."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words[: words.index(">")] if ">" in words else words


def module_of(words: list[str]) -> tuple[str, list[str]] | None:
    """('lvcg_jax.embed' or 'launch/soak.py', flags) of a command of ours; None for one of
    others."""
    if words[:2] == ["python", "-m"] and words[2].startswith(("lvcg_jax.", "data_prep.")):
        return words[2], words[3:]
    if words[0] == "python" and len(words) > 1 and words[1].startswith("launch/"):
        return words[1], words[2:]
    if words[:2] == ["bash", "launch/demo.sh"]:
        return "launch/demo.py", words[2:]
    return None


def check_command(line: str, where: str, whole: bool) -> None:
    """Whether a command exists and knows the flags; `whole`: whether its parser takes it as it
    stands."""
    words = split_command(line)
    ours = module_of(words)
    if ours is not None:
        check_flags(*ours, where, whole)
        return
    files = [word for word in words if word.startswith("launch/")]
    for file in files:
        assert (ROOT / file).is_file(), f"{where}: there is no {file}"
    if files and files[0] in TRAIN_SCRIPTS:
        check_train_flags(words[words.index(files[0]) + 1 :], where)
    elif not files and words[0] != "source":
        known = words[0] in OTHER_PROGRAMS or words[:3] == ["python", "-m", "mkdocs"]
        assert known, f"{where}: {words[0]} is no command that the documentation may use"


def check_flags(module: str, flags: list[str], where: str, whole: bool) -> None:
    there = (
        (ROOT / module).is_file()
        if module.startswith("launch/")
        else importlib.util.find_spec(module)
    )
    assert there, f"{where}: there is no {module}"
    if module == "lvcg_jax.train":
        check_train_flags(flags, where)
        return
    parser = parser_of(module)
    for flag in flags:
        name = flag.split("=")[0]
        assert not name.startswith("-") or name in parser._option_string_actions, (
            f"{where}: {module} has no {name}"
        )
    if whole:
        message = io.StringIO()
        try:
            with contextlib.redirect_stderr(message):
                _, rest = parser.parse_known_args(flags)
        except SystemExit:
            pytest.fail(f"{where}: {message.getvalue().splitlines()[-1]}")
        assert not rest, f"{where}: {module} does not take {rest}"


class Caught(Exception):
    """Carries the parser that a command was about to use."""


@cache
def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser of a command, caught when the command is about to use it."""

    def stop(parser, *_):
        raise Caught(parser)

    main = main_of(module)
    patched = mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop)
    with patched, pytest.raises(Caught) as caught:
        main([])
    return caught.value.args[0]


@cache
def main_of(module: str):
    """The function of a command: of a module, or of a script in launch/."""
    if module.startswith("launch/"):
        spec = importlib.util.spec_from_file_location(Path(module).stem, ROOT / module)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded.main
    return importlib.import_module(module).main


def check_train_flags(flags: list[str], where: str) -> None:
    """The main job's flags are absl's, with a flag for every field of the config."""
    from absl import flags as absl_flags

    from lvcg_jax.config.fields import flatten
    from lvcg_jax.config.files import read_config_file

    known = {
        flag.name for flag in absl_flags.FLAGS.get_key_flags_for_module("lvcg_jax.train.__main__")
    }
    values = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)
    fields = flatten(read_config_file(ROOT / values.get("config", "configs/pretrain.py")))
    for name in values:
        field = name.removeprefix("config.")
        assert name in known or field in fields, (
            f"{where}: lvcg_jax.train has no flag or field {name}"
        )
