"""A user's split CSV: joined by column name, unknown ids reported, no patient and no signal in two
splits."""

import pytest
from helpers.raw_files import csn, ecg, load, write_mat

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import apply_splits, open_corpus


def test_splits_join_by_name_and_report_unknown_ids(tmp_path):
    corpus = csn(tmp_path, JS1="", JS2="", JS3="")
    path = tmp_path / "splits.csv"
    path.write_text("split,note,record_id\ntest,x,JS2\ntrain,y,JS1\ntrain,,JS77\n")
    changed = apply_splits(corpus, path)
    assert [(r.record_id, r.split) for r in changed.refs] == [("JS1", "train"), ("JS2", "test")]
    assert changed.notes[-2:] == [
        "splits.csv names 1 record_id that csn does not have: JS77",
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
        ("record_id,split\nJS1,train\nJS2,test\n", "patient JS1 is in train and test .JS1, JS2."),
    ],
)
def test_mistakes_in_splits_are_named(tmp_path, text, reason):
    csn(tmp_path, JS1="", JS3="")
    write_mat(tmp_path / "WFDBRecords/JS2", ecg(0), "")  # the signal of JS1
    (tmp_path / "splits.csv").write_text(text)
    with pytest.raises(InputError, match=reason) as error:
        apply_splits(open_corpus("csn", tmp_path), tmp_path / "splits.csv")
    assert "splits.csv" in str(error.value) and "\n" not in str(error.value)
