"""EDF, EDF+, BDF and BDF+ files: samples of 16 or 24 bits, each signal with its own gain.

edfio reads them. It trusts the header: it shortens or extends a record whose length differs from
the stated one, and leaves values uncalibrated if the limits of a signal make no sense. So the sizes
are checked here before it is called, and the limits before its values are used.
"""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import edfio
import numpy as np

from data_prep.base.errors import InputError, NotSaid
from data_prep.base.files import ordinary
from data_prep.ecg.leads import canonical
from data_prep.ecg.record import Span
from data_prep.formats.content import AGAIN
from data_prep.formats.wfdb_files import LARGEST_VALUES, MOST_IN_PARTS

MOST_SIGNALS = 512
_BEFORE_SAMPLES = 216  # bytes per signal in the header before the field samples per block


@dataclass(frozen=True)
class Edf:
    signal: np.ndarray  # float32 [T,c] in the units of the file
    rate: float
    names: list[str]
    units: list[str]
    total: int | None  # samples of the whole file, if only a part was read


def read_edf(
    path: str | Path,
    record_id: str,
    rename: Callable[[list[str]], list[str]],
    span: Span | None = None,
) -> Edf:
    """The signals that have the rate of the ECG leads, under the names that `rename` gives. With a
    `span` only these samples of an EDF file are read; edfio reads BDF files as a whole."""
    path = Path(path)
    try:
        with open(ordinary(path), "rb") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(256 * (MOST_SIGNALS + 1))
        span = None if _is_bdf(head) else span
        most = MOST_IN_PARTS if span else LARGEST_VALUES
        blocks = _check_sizes(head, size, path.name, record_id, most)
        with warnings.catch_warnings():  # about lengths, which have been checked
            warnings.simplefilter("ignore")
            read = edfio.read_bdf if _is_bdf(head) else edfio.read_edf
            signals = read(path, header_encoding="latin-1").signals
    except OSError as error:
        raise InputError(f"record {record_id}: cannot read {path} ({error.strerror})") from None
    names = rename([signal.label.strip() for signal in signals])
    per_block = [signal.samples_per_data_record for signal in signals]
    chosen = _same_rate(names, per_block, record_id)
    rate = signals[chosen[0]].sampling_frequency
    if not 1 <= rate <= 1e5:
        raise InputError(f"record {record_id}: the header of {path.name} claims {rate:g} Hz")
    total = blocks * per_block[chosen[0]]
    first, end = span or (0, total)
    columns = []
    for i in chosen:
        _check_limits(signals[i], path.name, names[i], record_id)
        with np.errstate(all="ignore"):
            part = signals[i].get_data_slice(first / rate, min(end, total) / rate)
            columns.append(part.astype(np.float32))
    return Edf(
        np.stack(columns, axis=1),
        rate,
        [names[i] for i in chosen],
        [signals[i].physical_dimension.strip() for i in chosen],
        total if span else None,
    )


def _is_bdf(head: bytes) -> bool:
    return head[:8] == b"\xffBIOSEMI"


def _check_sizes(head: bytes, size: int, name: str, record_id: str, most: int) -> int:
    """The number of data blocks; an InputError if the header is broken or the file does not hold
    them."""
    if len(head) < 256 or not (_is_bdf(head) or head[:8].strip() == b"0"):
        raise InputError(f"record {record_id}: {name} is no EDF or BDF file")
    if head[195:197] == b"+D":
        raise InputError(
            f"record {record_id}: {name} is a recording with gaps (EDF+D):"
            " export it without gaps (EDF+C)"
        )
    try:
        start, blocks, seconds = int(head[184:192]), int(head[236:244]), float(head[244:252])
        count = int(head[252:256])
        if not 1 <= count <= MOST_SIGNALS or start != 256 * (count + 1) or not 0 < seconds < 1e6:
            raise ValueError
        first = 256 + _BEFORE_SAMPLES * count
        per_block = [int(head[first + 8 * i : first + 8 * (i + 1)]) for i in range(count)]
        if len(head) < start or min(per_block) < 0:
            raise ValueError
    except ValueError:
        raise InputError(f"record {record_id}: the header of {name} is broken") from None
    total, width = sum(per_block), 3 if _is_bdf(head) else 2
    held = (size - start) // max(1, width * total)
    if blocks < 0:  # the header was written before the recording ended
        blocks = held
    if total == 0 or blocks == 0 or max(blocks, held) * total > most:
        raise InputError(
            f"record {record_id}: the header of {name} claims {blocks} blocks of {total} samples"
        )
    if held < blocks:
        raise InputError(
            f"record {record_id}: {name} is truncated: {held} of {blocks} blocks: {AGAIN}"
        )
    return blocks


def _check_limits(signal: edfio.EdfSignal, name: str, lead: str, record_id: str) -> None:
    """An InputError where edfio would return uncalibrated values: limits that are equal, or not
    numbers."""
    try:
        physical, digital = signal.physical_range, signal.digital_range
        if not all(map(math.isfinite, physical)):
            raise ValueError
    except ValueError:
        raise InputError(f"record {record_id}: the header of {name} is broken") from None
    if physical.min == physical.max or digital.min == digital.max:
        raise InputError(
            f"record {record_id}: lead {lead} has gain 0 in the header: mV are unknown"
        )


def _same_rate(names: list[str], per_block: list[int], record_id: str) -> list[int]:
    """Indices of the signals that are sampled as often as the ECG leads."""
    leads = [i for i, name in enumerate(names) if canonical(name)]
    if not leads:
        raise NotSaid(
            f"record {record_id}: none of its signals is a standard lead: {', '.join(names)[:80]};"
            " name them: --lead_names=SIGNAL=I,..."
        )
    if len({per_block[i] for i in leads}) > 1 or per_block[leads[0]] == 0:
        raise InputError(f"record {record_id}: its leads have different sampling rates")
    same = [i for i, number in enumerate(per_block) if number == per_block[leads[0]]]
    return [i for i in same if "annotation" not in names[i].lower()]
