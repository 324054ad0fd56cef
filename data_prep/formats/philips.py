"""Philips (Sierra) ECG XML, versions 1.03 and 1.04: one waveform, plain or compressed by 'XLI'.

XLI stores each lead as second differences, the high bytes of all before the low bytes, packed by
LZW with codes of 10 bits. Leads III, aVR, aVL and aVF are stored as what is left when the limb laws
have predicted them from I and II. Philips has not published this; it is as the sierra-ecg-tools
project describes it. Representative beats, measurements and statements are not read.
"""

import struct
from xml.etree.ElementTree import Element

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.ecg.record import Waveform
from data_prep.formats.xml_tree import base64_bytes, read_xml, text_at

MOST_SAMPLES = 2**20  # of a lead: half an hour at 500 Hz; an ECG has 11 seconds
_CODE_BITS, _END = 10, 1023  # LZW codes, and the one that ends a lead
_CENTRE = 64  # is added to every stored difference but the first


def read_philips(path: str, record_id: str) -> Waveform:
    """The leads of a file."""
    root = read_xml(path, record_id)
    signal, wave = root.find(".//signalcharacteristics"), root.find(".//parsedwaveforms")
    if signal is None or wave is None:
        raise InputError(
            f"record {record_id}: Philips XML without a waveform: export it with waveforms"
        )
    rate = float(wave.get("samplespersecond") or text_at(signal, "samplingrate"))
    microvolts = float(
        wave.get("resolution")
        or text_at(signal, "resolution")
        or text_at(signal, "signalresolution")
    )
    count = round(float(wave.get("durationperchannel", "")) * rate / 1000)
    names = _lead_names(wave, signal, record_id)
    if not 1 <= count <= MOST_SAMPLES:
        raise InputError(f"record {record_id}: Philips XML claims {count} samples of a lead")
    adc = np.stack(_decode(wave, names, count, record_id), axis=1)
    return Waveform((adc * (microvolts / 1000)).astype(np.float32), rate, names)


def _lead_names(wave: Element, signal: Element, record_id: str) -> list[str]:
    """The labels of the leads; in version 1.03 there are none, as all are the standard twelve."""
    labels = (wave.get("leadlabels") or "").split()
    if labels:
        return labels[: int(wave.get("numberofleads") or len(labels))]
    kind = text_at(signal, "acquisitiontype")
    if kind not in ("STD-12", "10-WIRE", ""):
        raise InputError(
            f"record {record_id}: Philips XML of {kind[:20]!r} does not name its leads: only the"
            " standard twelve are read without names"
        )
    return list(LEADS)


def _decode(wave: Element, names: list[str], count: int, record_id: str) -> list[np.ndarray]:
    """The samples of each lead, in steps of the resolution."""
    leads = len(names)
    flag, encoding = wave.get("compressflag", "True"), wave.get("dataencoding", "Base64")
    method = wave.get("compressmethod") or wave.get("compression") or "Uncompressed"
    if flag != "True":
        method = "Uncompressed"
    if encoding == "Plain" and method == "Uncompressed":
        adc = np.array((wave.text or "").split(), np.float64)
    elif encoding != "Base64" or method not in ("XLI", "Uncompressed"):
        raise InputError(
            f"record {record_id}: Philips XML with samples as {encoding[:20]}, {method[:20]};"
            " Base64 with XLI or uncompressed is read: export it again without compression"
        )
    elif method == "XLI":
        stored = _read_xli(base64_bytes(wave.text), leads, count, record_id)
        return _restore_limb_leads(stored) if names[:6] == list(LEADS[:6]) else stored
    else:
        adc = np.frombuffer(base64_bytes(wave.text), "<i2").astype(np.float64)
    if len(adc) < leads * count:
        raise InputError(
            f"record {record_id}: Philips XML is truncated: {len(adc)} of {leads * count} samples"
        )
    return list(adc[: leads * count].reshape(leads, count))


def _read_xli(data: bytes, leads: int, count: int, record_id: str) -> list[np.ndarray]:
    """The leads of XLI data, one block after another: its size, a word, and the first
    difference, then the packed bytes."""
    found, at = [], 0
    while len(found) < leads:
        size, _, first = struct.unpack_from("<iHh", data, at)
        block = data[at + 8 : at + 8 + size]
        unpacked, whole = unpack_lzw(block, 2 * count)
        if size < 0 or len(block) < size or (len(unpacked) < 2 * count and not whole):
            raise InputError(
                f"record {record_id}: Philips XML is truncated in lead {len(found) + 1} of {leads}"
            )
        high, low = np.frombuffer(unpacked[: len(unpacked) // 2 * 2], np.uint8).reshape(2, -1)
        found.append(_sum_differences((high.astype(np.uint16) << 8 | low).view(np.int16), first))
        at += 8 + size
    if len({len(lead) for lead in found}) != 1:
        raise InputError(f"record {record_id}: the leads of its Philips XML differ in length")
    return found


def unpack_lzw(data: bytes, most: int) -> tuple[bytes, bool]:
    """LZW without a reset: at most `most` bytes, and whether the code for the end was reached."""
    strings = [bytes([value]) for value in range(256)]
    out, length, before = [], 0, b""
    bits = held = 0
    for byte in data:
        bits, held = (bits << 8 | byte) & 0xFFFFF, held + 8
        if held < _CODE_BITS:
            continue
        held -= _CODE_BITS
        code = bits >> held & (1 << _CODE_BITS) - 1
        if code == _END or length >= most:
            return b"".join(out)[:most], True
        if code > len(strings) or (code == len(strings) and not before):
            raise ValueError("its packed samples are damaged")
        string = strings[code] if code < len(strings) else before + before[:1]
        if before and len(strings) < _END:
            strings.append(before + string[:1])
        out.append(string)
        length, before = length + len(string), string
    return b"".join(out)[:most], False


def _sum_differences(stored: np.ndarray, first: int) -> np.ndarray:
    """The samples of a lead from two samples and the second differences that follow, each stored
    with the sample before it."""
    steps = np.empty(len(stored), np.int64)
    steps[:2] = stored[:2]
    steps[2:] = -(stored[1:-1].astype(np.int64) - _CENTRE)
    if len(steps) > 2:
        steps[2] = -first
    slope = np.cumsum(np.concatenate([steps[1:2] - steps[:1], steps[2:]]))
    samples = np.concatenate([steps[:1], steps[0] + np.cumsum(slope)])[: len(steps)]
    return samples.astype(np.int16).astype(np.int64)  # devices count in 16 bits


def _restore_limb_leads(stored: list[np.ndarray]) -> list[np.ndarray]:
    """Leads of which the third to sixth are what I and II leave unexplained of III to aVF."""
    one, two, *rest = stored
    three = two - one - rest[0]
    avr = -((one + two) // 2) - rest[1]
    avl = (one - three) // 2 - rest[2]
    avf = (two + three) // 2 - rest[3]
    return [one, two, three, avr, avl, avf, *rest[4:]]
