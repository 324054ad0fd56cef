"""A folder of files in several formats as one corpus, with labels by any unique name."""

import pickle

import numpy as np
import pytest
from helpers import device_files as files
from helpers.device_files import COUNTS, STEP

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg.leads import LEADS
from data_prep.formats.wfdb_files import write_wfdb


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ward").mkdir()
    (tmp_path / "a.xml").write_bytes(files.aecg())
    (tmp_path / "ward" / "b.SCP").write_bytes(files.scp(COUNTS + 1))
    (tmp_path / "ward" / "IM01").write_bytes(files.ishne(COUNTS + 2))
    write_wfdb(tmp_path / "ward" / "c", (COUNTS + 3) * STEP, 500, LEADS)
    (tmp_path / "ward" / "c.atr").write_bytes(b"\0\0")
    np.save(tmp_path / "d.npy", (COUNTS + 4) * STEP)
    (tmp_path / "d.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / ".hidden").write_bytes(b"x")
    return tmp_path


SAID = {"rate": "500", "unit": "mV", "lead_names": ",".join(LEADS)}


def test_every_record_of_a_mixed_folder(folder):
    corpus = open_corpus("files", folder, SAID)
    ids = ["a", "d", "ward/IM01", "ward/b", "ward/c"]
    assert [ref.record_id for ref in corpus.refs] == ids
    assert corpus.notes == ["1 files are no ECG and left out: d.pdf"]
    shifts = dict(zip(ids, (0, 4, 2, 1, 3), strict=True))
    for ref in pickle.loads(pickle.dumps(corpus.refs)):  # as worker processes get them
        record = corpus.load(ref)
        assert record.rate == 500
        expected = (COUNTS + shifts[ref.record_id]) * STEP
        np.testing.assert_allclose(record.signal, expected, atol=1e-4)
    assert corpus.all_notes()[1:] == ["the longest of 2 sets of sequences is read"]


def test_what_is_given_counts_only_where_a_file_does_not_say_it(folder):
    np.save(folder / "d.npy", COUNTS[:, :2] * STEP)
    said = {"rate": "250", "unit": "mV", "lead_names": "V1,V2"}
    corpus = open_corpus("files", folder, said)
    found = {ref.record_id: corpus.load(ref) for ref in corpus.refs}
    assert found["d"].rate == 250 and found["d"].leads == ["V1", "V2"]
    assert found["ward/b"].rate == 500 and len(found["ward/b"].leads) == 12
    corpus = open_corpus("files", folder, {"lead_names": "CH1=I"})
    record = corpus.load(next(ref for ref in corpus.refs if ref.record_id == "a"))
    assert record.notes[-1] == "it has no column ch1, and its leads are named"


def test_labels_by_path_or_by_a_unique_name(folder):
    (folder / "labels.csv").write_text(
        "record_id,patient_id,rhythm\na.xml,p1,SR\nb,p2,AF\nward/c,p2,\nIM01,p3,SR\n"
    )
    corpus = open_corpus("files", folder, SAID)
    assert corpus.tasks == {"rhythm": ("AF", "SR")}
    found = {ref.record_id: (ref.patient_id, ref.labels) for ref in corpus.refs}
    assert found["a"] == ("p1", {"rhythm": ["SR"]}) and found["d"] == ("d", {})
    assert found["ward/b"] == ("p2", {"rhythm": ["AF"]}) and found["ward/c"][1] == {"rhythm": []}
    mine = folder.parent / "mine.csv"
    mine.write_text("record_id,patient_id,rhythm\nnobody,p1,SR\n")
    with pytest.raises(InputError, match=r"mine.csv: 1 record_id without a record.*nobody"):
        open_corpus("files", folder, SAID | {"labels": str(mine)})
    mine.write_text("record_id,patient_id,rhythm\na,p1,SR\na.xml,p1,SR\n")
    with pytest.raises(InputError, match=r"record a is listed twice, once as a.xml"):
        open_corpus("files", folder, SAID | {"labels": str(mine)})
    (folder / "a.scp").write_bytes(files.scp())
    mine.write_text("record_id,patient_id,rhythm\na,p1,SR\n")
    with pytest.raises(InputError, match=r"record_id a fits a.scp, a.xml"):
        open_corpus("files", folder, SAID | {"labels": str(mine)})


def test_a_folder_without_an_ecg_is_named(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7")
    with pytest.raises(InputError, match=r"no ECG file below .* \(1 other files\)"):
        open_corpus("files", tmp_path)
