"""ECG files of devices, written from the formats' descriptions and without any code of the
readers."""

import base64
import binascii
import json
import struct

import numpy as np

from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record

RATE = 500
STEP = 0.005  # mV of one count in files that are written here
COUNTS = np.round(make_record(0, patient=3, rate=RATE, seconds=2)[0] / STEP).astype(np.int64)
SCP_NUMBERS = dict(zip(LEADS, (1, 2, 61, 62, 63, 64, 3, 4, 5, 6, 7, 8), strict=True))


def muse(counts=COUNTS, leads=LEADS, kinds=("Median", "Rhythm"), lead="", **change):
    """GE MUSE XML; `lead` is put into every lead, `change` replaces what the elements say."""
    said = {"base": RATE, "exponent": 0, "step": STEP * 1000, "unit": "MICROVOLTS"} | change
    waves = []
    for kind in kinds:
        part = counts if kind == "Rhythm" else counts[:300]
        parts = []
        for name, column in zip(leads, part.T, strict=False):
            data = base64.b64encode(column.astype("<i2").tobytes()).decode()
            parts.append(
                f"<LeadData><LeadByteCountTotal>{2 * len(column)}</LeadByteCountTotal>"
                f"<LeadTimeOffset>0</LeadTimeOffset>"
                f"<LeadSampleCountTotal>{said.get('count', len(column))}</LeadSampleCountTotal>"
                f"<LeadAmplitudeUnitsPerBit>{said['step']:g}</LeadAmplitudeUnitsPerBit>"
                f"<LeadAmplitudeUnits>{said['unit']}</LeadAmplitudeUnits><LeadID>{name}</LeadID>"
                f"<LeadOffsetFirstSample>0</LeadOffsetFirstSample><LeadSampleSize>2"
                f"</LeadSampleSize>{lead}<WaveFormData>{data[:76]}\n{data[76:]}</WaveFormData>"
                "</LeadData>"
            )
        waves.append(
            f"<Waveform><WaveformType>{kind}</WaveformType><NumberofLeads>{len(parts)}"
            f"</NumberofLeads><SampleType>CONTINUOUS_SAMPLES</SampleType><SampleBase>"
            f"{said['base']}</SampleBase><SampleExponent>{said['exponent']}</SampleExponent>"
            f"{''.join(parts)}</Waveform>"
        )
    return (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n'
        '<!DOCTYPE RestingECG SYSTEM "restecg.dtd">\n'
        "<RestingECG><MuseInfo><MuseVersion>9</MuseVersion></MuseInfo><PatientDemographics>"
        "<PatientID>4711</PatientID><PatientLastName>M\xfcller</PatientLastName>"
        f"</PatientDemographics>{''.join(waves)}</RestingECG>"
    ).encode("latin-1")


def pack_lzw(data):
    """LZW with codes of 10 bits, first bit first, ended by the code 1023 and a few zeros."""
    known, codes, held = {bytes([i]): i for i in range(256)}, [], b""
    for value in data:
        if held + bytes([value]) in known:
            held += bytes([value])
            continue
        codes.append(known[held])
        if len(known) < 1023:
            known[held + bytes([value])] = len(known)
        held = bytes([value])
    bits = "".join(f"{code:010b}" for code in [*codes, known[held], 1023])
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") + bytes(4)


def xli(columns):
    """Philips' XLI: second differences of each lead, packed."""
    blocks = b""
    for x in columns:
        bend = 2 * x[1:-1] - x[:-2] - x[2:]  # of sample i + 2, at i
        words = np.concatenate([x[:2], bend[1:] + 64, [64]]).astype(np.int16).view(np.uint16)
        packed = pack_lzw((words >> 8).astype(np.uint8).tobytes() + words.astype("u1").tobytes())
        blocks += struct.pack("<iHh", len(packed), 1, int(bend[0])) + packed
    return blocks


