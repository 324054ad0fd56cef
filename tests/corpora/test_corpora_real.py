"""The real sets: what the readers list and label equals what plain text searches of the raw files
find."""

import csv
import os
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep.corpora.corpus import open_corpus
from data_prep.corpora.ludb import OFFSET, ONSET, WAVES, read_annotations
from data_prep.ecg.leads import LEADS, order_leads
from data_prep.formats.wfdb_files import quiet_wfdb

pytestmark = pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ,
    reason="needs LVCG_REAL_DATA: a folder with ptbxl, ptb, csn, cpsc2018, ludb",
)


def real(name):
    return Path(os.environ["LVCG_REAL_DATA"]) / name


def texts(name):
    return {path.stem: path.read_text(encoding="latin-1") for path in real(name).rglob("*.hea")}


def positives(corpus, task):
    return Counter(name for ref in corpus.refs for name in ref.labels.get(task, ()))


@pytest.mark.parametrize(
    "name, rate, leads",
    [("csn", 500, 12), ("cpsc2018", 500, 12), ("ptb", 1000, 15), ("ludb", 500, 12)],
)
def test_every_record_has_the_rate_length_and_first_samples_of_its_header(name, rate, leads):
    corpus, headers = open_corpus(name, real(name)), texts(name)
    assert {ref.record_id for ref in corpus.refs} == set(headers) and len(corpus.refs) == len(
        headers
    )
    for ref in corpus.refs[::7]:
        record, text = corpus.load(ref), headers[ref.record_id]
        stated = re.match(r"\S+ (\d+) (\d+) (\d+)", text)
        assert tuple(map(int, stated.groups())) == (leads, rate, len(record.signal)), ref
        assert record.rate == rate and record.signal.shape[1] == leads
        assert not any(defect.startswith("checksum") for defect in record.defects), ref
        for column, line in enumerate(re.findall(r"^\w\S+ 16.*$", text, re.MULTILINE)):
            gain, zero, first, lead = re.match(
                r"\S+ \S+ (\d+)(\(-?\d+\))?\S* \d+ \d+ (-?\d+) \S+ \d+ (\w+)", line
            ).groups()
            value = (int(first) - int((zero or "(0)")[1:-1])) / int(gain)
            assert record.leads[column] == lead
            if int(first) != -32768:
                assert record.signal[0, column] == pytest.approx(value, abs=1e-5), (ref, lead)


