"""ISHNE Holter files: a header of 522 bytes, a block of any length, and interleaved 16-bit samples.

F. Badilini, The ISHNE Holter standard output file format, 1998. Names, dates and pacemaker codes
are not read.
"""

import os
import struct
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.record import Span, Waveform
from data_prep.formats.content import AGAIN
from data_prep.formats.wfdb_files import LARGEST_VALUES, MOST_IN_PARTS

MAGIC = b"ISHNE1.0"
_HEADER = 522
_LEADS = (
    "unknown", "bipolar", "X", "Y", "Z", "I", "II", "III", "aVR", "aVL", "aVF",
    "V1", "V2", "V3", "V4", "V5", "V6",
)  # fmt: skip


def read_ishne(path: str, record_id: str, span: Span | None = None) -> Waveform:
    """All leads; the samples that the header states or a part of them, each in its lead's
    resolution."""
    with open(path, "rb") as file:
        head, size = file.read(_HEADER), os.fstat(file.fileno()).st_size
        (count,), (start,) = struct.unpack_from("<i", head, 14), struct.unpack_from("<i", head, 22)
        (leads,), (rate,) = struct.unpack_from("<h", head, 156), struct.unpack_from("<h", head, 272)
        if not 1 <= leads <= 12 or start < _HEADER or count < 1 or rate < 1:
            raise InputError(
                f"record {record_id}: the ISHNE header claims {count} samples of {leads} leads at"
                f" {rate} Hz: damaged"
            )
        codes = struct.unpack_from(f"<{leads}h", head, 158)
        nanovolts = struct.unpack_from(f"<{leads}h", head, 206)
        held = (size - start) // (2 * leads)
        if count == held * leads:  # some recorders count the samples of all leads together
            count = held
        most = MOST_IN_PARTS if span else LARGEST_VALUES
        if count * leads > most or held < count:
            raise InputError(
                f"record {record_id}: {Path(path).name} is truncated: {max(0, held)} of {count}"
                f" samples: {AGAIN}"
            )
        first, end = span or (0, count)
        file.seek(start + 2 * leads * first)
        data = file.read(2 * leads * (min(end, count) - first))
        adc = np.frombuffer(data, "<i2").reshape(-1, leads)
    if min(nanovolts) < 1:
        raise InputError(f"record {record_id}: an ISHNE lead has resolution 0: mV are unknown")
    names = [_LEADS[code] if 0 <= code < len(_LEADS) else f"lead {code}" for code in codes]
    signal = adc.astype(np.float32) * (np.array(nanovolts, np.float32) * np.float32(1e-6))
    return Waveform(signal, float(rate), names, total=count)
