"""`lvcg statistics`: the numbers of the table are those of the shards."""

import json

import numpy as np
import pytest
from helpers.builds import ecg, quiet_build, write_wfdb

from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.statistics import class_tables, overview
from data_prep.ecg.leads import LEADS
from data_prep.statistics import main


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Five records of four patients; one lacks V1, one lasts 20 s, and one is dropped."""
    folder = tmp_path_factory.mktemp("statistics")
    (folder / "raw").mkdir()
    for i in range(5):
        signal = ecg(i, seconds=20 if i == 4 else 10)
        if i == 3:
            signal[:, LEADS.index("V1")] = -32768
        write_wfdb(folder / "raw", f"r{i}", signal)
    write_wfdb(folder / "raw", "flat", np.full((1000, 12), 7))
    lines = ["r0,a,train,AF", "r1,a,train,SR", "r2,b,validation,SR", "r3,c,test,AF|x;SR"]
    lines += ["r4,d,train,", "flat,e,train,SR"]
    table = "\n".join(["record_id,patient_id,split,rhythm", *lines]) + "\n"
    (folder / "raw" / "labels.csv").write_text(table)
    quiet_build(open_corpus("wfdb", folder / "raw"), folder / "out")
    return folder / "out"


def test_a_data_set_in_one_row(built):
    row = overview(built)
    assert row[:5] == ("wfdb", "5", "4", "train 3, validation 1, test 1", "rhythm 3")
    assert row[5] == "100" and row[6] == "10 / 10 / 20" and row[8] == "1 (V1 1)"
    low, _, high = (float(word) for word in row[7].split(" / "))
    assert 5 < low < high < 30


def test_classes_by_split_and_in_all(built, tmp_path, capsys):
    metadata = json.loads((built / "dataset.json").read_text())
    title, table = class_tables(metadata)
    assert title == "**wfdb, rhythm** (3 classes)"
    assert table.splitlines() == [
        "| class | train | validation | test | all |",
        "| --- | --- | --- | --- | --- |",
        "| labelled | 3 | 1 | 1 | 5 |",
        "| AF | 1 | 0 | 0 | 1 |",
        "| AF\\|x | 0 | 0 | 1 | 1 |",
        "| SR | 1 | 1 | 1 | 3 |",
    ]
    assert main([f"--data={built}", f"--data={built}", f"--out={tmp_path / 'a/b.md'}"]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "a/b.md").read_text() == text and text.count(table) == 2


def test_data_sets_that_do_not_say_how_they_were_recorded(built, tmp_path):
    for name in ("dataset.json", "ledger.csv"):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    metadata = json.loads((tmp_path / "dataset.json").read_text())
    del metadata["recorded"]
    (tmp_path / "dataset.json").write_text(json.dumps(metadata))
    assert overview(tmp_path)[5:7] == ("not noted", "not noted")
