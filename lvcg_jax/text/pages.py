"""Sections of a Markdown page that commands write, each between two marks, with the command that
made it."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole

INTRO = """# Results

Linear probes of frozen embeddings: test macro AUROC x 100, beside the same model with random
weights and a control without any learning (median beat, PCA and R-R statistics). Each section is
written by the command it shows, from the numbers alone, the list of what did not win included.
"""


def command_line(name: str, argv: Sequence[str] | None) -> str:
    """The command as it was given (None: to this process), for a page; of absolute paths only the
    last name is shown."""
    words = sys.argv[1:] if argv is None else argv
    shown = [re.sub(r"(?<=[=:])/[^=:]*", lambda path: Path(path[0]).name, word) for word in words]
    return shlex.join(["lvcg", name, *shown])


def shown(path: Path) -> str:
    """A path for a page: as given if it is relative, else its last name."""
    return path.name if path.is_absolute() else path.as_posix()


def write_section(path: str | Path, name: str, text: str) -> None:
    """Puts a text between the section's two marks, in place of what was there; the rest of the page
    stays as it is."""
    path = Path(path)
    if not name.strip() or "--" in name or "\n" in name:
        raise InputError(
            f"--name={name!r} cannot name a section: use letters, digits, '_' and single '-'"
        )
    start, end = f"<!-- section: {name} -->", f"<!-- end: {name} -->"
    page = path.read_text(encoding="utf-8") if path.exists() else INTRO
    block = f"{start}\n{text.strip()}\n{end}"
    if start in page:
        head, rest = page.split(start, 1)
        if end not in rest:
            raise InputError(
                f"{path}: section '{name}' begins but does not end; put back the line {end}"
            )
        page = head + block + rest.split(end, 1)[1]
    else:
        page = f"{page.rstrip()}\n\n{block}\n"
    write_whole(path, page)


def put_on_page(
    page: str, section: str, title: str, command: str, argv: Sequence[str] | None, text: str
) -> None:
    """Writes a section with its heading and command."""
    write_section(
        page, section, f"## {title}\n\n```bash\n{command_line(command, argv)}\n```\n\n{text}"
    )
