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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.words import SPLITS, list_some, printable
from data_prep.ecg.record import Record, RecordRef, Span, Waveform
from data_prep.formats.tables import check_patients, read_csv, read_keyed
from data_prep.formats.wfdb_files import read_wfdb_record

CORPORA = {  # name -> module
    "wfdb": "wfdb_folder",
    "synthetic": "synthetic_folder",
    "arrays": "arrays",
    "files": "mixed_folder",
    "ptbxl": "ptbxl",
    "mimic": "mimic",
    "cpsc2018": "cpsc2018",
    "csn": "csn",
    "ptb": "ptb",
    "ludb": "ludb",
}


def read_plain(ref: RecordRef, span: Span | None = None) -> Waveform:
    """A WFDB record as it is, or a part of it."""
    record = read_wfdb_record(ref.path, ref.record_id, span=span)
    total = record.total if span else None
    return Waveform(record.signal, record.rate, record.names, record.defects, total=total)


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
    read: Callable[..., Waveform] = read_plain  # defined in a module, so that it can be pickled
    in_parts: bool = False  # `read` takes a span, too: long records are read in parts
    # record -> the first record with the same signal file
    duplicates: dict[str, str] = field(default_factory=dict)
    # codes that are not classes -> number of records
    unknown_codes: dict[str, int] = field(default_factory=dict)
    # what the user should know about the listing, one line each
    notes: list[str] = field(default_factory=list)

    # what readers noted of records that were loaded -> number of records
    noted: Counter[str] = field(default_factory=Counter)

    def load(self, ref: RecordRef) -> Record:
        """Reads the signal of one record."""
        wave = self.read(ref)
        self.noted.update(wave.notes)
        ids = (ref.record_id, ref.patient_id)
        more = (ref.path, wave.defects, wave.info, wave.annotations, wave.notes)
        return Record(
            *ids, wave.signal, wave.rate, wave.leads, ref.labels, ref.split, self.name, *more
        )

    def all_notes(self) -> list[str]:
        """Notes on the listing and on the records that were loaded."""
        return self.notes + [
            note if count == 1 else f"{note} ({count} records)"
            for note, count in self.noted.items()
        ]


def list_headers(raw: Path) -> dict[str, Path]:
    """record_id (the file's name) -> path without extension, for every WFDB header below a
    folder."""
    stems: dict[str, Path] = {}
    for path in sorted(raw.rglob("*.hea"), key=lambda path: (path.stem, path)):
        name = printable(path.stem)  # of names that are not UTF-8, Python makes something else
        other = stems.setdefault(name, path.with_suffix(""))
        if other != path.with_suffix(""):
            raise InputError(
                f"record {name} is there twice: {other}.hea and {path}; keep one of them"
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


# a published split as its authors pass it on: a file for each split, named by its end
PUBLISHED_FILES = {"train": "_train.csv", "validation": "_val.csv", "test": "_test.csv"}
PUBLISHED_IDS = ("record_id", "filename", "ecg_path")  # columns with the name of a record's file


def apply_splits(corpus: Corpus, path: str | Path) -> Corpus:
    """The corpus with the splits of a CSV (columns record_id or patient_id, and split), or of a
    folder with the files of a published split (PUBLISHED_FILES).

    Records that it does not name are left out, and ids that the corpus does not have are counted,
    both in `notes`. A patient in two splits is an error: it would leak test data into training.
    Records that count as one patient only because their signal is the same may be in two: the
    build finds such copies, and leaves out those that would leak.
    """
    path = Path(path)
    key, chosen = _read_published(path) if path.is_dir() else _read_splits(path)
    there = {getattr(ref, key) for ref in corpus.refs}
    unknown = sorted(chosen.keys() - there)
    if not there & chosen.keys():
        raise InputError(
            f"{path}: no {key} of it is in the corpus {corpus.name}: {list_some(unknown)}"
        )
    kept = [ref for ref in corpus.refs if getattr(ref, key) in chosen]
    refs = [dataclasses.replace(ref, split=chosen[getattr(ref, key)]) for ref in kept]
    check_patients([ref for ref in refs if ref.record_id not in corpus.duplicates], path)
    notes = list(corpus.notes)
    if unknown:
        # by split: after a partial download, a whole one may be absent
        named, absent = Counter(chosen.values()), Counter(chosen[name] for name in unknown)
        counts = ", ".join(f"{s} {absent[s]} of {named[s]}" for s in SPLITS if absent[s])
        notes.append(
            f"{path.name} names {len(unknown)} {key} that the raw folder does not have"
            f" ({counts}): {list_some(unknown)}"
        )
    if len(kept) < len(corpus.refs):
        notes.append(
            f"{len(corpus.refs) - len(kept)} records are not in {path.name} and were left out"
        )
    return dataclasses.replace(corpus, refs=refs, split_rule=f"{key} in {path.name}", notes=notes)


def _read_splits(path: Path) -> tuple[str, dict[str, str]]:
    """The column of ids of a user's CSV, and id -> split."""
    key, rows = read_keyed(path, ("split",))
    chosen: dict[str, str] = {}
    for row in rows:
        if not row["split"]:
            raise InputError(f"{path} line {row.line}: no split; choose from {', '.join(SPLITS)}")
        if chosen.setdefault(row[key], row["split"]) != row["split"]:
            raise InputError(f"{path} line {row.line}: {key} {row[key]} has two splits")
    return key, chosen


def _read_published(folder: Path) -> tuple[str, dict[str, str]]:
    """'record_id', and id -> split, of the files of a published split; labels in them are not
    read."""
    chosen: dict[str, str] = {}
    for split, end in PUBLISHED_FILES.items():
        files = sorted(folder.glob(f"*{end}"))
        if len(files) != 1:
            raise InputError(
                f"{folder}: {len(files)} files end in {end}; a published split has one for each"
                f" of {', '.join(PUBLISHED_FILES.values())}"
            )
        for row in read_csv(files[0]):
            column = next((name for name in PUBLISHED_IDS if name in row), None)
            if column is None:
                raise InputError(f"{files[0]} has none of the columns {', '.join(PUBLISHED_IDS)}")
            name = Path(row[column]).stem
            if chosen.setdefault(name, split) != split:
                raise InputError(f"{files[0]} line {row.line}: record {name} has two splits")
    return "record_id", chosen
