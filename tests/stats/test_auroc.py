"""The scores in every table: exact against scikit-learn, honest about absent classes, intervals
that cover."""

import time

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import f1_score as sklearn_f1

from data_prep.base.errors import InputError
from lvcg_jax.stats import auroc
from lvcg_jax.stats.bootstrap import PatientBootstrap, class_intervals, interval


def macro_interval(labels, scores, patients=None, **options):
    """95% interval of the macro AUROC over patients, or over rows."""
    bootstrap = PatientBootstrap(
        np.arange(len(labels)) if patients is None else patients, **options
    )
    values = [auroc.auroc(y, x) for y, x in zip(labels.T, scores.T, strict=True)]
    resampled, _ = auroc.bootstrap_ranks(labels, scores, bootstrap)
    return class_intervals(np.array(values), resampled, bootstrap.carriers(labels))[1]


@pytest.mark.parametrize("levels", [2, 5, 10_000])
def test_auroc_and_average_precision_equal_scikit_learn_with_ties(levels):
    rng = np.random.default_rng(levels)
    for _ in range(20):
        m = int(rng.integers(5, 200))
        labels = rng.random(m) < 0.3
        labels[:2] = [True, False]
        scores = rng.integers(0, levels, m) / levels + 0.1 * labels
        assert auroc.auroc(labels, scores) == pytest.approx(
            roc_auc_score(labels, scores), abs=1e-12
        )
        assert auroc.average_precision(labels, scores) == pytest.approx(
            average_precision_score(labels, scores), abs=1e-12
        )


def test_average_precision_of_a_constant_is_the_share_of_positives():
    labels = np.arange(8) < 2
    assert auroc.average_precision(labels, np.zeros(8)) == 0.25
    assert auroc.average_precision(labels, labels) == 1.0
    assert np.isnan(auroc.average_precision(np.zeros(8, bool), np.arange(8.0)))


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


