"""ECG files as corpora and devices write them, with any part changed."""

import numpy as np

from data_prep.corpora.corpus import open_corpus
from data_prep.ecg import quality
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record

CSN_NAMES = (
    "\ufeffAcronym Name,Full Name,Snomed_CT\r\nVB,ventricular bigeminy,11157007\r\n"
    "AVB,block,233917008\r\nLBBB,left bundle branch block,164909002\r\n"
    "LFBBB,left front,164909002\r\nSB,Sinus Bradycardia,426177001\r\n"
)


def ecg(seed, seconds=10, rate=500):
    """A plausible record [T,12] in mV, in the order of LEADS."""
    return make_record(0, patient=seed, rate=rate, seconds=seconds)[0]


def wfdb_text(name, signal, leads, file, rate=500, gain=1000, offset="", comments=(), end="\n"):
    adc = np.where(np.isnan(signal), -32768, np.round(np.nan_to_num(signal) * gain)).astype("<i2")
    sums = [int(column.astype(np.int64).sum()) % 65536 for column in adc.T]
    lines = [f"{name} {len(leads)} {rate} {len(adc)}"]
    lines += [
        f"{file} 16{offset} {gain}/mV 16 0 0 {s} 0 {lead}"
        for s, lead in zip(sums, leads, strict=True)
    ]
    return end.join([*lines, *comments, ""]), adc


def write_dat(stem, signal, leads=LEADS, **more):
    stem.parent.mkdir(parents=True, exist_ok=True)
    text, adc = wfdb_text(stem.name, signal, leads, f"{stem.name}.dat", **more)
    stem.with_suffix(".hea").write_bytes(text.encode())
    stem.with_suffix(".dat").write_bytes(adc.tobytes())


def write_mat(stem, signal, dx, end="\r\n", leads=LEADS):
    stem.parent.mkdir(parents=True, exist_ok=True)
    comments = [
        "#Age: 60",
        "#Sex: Male",
        *([f"#Dx: {dx}"] if dx is not None else []),
        "#Rx: Unknown",
    ]
    text, adc = wfdb_text(
        stem.name, signal, leads, f"{stem.name}.mat", offset="+24", comments=comments, end=end
    )
    head = np.array([30, adc.shape[1], len(adc), 0, 4], "<i4").tobytes() + b"val\0"
    stem.with_suffix(".hea").write_bytes(text.encode())
    stem.with_suffix(".mat").write_bytes(head + adc.tobytes())
    return text


def load(corpus, record_id):
    """One record of a corpus; what is wrong with its files has a name in KINDS."""
    record = corpus.load(next(ref for ref in corpus.refs if ref.record_id == record_id))
    assert {quality.kind(word) for word in record.defects} <= quality.KINDS.keys()
    return record


def csn(folder, **dx):
    (folder / "ConditionNames_SNOMED-CT.csv").write_text(CSN_NAMES, encoding="utf-8", newline="")
    for seed, (name, codes) in enumerate(dx.items()):
        write_mat(folder / "WFDBRecords/01/019" / name, ecg(seed), codes)
    return open_corpus("csn", folder)


def write_edf(
    path,
    signal,
    labels=tuple(f"ECG {lead}" for lead in LEADS),
    unit="uV",
    blocks=4,
    reserved="",
    **change,
):
    """Writes EDF, with any header field changed: version, blocks, count, low, high, digital_low,
    digital_high."""
    count, per_block = len(labels), len(signal) // blocks
    scale = 1000 if unit == "uV" else 1
    low, high = -5.0 * scale, 5.0 * scale
    digital = np.round((signal * scale - low) / (high - low) * 65535 - 32768).astype("<i2")
    fields = {
        "low": low,
        "high": high,
        "digital_low": -32768,
        "digital_high": 32767,
        "samples": per_block,
    } | change
    said = {
        "version": "0",
        "blocks": blocks,
        "count": count,
        "start": 256 * (count + 1),
        "seconds": 1,
    } | change
    head = f"{said['version']:<8}{'X':<80}{'Y':<80}01.01.2001.00.00{said['start']:<8}{reserved:<44}"
    head += f"{said['blocks']:<8}{said['seconds']:<8}{said['count']:<4}"
    columns = [(16, labels), (80, [""] * count), (8, [unit] * count)]
    columns += [
        (8, [fields[key]] * count) for key in ("low", "high", "digital_low", "digital_high")
    ]
    columns += [(80, [""] * count), (8, [fields["samples"]] * count), (32, [""] * count)]
    head += "".join(f"{cell:<{width}}" for width, cells in columns for cell in cells)
    data = digital.reshape(blocks, per_block, count).transpose(0, 2, 1).tobytes()
    path.write_bytes(head.encode("latin-1") + data)
    return path
