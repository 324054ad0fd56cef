"""What clinicians measure, and errors of a reconstruction that mean what their names say."""

import numpy as np
import pytest
from helpers.gaussian_ecg import REGULAR, changed, filtered_ecg, raw_ecg

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.ecg.morphology import (
    MEASURES,
    compare_morphology,
    measure,
    record_intervals,
    summarise,
)

HIDDEN = ~np.isin(LEADS, ("II", "V2", "V5"))
V3 = LEADS.index("V3")


def compare(truth, reconstructed, hidden=HIDDEN, **more):
    return summarise([compare_morphology(truth, reconstructed, 100.0, hidden, **more)])


def later(x, samples):
    """The signal so many samples later."""
    return np.pad(x, ((0, 0), (samples, 0)), mode="edge")[:, : x.shape[1]]


def test_intervals_of_a_known_beat():
    found = measure(filtered_ecg(REGULAR), 100.0)
    np.testing.assert_allclose(found.r_peak, 100 * REGULAR, atol=0.3)
    assert (np.abs(found.qrs_ms - 99) < 5).all() and (np.abs(found.qt_ms - 398) < 6).all()
    assert (np.abs(found.pr_ms - 166) < 6).all() and found.st_mv.shape == (12, 12)
    one = record_intervals(filtered_ecg(REGULAR), 100.0)
    assert one.beats == 12 and one.heart_rate == pytest.approx(75, abs=0.2)
    assert one.qrs_ms == pytest.approx(99, abs=4) and one.pr_ms == pytest.approx(166, abs=4)
    assert one.qtc_bazett_ms == pytest.approx(one.qt_ms / 0.8**0.5, abs=1)
    assert one.qtc_fridericia_ms == pytest.approx(one.qt_ms / 0.8 ** (1 / 3), abs=1)


def test_intervals_follow_the_waves():
    base = record_intervals(filtered_ecg(REGULAR), 100.0)
    slow = record_intervals(filtered_ecg(np.arange(0.5, 9, 1.25)), 100.0)
    assert slow.heart_rate == pytest.approx(48, abs=0.2) and abs(slow.qt_ms - base.qt_ms) < 5
    blocked = record_intervals(filtered_ecg(REGULAR, P=changed("P", delay=-0.24)), 100.0)
    assert blocked.pr_ms - base.pr_ms == pytest.approx(80, abs=5)
    fibrillating = record_intervals(filtered_ecg(REGULAR, P=changed("P", height=0.0)), 100.0)
    assert np.isnan(fibrillating.pr_ms) and abs(fibrillating.qt_ms - base.qt_ms) < 3
    one_beat = record_intervals(filtered_ecg([4.0]), 100.0)
    assert (
        one_beat.beats == 1
        and np.isnan([one_beat.heart_rate, one_beat.qtc_bazett_ms]).all()
        and one_beat.qt_ms > 300
    )


def test_given_peaks_are_used_and_moved_to_the_maximum():
    found = measure(filtered_ecg(REGULAR), 100.0, r_peaks=100 * REGULAR[2:5] + [2, -3, 1])
    np.testing.assert_allclose(found.r_peak, 100 * REGULAR[2:5], atol=0.3)


def test_st_level_is_measured_from_the_pr_segment():
    x = raw_ecg(REGULAR) + 0.7  # any constant
    raised = raw_ecg(REGULAR, ST=(0.11, 0.03, 0.2, (0.0, 0.0, 1.0))) + 0.7
    st = measure(x, 100.0).st_mv[1:-1]
    change = measure(raised, 100.0).st_mv[1:-1] - st
    assert (np.abs(st) < 0.02).all()
    v2, one = LEADS.index("V2"), LEADS.index("I")
    assert (np.abs(change[:, v2] - 0.185) < 0.03).all() and (np.abs(change[:, one]) < 0.02).all()


def test_the_same_signal_has_no_error():
    x = filtered_ecg(REGULAR, noise=0.02)
    result = compare(x, x)
    assert result["beats"] == 12 and result["missed"] == result["extra"] == 0
    for name in MEASURES:
        assert result[name] == 0 and result[f"beats_{name}"] >= 11 and result[f"lost_{name}"] == 0


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_a_delay_is_an_error_of_the_r_peak_alone(samples):
    x = filtered_ecg(REGULAR)
    result = compare(x, later(x, samples))
    assert result["r_peak_ms"] == pytest.approx(10 * samples, abs=1) and result["missed"] == 0
    assert max(result["qrs_ms"], result["qt_ms"], result["pr_ms"]) < 3 and result["st_mv"] < 0.003


