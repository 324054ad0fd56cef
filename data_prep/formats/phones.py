"""ECGs of watches and phones: JSON of the AliveCor Kardia API, and the CSV of Apple Health."""

import json
import re
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.record import Waveform
from data_prep.formats.content import read_whole

_RATE = re.compile(r'^[^,;\n]{2,40}[,;]"?(\d{2,5}(?:\.\d+)?) ?(?:hertz|hz)\b', re.I | re.M)
_UNIT = re.compile(r"^[^,;\n]{2,40}[,;]\"?([um\u00b5\u03bc]?V)\"?\s*$", re.I | re.M)
_LEAD = re.compile(r"^[^,;\n]{2,40}[,;]\"?(?:lead |derivaci\w+ |ableitung )?(I{1,3})\"?\s*$", re.M)


def read_kardia(path: str, record_id: str) -> Waveform:
    """The unfiltered signal of a recording; AliveCor's filtered one is read only if there is no
    other."""
    text = read_whole(path, record_id)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"record {record_id}: {Path(path).name} is no whole JSON file: export it again"
        ) from None
    blocks = data.get("data") if isinstance(data, dict) else None
    block = (
        next((blocks[k] for k in ("raw", "enhanced") if blocks.get(k)), None) if blocks else None
    )
    if not isinstance(block, dict) or not isinstance(block.get("samples"), dict):
        what = "a Kardia 12L recording" if "data12L" in data else "JSON without data.raw.samples"
        raise InputError(
            f"record {record_id}: {what}: JSON of the AliveCor Kardia API (KardiaMobile, 6L) is"
            " read; save other data as .npz or .csv"
        )
    if "amplitudeResolution" not in block:
        raise InputError(
            f"record {record_id}: its Kardia JSON has no amplitudeResolution: mV are unknown"
        )
    columns = [np.array(values, np.float64) for values in block["samples"].values()]
    if {column.ndim for column in columns} != {1} or len({len(c) for c in columns}) != 1:
        raise InputError(f"record {record_id}: the leads of its Kardia JSON differ in length")
    step = float(block["amplitudeResolution"]) * 1e-6  # nV
    with np.errstate(all="ignore"):
        signal = (np.stack(columns, axis=1) * step).astype(np.float32)
    return Waveform(signal, float(block["frequency"]), list(block["samples"]))


def read_apple(text: str) -> tuple[np.ndarray, dict] | None:
    """Values, and what the text says of rate, unit and lead, if it is an ECG of Apple Health: a few
    lines of names and values, then a number a line. None if it is something else."""
    start = text[:2000]
    rate, unit, lead = _RATE.search(start), _UNIT.search(start), _LEAD.search(start)
    if not rate or not unit:
        return None
    lines = text[max(rate.end(), unit.end(), lead.end() if lead else 0) :].split()
    try:
        values = np.array([line.strip('",;').replace(",", ".") for line in lines], np.float64)
    except ValueError:
        return None
    name = lead[1] if lead else "I"  # a watch on the wrist
    return values[:, None], {"rate": float(rate[1]), "unit": unit[1], "leads": [name]}
