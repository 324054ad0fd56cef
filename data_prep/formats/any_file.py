"""One record from any file that this project reads."""

import array
import io
import itertools
import math
import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from data_prep.base.errors import InputError, NotSaid
from data_prep.base.files import ordinary
from data_prep.base.words import first_line
from data_prep.ecg.leads import canonical
from data_prep.ecg.record import Record, RecordRef, Span, Waveform
from data_prep.formats.aecg import read_aecg
from data_prep.formats.content import kind_of
from data_prep.formats.dicom import read_dicom
from data_prep.formats.edf import read_edf
from data_prep.formats.ishne import read_ishne
from data_prep.formats.lead_names import Naming
from data_prep.formats.mat_files import read_struct
from data_prep.formats.muse import read_muse
from data_prep.formats.philips import read_philips
from data_prep.formats.phones import read_apple, read_kardia
from data_prep.formats.scp import read_scp
from data_prep.formats.wfdb_files import (
    LARGEST_VALUES,
    MILLIVOLTS,
    read_wfdb_record,
    to_millivolts,
)

MANIFEST = "records.csv"  # lists the files of a folder, see corpora/arrays.py
# bytes: of the signal of an .npz, unpacked; of its rate, unit and leads; of a text
LARGEST_UNPACKED, LARGEST_NOTE, LARGEST_TEXT = 2**30, 2**20, 2**30
# a signal of more than so many bytes may have so many times the bytes of its .npz
SMALL_UNPACKED, LARGEST_GAIN = 2**26, 20
MOST_COLUMNS, MOST_NUMBERS = 1000, 2**27  # of a text
START, LARGEST_APPLE = 2000, 2**24  # characters of a text that show what it is; of one of a watch
RATES = ("rate", "fs", "sampling_rate")  # names of the rate in an .npz
ENDINGS = {  # that say what a file is; with any other its content does
    ".npy": "npy",
    ".npz": "npz",
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
    ".edf": "edf",
    ".bdf": "edf",
    ".hea": "wfdb",
    ".dat": "wfdb",
    ".mat": "wfdb",
}


IN_PARTS = ("edf", "wfdb", "ishne", "npy")  # formats of which a part can be read


class Format(NamedTuple):
    """A kind of file: its name for people, what of it is not read, and the function that reads it
    (None: it needs more than a path and an id)."""

    name: str
    lost: str
    read: Callable[..., Waveform] | None = None


FORMATS = {
    "npy": Format("numpy array", "nothing"),
    "npz": Format("numpy arrays", "arrays other than signal, rate, unit and leads"),
    "text": Format("table of text", "columns that are no leads"),
    "edf": Format("EDF or BDF", "annotations, patient data, signals of another rate"),
    "wfdb": Format("WFDB", "annotation files and comments"),
    "dicom": Format("DICOM", "patient data, annotations, other groups", read_dicom),
    "muse": Format("GE MUSE XML", "patient data, median beats, statements", read_muse),
    "philips": Format("Philips XML", "patient data, mean beats, statements", read_philips),
    "aecg": Format("HL7 aECG", "patient and trial data, annotations, other strips", read_aecg),
    "scp": Format("SCP-ECG", "patient data, reference beat, statements", read_scp),
    "ishne": Format("ISHNE", "patient data, dates, the block behind the header", read_ishne),
    "kardia": Format("Kardia JSON", "patient data, the filtered signal, the result", read_kardia),
}


def read_any(
    path: str | Path,
    rate: float | None = None,
    unit: str | None = None,
    leads: list[str] | str | None = None,
    record_id: str | None = None,
) -> Record:
    """One record from any file that this project reads.

    The endings .npy, .npz, .csv, .tsv, .txt, .edf, .bdf, .hea, .dat and .mat say what a file is;
    with any other its content does (FORMATS). `leads` chooses among the leads that the file names,
    names the columns of a file that names none, or renames them: 'CH1=I,CH2=II'.
    """
    record_id = record_id or Path(path).stem
    names = split_leads(leads) if isinstance(leads, str) else list(leads or [])
    wave = read_file(
        str(path),
        record_id,
        read_rate(rate, record_id) if rate is not None else None,
        unit,
        names or None,
    )
    more = (str(path), wave.defects, wave.info, wave.annotations, wave.notes)
    return Record(record_id, record_id, wave.signal, wave.rate, wave.leads, {}, None, "file", *more)


