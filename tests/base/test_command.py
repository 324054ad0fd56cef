"""How commands end, and how they read their flags."""

import errno
import os
import subprocess
import sys

import pytest

from data_prep.base.command import (
    Parser,
    natural_int,
    positive_float,
    positive_int,
    run_command,
)
from data_prep.base.errors import InputError

# A command that leaves a scratch folder to be removed at its end, and ends in some way.
COMMAND = """
import atexit, shutil, sys
from pathlib import Path
from data_prep.base.command import run_command
from data_prep.base.errors import InputError

def main(argv):
    folder = Path(sys.argv[1])
    folder.mkdir()
    atexit.register(shutil.rmtree, folder)
    print("started")
    {end}

run_command(main)
"""


@pytest.mark.parametrize(
    "end, code, told",
    [
        ("return None", 0, ""),
        ("return 3", 3, ""),
        (
            "raise InputError('no such file: give another')",
            2,
            "error: no such file: give another\n",
        ),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_a_command_ends_with_its_code_and_leaves_nothing_behind(tmp_path, end, code, told):
    scratch = tmp_path / "scratch"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(end=end), str(scratch)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "started\n", told)
    assert not scratch.exists()


@pytest.fixture
def parser():
    parser = Parser("try", "A command.")
    parser.add_argument("--count", type=positive_int)
    parser.add_argument("--first", type=natural_int)
    parser.add_argument("--rate", type=positive_float)
    return parser


def test_numbers_of_flags(parser):
    args = parser.parse_args(["--count=1", "--first=0", "--rate=0.5"])
    assert (args.count, args.first, args.rate) == (1, 0, 0.5)


@pytest.mark.parametrize(
    "argument, told",
    [
        ("--count=0", "argument --count: '0' is not a whole number of 1 or more"),
        ("--count=1.5", "argument --count: '1.5' is not a whole number of 1 or more"),
        ("--first=-1", "argument --first: '-1' is not a whole number of 0 or more"),
        ("--rate=0", "argument --rate: '0' is not a number above 0"),
        ("--rate=nan", "argument --rate: 'nan' is not a number above 0"),
        ("--rate=inf", "argument --rate: 'inf' is not a number above 0"),
        ("--cuont=1", "unknown flag --cuont: did you mean --count?"),
        ("--coun=1", "unknown flag --coun: did you mean --count?"),  # no abbreviations
        ("stray", "unexpected argument 'stray': flags are written --name=value"),
    ],
)
def test_a_mistake_in_a_flag_is_one_line_that_names_it(parser, argument, told):
    with pytest.raises(InputError) as error:
        parser.parse_args([argument])
    assert str(error.value) == f"{told} (lvcg try --help lists the flags)"


@pytest.mark.parametrize(
    "number, what",
    [
        (errno.ENOSPC, "cannot be written"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot be written"),
        (errno.ESTALE, "cannot be reached"),
        (errno.EIO, "cannot be reached"),
    ],
)
def test_a_disk_that_cannot_be_written_or_has_gone_is_one_line(number, what, capsys):
    def main(argv):
        raise OSError(number, os.strerror(number), "out/table.md")

    with pytest.raises(SystemExit) as end:
        run_command(main)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith(f"error: out/table.md: {what} (")
    assert said.count("\n") == 1


def test_other_errors_of_the_system_are_not_called_a_full_disk():
    def main(argv):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")

    with pytest.raises(FileNotFoundError):
        run_command(main)
