"""A user's split CSV: joined by column name, unknown ids reported, no patient and no signal in two
splits."""

import numpy as np
import pytest
from helpers.builds import ledger_of, write_wfdb
from helpers.raw_files import csn, ecg, load, write_mat

from data_prep.base.errors import InputError
from data_prep.build import main
from data_prep.corpora.corpus import apply_splits, open_corpus
from data_prep.dataset.checks import verify
from data_prep.dataset.shards import ShardSet, read_metadata


def test_splits_join_by_name_and_report_unknown_ids(tmp_path):
    corpus = csn(tmp_path, JS1="", JS2="", JS3="")
    path = tmp_path / "splits.csv"
    path.write_text("split,note,record_id\ntest,x,JS2\ntrain,y,JS1\ntrain,,JS77\n")
    changed = apply_splits(corpus, path)
    assert [(r.record_id, r.split) for r in changed.refs] == [("JS1", "train"), ("JS2", "test")]
    assert changed.notes[-2:] == [
        "splits.csv names 1 record_id that the raw folder does not have (train 1 of 2): JS77",
        "1 records are not in splits.csv and were left out",
    ]
    assert load(changed, "JS2").split == "test" and [r.split for r in corpus.refs] == [None] * 3
    path.write_text("patient_id,split\nJS1,train\nJS2,test\nJS3,validation\n")
    assert [r.split for r in apply_splits(corpus, path).refs] == ["train", "test", "validation"]
    assert apply_splits(corpus, path).split_rule == "patient_id in splits.csv"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("id,split\nJS1,train\n", "needs a column record_id or patient_id"),
        ("record_id,fold\nJS1,1\n", "no column 'split'"),
        ("record_id,split\nJS1,val\n", "line 2: split 'val'; choose from train, validation, test"),
        ("record_id,split\nJS1,train\nJS1,test\n", "line 3: record_id JS1 has two splits"),
        ("record_id,split\nX1,train\nX2,test\n", "no record_id of it is in the corpus csn: X1, X2"),
    ],
)
def test_mistakes_in_splits_are_named(tmp_path, text, reason):
    csn(tmp_path, JS1="", JS3="")
    (tmp_path / "splits.csv").write_text(text)
    with pytest.raises(InputError, match=reason) as error:
        apply_splits(open_corpus("csn", tmp_path), tmp_path / "splits.csv")
    assert "splits.csv" in str(error.value) and "\n" not in str(error.value)


def test_patient_in_two_splits_is_refused(tmp_path):
    for name in ("r1", "r2"):
        write_wfdb(tmp_path, name, np.zeros((1000, 12), int))
    (tmp_path / "labels.csv").write_text("record_id,patient_id\nr1,p\nr2,p\n")
    (tmp_path / "splits.csv").write_text("record_id,split\nr1,train\nr2,test\n")
    with pytest.raises(InputError, match="patient p is in train and test .r1, r2."):
        apply_splits(open_corpus("wfdb", tmp_path), tmp_path / "splits.csv")


# A published split of CPSC 2018 by record: signal 0 is in all three splits, signal 1 in training
# and validation, signal 2 twice in training, the others once.
COPIES = {
    "A0001": (0, "train"),
    "A0002": (0, "validation"),
    "A0003": (0, "test"),
    "A0004": (1, "train"),
    "A0005": (1, "validation"),
    "A0006": (2, "train"),
    "A0007": (2, "train"),
    "A0008": (3, "test"),
}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """CPSC 2018 with copied records, and its split as files of the two kinds."""
    folder = tmp_path_factory.mktemp("copies")
    for name, (seed, _) in COPIES.items():
        write_mat(folder / "raw" / name, ecg(seed, 6), "426783006")
    lines = [f"{name},{split}" for name, (_, split) in COPIES.items()]
    (folder / "splits.csv").write_text("\n".join(["record_id,split", *lines]) + "\n")
    (folder / "published").mkdir()
    for split, end in (("train", "train"), ("validation", "val"), ("test", "test")):
        rows = [f"7,{name},0" for name, (_, of) in COPIES.items() if of == split]
        path = folder / "published" / f"icbeb_{end}.csv"
        path.write_text("\n".join(["patient_id,filename,AFIB", *rows]) + "\n")
    return folder


def build_copies(copies, out, splits, *flags):
    where = [f"--raw={copies / 'raw'}", f"--out={out}", f"--splits={copies / splits}"]
    assert main(["--corpus=cpsc2018", *where, *flags]) == 0
    return read_metadata(out), ledger_of(out)


@pytest.mark.parametrize("splits", ["splits.csv", "published"])
def test_copies_in_two_splits_stay_where_they_are_closest_to_testing(
    copies, tmp_path, capsys, splits
):
    metadata, ledger = build_copies(copies, tmp_path, splits)
    reasons = {name: row["reason"] for name, row in ledger.items() if row["kept"] == "no"}
    assert reasons == {
        "A0001": "the same signal as record A0003 in split test",
        "A0002": "the same signal as record A0003 in split test",
        "A0004": "the same signal as record A0005 in split validation",
    }
    words = {name: row["defects"].partition("duplicate_of:")[2] for name, row in ledger.items()}
    assert {name: word for name, word in words.items() if word} == {  # never a record that went
        "A0001": "A0003",
        "A0002": "A0003",
        "A0004": "A0005",
        "A0007": "A0006",
    }
    assert metadata["dropped"] == {
        "the same signal as a record in split test": 2,
        "the same signal as a record in split validation": 1,
    }
    assert metadata["duplicates"] == {
        "records": 4,
        "in_several_splits": [["A0001", "A0002", "A0003"], ["A0004", "A0005"]],
        "dropped": ["A0001", "A0002", "A0004"],
    }
    assert metadata["patients_in_several_splits"] == 0 and verify(tmp_path)[1] == []
    page = " ".join(capsys.readouterr().out.split())
    assert "2 signals were in several splits, 3 records dropped for that" in page
    assert "WARNING" not in page


def test_copies_are_kept_where_that_is_asked_for(copies, tmp_path, capsys):
    metadata, ledger = build_copies(copies, tmp_path, "splits.csv", "--duplicates=keep")
    assert all(row["kept"] == "yes" for row in ledger.values())
    assert {name: ledger[name]["split"] for name in COPIES} == {
        n: s for n, (_, s) in COPIES.items()
    }
    assert len(metadata["duplicates"]["in_several_splits"]) == 2
    assert "2 identical signals are in more than one split" in capsys.readouterr().out
    # one split after another, as training on all of them reads it
    everything = ShardSet(tmp_path, "all")
    one_by_one = [e["record_id"] for s in metadata["splits"] for e in ShardSet(tmp_path, s)]
    assert [e["record_id"] for e in everything] == one_by_one and len(everything.counts) == 8


def test_incomplete_published_split_is_refused(copies, tmp_path):
    corpus = open_corpus("cpsc2018", copies / "raw")
    for text, reason in [
        (None, "0 files end in _test.csv"),
        ("id\nA0008\n", "none of the columns record_id, filename, ecg_path"),
        ("ecg_path\n/cpsc/A0001.mat\n", "line 2: record A0001 has two splits"),
    ]:
        for end in ("train", "val"):
            source = (copies / "published" / f"icbeb_{end}.csv").read_text()
            (tmp_path / f"icbeb_{end}.csv").write_text(source)
        if text:
            (tmp_path / "icbeb_test.csv").write_text(text)
        with pytest.raises(InputError, match=reason):
            apply_splits(corpus, tmp_path)
