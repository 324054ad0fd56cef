"""LUDB: 12 leads, in each of which cardiologists marked the P, QRS and T waves; rhythm and axis in
ludb.csv."""

from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import Corpus, list_headers
from data_prep.ecg.leads import LEADS
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.formats.tables import read_csv
from data_prep.formats.wfdb_files import read_wfdb_record

WAVES = {24: "P", 1: "QRS", 27: "T"}  # annotation code of a peak -> wave
ONSET, OFFSET = 39, 40  # '(' and ')'
SKIP, AUX = 59, 63  # codes that are followed by more bytes
AXIS = "Electric axis of the heart"
RHYTHMS = (
    "Aberrant conduction",
    "Atrial fibrillation",
    "Atrial flutter, typical",
    "Irregular sinus rhythm",
    "Sinus arrhythmia",
    "Sinus bradycardia",
    "Sinus rhythm",
    "Sinus tachycardia",
    "Wandering atrial pacemaker",
)
AXES = ("horizontal", "left axis deviation", "normal", "right axis deviation", "vertical")


def open(raw: Path) -> Corpus:
    """Tasks 'rhythm' and 'axis'; paced records have neither and are not labelled. Every record is
    another subject."""
    stems = sorted(list_headers(raw).values(), key=lambda stem: (len(stem.name), stem.name))
    table = {row["ID"]: row for row in read_csv(raw / "ludb.csv", ("ID", "Rhythms", AXIS))}
    refs, unknown = [], {}
    for stem in stems:
        if stem.name not in table:
            raise InputError(f"record {stem.name}: not in {raw / 'ludb.csv'}")
        row, labels = table[stem.name], {}
        for task, column, classes in (("rhythm", "Rhythms", RHYTHMS), ("axis", AXIS, AXES)):
            names = {line.split(":")[-1].strip() for line in row[column].splitlines()} - {""}
            for name in names - set(classes):
                unknown[name] = unknown.get(name, 0) + 1
            if names:
                labels[task] = sorted(names & set(classes))
        refs.append(RecordRef(stem.name, stem.name, None, labels, str(stem)))
    rule = "80/10/10 by sha256 of the record id (every record is another subject)"
    missing = len(table.keys() - {ref.record_id for ref in refs})
    tasks = {"rhythm": RHYTHMS, "axis": AXES}
    return Corpus(
        "ludb",
        str(raw),
        tasks,
        refs,
        rule,
        missing,
        read=read,
        unknown_codes=dict(sorted(unknown.items())),
    )


def read(ref: RecordRef) -> Waveform:
    """The signal, and annotations: lead -> 'P' | 'QRS' | 'T' -> int [k,3].

    The columns are the samples of onset, peak and end; -1 if not marked.
    """
    record = read_wfdb_record(ref.path, ref.record_id)
    annotations, defects = {}, list(record.defects)
    for lead in LEADS:
        path = Path(f"{ref.path}.{lead.lower()}")
        if path.exists():
            annotations[lead] = read_waves(path, ref.record_id, len(record.signal))
        else:
            defects.append(f"not_annotated:{lead}")
    return Waveform(record.signal, record.rate, record.names, defects, {}, annotations)


def read_waves(path: Path, record_id: str, length: int) -> dict[str, np.ndarray]:
    """The waves of one annotation file."""
    found: dict[str, list[list[int]]] = {wave: [] for wave in WAVES.values()}
    onset, open_wave = -1, None
    for sample, code in read_annotations(path, record_id):
        if not 0 <= sample < length:
            raise InputError(f"record {record_id}: {path.name} marks sample {sample} of {length}")
        if code == ONSET:
            onset, open_wave = sample, None
        elif code in WAVES:
            open_wave = [onset, sample, -1]
            found[WAVES[code]].append(open_wave)
            onset = -1
        elif code == OFFSET and open_wave is not None:
            open_wave[2], open_wave = sample, None
    return {wave: np.array(rows, np.int64).reshape(-1, 3) for wave, rows in found.items()}


def read_annotations(path: Path, record_id: str) -> list[tuple[int, int]]:
    """(sample, code) of a WFDB annotation file: words of 6 bits code and 10 bits samples since the
    previous one.

    wfdb.rdann finds the same marks in all of LUDB, but takes 44 times as long and does not notice
    that a file is truncated.
    """
    try:
        words = np.frombuffer(raw := path.read_bytes(), "<u2", len(raw) // 2).tolist()
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None
    marks, sample, place = [], 0, 0
    while place < len(words) and words[place]:
        code, step = words[place] >> 10, words[place] & 1023
        place += 1
        if code == SKIP:  # a long step: high word first
            if place + 2 > len(words):
                raise InputError(f"record {record_id}: {path.name} is truncated")
            step = words[place] << 16 | words[place + 1]
            sample += step - (1 << 32 if step >= 1 << 31 else 0)
            place += 2
        elif code == AUX:
            place += (step + 1) // 2
        elif code < SKIP:
            sample += step
            marks.append((sample, code))
    if place >= len(words):
        raise InputError(f"record {record_id}: {path.name} is truncated")
    return marks
