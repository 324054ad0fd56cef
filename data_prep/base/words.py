"""Pieces of wording that messages and tables share."""

import re
from collections.abc import Iterable, Sequence

SPLITS = ("train", "validation", "test")


def first_line(error: BaseException, most: int | None = None) -> str:
    """What an exception says, on one line, cut after `most` letters: the system's own words if a
    file could not be read or written, else the first line of its text, else its type."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0][:most]


def printable(text: str) -> str:
    """Text from a file for a terminal or a table: characters that control a terminal, or that no
    file can hold, are written as '\\x1b' and the like."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def markdown_cell(text: object) -> str:
    """Text as a cell of a Markdown table: bars, line breaks and the start of an HTML tag are words
    and nothing else."""
    plain = printable(" ".join(str(text).split())).replace("|", "\\|")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain)


def counted(number: int, noun: str) -> str:
    """'1 row', '2 rows'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_all(lists: Sequence[Sequence[str]]) -> list[str]:
    """The words of the first list that every other list has too, in its order."""
    others = [set(words) for words in lists[1:]]
    return [word for word in lists[0] if all(word in other for other in others)]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and how many more there are, for a message of one line."""
    names = [str(name)[:40] for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
