"""Small pieces of wording that messages and tables share."""

from collections.abc import Iterable

SPLITS = ("train", "validation", "test")


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its type if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and how many more there are, for a message of one line."""
    names = [str(name)[:40] for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
