"""Random draws that depend on nothing but a name: the same on every machine and in every run.

A ticket is a hash of a text. Splits, folds and halves are read off a patient's ticket, so no
patient is ever in two of them.
"""

import hashlib

# how a dataset directory describes splits made by split_of_patient
SPLIT_RULE = "80/10/10 by sha256 of the patient id"


def ticket(text: str) -> int:
    """A number from 0 to 2**32 - 1 that depends on the text alone."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def split_of_patient(patient_id: str) -> str:
    """'train' for 80% of patients, 'validation' for 10% and 'test' for 10%."""
    share = ticket(patient_id) / 2**32
    return "train" if share < 0.8 else "validation" if share < 0.9 else "test"


def fold_of(text: str, folds: int) -> int:
    """A fold from 0 to folds - 1, whatever other names there are."""
    return ticket(text) % folds


def parity(text: str) -> int:
    """0 or 1, from the last bit of the hash.

    LUDB was halved like this before delineation was tuned on one half, so it must stay as it is.
    """
    return hashlib.sha256(text.encode()).digest()[-1] % 2
