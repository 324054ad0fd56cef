"""CPSC 2018: the Challenge-2020 files (.hea with #Dx, .mat), or the original .mat structs with
REFERENCE.csv.

Nine classes; 6 to 144 s at 500 Hz. The set does not name patients: each record is one, together
with those whose file is the same byte for byte (255 in the full set).
"""

from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.words import printable
from data_prep.corpora.challenge import list_coded
from data_prep.corpora.corpus import Corpus
from data_prep.corpora.duplicates import keep_together
from data_prep.ecg.record import RecordRef
from data_prep.formats.mat_files import read_struct
from data_prep.formats.tables import read_csv

CLASSES = {  # SNOMED code -> name, in the order of the original numbers 1 to 9
    "426783006": "NORM",
    "164889003": "AF",
    "270492004": "1AVB",
    "164909002": "LBBB",
    "59118001": "RBBB",
    "284470004": "PAC",
    "164884008": "PVC",
    "429622005": "STD",
    "164931005": "STE",
}
LABEL_COLUMNS = ("First_label", "Second_label", "Third_label")


def open(raw: Path) -> Corpus:
    """Task 'diagnosis'. Headers are looked for first, then REFERENCE.csv."""
    if any(raw.rglob("*.hea")):
        return list_coded("cpsc2018", raw, CLASSES)
    tables = sorted(raw.rglob("REFERENCE.csv"))
    if not tables:
        raise InputError(
            f"neither WFDB headers (*.hea) nor REFERENCE.csv below {raw}:"
            " is CPSC 2018 unpacked there?"
        )
    return _open_original(raw, tables)


def _open_original(raw: Path, tables: list[Path]) -> Corpus:
    """The .mat structs below `raw`, with the labels of REFERENCE.csv."""
    # files and labels by record
    files: dict[str, Path] = {}
    for path in sorted(raw.rglob("*.mat")):
        name = printable(path.stem)
        if files.setdefault(name, path) != path:
            raise InputError(
                f"record {name} is there twice: {files[name]} and {path}; keep one of them"
            )
    labels: dict[str, list[str]] = {}
    for table in tables:
        for row in read_csv(table, ("Recording", *LABEL_COLUMNS)):
            names = _names(row, table)
            if labels.setdefault(row["Recording"], names) != names:
                raise InputError(f"{table}: record {row['Recording']} has other labels than before")
    # records with labels, then records without
    there = sorted(files.keys() & labels.keys())
    if not there:
        raise InputError(
            f"no .mat file below {raw} is listed in {tables[0]}:"
            " are TrainingSet1 to 3 unpacked there?"
        )
    extra = sorted(files.keys() - labels.keys())
    refs = [
        RecordRef(name, name, None, {"diagnosis": labels[name]}, str(files[name].with_suffix("")))
        for name in there
    ]
    refs += [RecordRef(name, name, None, {}, str(files[name].with_suffix(""))) for name in extra]
    refs, duplicates = keep_together(sorted(refs, key=lambda ref: ref.record_id), (".mat",))
    return Corpus(
        "cpsc2018",
        str(raw),
        {"diagnosis": tuple(CLASSES.values())},
        refs,
        "80/10/10 by sha256 of the record id, records with the same signal together",
        missing=len(labels.keys() - files.keys()),
        read=read_struct,
        duplicates=duplicates,
        notes=[f"{len(extra)} records are not in REFERENCE.csv and not labelled"] if extra else [],
    )


def _names(row: dict[str, str], table: Path) -> list[str]:
    """The classes of a row of REFERENCE.csv, which has up to three numbers."""
    names = []
    for column in LABEL_COLUMNS:
        try:
            number = int(float(row[column])) if row[column].lower() not in ("", "nan") else None
            if number is not None:
                names.append(list(CLASSES.values())[range(1, 10).index(number)])
        except (ValueError, OverflowError):
            raise InputError(
                f"{table}: record {row['Recording']} has label {row[column][:20]!r}, not 1 to 9"
            ) from None
    return sorted(set(names))
