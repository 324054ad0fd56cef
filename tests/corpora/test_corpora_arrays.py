"""Users' own files: the same signal comes out of .npy, .npz, .csv, .edf and WFDB, and mistakes are
one line."""

import pickle

import edfio
import numpy as np
import pytest
import scipy.io
from helpers.raw_files import write_edf

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg.leads import LEADS
from data_prep.formats.any_file import read_any
from data_prep.synthetic_heart.records import make_record

SIGNAL = make_record(0, patient=0, rate=250, seconds=4)[0].astype(np.float32)  # [1000,12] mV


def own_files(folder):
    np.save(folder / "a.npy", SIGNAL)
    # leads along the first axis, microvolts
    np.save(folder / "b.npy", (SIGNAL.T * 1000).astype(np.int32))
    np.savez(folder / "c.npz", signal=SIGNAL[:, ::-1], rate=250, leads=LEADS[::-1], unit="mV")
    order = [3, 0, 5]
    names = ["time", *(LEADS[i].upper() for i in order)]
    time = np.arange(len(SIGNAL)) / 250
    table = np.column_stack([time, SIGNAL[:, order]])
    text = [
        ";".join(names),
        *(";".join(f"{value:.4f}".replace(".", ",") for value in row) for row in table),
    ]
    (folder / "d.csv").write_text("\n".join(text), encoding="utf-16")
    write_edf(folder / "e.edf", SIGNAL)
    (folder / "f.csv").write_text(
        "\n".join(",".join(map(str, row)) for row in SIGNAL[:, :2].tolist())
    )
    (folder / "records.csv").write_text(
        "path,record_id,patient_id,rate,unit,leads,split,finding\n"
        f"a.npy,A,p1,250,mV,{';'.join(LEADS)},train,x;y\n"
        f"b.npy,B,p1,250,uV,{';'.join(LEADS)},train,\n"
        "c.npz,C,p2,,,,test,x\n"
        "d.csv,D,p3,250,mV,,validation,\n"
        "e.edf,E,p4,,,,test,\n"
        "f.csv,F,p5,250,mV,II;I,train,\n"
    )
    return folder


def test_every_kind_of_file_gives_the_same_signal(tmp_path):
    corpus = open_corpus("arrays", own_files(tmp_path))
    assert (
        corpus.tasks == {"finding": ("x", "y")}
        and corpus.split_rule == "column split of records.csv"
    )
    assert [(r.record_id, r.patient_id, r.split, r.labels["finding"]) for r in corpus.refs] == [
        ("A", "p1", "train", ["x", "y"]),
        ("B", "p1", "train", []),
        ("C", "p2", "test", ["x"]),
        ("D", "p3", "validation", []),
        ("E", "p4", "test", []),
        ("F", "p5", "train", []),
    ]
    leads = {"D": ["AVR", "I", "AVF"], "C": list(LEADS[::-1]), "F": ["II", "I"]}
    columns = {"D": [3, 0, 5], "C": list(range(11, -1, -1)), "F": [0, 1]}
    for ref in pickle.loads(pickle.dumps(corpus.refs)):  # as worker processes get them
        record = corpus.load(ref)
        assert record.leads == leads.get(ref.record_id, list(LEADS)) and record.rate == 250, ref
        expected = SIGNAL[:, columns.get(ref.record_id, slice(None))]
        assert record.signal.dtype == np.float32
        np.testing.assert_allclose(
            record.signal, expected, atol=1.1e-3 if ref.record_id == "B" else 2e-4
        )


def test_read_any_for_one_file(tmp_path):
    own_files(tmp_path)
    record = read_any(tmp_path / "a.npy", rate=250, unit="mV", leads=list(LEADS))
    assert record.record_id == "a" and record.signal.shape == (1000, 12)
    assert read_any(tmp_path / "e.edf", leads="V2;I").leads == ["V2", "I"]
    np.testing.assert_allclose(
        read_any(tmp_path / "e.edf", leads="V2;I").signal, SIGNAL[:, [7, 0]], atol=2e-4
    )
    (tmp_path / "r.hea").write_text(
        "r 2 100 3\nr.dat 16 1000/mV 16 0 0 0 0 I\nr.dat 16 1000/mV 16 0 0 0 0 V1\n"
    )
    (tmp_path / "r.dat").write_bytes(np.arange(6, dtype="<i2").tobytes())
    for name in ("r", "r.hea", "r.dat"):
        assert read_any(tmp_path / name).signal[2].tolist() == pytest.approx([0.004, 0.005])
    scipy.io.savemat(tmp_path / "s.mat", {"ECG": {"sex": "F", "age": 50, "data": SIGNAL.T}})
    np.testing.assert_allclose(
        read_any(tmp_path / "s.mat", leads="aVF").signal, SIGNAL[:, 5:6], atol=1e-6
    )


