"""What every command shares: how it starts and ends, and how it reads its flags.

A mistake by the user is reported in one line that names the thing and the remedy, never as a stack
trace.
"""

import argparse
import atexit
import difflib
import errno
import os
import sys
from collections.abc import Callable

from data_prep.base.compiled import keep_compiled_programs
from data_prep.base.errors import InputError
from data_prep.base.memory import keep_freed_memory

# of the system's errors, those that only a disk that is full, read-only or not ours gives
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
# and those of a disk, a network folder or a bucket's mount that has gone
LOST = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN)


def run_command(
    main: Callable[[list[str] | None], int | None], argv: list[str] | None = None
) -> None:
    """Runs a command: exit code 0 on success, 2 and one line on an InputError or a disk that cannot
    be written or has gone, 130 on Ctrl-C."""
    keep_freed_memory()
    keep_compiled_programs()
    try:
        sys.exit(main(argv) or 0)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # Exit handlers run, as they remove scratch folders. The interpreter does not shut down:
        # libraries that were interrupted in a read would print traces while it does.
        atexit._run_exitfuncs()
        os._exit(2)
    except OSError as error:
        what, remedy = "cannot be written", "make room, or choose another place"
        if error.errno in LOST:
            what, remedy = "cannot be reached", "mount it again, and start the same command again"
        elif error.errno not in NOT_WRITTEN:
            raise
        place = error.filename or "a file"
        print(f"error: {place}: {what} ({error.strerror}); {remedy}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


class Parser(argparse.ArgumentParser):
    """argparse without abbreviated flags; a mistake is an InputError of one line, with a hint."""

    def __init__(self, name: str, description: str | None, **options):
        options.setdefault("prog", f"lvcg {name}")
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def parse_args(self, args=None, namespace=None):
        args, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self.unknown(unknown[0]))
        return args

    def unknown(self, word: str) -> str:
        """What to say about an argument that is not a flag of this command."""
        if not word.startswith("-"):
            return f"unexpected argument '{word}': flags are written --name=value"
        flag = word.split("=")[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
        return f"unknown flag {flag}" + (f": did you mean {near[0]}?" if near else "")

    def error(self, message: str):
        raise InputError(f"{message} ({self.prog} --help lists the flags)")


def positive_int(text: str) -> int:
    """The value of a flag that takes a whole number of at least 1."""
    return _number(text, int, lambda value: value >= 1, "a whole number of 1 or more")


def natural_int(text: str) -> int:
    """The value of a flag that takes a whole number of at least 0."""
    return _number(text, int, lambda value: value >= 0, "a whole number of 0 or more")


def positive_float(text: str) -> float:
    """The value of a flag that takes a finite number above 0."""
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def share_of_work(text: str) -> tuple[int, int]:
    """The value of a flag such as 2/8: this process does the second of eight shares."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a share such as 2/8 (the second of eight; they count from 1)"
        )
    return int(number), int(count)


def _number(text: str, kind: type, good: Callable, wanted: str):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not good(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not {wanted}")
    return value


RECORD_FLAGS = {  # of commands that read a file of any format: what the file may not say
    "rate": {"type": positive_float, "help": "samples a second, where the file does not say"},
    "unit": {"help": "mV, uV or V, where the file does not say"},
    "lead_names": {
        "metavar": "I,II,V2",
        "help": "lead of each column, where the file does not say; CH1=I,CH2=II renames columns",
    },
}
