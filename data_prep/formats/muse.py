"""GE MUSE XML (root RestingECG): 16-bit samples of each lead in Base64.

MUSE stores I, II and V1 to V6; the other limb leads follow from I and II, and are computed here as
its own viewer does. Median beats, measurements and statements are not read.
"""

from xml.etree.ElementTree import Element

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, LIMB, canonical
from data_prep.ecg.record import Waveform
from data_prep.formats.xml_tree import base64_bytes, read_xml, text_at

_MILLIVOLTS = {"MICROVOLTS": 1e-3, "MILLIVOLTS": 1.0, "NANOVOLTS": 1e-6}


def read_muse(path: str, record_id: str) -> Waveform:
    """The longest rhythm waveform of a file."""
    waves = list(read_xml(path, record_id).iter("Waveform"))
    kinds = [text_at(wave, "WaveformType") or "Rhythm" for wave in waves]
    rhythms = [w for w, kind in zip(waves, kinds, strict=True) if kind.lower() == "rhythm"]
    if not rhythms:
        there = f"only {', '.join(kinds)[:40]}" if kinds else "no waveform at all"
        raise InputError(
            f"record {record_id}: MUSE XML without a rhythm waveform ({there}): export it with"
            " waveforms"
        )
    signals = [_read_leads(wave, record_id) for wave in rhythms]
    wave = max(signals, key=lambda wave: (len(wave.signal) / wave.rate, len(wave.leads)))
    if len(signals) > 1:
        wave.notes.append(f"the longest of {len(signals)} rhythm waveforms is read")
    return _add_limb_leads(wave)


def _read_leads(wave: Element, record_id: str) -> Waveform:
    rate = float(text_at(wave, "SampleBase")) * 10.0 ** int(text_at(wave, "SampleExponent") or 0)
    columns, names, starts = [], [], set()
    for lead in wave.iter("LeadData"):
        name = text_at(lead, "LeadID")
        size, unit = text_at(lead, "LeadSampleSize") or "2", text_at(lead, "LeadAmplitudeUnits")
        if size != "2" or unit not in _MILLIVOLTS:
            raise InputError(
                f"record {record_id}: MUSE lead {name[:20]} has samples of {size[:9]} bytes in"
                f" {unit[:20]!r}; 2 bytes in MICROVOLTS are read"
            )
        data = base64_bytes(lead.findtext("WaveFormData"))
        count = int(text_at(lead, "LeadSampleCountTotal") or len(data) // 2)
        if len(data) != 2 * count:
            raise InputError(
                f"record {record_id}: MUSE lead {name[:20]} holds {len(data)} bytes for {count}"
                " samples: the file is damaged or compressed; export it again"
            )
        step = float(text_at(lead, "LeadAmplitudeUnitsPerBit")) * _MILLIVOLTS[unit]
        columns.append(np.frombuffer(data, "<i2") * step)
        names.append(name)
        starts.add((text_at(lead, "LeadOffsetFirstSample") or "0", count))
    if len(starts) != 1:
        what = "start or length" if starts else "samples"
        raise InputError(f"record {record_id}: its MUSE leads have no common {what}")
    return Waveform(np.stack(columns, axis=1).astype(np.float32), rate, names)


def _add_limb_leads(wave: Waveform) -> Waveform:
    """The waveform with III, aVR, aVL and aVF behind lead II, unless it has one of them already."""
    names = [canonical(name) for name in wave.leads]
    if not {"I", "II"} <= set(names) or set(LEADS[2:6]) & set(names):
        return wave
    two = wave.signal[:, [names.index("I"), names.index("II")]]
    at = names.index("II") + 1
    derived = (two @ LIMB[2:].T).astype(np.float32)
    wave.signal = np.concatenate([wave.signal[:, :at], derived, wave.signal[:, at:]], axis=1)
    wave.leads[at:at] = LEADS[2:6]
    wave.notes.append("III, aVR, aVL and aVF are computed from I and II, as MUSE does")
    return wave