def philips(counts=COUNTS, version="1.04", method="XLI", encoding="Base64", leads=LEADS):
    """Philips XML: in XLI data four limb leads are what the other two do not explain."""
    columns = [column.astype(np.int64) for column in counts.T]
    if method == "XLI" and len(columns) == 12:
        i, ii, iii, avr, avl, avf = columns[:6]
        columns[2] = ii - i - iii
        columns[3] = -avr - (i + ii) // 2
        columns[4] = (i - iii) // 2 - avl
        columns[5] = (ii + iii) // 2 - avf
    if encoding == "Plain":
        text = " ".join(str(value) for column in columns for value in column)
    else:
        plain = np.concatenate(columns).astype("<i2").tobytes()
        text = base64.b64encode(xli(columns) if method == "XLI" else plain).decode()
    milliseconds = round(1000 * len(counts) / RATE)
    if version == "1.03":
        how = f'compressflag="{method == "XLI"}" compressmethod="{method}"'
        resolution = "signalresolution"
    else:
        how = f'numberofleads="{len(leads)}" leadlabels="{" ".join(leads)}"'
        how += f' compression="{method}"' if method != "Uncompressed" else ""
        resolution = "resolution"
    return (
        '<?xml version="1.0" encoding="UTF-16"?>\n'
        '<restingecgdata xmlns="http://www3.medical.philips.com"><documentinfo><documenttype>'
        f"SierraECG</documenttype><documentversion>{version}</documentversion></documentinfo>"
        f"<dataacquisition><signalcharacteristics><samplingrate>{RATE}</samplingrate>"
        f"<{resolution}>{1000 * STEP:g}</{resolution}><acquisitiontype>STD-12</acquisitiontype>"
        "<numberchannelsallocated>12</numberchannelsallocated></signalcharacteristics>"
        f'</dataacquisition><waveforms><parsedwaveforms {how} dataencoding="{encoding}"'
        f' durationperchannel="{milliseconds}">{text}</parsedwaveforms></waveforms>'
        "</restingecgdata>"
    ).encode("utf-16")


def aecg(counts=COUNTS, leads=LEADS, unit="uV", step="0.002", more=""):
    """HL7 aECG with a rhythm strip, and a representative beat that is shorter."""

    def group(part):
        lines = []
        for lead, column in zip(leads, part.T, strict=False):
            digits = " ".join(str(value - 10) for value in column)
            lines.append(
                f'<component><sequence><code code="MDC_ECG_LEAD_{lead}"/><value'
                f' xsi:type="SLIST_PQ"><origin value="{10 * 1000 * STEP:g}" unit="{unit}"/><scale'
                f' value="{1000 * STEP:g}" unit="{unit}"/><digits>{digits}</digits></value>'
                "</sequence></component>"
            )
        return (
            "<component><sequenceSet><component><sequence>"
            '<code code="TIME_ABSOLUTE" codeSystem="2.16.840.1.113883.5.4"/><value'
            ' xsi:type="GLIST_TS"><head value="20020101120000.000"/><increment'
            f' value="{step}" unit="s"/></value></sequence></component>{"".join(lines)}'
            "</sequenceSet></component>"
        )

    return (
        f'<?xml version="1.0" encoding="UTF-8"?>{more}<AnnotatedECG xmlns="urn:hl7-org:v3"'
        ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><id root="1.2.3"/>'
        '<component><series><code code="RHYTHM" codeSystem="2.16.840.1.113883.5.4"/>'
        '<effectiveTime><low value="20020101120000.000"/><high value="20020101120002.000"/>'
        f"</effectiveTime>{group(counts)}<derivation><derivedSeries>"
        f'<code code="REPRESENTATIVE_BEAT"/>{group(counts[:300])}</derivedSeries></derivation>'
        "</series></component></AnnotatedECG>"
    ).encode()