def test_bootstrap_equals_scikit_learn_with_the_weights_of_the_resamples():
    rng = np.random.default_rng(2)
    labels, scores = rng.random((80, 3)) < 0.4, rng.integers(0, 9, (80, 3)).astype(float)
    yes = scores > 5
    bootstrap = PatientBootstrap(np.arange(80) // 2, resamples=6, seed=3)
    area, precision = auroc.bootstrap_ranks(labels, scores, bootstrap)
    f1 = auroc.bootstrap_f1(labels, yes, bootstrap)
    for block, weights in bootstrap.weights():
        for r, w in zip(range(6)[block], weights.T, strict=True):
            assert w[0] == w[1] != w[2]  # rows of one patient share their weight
            for c in range(3):
                y, x = labels[:, c], scores[:, c]
                expected = [roc_auc_score(y, x, sample_weight=w)]
                expected += [average_precision_score(y, x, sample_weight=w)]
                expected += [sklearn_f1(y, yes[:, c], sample_weight=w)]
                np.testing.assert_allclose([area[r, c], precision[r, c], f1[r, c]], expected)
    nothing = np.zeros((80, 3), bool)
    assert np.isnan(auroc.bootstrap_f1(nothing, yes, bootstrap)).all()
    assert np.isnan(auroc.bootstrap_ranks(nothing, scores, bootstrap)).all()


def test_bootstrap_is_seeded_and_ignores_row_order():
    rng = np.random.default_rng(3)
    labels, scores = rng.random((200, 2)) < 0.4, rng.normal(size=(200, 2))
    patients = np.array([f"p{i // 2:03d}" for i in range(200)])
    one, _ = auroc.bootstrap_ranks(labels, scores, PatientBootstrap(patients, 50, seed=5))
    order = rng.permutation(200)
    again = PatientBootstrap(patients[order], 50, seed=5)
    np.testing.assert_allclose(
        one, auroc.bootstrap_ranks(labels[order], scores[order], again)[0], atol=1e-12
    )
    other = PatientBootstrap(patients, 50, seed=6)
    assert not np.allclose(one, auroc.bootstrap_ranks(labels, scores, other)[0])


# positives among the patients, and true AUROC, of the classes of a simulated task
FEW = ([2, 2, 3, 3, 4, 5, 5, 40, 120], [0.95, 0.8, 0.9, 0.7, 0.85, 0.93, 0.75, 0.85, 0.9])
FEWER = ([2, 2, 3, 4, 5], [0.97, 0.95, 0.9, 0.95, 0.9])
MANY = ([30, 40, 120], [0.8, 0.85, 0.9])


@pytest.mark.parametrize(
    "task, sets", [(FEW, 600), (FEWER, 1000), (MANY, 400)], ids=["few", "fewer", "many"]
)
def test_interval_of_the_macro_auroc_covers_the_true_value(task, sets):
    """Normal scores of 300 patients by two models, in many simulated data sets: 93 to 97% of the
    intervals hold the true macro AUROC, and 92 to 98% of the paired ones the true difference."""
    (counts, truth), patients = task, 300
    classes = len(counts)
    rng = np.random.default_rng(11)
    ranks = rng.random((patients, sets * classes)).argsort(0)
    labels = ranks < np.tile(counts, sets)
    noise = np.sqrt(0.7) * rng.normal(size=labels.shape)
    noise += np.sqrt(0.3) * np.repeat(rng.normal(size=(patients, sets)), classes, axis=1)
    other_noise = np.sqrt(0.7) * noise + np.sqrt(0.3) * rng.normal(size=labels.shape)
    distance = np.sqrt(2) * ndtri(truth)  # AUROC = Phi(distance / sqrt(2))
    gap = np.mean(truth - ndtr((distance - 0.3) / np.sqrt(2)))
    # the data sets are columns of one call: the weights of a resample are the same for all of them
    bootstrap, found = PatientBootstrap(np.arange(patients), resamples=120), []
    for scores in (noise + np.tile(distance, sets) * labels,
                   other_noise + np.tile(distance - 0.3, sets) * labels):  # fmt: skip
        values = [auroc.auroc(y, x) for y, x in zip(labels.T, scores.T, strict=True)]
        found.append((np.array(values), auroc.bootstrap_ranks(labels, scores, bootstrap)[0]))
    carriers, covered = bootstrap.carriers(labels), np.zeros((sets, 2), bool)
    for i in range(sets):
        one = slice(i * classes, (i + 1) * classes)
        (first, resampled), (second, other) = ((x[one], r[:, one]) for x, r in found)
        low, high = class_intervals(first, resampled, carriers[one])[1]
        assert low < first.mean() < high
        covered[i, 0] = low <= np.mean(truth) <= high
        pair = class_intervals(first - second, resampled - other, carriers[one], bounded=False)
        covered[i, 1] = pair[1][0] <= gap <= pair[1][1]
    macro, difference = covered.mean(0)
    print(f"covered: macro AUROC {macro:.4f}, paired difference {difference:.4f}")
    assert 0.93 <= macro <= 0.97
    assert 0.92 <= difference <= 0.98


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


def test_a_class_with_one_positive_is_in_every_resample_and_widens_the_interval():
    rng = np.random.default_rng(6)
    labels = np.zeros((100, 3), bool)
    labels[:50, 0] = labels[50:80, 1] = labels[0, 2] = True
    scores = rng.normal(size=(100, 3)) + labels
    bootstrap = PatientBootstrap(np.arange(100), 300)
    resampled, _ = auroc.bootstrap_ranks(labels, scores, bootstrap)
    assert np.isfinite(resampled).all()
    assert bootstrap.carriers(labels).tolist() == [50, 30, 1]
    values = np.array([auroc.auroc(labels[:, c], scores[:, c]) for c in range(3)])
    by_class, macro = class_intervals(values, resampled, bootstrap.carriers(labels))
    assert np.diff(by_class[2]) > 3 * np.diff(by_class[0])
    assert macro[0] < values.mean() < macro[1]
    # a class whose score is the same for everybody adds nothing
    constant, resampled[:, 2] = np.append(values[:2], 0.5), 0.5
    certain = class_intervals(constant, resampled, [50, 30, 0])
    np.testing.assert_allclose(certain[0][2], 0.5)
    assert np.diff(certain[1]) < np.diff(macro)
    # nothing but single positives: the interval says that little is known
    # a class that is all but certain is not given the whole range from 0 to 1
    near = class_intervals(np.array([0.99999]), 0.99999 - 1e-4 * rng.random((99, 1)), [20])[0]
    assert near[0, 0] > 0.99 and near[0, 1] == 1.0
    low, high = class_intervals(np.array([0.9]), np.full((9, 1), 0.9), [1])[1]
    assert low < 0.1 and high > 0.99


def test_a_thousand_resamples_of_a_test_fold_take_seconds():
    rng = np.random.default_rng(7)
    labels, scores = rng.random((2000, 71)) < 0.05, rng.normal(size=(2000, 71))
    start = time.process_time()
    auroc.bootstrap_ranks(labels, scores, PatientBootstrap(np.arange(2000) // 2))
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
    few = np.array([0.5, 1.5, 1.7])  # the first of those that do best
    assert auroc.best_f1_threshold(np.array([0, 0, 1, 1]), np.arange(4.0), few) == (1.5, 1.0)


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
