"""Code blocks and commands of the documentation: found, parsed, and held against the flags that
commands know."""

import argparse
import importlib
import importlib.util
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from helpers.commands import ROOT

from data_prep.base.errors import InputError
from lvcg_jax.__main__ import MODULES

# In this order: a command that stands on several pages is run on the first of them.
FIRST = (
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/data.md",
    "docs/evaluation.md",
)
# written by commands, which they show: not run again
GENERATED = re.compile(r"docs/(results(-[\w-]+)?|experiments)\.md")
# of others: nothing to check, nothing to run
OTHER_PROGRAMS = ("wget", "curl", "pip", ".venv/bin/pip", "python3")
TRAIN_SCRIPTS = ("launch/local_multihost.sh", "launch/slurm.sbatch", "launch/tpu_pod.sh")
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
FENCE = re.compile(r"```(\w*)")
INLINE = re.compile(
    r"`((?:lvcg\s|python\s-m\s(?:lvcg_jax|data_prep)|python\slaunch/|bash\slaunch/)[^`]*)`"
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
                mark[1] if mark else "generated" if GENERATED.fullmatch(page) else None,
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


def command_of(words: list[str]) -> tuple[str, list[str]] | None:
    """(name as in `lvcg NAME`, or a script of launch/; flags) of a command of ours, None for one of
    others."""
    if words[:3] == ["python", "-m", "lvcg_jax"]:  # the same where `lvcg` is not on the path
        words = ["lvcg", *words[3:]]
    if words[0] == "lvcg":
        return (words[1] if len(words) > 1 else "--help"), words[2:]
    if words[:2] == ["python", "-m"] and words[2].startswith(("lvcg_jax.", "data_prep.")):
        doors = {module.removesuffix(".__main__"): name for name, module in MODULES.items()}
        return doors.get(words[2], words[2]), words[3:]
    if words[0] == "python" and len(words) > 1 and words[1].startswith("launch/"):
        return words[1], words[2:]
    if words[:2] == ["bash", "launch/demo.sh"]:
        return "launch/demo.py", words[2:]
    return None


def check_command(line: str, where: str, whole: bool) -> None:
    """Whether a command exists and knows the flags; `whole`: whether its parser takes it as it
    stands."""
    words = split_command(line)
    ours = command_of(words)
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


def check_flags(name: str, flags: list[str], where: str, whole: bool) -> None:
    if name in ("--help", "COMMAND"):  # of the command `lvcg` itself, or of all
        return
    there = (ROOT / name).is_file() if name.startswith("launch/") else name in MODULES
    assert there, f"{where}: there is no {name}"
    if name == "train":
        check_train_flags(flags, where)
        return
    parser = parser_of(name)
    for flag in flags:
        word = flag.split("=")[0]
        assert not word.startswith("-") or word in parser._option_string_actions, (
            f"{where}: {name} has no {word}"
        )
    if whole:
        try:
            _, rest = parser.parse_known_args(flags)
        except (InputError, SystemExit) as error:
            pytest.fail(f"{where}: {error}")
        assert not rest, f"{where}: {name} does not take {rest}"


class Caught(Exception):
    """Carries the parser that a command was about to use."""


@cache
def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command, caught when the command is about to use it."""

    def stop(parser, *_):
        raise Caught(parser)

    main = main_of(name)
    patched = mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop)
    with patched, pytest.raises(Caught) as caught:
        main([])
    return caught.value.args[0]


@cache
def main_of(name: str):
    """The function of a command: of `lvcg NAME`, or of a script in launch/."""
    if name.startswith("launch/"):
        spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded.main
    return importlib.import_module(MODULES[name]).main


def check_train_flags(flags: list[str], where: str) -> None:
    """The main job's flags are absl's, with a flag for every field of the config."""
    from absl import flags as absl_flags

    from lvcg_jax.config.fields import flatten
    from lvcg_jax.config.files import read_config_file

    importlib.import_module(MODULES["train"])
    known = {flag.name for flag in absl_flags.FLAGS.get_key_flags_for_module(MODULES["train"])}
    values = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)
    fields = flatten(read_config_file(ROOT / values.get("config", "configs/pretrain.py")))
    for name in values:
        field = name.removeprefix("config.")
        assert name in known or field in fields, f"{where}: train has no flag or field {name}"
