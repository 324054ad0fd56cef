"""Any folder of WFDB records, with or without labels.csv (record_id, patient_id, [split], a column
per task)."""

from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.words import list_some, printable
from data_prep.corpora.corpus import Corpus
from data_prep.corpora.duplicates import keep_together
from data_prep.ecg.record import RecordRef
from data_prep.formats.tables import check_patients, read_labels


def open(raw: Path) -> Corpus:
    """Every record below a folder; record_id is its path without extension, and labels.csv gives
    the rest.

    A record without a row in labels.csv is its own patient, together with those whose signal file
    is the same.
    """
    paths = sorted(path.relative_to(raw).with_suffix("").as_posix() for path in raw.rglob("*.hea"))
    # record ids; of file names that are not UTF-8, Python makes something that no file can hold
    stems = {printable(path): path for path in paths}
    if not stems:
        raise InputError(f"no WFDB header (*.hea) below {raw}: is this the right folder?")
    rows, tasks = read_labels(raw / "labels.csv") if (raw / "labels.csv").exists() else ({}, {})
    unknown = sorted(rows.keys() - stems.keys())
    if unknown:
        raise InputError(
            f"{raw / 'labels.csv'}: {len(unknown)} record_id without a record in the folder:"
            f" {list_some(unknown)}"
        )
    refs = []
    for stem, path in stems.items():
        patient, split, labels = rows.get(stem, (stem, None, {}))
        refs.append(RecordRef(stem, patient, split, labels, str(raw / path)))
    duplicates = {}
    if not rows:
        refs, duplicates = keep_together(refs, (".dat", ".mat"))
    check_patients(refs, raw / "labels.csv")
    given = any(ref.split for ref in refs)
    rule = "column split of labels.csv" if given else "none given"
    return Corpus("wfdb", str(raw), tasks, refs, rule, duplicates=duplicates, in_parts=True)
