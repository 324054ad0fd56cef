"""Corpora in their published layouts, written small: labels by code, patients, folds, lead order,
and known defects."""

import pickle

import numpy as np
import pytest
from helpers.raw_files import CSN_NAMES, csn, ecg, load, write_dat, write_mat

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.corpora.ludb import read_annotations
from data_prep.ecg.leads import LEADS, order_leads
from data_prep.ecg.preprocess import Preprocess

STORED = ("I", "II", "III", "aVR", "aVF", "aVL", "V1", "V2", "V3", "V4", "V5", "V6")  # MIMIC-IV-ECG


# ---- MIMIC-IV-ECG

STUDIES = [  # subject, study, codes, taken in a stay, fold
    # and near misses
    ("10000032", "40689238", "['E119', 'E15', 'N179', 'R6510', 'A4901', 'Z250']", "True", "0"),
    ("10000032", "44458630", "[]", "True", "0"),
    ("10000032", "49036311", "", "True", "0"),
    ("10000117", "45090959", "[]", "False", "18"),
    ("10000117", "48446569", "['N18.6', \"R65.21\"]", "True", "18"),
    ("10001401", "44780244", "['25000', '5859', '99591', 'Z9911']", "True", "19"),
    ("10001401", "48000001", "['E119']", "False", "19"),
    ("10001401", "48000000", None, None, None),
    ("10009999", "49000000", None, None, None),
    ("19999999", "41111111", "['E10']", "True", "3"),
]
TABLE_COLUMNS = "file_name,study_id,subject_id,all_diag_all,ecg_taken_in_ed_or_hosp,fold,strat_fold"


def mimic(folder, table=True, studies=STUDIES):
    lines, rows = ["subject_id,study_id,file_name,ecg_time,path"], [TABLE_COLUMNS]
    for number, (subject, study, codes, stay, fold) in enumerate(studies):
        path = f"files/p{subject[:4]}/p{subject}/s{study}/{study}"
        lines.append(f"{subject},{study},{study},2180-07-23 08:44:00,{path}")
        if codes is not None:
            rows.append(
                f'x/{path},{study},{subject},"{codes.replace(chr(34), chr(34) * 2)}"'
                f",{stay},7,{fold}"
            )
        if subject != "19999999":  # not downloaded
            signal = ecg(number)[:, [LEADS.index(lead) for lead in STORED]]
            if study == "44458630":
                signal[100:130, 3] = np.nan
                signal[:, 8] = 0
            write_dat(folder / path, signal, STORED, gain=200)
    (folder / "record_list.csv").write_text("\n".join(lines) + "\n")
    if table:
        (folder / "records_w_diag_icd10.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_mimic_labels_folds_and_patients(tmp_path):
    corpus = open_corpus("mimic", mimic(tmp_path))
    assert corpus.tasks == {"diabetes": ("diabetes",), "ckd": ("ckd",), "sepsis": ("sepsis",)}
    assert corpus.missing == 1 and corpus.split_rule == "folds 0-17 train, 18 validation, 19 test"
    positive = {
        ref.record_id: ref.labels and {task for task, names in ref.labels.items() if names}
        for ref in corpus.refs
    }
    assert positive == {
        "40689238": {"diabetes"},
        "44458630": set(),  # an empty list of codes: labelled, negative
        "49036311": {},  # no list: not labelled
        "45090959": {},  # outside any stay nobody codes
        "48446569": {"ckd", "sepsis"},
        "44780244": {"diabetes", "ckd", "sepsis"},  # ICD-9
        "48000001": {},  # outside any stay, though its list has a code
        "48000000": {},
        "49000000": {},
    }
    assert all(set(ref.labels) in (set(), {"diabetes", "ckd", "sepsis"}) for ref in corpus.refs)
    assert {ref.patient_id: ref.split for ref in corpus.refs} == {
        "10000032": "train",
        "10000117": "validation",
        "10001401": "test",  # its record without fold goes with it
        "10009999": None,
    }
    assert next(ref.split for ref in corpus.refs if ref.record_id == "48000000") == "test"
    assert "1 records without fold are split by a hash of the patient" in corpus.notes


def test_mimic_signal_by_name_with_nan_and_flat_lead(tmp_path):
    corpus = open_corpus("mimic", mimic(tmp_path, table=False))
    assert corpus.tasks == {} and all(ref.labels == {} and ref.split is None for ref in corpus.refs)
    record = load(corpus, "40689238")
    ordered, unknown = order_leads(record.signal, record.leads)
    assert record.leads == list(STORED) and not unknown and record.defects == []
    np.testing.assert_allclose(ordered.T, ecg(0), atol=0.003)  # aVL and aVF under their own names
    window = Preprocess().prepare(
        *(lambda r: (r.signal, r.rate, r.leads))(load(corpus, "44458630"))
    )[0]
    assert "nan:aVR:30" in window.defects and "flat:V3" in window.defects


def test_mimic_options_and_mistakes(tmp_path):
    mimic(tmp_path / "ecg")
    table = tmp_path / "ecg/records_w_diag_icd10.csv"
    table = table.rename(tmp_path / "labels.csv")
    assert open_corpus("mimic", tmp_path / "ecg").tasks == {}
    corpus = open_corpus("mimic", tmp_path / "ecg", {"labels": str(table), "fold": "fold"})
    # fold 7 for all
    assert corpus.refs[0].labels["diabetes"] == ["diabetes"] and corpus.refs[4].split == "train"
    with pytest.raises(InputError, match="no option 'label': it takes labels, codes, fold"):
        open_corpus("mimic", tmp_path / "ecg", {"label": str(table)})
    with pytest.raises(InputError, match="no column 'all_diag'"):
        open_corpus("mimic", tmp_path / "ecg", {"labels": str(table), "codes": "all_diag"})
    text = table.read_text()
    for old, new, reason in [
        (
            "['E119', 'E15', 'N179', 'R6510', 'A4901', 'Z250']",
            "E119",
            "line 2: study_id 40689238 has 'E119' for a list of codes",
        ),
        (",7,18", ",7,20", "line 5: fold '20' is not 0 to 19"),
    ]:
        table.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=reason):
            open_corpus("mimic", tmp_path / "ecg", {"labels": str(table)})
    table.write_text(text.replace("True,7,0", "True,7,19", 1))
    with pytest.raises(InputError, match="patient 10000032 is in test and train"):
        open_corpus("mimic", tmp_path / "ecg", {"labels": str(table)})


