"""One record from any file that this project reads."""

import io
import math
import re
import zipfile
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from data_prep.ecg.leads import canonical
from data_prep.ecg.record import Record, RecordRef, Waveform
from data_prep.formats.edf import read_edf
from data_prep.formats.mat_files import read_struct
from data_prep.formats.wfdb_files import (
    LARGEST_VALUES,
    MILLIVOLTS,
    decode,
    read_wfdb_record,
    to_millivolts,
)

MANIFEST = "records.csv"  # lists the files of a folder, see corpora/arrays.py
LARGEST_FILE = 2**31


class NotSaid(InputError):
    """Neither the file nor the caller says the rate, unit or leads of a record."""


def read_any(
    path: str | Path,
    rate: float | None = None,
    unit: str | None = None,
    leads: list[str] | str | None = None,
    record_id: str | None = None,
) -> Record:
    """One record from any file that this project reads.

    These are .npy, .npz, .csv, .edf, .bdf, WFDB (.hea, .dat, .mat or no suffix) and the .mat struct
    of the original CPSC 2018. `leads` chooses among the leads that the file names.
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
    more = (str(path), wave.defects, wave.info, wave.annotations)
    return Record(record_id, record_id, wave.signal, wave.rate, wave.leads, {}, None, "file", *more)


def read_file(path: str, record_id: str, rate=None, unit=None, leads=None) -> Waveform:
    """Reads one file by its suffix; a rate, unit or leads that are given must agree with the
    file."""
    suffix = Path(path).suffix.lower()
    leads = list(leads) if leads else None
    if suffix in (".npy", ".npz"):
        signal, said = _read_numpy(path, suffix, record_id)
    elif suffix in (".csv", ".tsv", ".txt"):
        signal, said = _read_text(path, record_id)
    elif suffix in (".edf", ".bdf"):
        edf = read_edf(path, record_id)
        signal, said = edf.signal, {"rate": edf.rate, "leads": edf.names, "units": edf.units}
    elif suffix in (".xml", ".dcm", ".scp", ".pdf", ".h5", ".hdf5", ".parquet"):
        raise InputError(
            f"record {record_id}: {suffix} files are not read: convert to .npy, .csv, .edf or WFDB"
        )
    else:
        return _read_wfdb(path, record_id, rate, leads)
    # leads that are given choose among the named columns of a table; those of an array must agree
    rate = _agree(rate, said.get("rate"), "rate", record_id)
    if said.get("leads") and leads and suffix != ".npz":
        signal, names, units = _choose(signal, said["leads"], said.get("units"), leads, record_id)
    else:
        names = _agree(leads, said.get("leads"), "leads", record_id)
        units = said.get("units")
    signal = _orient(signal, names, record_id)
    if units is None:
        unit = _agree(unit, said.get("unit"), "unit", record_id)
        if unit.lower() not in MILLIVOLTS:
            raise InputError(f"record {record_id}: unit {unit[:20]!r} is no voltage: give mV or uV")
        units = [unit] * len(names)
    signal, names = to_millivolts(signal, names, units, record_id)
    return Waveform(signal, rate, names)


def _agree(given, said, what: str, record_id: str):
    """A property of a record that is given, or stated in the file, or both alike."""
    if given is None and said is None:
        raise NotSaid(
            f"record {record_id}: its {what} is not known:"
            f" give it in the column {what} of {MANIFEST}"
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


def _orient(signal: np.ndarray, names: list[str], record_id: str) -> np.ndarray:
    """The signal [T,c] from an array with the leads along either axis; a single row of samples is
    one lead."""
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
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(signal, np.float32)


def _choose(signal, there: list[str], units, leads: list[str], record_id: str):
    """The columns of the leads that are asked for."""
    places = {canonical(name) or name: i for i, name in enumerate(there)}
    absent = [name for name in leads if (canonical(name) or name) not in places]
    if absent:
        raise InputError(
            f"record {record_id}: it has no lead {absent[0][:20]!r}"
            f" (found: {', '.join(there)[:80]})"
        )
    chosen = [places[canonical(name) or name] for name in leads]
    return signal[:, chosen], [there[i] for i in chosen], units and [units[i] for i in chosen]


def _read_wfdb(path: str, record_id: str, rate, leads) -> Waveform:
    """One record by the name of any of its files; a .mat without a header is a struct of CPSC
    2018."""
    stem = re.sub(r"\.(hea|dat|mat)$", "", path, flags=re.IGNORECASE)
    if path.lower().endswith(".mat") and not Path(f"{stem}.hea").exists():
        wave = read_struct(RecordRef(record_id, record_id, None, {}, stem))
    else:
        record = read_wfdb_record(stem, record_id)
        wave = Waveform(record.signal, record.rate, record.names, record.defects)
    _agree(rate, wave.rate, "rate", record_id)
    if leads:
        wave.signal, wave.leads, _ = _choose(wave.signal, wave.leads, None, leads, record_id)
    return wave


def _read_numpy(path: str, suffix: str, record_id: str) -> tuple[np.ndarray, dict]:
    """The array of a .npy or .npz file, and what an .npz says of its rate, unit and leads."""
    try:
        if suffix == ".npy":
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
    signal = np.load(path, mmap_mode="r", allow_pickle=False)
    if signal.offset + signal.nbytes != Path(path).stat().st_size:
        raise ValueError("its length is not that of its array")
    return signal


def _read_npz(path: str, record_id: str) -> tuple[np.ndarray, dict]:
    """The array `signal` (or the only one) of an .npz file, and its rate, unit and leads if
    given."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST_FILE:
            raise InputError(
                f"record {record_id}: {Path(path).name} unpacks to {size / 2**30:.0f} GiB"
            )
        held = {
            entry.removesuffix(".npy"): _load_array(archive.read(entry))
            for entry in archive.namelist()
        }
    key = "signal" if "signal" in held else next(iter(held)) if len(held) == 1 else None
    if key is None:
        raise InputError(f"record {record_id}: {Path(path).name} has no array named signal")
    said: dict = {}
    if "rate" in held:
        said["rate"] = read_rate(held["rate"].flat[0], record_id)
    if "unit" in held:
        said["unit"] = str(held["unit"].flat[0])
    if "leads" in held:
        said["leads"] = [str(name) for name in held["leads"].flat]
    return held[key], said