def test_gaps_in_text_and_records_without_patient(tmp_path):
    (tmp_path / "a.csv").write_text("I,II\n0.1,\n,0.2\nnan,0.3\n")
    (tmp_path / "b.csv").write_text("I,II\n0.1,\n,0.2\nnan,0.3\n")
    (tmp_path / "records.csv").write_text(
        "record_id,path,rate,unit\nx,a.csv,100,mV\ny,b.csv,100,mV\n"
    )
    corpus = open_corpus("arrays", tmp_path)
    assert [r.patient_id for r in corpus.refs] == ["x", "x"] and corpus.duplicates == {"y": "x"}
    expected = [[0.1, np.nan], [np.nan, 0.2], [np.nan, 0.3]]
    np.testing.assert_allclose(corpus.load(corpus.refs[0]).signal, expected, rtol=1e-6)


ALL = {"rate": 250, "unit": "mV", "leads": list(LEADS)}
MISTAKES = {
    "no rate": ("a.npy", {"unit": "mV", "leads": list(LEADS)}, "its rate is not known"),
    "no unit": ("a.npy", {"rate": 250, "leads": list(LEADS)}, "its unit is not known"),
    "no leads": ("a.npy", {"rate": 250, "unit": "mV"}, "its leads is not known"),
    "rate is a word": ("a.npy", ALL | {"rate": "fast"}, "sampling rate 'fast' is no number"),
    "absurd rate": ("a.npy", ALL | {"rate": float("inf")}, "sampling rate 'inf'"),
    "unit": ("a.npy", ALL | {"unit": "mmHg"}, "unit 'mmHg' is no voltage"),
    "wrong unit": ("b.npy", ALL, r"reaches \d+ mV: the header's gain or unit is wrong"),
    "leads do not fit": ("a.npy", ALL | {"leads": ["I", "II"]}, r"shape \(1000, 12\), but 2 leads"),
    "lead twice": ("a.npy", ALL | {"leads": ["I", "i", *LEADS[2:]]}, "lead I occurs twice"),
    "other rate": ("e.edf", {"rate": 500}, "its rate is 250.0 in the file, but 500.0 was given"),
    "other leads": ("c.npz", {"leads": list(LEADS)}, "its leads is .* in the file"),
    "absent lead": (
        "d.csv",
        {"rate": 250, "unit": "mV", "leads": "V1"},
        "no lead 'V1' .found: AVR, I, AVF",
    ),
    "no file": ("nothing.npy", ALL, "cannot read .*nothing.npy"),
    "folder": ("folder.npy", ALL, "cannot read .*folder.npy"),
    "no numpy": ("text.npy", ALL, "cannot read .*text.npy"),
    "objects": ("objects.npy", ALL, "cannot read .*objects.npy"),
    "cut short": ("cut.npy", ALL, "cannot read .*cut.npy"),
    "claims too much": ("huge.npy", ALL, "cannot read .*huge.npy"),
    "square": ("square.npy", ALL, "which axis is time cannot be told"),
    "text array": ("words.npy", ALL, "holds <U1 .*, no ECG"),
    "empty array": ("empty.npy", ALL, "no ECG"),
    "no zip": ("text.npz", ALL, "cannot read .*text.npz"),
    "no signal": ("other.npz", ALL, "no array named signal"),
    "ragged": ("ragged.csv", {"rate": 1, "unit": "mV"}, "line 3 is no row of 2 numbers"),
    "blank line before": ("blank.csv", {"rate": 1, "unit": "mV"}, "line 4 is no row of 2 numbers"),
    "words": ("words.csv", {"rate": 1, "unit": "mV"}, "line 2 is no row of 2 numbers"),
    "no lead": (
        "names.csv",
        {"rate": 1, "unit": "mV"},
        "none of its columns is a standard lead: time, x",
    ),
    "empty text": ("empty.csv", ALL, "is empty"),
    "absent file of a device": ("a.dcm", ALL, "cannot read .*a.dcm .No such file"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(tmp_path, case):
    own_files(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    for name in ("text.npy", "text.npz"):
        (tmp_path / name).write_text("no array")
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[:-100])
    (tmp_path / "huge.npy").write_bytes(data.replace(b"(1000, 12)", b"(9999999999999, 12)", 1))
    np.save(tmp_path / "square.npy", np.zeros((12, 12)))
    np.save(tmp_path / "words.npy", np.array([["a"] * 12] * 20))
    np.save(tmp_path / "empty.npy", np.zeros((0, 12)))
    np.savez(tmp_path / "other.npz", x=SIGNAL, y=SIGNAL)
    (tmp_path / "ragged.csv").write_text("I,II\n1,2\n1,2,3\n")
    (tmp_path / "blank.csv").write_text("I,II\n\n1,2\n1,2,3\n")
    (tmp_path / "words.csv").write_text("I,II\n1,two\n")
    (tmp_path / "names.csv").write_text("time,x\n1,2\n")
    (tmp_path / "empty.csv").write_text("\n")
    name, more, reason = MISTAKES[case]
    with pytest.raises(InputError, match=reason) as error:
        read_any(tmp_path / name, record_id="mine", **more)
    assert str(error.value).startswith("record mine: ") and "\n" not in str(error.value)


BROKEN_EDF = {
    "no BDF": ({"version": "\xffBIOSEMI"}, "truncated: 2 of 4 blocks"),  # has 16-bit samples
    "not EDF": ({"version": "PK"}, "is no EDF or BDF file"),
    "gaps": ({"reserved": "EDF+D"}, "a recording with gaps"),
    "blocks": ({"blocks_said": 9}, "truncated: 4 of 9 blocks"),
    "count": ({"count": "many"}, "header of e.edf is broken"),
    "header size": ({"start": 1}, "header of e.edf is broken"),
    "duration": ({"seconds": "0"}, "header of e.edf is broken"),
    "limits": ({"low": "abc"}, "header of e.edf is broken"),
    "digital limits": ({"digital_high": "2^15"}, "header of e.edf is broken"),
    "infinite": ({"high": "inf"}, "header of e.edf is broken"),
    "samples": ({"samples": "-5"}, "header of e.edf is broken"),
    "zero gain": ({"digital_low": 32767}, "lead I has gain 0"),
    "no lead": ({"labels": ["EEG"] * 12}, "none of its signals is a standard lead"),
    "lead twice": ({"labels": ["ECG I"] * 12}, "lead I occurs twice"),
    "unit": ({"unit": "mmHg"}, "lead I is in 'mmHg', which is no voltage"),
}


@pytest.mark.parametrize("case", BROKEN_EDF)
def test_broken_edf_is_one_line(tmp_path, case):
    change, reason = BROKEN_EDF[case]
    said = change.get("blocks_said")
    write_edf(
        tmp_path / "e.edf",
        SIGNAL,
        **{key: value for key, value in change.items() if key != "blocks_said"},
    )
    if said:
        data = (tmp_path / "e.edf").read_bytes()
        (tmp_path / "e.edf").write_bytes(data[:236] + f"{said:<8}".encode() + data[244:])
    with pytest.raises(InputError, match=reason) as error:
        read_any(tmp_path / "e.edf", record_id="mine")
    assert str(error.value).startswith("record mine: ")


def test_edf_with_annotations_and_unknown_length(tmp_path):
    labels = [*(f"EKG {lead}" for lead in LEADS[:11]), "EDF Annotations"]
    record = read_any(
        write_edf(tmp_path / "e.edf", SIGNAL, labels=labels, unit="mV", reserved="EDF+C")
    )
    assert record.leads == list(LEADS[:11])
    data = (tmp_path / "e.edf").read_bytes()
    (tmp_path / "e.edf").write_bytes(data[:236] + b"-1      " + data[244:])
    np.testing.assert_array_equal(read_any(tmp_path / "e.edf").signal, record.signal)
    (tmp_path / "e.edf").write_bytes(data + data[-3000:])  # more than the header states
    np.testing.assert_array_equal(read_any(tmp_path / "e.edf").signal, record.signal)


def test_bdf_of_24_bits_and_another_signal_at_another_rate(tmp_path):
    signals = [
        edfio.BdfSignal(
            1000.0 * SIGNAL[:, i],
            250,
            label=f"ECG {lead}",
            physical_dimension="uV",
            physical_range=(-5000, 5000),
            digital_range=(-8388608, 8388607),
        )
        for i, lead in enumerate(LEADS)
    ]
    status = edfio.BdfSignal(np.arange(40.0), 10, label="Status", digital_range=(-100, 100))
    note = edfio.EdfAnnotation(1.0, None, "lead off")
    edfio.Bdf([*signals, status], annotations=[note]).write(tmp_path / "b.bdf")
    record = read_any(tmp_path / "b.bdf")
    assert record.leads == list(LEADS) and record.rate == 250
    np.testing.assert_allclose(record.signal, SIGNAL, atol=1e-5)
    data = (tmp_path / "b.bdf").read_bytes()
    (tmp_path / "b.bdf").write_bytes(data[:-1])
    with pytest.raises(InputError, match=r"b.bdf is truncated: 3 of 4 blocks"):
        read_any(tmp_path / "b.bdf")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("record_id,rate\na,100\n", "no column 'path'"),
        ("record_id,path\na,\n", "line 2: record a has no path"),
        ("record_id,path\n,a.npy\n", "line 2: record_id or patient_id is empty"),
        ("record_id,path,rate\na,a.npy,fast\n", "record a: sampling rate 'fast'"),
        ("record_id,path\na,a.npy\na,b.npy\n", "line 3: record_id a was listed before"),
        ("record_id,path,split\na,a.npy,dev\n", "split 'dev' of a; choose from"),
        ("record_id,path\n", "lists no record"),
    ],
)
def test_mistakes_in_the_list_are_named(tmp_path, text, reason):
    (tmp_path / "records.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        open_corpus("arrays", tmp_path)