def read_file(
    path: str, record_id: str, rate=None, unit=None, leads=None, span: Span | None = None
) -> Waveform:
    """Reads one file by its ending or, where that says nothing, by its content; a rate, unit or
    leads that are given must agree with the file.

    With a `span` only these samples are read, if the format is one of IN_PARTS; `total` of what is
    returned is then the length of the whole record.
    """
    kind = file_kind(path, record_id)
    naming = Naming(leads, record_id)
    span = span if kind in IN_PARTS else None
    if kind == "wfdb":
        wave = _read_wfdb(path, record_id, naming, span)
    elif kind in ("npy", "npz", "text", "edf"):
        return _read_array(path, kind, record_id, rate, unit, naming, span)
    else:
        wave = _read_device(path, FORMATS[kind], record_id, naming, span)
    _agree(rate, wave.rate, "rate", record_id)
    if naming.by_place:
        chosen = _choose(wave.signal, wave.leads, None, naming.by_place, record_id)
        wave.signal, wave.leads, _ = chosen
    wave.notes += naming.notes
    return wave


def file_kind(path: str, record_id: str) -> str:
    """What a file is, a key of FORMATS; an InputError if it cannot be read as an ECG."""
    suffix = Path(path).suffix.lower()
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # perhaps the name of a WFDB record
        if suffix in ENDINGS or not suffix or os.path.exists(f"{path}.hea"):
            return ENDINGS.get(suffix, "wfdb")
        reason = getattr(error, "strerror", None) or "bad name"
        raise InputError(f"record {record_id}: cannot read {path} ({reason})") from None
    if suffix not in ENDINGS and os.path.exists(f"{path}.hea"):
        return "wfdb"
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
        raise InputError(f"record {record_id}: cannot read {path} ({what})")
    try:
        return ENDINGS.get(suffix) or kind_of(path, record_id)
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None


def _read_device(
    path: str, form: Format, record_id: str, naming: Naming, span: Span | None
) -> Waveform:
    """A file of a device, with the twelve leads under their names."""
    try:
        wave = form.read(path, record_id, span) if span else form.read(path, record_id)
        read_rate(wave.rate, record_id)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None
    except Exception as error:  # a damaged file may break a reader anywhere
        raise InputError(
            f"record {record_id}: {Path(path).name} is a damaged {form.name} file"
            f" ({first_line(error, 80)})"
        ) from None
    names = naming.rename(wave.leads)
    units = ["mV"] * len(names)
    wave.signal, wave.leads = to_millivolts(wave.signal, names, units, record_id)
    return wave


def _read_array(
    path: str, kind: str, record_id: str, rate, unit, naming: Naming, span: Span | None
) -> Waveform:
    """An array, a table or EDF, for which the caller says what the file does not."""
    total = None
    if kind == "text":
        signal, said = _read_text(path, record_id, naming, rate)
    elif kind == "edf":
        edf = read_edf(path, record_id, naming.rename, span)
        total, span = edf.total, None
        signal, said = edf.signal, {"rate": edf.rate, "leads": edf.names, "units": edf.units}
    else:
        signal, said = _read_numpy(path, kind, record_id)
        if said.get("leads"):
            said["leads"] = naming.rename(said["leads"])
        elif naming.by_name:
            raise InputError(
                f"record {record_id}: the columns of {Path(path).name} have no names to rename:"
                " give the leads in their order, as I,II,V2"
            )
    # leads that are given choose among the named columns of a table; those of an array must agree
    rate, leads = _agree(rate, said.get("rate"), "rate", record_id), naming.by_place
    if said.get("leads") and leads and kind != "npz":
        signal, names, units = _choose(signal, said["leads"], said.get("units"), leads, record_id)
    else:
        names = _agree(leads, said.get("leads"), "leads", record_id)
        units = said.get("units")
    if span:
        total = max(signal.shape)
    signal = _orient(signal, names, record_id, span)
    if units is None:
        unit = _agree(unit, said.get("unit"), "unit", record_id)
        if unit.lower() not in MILLIVOLTS:
            raise InputError(f"record {record_id}: unit {unit[:20]!r} is no voltage: give mV or uV")
        units = [unit] * len(names)
    signal, names = to_millivolts(signal, names, units, record_id)
    return Waveform(signal, rate, names, notes=naming.notes, total=total)


