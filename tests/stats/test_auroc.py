"""The scores in every table: exact against scikit-learn, honest about absent classes, intervals
that cover."""

import time

import numpy as np
import pytest
from sklearn.metrics import f1_score as sklearn_f1
from sklearn.metrics import roc_auc_score

from data_prep.base.errors import InputError
from lvcg_jax.stats import auroc
from lvcg_jax.stats.bootstrap import PatientBootstrap, interval


def macro_interval(labels, scores, patients=None, **options):
    """95% interval of the macro AUROC over patients, or over rows."""
    bootstrap = PatientBootstrap(
        np.arange(len(labels)) if patients is None else patients, **options
    )
    return interval(auroc.macro_of_resamples(auroc.bootstrap_auroc(labels, scores, bootstrap)))


@pytest.mark.parametrize("levels", [2, 5, 10_000])
def test_auroc_equals_scikit_learn_with_ties(levels):
    rng = np.random.default_rng(levels)
    for _ in range(20):
        m = int(rng.integers(5, 200))
        labels = rng.random(m) < 0.3
        labels[:2] = [True, False]
        scores = rng.integers(0, levels, m) / levels + 0.1 * labels
        assert auroc.auroc(labels, scores) == pytest.approx(
            roc_auc_score(labels, scores), abs=1e-12
        )


def test_auroc_depends_on_order_only_and_flips_with_sign():
    rng = np.random.default_rng(0)
    labels, scores = rng.random(300) < 0.4, rng.normal(size=300)
    value = auroc.auroc(labels, scores)
    assert auroc.auroc(labels, np.exp(scores)) == value
    assert auroc.auroc(labels, -scores) == pytest.approx(1 - value)
    assert auroc.auroc(labels, np.zeros(300)) == 0.5
    assert auroc.auroc(labels, labels) == 1.0


def test_class_without_both_outcomes_is_named_and_left_out():
    rng = np.random.default_rng(1)
    labels = np.stack([rng.random(100) < 0.5, np.zeros(100, bool), np.ones(100, bool)], 1)
    scores = rng.normal(size=(100, 3)) + labels
    mean, per_class, left_out = auroc.macro_auroc(labels, scores, ["AF", "WPW", "NORM"])
    assert left_out == ["WPW", "NORM"]
    assert list(per_class) == ["AF"] and mean == per_class["AF"] > 0.6
    assert np.isnan(auroc.macro_auroc(labels[:, 1:], scores[:, 1:])[0])


def test_bootstrap_equals_scikit_learn_on_the_resampled_rows():
    rng = np.random.default_rng(2)
    m = 80
    labels, scores = rng.random((m, 3)) < 0.4, rng.integers(0, 9, (m, 3)).astype(float)
    weights = rng.integers(0, 4, (m, 6)).astype(float)
    for c in range(3):
        order = np.argsort(scores[:, c], kind="stable")
        ours = auroc._weighted_auroc(labels[:, c], scores[:, c], order, weights)
        for r in range(6):
            rows = np.repeat(np.arange(m), weights[:, r].astype(int))
            assert ours[r] == pytest.approx(
                roc_auc_score(labels[rows, c], scores[rows, c]), abs=1e-12
            )


