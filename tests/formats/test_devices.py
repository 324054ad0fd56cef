"""Files of devices and hospitals: known by their content, read to the microvolt as other readers
do, or refused in one line."""

import os
import random
import re
import warnings
import zlib

import numpy as np
import pytest
from ecgdatakit import FileParser
from helpers import device_files as files
from helpers.device_files import COUNTS, RATE, STEP
from helpers.mutations import KINDS, NASTY, check, mutate

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, canonical
from data_prep.formats import content
from data_prep.formats.any_file import FORMATS, file_kind, read_any
from data_prep.formats.wfdb_files import MILLIVOLTS

MICROVOLT = 1e-3
EIGHT = [0, 1, 6, 7, 8, 9, 10, 11]
WRITTEN = {  # kind -> (usual ending, content)
    "muse": (".xml", files.muse()),
    "philips": (".xml", files.philips()),
    "aecg": (".xml", files.aecg()),
    "scp": (".scp", files.scp()),
    "ishne": (".ecg", files.ishne()),
    "kardia": (".json", files.kardia()),
    "dicom": (".dcm", None),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of each kind under its usual ending."""
    folder, paths = tmp_path_factory.mktemp("devices"), {}
    for kind, (ending, data) in WRITTEN.items():
        paths[kind] = folder / f"{kind}{ending}"
        if data is None:
            files.dicom(paths[kind])
        else:
            paths[kind].write_bytes(data)
    return paths


def second(path):
    """Lead -> mV and the rate, as ecgdatakit reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = FileParser().parse(path)
    leads = {canonical(lead.label): lead for lead in record.leads}
    signal = {name: lead.samples * MILLIVOLTS[lead.units.lower()] for name, lead in leads.items()}
    return signal, next(iter(leads.values())).sampling_rate


def refused(path, **more):
    with pytest.raises(InputError) as error:
        read_any(path, record_id="r1", **more)
    text = str(error.value)
    assert text.startswith("record r1: ") and "\n" not in text and len(text) < 330, text
    return text


# ---- the right numbers


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_was_written_is_read_whatever_the_file_is_called(kind, written, tmp_path):
    truth = COUNTS[:, :6] if kind == "kardia" else COUNTS
    for name in (written[kind].name, "IM000001", "ecg.bin"):
        path = tmp_path / name
        path.write_bytes(written[kind].read_bytes())
        record = read_any(path)
        assert file_kind(str(path), "r1") == kind
        assert [canonical(lead) for lead in record.leads] == list(LEADS[: truth.shape[1]])
        assert record.rate == RATE and record.signal.dtype == np.float32
        np.testing.assert_allclose(record.signal, truth * STEP, atol=1e-5)


@pytest.mark.parametrize("kind", WRITTEN)
def test_another_reader_reads_the_same(kind, written):
    record = read_any(written[kind])
    other, rate = second(written[kind])
    assert rate == record.rate
    assert set(other) >= {canonical(lead) for lead in record.leads}
    for lead, column in zip(record.leads, record.signal.T, strict=True):
        np.testing.assert_allclose(column, other[canonical(lead)], atol=MICROVOLT)


def test_a_real_dicom_ecg_is_read_as_pydicom_and_another_reader_do():
    import pydicom
    from pydicom.data import get_testdata_file

    path = get_testdata_file("waveform_ecg.dcm", download=False)
    record, rhythm = read_any(path), pydicom.dcmread(path)
    assert record.leads == list(LEADS) and record.rate == 1000 and len(record.signal) == 10_000
    assert record.notes == ["the longest of 2 DICOM waveform groups is read"]
    np.testing.assert_allclose(record.signal, rhythm.waveform_array(0) / 1000, atol=MICROVOLT)
    other, _ = second(path)
    for lead, column in zip(record.leads, record.signal.T, strict=True):
        np.testing.assert_allclose(column, other[lead], atol=MICROVOLT)


@pytest.mark.parametrize("version", ["1.03", "1.04"])
def test_compressed_philips_files_are_read_as_their_reference_does(version, tmp_path):
    import sierraecg

    path = tmp_path / "p.xml"
    path.write_bytes(files.philips(version=version))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = sierraecg.read_file(str(path))
    record = read_any(path)
    np.testing.assert_allclose(record.signal, COUNTS * STEP, atol=1e-5)
    assert [lead.label for lead in other.leads] == record.leads
    for lead, column in zip(other.leads, record.signal.T, strict=True):
        np.testing.assert_allclose(lead.samples * STEP, column, atol=MICROVOLT)


@pytest.mark.parametrize("encoding", ["Base64", "Plain"])
def test_philips_files_without_compression(encoding, tmp_path):
    path = tmp_path / "p.xml"
    some = files.philips(COUNTS[:, :3], "1.04", "Uncompressed", encoding, ("V1", "V2", "II"))
    path.write_bytes(some)
    record = read_any(path)
    assert record.leads == ["V1", "V2", "II"]
    np.testing.assert_allclose(record.signal, COUNTS[:, :3] * STEP, atol=1e-5)


def test_a_constant_lead_fills_the_table_of_lzw(tmp_path):
    counts = np.tile(np.array([[0], [5], [10], [5]]), (3000, 2))
    (tmp_path / "p.xml").write_bytes(files.philips(counts, leads=("I", "II")))
    np.testing.assert_allclose(read_any(tmp_path / "p.xml").signal, counts * STEP, atol=1e-5)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("coding", [None, "standard", "own"])
def test_every_coding_of_scp(order, coding, tmp_path):
    counts = COUNTS[:200, :2].copy()
    counts[50:52, 0] = (20_000, -20_000)  # steps of more than 16 bits
    path = tmp_path / "s.scp"
    path.write_bytes(files.scp(counts, ("II", "V5"), order, coding))
    record = read_any(path)
    assert record.leads == ["II", "V5"]
    np.testing.assert_allclose(record.signal, counts * STEP, atol=2e-5)
    other, _ = second(path)
    for lead, column in zip(record.leads, record.signal.T, strict=True):
        np.testing.assert_allclose(column, other[lead], atol=MICROVOLT)


def test_scp_leads_one_after_another_have_gaps(tmp_path):
    (tmp_path / "s").write_bytes(files.scp(COUNTS[:100, :2], ("I", "II"), starts=[1, 101]))
    signal = read_any(tmp_path / "s").signal
    assert signal.shape == (200, 2)
    assert np.isnan(signal[100:, 0]).all() and np.isnan(signal[:100, 1]).all()
    np.testing.assert_allclose(signal[100:, 1], COUNTS[:100, 1] * STEP, atol=1e-5)


def test_the_four_limb_leads_that_muse_does_not_store_are_computed(tmp_path):
    leads = [LEADS[i] for i in EIGHT]
    (tmp_path / "m.xml").write_bytes(files.muse(COUNTS[:, EIGHT], leads))
    record = read_any(tmp_path / "m.xml")
    one, two = COUNTS[:, 0] * STEP, COUNTS[:, 1] * STEP
    assert record.leads == list(LEADS) and "computed from I and II" in record.notes[0]
    for lead, expected in {
        "III": two - one,
        "aVR": -(one + two) / 2,
        "aVL": one - two / 2,
        "aVF": two - one / 2,
        "V1": COUNTS[:, 6] * STEP,
    }.items():
        column = record.signal[:, LEADS.index(lead)]
        np.testing.assert_allclose(column, expected, atol=1e-5)


def test_a_rhythm_strip_of_muse_is_one_lead(tmp_path):
    (tmp_path / "m.xml").write_bytes(files.muse(COUNTS[:, 1:2], ["II"], ("Rhythm",), exponent=-1))
    record = read_any(tmp_path / "m.xml")
    assert record.leads == ["II"] and record.rate == RATE / 10 and record.notes == []


def test_an_ecg_of_apple_health(tmp_path):
    (tmp_path / "ecg_2021-04-16.csv").write_bytes(files.apple())
    record = read_any(tmp_path / "ecg_2021-04-16.csv")
    assert record.leads == ["I"] and record.rate == RATE
    np.testing.assert_allclose(record.signal[:, 0], COUNTS[:, 0] * STEP, atol=1e-5)


def test_samples_without_a_value_in_dicom_are_gaps(tmp_path):
    value = np.array(COUNTS[7, 0] - 10, "<i2")
    path = files.dicom(tmp_path / "d", parts=(300, None), WaveformPaddingValue=value.tobytes())
    signal = read_any(path).signal
    assert np.isnan(signal[7, 0])
    np.testing.assert_allclose(np.nan_to_num(signal - COUNTS * STEP), 0, atol=1e-5)


@pytest.mark.parametrize("kind", ["SB", "UB", "US", "SL", "big endian"])
def test_samples_of_dicom_in_other_numbers(kind, tmp_path):
    from pydicom.uid import ExplicitVRBigEndian

    types = {"SB": "i1", "UB": "u1", "US": "<u2", "SL": "<i4", "big endian": ">i2"}
    counts = np.arange(240).reshape(20, 12) // 2
    held = counts.astype(types[kind])
    change = {"WaveformData": held.tobytes(), "WaveformBitsAllocated": 8 * held.itemsize}
    big = kind == "big endian"
    change["WaveformSampleInterpretation"] = "SS" if big else kind
    syntax = ExplicitVRBigEndian if big else None
    path = files.dicom(tmp_path / "d", counts, syntax=syntax, parts=(None,), **change)
    np.testing.assert_allclose(read_any(path).signal, (counts + 10) * STEP, atol=1e-5)


def test_samples_counted_over_all_leads_and_a_wrong_checksum(tmp_path):
    (tmp_path / "i").write_bytes(files.ishne(samples=12 * len(COUNTS)))
    np.testing.assert_allclose(read_any(tmp_path / "i").signal, COUNTS * STEP, atol=1e-5)
    data = bytearray(files.scp(coding=None, order=0))
    data[-1] ^= 1
    (tmp_path / "s").write_bytes(data)
    record = read_any(tmp_path / "s")
    assert record.notes == ["the checksum of SCP section 6 is wrong: perhaps damaged"]


def test_leads_and_rate_are_chosen_and_checked_as_for_other_files(written):
    record = read_any(written["dicom"], leads="V2,I")
    assert record.leads == ["V2", "I"]
    np.testing.assert_allclose(record.signal, COUNTS[:, [7, 0]] * STEP, atol=1e-5)
    assert "its rate is 500.0 in the file, but 250.0 was given" in refused(written["scp"], rate=250)
    assert "it has no lead 'V1'" in refused(written["kardia"], leads="V1")


# ---- what is refused

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
BAD = {
    "XML bomb": (files.aecg(more=LAUGHS), "declares XML entities"),
    "another file": (files.aecg(more=OUTSIDE), "declares XML entities"),
    "XML of others": (
        b"<?xml version='1.0'?><!-- a --><n:ClinicalDocument/>",
        "<ClinicalDocument>",
    ),
    "deep XML": (b"<AnnotatedECG>" * 200_000, "no whole XML file"),
    "no root": (b"<?xml version='1.0'?>", r"root <\?>"),
    "half an XML file": (files.muse()[:5000], "no whole XML file"),
    "only a median beat": (files.muse(kinds=("Median",)), "without a rhythm waveform .only Median"),
    "no waveform": (files.muse(kinds=()), "without a rhythm waveform .no waveform at all"),
    "compressed MUSE": (files.muse(count=600), "bytes for 600 samples"),
    "MUSE in steps": (files.muse(unit="STEPS"), "in 'STEPS'"),
    "no Base64": (files.muse().replace(b"WaveFormData>", b"WaveFormData>?"), "damaged GE MUSE XML"),
    "Philips Huffman": (files.philips(method="XLI2"), "Base64, XLI2"),
    "cut Philips": (
        files.philips(COUNTS[:, :2], method="Uncompressed", leads=("I", "II", "III")),
        "truncated: 2000 of 3000 samples",
    ),
    "fewer Philips leads": (files.philips(COUNTS[:, :2]), "damaged Philips XML"),
    "aECG in Pa": (files.aecg(unit="Pa"), "in 'Pa', which is no voltage"),
    "aECG without time": (files.aecg().replace(b"TIME_ABS", b"ABS"), "without sequences in volts"),
    "aECG too slow": (files.aecg(step="10"), "sampling rate '0.1'"),
    "reference beat": (files.scp(flags=5), "differences from a reference beat.*BioSig"),
    "thinned SCP": (files.scp(bimodal=1), "samples thinned out.*BioSig"),
    "half an SCP file": (files.scp()[:3000], "SCP-ECG is truncated .section 6"),
    "half an ISHNE file": (files.ishne()[:3000], r"truncated: 102 of 1000 samples"),
    "ISHNE of 99 leads": (files.ishne(leads=99), "99 leads at 500 Hz"),
    "ISHNE without resolution": (files.ishne(nanovolts=0), "resolution 0"),
    "ISHNE of X, Y, Z": (files.ishne(COUNTS[:, :3], (2, 3, 4)), "X, Y, Z; name them: --lead_names"),
    "ISHNE annotations": (b"ANN  1.0" + bytes(600), "an ISHNE file of annotations"),
    "Kardia 12L": (files.kardia(data12L={}, data=None), "a Kardia 12L recording"),
    "other JSON": (b'{"a": [1, 2]}', "JSON without data.raw.samples"),
    "half a JSON file": (files.kardia()[:500], "no whole JSON file"),
    "deep JSON": (b'{"a":' * 100_000, "no whole JSON file"),
    "PDF": (b"%PDF-1.7", "is a PDF: it holds a picture"),
    "zip": (b"PK\x03\x04" + bytes(99), "is a zip archive: unpack it"),
    "gzip": (b"\x1f\x8b" + bytes(99), "is a gzip archive: unpack it"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "is an HDF5 file: save one record as .npz"),
    "nothing": (b"", "is empty: copy or export it again"),
    "noise": (bytes(range(256)) * 8, "in no format that is known here; WFDB, EDF"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named_in_one_line(case, tmp_path):
    data, reason = BAD[case]
    (tmp_path / "r1.ecg").write_bytes(data)
    assert re.search(reason, refused(tmp_path / "r1.ecg"))


def test_dicom_without_an_ecg_is_named(tmp_path):
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    path = tmp_path / "d.dcm"
    files.dicom(path, parts=())
    assert "without a waveform (12-lead ECG Waveform Storage)" in refused(path)
    files.dicom(path, unit="Pa")
    assert "no sensitivity in volts (unit 'Pa')" in refused(path)
    files.dicom(path, NumberOfWaveformSamples=10**6)
    assert "holds 24000 of 24000000 bytes: truncated" in refused(path)
    files.dicom(path, WaveformSampleInterpretation="MB")
    assert "of the kind 'MB' are not read" in refused(path)
    files.dicom(path, syntax=DeflatedExplicitVRLittleEndian)
    assert "a deflated DICOM file is not read" in refused(path)


def test_a_missing_library_is_named(written, monkeypatch):
    import sys

    for name, kind in (("pydicom", "dicom"), ("defusedxml", "aecg")):
        monkeypatch.setitem(sys.modules, name, None)
        assert "needs `pip install lvcg-jax[formats]`" in refused(written[kind])


def test_pipes_devices_and_folders_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.xml")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.dcm").mkdir()
    for path in (tmp_path / "pipe.xml", tmp_path / "pipe.csv", "/dev/zero"):
        assert "no ordinary file" in refused(path)
    assert "(a folder)" in refused(tmp_path / "folder.dcm")
    assert "No such file" in refused(tmp_path / "absent.dcm")
    os.mkfifo(tmp_path / "a.hea")
    assert "no ordinary file" in refused(tmp_path / "a")
    (tmp_path / "b.hea").write_text("b 1 100 10\nb.dat 16 1000/mV 16 0 0 0 0 I\n")
    os.mkfifo(tmp_path / "b.dat")
    assert "no ordinary file" in refused(tmp_path / "b")


def test_more_than_a_file_may_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.xml"
    path.write_bytes(files.aecg())
    monkeypatch.setattr("data_prep.formats.content.LARGEST", 1000)
    assert "export it as EDF" in refused(path)


def test_every_format_says_its_name_and_what_is_lost():
    assert set(WRITTEN) | {"npy", "npz", "text", "edf", "wfdb"} == set(FORMATS)
    assert set(content.ROOTS.values()) | set(content.STARTS.values()) <= set(FORMATS)


@pytest.mark.parametrize("kind", [*WRITTEN, "apple"])
def test_mutated_files_are_read_or_refused(kind, tmp_path):
    few, two = COUNTS[:120, :2], ("I", "II")
    makers = {
        "muse": lambda: files.muse(few, two),
        "philips": lambda: (
            files.philips(few, leads=two).decode("utf-16").replace("UTF-16", "UTF-8").encode()
        ),
        "aecg": lambda: files.aecg(few, two),
        "scp": lambda: files.scp(few, two),
        "ishne": lambda: files.ishne(few, (5, 6)),
        "kardia": lambda: files.kardia(few),
        "apple": lambda: files.apple(few[:, 0]),
        "dicom": lambda: files.dicom(tmp_path / "r1.csv", few, two).read_bytes(),
    }
    data = makers[kind]()
    path = tmp_path / ("r1.csv" if kind == "apple" else "r1.ecg")
    rng = random.Random(zlib.crc32(kind.encode()))
    answers = []
    for _ in range(200):
        changes = [
            (rng.choice(KINDS), rng.randrange(10**6), rng.randrange(256), rng.choice(NASTY))
            for _ in range(rng.randint(1, 3))
        ]
        path.write_bytes(mutate(data, changes))
        answers.append(check(lambda: read_any(path, record_id="r1")))
    assert any(answers) and not all(answers)
