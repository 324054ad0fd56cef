"""SCP-ECG (EN 1064, ISO 11073-91064): the rhythm data of section 6.

Samples are plain 16-bit numbers or Huffman codes (the standard's table, or tables of section 2), of
amplitudes or of first or second differences. Files that subtract a reference beat, or that thin out
the samples between beats, are refused. Patient data, measurements and statements are not read.
"""

import struct
from binascii import crc_hqx
from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.record import Waveform
from data_prep.formats.content import AGAIN, read_whole

MOST_SAMPLES = 2**24  # of all leads together
# Numbers of leads in the standard; DICOM and IEEE 11073 use the same.
LEAD_NUMBERS = {1: "I", 2: "II", 61: "III", 62: "aVR", 63: "aVL", 64: "aVF"} | {
    number: f"V{number - 2}" for number in range(3, 10)
}
_STANDARD_TABLE = 19999  # in the place of a number of tables
# Bits that begin a code -> (how many more bits hold the value, 0: none; the value; the next table)
Table = dict[str, tuple[int, int, int]]
STANDARD: Table = {
    "0": (0, 0, 0),
    "1" * 9 + "0": (8, 0, 0),
    "1" * 10: (16, 0, 0),
} | {
    "1" * size + "0" + sign: (0, size if sign == "0" else -size, 0)
    for size in range(1, 9)
    for sign in "01"
}


def read_scp(path: str, record_id: str) -> Waveform:
    """The leads of a file; a lead that starts later or ends earlier than others has gaps there."""
    data = read_whole(path, record_id)
    notes: list[str] = []
    sections = dict(_sections(data, record_id, notes))
    if 3 not in sections or 6 not in sections:
        raise InputError(
            f"record {record_id}: SCP-ECG without rhythm data (section 6): export it with rhythm"
        )
    leads, rhythm = sections[3], sections[6]
    nanovolts, microseconds, order, bimodal = struct.unpack_from("<HHBB", rhythm)
    if leads[1] & 1 or bimodal:
        how = "differences from a reference beat" if leads[1] & 1 else "samples thinned out"
        raise InputError(
            f"record {record_id}: SCP-ECG stored as {how}, which is not read: convert it with"
            " BioSig (save2gdf), or export it without compression"
        )

    # where each lead starts and ends, and its bytes
    spans = [struct.unpack_from("<IIB", leads, 2 + 9 * i) for i in range(leads[0])]
    if not spans or not microseconds or any(end < start for start, end, _ in spans):
        raise InputError(f"record {record_id}: the lead definition of its SCP-ECG is damaged")
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    if (last - first + 1) * len(spans) > MOST_SAMPLES:
        raise InputError(f"record {record_id}: its SCP-ECG claims {last - first + 1} samples")
    sizes = struct.unpack_from(f"<{len(spans)}H", rhythm, 6)
    ends = list(accumulate(sizes, initial=6 + 2 * len(spans)))
    if ends[-1] > len(rhythm):
        raise InputError(f"record {record_id}: its SCP-ECG is truncated in section 6: {AGAIN}")

    # samples
    tables = _tables(sections[2]) if 2 in sections else None
    signal = np.full((last - first + 1, len(spans)), np.nan, np.float32)
    for column, (start, end, _) in enumerate(spans):
        coded = rhythm[ends[column] : ends[column + 1]]
        count = end - start + 1
        values = _plain(coded) if tables is None else _huffman(coded, tables, count)
        if len(values) < count or order > 2:
            raise InputError(
                f"record {record_id}: SCP-ECG lead {column + 1} holds {len(values)} of {count}"
                " samples: the file is damaged"
            )
        amplitudes = _undo_differences(values[:count], order)
        signal[start - first : end - first + 1, column] = amplitudes * (nanovolts * 1e-6)
    names = [LEAD_NUMBERS.get(number, f"lead {number}") for _, _, number in spans]
    return Waveform(signal, round(1e6 / microseconds, 3), names, notes=notes)


def _sections(data: bytes, record_id: str, notes: list[str]) -> Iterator[tuple[int, bytes]]:
    """Number and content of each section that section 0 points to."""
    (length,) = struct.unpack_from("<I", data, 10)
    for at in range(22, min(6 + length, len(data)) - 9, 10):
        number, size, index = struct.unpack_from("<HII", data, at)
        if number and size > 16 and index:
            content = data[index - 1 : index - 1 + size]
            if len(content) < size:
                raise InputError(
                    f"record {record_id}: its SCP-ECG is truncated (section {number}): {AGAIN}"
                )
            stated = int.from_bytes(content[:2], "little")
            if stated not in (0, crc_hqx(content[2:], 0xFFFF)):
                notes.append(f"the checksum of SCP section {number} is wrong: perhaps damaged")
            yield number, content[16:]


def _tables(section: bytes) -> list[Table]:
    """The Huffman tables of section 2. The bits of a code are stored last bit first."""
    (number,) = struct.unpack_from("<H", section)
    if number == _STANDARD_TABLE:
        return [STANDARD]
    tables, at = [], 2
    for _ in range(number):
        table: Table = {}
        (count,) = struct.unpack_from("<H", section, at)
        at += 2
        for _ in range(count):
            prefix, total, stays, value, code = struct.unpack_from("<BBBhI", section, at)
            at += 9
            if not 1 <= prefix <= min(total, 32) or total - prefix > 16:
                raise ValueError("its Huffman tables are damaged")
            bits = f"{code:032b}"[::-1][:prefix]
            table[bits] = (total - prefix, value, 0 if stays else value)
        tables.append(table)
    if not tables:
        raise ValueError("it has no Huffman table")
    return tables


def _huffman(data: bytes, tables: list[Table], count: int) -> np.ndarray:
    """The first `count` values of Huffman codes, fewer if the data end before."""
    bits = "".join(f"{byte:08b}" for byte in data)
    table, longest = tables[0], [max(map(len, table), default=0) for table in tables]
    place, at, values = 0, 0, []
    while len(values) < count:
        for size in range(1, longest[place] + 1):
            entry = table.get(bits[at : at + size])
            if entry is not None:
                break
        else:
            break
        more, value, switch = entry
        at += size + more
        if at > len(bits):
            break
        if switch:  # a code that only names the table of the codes behind it
            if not 1 <= switch <= len(tables):
                raise ValueError("its Huffman tables are damaged")
            place, table = switch - 1, tables[switch - 1]
            continue
        if more:
            value = int(bits[at - more : at], 2)
            value -= (value >> more - 1) << more
        values.append(value)
    return np.array(values, np.int64)


def _plain(data: bytes) -> np.ndarray:
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.int64)


def _undo_differences(values: np.ndarray, order: int) -> np.ndarray:
    """Amplitudes; the first `order` values are amplitudes already. Devices count in 16 bits."""
    if order == 2 and len(values) > 1:
        slope = np.cumsum(np.concatenate([values[1:2] - values[:1], values[2:]]))
        values = np.concatenate([values[:1], values[0] + np.cumsum(slope)])
    elif order == 1:
        values = np.cumsum(values)
    return values.astype(np.int16)
