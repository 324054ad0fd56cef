"""Readers: the right numbers under the right names, and one clear line for everything that is wrong
with a record."""

import os
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg import quality
from data_prep.ecg.leads import LEADS
from data_prep.formats.wfdb_files import quiet_wfdb, read_header, read_wfdb_record
from data_prep.synthetic_heart import records

needs_real = pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ,
    reason="needs LVCG_REAL_DATA: a folder with ptbxl, ptb, csn, cpsc2018, ludb",
)


def real(name):
    return Path(os.environ["LVCG_REAL_DATA"]) / name


def write(
    folder,
    name="r1",
    header=None,
    adc=None,
    leads=("I", "II", "V1"),
    line="{file} 16 1000(0)/mV 16 0 0 0 0 {lead}",
):
    """A small record; `header` replaces the header's text."""
    adc = np.arange(600).reshape(200, 3) if adc is None else np.asarray(adc)
    lines = [
        f"{name} {len(leads)} 100 {len(adc)}",
        *(line.format(file=f"{name}.dat", lead=lead) for lead in leads),
    ]
    (folder / f"{name}.hea").write_bytes(
        ("\n".join(lines) + "\n").encode() if header is None else header
    )
    (folder / f"{name}.dat").write_bytes(adc.astype("<i2").tobytes())
    return folder / name


def labels(folder, text):
    (folder / "labels.csv").write_text(text, encoding="utf-8")


def only_line(error):
    return str(error.value).count("\n") == 0 and str(error.value)


# ---- WFDB files


def test_values_names_gain_baseline_and_gaps(tmp_path):
    adc = np.array([[0, 500, -32768], [1000, -32768, 7], [-1000, 0, 14]])
    lines = [
        "r1 3 100 3",
        "r1.dat 16 1000/mV 16 0 0 0 0 AVR",
        "r1.dat 16 500(100)/mV 16 0 0 0 0 v2",
    ]
    header = "\n".join([*lines, "r1.dat 16 7/uV 16 0 0 0 0 Lead I"]).encode()
    record = read_wfdb_record(write(tmp_path, header=header, adc=adc))
    assert (
        record.rate == 100
        and record.names == ["AVR", "v2", "Lead I"]
        and record.signal.dtype == np.float32
    )
    expected = [[0, 0.8, np.nan], [1, np.nan, 0.001], [-1, -0.2, 0.002]]
    np.testing.assert_allclose(record.signal, expected, rtol=1e-6)


def test_header_survives_line_endings_bytes_and_missing_fields(tmp_path):
    text = "r1 3 100.0/7(0) 200 12:00:00\r\nr1.dat 16 1000/mV 16 0 0 0 0 I\r\n"
    text += "r1.dat 16 1000 16 5 0 0 0 II\r\n"
    text += "r1.dat 16 1e3(0)/mV 16 0 0 0 0 V1\r\n\r\n# Müller, 54 µV\r\n"
    stem = write(tmp_path, header=text.encode("latin-1"))
    header = read_header(stem)
    assert header.comments == ["Müller, 54 µV"] and header.channels[1].baseline == 5
    record = read_wfdb_record(stem)
    assert (
        record.rate == 100
        and record.names == ["I", "II", "V1"]
        and record.signal[1, 1] == pytest.approx((4 - 5) / 1000)
    )
    no_count = text.replace(" 200 12:00:00", "").encode("latin-1")  # length from the file
    assert read_wfdb_record(write(tmp_path, header=no_count)).signal.shape == (200, 3)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_header_in_any_encoding_gives_the_same_signal(tmp_path, encoding):
    expected = read_wfdb_record(write(tmp_path)).signal
    text = (b"r1 3 100 200\n" + THREE).decode() + "# 60 \u00b5V, M\u00fcller\n"
    record = read_wfdb_record(write(tmp_path, header=text.encode(encoding)))
    np.testing.assert_array_equal(record.signal, expected)
    assert record.names == ["I", "II", "V1"]


