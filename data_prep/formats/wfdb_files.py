"""Reads one WFDB record: its header, and its signal in mV.

Plain 16-bit files, which most corpora use, are read directly (440 records per second); the wfdb
package reads all others. A header that is broken or contradicts its signal file is an InputError of
one line that names the record. Where files are read directly, the checksum that a header states for
each channel is verified; a wrong one is a defect, 'checksum:LEAD'.
"""

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np

from data_prep.base.errors import InputError, NotSaid
from data_prep.base.files import ordinary, write_whole
from data_prep.base.words import first_line
from data_prep.ecg.leads import canonical
from data_prep.ecg.record import Span

MILLIVOLTS = {"mv": 1.0, "uv": 1e-3, "\u00b5v": 1e-3, "\u03bcv": 1e-3, "v": 1e3, "nv": 1e-6}
LARGEST_MILLIVOLTS = 1000.0  # beyond any electrode offset: a wrong gain or unit
LARGEST_HEADER = 2**20  # bytes
MOST_SEGMENTS = 1000  # the wfdb package takes 5 ms for each
SUM_ROWS = 2**18  # samples that are summed at a time
LARGEST_VALUES = 2**28  # samples x channels: 12 leads of a day at 250 Hz; more is a broken header
MOST_IN_PARTS = 2**34  # the same of a file that is read in parts: a month of 12 leads at 500 Hz


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
    checksum: int | None = None  # 16-bit sum of all samples


@dataclass(frozen=True)
class Header:
    """A WFDB header; with `segments` > 1 the signals are described in other files."""

    rate: float
    samples: int | None
    channels: list[Channel]
    segments: int = 1
    comments: list[str] = field(default_factory=list)
    segment_names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WfdbRecord:
    """The content of one WFDB record."""

    signal: np.ndarray  # float32 [T,c] mV
    rate: float
    names: list[str]  # as the header writes them
    comments: list[str]
    defects: list[str]
    total: int | None = None  # samples of the whole record, where that is known


_FORMAT = re.compile(r"(\d{1,3})(?:x(\d{1,4}))?(?::(\d{1,9}))?(?:\+(\d{1,12}))?$", re.ASCII)
_GAIN = re.compile(
    r"([-+]?[0-9.]+(?:[eE][-+]?\d{1,3})?)(?:\(([-+]?\d{1,10})\))?(?:/(\S+))?$", re.ASCII
)
_BYTES = {
    "8": 1,
    "80": 1,
    "16": 2,
    "61": 2,
    "160": 2,
    "212": 1.5,
    "310": 4 / 3,
    "311": 4 / 3,
    "24": 3,
    "32": 4,
}


def read_header(stem: str | Path, record_id: str | None = None) -> Header:
    """Parses STEM.hea: any line ending; UTF-8, UTF-16 or Latin-1; optional fields may be absent."""
    record_id = record_id or Path(stem).name
    text = header_text(stem, record_id)
    # the record line: name, signals, and optionally rate and samples
    lines = [line for line in map(str.strip, text.replace("\r", "\n").split("\n")) if line]
    comments = [line[1:].strip() for line in lines if line[0] == "#"]
    lines = [line for line in lines if line[0] != "#"]
    try:
        first = lines[0].split()
        segments = _whole(first[0].split("/")[1]) if "/" in first[0] else 1
        count = _whole(first[1])
        samples = (_whole(first[3]) or None) if len(first) > 3 else None
    except (IndexError, ValueError):
        raise InputError(
            f"record {record_id}: the first line of its header is not a WFDB record line"
        ) from None
    try:
        rate = float(re.split(r"[/(]", first[2])[0]) if len(first) > 2 else 250.0
    except ValueError:
        raise InputError(
            f"record {record_id}: its header gives {first[2][:20]!r} for the sampling rate"
        ) from None
    if not 1 <= rate <= 1e5 or not 1 <= count <= 1000:
        raise InputError(
            f"record {record_id}: its header claims {count:.6g} signals at {rate:g} Hz"
        )
    if samples is not None and not 0 < samples * count <= LARGEST_VALUES:
        raise InputError(
            f"record {record_id}: its header claims {samples:.6g} samples of {count} signals"
        )
    # a line per segment or per signal
    if segments > 1:
        if len(lines) - 1 != segments:
            there = f"{segments:.6g} segments but lists {len(lines) - 1}"
            raise InputError(f"record {record_id}: its header claims {there}")
        if any(re.search(r"\s\d{9,}$", line) for line in lines[1:]) or segments > MOST_SEGMENTS:
            raise InputError(
                f"record {record_id}: its header claims more than {MOST_SEGMENTS} segments, or"
                " segments of absurd length"
            )
        names = [line.split()[0] for line in lines[1:]]
        return Header(rate, samples, [], segments, comments, names)
    if len(lines) - 1 != count:
        raise InputError(
            f"record {record_id}: its header claims {count} signals"
            f" but has {len(lines) - 1} signal lines"
        )
    return Header(rate, samples, [_channel(line, record_id) for line in lines[1:]], 1, comments)


