"""A long record over time: what is streamed is what is drawn, and gaps stay gaps."""

import edfio
import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset import long_windows
from data_prep.ecg import long_record
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.embed import __main__ as embed
from lvcg_jax.embed.table import load_table
from lvcg_jax.report import day


@pytest.fixture(scope="module")
def edf(tmp_path_factory):
    """Three minutes of three leads as EDF."""
    signal, _ = make_record(patient=4, seconds=183, rate=250)
    path = tmp_path_factory.mktemp("long") / "holter.edf"
    signals = [
        edfio.EdfSignal(
            signal[:, LEADS.index(lead)].astype(np.float64),
            250,
            label=lead,
            physical_dimension="mV",
        )
        for lead in ("I", "II", "V2")
    ]
    edfio.Edf(signals).write(path)
    return path


def test_a_long_file_is_embedded_in_parts_and_drawn_over_time(
    edf, trained_run, tmp_path, monkeypatch, capsys
):
    model = f"--checkpoint={trained_run}"
    whole, parts, page = (tmp_path / name for name in ("whole.npz", "parts.npz", "day.html"))
    assert embed.main([model, f"--record={edf}", f"--out={whole}"]) == 0

    reads = []
    read = long_windows.open_long

    def watched(corpus, ref):
        found = read(corpus, ref)
        reads.append(found)
        return found

    monkeypatch.setattr(long_windows, "LONG_SECONDS", 100.0)
    monkeypatch.setattr(long_windows, "LARGE", 1)
    monkeypatch.setattr(long_record, "CHUNK_SECONDS", 60.0)
    monkeypatch.setattr("lvcg_jax.data.windows.open_long", watched)
    flags = [model, f"--record={edf}", f"--table={parts}", f"--out={page}"]
    assert day.main(flags) == 0 and reads[0].samples == 183 * 250
    out = capsys.readouterr()
    assert "18 windows, 0 left out" in out.out and "holter: 100%" in out.err

    one, other = load_table(whole), load_table(parts)
    assert one.keys == other.keys and one.extra["start_seconds"][-1] == 170.0
    assert one.extra["defects"].tolist() == other.extra["defects"].tolist()
    np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-5)
    text = page.read_text()
    for words in ("Heart rate", "Drift of the embedding", "windows embedded", "0:0"):
        assert words in text


def test_a_curve_is_broken_where_electrodes_were_off():
    seconds = np.concatenate([np.arange(0, 600, 10), np.arange(3000, 3600, 10)]).astype(float)
    rates, nothing = np.full(120, 60.0), [[]] * 120
    found = day.Day("r", seconds, 10.0, rates, np.zeros((120, 2)), nothing, nothing)
    first, second = day.curve(found, np.arange(120.0), "x")
    assert first.x[-1] < 0.17 and second.x[0] > 0.83 and (first.name, second.name) == ("x", "")
    assert first.y[0] == 1.0 and first.low[0] < first.y[0] < first.high[0]


def test_a_record_without_a_beat_has_no_course_over_time(trained_run, tmp_path):
    path = tmp_path / "flat.npz"
    np.savez(path, signal=np.zeros((9000, 2)), fs=250.0, unit="mV", leads=np.array(["I", "II"]))
    with pytest.raises(InputError, match="record flat has no course over time: all leads are miss"):
        day.main([f"--record={path}", f"--checkpoint={trained_run}", f"--out={tmp_path}/d.html"])
