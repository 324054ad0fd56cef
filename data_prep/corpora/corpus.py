"""Reads ECG corpora: first a cheap listing of records, then the signals one at a time.

A corpus has a name, tasks (task -> class names) and a list of RecordRef; `load(ref)` reads one
signal. Labels and leads go by name everywhere. Each corpus is a module of data_prep.corpora with a
function open(raw, **options) that returns a Corpus; to add one, write the module and enter it in
CORPORA. Whatever is wrong with a single record is an InputError of one line that names it, so that
a build can note it and continue.
"""

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.words import SPLITS, list_some
from data_prep.ecg.record import Record, RecordRef, Waveform
from data_prep.formats.tables import check_patients, read_keyed
from data_prep.formats.wfdb_files import read_wfdb_record

CORPORA = {  # name -> module
    "wfdb": "wfdb_folder",
    "synthetic": "synthetic_folder",
    "arrays": "arrays",
    "ptbxl": "ptbxl",
    "mimic": "mimic",
    "cpsc2018": "cpsc2018",
    "csn": "csn",
    "ptb": "ptb",
    "ludb": "ludb",
}


def read_plain(ref: RecordRef) -> Waveform:
    """A WFDB record as it is."""
    record = read_wfdb_record(ref.path, ref.record_id)
    return Waveform(record.signal, record.rate, record.names, record.defects)


@dataclass
class Corpus:
    """A corpus that has been listed; small enough to send to other processes once `refs` is
    emptied."""

    name: str
    raw_dir: str
    tasks: dict[str, tuple[str, ...]]
    refs: list[RecordRef]
    split_rule: str
    missing: int = 0  # records that are in the tables but not in the folder
    read: Callable[[RecordRef], Waveform] = (
        read_plain  # defined in a module, so that it can be pickled
    )
    # record -> the first record with the same signal file
    duplicates: dict[str, str] = field(default_factory=dict)
    # codes that are not classes -> number of records
    unknown_codes: dict[str, int] = field(default_factory=dict)
    # what the user should know about the listing, one line each
    notes: list[str] = field(default_factory=list)

    def load(self, ref: RecordRef) -> Record:
        """Reads the signal of one record."""
        wave = self.read(ref)
        ids = (ref.record_id, ref.patient_id)
        more = (ref.path, wave.defects, wave.info, wave.annotations)
        return Record(
            *ids, wave.signal, wave.rate, wave.leads, ref.labels, ref.split, self.name, *more
        )


def list_headers(raw: Path) -> dict[str, Path]:
    """record_id (the file's name) -> path without extension, for every WFDB header below a
    folder."""
    stems: dict[str, Path] = {}
    for path in sorted(raw.rglob("*.hea"), key=lambda path: (path.stem, path)):
        other = stems.setdefault(path.stem, path.with_suffix(""))
        if other != path.with_suffix(""):
            raise InputError(
                f"record {path.stem} is there twice: {other}.hea and {path}; keep one of them"
            )
    if not stems:
        raise InputError(f"no WFDB header (*.hea) below {raw}: is the set unpacked there?")
    return stems


def open_corpus(name: str, raw_dir: str | Path, options: Mapping[str, str] | None = None) -> Corpus:
    """Lists the corpus `name` in the folder `raw_dir`; `options` are keyword arguments of its
    module's open()."""
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(CORPORA)}"
        raise InputError(f"unknown corpus {name!r}: {hint}")
    function = importlib.import_module(f"data_prep.corpora.{CORPORA[name]}").open
    known = [key for key in inspect.signature(function).parameters if key != "raw"]
    for key in options or {}:
        if key not in known:
            raise InputError(
                f"corpus {name} has no option {key!r}: it takes {', '.join(known) or 'none'}"
            )
    raw = Path(raw_dir)
    if not raw.is_dir():
        raise InputError(f"no folder {raw}: give the folder that holds the {name} records")
    return function(raw, **(options or {}))


def apply_splits(corpus: Corpus, path: str | Path) -> Corpus:
    """The corpus with the splits of a user's CSV: columns record_id or patient_id, and split.

    Records that the CSV does not name are left out, and ids that the corpus does not have are
    counted, both in `notes`. A patient (or two records with the same signal) in two splits is an
    error: it would leak test data into training.
    """
    path = Path(path)
    key, rows = read_keyed(path, ("split",))
    chosen: dict[str, str] = {}
    for row in rows:
        if not row["split"]:
            raise InputError(f"{path} line {row.line}: no split; choose from {', '.join(SPLITS)}")
        if chosen.setdefault(row[key], row["split"]) != row["split"]:
            raise InputError(f"{path} line {row.line}: {key} {row[key]} has two splits")
    there = {getattr(ref, key) for ref in corpus.refs}
    unknown = sorted(chosen.keys() - there)
    if not there & chosen.keys():
        raise InputError(
            f"{path}: no {key} of it is in the corpus {corpus.name}: {list_some(unknown)}"
        )
    kept = [ref for ref in corpus.refs if getattr(ref, key) in chosen]
    refs = [dataclasses.replace(ref, split=chosen[getattr(ref, key)]) for ref in kept]
    check_patients(refs, path)
    notes = list(corpus.notes)
    if unknown:
        notes.append(
            f"{path.name} names {len(unknown)} {key} that {corpus.name} does not have:"
            f" {list_some(unknown)}"
        )
    if len(kept) < len(corpus.refs):
        notes.append(
            f"{len(corpus.refs) - len(kept)} records are not in {path.name} and were left out"
        )
    return dataclasses.replace(corpus, refs=refs, split_rule=f"{key} in {path.name}", notes=notes)