def header_text(stem: str | Path, record_id: str) -> str:
    """The text of STEM.hea."""
    path = Path(f"{stem}.hea")
    try:
        if os.path.getsize(ordinary(path)) > LARGEST_HEADER:
            raise InputError(f"record {record_id}: its header {path} has more than 1 MiB")
        return decode(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"record {record_id}: cannot read its header {stem}.hea ({error.strerror})"
        ) from None


def _whole(text: str) -> int:
    if len(text) > 15:
        raise ValueError
    return int(text)


def decode(raw: bytes) -> str:
    """The text of a header or table in an unknown encoding."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", "replace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _channel(line: str, record_id: str) -> Channel:
    """Parses one signal line of a header."""
    words = line.split(None, 8)
    form = _FORMAT.match(words[1]) if len(words) > 1 else None
    gain = _GAIN.match(words[2]) if len(words) > 2 else None
    try:
        if form is None or (len(words) > 2 and gain is None):
            raise ValueError
        number, baseline, unit = gain.groups() if gain else ("200", None, None)
        zero = _whole(words[4]) if len(words) > 4 else 0
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
            checksum=_whole(words[6]) & 0xFFFF if len(words) > 6 else None,
        )
    except ValueError:
        raise InputError(
            f"record {record_id}: its header has a broken signal line: {line[:60]!r}"
        ) from None


def read_wfdb_record(
    stem: str | Path,
    record_id: str | None = None,
    fast: bool = True,
    rename: Callable[[list[str]], list[str]] = list,
    span: Span | None = None,
) -> WfdbRecord:
    """One record in mV, leads named as in the header; channels that are neither voltage nor lead
    are left out.

    Plain 16-bit files are read directly; every other format (and everything with fast=False) goes
    through the wfdb package. `rename` may give the channels other names. With a `span` only these
    samples are read; checksums, which are of all samples, are then verified with the first part.
    """
    record_id = record_id or Path(stem).name
    header = read_header(stem, record_id)
    _check_channels(header.channels, record_id)
    plain = header.channels and all(
        c.format == "16" and c.frame == 1 and c.skew == 0 for c in header.channels
    )
    defects: list[str] = []
    if fast and plain:
        signal, defects, total = _read_format_16(os.path.dirname(stem), header, record_id, span)
        names, units = [c.name for c in header.channels], [c.unit for c in header.channels]
    else:
        _check_sizes(os.path.dirname(stem), header, record_id)
        _check_segments(os.path.dirname(stem), header, record_id)
        total = header.samples
        part = (span[0], min(span[1], total)) if span and total else None
        signal, names, units = _read_with_wfdb(stem, record_id, part)
    signal, names = to_millivolts(signal, rename(names), units, record_id)
    return WfdbRecord(signal, header.rate, names, header.comments, defects, total)


def to_millivolts(
    signal: np.ndarray, names: list[str], units: list[str], record_id: str
) -> tuple[np.ndarray, list[str]]:
    """Columns [T,c] in the given units -> mV, without columns that are not voltages; leads and
    values are checked."""
    leads = [canonical(name) for name in names]
    if any(unit != "mV" for unit in units):
        scale = np.array([MILLIVOLTS.get(unit.lower(), np.nan) for unit in units], np.float32)
        keep = np.flatnonzero(~np.isnan(scale))
        lost = next((i for i, lead in enumerate(leads) if lead and np.isnan(scale[i])), None)
        if lost is not None:
            raise InputError(
                f"record {record_id}: lead {leads[lost]} is in {units[lost][:20]!r},"
                " which is no voltage"
            )
        signal = signal[:, keep] * scale[keep]
        names, leads = [names[i] for i in keep], [leads[i] for i in keep]
    _check_leads(names, leads, record_id)
    return _check_values(signal, names, record_id), names


def _read_format_16(
    folder: str, header: Header, record_id: str, span: Span | None
) -> tuple[np.ndarray, list[str], int]:
    """The signal [T,c] of 16-bit files or a part of it, its defects, and its length in samples.

    Neighbouring channels of one file are interleaved. The lowest value stands for a missing sample.
    """
    # channels by file
    groups: list[list[Channel]] = []
    for channel in header.channels:
        if groups and groups[-1][0].file == channel.file:
            groups[-1].append(channel)
        else:
            groups.append([channel])
    if len({group[0].file for group in groups}) != len(groups):
        raise InputError(
            f"record {record_id}: the channels of one signal file"
            " are not listed together in its header"
        )
    # the samples of each file, as many as the header states
    parts, sums, lengths = [], [], set()
    for group in groups:
        path, width, offset = os.path.join(folder, group[0].file), len(group), group[0].offset
        try:
            with open(ordinary(path), "rb") as file:
                held = max(0, os.fstat(file.fileno()).st_size - offset) // 2
                count = held if header.samples is None else header.samples * width
                short = held < count or held < width or count % width or count > LARGEST_VALUES
                first, end = span or (0, count // width)
                values = 0 if short else min(count, end * width) - first * width
                file.seek(offset + 2 * first * width)
                adc = np.fromfile(file, "<i2", values)
                if first == 0 and not short:
                    sums += _file_sums(file, offset, count, width, adc)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no ordinary file"
            raise InputError(
                f"record {record_id}: cannot read its signal file {path} ({reason})"
            ) from None
        if short:
            there = f"{held // width} of {header.samples or 'whole'} samples"
            raise InputError(f"record {record_id}: {group[0].file} is truncated: {there}")
        parts.append(adc.reshape(-1, width))
        lengths.add(count // width)
    if len(lengths) > 1:
        raise InputError(f"record {record_id}: its signal files differ in length")
    # physical values, and the channels whose checksum is wrong
    adc = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    signal = adc.astype(np.float32)
    signal -= np.array([c.baseline for c in header.channels], np.float32)
    signal /= np.array([c.gain for c in header.channels], np.float32)
    if adc.min(initial=0) == -32768:
        signal[adc == -32768] = np.nan
    # 0 is written by programs that do not compute it
    stated = [c.checksum or None for c in header.channels]
    wrong = [
        c.name
        for c, want, got in zip(header.channels, stated, sums, strict=bool(sums))
        if want not in (None, got)
    ]
    defects = [
        f"checksum:{canonical(name) or re.sub(r'[^0-9A-Za-z]+', '_', name)}" for name in wrong
    ]
    return signal, defects, lengths.pop()


def _file_sums(file: BinaryIO, offset: int, count: int, width: int, start: np.ndarray) -> list[int]:
    """Checksums of all samples of a file, of which the `start` has been read."""
    sums = np.array(checksums(start.reshape(-1, width)))
    for first in range(len(start), count, SUM_ROWS * width):
        file.seek(offset + 2 * first)
        more = np.fromfile(file, "<i2", min(SUM_ROWS * width, count - first))
        sums += checksums(more.reshape(-1, width))
    return (sums % 65536).tolist()


def checksums(adc: np.ndarray) -> list[int]:
    """16-bit sums of the columns of [T,c]. Summing 64 rows at once first is several times as
    fast."""
    adc = np.ascontiguousarray(adc).view(np.uint16)
    whole = len(adc) // 64 * 64
    sums = np.add.reduce(
        adc[:whole].reshape(-1, 64 * adc.shape[1]), axis=0, dtype=np.uint16
    ).reshape(64, -1)
    rest = np.add.reduce(adc[whole:], axis=0, dtype=np.uint16)
    return np.add(np.add.reduce(sums, axis=0, dtype=np.uint16), rest).tolist()


GAINS = tuple(digit * 10.0**power for power in range(6, -4, -1) for digit in (5, 2, 1))


def write_wfdb(
    stem: str | Path, signal: np.ndarray, rate: float, names: Sequence[str]
) -> tuple[float, float]:
    """Writes STEM.dat and STEM.hea in format 16, each column of [T,c] in mV as finely as it fits.

    Returns the largest step of a column and the largest rounding error, in uV. NaN is stored as the
    value that stands for a missing sample.
    """
    stem, lines = Path(stem), []
    low, high = np.nan_to_num(np.fmin.reduce(signal)), np.nan_to_num(np.fmax.reduce(signal))
    middle, half = (low + high) / 2.0, np.maximum((high - low) / 2.0, 1e-3)
    most = np.minimum(32_000 / half, 8e6 / np.maximum(np.abs(middle), 1e-3))
    gain = np.array([next(gain for gain in GAINS if gain <= limit) for limit in most.tolist()])
    zero = -np.round(middle * gain)
    exact = signal.astype(np.float64) * gain + zero
    adc = np.where(np.isnan(exact), -32768, np.round(exact)).astype("<i2")
    for name, g, z, first, total in zip(names, gain, zero, adc[0], checksums(adc), strict=True):
        signed = total - 65536 if total > 32767 else total
        line = f"{stem.name}.dat 16 {g:g}({z:.0f})/mV 16 0 {first} {signed} 0"
        lines.append(f"{line} {canonical(name) or ' '.join(name.split())}")
    head = f"{stem.name} {len(names)} {rate:.10g} {len(adc)}"
    write_whole(f"{stem}.dat", adc.tobytes())
    write_whole(f"{stem}.hea", "\n".join([head, *lines, ""]))
    error = np.fmax.reduce(np.abs(exact - adc) / gain, axis=None, where=~np.isnan(exact), initial=0)
    return 1000 / float(gain.min()), 1000 * float(error)


@contextlib.contextmanager
def quiet_wfdb() -> Iterator[ModuleType]:
    """The wfdb package without the deprecation notices that newer versions of pandas give it. It is
    imported here, as that takes a second and is seldom needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import wfdb

        yield wfdb


