"""Read one WFDB record: its header, and its signal in mV.

Plain 16-bit files, which most corpora use, are read directly and fast; the wfdb package does the rest. A header that is
broken or contradicts its signal file is an InputError of one line that names the record.
"""

import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np

from data_prep.errors import InputError
from data_prep.leads import canonical

MILLIVOLTS = {"mv": 1.0, "uv": 1e-3, "\u00b5v": 1e-3, "\u03bcv": 1e-3, "v": 1e3, "nv": 1e-6}
LARGEST_MILLIVOLTS = 1000.0  # beyond any electrode offset: a wrong gain or unit


@dataclass(frozen=True)
class Channel:
    """One signal line of a WFDB header."""

    file: str
    format: str
    frame: int  # samples per frame
    skew: int
    offset: int  # bytes before the first sample
    gain: float
    baseline: int
    unit: str
    name: str


@dataclass(frozen=True)
class Header:
    """A WFDB header; `segments` > 1 means that the signals are described elsewhere."""

    rate: float
    samples: int | None
    channels: list[Channel]
    segments: int = 1
    comments: list[str] = field(default_factory=list)


_FORMAT = re.compile(r"(\d+)(?:x(\d+))?(?::(\d+))?(?:\+(\d+))?$")
_GAIN = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?\d+)?)(?:\(([-+]?\d+)\))?(?:/(\S+))?$")


def read_header(stem: str | Path, record_id: str | None = None) -> Header:
    """Parse STEM.hea: any line ending, UTF-8 or Latin-1, optional fields left out."""
    record_id = record_id or Path(stem).name
    try:
        raw = Path(f"{stem}.hea").read_bytes()
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read its header {stem}.hea ({error.strerror})") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    lines = [line for line in map(str.strip, text.replace("\r", "\n").split("\n")) if line]
    comments = [line[1:].strip() for line in lines if line[0] == "#"]
    lines = [line for line in lines if line[0] != "#"]
    try:
        first = lines[0].split()
        segments = int(first[0].split("/")[1]) if "/" in first[0] else 1
        count = int(first[1])
        rate = float(re.split(r"[/(]", first[2])[0]) if len(first) > 2 else 250.0
        samples = int(first[3]) if len(first) > 3 and int(first[3]) > 0 else None
    except (IndexError, ValueError):
        raise InputError(f"record {record_id}: the first line of its header is not a WFDB record line") from None
    if not 1 <= rate <= 1e5 or not 1 <= count <= 1000:
        raise InputError(f"record {record_id}: its header claims {count} signals at {rate:g} Hz")
    if segments > 1:
        return Header(rate, samples, [], segments, comments)
    if len(lines) - 1 != count:
        raise InputError(f"record {record_id}: its header claims {count} signals but has {len(lines) - 1} signal lines")
    return Header(rate, samples, [_channel(line, record_id) for line in lines[1:]], 1, comments)


def _channel(line: str, record_id: str) -> Channel:
    words = line.split(None, 8)
    form = _FORMAT.match(words[1]) if len(words) > 1 else None
    gain = _GAIN.match(words[2]) if len(words) > 2 else None
    try:
        if form is None or (len(words) > 2 and gain is None):
            raise ValueError
        number, baseline, unit = gain.groups() if gain else ("200", None, None)
        zero = int(words[4]) if len(words) > 4 else 0
        return Channel(
            file=words[0],
            format=form[1],
            frame=int(form[2] or 1),
            skew=int(form[3] or 0),
            offset=int(form[4] or 0),
            gain=float(number),
            baseline=zero if baseline is None else int(baseline),
            unit=unit or "mV",
            name=words[8].strip() if len(words) > 8 else "",
        )
    except ValueError:
        raise InputError(f"record {record_id}: its header has a broken signal line: {line[:60]!r}") from None