# ---- CPSC 2018


def test_cpsc_challenge_files(tmp_path):
    for name, seed, dx, seconds in [
        ("A0003", 3, "59118001,164884008", 6),
        ("A0001", 1, "426783006", 25),
    ]:
        write_mat(tmp_path / "g1" / name, ecg(seed, seconds), dx)
    write_mat(tmp_path / "g2/A0002", ecg(3, 6), "59118001, 999, 164884008")  # the signal of A0003
    write_mat(tmp_path / "g2/A0004", ecg(4, 6), None)
    corpus = open_corpus("cpsc2018", tmp_path)
    assert corpus.tasks["diagnosis"] == (
        "NORM",
        "AF",
        "1AVB",
        "LBBB",
        "RBBB",
        "PAC",
        "PVC",
        "STD",
        "STE",
    )
    assert [(r.record_id, r.patient_id, r.labels) for r in corpus.refs] == [
        ("A0001", "A0001", {"diagnosis": ["NORM"]}),
        ("A0002", "A0002", {"diagnosis": ["PVC", "RBBB"]}),
        ("A0003", "A0002", {"diagnosis": ["PVC", "RBBB"]}),
        ("A0004", "A0004", {}),
    ]
    assert corpus.unknown_codes == {"999": 1} and corpus.duplicates == {"A0003": "A0002"}
    assert corpus.notes == ["1 headers have no #Dx line: A0004"]
    record = load(pickle.loads(pickle.dumps(corpus)), "A0001")
    assert record.signal.shape == (12500, 12) and record.info == {
        "age": "60",
        "sex": "Male",
        "dx": "426783006",
    }
    np.testing.assert_allclose(record.signal, ecg(1, 25), atol=6e-4)


