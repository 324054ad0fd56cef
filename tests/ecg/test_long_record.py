"""A record of hours, prepared in chunks, gives the windows of the whole record."""

import numpy as np
import pytest

from data_prep.corpora.corpus import Corpus
from data_prep.dataset import long_windows
from data_prep.dataset.one_shard import Job, examine
from data_prep.ecg import long_record
from data_prep.ecg.leads import LEADS
from data_prep.ecg.long_record import ranked
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.synthetic_heart.records import make_record

REF = RecordRef("holter", "holter", None, {}, "")


@pytest.fixture(autouse=True)
def chunks_of_a_minute(monkeypatch):
    monkeypatch.setattr(long_record, "CHUNK_SECONDS", 60.0)
    monkeypatch.setattr(long_windows, "LONG_SECONDS", 100.0)


def corpus_of(signal, rate, leads):
    def read(ref, span=None):
        part = signal if span is None else signal[slice(*span)]
        return Waveform(part, rate, leads, total=None if span is None else len(signal))

    return Corpus("memory", "", {}, [REF], "none given", read=read, in_parts=True)


def both_ways(signal, rate, leads, tmp_path, **choices):
    """The windows of a record in chunks, and as a whole, with all their defects."""
    job = Job(tmp_path, Preprocess(**choices), windows="all", store_signal=False)
    corpus, words = corpus_of(signal, rate, leads), []
    record = long_windows.open_long(corpus, REF)
    behind = []
    chunked = list(long_windows.long_windows(record, job, words, behind.append))
    for window in chunked:
        window.defects = words + window.defects
    assert sum(behind) <= len(signal) / rate
    return chunked, examine(corpus, REF, job).windows


def assert_same(chunked, whole):
    assert [w.window for w in chunked] == [w.window for w in whole]
    for a, b in zip(chunked, whole, strict=True):
        assert a.defects == b.defects and a.lead_mask == b.lead_mask
        assert a.start_seconds == b.start_seconds
        np.testing.assert_array_equal(a.start, b.start)
        np.testing.assert_array_equal(a.length, b.length)
        np.testing.assert_allclose(a.signal, b.signal, atol=1e-6)
        np.testing.assert_allclose(a.beats, b.beats, atol=1e-6)
        np.testing.assert_allclose(a.scale, b.scale, atol=1e-6)


@pytest.mark.parametrize("rate", [500, 250, 257, 128, 100])
def test_chunks_change_no_window(rate, tmp_path):
    signal, _ = make_record(patient=2, seconds=193.7, rate=rate)
    leads = ["I", "II", "V2"] if rate != 500 else list(LEADS)
    signal = signal[:, [LEADS.index(lead) for lead in leads]] + 3.0  # an electrode's offset
    chunked, whole = both_ways(signal, rate, leads, tmp_path, peaks="vcg")
    assert len(whole) == 19 and any("tail_left_out" in word for word in whole[0].defects)
    assert_same(chunked, whole)


def test_gaps_over_several_chunks_spikes_and_lost_electrodes_are_the_same_too(tmp_path):
    signal, _ = make_record(patient=3, seconds=400, rate=200)
    signal = signal.copy()
    at = lambda second: round(second * 200)  # noqa: E731
    signal[: at(15), 7] = np.nan  # V2 starts late
    signal[at(50) : at(230), 1] = np.nan  # II is off for three chunks
    signal[at(119.97) : at(120.03), 0] = np.nan  # a short gap between two chunks
    signal[at(300) : at(330)] = np.nan  # all leads are off
    signal[at(390) :, 8] = np.nan  # V3 ends early
    signal[at(70) : at(70) + 3, 9] = 32.767  # impossible values
    signal[at(140) : at(180), 9] = -32.768
    signal[at(250) : at(262), 2] += 0.4  # limb leads that contradict each other
    signal[:, 11] = np.nan  # V6 has no value at all
    chunked, whole = both_ways(signal, 200, list(LEADS), tmp_path)
    words = {word for window in whole for word in window.defects}
    for kind in ("window_left_out", "gap:II", "spikes:V4", "railed:V4", "nan:I", "gap:V2"):
        assert any(word.startswith(kind) for word in words), kind
    assert_same(chunked, whole)


def test_limb_leads_that_contradict_each_other_are_named_as_in_the_whole_record(tmp_path):
    signal, _ = make_record(patient=3, seconds=130, rate=100)
    signal = signal.copy()
    signal[500:4000, 2] += np.float32(0.4)
    chunked, whole = both_ways(signal, 100, list(LEADS), tmp_path)
    assert "limb_inconsistent:0.40mV" in whole[0].defects
    assert_same(chunked, whole)


def test_a_record_without_a_beat_is_refused_with_the_same_words(tmp_path):
    signal = np.zeros((20_000, 2), np.float32)
    corpus = corpus_of(signal, 100.0, ["I", "II"])
    job = Job(tmp_path, Preprocess(), windows="all", store_signal=False)
    record = long_windows.open_long(corpus, REF)
    with pytest.raises(Exception, match="every lead is absent, without values, flat") as error:
        list(long_windows.long_windows(record, job, [], lambda _: None))
    assert str(error.value) == examine(corpus, REF, job).reason


def test_numbers_are_ranked_exactly_part_by_part():
    x = np.random.default_rng(0).normal(0, 3, 4001).astype(np.float32)
    x[::7], x[5::11] = np.nan, 0.25
    known = np.sort(x[~np.isnan(x)])
    ranks = [0, 17, len(known) // 2, len(known) - 1]
    found = ranked(lambda: iter(np.array_split(x, 9)), *(lambda n, k=k: k for k in ranks))
    np.testing.assert_array_equal(found, known[ranks])
