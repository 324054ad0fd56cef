"""Calibrated probabilities: the known answer, a sane one where there is little to learn from, and
scores that equal scikit-learn's."""

import itertools

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from lvcg_jax.stats import calibration
from lvcg_jax.stats.spread import fit_spread


def planted(m=4000, seed=0):
    """Scores of three classes, whose true probabilities are expit(slope * score + offset)."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(m, 3)) * [2, 1, 3] - [0, 1, 2]
    truth = expit(np.array([0.5, 1.0, 2.0]) * scores + [0.0, -0.5, 1.0])
    return rng.uniform(size=(m, 3)) < truth, scores, truth


def test_platt_equals_scikit_learn_where_there_is_much_to_learn_from():
    y, scores, truth = planted()
    platt = calibration.fit_platt(y, scores)
    for c in range(3):
        reference = LogisticRegression(C=1e6, tol=1e-8).fit(scores[:, [c]], y[:, c])
        assert platt[0, c] == pytest.approx(reference.coef_[0, 0], abs=0.02)
        assert platt[1, c] == pytest.approx(reference.intercept_[0], abs=0.02)
    fitted = calibration.apply_platt(platt, scores)
    assert np.abs(fitted - truth).mean() < 0.01
    raw, after = (
        calibration.error_of(calibration.reliability(y, p)) for p in (expit(scores), fitted)
    )
    assert raw > 0.02 > 0.012 > after


def test_classes_of_few_positives_keep_to_the_common_slope_and_none_turns_a_ranking_round():
    y, scores, _ = planted(400)
    y[:, 1] = False
    y[:, 2] = scores[:, 2] < np.quantile(scores[:, 2], 0.5)  # the wrong way round
    platt = calibration.fit_platt(y, scores)
    assert np.isfinite(platt).all() and 0 < platt[0, 2] < 0.1 < platt[0, 0]
    assert calibration.apply_platt(platt, scores)[:, 1].max() < 0.5
    constant = calibration.fit_platt(y[:, :1], np.zeros((400, 1)))  # a score that says nothing
    share = y[:, 0].mean()
    assert calibration.apply_platt(constant, np.zeros(1)) == pytest.approx(share, abs=0.02)
    assert calibration.fit_platt(y[:3], scores[:3]).shape == (2, 3)


def test_brier_and_calibration_error_are_those_of_their_definition():
    y, scores, _ = planted(500)
    p = expit(scores)
    for c in range(3):
        assert calibration.brier(y, p)[c] == pytest.approx(brier_score_loss(y[:, c], p[:, c]))
    bins = calibration.reliability(y, p)
    assert bins[:, 0].sum() == y.size and bins[:, 2].sum() == y.sum()
    edges = np.linspace(0, 1, calibration.BINS + 1)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        here = (p >= low) & ((p < high) | (high == 1))
        if here.any():
            total += here.mean() * abs(p[here].mean() - y[here].mean())
    assert calibration.error_of(bins) == pytest.approx(total, abs=1e-9)
    perfect = calibration.reliability(y, y.astype(float))
    assert calibration.error_of(perfect) == 0.0


def test_far_rows_are_told_by_their_distance_whatever_the_direction():
    rng = np.random.default_rng(1)
    axes = rng.normal(size=(30, 4))
    x = rng.normal(size=(600, 4)) * [9, 5, 3, 2] @ axes.T + 0.3 * rng.normal(size=(600, 30))
    x = np.concatenate([x, np.ones((600, 1))], axis=1).astype(np.float32)  # and a constant feature
    scale = np.append(x[:, :30].std(0), np.inf).astype(np.float32)
    spread = fit_spread(x[:400], x[:400].mean(0), scale, np.arange(400))
    nearer = spread.share_nearer(spread.distance(x[400:]))
    assert 0.4 < nearer.mean() < 0.6 and (nearer > 0.95).mean() < 0.15
    # a step of a size that is usual along the axes, in a direction that no row has
    odd = x[400:].copy()
    odd[:, 0] += 3 * scale[0]
    assert (spread.share_nearer(spread.distance(odd)) > 0.95).mean() > 0.9
    # windows of a record count as one
    pairs = fit_spread(x[:400], x[:400].mean(0), scale, np.arange(400) // 2)
    assert pairs.quantiles[-1] < spread.quantiles[-1]
