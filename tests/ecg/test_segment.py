"""Peaks, intervals that tile the window, and beats that can be put back together."""

import os
from pathlib import Path

import numpy as np
import pytest

from data_prep.ecg import segment, signal
from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import LEADS, order_leads
from data_prep.formats.wfdb_files import quiet_wfdb

ALL = np.ones(12, bool)


def _ecg(peaks, seconds=10.0, rate=100.0, t_height=0.3, noise=0.01, seed=0):
    """Twelve leads in mV with a P wave, QRS and T wave around each R peak (seconds), from a moving
    dipole."""
    t = np.arange(round(seconds * rate)) / rate
    waves = [
        (-0.17, 0.025, 0.15, (0.6, 0.8, 0.2)),
        (-0.025, 0.01, 0.2, (-0.5, -0.2, 0.8)),
        (0.0, 0.012, 1.5, (0.7, 0.6, -0.3)),
    ]
    waves += [(0.03, 0.012, 0.4, (-0.4, 0.3, -0.8)), (0.25, 0.05, t_height, (0.6, 0.6, 0.4))]
    vcg = np.zeros((3, len(t)))
    for r in peaks:
        for delay, width, height, axis in waves:
            vcg += height * np.array(axis)[:, None] * np.exp(-0.5 * ((t - r - delay) / width) ** 2)
    return lead_matrix("paper") @ vcg + np.random.default_rng(seed).normal(0, noise, (12, len(t)))


def _same(found, truth, rate=100.0, tolerance=0.05):
    return (
        len(found) == len(truth)
        and np.abs(np.sort(found) / rate - np.asarray(truth)).max() <= tolerance
    )


REGULAR = np.arange(0.4, 9.8, 0.8)


def test_both_detectors_find_regular_beats():
    x = signal.bandpass(_ecg(REGULAR), 100, 0.67, 40, 3)
    assert _same(segment.r_peaks_lead_ii(x[1], 100), REGULAR)
    assert _same(segment.r_peaks_vcg(x, ALL, 100), REGULAR)


def test_lead_ii_detector_tries_lower_for_small_beats():
    x = np.zeros(1000)
    x[100:900:20] = np.tile([1.0, -1.0], 20)  # maxima at 1 sigma only after scaling
    x += 0.6 * np.sin(np.arange(1000) / 3)
    assert len(segment.r_peaks_lead_ii(x, 100, 10.0, 1.0)) >= 3
    assert len(segment.r_peaks_lead_ii(x, 100, 10.0, 10.0)) == 0


@pytest.mark.parametrize("lead", LEADS)
def test_vcg_detector_works_from_a_single_lead(lead):
    present = np.array([name == lead for name in LEADS])
    x = np.where(present[:, None], signal.bandpass(_ecg(REGULAR), 100, 0.67, 40, 3), 0.0)
    assert _same(segment.r_peaks_vcg(x, present, 100), REGULAR, tolerance=0.08)


@pytest.mark.parametrize(
    "x, truth",
    [
        (-_ecg(REGULAR), REGULAR),
        (_ecg(REGULAR, t_height=3.0), REGULAR),
        (_ecg(REGULAR, noise=0.05), REGULAR),
        (_ecg([4.0]), [4.0]),
        (_ecg([4.0], noise=0.0), [4.0]),
        (_ecg([0.5, 1.4], seconds=2.0), [0.5, 1.4]),
        (_ecg([0.5], seconds=1.0), [0.5]),
        (_ecg(REGULAR[4:], noise=0.0), REGULAR[4:]),
        (_ecg([0.5, 3.3, 6.0, 8.9]), [0.5, 3.3, 6.0, 8.9]),
    ],
    ids=[
        "inverted",
        "tall T",
        "noisy",
        "one beat",
        "one clean beat",
        "2 s",
        "1 s",
        "flat start",
        "very slow",
    ],
)
def test_vcg_detector_in_trouble(x, truth):
    assert _same(segment.r_peaks_vcg(signal.bandpass(x, 100, 0.67, 40, 3), ALL, 100), truth)


def test_vcg_detector_at_240_beats_a_minute():
    truth = np.arange(0.125, 10, 0.25)
    x = signal.bandpass(_ecg(truth, t_height=0.1), 100, 0.67, 40, 3)
    assert _same(segment.r_peaks_vcg(x, ALL, 100, min_distance=0.2), truth)