def _load_array(data: bytes) -> np.ndarray:
    """A .npy in memory; its header must not claim more than there is."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = header(file)
    if math.prod(shape) * dtype.itemsize > len(data):
        raise ValueError(f"its header claims {shape}")
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _read_text(path: str, record_id: str) -> tuple[np.ndarray, dict]:
    """A table of numbers with or without a row of names; empty cells are gaps.

    Columns are separated by commas, semicolons or tabs.
    """
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise InputError(f"record {record_id}: {path} is too large for text: use .npy")
        text = decode(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"record {record_id}: {path} is empty")
    # which mark separates columns, and whether the first row holds their names
    mark = max(";\t,", key=lambda mark: (mark in lines[-1][1], mark != ","))
    comma = mark != ","  # a comma is then a decimal point
    names = None
    first = [cell.strip().strip('"') for cell in lines[0][1].split(mark)]
    if not all(_is_number(cell, comma) for cell in first):
        names, lines = first, lines[1:]
    # numbers
    rows = []
    for number, line in lines:
        cells = (line.replace(",", ".") if comma else line).split(mark)
        try:
            if len(cells) != len(first):
                raise ValueError
            rows.append([float(cell) if cell.strip() else math.nan for cell in cells])
        except ValueError:
            raise InputError(
                f"record {record_id}: {path} line {number} is no row of {len(first)} numbers"
            ) from None
    signal = np.array(rows, np.float64).reshape(-1, len(first))
    if names is None:
        return signal, {}
    # columns that are not leads (time, sample numbers) are left out
    keep = [i for i, name in enumerate(names) if canonical(name)]
    if not keep:
        raise InputError(
            f"record {record_id}: none of its columns is a standard lead: {', '.join(names)[:80]}"
        )
    return signal[:, keep], {"leads": [names[i] for i in keep]}


def _is_number(cell: str, comma: bool) -> bool:
    try:
        float(cell.replace(",", ".") if comma else cell or "nan")
        return True
    except ValueError:
        return cell == ""