def test_a_wrong_checksum_is_a_defect_of_that_lead(tmp_path):
    adc = np.random.default_rng(0).integers(-2000, 2000, (333, 3))
    sums = [int(column.astype("<i2").astype(np.int64).sum() % 65536) for column in adc.T]
    lines = [
        f"r1.dat 16 1000/mV 16 0 0 {total} 0 {lead}"
        for total, lead in zip(sums, ("I", "avl", "V1"), strict=True)
    ]
    header = "\n".join(["r1 3 100 333", *lines])
    assert read_wfdb_record(write(tmp_path, header=header.encode(), adc=adc)).defects == []
    adc[100, 1] += 1
    (word,) = read_wfdb_record(write(tmp_path, header=header.encode(), adc=adc)).defects
    assert word == "checksum:aVL" and quality.kind(word) in quality.KINDS


def test_two_signal_files_and_a_byte_offset(tmp_path):
    stem = write(tmp_path, adc=np.arange(20).reshape(10, 2), leads=("I", "II"))
    (tmp_path / "r1.xyz").write_bytes(b"x" * 24 + np.arange(100, 110, dtype="<i2").tobytes())
    (tmp_path / "r1.hea").write_text(
        "r1 3 100 10\nr1.dat 16 1/mV 16 0 0 0 0 I\nr1.dat 16 1/mV 16 0 0 0 0 II\n"
        "r1.xyz 16+24 1/mV 16 0 0 0 0 vx\n"
    )
    record = read_wfdb_record(stem)
    assert record.names == ["I", "II", "vx"] and record.signal[3].tolist() == [6, 7, 103]


def test_other_formats_go_through_wfdb(tmp_path):
    wave = np.round(np.sin(np.arange(400) / 20)[:, None] * [1.0, 0.5], 2)
    named = {"units": ["mV", "mV"], "sig_name": ["II", "V5"], "fmt": ["212", "212"]}
    with quiet_wfdb() as wfdb:
        wfdb.wrsamp("r212", fs=200, p_signal=wave, write_dir=str(tmp_path), **named)
    record = read_wfdb_record(tmp_path / "r212")
    assert record.rate == 200 and record.names == ["II", "V5"]
    np.testing.assert_allclose(record.signal, wave, atol=2e-3)


def test_channels_that_are_no_voltage_are_left_out(tmp_path):
    header = b"r1 3 100 200\nr1.dat 16 1000/mV 16 0 0 0 0 I\nr1.dat 16 10/mmHg 16 0 0 0 0 ABP\n"
    header += b"r1.dat 16 1/uV 16 0 0 0 0 V1\n"
    record = read_wfdb_record(write(tmp_path, header=header))
    assert (
        record.names == ["I", "V1"]
        and record.signal.shape == (200, 2)
        and record.signal[1, 1] == pytest.approx(5e-3)
    )
    with pytest.raises(InputError, match="record r1: lead I is in 'mmHg'"):
        read_wfdb_record(
            write(tmp_path, header=header.replace(b"ABP", b"aVF").replace(b"1000/mV", b"1000/mmHg"))
        )


