"""Chapman-Shaoxing-Ningbo: classes by exact match of the SNOMED code, named in the set's own
table."""

from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.corpora.challenge import list_coded
from data_prep.corpora.corpus import Corpus
from data_prep.formats.tables import read_csv

TABLE = "ConditionNames_SNOMED-CT.csv"


def open(raw: Path) -> Corpus:
    """Task 'diagnosis', one class per code; codes outside the table are counted in unknown_codes.

    The set does not name patients: each record is one, together with those whose signal is the
    same.
    """
    return list_coded("csn", raw, read_names(raw / TABLE))


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
