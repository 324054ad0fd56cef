"""Flags that several commands share, each described once."""

import argparse
from pathlib import Path

from data_prep.base.command import RECORD_FLAGS, positive_int
from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import FLAG


def fractions(text: str) -> list[float]:
    """'0.01,1' -> [0.01, 1.0]."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < fraction <= 1 for fraction in found):
        raise argparse.ArgumentTypeError(
            f"'{text}': give numbers above 0 and up to 1 (all labels), such as 0.01,0.1,1"
        )
    return sorted(set(found))


_SUBSETS = {
    "type": positive_int,
    "default": 3,
    "help": "label subsets drawn for each fraction under 1 (default %(default)s)",
}
SHARED = {
    "data": {
        "required": True,
        "metavar": "SHARDS",
        "help": "labelled shards with train, validation and test splits",
    },
    "out": {"required": True, "metavar": "DIR", "help": "folder for everything that is written"},
    "task": {"default": "all", "help": "label tasks, comma-separated, or all (default)"},
    "fractions": {
        "type": fractions,
        "default": "0.01,0.1,1",
        "help": "fractions of the training labels (default %(default)s)",
    },
    "seeds": _SUBSETS,
    "probe_seeds": _SUBSETS,
    "resamples": {
        "type": positive_int,
        "default": 1000,
        "help": "bootstrap resamples (default %(default)s)",
    },
    "page": {"metavar": "FILE", "help": "also write the tables into a section of this page"},
    "section": {"metavar": "NAME", "help": "name of that section (default %(default)s)"},
    "visible": {
        "action": "append",
        "default": [],
        "metavar": "LEADS",
        "help": "visible leads, e.g. II,V2,V5; may be repeated",
    },
    "pseudonyms": FLAG,
} | RECORD_FLAGS


def add_shared(parser, *names: str, **defaults) -> None:
    """Adds shared flags to a parser or a group of it: `names` as they are, `defaults` with another
    default."""
    for name in (*names, *defaults):
        changed = {"default": defaults[name]} if name in defaults else {}
        parser.add_argument(f"--{name}", **SHARED[name] | changed)


def named_path(flag: str, text: str, name: str | None = None) -> tuple[str, str]:
    """'NAME=PATH' as name and path; 'PATH' alone gets the name given here."""
    own, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return own, path
    if name is None:
        raise InputError(f"{flag}={text}: write {flag}=NAME=FILE")
    return name, text