def _read_with_wfdb(
    stem: str | Path, record_id: str, span: Span | None = None
) -> tuple[np.ndarray, list[str], list[str]]:
    first, end = span or (0, None)
    try:
        with quiet_wfdb() as wfdb:
            record = wfdb.rdrecord(str(stem), sampfrom=first, sampto=end)
        names = [name or "" for name in record.sig_name]
        return (
            np.asarray(record.p_signal, np.float32),
            names,
            [unit or "mV" for unit in record.units],
        )
    except Exception as error:  # the package may raise anything on a broken file
        raise InputError(
            f"record {record_id}: cannot be read as WFDB ({first_line(error, 120)})"
        ) from None


def _check_channels(channels: list[Channel], record_id: str) -> None:
    """InputErrors for channels whose gain makes no sense or whose file is in another folder."""
    for channel in channels:
        lead = f"record {record_id}: lead {channel.name or '?'}"
        if channel.gain == 0:
            raise InputError(f"{lead} has gain 0 in the header: mV are unknown")
        if not 1e-9 < abs(channel.gain) < 1e12 or abs(channel.baseline) > 2**23:
            text = f"gain {channel.gain:g} and zero {channel.baseline}"
            raise InputError(f"{lead} has {text} in the header: mV are unknown")
        if _is_elsewhere(channel.file):
            raise InputError(
                f"record {record_id}: cannot read its signal file {channel.file[:60]!r}"
                " (not in the record's folder)"
            )