def cpsc_original(folder, references="A0001,5,1,\nA0002,2,,\nA0009,9,,\n"):
    import scipy.io

    for name, place in (("A0001", 1), ("A0002", 2)):
        (folder / f"TrainingSet{place}").mkdir(exist_ok=True)
        struct = {"sex": "Male", "age": np.array([[74.0]]), "data": ecg(place, 7).T}
        scipy.io.savemat(folder / f"TrainingSet{place}/{name}.mat", {"ECG": struct})
    text = "Recording,First_label,Second_label,Third_label\n" + references
    (folder / "TrainingSet2/REFERENCE.csv").write_text(text)
    return open_corpus("cpsc2018", folder)


def test_cpsc_original_structs(tmp_path):
    corpus = cpsc_original(tmp_path)
    assert [(r.record_id, r.labels["diagnosis"]) for r in corpus.refs] == [
        ("A0001", ["NORM", "RBBB"]),
        ("A0002", ["AF"]),
    ]
    assert corpus.missing == 1
    record = load(corpus, "A0002")
    assert (
        record.rate == 500
        and record.leads == list(LEADS)
        and record.info == {"sex": "Male", "age": "74.0"}
    )
    np.testing.assert_allclose(record.signal, ecg(2, 7), atol=1e-6)
    with pytest.raises(InputError, match="record A0001 has label '12', not 1 to 9"):
        cpsc_original(tmp_path, "A0001,12,,\n")
    (tmp_path / "TrainingSet2/A0002.mat").write_bytes(
        (tmp_path / "TrainingSet2/A0002.mat").read_bytes()[:900]
    )
    with pytest.raises(InputError, match="record A0002: .*A0002.mat"):
        load(corpus, "A0002")


def test_cpsc_original_duplicates_stay_together(tmp_path):
    corpus = cpsc_original(tmp_path)
    assert corpus.duplicates == {}
    data = (tmp_path / "TrainingSet1/A0001.mat").read_bytes()
    (tmp_path / "TrainingSet2/A0002.mat").write_bytes(data[:60] + b"another date" + data[72:])
    assert [r.patient_id for r in open_corpus("cpsc2018", tmp_path).refs] == ["A0001", "A0001"]


# ---- CSN


def test_csn_labels_by_exact_code(tmp_path):
    corpus = csn(
        tmp_path, JS2="426177001,,55827005,", JS1="233917008,164909002", JS3="1115700,2339170081"
    )
    assert corpus.tasks == {"diagnosis": ("VB", "AVB", "LBBB", "SB")}
    assert {r.record_id: r.labels["diagnosis"] for r in corpus.refs} == {
        "JS1": ["AVB", "LBBB"],  # 'VB' is part of the name, not of the record
        "JS2": ["SB"],
        "JS3": [],  # parts of codes are not codes
    }
    assert corpus.unknown_codes == {"1115700": 1, "2339170081": 1, "55827005": 1}


def test_csn_rhythms_of_the_chapman_part(tmp_path):
    dx = {"JS00001": "426177001,164909002", "JS10646": "233917008", "JS10647": "426177001"}
    csn(tmp_path, **dx)
    write_mat(tmp_path / "WFDBRecords/JS00007", ecg(7), "17366009,55827005")
    corpus = open_corpus("csn", tmp_path, {"part": "chapman"})
    assert len(corpus.tasks["rhythm"]) == 11 and "rhythm" not in open_corpus("csn", tmp_path).tasks
    assert {ref.record_id: ref.labels for ref in corpus.refs} == {
        "JS00001": {"diagnosis": ["LBBB", "SB"], "rhythm": ["SB"]},
        "JS00007": {"diagnosis": [], "rhythm": ["SAAWR"]},  # a code that the table does not have
        "JS10646": {"diagnosis": ["AVB"]},
    }
    assert corpus.unknown_codes == {"55827005": 1}
    with pytest.raises(InputError, match="the parts all and chapman, not 'ningbo'"):
        open_corpus("csn", tmp_path, {"part": "ningbo"})


