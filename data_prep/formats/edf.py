"""EDF and EDF+ files: 16-bit samples, each signal with its own gain. 24-bit BDF and files with gaps
are refused."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import canonical
from data_prep.formats.wfdb_files import LARGEST_VALUES

_WIDTHS = {  # fields of the signal headers in order
    "label": 16,
    "transducer": 80,
    "unit": 8,
    "low": 8,
    "high": 8,
    "digital_low": 8,
    "digital_high": 8,
    "filter": 80,
    "samples": 8,
    "reserved": 32,
}


@dataclass(frozen=True)
class Edf:
    signal: np.ndarray  # float32 [T,c] in the units of the file
    rate: float
    names: list[str]
    units: list[str]


def read_edf(path: str | Path, record_id: str) -> Edf:
    """The signals that have the rate of the ECG leads; 'ECG V1' and 'EKG V1' are named 'V1'."""
    try:
        with open(path, "rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size, Path(path).name, record_id)
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None


def _read(file, size: int, name: str, record_id: str) -> Edf:
    first = file.read(256)
    if first[:1] == b"\xff":
        raise InputError(
            f"record {record_id}: {name} is 24-bit BDF, which is not read: convert it to EDF"
        )
    if len(first) < 256 or first[:8].strip() != b"0":
        raise InputError(f"record {record_id}: {name} is no EDF file")
    if first[192:197] == b"EDF+D":
        raise InputError(
            f"record {record_id}: {name} is EDF+D, a recording with gaps: export it without (EDF+C)"
        )
    try:
        start, blocks, seconds = int(first[184:192]), int(first[236:244]), float(first[244:252])
        count = int(first[252:256])
        if not 1 <= count <= 512 or start != 256 * (count + 1) or not 0 < seconds < 1e6:
            raise ValueError
        raw, fields, place = file.read(256 * count), {}, 0
        for field, width in _WIDTHS.items():
            cells = [raw[place + i * width : place + (i + 1) * width] for i in range(count)]
            fields[field] = [cell.decode("latin-1").strip() for cell in cells]
            place += count * width
        per_block = [int(cell) for cell in fields["samples"]]
        limits = {
            key: [float(cell) for cell in fields[key]]
            for key in ("low", "high", "digital_low", "digital_high")
        }
        if (
            len(raw) < 256 * count
            or min(per_block) < 0
            or not np.isfinite(list(limits.values())).all()
        ):
            raise ValueError
    except ValueError:
        raise InputError(f"record {record_id}: the header of {name} is broken") from None
    total = sum(per_block)
    if blocks < 0:  # still being recorded when the header was written
        blocks = (size - start) // max(1, 2 * total)
    if total == 0 or blocks == 0 or blocks * total > LARGEST_VALUES:
        raise InputError(
            f"record {record_id}: the header of {name} claims {blocks} blocks of {total} samples"
        )
    if size < start + 2 * blocks * total:
        held = max(0, size - start) // (2 * total)
        raise InputError(f"record {record_id}: {name} is truncated: {held} of {blocks} blocks")
    names = [_lead_name(label) for label in fields["label"]]
    chosen = _same_rate(names, per_block, record_id)
    data = np.frombuffer(file.read(2 * blocks * total), "<i2").reshape(blocks, total)
    places = np.concatenate([[0], np.cumsum(per_block)])
    columns = []
    for i in chosen:
        low, high, digital_low, digital_high = (limits[key][i] for key in limits)
        if digital_high == digital_low or high == low:
            raise InputError(
                f"record {record_id}: lead {names[i]} has gain 0 in the header: mV are unknown"
            )
        gain = (high - low) / (digital_high - digital_low)
        digital = data[:, places[i] : places[i + 1]].reshape(-1)
        with np.errstate(all="ignore"):
            columns.append(((digital - digital_low) * gain + low).astype(np.float32))
    rate = per_block[chosen[0]] / seconds
    return Edf(
        np.stack(columns, axis=1),
        rate,
        [names[i] for i in chosen],
        [fields["unit"][i] for i in chosen],
    )


def _lead_name(label: str) -> str:
    plain = re.sub(r"^(ecg|ekg)[\s_\-]*", "", label, flags=re.IGNORECASE)
    return plain if canonical(plain) else label


def _same_rate(names: list[str], per_block: list[int], record_id: str) -> list[int]:
    leads = [i for i, name in enumerate(names) if canonical(name)]
    if not leads:
        raise InputError(
            f"record {record_id}: none of its signals is a standard lead: {', '.join(names)[:80]}"
        )
    if len({per_block[i] for i in leads}) > 1 or per_block[leads[0]] == 0:
        raise InputError(f"record {record_id}: its leads have different sampling rates")
    same = [i for i, number in enumerate(per_block) if number == per_block[leads[0]]]
    return [i for i in same if "annotation" not in names[i].lower()]