def _is_elsewhere(name: str) -> bool:
    """Whether a file that a header names may be in another folder."""
    return "/" in name or "\\" in name or name in ("-", ".", "..")


def _check_segments(folder: str, header: Header, record_id: str) -> None:
    """InputErrors for segments in other folders, or whose own headers make no sense: the wfdb
    package believes them."""
    for name in dict.fromkeys(header.segment_names):
        if name == "~":  # a gap
            continue
        if _is_elsewhere(name):
            raise InputError(
                f"record {record_id}: cannot read its segment {name[:60]!r}"
                " (not in the record's folder)"
            )
        segment = read_header(os.path.join(folder, name), record_id)
        if segment.segments > 1:
            raise InputError(f"record {record_id}: its segment {name[:60]!r} has segments itself")
        real = [c for c in segment.channels if c.file != "~"]  # others have a name and no samples
        _check_channels(real, record_id)
        _check_sizes(folder, dataclasses.replace(segment, channels=real), record_id)


def _check_sizes(folder: str, header: Header, record_id: str) -> None:
    """InputErrors for signal files that do not hold what the header claims.

    The wfdb package allocates what a header claims before it looks at the files.
    """
    needed: dict[str, float] = {}
    for channel in header.channels:
        values = (header.samples or 0) * channel.frame
        needed[channel.file] = needed.get(channel.file, channel.offset) + values * _BYTES.get(
            channel.format, 0
        )
        if values * len(header.channels) > LARGEST_VALUES:
            raise InputError(
                f"record {record_id}: its header claims {values:.6g} samples of a signal"
            )
    for name, size in needed.items():
        path = os.path.join(folder, name)
        try:
            held = os.path.getsize(ordinary(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "bad name"
            raise InputError(
                f"record {record_id}: cannot read its signal file {path} ({reason})"
            ) from None
        if held < size - 4:
            raise InputError(f"record {record_id}: {name} is truncated: {held} of {size:.0f} bytes")


def _check_leads(names: list[str], leads: list[str | None], record_id: str) -> None:
    """InputErrors for a record without a standard lead, or with the same lead twice."""
    known = [lead for lead in leads if lead]
    if not known:
        raise NotSaid(
            f"record {record_id}: none of its signals is a standard lead: {', '.join(names)[:80]};"
            " name them: --lead_names=SIGNAL=I,..."
        )
    if len(set(known)) != len(known):
        twice = next(lead for lead in known if known.count(lead) > 1)
        raise InputError(f"record {record_id}: lead {twice} occurs twice in its header")


def _largest(signal: np.ndarray) -> float:
    return max(np.fmax.reduce(signal, axis=None), -np.fmin.reduce(signal, axis=None))


def _check_values(signal: np.ndarray, names: list[str], record_id: str) -> np.ndarray:
    """The signal with NaN in the place of infinite values; InputErrors for a record without samples
    or with impossible voltages."""
    if signal.size == 0:
        raise InputError(f"record {record_id}: it holds no samples")
    if np.isinf(_largest(signal)):
        signal = np.where(np.isinf(signal), np.float32(np.nan), signal)
    if _largest(signal) > LARGEST_MILLIVOLTS:
        peak = np.fmax.reduce(np.abs(signal), axis=0)
        worst = int(np.nanargmax(peak))
        raise InputError(
            f"record {record_id}: lead {names[worst]} reaches {peak[worst]:.0f} mV:"
            " the header's gain or unit is wrong"
        )
    return signal
