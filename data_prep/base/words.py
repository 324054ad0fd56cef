"""Pieces of wording that messages and tables share."""

from collections.abc import Iterable

SPLITS = ("train", "validation", "test")


def first_line(error: BaseException, most: int | None = None) -> str:
    """What an exception says, on one line, cut after `most` letters: the system's own words if a
    file could not be read or written, else the first line of its text, else its type."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0][:most]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and how many more there are, for a message of one line."""
    names = [str(name)[:40] for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
