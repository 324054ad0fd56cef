"""The no-learning control: it must be a fair opponent, so it must be exact and must not look at
test rows."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from lvcg_jax.probe import median_beat
from lvcg_jax.stats import scaling


def example(seed=0, n=6, p=16, **changes):
    rng = np.random.default_rng(seed)
    complete = np.ones(n, bool)
    complete[[0, -1]] = False
    lengths = rng.integers(60, 110, n).astype(np.int32)
    beats = rng.normal(size=(n, 12, p)).astype(np.float16)
    return {"beats": beats, "length": lengths, "complete": complete, "rate": 100.0} | changes


def test_partial_and_outlying_beats_do_not_move_the_median_beat():
    one = example(n=9)
    spoiled = one | {"beats": one["beats"].copy()}
    spoiled["beats"][[0, -1]] = 1000.0
    np.testing.assert_array_equal(median_beat.median_beat(one), median_beat.median_beat(spoiled))
    same = one | {"beats": np.repeat(one["beats"][1:2], 9, axis=0)}
    same["beats"][4] = 1000.0
    np.testing.assert_array_equal(
        median_beat.median_beat(same), one["beats"][1].astype(np.float32).ravel()
    )


def test_record_without_complete_beat_uses_what_it_has():
    one = example(complete=np.zeros(6, bool))
    expected = np.median(one["beats"].astype(np.float32), axis=0).ravel()
    np.testing.assert_array_equal(median_beat.median_beat(one), expected)
    np.testing.assert_array_equal(median_beat.rr_features(one), np.zeros(7))


def test_missing_lead_is_zero_whatever_is_stored_there():
    one = example(lead_mask=4095 & ~(1 << 7))  # V2 missing
    beat = median_beat.median_beat(one).reshape(12, -1)
    assert not beat[7].any() and beat[6].any() and beat[8].any()
    empty = example()
    empty["beats"][:, 3] = np.nan
    assert np.isfinite(median_beat.median_beat(empty)).all()


def test_sizes_are_logarithms_and_a_missing_lead_gets_the_mean():
    scale = np.linspace(0.1, 0.5, 12)
    sizes = median_beat.log_sizes(
        {"lead_mask": 4095 & ~(1 << 7), "scale": np.where(np.arange(12) == 7, 0.0, scale)}
    )
    present = np.arange(12) != 7
    np.testing.assert_allclose(sizes[present], np.log(scale[present]), rtol=1e-6)
    np.testing.assert_allclose(sizes[7], np.log(scale[present]).mean(), rtol=1e-6)


def test_rr_features_are_seconds_of_complete_beats():
    one = example(length=np.array([999, 80, 100, 90, 110, 999]))
    expected = [0.95, np.std([0.8, 1.0, 0.9, 1.1]), 0.8, 1.1, np.std([0.8, 1.0, 0.9, 1.1]) / 0.95]
    expected += [np.sqrt((0.04 + 0.01 + 0.04) / 3), 4]
    np.testing.assert_allclose(median_beat.rr_features(one), expected, rtol=1e-6)
    np.testing.assert_allclose(
        median_beat.rr_features(one, rate=200)[:4], np.array(expected)[:4] / 2, rtol=1e-6
    )
    assert median_beat.rr_features(example(complete=np.eye(6, dtype=bool)[2]))[[1, 5]].tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("rows", [30, 400])
def test_pca_is_exact_and_leaves_out_what_the_rows_do_not_span(rows):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 60)) * np.linspace(3, 0.1, 60)
    ours = scaling.fit_pca(x, 10)
    _, singular, axes = np.linalg.svd(x - x.mean(0), full_matrices=False)
    expected = (x - x.mean(0)) @ axes[:10].T
    np.testing.assert_allclose(np.abs(ours.transform(x)), np.abs(expected), atol=1e-9)
    share = singular[:10] ** 2 / (singular**2).sum()
    np.testing.assert_allclose(ours.explained_variance_ratio_, share, rtol=1e-9)
    np.testing.assert_array_equal(ours.transform(x), scaling.fit_pca(x.copy(), 10).transform(x))
    flat = x[:, :3] @ rng.normal(size=(3, 60)) + 5.0
    assert scaling.fit_pca(flat, 10).transform(flat).shape == (rows, 3)
    assert scaling.fit_pca(np.ones((rows, 60)), 10).transform(x).shape == (rows, 0)


def test_pca_is_fitted_on_training_rows_only():
    beats, rr = median_beat.raw_features([example(seed) for seed in range(40)])
    is_train = np.arange(40) < 25
    features = median_beat.median_beat_features(beats, rr, is_train, components=8)
    assert features.shape == (40, 8 + 7) and features.dtype == np.float32
    np.testing.assert_array_equal(features[:, 8:], rr)
    altered = np.where(is_train[:, None], beats, beats + 100)
    again = median_beat.median_beat_features(altered, rr, is_train, components=8)
    np.testing.assert_array_equal(again[is_train], features[is_train])


def test_few_training_rows_give_fewer_components():
    beats, rr = median_beat.raw_features([example(seed) for seed in range(10)])
    features = median_beat.median_beat_features(beats, rr, np.ones(10, bool))
    assert features.shape == (10, 9 + 7) and np.isfinite(features).all()


def test_unusable_input_says_why():
    with pytest.raises(InputError, match="r17 has no beat"):
        median_beat.median_beat(example(record_id="r17", beats=np.zeros((0, 12, 16))))
    with pytest.raises(InputError, match="at least one record"):
        median_beat.raw_features([])
    with pytest.raises(InputError, match="two rows"):
        scaling.fit_pca(np.zeros((1, 4)))
