"""DICOM waveforms (12-lead, general and ambulatory ECG), parsed by pydicom.

A file holds groups of leads, each with its own rate: the rhythm, and perhaps median beats or strips
recorded one after another. The longest group with a standard lead is read. Patient data and
annotations are not.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import canonical
from data_prep.ecg.record import Waveform
from data_prep.formats.content import AGAIN
from data_prep.formats.lead_names import spelled
from data_prep.formats.scp import LEAD_NUMBERS
from data_prep.formats.wfdb_files import LARGEST_VALUES, MILLIVOLTS

LARGEST_DICOM = 2**30
_DEFLATED, _BIG_ENDIAN = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
_TYPES = {"SB": "i1", "UB": "u1", "SS": "i2", "US": "u2", "SL": "i4", "UL": "u4"}
_PREFIXES = {"SCPECG": "5.6.3-9-", "MDC": "2:"}  # of lead numbers in coding schemes


def read_dicom(path: str, record_id: str) -> Waveform:
    """The longest group of leads."""
    try:
        import pydicom
    except ImportError:
        raise InputError(
            f"record {record_id}: {Path(path).name}: DICOM needs `pip install lvcg-jax[formats]`"
        ) from None
    # of a damaged file it logs values whole, which may be those of a patient
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    if Path(path).stat().st_size > LARGEST_DICOM:
        raise InputError(f"record {record_id}: {Path(path).name} has more than 1 GiB")
    with warnings.catch_warnings():  # on values that no ECG depends on
        warnings.simplefilter("ignore")
        syntax = str(pydicom.filereader.read_file_meta_info(path).TransferSyntaxUID)
        if syntax == _DEFLATED:  # it would be unpacked whole, whatever its size
            raise InputError(
                f"record {record_id}: a deflated DICOM file is not read: convert it with"
                " dcmconv +te of DCMTK"
            )
        wanted = ["SOPClassUID", "WaveformSequence"]
        data = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
        groups = list(data.get("WaveformSequence") or ())
        if not groups:
            kind = getattr(data.get("SOPClassUID"), "name", "unknown")
            raise InputError(
                f"record {record_id}: a DICOM file without a waveform ({kind[:60]}): give the"
                " object of the kind ECG Waveform Storage, not a picture or PDF of it"
            )
        order = ">" if syntax == _BIG_ENDIAN else "<"
        waves = [_read_group(group, order, record_id) for group in groups]
    with_leads = [wave for wave in waves if any(map(canonical, wave.leads))]
    wave = max(with_leads or waves, key=lambda wave: len(wave.signal) / wave.rate)
    if len(waves) > 1:
        wave.notes.append(f"the longest of {len(waves)} DICOM waveform groups is read")
    return wave


def _read_group(group: Any, order: str, record_id: str) -> Waveform:
    channels, samples = int(group.NumberOfWaveformChannels), int(group.NumberOfWaveformSamples)
    kind = str(group.WaveformSampleInterpretation)
    if kind not in _TYPES:
        raise InputError(f"record {record_id}: DICOM samples of the kind {kind[:9]!r} are not read")
    dtype = np.dtype(order + _TYPES[kind])
    need, held = channels * samples * dtype.itemsize, bytes(group.WaveformData)
    if not 0 < channels * samples <= LARGEST_VALUES or len(held) < need:
        raise InputError(
            f"record {record_id}: DICOM waveform of {channels} x {samples} samples holds"
            f" {len(held)} of {need} bytes: truncated, {AGAIN}"
        )
    adc = np.frombuffer(held[:need], dtype).reshape(samples, channels)
    signal = adc.astype(np.float32)
    definitions = list(group.ChannelDefinitionSequence)
    if len(definitions) != channels:
        raise InputError(
            f"record {record_id}: DICOM waveform of {channels} channels defines {len(definitions)}"
        )
    for column, channel in enumerate(definitions):
        step, zero = _scale(channel, record_id)
        signal[:, column] = adc[:, column] * step + zero
    padding = group.get("WaveformPaddingValue")
    if padding is not None and len(bytes(padding)) >= dtype.itemsize:
        signal[adc == np.frombuffer(bytes(padding)[: dtype.itemsize], dtype)[0]] = np.nan
    return Waveform(signal, float(group.SamplingFrequency), [_name(c) for c in definitions])


def _scale(channel: Any, record_id: str) -> tuple[float, float]:
    """mV of one step of a channel, and of the value 0."""
    units = channel.get("ChannelSensitivityUnitsSequence")
    unit = str(units[0].CodeValue) if units else ""
    if "ChannelSensitivity" not in channel or unit.lower() not in MILLIVOLTS:
        raise InputError(
            f"record {record_id}: DICOM channel {_name(channel)[:30]} has no sensitivity in volts"
            f" (unit {unit[:20]!r}): mV are unknown"
        )
    factor = float(channel.get("ChannelSensitivityCorrectionFactor", 1))
    size = MILLIVOLTS[unit.lower()]
    zero = float(channel.get("ChannelBaseline", 0)) * size
    return float(channel.ChannelSensitivity) * factor * size, zero


def _name(channel: Any) -> str:
    """The lead of a channel by its code, else what its meaning or label says."""
    for source in channel.get("ChannelSourceSequence") or ():
        prefix = _PREFIXES.get(str(source.get("CodingSchemeDesignator", "")), "?")
        number = str(source.get("CodeValue", "")).removeprefix(prefix)
        if number.isdecimal() and len(number) < 4 and int(number) in LEAD_NUMBERS:
            return LEAD_NUMBERS[int(number)]
        meaning = str(source.get("CodeMeaning", ""))
        if meaning:
            return spelled(meaning) or meaning
    return str(channel.get("ChannelLabel", "")) or "unnamed"
