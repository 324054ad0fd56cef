"""Pseudonyms for the ids of patients and records: the same key gives the same pseudonym, in every
command, and without the key nobody can compute one, not even for an id that he knows.

A pseudonym is a keyed hash (HMAC-SHA256, 80 bits) with four digits that check it, so that a name
that is a pseudonym of this key already stays as it is: shards that were built with pseudonyms can
be embedded with them.
"""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import ordinary
from data_prep.base.words import first_line

SHORTEST_KEY, LONGEST_KEY = 16, 2**16  # bytes
MARK, DIGITS, CHECK = "pn-", 20, 4
FLAG = {
    "metavar": "KEYFILE",
    "help": "write pseudonyms in the place of record and patient ids: keyed hashes, the key is the"
    " content of this file (any 16 bytes or more; keep it secret). See docs/privacy.md",
}


@dataclass(frozen=True)
class Pseudonyms:
    """Makes pseudonyms with one key."""

    key: bytes

    def of(self, name: str) -> str:
        """The pseudonym of an id; a pseudonym of this key is its own."""
        body = name[len(MARK) :][:DIGITS]
        if name == self._with_check(body):
            return name
        return self._with_check(self._hash(f"id {name}")[:DIGITS])

    def _with_check(self, body: str) -> str:
        return f"{MARK}{body}{self._hash(f'check {body}')[:CHECK]}"

    def _hash(self, text: str) -> str:
        # names of files may hold what is no text
        return hmac.new(
            self.key, text.encode("utf-8", "surrogateescape"), hashlib.sha256
        ).hexdigest()


def read_key(path: str | Path | None) -> Pseudonyms | None:
    """The pseudonyms of the key in a file; None, if none is asked for."""
    if path is None:
        return None
    try:
        with open(ordinary(path), "rb") as file:
            key = file.read(LONGEST_KEY)
    except OSError as error:
        raise InputError(
            f"--pseudonyms={path}: cannot be read ({first_line(error)}); make a key with"
            " `head -c 32 /dev/urandom > KEYFILE`"
        ) from None
    if len(key) < SHORTEST_KEY:
        raise InputError(
            f"--pseudonyms={path}: {len(key)} bytes are no key: {SHORTEST_KEY} or more are needed"
        )
    return Pseudonyms(key)
