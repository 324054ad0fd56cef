"""The signal chain: what passes, what is removed, and which leads count as missing."""

import numpy as np
import pytest
from scipy import signal as sps

from data_prep.base.errors import InputError
from data_prep.ecg import signal
from data_prep.ecg.leads import LEADS

RATES = [50, 100, 125, 250, 257, 360, 500, 977.5, 1000]


def _noise(seconds=10.0, rate=100.0, seed=0):
    return np.random.default_rng(seed).normal(0, 0.3, (12, round(seconds * rate)))


def _sine(frequency, rate, seconds=10.0):
    t = np.arange(round(seconds * rate)) / rate
    return np.tile(np.sin(2 * np.pi * frequency * t), (12, 1))


def test_short_gap_is_bridged_long_gap_is_lost():
    x = _noise().astype(np.float32)
    x[0, 100:110] = np.nan  # exactly 0.1 s
    x[1, 100:111] = np.nan
    x[2, :5] = np.nan  # at the edge
    x[3] = np.nan
    filled, lost = signal.fill_gaps(x, 100, 0.1)
    assert np.isfinite(filled).all()
    assert lost.any(axis=1).tolist() == [False, True, False, True] + [False] * 8
    assert np.flatnonzero(lost[1]).tolist() == list(range(100, 111))
    np.testing.assert_allclose(filled[0, 99:111], np.linspace(x[0, 99], x[0, 110], 12), rtol=1e-4)
    assert (filled[2, :5] == x[2, 5]).all()
    assert np.isnan(x[0, 100])  # the caller's array is left alone


def test_nan_in_one_lead_does_not_touch_the_others():
    x = _noise()
    clean = signal.bandpass(signal.fill_gaps(x, 100, 0.1)[0], 100, 0.67, 40, 3)
    x[4, 200:207] = np.nan
    x[5, 300:400] = np.inf
    dropped = signal.drop_impossible(x, 20.0)
    y = signal.bandpass(signal.fill_gaps(dropped, 100, 0.1)[0], 100, 0.67, 40, 3)
    others = [i for i in range(12) if i not in (4, 5)]
    np.testing.assert_array_equal(y[others], clean[others])
    assert np.isfinite(y).all()


def test_full_scale_samples_become_gaps_but_an_electrode_offset_does_not():
    x = _noise()
    x[0, [50, 400]] = 32.767
    x[1] += 150.0  # a direct-coupled amplifier
    y = signal.drop_impossible(x, 20.0)
    assert np.flatnonzero(np.isnan(y[0])).tolist() == [50, 400]
    assert np.isfinite(y[1:]).all()


def test_flat_leads_are_found_and_coarse_live_leads_are_not():
    rng = np.random.default_rng(1)
    x = _noise()
    x[0] = 0.0
    x[1] = -1.3
    x[2, :800] = 0.2  # 8 of 10 seconds
    x[3, :300] = 0.2  # a late start
    x[4] = np.round(rng.normal(0, 0.02, 1000) / 0.025) * 0.025  # a handful of converter levels
    assert np.flatnonzero(signal.find_flat(x, 100, 0.5)).tolist() == [0, 1, 2]


def test_quiet_leads_are_noise_even_with_one_jump():
    x = _noise()
    x[0] = np.random.default_rng(2).normal(0, 0.002, 1000)
    x[1] = x[0]
    x[1, 500] = 3.0
    x[2] *= 0.1  # spans about 0.14 mV: low voltage, alive
    assert np.flatnonzero(signal.find_quiet(x, 0.05)).tolist() == [0, 1]


def test_railed_lead_is_found_and_a_low_voltage_plateau_is_not():
    x = _noise()
    x[0] = np.clip(x[0] * 10, -5.267, 1.8)  # saturates on one side
    x[1] = np.clip(x[1], -0.2, 0.2)  # many equal extremes, but within the range of a small lead
    assert np.flatnonzero(signal.find_railed(x, 0.02)).tolist() == [0]


@pytest.mark.parametrize("pair", [(i, j) for i in range(6) for j in range(i + 1, 6)])
def test_any_two_limb_leads_give_the_other_four_exactly(pair):
    one, two = np.random.default_rng(3).normal(size=(2, 500))
    limb = np.stack([one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2])
    present = np.zeros(12, bool)
    present[list(pair)] = True
    x = np.zeros((12, 500))
    x[list(pair)] = limb[list(pair)]
    y, now = signal.recover_limb_leads(x, present)
    np.testing.assert_allclose(y[:6], limb, atol=1e-12)
    assert now.tolist() == [True] * 6 + [False] * 6