def scp_code(value):
    """A number in the standard's Huffman table."""
    if -8 <= value <= 8:
        return "1" * abs(value) + "0" + ("" if value == 0 else "0" if value > 0 else "1")
    if -128 <= value <= 127:
        return "1111111110" + f"{value & 0xFF:08b}"
    return "1111111111" + f"{value & 0xFFFF:016b}"


def own_code(value):
    """A number in OWN_TABLES: 4 is in the second one, between codes that lead there and back."""
    return {0: "0", 4: "11" + "10" + "0"}.get(value, "10" + f"{value & 0xFFFF:016b}")


# bits that begin a code, all its bits, whether it is a value, the value or next table, the code
OWN_TABLES = [
    [(1, 1, 1, 0, "0"), (2, 18, 1, 0, "10"), (2, 2, 0, 2, "11")],
    [(2, 2, 1, 4, "10"), (1, 1, 0, 1, "0")],
]


def scp(counts=COUNTS, leads=LEADS, order=2, coding="standard", flags=4, bimodal=0, starts=None):
    """SCP-ECG with sections 0, 1, 2 (if coded), 3 and 6."""

    def section(number, body):
        body += b"\0" * (len(body) % 2)
        name = b"SCPECG" if number == 0 else bytes(6)
        rest = struct.pack("<HIBB", number, 16 + len(body), 20, 20) + name + body
        return struct.pack("<H", binascii.crc_hqx(rest, 0xFFFF)) + rest

    starts = starts or [1] * len(leads)
    lead_bytes = b""
    for start, lead in zip(starts, leads, strict=True):
        lead_bytes += struct.pack("<IIB", start, start + len(counts) - 1, SCP_NUMBERS[lead])
    data, sizes = b"", b""
    for column in counts.T:
        values = [int(v) for v in column[:order]] + [int(v) for v in np.diff(column, order)]
        if coding is None:
            part = np.array(values).astype("<i2").tobytes()
        else:
            bits = "".join(map(scp_code if coding == "standard" else own_code, values))
            bits += "0" * (-len(bits) % 16)
            part = int(bits, 2).to_bytes(len(bits) // 8, "big")
        data, sizes = data + part, sizes + struct.pack("<H", len(part))
    rhythm = struct.pack("<HHBB", round(STEP * 1e6), 1_000_000 // RATE, order, bimodal)
    bodies = {
        1: bytes([2]) + struct.pack("<H", 5) + b"4711\0" + bytes([255, 0, 0]),
        3: bytes([len(leads), flags]) + lead_bytes,
        6: rhythm + sizes + data,
    }
    if coding == "standard":
        bodies[2] = struct.pack("<H", 19999)
    elif coding == "own":
        bodies[2] = struct.pack("<H", len(OWN_TABLES))
        for table in OWN_TABLES:
            bodies[2] += struct.pack("<H", len(table))
            for *numbers, code in table:
                bodies[2] += struct.pack("<BBBhI", *numbers, int(code[::-1], 2))
    made = {number: section(number, body) for number, body in bodies.items()}
    size0 = 16 + 12 * 10
    at, pointers = 6 + size0, struct.pack("<HII", 0, size0, 7)
    for number in range(1, 12):
        size = len(made.get(number, b""))
        pointers += struct.pack("<HII", number, size, at + 1 if size else 0)
        at += size
    whole = section(0, pointers) + b"".join(made[number] for number in sorted(made))
    rest = struct.pack("<I", len(whole) + 6) + whole
    return struct.pack("<H", binascii.crc_hqx(rest, 0xFFFF)) + rest


def ishne(counts=COUNTS, codes=tuple(range(5, 17)), **change):
    """An ISHNE Holter file with a short variable block."""
    said = {"samples": len(counts), "leads": len(codes), "rate": RATE, "nanovolts": STEP * 1e6}
    said |= change
    more = b"made for a test"
    twelve = [*codes, *[-9] * (12 - len(codes))]
    steps = [round(said["nanovolts"])] * len(codes) + [-9] * (12 - len(codes))
    head = struct.pack("<iiii", len(more), said["samples"], 522, 522 + len(more))
    head += struct.pack("<h40s40s20s", 1, b"Erika", b"Muster", b"4711")
    head += struct.pack("<hh3h3h3h3h", 2, 0, 1, 1, 1950, 2, 3, 2001, 2, 3, 2001, 10, 0, 0)
    head += struct.pack("<h12h12h12hh", said["leads"], *twelve, *[1] * 12, *steps, 0)
    head += struct.pack("<40sh80s80s88s", b"digital", said["rate"], b"", b"", b"")
    assert len(head) == 512
    crc = struct.pack("<H", binascii.crc_hqx(head + more, 0xFFFF))
    return b"ISHNE1.0" + crc + head + more + counts.astype("<i2").tobytes()


def kardia(counts=COUNTS[:, :6], **change):
    """JSON of a KardiaMobile 6L."""
    names = ("leadI", "leadII", "leadIII", "AVR", "AVL", "AVF")

    def block(part):
        samples = dict(zip(names, part.T.tolist(), strict=False))
        more = {"amplitudeResolution": round(STEP * 1e6), "numLeads": len(samples)}
        return {"frequency": RATE, "mainsFrequency": 50, "samples": samples} | more

    said = {
        "id": "abc",
        "patientID": "def",
        "recordedAt": "2021-04-16T15:19:09+05:30",
        "algorithmDetermination": "normal",
        "data": {"raw": block(counts), "enhanced": block(counts + 1)},
    }
    return json.dumps(said | change).encode()


def apple(counts=COUNTS[:, 0]):
    """The CSV of Apple Health."""
    values = "\n".join(f"{value * STEP * 1000:.3f}" for value in counts)
    return (
        'Name,Erika Muster\nDate of Birth,"Jan 1, 1950"\nRecorded Date,2021-04-16 15:19:09 +0200\n'
        'Classification,Sinus Rhythm\nSymptoms,\nSoftware Version,1.90\nDevice,"Watch4,4"\n'
        f"Sample Rate,{RATE} hertz\n\n\nLead,Lead I\nUnit,\u00b5V\n\n\n{values}\n"
    ).encode()


def dicom(path, counts=COUNTS, leads=LEADS, unit="uV", syntax=None, parts=(None, 300), **change):
    """A DICOM 12-lead ECG with a rhythm and a shorter group, written by pydicom; `parts` are the
    samples of each group."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, TwelveLeadECGWaveformStorage, generate_uid

    def code(value, scheme, meaning):
        item = Dataset()
        item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
        return item

    def group(part):
        item = Dataset()
        item.NumberOfWaveformChannels, item.NumberOfWaveformSamples = len(leads), len(part)
        item.SamplingFrequency, item.WaveformOriginality = str(RATE), "ORIGINAL"
        item.ChannelDefinitionSequence = []
        for lead in leads:
            channel = Dataset()
            source = code(f"2:{SCP_NUMBERS[lead]}", "MDC", f"Lead {lead}")
            channel.ChannelSourceSequence = [source]
            channel.ChannelSensitivity, channel.ChannelBaseline = str(1000 * STEP), "50"
            channel.ChannelSensitivityUnitsSequence = [code(unit, "UCUM", unit)]
            channel.ChannelSensitivityCorrectionFactor, channel.ChannelSampleSkew = "1", "0"
            channel.WaveformBitsStored = 16
            item.ChannelDefinitionSequence.append(channel)
        item.WaveformBitsAllocated, item.WaveformSampleInterpretation = 16, "SS"
        item.WaveformData = (part - 10).astype("<i2").tobytes()
        for name, value in change.items():
            setattr(item, name, value)
        return item

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = TwelveLeadECGWaveformStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientName, data.PatientID, data.Modality = "Muster^Erika", "4711", "ECG"
    if parts:
        data.WaveformSequence = [group(counts[:size]) for size in parts]
    data.save_as(path, enforce_file_format=True)
    return path