def read_wfdb(stem: str | Path, record_id: str | None = None, fast: bool = True) -> tuple[np.ndarray, float, list[str]]:
    """Signal float32 [T,c] in mV, rate, lead names as written. Channels that are no voltage (and no lead) are left out.

    Plain 16-bit files are read directly; every other format (and all with fast=False) goes through the wfdb package.
    """
    record_id = record_id or Path(stem).name
    header = read_header(stem, record_id)
    _check_gains(header.channels, record_id)
    plain = header.channels and all(c.format == "16" and c.frame == 1 and c.skew == 0 for c in header.channels)
    if fast and plain:
        signal = _read_format_16(Path(stem).parent, header, record_id)
        names, units = [c.name for c in header.channels], [c.unit for c in header.channels]
    else:
        signal, names, units = _read_with_wfdb(stem, record_id)
    scale = np.array([MILLIVOLTS.get(unit.lower(), np.nan) for unit in units], np.float32)
    leads = [canonical(name) for name in names]
    if np.isnan(scale).any() or (scale != 1).any():
        keep = np.flatnonzero(~np.isnan(scale))
        lost = next((i for i, lead in enumerate(leads) if lead and np.isnan(scale[i])), None)
        if lost is not None:
            raise InputError(f"record {record_id}: lead {leads[lost]} is in {units[lost]!r}, which is no voltage")
        signal = signal[:, keep] * scale[keep]
        names, leads = [names[i] for i in keep], [leads[i] for i in keep]
    _check_leads(names, leads, record_id)
    _check_values(signal, names, record_id)
    return signal, header.rate, names


def _read_format_16(folder: Path, header: Header, record_id: str) -> np.ndarray:
    """[T,c] of 16-bit files: adjacent channels of one file are interleaved; the lowest value means no value."""
    groups: list[list[Channel]] = []
    for channel in header.channels:
        if groups and groups[-1][0].file == channel.file:
            groups[-1].append(channel)
        else:
            groups.append([channel])
    if len({group[0].file for group in groups}) != len(groups):
        raise InputError(f"record {record_id}: the channels of one signal file are not listed together in its header")
    parts = []
    for group in groups:
        path, width = folder / group[0].file, len(group)
        try:
            with open(path, "rb") as file:
                held = max(0, os.fstat(file.fileno()).st_size - group[0].offset) // 2
                count = held if header.samples is None else header.samples * width
                file.seek(group[0].offset)
                adc = np.fromfile(file, "<i2", min(count, held))
        except OSError as error:
            raise InputError(f"record {record_id}: cannot read its signal file {path} ({error.strerror})") from None
        if len(adc) < count or len(adc) < width or len(adc) % width:
            wanted = header.samples or "whole"
            raise InputError(f"record {record_id}: {path.name} is truncated: {len(adc) // width} of {wanted} samples")
        parts.append(adc.reshape(-1, width))
    if len({len(part) for part in parts}) > 1:
        raise InputError(f"record {record_id}: its signal files differ in length")
    adc = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    signal = adc.astype(np.float32)
    signal -= np.array([c.baseline for c in header.channels], np.float32)
    signal /= np.array([c.gain for c in header.channels], np.float32)
    if adc.min() == -32768:
        signal[adc == -32768] = np.nan
    return signal


def import_wfdb() -> ModuleType:
    """The wfdb package, imported late (it takes a second and is seldom needed) and without its deprecation notices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import wfdb
    return wfdb


def _read_with_wfdb(stem: str | Path, record_id: str) -> tuple[np.ndarray, list[str], list[str]]:
    try:
        with warnings.catch_warnings():  # the package trips over deprecations of newer pandas
            warnings.simplefilter("ignore", DeprecationWarning)
            record = import_wfdb().rdrecord(str(stem))
        names = [name or "" for name in record.sig_name]
        return np.asarray(record.p_signal, np.float32), names, [unit or "mV" for unit in record.units]
    except Exception as error:  # a broken file can make the package raise anything
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"record {record_id}: cannot be read as WFDB ({reason})") from None


def _check_gains(channels: list[Channel], record_id: str) -> None:
    for channel in channels:
        if channel.gain == 0:
            raise InputError(f"record {record_id}: lead {channel.name or '?'} has gain 0 in the header: mV are unknown")


def _check_leads(names: list[str], leads: list[str | None], record_id: str) -> None:
    known = [lead for lead in leads if lead]
    if not known:
        raise InputError(f"record {record_id}: none of its signals is a standard lead: {', '.join(names)[:80]}")
    if len(set(known)) != len(known):
        twice = next(lead for lead in known if known.count(lead) > 1)
        raise InputError(f"record {record_id}: lead {twice} occurs twice in its header")


def _check_values(signal: np.ndarray, names: list[str], record_id: str) -> None:
    if signal.size == 0:
        raise InputError(f"record {record_id}: it holds no samples")
    if max(np.fmax.reduce(signal, axis=None), -np.fmin.reduce(signal, axis=None)) > LARGEST_MILLIVOLTS:
        peak = np.fmax.reduce(np.abs(signal), axis=0)
        worst = int(np.nanargmax(peak))
        raise InputError(
            f"record {record_id}: lead {names[worst]} reaches {peak[worst]:.0f} mV: the header's gain or unit is wrong"
        )