def test_vcg_detector_is_not_thrown_by_one_artefact():
    x = _ecg(REGULAR)
    x[:, 505:509] += 8.0
    found = segment.r_peaks_vcg(signal.bandpass(x, 100, 0.67, 40, 3), ALL, 100) / 100
    assert sum(np.abs(found - r).min() < 0.05 for r in REGULAR) >= len(REGULAR) - 1


def test_noise_zeros_and_no_lead_have_no_beats():
    noise = signal.bandpass(np.random.default_rng(0).normal(0, 0.1, (12, 1000)), 100, 0.67, 40, 3)
    assert len(segment.r_peaks_vcg(noise, ALL, 100)) == 0
    assert len(segment.r_peaks_vcg(np.zeros((12, 1000)), ALL, 100)) == 0
    assert len(segment.r_peaks_vcg(noise, ~ALL, 100)) == 0
    assert len(segment.r_peaks_lead_ii(np.zeros(1000), 100)) == 0


def test_intervals_always_tile_the_window():
    rng = np.random.default_rng(0)
    for _ in range(500):
        samples = int(rng.integers(1, 1500))
        peaks = rng.integers(-5, samples + 5, rng.integers(0, 60))
        most = int(rng.integers(1, 25))
        strength = rng.random(len(peaks)) if rng.random() < 0.5 else None
        cut = segment.intervals(peaks, samples, 0.3, 2.0, 100, most, strength)
        covered = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(cut.start, cut.length, strict=True)]
        )
        np.testing.assert_array_equal(covered, np.arange(samples))
        assert 1 <= len(cut.start) <= most and (cut.length > 0).all()
        assert not cut.complete[-1]
        assert (cut.length[cut.complete] >= 30).all()
        np.testing.assert_array_equal(cut.long, cut.length > 200)
        assert np.isin(cut.start[1:], peaks).all()


def test_interval_rules():
    cut = segment.intervals(
        np.array([50, 60, 150, 400, 490]), 600, 0.3, 2.0, 100, 20, np.array([1.0, 2.0, 1, 1, 1])
    )
    assert cut.start.tolist() == [0, 60, 150, 400, 490]  # of 50 and 60 the stronger
    assert cut.complete.tolist() == [False, True, True, True, False]
    assert cut.long.tolist() == [False, False, True, False, False]
    assert segment.intervals(np.array([50, 60, 150]), 600, 0.3, 2.0, 100, 20).start.tolist() == [
        0,
        50,
        150,
    ]
    from_zero = segment.intervals(np.array([0, 80]), 160, 0.3, 2.0, 100, 20)
    assert from_zero.start.tolist() == [0, 80] and from_zero.complete.tolist() == [True, False]
    many = segment.intervals(np.arange(20, 1000, 40), 1000, 0.3, 2.0, 100, 20)
    assert many.merged_tail and len(many.start) == 20 and many.start[-1] + many.length[-1] == 1000
    assert not cut.merged_tail


def test_beats_keep_both_end_samples_and_one_sample_intervals_are_constant():
    x = np.random.default_rng(0).normal(size=(12, 300))
    start, length = np.array([0, 1, 90]), np.array([1, 89, 210])
    beats = segment.cut_beats(x, start, length, 128)
    assert beats.shape == (3, 12, 128)
    for beat, s, n in zip(beats, start, length, strict=True):
        np.testing.assert_allclose(beat[:, 0], x[:, s])
        np.testing.assert_allclose(beat[:, -1], x[:, s + n - 1])
        reference = np.interp(np.linspace(s, s + n - 1, 128), np.arange(300), x[5])
        np.testing.assert_allclose(beat[5], reference)


@pytest.mark.parametrize("rr", [0.5, 0.8, 1.2])
def test_stitching_gives_the_signal_back(rr):
    truth = np.arange(0.3, 9.9, rr)
    x = signal.bandpass(_ecg(truth), 100, 0.67, 40, 3)
    cut = segment.intervals(segment.r_peaks_vcg(x, ALL, 100), 1000, 0.3, 2.0, 100, 20)
    back = segment.stitch_beats(
        segment.cut_beats(x, cut.start, cut.length, 128), cut.start, cut.length, 1000
    )
    assert back.shape == x.shape
    assert (1 - ((back - x) ** 2).sum(axis=1) / x.var(axis=1) / 1000 > 0.99).all()
    # boundaries are exact, not zero
    np.testing.assert_allclose(back[:, cut.start], x[:, cut.start], atol=1e-12)