def _agree(given, said, what: str, record_id: str):
    """A property of a record that is given, or stated in the file, or both alike."""
    if given is None and said is None:
        flag = "lead_names" if what == "leads" else what
        raise NotSaid(
            f"record {record_id}: its {what} is not known:"
            f" give it in the column {what} of {MANIFEST}, or as --{flag}"
        )
    if given is not None and said is not None and given != said:
        raise InputError(
            f"record {record_id}: its {what} is {said!r} in the file, but {given!r} was given"[:200]
        )
    return said if given is None else given


def read_rate(value: object, record_id: str) -> float:
    """A sampling rate in Hz, or an InputError."""
    try:
        rate = float(value)
        if not 1 <= rate <= 1e5:
            raise ValueError
        return rate
    except (TypeError, ValueError):
        text = str(value)[:20]
        raise InputError(
            f"record {record_id}: sampling rate {text!r} is no number from 1 to 100000 Hz"
        ) from None


def split_leads(text: str) -> list[str]:
    """'I; II,V2' -> ['I', 'II', 'V2']."""
    return [name.strip() for name in re.split(r"[;,|]", text) if name.strip()]


def _orient(
    signal: np.ndarray, names: list[str], record_id: str, span: Span | None = None
) -> np.ndarray:
    """The signal [T,c], or a part of it, from an array with the leads along either axis; a single
    row of samples is one lead."""
    if signal.ndim == 1:
        signal = signal[:, None]
    if signal.ndim != 2 or len(names) not in signal.shape:
        raise InputError(
            f"record {record_id}: its array has shape {signal.shape},"
            f" but {len(names)} leads are named"
        )
    if signal.shape[0] == len(names) and signal.shape[1] == len(names):
        raise InputError(
            f"record {record_id}: its array is square, {signal.shape}:"
            " which axis is time cannot be told"
        )
    signal = signal if signal.shape[1] == len(names) else signal.T
    signal = signal if span is None else signal[slice(*span)]
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(signal, np.float32)


def _choose(signal, there: list[str], units, leads: list[str], record_id: str):
    """The columns of the leads that are asked for."""
    places = {canonical(name) or name: i for i, name in enumerate(there)}
    absent = [name for name in leads if (canonical(name) or name) not in places]
    if absent:
        raise InputError(
            f"record {record_id}: it has no lead {absent[0][:20]!r}"
            f" (found: {', '.join(there)[:80]}; --lead_names=NAME=LEAD renames)"
        )
    chosen = [places[canonical(name) or name] for name in leads]
    return signal[:, chosen], [there[i] for i in chosen], units and [units[i] for i in chosen]


def _read_wfdb(path: str, record_id: str, naming: Naming, span: Span | None) -> Waveform:
    """One record by the name of any of its files; a .mat without a header is a struct of CPSC
    2018."""
    stem = re.sub(r"\.(hea|dat|mat)$", "", path, flags=re.IGNORECASE)
    if path.lower().endswith(".mat") and not Path(f"{stem}.hea").exists():
        return read_struct(RecordRef(record_id, record_id, None, {}, stem))
    record = read_wfdb_record(stem, record_id, rename=naming.rename, span=span)
    total = record.total if span else None
    return Waveform(record.signal, record.rate, record.names, record.defects, total=total)


def _read_numpy(path: str, kind: str, record_id: str) -> tuple[np.ndarray, dict]:
    """The array of a .npy or .npz file, and what an .npz says of its rate, unit and leads."""
    try:
        if kind == "npy":
            signal, said = _map_array(path), {}
        else:
            signal, said = _read_npz(path, record_id)
    except InputError:
        raise
    except Exception as error:  # numpy and zipfile may raise anything on a broken file
        raise InputError(
            f"record {record_id}: cannot read {path} ({first_line(error, 80)})"
        ) from None
    if signal.dtype.kind not in "fiu" or not 0 < signal.size <= LARGEST_VALUES:
        raise InputError(
            f"record {record_id}: {Path(path).name} holds {signal.dtype} {signal.shape}, no ECG"
        )
    return signal, said


