"""Files that are small and make much, pipes in the place of files, and values at the edges."""

import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from helpers.raw_files import wfdb_text, write_dat, write_edf

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.long_windows import open_long
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.formats import any_file
from data_prep.formats.any_file import read_any
from data_prep.formats.wfdb_files import read_wfdb_record

SIGNAL = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (100, 12)), axis=0)
GIVEN = {"rate": 500, "unit": "mV", "leads": list(LEADS)}


def refused(path, words, **given):
    with pytest.raises(InputError, match=words) as error:
        read_any(path, **given)
    assert len(str(error.value).splitlines()) == 1


def test_an_npz_that_unpacks_to_gigabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.npz"
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("signal.npy", header)
    data = path.read_bytes().replace(struct.pack("<I", len(header)), struct.pack("<I", 2**31))
    path.write_bytes(data)  # what the zip claims
    refused(path, "signal of a.npz unpacks to 2048 MiB, more than the 64 that", **GIVEN)
    np.savez_compressed(path, signal=SIGNAL, leads=np.zeros(2**20, "U1"))
    refused(path, "leads of a.npz unpacks to 4 MiB")


def test_a_long_record_of_one_lead_takes_a_few_times_its_twelve_rows(tmp_path):
    """A file of 1 MB took 13 GiB."""
    hours = np.tile(np.cumsum(SIGNAL, axis=0)[:, :1].astype(np.float32), (10_000, 1))
    tracemalloc.start()
    windows = Preprocess(peaks="vcg", seconds=2500).prepare(hours, 100.0, ["II"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(windows) == 4
    assert peak < 64 * hours.nbytes  # twelve rows before filtering and after it have 36
    with pytest.raises(InputError, match="too long"):  # before rows are made
        Preprocess().prepare(np.broadcast_to(hours[:1], (10**9, 1)), 100.0, ["II"])


def test_a_long_record_that_is_read_as_a_whole_is_prepared_in_chunks(tmp_path):
    hours = np.tile(SIGNAL[:, :1].astype(np.float32), (2_700, 1))
    np.savez_compressed(tmp_path / "a.npz", signal=hours, rate=100.0, unit="mV", leads=["II"])
    assert (tmp_path / "a.npz").stat().st_size < 2**17  # which does not hide how long it is
    corpus = open_corpus("files", tmp_path)
    long = open_long(corpus, corpus.refs[0])
    assert long.samples == 270_000
    np.testing.assert_array_equal(long.read(1000, 1100), hours[1000:1100])


def test_text_beyond_unicode_is_refused_in_one_line(tmp_path):
    wrong = np.array([0x110000], np.uint32).view("U1")
    np.savez(tmp_path / "a.npz", signal=SIGNAL, rate=500, unit=wrong, leads=LEADS)
    refused(tmp_path / "a.npz", "characters that do not exist")
    np.savez(tmp_path / "a.npz", signal=SIGNAL[:, :1], rate=500, unit="mV", leads=wrong)
    refused(tmp_path / "a.npz", "characters that do not exist")


def test_a_text_of_a_million_columns_is_refused_before_it_is_split(tmp_path):
    (tmp_path / "a.csv").write_text(",".join(["1"] * 1001) + "\n")
    refused(tmp_path / "a.csv", "more than 1000 columns", **GIVEN)
    (tmp_path / "a.csv").write_text("1,2\r3,4\r\n5,6\n")  # every end of line
    assert read_any(tmp_path / "a.csv", 500, "mV", ["I", "II"]).signal.tolist() == [
        [1, 2], [3, 4], [5, 6],
    ]  # fmt: skip


def test_a_text_of_too_many_numbers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(any_file, "MOST_NUMBERS", 3)
    (tmp_path / "a.csv").write_text("1,2\n" * 4)
    refused(tmp_path / "a.csv", "line 3 is no row", rate=500, unit="mV", leads=["I", "II"])


def test_a_text_of_many_numbers_takes_little_more_than_its_numbers(tmp_path):
    """Lists of Python floats took 2 GiB for a file of 63 MB."""
    cells = 120_000
    (tmp_path / "a.csv").write_text("1,2,3\n" * (cells // 3))
    tracemalloc.start()
    read_any(tmp_path / "a.csv", 500, "mV", ["I", "II", "V1"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * cells  # bytes


@pytest.mark.parametrize("ending", ["hea", "csv", "npy", "npz", "edf", "mat"])
def test_a_pipe_in_the_place_of_a_file_does_not_wait_for_ever(tmp_path, ending):
    os.mkfifo(tmp_path / f"a.{ending}")
    refused(tmp_path / f"a.{ending}", "record a: .*no ordinary file", **GIVEN)


def test_a_pipe_in_the_place_of_a_signal_file(tmp_path):
    write_dat(tmp_path / "a", SIGNAL)
    (tmp_path / "a.dat").unlink()
    os.mkfifo(tmp_path / "a.dat")
    corpus = open_corpus("wfdb", tmp_path)  # which compares signal files
    with pytest.raises(InputError, match="no ordinary file"):
        corpus.load(corpus.refs[0])


def test_an_infinite_sample_is_a_gap(tmp_path):
    signal = SIGNAL.copy()
    signal[3, 5], signal[4, 0] = np.inf, -np.inf
    np.save(tmp_path / "a.npy", signal)
    found = read_any(tmp_path / "a.npy", **GIVEN).signal
    assert np.isnan(found[3, 5]) and np.isnan(found[4, 0]) and np.isnan(found).sum() == 2


def test_segments_in_other_folders_or_far_too_many_are_refused(tmp_path):
    (tmp_path / "sub").mkdir()
    write_dat(tmp_path / "s", SIGNAL)
    for name, words in (("../s", "not in the record's folder"), ("r", "has segments itself")):
        (tmp_path / "sub" / "r.hea").write_text(f"r/2 12 500 200\n{name} 100\n{name} 100\n")
        with pytest.raises(InputError, match=words):
            read_wfdb_record(tmp_path / "sub" / "r")
    text, _ = wfdb_text("s", SIGNAL, LEADS, "../s.dat")
    (tmp_path / "sub" / "s.hea").write_text(text)
    (tmp_path / "sub" / "r.hea").write_text("r/2 12 500 200\ns 100\ns 100\n")
    with pytest.raises(InputError, match="not in the record's folder"):
        read_wfdb_record(tmp_path / "sub" / "r")
    (tmp_path / "r.hea").write_text("r/1001 12 500 100100\n" + "s 100\n" * 1001)
    with pytest.raises(InputError, match="more than 1000 segments"):
        read_wfdb_record(tmp_path / "r")
    (tmp_path / "r.hea").write_text("r/2 12 500 200\ns 100\ns 100\n")
    found = read_wfdb_record(tmp_path / "r").signal
    np.testing.assert_allclose(found, np.concatenate([SIGNAL, SIGNAL]), atol=6e-4)


def test_rates_of_edf_files_are_those_of_an_ecg(tmp_path):
    write_edf(tmp_path / "a.edf", SIGNAL, seconds=1000)
    refused(tmp_path / "a.edf", r"claims 0.025 Hz")


def test_names_that_are_not_utf8_are_records_like_others(tmp_path):
    write_dat(tmp_path / "a", SIGNAL)
    for ending in ("hea", "dat"):
        (tmp_path / f"a.{ending}").rename(
            os.fsdecode(bytes(tmp_path) + b"/caf\xe9." + ending.encode())
        )
    header = next(tmp_path.glob("*.hea"))
    header.write_text(header.read_text().replace("a.dat", "b.dat"))
    (tmp_path / "b.dat").write_bytes(next(tmp_path.glob("caf*.dat")).read_bytes())
    corpus = open_corpus("wfdb", tmp_path)
    assert [ref.record_id for ref in corpus.refs] == ["caf\\udce9"]
    assert "caf\\udce9" in [ref.record_id for ref in open_corpus("files", tmp_path).refs]
    np.testing.assert_allclose(corpus.load(corpus.refs[0]).signal, SIGNAL, atol=6e-4)


def test_paths_of_a_table_stay_in_its_folder(tmp_path):
    np.save(tmp_path / "x.npy", SIGNAL)
    (tmp_path / "sub").mkdir()
    for path in ("../x.npy", str(tmp_path / "x.npy"), "a/../../x.npy", "a\0.npy"):
        (tmp_path / "sub" / "records.csv").write_text(f"record_id,path\na,{path}\n")
        with pytest.raises(InputError, match=r"records.csv line 2: .* leaves the folder"):
            open_corpus("arrays", tmp_path / "sub")