@pytest.mark.parametrize("name", ["ptbxl", "csn", "cpsc2018", "ptb"])
def test_avl_and_avf_are_under_their_own_names(name):
    corpus = open_corpus(name, real(name))
    right = wrong = 0
    for ref in corpus.refs[:: max(1, len(corpus.refs) // 25)]:
        record = corpus.load(ref)
        x = dict(zip(LEADS, order_leads(record.signal, record.leads)[0], strict=True))
        left, foot = x["I"] - x["II"] / 2, x["II"] - x["I"] / 2
        spread = {lead: np.nanstd(x[lead]) for lead in ("aVL", "aVF")}
        if min(spread.values()) > 0.01 and np.nanstd(left - foot) > 0.05:
            right += np.nanstd(x["aVL"] - left) + np.nanstd(x["aVF"] - foot) < 0.05
            wrong += np.nanstd(x["aVL"] - foot) + np.nanstd(x["aVF"] - left) < 0.05
    assert right >= 15 and wrong == 0


# ---- PTB-XL


def ptbxl_table():
    """(fold, codes) of every record and code -> row of the statements, by regular expressions."""
    with open(real("ptbxl") / "ptbxl_database.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(real("ptbxl") / "scp_statements.csv", newline="", encoding="utf-8") as file:
        statements = {row[""]: row for row in csv.DictReader(file)}
    return {
        row["ecg_id"]: (int(row["strat_fold"]), re.findall(r"'([^']+)':", row["scp_codes"]))
        for row in rows
    }, statements


def test_ptbxl_positives_per_class_and_fold():
    corpus = open_corpus("ptbxl", real("ptbxl"))
    table, statements = ptbxl_table()
    columns = {
        "super": ("diagnostic", "diagnostic_class"),
        "sub": ("diagnostic", "diagnostic_subclass"),
    }
    columns |= {"form": ("form", ""), "rhythm": ("rhythm", ""), "diag": ("diagnostic", "")}
    columns["all71"] = ("every", "")
    for row in statements.values():
        row["every"] = "1.0"
    counts = {task: len(names) for task, names in corpus.tasks.items()}
    assert counts == dict(super=5, sub=23, form=19, rhythm=12, diag=44, all71=71)
    assert len(corpus.refs) == len(table) - corpus.missing and corpus.unknown_codes == {}
    for task, (flag, column) in columns.items():
        expected, found = Counter(), Counter()
        for ref in corpus.refs:
            fold, codes = table[ref.record_id]
            names = {statements[code][column] for code in codes if statements[code][flag] == "1.0"}
            expected.update((fold, name) for name in names)
            found.update((fold, name) for name in ref.labels.get(task, ()))
            assert (task in ref.labels) == bool(names)
        assert found == expected and len({name for _, name in found}) == len(corpus.tasks[task]), (
            task
        )


def test_ptbxl_super_classes_have_the_published_numbers():
    found = positives(open_corpus("ptbxl", real("ptbxl")), "super")
    published = {"NORM": 9514, "MI": 5469, "STTC": 5235, "CD": 4898, "HYP": 2649}
    fold_10 = {"NORM": 963, "MI": 550, "STTC": 521, "CD": 496, "HYP": 262}
    without = {name: published[name] - fold_10[name] for name in published}
    assert dict(found) in (published, without)


def test_ptbxl_labels_go_by_name_not_by_column(tmp_path):
    """The same tables with columns and rows in another order give the same labels."""
    corpus = open_corpus("ptbxl", real("ptbxl"))
    for name in ("ptbxl_database.csv", "scp_statements.csv"):
        with open(real("ptbxl") / name, newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        order = np.random.default_rng(0).permutation(len(header))
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([row[i] for i in order] for row in [header, *rows[::-1]])
    (tmp_path / "records100").symlink_to(real("ptbxl") / "records100")
    mixed = open_corpus("ptbxl", tmp_path)
    assert mixed.tasks == corpus.tasks and mixed.split_rule == corpus.split_rule
    ours = [(r.record_id, r.patient_id, r.split, r.labels) for r in corpus.refs]
    assert [(r.record_id, r.patient_id, r.split, r.labels) for r in mixed.refs] == ours


def test_reading_a_ptbxl_record_takes_little_time():
    corpus = open_corpus("ptbxl", real("ptbxl"))
    for ref in corpus.refs[:200]:
        corpus.load(ref)
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        for ref in corpus.refs[:200]:
            corpus.load(ref)
        best = min(best, (time.process_time() - start) / 200)
    assert best < 1e-3  # CPU seconds; 0.2e-3 on an idle core


# ---- the sets with codes in their headers


def test_cpsc_labels_equal_a_search_for_the_codes():
    corpus, headers = open_corpus("cpsc2018", real("cpsc2018")), texts("cpsc2018")
    codes = {
        "NORM": "426783006",
        "AF": "164889003",
        "1AVB": "270492004",
        "LBBB": "164909002",
        "RBBB": "59118001",
        "PAC": "284470004",
        "PVC": "164884008",
        "STD": "429622005",
        "STE": "164931005",
    }
    assert set(corpus.tasks["diagnosis"]) == set(codes) and corpus.unknown_codes == {}
    expected = {
        name: sum(bool(re.search(rf"Dx.*\b{code}\b", text)) for text in headers.values())
        for name, code in codes.items()
    }
    assert dict(positives(corpus, "diagnosis")) == expected
    seconds = [int(re.match(r"\S+ 12 500 (\d+)", text)[1]) / 500 for text in headers.values()]
    assert min(seconds) >= 6 and max(seconds) <= 144 and max(seconds) > 20


def test_csn_labels_equal_a_search_for_the_codes():
    corpus, headers = open_corpus("csn", real("csn")), texts("csn")
    with open(
        real("csn") / "ConditionNames_SNOMED-CT.csv", newline="", encoding="utf-8-sig"
    ) as file:
        rows = list(csv.DictReader(file))
    names = {}
    for row in rows:
        names.setdefault(row["Snomed_CT"], row["Acronym Name"])
    assert corpus.tasks["diagnosis"] == tuple(names.values())
    counts = Counter(
        code
        for text in headers.values()
        for code in set(re.findall(r"\d+", re.search(r"Dx:(.*)", text)[1]))
    )
    known = {names[code]: count for code, count in counts.items() if code in names}
    assert dict(positives(corpus, "diagnosis")) == known
    assert corpus.unknown_codes == {
        code: count for code, count in counts.items() if code not in names
    }
    assert b"\r\n" in next(real("csn").rglob("*.hea")).read_bytes()


def test_ptb_reasons_and_patients():
    corpus, headers = open_corpus("ptb", real("ptb")), texts("ptb")
    reasons = Counter(
        re.search(r"Reason for admission: *(.*?) *$", text, re.MULTILINE)[1]
        for text in headers.values()
    )
    unlabelled = reasons.pop("n/a")
    assert dict(positives(corpus, "diagnosis")) == dict(reasons)
    assert sum("diagnosis" not in ref.labels for ref in corpus.refs) == unlabelled
    folders = {path.stem: path.parent.name for path in real("ptb").rglob("*.hea")}
    assert {ref.record_id: ref.patient_id for ref in corpus.refs} == folders
    record = corpus.load(corpus.refs[0])
    assert (
        record.leads[12:] == ["vx", "vy", "vz"]
        and np.ptp(record.signal[:, 12:], axis=0).min() > 0.1
    )


# ---- LUDB


def test_ludb_labels_equal_the_headers():
    corpus, headers = open_corpus("ludb", real("ludb")), texts("ludb")
    for task, title in (("rhythm", "Rhythm"), ("axis", "Electric axis of the heart")):
        stated = {
            key: re.search(rf"^#{title}: *(.*?)\. *$", text, re.MULTILINE)
            for key, text in headers.items()
        }
        agree = sum(
            bool(stated[ref.record_id]) and stated[ref.record_id][1] in ref.labels.get(task, ())
            for ref in corpus.refs
        )
        # a few differ in the set itself
        assert agree >= 0.95 * sum(task in ref.labels for ref in corpus.refs), task


def test_ludb_waves_equal_those_of_the_wfdb_package():
    corpus = open_corpus("ludb", real("ludb"))
    symbols = {"(": ONSET, ")": OFFSET, "p": 24, "N": 1, "t": 27}
    for ref in corpus.refs[::6]:
        record = corpus.load(ref)
        assert set(record.annotations) == set(LEADS)
        for lead in ("I", "aVL", "V4"):
            with quiet_wfdb() as wfdb:
                truth = wfdb.rdann(ref.path, lead.lower())
            ours = read_annotations(Path(f"{ref.path}.{lead.lower()}"), ref.record_id)
            codes = [symbols[symbol] for symbol in truth.symbol]
            assert ours == list(zip(truth.sample.tolist(), codes, strict=True)), (ref, lead)
            for code, wave in WAVES.items():
                rows = record.annotations[lead][wave]
                assert rows[:, 1].tolist() == truth.sample[np.array(codes) == code].tolist()
                whole = rows[(rows >= 0).all(axis=1)]
                assert len(whole) >= 0.9 * len(rows) and (np.diff(whole, axis=1) > 0).all()
