"""`lvcg inspect`: the right record, in the right units, with figures, and help for a
wrong id."""

import numpy as np
import pytest
from helpers.builds import ecg, ledger_of, quiet_build, write_wfdb
from helpers.commands import assert_one_line_error, run
from helpers.pictures import read_picture, words_of

from data_prep import inspect
from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import look
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from data_prep.ecg.signal import bandpass


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """30 s records with three windows, one dropped, one without V1; once with and once without the
    stored signal."""
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "raw").mkdir()
    for i in range(5):
        write_wfdb(folder / "raw", f"rec{i}", ecg(i, seconds=30))
    write_wfdb(folder / "raw", "flat", np.full((1000, 12), 7))
    partial = ecg(9)
    partial[:, LEADS.index("V1")] = -32768
    write_wfdb(folder / "raw", "partial", partial)
    corpus = open_corpus("wfdb", folder / "raw")
    for name, store in (("with", True), ("without", False)):
        quiet_build(corpus, folder / name, windows="all", store_signal=store, shard_records=2)
    return folder


def examples_of(directory, record):
    row, position = look.find_record(directory, record)
    return ShardSet(directory, row["split"]).read(range(position, position + int(row["windows"])))


def test_every_record_is_found_where_it_is_stored(built):
    for record, row in ledger_of(built / "with").items():
        examples = examples_of(built / "with", record)
        assert [e["record_id"] for e in examples] == [record] * int(row["windows"])


def test_signal_is_the_filtered_one_in_millivolts(built):
    expected = bandpass(ecg(2, seconds=30).T / 1000.0, 100, 0.67, 40, 3)
    for name, tolerance in (("with", 0.004), ("without", 0.2)):
        for i, example in enumerate(examples_of(built / name, "rec2")):
            mv = look.signal_mv(example)
            part = expected[:, 1000 * i : 1000 * (i + 1)]
            # stitched beats are interpolated: steep R waves lose most
            assert np.abs(mv - part).max() < tolerance, name
            assert np.corrcoef(mv[1], part[1])[0, 1] > 0.995
    (example,) = examples_of(built / "without", "partial")
    assert np.isnan(look.signal_mv(example)[LEADS.index("V1")]).all()


def test_peaks_and_loop(built):
    example = examples_of(built / "with", "rec1")[1]
    peaks = look.r_peaks(example)
    mv = look.signal_mv(example)
    near = [mv[1, max(0, p - 8) : p + 9].max() for p in peaks]
    assert np.allclose(mv[1, peaks], near) and len(peaks) > 5
    beat, rate = look.median_beat(example, 100.0)
    assert beat.shape == (12, 128) and abs(int(np.argmax(beat[1])) - 42) <= 2
    assert rate == pytest.approx(128 / (np.median(np.diff(peaks)) / 100), rel=0.1)
    vcg, rank = look.lifted(lead_matrix("paper") @ np.ones((3, 5)), 4095, "paper")
    assert rank == 3 and np.allclose(vcg, 1, atol=1e-3)
    # I, II, III alone span the frontal plane
    assert look.lifted(np.ones((12, 5)), 0b111, "paper")[1] == 2


def test_command_draws_and_tells(built, tmp_path, capsys):
    assert (
        inspect.main([f"--data={built / 'without'}", "--record=partial", f"--out={tmp_path}"]) == 0
    )
    printed = capsys.readouterr().out
    for word in (
        "record        partial",
        "split ",
        "gap:V1:1000",
        "missing       V1",
        "R peaks",
        "preprocess    ",
    ):
        assert word in printed
    for name in ("partial-w0-ecg.svg", "partial-w0-vcg.svg"):
        assert "partial, window 0" in words_of(read_picture(tmp_path / name))
        assert str(tmp_path / name) in printed
    assert "not recorded" in words_of(read_picture(tmp_path / "partial-w0-ecg.svg"))  # V1
    assert (
        inspect.main(
            [f"--data={built / 'with'}", "--record=rec3", "--window=2", f"--out={tmp_path}"]
        )
        == 0
    )
    assert (tmp_path / "rec3-w2-ecg.svg").exists() and "window 2" in capsys.readouterr().out
    with pytest.raises(InputError, match="record rec3 has no window 7; stored: 0, 1, 2"):
        inspect.main([f"--data={built / 'with'}", "--record=rec3", "--window=7"])


def test_dropped_record_tells_why(built, tmp_path, capsys):
    assert (
        inspect.main([f"--data={built / 'with'}", "--record=flat", f"--out={tmp_path / 'none'}"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "kept          no: all leads are missing" in printed and "nothing to draw" in printed
    assert not (tmp_path / "none").exists()


def test_unknown_record_gets_a_hint(built):
    done = run("data_prep.inspect", f"--data={built / 'with'}", "--record=rec_3")
    assert_one_line_error(done, "no record 'rec_3'", "did you mean rec3")