LINE = b"r1.dat 16 1000/mV 16 0 0 0 0 "
THREE = LINE + b"I\n" + LINE + b"II\n" + LINE + b"V1\n"
BROKEN = {
    "empty header": (b"", "not a WFDB record line"),
    "binary header": (bytes(range(128, 256)), "not a WFDB record line"),
    "text for numbers": (b"r1 three 100 200\n" + THREE, "not a WFDB record line"),
    "merged lines": (
        b"r1 3 100 200\n" + LINE + b"I " + LINE + b"II\n" + LINE + b"V1\n",
        "claims 3 signals but has 2",
    ),
    "broken signal line": (
        b"r1 3 100 200\n" + LINE + b"I\n" + LINE + b"II\nr1.dat sixteen\n",
        "broken signal line",
    ),
    "zero gain": (b"r1 3 100 200\n" + THREE.replace(b"1000/mV", b"0/mV", 1), "lead I has gain 0"),
    "zero rate": (b"r1 3 0 200\n" + THREE, "3 signals at 0 Hz"),
    "rate is a word": (b"r1 3 fast 200\n" + THREE, "gives 'fast' for the sampling rate"),
    "negative rate": (b"r1 3 -5 200\n" + THREE, "at -5 Hz"),
    "not a number": (b"r1 3 nan 200\n" + THREE, "at nan Hz"),
    "absurd length": (b"r1 3 100 99999999999\n" + THREE, "claims 1e.11 samples of 3 signals"),
    "truncated": (b"r1 3 100 201\n" + THREE, "truncated: 200 of 201 samples"),
    "no signal file": (
        b"r1 3 100 200\n" + THREE.replace(b"r1.dat", b"r9.dat"),
        "cannot read its signal file .*r9.dat",
    ),
    "duplicate lead": (b"r1 3 100 200\n" + THREE.replace(b" V1", b" ii"), "lead II occurs twice"),
    "no known lead": (
        b"r1 3 100 200\n" + LINE + b"vx\n" + LINE + b"vy\n" + LINE + b"MLII\n",
        "standard lead: vx, vy, MLII",
    ),
    "absurd values": (
        b"r1 3 100 200\n" + THREE.replace(b"1000/mV", b"0.5/mV"),
        "lead V1 reaches 1198 mV",
    ),
    "tiny gain": (
        b"r1 3 100 200\n" + THREE.replace(b"1000/mV", b"1e-300/mV", 1),
        "lead I has gain 1e-300 and zero 0",
    ),
    "huge zero": (
        b"r1 3 100 200\n" + THREE.replace(b"1000/mV", b"1000(2000000000)/mV"),
        "zero 2000000000",
    ),
    "huge offset": (
        b"r1 3 100 200\n" + THREE.replace(b" 16 1000", b" 16+999999999999 1000"),
        "truncated: 0 of 200",
    ),
    "endless number": (b"r1 3 100 " + b"9" * 5000 + b"\n" + THREE, "not a WFDB record line"),
    "too many segments": (b"r1/99999 3 100 200\nr1 100\n", "claims 99999 segments but lists 1"),
    "its own segment": (b"r1/2 3 100 200\nr1 100\nr1 100\n", "has segments itself"),
    "another folder": (
        b"r1 3 100 200\n" + THREE.replace(b"r1.dat", b"/etc/r1.dat"),
        "not in the record's folder",
    ),
    "short 12-bit file": (
        b"r1 3 100 900\n" + THREE.replace(b" 16 1000", b" 212 1000"),
        "truncated: 1200 of 4050 bytes",
    ),
    "unknown format": (
        b"r1 3 100 200\n" + THREE.replace(b" 16 1000", b" 777 1000"),
        "cannot be read as WFDB",
    ),
    "folder for a file": (
        b"r1 3 100 200\n" + THREE.replace(b"r1.dat", b"."),
        "cannot read its signal file",
    ),
    "no signal file, 12 bits": (
        b"r1 3 100 200\n" + THREE.replace(b"r1.dat 16", b"r9.dat 212"),
        "cannot read .*r9.dat",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_one_line_that_names_it(tmp_path, case):
    header, reason = BROKEN[case]
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", header=header)
    corpus = open_corpus("wfdb", tmp_path)
    with pytest.raises(InputError, match=reason) as error:
        corpus.load(corpus.refs[0])
    assert only_line(error).startswith("record sub/r1: ")


def test_an_empty_signal_file_and_a_missing_header(tmp_path):
    with pytest.raises(InputError, match=r"record r1: r1\.dat is truncated"):
        read_wfdb_record(write(tmp_path, adc=np.zeros((0, 3))))
    with pytest.raises(InputError, match=r"record r2: cannot read its header"):
        read_wfdb_record(tmp_path / "r2")


def test_an_all_gap_record_is_read_as_nan(tmp_path):
    assert np.isnan(read_wfdb_record(write(tmp_path, adc=np.full((50, 3), -32768))).signal).all()


@needs_real
@pytest.mark.parametrize(
    "name, count", [("ptbxl", 12), ("csn", 25), ("cpsc2018", 15), ("ludb", 15), ("ptb", 6)]
)
def test_fast_path_agrees_with_wfdb_on_real_records(name, count):
    stems = sorted(real(name).rglob("*.hea"))
    for path in stems[:: max(1, len(stems) // count)]:
        fast = read_wfdb_record(path.with_suffix(""))
        slow = read_wfdb_record(path.with_suffix(""), fast=False)
        assert (fast.rate, fast.names) == (slow.rate, slow.names)
        assert len(fast.names) == (15 if name == "ptb" else 12)
        np.testing.assert_allclose(
            fast.signal, slow.signal, rtol=1e-5, atol=1e-6, err_msg=path.name
        )


# ---- folders with labels.csv


def folder_of(tmp_path, *names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write((tmp_path / name).parent, name=Path(name).name)
    return tmp_path


def test_a_plain_folder_lists_every_record(tmp_path):
    folder_of(tmp_path, "b/x", "a", "b/c/y")
    write(tmp_path / "b", name="x", adc=np.arange(600).reshape(200, 3) + 1)
    corpus = open_corpus("wfdb", tmp_path)
    assert [ref.record_id for ref in corpus.refs] == ["a", "b/c/y", "b/x"]
    # the same signal: never in two splits
    assert [ref.patient_id for ref in corpus.refs] == ["a", "a", "b/x"]
    assert corpus.duplicates == {"b/c/y": "a"}
    assert corpus.tasks == {} and all(ref.labels == {} and ref.split is None for ref in corpus.refs)
    record = pickle.loads(pickle.dumps(corpus)).load(corpus.refs[1])  # worker processes get a copy
    assert (
        record.signal.shape == (200, 3) and record.record_id == "b/c/y" and record.source == "wfdb"
    )


def test_labels_join_by_name_in_any_column_order(tmp_path):
    folder_of(tmp_path, "a", "b", "c")
    labels(tmp_path, "\ufefffinding,split,record_id,patient_id\nZ; A,test,b,p2\n,train,a,p1\n")
    corpus = open_corpus("wfdb", tmp_path)
    assert corpus.tasks == {"finding": ("A", "Z")}
    assert [(r.record_id, r.patient_id, r.split, r.labels) for r in corpus.refs] == [
        ("a", "p1", "train", {"finding": []}),  # looked at, nothing found
        ("b", "p2", "test", {"finding": ["A", "Z"]}),
        ("c", "c", None, {}),  # not labelled
    ]


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            "record_id,patient_id,x\na,p,Y\nq1,p,Y\nq2,p,Y\n",
            "2 record_id without a record in the folder: q1, q2",
        ),
        ("id,patient_id,x\na,p,Y\n", "no column 'record_id' .found: id, patient_id, x"),
        ("record_id,x\na,Y\n", "no column 'patient_id'"),
        ("", "no column 'record_id' .found: nothing"),
        ("record_id,patient_id,x,x\na,p,Y,Z\n", "column name twice"),
        ("record_id,patient_id,x\na,p\n", "line 2: 2 cells for 3 columns"),
        ("record_id,patient_id,x\na,p,Y\na,p,Z\n", "line 3: record_id a was listed before"),
        ("record_id,patient_id,x\na,,Y\n", "line 2: record_id or patient_id is empty"),
        (
            'record_id,patient_id,x\na,p,"1\n2"\n\nb,,Y\n',
            "line 5: record_id or patient_id is empty",
        ),
        ('record_id,patient_id,x\na,p,"1\n2"\nb,q\n', "line 4: 2 cells for 3 columns"),
        (
            "record_id,patient_id,split\na,p,val\n",
            "split 'val' of a; choose from train, validation, test",
        ),
        ("record_id,patient_id,split\na,p,train\nb,p,test\n", "patient p is in train and test"),
    ],
)
def test_mistakes_in_labels_are_named(tmp_path, text, reason):
    folder_of(tmp_path, "a", "b")
    labels(tmp_path, text)
    with pytest.raises(InputError, match=reason) as error:
        open_corpus("wfdb", tmp_path)
    assert "labels.csv" in only_line(error)


def test_wrong_names_and_folders_are_told(tmp_path):
    with pytest.raises(InputError, match="did you mean 'ptbxl'"):
        open_corpus("ptb-xl", tmp_path)
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        open_corpus("wfdb", tmp_path / "nowhere")
    for name, reason in {
        "wfdb": "no WFDB header",
        "synthetic": "no synthetic corpus",
        "ptbxl": "scp_statements.csv",
    }.items():
        with pytest.raises(InputError, match=reason):
            open_corpus(name, tmp_path)


# ---- synthetic


def test_synthetic_corpus_reads_back(tmp_path):
    records.write_corpus(tmp_path, patients=3, records_per_patient=2, rate=100, seed=1)
    corpus = open_corpus("synthetic", tmp_path)
    assert corpus.name == "synthetic" and corpus.tasks == records.TASKS and len(corpus.refs) == 6
    assert {ref.split for ref in corpus.refs} == {"train", "validation", "test"}
    for ref, (patient, number) in zip(
        corpus.refs, [(p, r) for p in range(3) for r in range(2)], strict=True
    ):
        signal, info = records.make_record(1, patient=patient, record=number, rate=100)
        record = corpus.load(ref)
        assert (record.patient_id, record.split, record.labels) == (
            info["patient_id"],
            info["split"],
            info["labels"],
        )
        assert record.leads == list(LEADS) and record.rate == 100
        np.testing.assert_allclose(record.signal, signal, atol=1.5e-3)
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(InputError, match="unfinished"):
        open_corpus("synthetic", tmp_path)


# ---- PTB-XL

STATEMENTS = """,description,diagnostic,form,rhythm,diagnostic_class,diagnostic_subclass
NORM,normal,1.0,,,NORM,NORM
NDT,"T, odd",1.0,1.0,,STTC,STTC
CLBBB,left,1.0,,,CD,CLBBB
SR,sinus,,,1.0,,
"""


def small_ptbxl(folder, rows):
    (folder / "scp_statements.csv").write_text(STATEMENTS)
    lines = ["ecg_id,report,patient_id,scp_codes,strat_fold,filename_hr,filename_lr"]
    (folder / "records100/00000").mkdir(parents=True, exist_ok=True)
    for number, patient, codes, fold, there in rows:
        stem = f"records100/00000/{number:05d}_lr"
        lines.append(
            f'{number},"mehr\nzeilig",{patient}.0,"{codes}",{fold},records500/00000/{number:05d}_hr,{stem}'
        )
        if there:
            write(folder / "records100/00000", name=Path(stem).name)
    (folder / "ptbxl_database.csv").write_text("\n".join(lines) + "\n")
    return open_corpus("ptbxl", folder)


ROWS = [
    (10, 7, {"NDT": 0.0, "SR": 0.0, "CLBBB": 100.0}, 9, True),
    (2, 15709, {"NORM": 80.0, "XYZ": 10.0}, 8, True),
    (3, 5, {"SR": 0.0}, 1, True),
    (4, 6, {"NORM": 100.0}, 10, False),
]


def test_ptbxl_labels_splits_and_missing_files(tmp_path):
    corpus = small_ptbxl(tmp_path, ROWS)
    assert corpus.tasks == {
        "super": ("CD", "NORM", "STTC"),
        "sub": ("CLBBB", "NORM", "STTC"),
        "form": ("NDT",),
        "rhythm": ("SR",),
        "diag": ("CLBBB", "NDT", "NORM"),
        "all71": ("CLBBB", "NDT", "NORM", "SR"),
    }
    assert corpus.missing == 1 and corpus.split_rule == "folds 1-7 train, 8 validation, 9 test"
    normal = {task: ["NORM"] for task in ("super", "sub", "diag", "all71")}
    assert [(r.record_id, r.patient_id, r.split, r.labels) for r in corpus.refs] == [
        ("2", "15709", "validation", normal),
        ("3", "5", "train", {"rhythm": ["SR"], "all71": ["SR"]}),
        (
            "10",
            "7",
            "test",
            {
                "super": ["CD", "STTC"],
                "sub": ["CLBBB", "STTC"],
                "form": ["NDT"],
                "rhythm": ["SR"],
                "diag": ["CLBBB", "NDT"],
                "all71": ["CLBBB", "NDT", "SR"],
            },
        ),
    ]
    assert corpus.load(corpus.refs[0]).signal.shape == (200, 3)


def test_ptbxl_uses_the_published_folds_once_fold_10_is_there(tmp_path):
    corpus = small_ptbxl(tmp_path, [(*row[:4], True) for row in ROWS])
    assert corpus.split_rule == "folds 1-8 train, 9 validation, 10 test" and corpus.missing == 0
    assert [ref.split for ref in corpus.refs] == ["train", "train", "test", "validation"]


def test_ptbxl_statements_go_by_column_name(tmp_path):
    expected = small_ptbxl(tmp_path, ROWS)
    table = [line.replace('"T, odd"', "T").split(",") for line in STATEMENTS.splitlines()]
    (tmp_path / "scp_statements.csv").write_text(
        "\n".join(",".join(row[i] for i in (5, 3, 6, 0, 4, 2, 1)) for row in table)
    )
    corpus = open_corpus("ptbxl", tmp_path)
    assert corpus.tasks == expected.tasks and [r.labels for r in corpus.refs] == [
        r.labels for r in expected.refs
    ]


def test_ptbxl_at_500_hz_by_option_or_where_only_that_is_there(tmp_path):
    small_ptbxl(tmp_path, ROWS)
    with pytest.raises(InputError, match=r"in .*records500: is the set unpacked there"):
        open_corpus("ptbxl", tmp_path, {"rate": "500"})
    (tmp_path / "records500/00000").mkdir(parents=True)
    write(tmp_path / "records500/00000", name="00003_hr", adc=np.ones((1000, 3)))
    corpus = open_corpus("ptbxl", tmp_path, {"rate": "500"})
    assert [ref.record_id for ref in corpus.refs] == ["3"] and corpus.load(
        corpus.refs[0]
    ).signal.shape == (1000, 3)
    assert len(open_corpus("ptbxl", tmp_path).refs) == 3  # 100 Hz first
    shutil.rmtree(tmp_path / "records100")
    assert [ref.record_id for ref in open_corpus("ptbxl", tmp_path).refs] == ["3"]
    with pytest.raises(InputError, match="rate 100 and 500, not '250'"):
        open_corpus("ptbxl", tmp_path, {"rate": "250"})


def test_ptbxl_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="row of ecg_id 3"):
        small_ptbxl(tmp_path, [(3, 5, "{'SR': ", 1, True)])
    shutil.rmtree(tmp_path / "records100")
    with pytest.raises(InputError, match=r"no record of ptbxl_database\.csv"):
        open_corpus("ptbxl", tmp_path)


@needs_real
def test_ptbxl_has_the_published_number_of_rows_and_classes():
    corpus = open_corpus("ptbxl", real("ptbxl"))
    fold_10 = corpus.split_rule.endswith("10 test")
    assert {task: len(names) for task, names in corpus.tasks.items()} == {
        "super": 5,
        "sub": 23,
        "form": 19,
        "rhythm": 12,
        "diag": 44,
        "all71": 71,
    }
    published = {
        "super": (17084, 2146, 2158),
        "sub": (17084, 2146, 2158),
        "form": (7197, 901, 880),
        "rhythm": (16832, 2100, 2098),
        "diag": (17084, 2146, 2158),
    }
    for task, (train, validation, test) in published.items():
        rows = Counter(ref.split for ref in corpus.refs if task in ref.labels)
        if fold_10:
            assert (rows["train"], rows["validation"], rows["test"]) == (train, validation, test), (
                task
            )
        else:  # folds 1-8 are train and validation here, fold 9 is test
            assert (rows["train"] + rows["validation"], rows["test"]) == (train, validation), task
    splits = {}
    for ref in corpus.refs:
        splits.setdefault(ref.patient_id, set()).add(ref.split)
    assert max(map(len, splits.values())) == 1
    assert corpus.refs[0].record_id == "1" and corpus.refs[0].patient_id == "15709"
