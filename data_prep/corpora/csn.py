"""Chapman-Shaoxing-Ningbo: classes by exact match of the SNOMED code, named in the set's own
table."""

import re
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.corpora.challenge import list_coded
from data_prep.corpora.corpus import Corpus
from data_prep.formats.tables import read_csv

TABLE = "ConditionNames_SNOMED-CT.csv"
CHAPMAN_LAST = 10646  # JS00001 to JS10646 are Chapman and Shaoxing; Ningbo follows
# The eleven rhythms of the Chapman part, by code. The headers use other codes for AVNRT and SAAWR
# than the set's own table does; these are those of the PhysioNet Challenge 2021.
RHYTHMS = {
    "426177001": "SB",
    "426783006": "SR",
    "164889003": "AFIB",
    "427084000": "ST",
    "164890007": "AF",
    "427393009": "SA",
    "426761007": "SVT",
    "713422000": "AT",
    "251166008": "AVNRT",
    "233897008": "AVRT",
    "17366009": "SAAWR",
}


def open(raw: Path, part: str = "all") -> Corpus:
    """Task 'diagnosis', one class per code; codes outside the table are counted in unknown_codes.

    With part='chapman' only JS00001 to JS10646 are listed, and there is a second task, 'rhythm'
    (RHYTHMS); a record without any of them is not labelled for it. The set does not name patients:
    each record is one, together with those whose signal is the same.
    """
    if part not in ("all", "chapman"):
        raise InputError(f"csn has the parts all and chapman, not {part!r}")
    names = read_names(raw / TABLE)
    if part == "all":
        return list_coded("csn", raw, names)
    corpus = list_coded("csn", raw, names, RHYTHMS, is_chapman)
    if not corpus.refs:
        raise InputError(f"{raw} has no record of the Chapman part, JS00001 to JS{CHAPMAN_LAST}")
    return corpus


def is_chapman(record_id: str) -> bool:
    """Whether a record is of the Chapman part, by its number."""
    number = re.fullmatch(r"JS(\d{1,9})", record_id)
    return number is not None and int(number[1]) <= CHAPMAN_LAST


def read_names(path: Path) -> dict[str, str]:
    """SNOMED code -> acronym. A few codes have several acronyms, which headers cannot tell apart:
    the first counts."""
    names: dict[str, str] = {}
    for row in read_csv(path, ("Acronym Name", "Snomed_CT")):
        code, name = row["Snomed_CT"], row["Acronym Name"]
        if not code.isdigit() or not name:
            raise InputError(
                f"{path} line {row.line}:"
                f" {name!r} has the code {code[:30]!r}, which is no SNOMED code"
            )
        names.setdefault(code, name)
    if len(set(names.values())) != len(names):
        raise InputError(f"{path}: one acronym stands for two codes")
    return names