def test_one_limb_lead_recovers_nothing_and_present_leads_keep_their_values():
    x, present = _noise(), np.zeros(12, bool)
    present[[1, 7]] = True
    y, now = signal.recover_limb_leads(x, present)
    assert (now == present).all() and y is x
    present[:3] = True  # inconsistent with each other: measured leads are not rewritten
    y, _ = signal.recover_limb_leads(x, present)
    np.testing.assert_array_equal(y[:3], x[:3])


@pytest.mark.parametrize("rate", RATES)
def test_one_hertz_keeps_amplitude_and_phase_at_any_rate(rate):
    y = signal.resample(_sine(1.0, rate), rate, 100)
    assert abs(y.shape[1] - 1000) <= 1
    np.testing.assert_allclose(
        y[0, 30:-30], _sine(1.0, 100, 11)[0, 30 : y.shape[1] - 30], atol=0.01
    )


@pytest.mark.parametrize("rate", [250, 257, 360, 500, 977.5, 1000])
def test_sixty_hertz_does_not_fold_back(rate):
    y = signal.resample(_sine(60.0, rate), rate, 100)
    assert np.abs(y[:, 50:-50]).max() < 0.03
    in_band = signal.resample(_sine(35.0, rate), rate, 100)[:, 50:-50]
    assert abs(np.sqrt(2) * in_band.std() - 1) < 0.01


@pytest.mark.parametrize("rate", [95.441, 99.97, 599.9, 999.5, 1000.5])
def test_odd_rates_are_accepted_and_do_not_drift(rate):
    y = signal.resample(_sine(5.0, rate, 60)[:1], rate, 100)[0]
    truth = _sine(5.0, 100, 61)[0, : len(y)]
    assert abs(len(y) - 6000) <= 2
    # 0.2 is 6 ms at the end of a minute
    np.testing.assert_allclose(y[-300:-50], truth[-300:-50], atol=0.2)


def test_resampling_has_no_edge_step():
    y = signal.resample(np.full((12, 5000), 7.0), 500, 100)
    np.testing.assert_allclose(y, 7.0, rtol=2e-3)


def test_equal_rates_change_nothing_and_absurd_rates_are_refused():
    x = _noise()
    assert signal.resample(x, 100.0, 100) is x
    with pytest.raises(InputError, match="too far apart"):
        signal.resample(x, 0.01, 100)


def test_bandpass_is_zero_phase_and_has_scipys_gain():
    x = _sine(5.0, 100) + 2.0 + 0.5 * _sine(0.05, 100)
    y = signal.bandpass(x, 100, 0.67, 40, 3)
    # wander and offset are gone
    np.testing.assert_allclose(y[0, 200:-200], _sine(5.0, 100)[0, 200:-200], atol=0.02)
    noise = _noise(seed=4)
    sos = sps.butter(3, [0.67, 40], "bandpass", fs=100, output="sos")
    np.testing.assert_allclose(
        signal.bandpass(noise, 100, 0.67, 40, 3),
        sps.sosfiltfilt(sos, noise, padlen=150),
        atol=1e-12,
    )


@pytest.mark.parametrize("samples", [2, 20, 100, 200])
def test_bandpass_of_a_very_short_record_is_finite(samples):
    y = signal.bandpass(_noise()[:, :samples], 100, 0.67, 40, 3)
    assert y.shape == (12, samples) and np.isfinite(y).all()


@pytest.mark.parametrize("how", ["lead", "record"])
def test_normalise_round_trip_and_missing_leads(how):
    x = _noise() * np.arange(1, 13)[:, None] + 0.5
    present = np.ones(12, bool)
    present[3] = False
    z, offset, scale = signal.normalise(x, present, how)
    np.testing.assert_allclose((z * scale[:, None] + offset[:, None])[present], x[present])
    assert not z[3].any() and offset[3] == 0 and scale[3] == 1
    if how == "lead":
        np.testing.assert_allclose(z[present].std(axis=1), 1)


def test_one_scale_for_the_record_keeps_einthoven():
    x = _noise() + 0.2
    x[2] = x[1] - x[0]
    z, _, _ = signal.normalise(x, np.ones(12, bool), "record")
    np.testing.assert_allclose(z[LEADS.index("III")], z[1] - z[0], atol=1e-12)
    with pytest.raises(InputError, match="unknown normalise"):
        signal.normalise(x, np.ones(12, bool), "none")


def test_the_filter_of_an_odd_rate_is_small_and_the_edges_of_the_range_are_in_it():
    for rate in (1.0001, 1.003, 1.7, 33.3337, 499.9991, 99_999.0, 100_000.0, 1.0):
        up, down = signal._ratio(rate, 100.0)
        assert max(up, down) <= 10_000 and abs(up / down / (100 / rate) - 1) <= 1.01e-4, rate
    assert signal.resample(np.ones((1, 100_000)), 100_000.0, 100.0).shape == (1, 100)