def test_bootstrap_of_f1_equals_scikit_learn_on_the_resampled_rows():
    rng = np.random.default_rng(12)
    labels, yes = rng.random((60, 2)) < 0.3, rng.random((60, 2)) < 0.4
    bootstrap = PatientBootstrap(np.arange(60) // 3, resamples=5, seed=3)
    ours = auroc.bootstrap_f1(labels, yes, bootstrap)
    for block, weights in bootstrap.weights():
        for r, w in zip(range(5)[block], weights.T, strict=True):
            rows = np.repeat(np.arange(60), w.astype(int))
            expected = [sklearn_f1(labels[rows, c], yes[rows, c]) for c in range(2)]
            np.testing.assert_allclose(ours[r], expected)
    rows = PatientBootstrap(np.arange(9), resamples=4)
    nothing = auroc.bootstrap_f1(np.zeros((9, 1), bool), np.ones((9, 1), bool), rows)
    assert np.isnan(nothing).all()


def test_bootstrap_is_seeded_and_ignores_row_order():
    rng = np.random.default_rng(3)
    labels, scores = rng.random((200, 2)) < 0.4, rng.normal(size=(200, 2))
    patients = np.array([f"p{i // 2:03d}" for i in range(200)])
    one = auroc.bootstrap_auroc(labels, scores, PatientBootstrap(patients, 50, seed=5))
    order = rng.permutation(200)
    again = PatientBootstrap(patients[order], 50, seed=5)
    np.testing.assert_allclose(
        one, auroc.bootstrap_auroc(labels[order], scores[order], again), atol=1e-12
    )
    other = PatientBootstrap(patients, 50, seed=6)
    assert not np.allclose(one, auroc.bootstrap_auroc(labels, scores, other))


def test_interval_covers_the_true_value():
    # Normal scores one standard deviation apart: true AUROC = Phi(1 / sqrt(2)) = 0.7602.
    rng = np.random.default_rng(4)
    covered = 0
    for trial in range(200):
        labels = rng.random((150, 1)) < 0.4
        scores = rng.normal(size=(150, 1)) + labels
        low, high = macro_interval(labels, scores, resamples=200, seed=trial)
        covered += low <= 0.7602 <= high
    assert 0.89 <= covered / 200 <= 0.99


def test_patients_with_copied_records_do_not_narrow_the_interval():
    rng = np.random.default_rng(5)
    labels = rng.random((200, 1)) < 0.4
    scores = rng.normal(size=(200, 1)) + labels
    patients = np.arange(200)
    copied = [np.repeat(a, 8, axis=0) for a in (labels, scores, patients)]
    width = np.diff(macro_interval(labels, scores))[0]
    by_row = np.diff(macro_interval(copied[0], copied[1]))[0]
    by_patient = np.diff(macro_interval(*copied))[0]
    assert by_row < 0.5 * width
    assert by_patient == pytest.approx(width, rel=0.15)


def test_rare_class_missing_from_some_resamples_is_not_scored_there():
    labels = np.zeros((100, 2), bool)
    labels[:50, 0] = True
    labels[0, 1] = True
    scores = np.random.default_rng(6).normal(size=(100, 2))
    resampled = auroc.bootstrap_auroc(labels, scores, PatientBootstrap(np.arange(100), 300))
    missing = np.isnan(resampled[:, 1])
    assert 0.25 < missing.mean() < 0.5  # (1 - 1/100)^100 = 0.37
    np.testing.assert_allclose(auroc.macro_of_resamples(resampled)[missing], resampled[missing, 0])


def test_a_thousand_resamples_of_a_test_fold_take_seconds():
    rng = np.random.default_rng(7)
    labels, scores = rng.random((2000, 23)) < 0.05, rng.normal(size=(2000, 23))
    start = time.process_time()
    auroc.bootstrap_auroc(labels, scores, PatientBootstrap(np.arange(2000) // 2))
    assert time.process_time() - start < 20


def test_best_threshold_is_the_best_of_all_thresholds():
    rng = np.random.default_rng(8)
    for _ in range(20):
        labels = rng.random(60) < 0.3
        labels[0] = True
        scores = rng.integers(0, 12, 60) + 3.0 * labels
        threshold, f1 = auroc.best_f1_threshold(labels, scores)
        assert f1 == pytest.approx(max(sklearn_f1(labels, scores >= t) for t in np.unique(scores)))
        assert f1 == pytest.approx(auroc.f1_score(labels, scores >= threshold))
    assert np.isnan(auroc.best_f1_threshold(np.zeros(4), np.arange(4.0))[0])


@pytest.mark.parametrize(
    "labels, scores, words",
    [
        (np.array([0, 1, 2]), np.zeros(3), "0 or 1"),
        (np.array([0, 1, 1]), np.array([0.0, np.nan, 1.0]), "not finite"),
        (np.array([0, 1]), np.zeros(3), "one length"),
    ],
)
def test_unusable_input_says_why(labels, scores, words):
    with pytest.raises(InputError, match=words):
        auroc.auroc(labels, scores)


def test_a_summary_is_that_of_the_rows_of_the_patients_drawn():
    rng = np.random.default_rng(9)
    patients = np.array([f"p{i}" for i in rng.integers(0, 12, 40)])
    values = np.where(rng.random(40) < 0.2, np.nan, rng.normal(size=40))
    bootstrap = PatientBootstrap(patients, resamples=30, seed=2)
    names, means, medians = np.unique(patients), [], []
    for _, drawn in bootstrap.draws():
        for some in drawn:
            rows = [values[patients == names[n]] for n in some]
            means.append(np.nanmean(np.concatenate(rows)))
            medians.append(np.median([np.nanmean(x) for x in rows if np.isfinite(x).any()]))
    found = bootstrap.summary(values)
    assert (found["low"], found["high"]) == pytest.approx(interval(np.array(means)))
    assert (found["median_low"], found["median_high"]) == pytest.approx(interval(np.array(medians)))
    assert found["mean"] == pytest.approx(np.nanmean(values))
    assert np.isnan(list(bootstrap.summary(np.full(40, np.nan)).values())).all()
