"""CSV files that people open in a spreadsheet: a cell of text must never become a formula there.

A cell that begins with = + - @, a tab or a line break gets an apostrophe, which spreadsheets show
or swallow but never run. One that has apostrophes before such a sign gets one more, so that reading
is the exact inverse.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def neutral(cell: object) -> object:
    """A cell as it is written; numbers stay as they are."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def original(cell: str) -> str:
    """The inverse of `neutral`."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as the text of a CSV file."""
    file = io.StringIO(newline="")
    write_rows(csv.writer(file, lineterminator="\n"), rows)
    return file.getvalue()


def write_rows(writer, rows: Iterable[Sequence[object]]) -> None:
    """Rows to a csv.writer."""
    for row in rows:
        writer.writerow([neutral(cell) for cell in row])