def _map_array(path: str) -> np.ndarray:
    """The array of a .npy file, mapped: a header that claims too much takes no memory."""
    signal = np.load(ordinary(path), mmap_mode="r", allow_pickle=False)
    if signal.offset + signal.nbytes != Path(path).stat().st_size:
        raise ValueError("its length is not that of its array")
    return signal


def _read_npz(path: str, record_id: str) -> tuple[np.ndarray, dict]:
    """The array `signal` (or the only one) of an .npz file, and its rate, unit and leads if
    given."""
    with zipfile.ZipFile(ordinary(path)) as archive:
        sizes = {e.filename.removesuffix(".npy"): e.file_size for e in archive.infolist()}
        key = "signal" if "signal" in sizes else next(iter(sizes)) if len(sizes) == 1 else None
        if key is None:
            raise InputError(f"record {record_id}: {Path(path).name} has no array named signal")
        packed = Path(path).stat().st_size
        room = min(LARGEST_UNPACKED, max(SMALL_UNPACKED, LARGEST_GAIN * packed))
        for name in {key, *RATES, "unit", "leads"} & sizes.keys():
            most = room if name == key else LARGEST_NOTE
            if sizes[name] > most:
                raise InputError(
                    f"record {record_id}: {name} of {Path(path).name} unpacks to"
                    f" {sizes[name] / 2**20:.0f} MiB, more than the {most / 2**20:.0f} that a file"
                    " of its size may: save it as .npy"
                )

        def load(name: str) -> np.ndarray:
            there = name if name in archive.namelist() else f"{name}.npy"
            return _load_array(archive.read(there))

        said: dict = {}
        rate = next((name for name in RATES if name in sizes), None)
        if rate:
            said["rate"] = read_rate(load(rate).flat[0], record_id)
        if "unit" in sizes:
            said["unit"] = _letters(load("unit"))[0]
        if "leads" in sizes:
            said["leads"] = _letters(load("leads"))
        return load(key), said


def _letters(texts: np.ndarray) -> list[str]:
    """The texts of an array; a ValueError for characters that Unicode does not have, on which
    Python's own functions fail."""
    if texts.dtype.kind == "U" and texts.dtype.itemsize:
        codes = np.ascontiguousarray(texts.astype(texts.dtype.newbyteorder("="))).view(np.uint32)
        if (codes > 0x10FFFF).any():
            raise ValueError("its text has characters that do not exist")
    return [str(text) for text in texts.flat]


