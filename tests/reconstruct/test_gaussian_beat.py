"""The Gaussian model of the beat: its closed form, what it may see, and its error bars."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.base.lottery import fold_of
from data_prep.ecg.leads import LEADS, lead_mask
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.reconstruct import bands, beat_widths, gaussian_beat
from lvcg_jax.reconstruct.gaussian_beat import (
    NAME,
    GaussianBeat,
    Posterior,
    calibration_of,
    place,
    read_at,
)
from lvcg_jax.reconstruct.unlike import add_noise_lead
from lvcg_jax.reconstruct.views import with_limb_leads

SAMPLES = 8
SHOWN = lead_mask(np.isin(LEADS, ["II", "V2"]))


def make_window(rng, maps, beats=6, there=4095, patient=None):
    """A record of smooth beats, of which the last half is missing in the last slot. All leads are
    mixtures `maps` [2][12*8,3] of a few numbers: three of the record and three of each beat. With
    a `patient` [12*8], that is added to the leads."""
    common, change = maps
    own = 0.0 if patient is None else patient
    x = own + common @ rng.normal(size=3) + (change @ rng.normal(size=(3, beats))).T
    x = (x + 0.3 * rng.normal(size=x.shape)).reshape(beats, len(LEADS), SAMPLES)
    length = np.full(beats, SAMPLES)  # so that no sample is interpolated
    complete = np.ones(beats, bool)
    length[-1], complete[-1] = SAMPLES // 2, False
    half = x[-1:, :, : SAMPLES // 2]  # stretched to a slot, as it would be stored
    x[-1:] = read_at(half, np.linspace(0, 1, SAMPLES)[None])
    start = np.cumsum(length) - length
    return {
        "beats": x.astype(np.float32),
        "signal": stitch_beats(x, start, length, int(length.sum())),
        "start": start,
        "length": length,
        "complete": complete,
        "num_samples": int(length.sum()),
        "lead_mask": there,
        "patient_id": str(rng.integers(10**9)),
        "visible": SHOWN,
        "scale": np.linspace(0.5, 2.0, 12).astype(np.float32),
        "offset": np.zeros(12, np.float32),
    }


@pytest.fixture(scope="module")
def maps():
    rng = np.random.default_rng(7)
    return rng.normal(size=(len(LEADS) * SAMPLES, 3)), 0.5 * rng.normal(
        size=(len(LEADS) * SAMPLES, 3)
    )


@pytest.fixture(scope="module")
def fitted(maps):
    rng, method = np.random.default_rng(0), GaussianBeat()
    method.fit([make_window(rng, maps) for _ in range(600)])
    return method


def test_the_posterior_is_that_of_the_joint_gaussian():
    rng = np.random.default_rng(1)
    factor = rng.normal(size=(6, 6))
    gaussian = gaussian_beat.Gaussian(factor @ factor.T, 0.3)
    seen = np.array([[True, False, True], [False, True, False]])
    x = rng.normal(size=(4, 2, 3))
    posterior = Posterior(gaussian, seen)
    # the inverse of the joint precision of hidden samples, given those seen with noise
    v = seen.ravel()
    observed = np.eye(6)[v]
    precision = np.linalg.inv(gaussian.covariance) + observed.T @ observed / 0.3
    expected = np.linalg.solve(precision, observed.T / 0.3 @ x.reshape(4, 6)[:, v].T).T
    np.testing.assert_allclose(posterior.mean(x).reshape(4, 6), expected, atol=1e-9)
    spread = np.diag(np.linalg.inv(precision))
    np.testing.assert_allclose(posterior.variance().ravel(), spread, atol=1e-9)


def test_hidden_leads_are_derived_and_cannot_be_seen(fitted, maps):
    rng = np.random.default_rng(2)
    windows = [make_window(rng, maps) for _ in range(20)]
    hidden = ~np.isin(LEADS, ["II", "V2"])
    truth = np.stack([w["signal"] for w in windows])
    (found,) = fitted.predict(windows).values()
    error = ((np.stack(found) - truth)[:, hidden] ** 2).mean() / (truth[:, hidden] ** 2).mean()
    assert error < 0.2  # two leads of eight samples show the six numbers behind all of it
    spoilt = []
    for window in windows:
        beats, signal = window["beats"].copy(), window["signal"].copy()
        beats[:, hidden], signal[hidden] = 99.0, 99.0
        spoilt.append(window | {"beats": beats, "signal": signal})
    np.testing.assert_array_equal(np.stack(fitted.predict(spoilt)[NAME]), np.stack(found))
    for one, two in zip(
        *(fitted.predict_with_bars(x)[NAME] for x in (windows, spoilt)), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    shown = ~hidden
    np.testing.assert_array_equal(np.stack(found)[:, shown], truth[:, shown].astype(np.float32))


def test_ninety_per_cent_bands_hold_ninety_per_cent(fitted, maps):
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(60):
        window = make_window(rng, maps)
        signal, deviation = fitted.derive(window, bars=True)
        hidden = deviation.max(1) > 0
        whole = slice(0, window["start"][-1])  # the last slot is stretched twice here
        z = (window["signal"] - signal)[hidden, whole] / deviation[hidden, whole]
        inside.append((np.abs(z) < 1.645).mean())
    assert 0.85 < np.mean(inside) < 0.97, np.mean(inside)


def test_a_record_unlike_the_training_records_gets_a_wider_band(maps):
    """Records of all sizes: errors grow with the size, which the visible leads show."""
    rng, method = np.random.default_rng(8), GaussianBeat()

    def sized(size):
        window = make_window(rng, maps)
        return window | {name: size * window[name] for name in ("beats", "signal")}

    method.fit([sized(np.exp(0.7 * rng.normal())) for _ in range(600)])
    assert len(method.widths.held) > 20
    usual, outlier = (
        np.mean([method.derive(sized(size), bars=True)[1].mean() for _ in range(20)])
        for size in (1.0, 6.0)
    )
    assert outlier > 2 * usual
    # and so does one of which a visible lead is noise
    noisy = [add_noise_lead(sized(1.0) | {"uid": i}) for i in range(20)]
    assert np.mean([method.derive(w, bars=True)[1].mean() for w in noisy]) > 1.1 * usual
    coverage = []
    for _ in range(100):
        window = sized(np.exp(0.7 * rng.normal()))
        signal, deviation = method.derive(window, bars=True)
        hidden, whole = deviation.max(1) > 0, slice(0, window["start"][-1])
        off = np.abs(window["signal"] - signal)[hidden, whole]
        coverage.append((off < bands.REACH * deviation[hidden, whole]).mean())
    assert 0.87 < np.mean(coverage) < 0.93, np.mean(coverage)


def test_the_patients_held_out_for_the_bands_are_in_no_covariance(maps):
    rng, method = np.random.default_rng(9), GaussianBeat()
    windows = [make_window(rng, maps) for _ in range(400)]
    held = [w for w in windows if not fold_of(w["patient_id"], beat_widths.HELD_FOLDS)]
    method.fit(windows)
    common, assert_same = method.gaussians.parts["common"].covariance, np.testing.assert_array_equal
    assert len(method.widths.held) == len(held) > 20
    for window in held:
        window["beats"] = 9 * window["beats"]
    method.fit(windows)
    assert_same(method.gaussians.parts["common"].covariance, common)
    # too few to learn from: nobody is held out
    method.fit(windows[:50])
    assert not method.widths.held
    assert np.isfinite(method.predict_with_bars(windows[:1])[NAME][0][1]).all()


def test_the_factors_of_a_band_are_quantiles_given_what_a_record_is_known_by():
    rng = np.random.default_rng(10)
    far, hidden = rng.normal(size=(400, 1)), np.tile([True, True, False], (400, 1))
    sizes = np.exp(0.5 * far[:, 0])
    errors = [s * np.array([1.0, 3.0, 0])[:, None] * rng.normal(size=(5, 3, 8)) for s in sizes]
    found = bands.learn_widening(far, 1, errors, hidden)
    middle = found.of_record(np.array([0.0]))
    np.testing.assert_allclose(middle * found.sample[:2].mean(1), [1.0, 3.0], rtol=0.05)
    assert (found.sample[2] == 1).all()
    ratio = found.of_record(np.array([1.0])) / middle
    assert ratio == pytest.approx(np.exp(0.5), rel=0.05)
    assert found.of_record(np.array([np.nan])) == 1
    assert found.of_record(np.array([-99.0])) == pytest.approx(np.exp(found.least))
    # errors that shrink with the distance narrow no band
    assert not bands.learn_widening(-far, 1, errors, hidden).weight.any()


def test_partial_slots_lie_in_their_place_and_come_back():
    grid = np.linspace(0.0, 1.0, 101)
    beat = np.sin(2 * np.pi * grid)[None, None]
    first = read_at(beat, 0.75 + 0.25 * grid[None])  # the last quarter of a beat
    last = read_at(beat, 0.4 * grid[None])
    slots = np.concatenate([first, beat, beat, last])
    complete = np.array([False, True, True, False])
    placed = place(slots, np.array([20.0, 80.0, 80.0, 32.0]), complete)
    for n, (low, high) in enumerate([(0.75, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.4)]):
        inside = (grid > low - 1e-6) & (grid < high + 1e-6)
        np.testing.assert_array_equal(placed.covered[n], inside)
        np.testing.assert_allclose(placed.beats[n, 0, inside], beat[0, 0, inside], atol=2e-3)
    np.testing.assert_allclose(read_at(placed.beats, placed.back), slots, atol=4e-3)


def test_a_record_without_a_complete_beat_is_derived_all_the_same(fitted, maps):
    window = make_window(np.random.default_rng(4), maps, beats=1)
    signal, deviation = fitted.derive(window, bars=True)
    assert np.isfinite(signal).all() and np.isfinite(deviation).all()


def test_training_records_may_lack_leads_but_not_all_of_them(maps):
    rng, method = np.random.default_rng(5), GaussianBeat()
    most = lead_mask(np.array(LEADS) != "V6")
    windows = [make_window(rng, maps, there=most) for _ in range(20)]
    with pytest.raises(InputError, match="no training record has V6"):
        method.fit(windows)
    method.fit([*windows, make_window(rng, maps)])
    assert np.isfinite(method.predict(windows)[NAME]).all()
    with pytest.raises(InputError, match="no training record has a complete beat"):
        method.fit([make_window(rng, maps, beats=1)])


def test_an_earlier_record_with_all_leads_calibrates(maps):
    """What is a patient's own, and cannot be seen in the visible leads, is known from that
    record."""
    rng = np.random.default_rng(8)
    names = (gaussian_beat.NAME, gaussian_beat.CALIBRATED)
    method = GaussianBeat(names)

    def visits(number: int) -> list[dict]:
        patient = rng.normal(size=len(LEADS) * SAMPLES)
        windows = [make_window(rng, maps, patient=patient) for _ in range(2)]
        return [window | {"patient_id": str(number)} for window in windows]

    method.fit([window for number in range(300) for window in visits(number)])
    errors, inside, widths = ({name: [] for name in names} for _ in range(3))
    for number in range(60):
        first, later = visits(number)
        later["calibration"] = calibration_of([first])
        whole = slice(0, later["start"][-1])  # the last slot is stretched twice here
        for name, ((signal, deviation),) in method.predict_with_bars([later]).items():
            np.testing.assert_array_equal(signal, method.predict([later])[name][0])
            off, hidden = np.abs(signal - later["signal"]), deviation.max(1) > 0
            errors[name].append((off**2).mean())
            inside[name].append((off < bands.REACH * deviation)[hidden, whole].mean())
            widths[name].append(deviation.mean())
    plain, calibrated = (np.mean(errors[name]) for name in names)
    assert calibrated < 0.7 * plain, (plain, calibrated)
    for name in names:
        assert 0.86 < np.mean(inside[name]) < 0.94, (name, np.mean(inside[name]))
    assert np.mean(widths[names[1]]) < 0.9 * np.mean(widths[names[0]])
    # too few patients with two records held out: the factor of records without calibration
    method.widths.held = method.widths.held[::2]
    method.widths = beat_widths.BeatWidths(method.gaussians, method.widths.held)
    again = method.derive(later, bars=True, calibrated=True)[1]
    plain = method.derive(later, bars=True)[1]
    assert again.max() > 0 and (again != plain).any()
    with pytest.raises(InputError, match="no training patient has two records"):
        method.fit([make_window(rng, maps) | {"patient_id": str(i)} for i in range(3)])


def test_limb_leads_follow_from_two_visible_ones(maps):
    window = make_window(np.random.default_rng(6), maps)
    window["visible"] = lead_mask(np.isin(LEADS, ["I", "II", "V2"]))
    whole = with_limb_leads(window)
    assert whole["visible"] == lead_mask(np.isin(LEADS, [*LEADS[:6], "V2"]))
    mv = dict(zip(LEADS, whole["signal"] * window["scale"][:, None], strict=True))
    np.testing.assert_allclose(mv["III"], mv["II"] - mv["I"], atol=1e-5)
    np.testing.assert_allclose(mv["aVF"], mv["II"] - mv["I"] / 2, atol=1e-5)
    np.testing.assert_allclose(mv["I"], window["signal"][0] * window["scale"][0], atol=1e-5)
    stitched = stitch_beats(whole["beats"], whole["start"], whole["length"], whole["num_samples"])
    np.testing.assert_allclose(stitched, whole["signal"], atol=1e-4)
    window["visible"] = SHOWN
    assert with_limb_leads(window) is window
