"""Draws that only a name decides: the same on every machine and in every run, with no list to be
kept.

A ticket is a hash of a text. Splits, folds and halves are all read off a patient's ticket, so no
patient is ever in two of them.
"""

import hashlib

# what a dataset directory states where split_of_patient decided
SPLIT_RULE = "80/10/10 by sha256 of the patient id"


def ticket(text: str) -> int:
    """A number from 0 to 2**32 - 1 that only the text decides."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def split_of_patient(patient_id: str) -> str:
    """80/10/10: 'train', 'validation' or 'test'."""
    share = ticket(patient_id) / 2**32
    return "train" if share < 0.8 else "validation" if share < 0.9 else "test"


def fold_of(text: str, folds: int) -> int:
    """A fold from 0 to folds - 1, the same whoever else is there."""
    return ticket(text) % folds


def parity(text: str) -> int:
    """0 or 1, from the last bit of the hash.

    The halves of LUDB were drawn like this before delineation was tuned on one of them, so it must
    stay as it is.
    """
    return hashlib.sha256(text.encode()).digest()[-1] % 2