def _load_array(data: bytes) -> np.ndarray:
    """A .npy in memory; its header must not claim more than there is."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_column, dtype = header(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > len(data) - file.tell():
        raise ValueError(f"its header claims {shape} of {dtype}")
    flat = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    return flat.reshape(shape, order="F" if by_column else "C")


def _read_text(
    path: str, record_id: str, naming: Naming, rate: float | None
) -> tuple[np.ndarray, dict]:
    """A table of numbers with or without a row of names, or an ECG of Apple Health.

    Columns are separated by commas, semicolons or tabs; empty cells are gaps. A column of times
    says the rate, unless `rate` is given.
    """
    try:
        if Path(ordinary(path)).stat().st_size > LARGEST_TEXT:
            raise InputError(f"record {record_id}: {path} is too large for text: use .npy")
        with open(path, encoding=_encoding(path), errors="replace") as file:
            return _read_apple(file) or _read_lines(file, path, record_id, naming, rate)
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None


def _encoding(path: str) -> str:
    """How the text of a file is written: UTF-16 says so at its start, and what is not UTF-8 is
    taken for Latin-1."""
    with open(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
    try:
        with open(path, encoding="utf-8-sig") as text:
            while text.read(2**20):
                pass
        return "utf-8-sig"
    except UnicodeDecodeError:
        return "latin-1"


def _read_apple(file: TextIO) -> tuple[np.ndarray, dict] | None:
    """An ECG of Apple Health, which its first lines show; None, and the file at its start, if it is
    something else."""
    start = file.read(START)
    if read_apple(start[: start.rfind("\n") + 1] if len(start) == START else start):
        found = read_apple(start + file.read(LARGEST_APPLE))
        if found:
            return found
    file.seek(0)
    return None


def _read_lines(
    file: TextIO, path: str, record_id: str, naming: Naming, rate: float | None
) -> tuple[np.ndarray, dict]:
    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    head = list(itertools.islice(lines, 2))
    if not head:
        raise InputError(f"record {record_id}: {path} is empty")
    # which mark separates columns, and whether the first row holds their names
    mark = max(";\t,", key=lambda mark: (mark in head[-1][1], mark != ","))
    comma = mark != ","  # a comma is then a decimal point
    if head[0][1].count(mark) >= MOST_COLUMNS:
        raise InputError(f"record {record_id}: {path} has more than {MOST_COLUMNS} columns")
    names = None
    first = [cell.strip().strip('"') for cell in head[0][1].split(mark)]
    if not all(_is_number(cell, comma) for cell in first):
        names, head = first, head[1:]
    # numbers, eight bytes each: a column of times needs them
    values = array.array("d")
    for number, line in itertools.chain(head, lines):
        try:
            if line.count(mark) != len(first) - 1 or len(values) > MOST_NUMBERS:
                raise ValueError
            cells = (line.replace(",", ".") if comma else line).split(mark)
            values.extend(float(cell) if cell.strip() else math.nan for cell in cells)
        except ValueError:
            raise InputError(
                f"record {record_id}: {path} line {number} is no row of {len(first)} numbers"
            ) from None
    signal = np.frombuffer(values, np.float64).reshape(-1, len(first))
    if names is None:
        return signal, {}
    # a column of times gives the rate; others that are no leads are left out
    said: dict = {}
    time = next((i for i, name in enumerate(names) if _TIME.match(name)), None)
    if time is not None:
        said["rate"] = _rate_of_times(signal[:, time], names[time], rate, naming.notes)
    columns = [i for i in range(len(names)) if i != time]
    leads = dict(zip(columns, naming.rename([names[i] for i in columns]), strict=True))
    keep = [i for i in columns if canonical(leads[i])]
    if not keep:
        raise NotSaid(
            f"record {record_id}: none of its columns is a standard lead: {', '.join(names)[:80]};"
            " name them: --lead_names=COLUMN=I,..."
        )
    said["leads"] = [leads[i] for i in keep]
    units = [_UNIT.search(names[i]) for i in keep]
    if all(units):
        said["units"] = [unit[1] for unit in units]
    return signal[:, keep], said


_TIME = re.compile(r"(time|t|seconds?|secs?|ms|elapsed)([\W_]|$)", re.IGNORECASE)
_MILLISECONDS = re.compile(r"(?<![a-z])ms(?![a-z])|milli", re.IGNORECASE)
_UNIT = re.compile(r"[(\[]\s*([mun\u00b5\u03bc]?V)\s*[)\]]\s*$", re.IGNORECASE)


def _rate_of_times(
    times: np.ndarray, name: str, given: float | None, notes: list[str]
) -> float | None:
    """The rate that a column of times in seconds or, if its name says so, milliseconds shows. None
    if its steps are uneven, or so large that they are no seconds. A rate that is given counts more.
    """
    seconds = times / 1000 if _MILLISECONDS.search(name) else times
    with np.errstate(all="ignore"):
        step = (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1)
        uneven = np.abs(seconds - seconds[0] - step * np.arange(len(seconds)))
        if not 1e-5 <= step <= 0.1 or not (uneven < 0.75 * step).all():
            return given
    rate = round(1 / step) if abs(step * round(1 / step) - 1) < 5e-4 else 1 / step
    if given is not None and abs(given / rate - 1) > 1e-3:
        notes.append(f"its column {name} shows {rate:g} Hz; {given:g} Hz were given and are used")
    return float(rate) if given is None else given


def _is_number(cell: str, comma: bool) -> bool:
    try:
        float(cell.replace(",", ".") if comma else cell or "nan")
        return True
    except ValueError:
        return cell == ""