def test_csn_broken_header_is_repaired_from_the_mat(tmp_path):
    corpus = csn(tmp_path, JS01052="426177001", JS2="426177001", JS3="426177001")
    stem = tmp_path / "WFDBRecords/01/019/JS01052"
    whole = load(corpus, "JS01052")
    header = stem.with_suffix(".hea").read_bytes()
    stem.with_suffix(".hea").write_bytes(
        header.replace(b" 5000\r\nJS01052.mat", b" 5000JS01052.mat", 1)
    )
    corpus = open_corpus("csn", tmp_path)
    record = load(corpus, "JS01052")
    assert (
        record.defects == ["header_repaired"]
        and record.labels == {"diagnosis": ["SB"]}
        and record.rate == 500
    )
    assert record.leads == whole.leads and record.info == whole.info
    np.testing.assert_array_equal(record.signal, whole.signal)
    swapped = header.replace(b" V5", b" V9").replace(b" V6", b" V5").replace(b" V9", b" V6")
    stem.with_suffix(".hea").write_bytes(
        swapped.replace(b" 5000\r\nJS01052.mat", b" 5000JS01052.mat", 1)
    )
    with pytest.raises(InputError, match="record JS01052: .* does not name its leads"):
        load(corpus, "JS01052")
    stem.with_suffix(".hea").write_bytes(
        header.replace(b" 5000\r\nJS01052.mat", b" 5000JS01052.mat", 1)
    )
    data = stem.with_suffix(".mat").read_bytes()
    stem.with_suffix(".mat").write_bytes(data[:24] + bytes([data[24] ^ 1]) + data[25:])
    with pytest.raises(InputError, match="record JS01052: .* the checksum of I is wrong"):
        load(corpus, "JS01052")


def test_csn_truncated_mat_and_nan_lead(tmp_path):
    corpus = csn(tmp_path, JS11852="426177001", JS2="426177001")
    path = tmp_path / "WFDBRecords/01/019/JS11852.mat"
    path.write_bytes(path.read_bytes()[:60_000])
    with pytest.raises(
        InputError, match=r"^record JS11852: JS11852.mat is truncated: 2499 of 5000 samples$"
    ):
        load(corpus, "JS11852")
    signal = ecg(1)
    signal[:, 7] = np.nan
    write_mat(tmp_path / "WFDBRecords/01/019/JS2", signal, "426177001")
    assert np.isnan(load(corpus, "JS2").signal).all(axis=0).tolist() == [
        lead == "V2" for lead in LEADS
    ]


def test_mistakes_of_the_tables_are_named(tmp_path):
    for name, reason in [
        ("csn", "ConditionNames"),
        ("cpsc2018", "nor REFERENCE.csv"),
        ("mimic", "record_list.csv"),
    ]:
        with pytest.raises(InputError, match=reason):
            open_corpus(name, tmp_path)
    for name in ("ptb", "ludb"):
        with pytest.raises(InputError, match="no WFDB header"):
            open_corpus(name, tmp_path)
    with pytest.raises(InputError, match="records.csv"):
        open_corpus("arrays", tmp_path)
    csn(tmp_path, JS1="426177001")
    (tmp_path / "ConditionNames_SNOMED-CT.csv").write_text("Acronym Name,Snomed_CT\nSB,4261 7\n")
    with pytest.raises(
        InputError, match="line 2: 'SB' has the code '4261 7', which is no SNOMED code"
    ):
        open_corpus("csn", tmp_path)
    write_mat(tmp_path / "WFDBRecords/02/JS1", ecg(0), "426177001")
    (tmp_path / "ConditionNames_SNOMED-CT.csv").write_text(CSN_NAMES, encoding="utf-8")
    with pytest.raises(InputError, match="record JS1 is there twice"):
        open_corpus("csn", tmp_path)


# ---- PTB and LUDB