def test_a_beat_that_is_not_there_is_missed_and_not_half_an_interval_away():
    x = filtered_ecg(REGULAR)
    half = later(x, 40)  # half an R-R interval
    result = compare(x, half)
    assert result["missed"] == 12 and result["extra"] >= 11 and np.isnan(result["r_peak_ms"])
    result = compare(x, filtered_ecg(np.delete(REGULAR, [3, 7])))
    assert result["missed"] == 2 and result["extra"] == 0 and result["r_peak_ms"] < 1
    comparison = compare_morphology(x, filtered_ecg(np.delete(REGULAR, [3, 7])), 100.0, HIDDEN)
    assert np.flatnonzero(comparison.missed).tolist() == [3, 7]
    assert np.isnan(comparison.errors["r_peak_ms"][[3, 7]]).all()
    result = compare(x, filtered_ecg(np.sort([*REGULAR, 3.25])))
    assert result["missed"] == 0 and result["extra"] == 1


@pytest.mark.parametrize("nothing", [0.0, 0.3, np.nan])
def test_a_flat_reconstruction_misses_every_beat(nothing):
    x = filtered_ecg(REGULAR)
    result = compare(x, np.full_like(x, nothing))
    assert result["missed"] == result["beats"] == 12 and result["extra"] == 0
    assert all(np.isnan(result[name]) for name in MEASURES)
    assert compare(np.full_like(x, 0.0) + x * np.isin(LEADS, "V1")[:, None], 0 * x)["missed"] == 12


def test_raised_st_in_one_lead_is_that_error_in_that_lead():
    truth = raw_ecg(REGULAR)
    raised = truth.copy()
    raised[V3] += raw_ecg(REGULAR, ST=(0.11, 0.02, 0.1, (0.0, 0.0, 1.0 / 0.63302)))[V3] - truth[V3]
    only = compare(truth, raised, np.isin(LEADS, "V3"), r_peaks=100 * REGULAR)
    assert only["st_mv"] == pytest.approx(0.1, abs=0.02)
    assert compare(truth, raised)["st_mv"] == pytest.approx(0.1 / HIDDEN.sum(), abs=0.004)
    visible = HIDDEN & (np.arange(12) != V3)
    assert compare(truth, raised, visible)["st_mv"] == 0  # not a reconstructed lead


def test_scale_changes_no_interval_and_visible_leads_do_not_help():
    x = filtered_ecg(REGULAR, noise=0.01)
    result = compare(x, 0.25 * x)
    assert (
        max(result[name] for name in ("r_peak_ms", "qrs_ms", "qt_ms", "pr_ms")) < 1e-6
        and result["missed"] == 0
    )
    noisy_visible = x + np.where(
        HIDDEN[:, None], 0.0, np.random.default_rng(0).normal(0, 1, x.shape)
    )
    assert compare(x, noisy_visible) == compare(x, x)


def test_a_longer_t_wave_is_a_qt_error():
    x, longer = filtered_ecg(REGULAR), filtered_ecg(REGULAR, T=changed("T", width=0.055))
    result = compare(x, longer)
    assert (
        result["qt_ms"] == pytest.approx(2.3 * 15, abs=8)
        and max(result["qrs_ms"], result["pr_ms"]) < 5
    )
    no_p = compare(x, filtered_ecg(REGULAR, P=changed("P", height=0.0)))
    assert no_p["lost_pr_ms"] >= 11 and no_p["beats_pr_ms"] == 0 and np.isnan(no_p["pr_ms"])
    assert no_p["lost_qt_ms"] == 0


def test_noise_and_odd_signals_do_not_crash():
    x = filtered_ecg(REGULAR)
    rng = np.random.default_rng(1)
    for scale in (0.02, 0.2, 2.0):
        result = compare(x, x + rng.normal(0, scale, x.shape))
        assert result["beats"] == 12 and 0 <= result["missed"] <= 12
        assert not result["r_peak_ms"] > 150
    hole = x.copy()
    hole[V3, 290:300] = np.nan  # where ST of the fourth beat is measured
    result = compare(x, hole)
    assert result["missed"] == 0 and result["lost_st_mv"] == 1 and result["st_mv"] < 0.01
    # a lead that the truth does not have is no target
    assert not np.isnan(compare(hole, x)["st_mv"])
    short = compare(x[:, :20], x[:, :20])
    assert short["beats"] == 0 and np.isnan(short["qrs_ms"])
    assert summarise([])["beats"] == 0
    peaks = np.array([np.nan, -4.0, 1e9, *(100 * REGULAR)])
    assert compare(x, x, r_peaks=peaks)["beats"] == 12


def test_mistakes_are_told():
    x = filtered_ecg(REGULAR)
    with pytest.raises(InputError, match="1000 samples and the reconstruction 900"):
        compare(x, x[:, :900])
    with pytest.raises(InputError, match=r"\[12,T\]"):
        measure(x[:3], 100.0)
    with pytest.raises(InputError, match="nothing to compare"):
        compare(x, x, np.zeros(12, bool))
    with pytest.raises(InputError, match="rate"):
        measure(x, 0.0)
    with pytest.raises(InputError, match="twelve booleans"):
        measure(x, 100.0, np.ones(3, bool))
