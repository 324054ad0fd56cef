"""PTB Diagnostic: 15 signals per record (12 leads in .dat, Frank vx vy vz in .xyz), one folder per
patient."""

import re
from collections import Counter
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.lottery import SPLIT_RULE
from data_prep.base.words import list_some
from data_prep.corpora.corpus import Corpus, list_headers
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.formats.wfdb_files import header_text, read_wfdb_record

CLASSES = (
    "Bundle branch block",
    "Cardiomyopathy",
    "Dysrhythmia",
    "Healthy control",
    "Heart failure",  # of any NYHA class
    "Hypertrophy",
    "Myocardial infarction",
    "Myocarditis",
    "Palpitation",
    "Stable angina",
    "Unstable angina",
    "Valvular heart disease",
)


def open(raw: Path) -> Corpus:
    """Task 'diagnosis' from the header's 'Reason for admission' ('n/a' is not labelled); patient_id
    is the folder."""
    by_lower = {name.lower(): name for name in CLASSES}
    refs, unknown = [], Counter()
    for record_id, stem in list_headers(raw).items():
        if not re.fullmatch(r"patient\d+", stem.parent.name):
            raise InputError(
                f"record {record_id}:"
                f" its folder {stem.parent} is not named after a patient (patient001)"
            )
        reason = _field(header_text(stem, record_id), "Reason for admission")
        labels = {}
        if reason and reason.lower() != "n/a":
            name = by_lower.get(re.sub(r"\s*\(.*\)$", "", reason).lower())
            labels = {"diagnosis": [name] if name else []}
            if name is None:
                unknown[reason] += 1
        refs.append(RecordRef(record_id, stem.parent.name, None, labels, str(stem)))
    notes = [f"reasons for admission that are no class: {list_some(unknown)}"] if unknown else []
    return Corpus(
        "ptb",
        str(raw),
        {"diagnosis": CLASSES},
        refs,
        SPLIT_RULE,
        read=read,
        unknown_codes=dict(unknown),
        notes=notes,
    )


def read(ref: RecordRef) -> Waveform:
    """All 15 signals; the Frank leads keep their names vx, vy, vz."""
    record = read_wfdb_record(ref.path, ref.record_id)
    text = "\n".join(f"#{line}" for line in record.comments)
    fields = {"age": "age", "sex": "sex", "reason": "Reason for admission"}
    info = {key: value for key, name in fields.items() if (value := _field(text, name))}
    return Waveform(record.signal, record.rate, record.names, record.defects, info)


def _field(text: str, name: str) -> str:
    """The value of a header's comment '# NAME: value', or ''."""
    found = re.search(rf"^#[ \t]*{name}:[ \t]*([^\r\n]*)", text, re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else ""