def test_cutting_then_lifting_is_lifting_then_cutting():
    x = _ecg(REGULAR)
    cut = segment.intervals(np.round(REGULAR * 100).astype(int), 1000, 0.3, 2.0, 100, 20)
    lift = lift_matrix(
        lead_matrix("paper"), np.array([lead in ("II", "V2", "V5") for lead in LEADS])
    )
    first_cut = lift @ segment.cut_beats(x, cut.start, cut.length, 128)
    first_lifted = segment.cut_beats(lift @ x, cut.start, cut.length, 128)
    np.testing.assert_allclose(first_cut, first_lifted, atol=1e-10)


def _f1(found, truth, counts, tolerance=0.15):
    """Adds hits, false alarms and misses; LUDB leaves first and last beats unmarked, so only its
    marked span counts."""
    found = found[(found >= truth[0] - tolerance) & (found <= truth[-1] + tolerance)]
    free, hits = list(found), 0
    for mark in truth:
        near = min(free, key=lambda f: abs(f - mark), default=None)
        if near is not None and abs(near - mark) <= tolerance:
            free.remove(near)
            hits += 1
    counts += (hits, len(free), len(truth) - hits)


def test_a_fast_regular_rhythm_is_found_if_asked_for_and_noise_is_not():
    t = np.arange(1000) / 100
    rng = np.random.default_rng(0)
    beat = np.exp(-0.5 * (((t % 0.33) - 0.16) / 0.03) ** 2)  # 182 a minute, nothing between beats
    beat += 0.8 * np.exp(-0.5 * (((t % 0.33) - 0.02) / 0.04) ** 2)
    fast = np.outer(np.linspace(0.4, 1.2, 12), beat) + rng.normal(0, 0.01, (12, 1000))
    fast = signal.bandpass(fast, 100, 0.67, 40, 3)
    assert not len(segment.r_peaks_vcg(fast, ALL, 100))
    found = segment.r_peaks_vcg(fast, ALL, 100, fast=True)
    assert 28 <= len(found) <= 31
    np.testing.assert_allclose(np.diff(found), 33, atol=2)
    for seed in range(20):  # neither noise nor interference is a rhythm
        noise = np.random.default_rng(seed).normal(0, 0.1, (12, 1000))
        noise = signal.bandpass(noise, 100, 0.67, 40, 3)
        assert len(segment.r_peaks_vcg(noise, ALL, 100, fast=True)) < 8
        plain = segment.r_peaks_vcg(noise, ALL, 100)
        assert len(plain) == 0 or len(plain) == len(segment.r_peaks_vcg(noise, ALL, 100, fast=True))


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ludb/data"
)
def test_detectors_against_cardiologists_marks_on_ludb():
    counts = {"lead_ii": np.zeros(3), "vcg": np.zeros(3), "vcg_from_v2": np.zeros(3)}
    v2 = np.array([lead == "V2" for lead in LEADS])
    headers = sorted((Path(os.environ["LVCG_REAL_DATA"]) / "ludb" / "data").glob("*.hea"))
    assert len(headers) >= 100
    for header in headers:
        stem = str(header.with_suffix(""))
        with quiet_wfdb() as wfdb:
            record, marks = wfdb.rdrecord(stem), wfdb.rdann(stem, "ii")
        truth = marks.sample[np.array(marks.symbol) == "N"] / record.fs
        x, _ = order_leads(record.p_signal, record.sig_name)
        x = signal.bandpass(signal.resample(x, record.fs, 100), 100, 0.67, 40, 3)
        _f1(segment.r_peaks_lead_ii(x[1], 100) / 100, truth, counts["lead_ii"])
        found = segment.r_peaks_vcg(x, ALL, 100)
        _f1(found / 100, truth, counts["vcg"])
        np.testing.assert_array_equal(segment.r_peaks_vcg(x, ALL, 100, fast=True), found)
        _f1(
            segment.r_peaks_vcg(np.where(v2[:, None], x, 0), v2, 100) / 100,
            truth,
            counts["vcg_from_v2"],
        )
    f1 = {name: 200 * c[0] / (2 * c[0] + c[1] + c[2]) for name, c in counts.items()}
    print({name: (round(f1[name], 2), c.astype(int).tolist()) for name, c in counts.items()})
    assert f1["lead_ii"] > 90 and f1["vcg"] > 99.5 and f1["vcg_from_v2"] > 98
