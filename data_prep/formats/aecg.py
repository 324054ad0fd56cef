"""HL7 annotated ECG (root AnnotatedECG): samples as decimal text, each lead with its own scale.

Of several sets of sequences (rhythm strips, representative beats) the longest is read. Annotations
and trial data are not.
"""

from xml.etree.ElementTree import Element

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.record import Waveform
from data_prep.formats.wfdb_files import LARGEST_VALUES, MILLIVOLTS
from data_prep.formats.xml_tree import read_xml

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def read_aecg(path: str, record_id: str) -> Waveform:
    """The longest set of sequences."""
    sets = [
        [found for part in group.findall("component") for found in part.findall("sequence")]
        for group in read_xml(path, record_id).iter("sequenceSet")
    ]
    waves = [_read_sequences(sequences, record_id) for sequences in sets]
    waves = [wave for wave in waves if wave is not None]
    if not waves:
        raise InputError(
            f"record {record_id}: aECG without sequences in volts and a time: nothing to read"
        )
    wave = max(waves, key=lambda wave: (len(wave.signal) / wave.rate, len(wave.leads)))
    if len(waves) > 1:
        wave.notes.append(f"the longest of {len(waves)} sets of sequences is read")
    return wave


def _code(sequence: Element) -> str:
    code = sequence.find("code")
    return "" if code is None else code.get("code", "")


def _read_sequences(sequences: list[Element], record_id: str) -> Waveform | None:
    """The leads of one set; None if it has no time or no leads."""
    step, columns, names = None, [], []
    for sequence in sequences:
        value, name = sequence.find("value"), _code(sequence)
        if value is None:
            continue
        increment = value.find("increment")
        if name.startswith("TIME") and increment is not None:
            step = float(increment.get("value", "")) * _SECONDS[increment.get("unit", "s")]
        elif value.find("digits") is not None:
            columns.append(_read_digits(value, name, record_id))
            names.append(name)
    if step is None or not columns:
        return None
    if len({len(column) for column in columns}) != 1:
        raise InputError(f"record {record_id}: the leads of its aECG differ in length")
    if not step > 0 or len(columns) * len(columns[0]) > LARGEST_VALUES:
        raise InputError(f"record {record_id}: its aECG has {step:g} s between samples")
    return Waveform(np.stack(columns, axis=1).astype(np.float32), round(1 / step, 6), names)


def _read_digits(value: Element, name: str, record_id: str) -> np.ndarray:
    """Samples of one lead in mV: origin + scale * digits."""
    numbers = np.array((value.findtext("digits") or "").split(), np.float64)
    size = {}
    for part in ("origin", "scale"):
        element = value.find(part)
        unit = "" if element is None else element.get("unit", "")
        if unit.lower() not in MILLIVOLTS:
            raise InputError(
                f"record {record_id}: the {part} of aECG lead {name[:30]} is in {unit[:20]!r},"
                " which is no voltage"
            )
        size[part] = float(element.get("value", "")) * MILLIVOLTS[unit.lower()]
    with np.errstate(all="ignore"):
        return size["origin"] + size["scale"] * numbers