def test_ptb_frank_leads_patients_and_reasons(tmp_path):
    leads = [lead.lower() for lead in LEADS]
    reasons = {"patient001/s0010_re": "Myocardial infarction", "patient001/s0014lre": "n/a"}
    reasons |= {"patient002/s0015lre": "Heart failure (NYHA 3)", "patient003/s0020are": "Gout"}
    for seed, (name, reason) in enumerate(reasons.items()):
        write_dat(
            tmp_path / name,
            ecg(seed),
            leads,
            comments=["# age: 81", f"# Reason for admission: {reason}"],
        )
    stem = tmp_path / "patient001/s0010_re"
    lines = stem.with_suffix(".hea").read_text().splitlines()
    frank = [f"{stem.name}.xyz 16 2000 16 0 0 0 0 {name}" for name in ("vx", "vy", "vz")]
    lines = [lines[0].replace(" 12 ", " 15 "), *lines[1:13], *frank, *lines[13:]]
    stem.with_suffix(".hea").write_text("\n".join(lines))
    stem.with_suffix(".xyz").write_bytes(np.arange(15000, dtype="<i2").tobytes())
    corpus = open_corpus("ptb", tmp_path)
    assert {r.record_id: (r.patient_id, r.labels) for r in corpus.refs} == {
        "s0010_re": ("patient001", {"diagnosis": ["Myocardial infarction"]}),
        "s0014lre": ("patient001", {}),
        "s0015lre": ("patient002", {"diagnosis": ["Heart failure"]}),
        "s0020are": ("patient003", {"diagnosis": []}),
    }
    assert corpus.unknown_codes == {"Gout": 1}
    record = load(corpus, "s0010_re")
    assert record.leads == [*leads, "vx", "vy", "vz"] and record.info["age"] == "81"
    np.testing.assert_allclose(
        record.signal[:, 12:], np.arange(15000).reshape(5000, 3) / 2000, rtol=1e-6
    )
    write_dat(tmp_path / "loose/s1", ecg(9))
    with pytest.raises(InputError, match="record s1: its folder .* is not named after a patient"):
        open_corpus("ptb", tmp_path)


def test_ludb_waves_and_labels(tmp_path):
    write_dat(tmp_path / "data/2", ecg(0), [lead.lower() for lead in LEADS])
    write_dat(tmp_path / "data/10", ecg(1), [lead.lower() for lead in LEADS])
    words = [(39, 600), (24, 20), (40, 30), (1, 50), (40, 12), "skip", (39, 5), (27, 40), (40, 60)]
    data = b"".join(
        np.array([59 << 10, 0, 2000], "<u2").tobytes()
        if word == "skip"
        else np.uint16(word[0] << 10 | word[1]).tobytes()
        for word in words
    )
    for lead in LEADS:
        (tmp_path / f"data/2.{lead.lower()}").write_bytes(data + b"\0\0")
    (tmp_path / "ludb.csv").write_text(
        "ID,Sex,Rhythms,Electric axis of the heart\n"
        '2,"M\n","Sinus rhythm\nWandering atrial pacemaker",Electric axis of the heart: vertical\n'
        "10,F,Sinus gallop,\n"
    )
    corpus = open_corpus("ludb", tmp_path)
    assert [(r.record_id, r.labels) for r in corpus.refs] == [
        ("2", {"rhythm": ["Sinus rhythm", "Wandering atrial pacemaker"], "axis": ["vertical"]}),
        ("10", {"rhythm": []}),
    ]
    assert corpus.unknown_codes == {"Sinus gallop": 1}
    record = load(corpus, "2")
    assert set(record.annotations) == set(LEADS)
    waves = {wave: rows.tolist() for wave, rows in record.annotations["aVF"].items()}
    assert waves == {"P": [[600, 620, 650]], "QRS": [[-1, 700, 712]], "T": [[2717, 2757, 2817]]}
    assert (
        load(corpus, "10").annotations == {} and "not_annotated:aVL" in load(corpus, "10").defects
    )
    (tmp_path / "data/2.v1").write_bytes(data)
    with pytest.raises(InputError, match=r"record 2: 2.v1 is truncated"):
        read_annotations(tmp_path / "data/2.v1", "2")


def test_a_holter_record_with_eight_leads_is_read(tmp_path):
    some = ["II", "V1", "V2", "V3", "V4", "V5", "V6", "I"]
    write_dat(tmp_path / "holter", ecg(0)[:, [LEADS.index(lead) for lead in some]], some)
    corpus = open_corpus("wfdb", tmp_path)
    record = corpus.load(corpus.refs[0])
    assert record.leads == some and record.signal.shape == (5000, 8)
    window = Preprocess().prepare(record.signal, record.rate, record.leads)[0]
    # the limb leads follow from two
    assert window.lead_mask == 0b111111111111 and "recovered:aVF" in window.defects
