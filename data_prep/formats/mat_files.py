"""MATLAB files: the 16-bit matrices of the Challenge sets, and the structs of the original CPSC
2018."""

import os
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import ordinary
from data_prep.base.words import first_line
from data_prep.ecg.leads import LEADS
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.formats.mat5 import Value, read_mat5
from data_prep.formats.wfdb_files import LARGEST_VALUES, to_millivolts

RATE = 500.0  # Hz, of every record of CPSC 2018 and CSN
MAT4_INT16 = 30  # MATLAB 4 type: little-endian, 16-bit integers, full matrix


def read_mat4(path: str, record_id: str) -> np.ndarray:
    """int16 [rows,T] of a MATLAB 4 file with one matrix."""
    try:
        with open(ordinary(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = np.frombuffer(file.read(20), "<i4")
            if len(head) < 5 or head[0] != MAT4_INT16 or not 0 < head[4] <= 64 or head[3] != 0:
                raise InputError(
                    f"record {record_id}: {Path(path).name} is no MATLAB 4 file of 16-bit integers"
                )
            rows, count, start = int(head[1]), int(head[2]), 20 + int(head[4])
            if rows < 1 or count < 1 or rows * count > LARGEST_VALUES:
                raise InputError(
                    f"record {record_id}: {Path(path).name} claims a matrix of {rows} x {count}"
                )
            if size < start + 2 * rows * count:
                held = max(0, size - start) // (2 * rows)
                raise InputError(
                    f"record {record_id}: {Path(path).name} is truncated: {held} of {count} samples"
                )
            file.seek(start)
            return np.frombuffer(file.read(2 * rows * count), "<i2").reshape(count, rows).T
    except OSError as error:
        raise InputError(
            f"record {record_id}: cannot read its signal file {path} ({error.strerror})"
        ) from None


def read_struct(ref: RecordRef) -> Waveform:
    """A MATLAB 5 file with a struct ECG: sex, age and data [12,T] in mV, leads in the standard
    order."""
    path, record_id = f"{ref.path}.mat", ref.record_id
    try:
        ecg = read_mat5(path, "ECG")
        data = ecg.get("data") if isinstance(ecg, dict) else None
        if not isinstance(data, np.ndarray):
            raise ValueError("it holds something else")
    except OSError as error:
        raise InputError(
            f"record {record_id}: cannot read its signal file {path} ({error.strerror})"
        ) from None
    except ValueError as error:
        raise InputError(
            f"record {record_id}: {Path(path).name} has no readable struct ECG.data"
            f" ({first_line(error, 80)})"
        ) from None
    if data.ndim != 2 or data.shape[0] != len(LEADS):
        raise InputError(
            f"record {record_id}: ECG.data is {data.dtype} {data.shape};"
            " 12 leads x samples are needed"
        )
    info = {key: _text(ecg.get(key)) for key in ("sex", "age")}
    signal, leads = to_millivolts(_finite32(data.T), list(LEADS), ["mV"] * len(LEADS), record_id)
    return Waveform(signal, RATE, leads, [], {key: text for key, text in info.items() if text})


def _text(value: Value) -> str:
    """A line of text, or the first of some numbers; '' for anything else."""
    if isinstance(value, np.ndarray) and value.size:
        return str(value.flat[0])
    return value if isinstance(value, str) else ""


def _finite32(data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(data, np.float32)
