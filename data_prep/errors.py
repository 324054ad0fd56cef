"""How a user's mistake is told: one line that names the thing and the remedy, never a stack trace."""

import os
import sys
from collections.abc import Callable

from data_prep.host_memory import keep_freed_memory


class InputError(Exception):
    """Something the user gave cannot be used; the message is the one line that the user sees."""

    def __str__(self) -> str:
        """One line even where the message quotes a file with line breaks or control characters."""
        return "".join(letter if letter.isprintable() else " " for letter in super().__str__())


def run_command(main: Callable[[list[str] | None], int | None], argv: list[str] | None = None) -> None:
    """Runs a command line: exit 0 on success, 2 with one line on an InputError, 130 on Ctrl-C."""
    keep_freed_memory()
    try:
        sys.exit(main(argv) or 0)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(2)  # at once: libraries that are cut off in a read print traces while the interpreter shuts down
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
