"""The probe behind every table: fair subsets, no leak, right numbers, and a clear word on anything
left out."""

import csv
import itertools
import json

import numpy as np
import pytest
from helpers.commands import assert_one_line_error
from helpers.commands import run as run_command
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table, align_features, load_table, save_table
from lvcg_jax.probe import __main__ as probing_door
from lvcg_jax.probe import study
from lvcg_jax.probe.labels import ensure_splits, join_labels, label_subsets, plain_subsets
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge, part_weights
from lvcg_jax.stats import auroc

CLASSES = ["AF", "MI", "NORM"]


def planted(seed=0, patients=300, d=20, noise=1.0):
    """Two records a patient; three classes that are linear in the first features; splits by
    patient."""
    rng = np.random.default_rng(seed)
    m = 2 * patients
    x = rng.normal(size=(m, d)).astype(np.float32) * rng.uniform(0.5, 2, d).astype(np.float32)
    labels = x[:, :3] / x[:, :3].std(0) + noise * rng.normal(size=(m, 3)) > [0.3, 0.9, 1.3]
    groups = np.array([f"p{i // 2:04d}" for i in range(m)])
    splits = np.repeat(rng.choice(["train", "validation", "test"], patients, p=[0.6, 0.2, 0.2]), 2)
    return x, labels, groups, splits


def run(features, labels, groups, splits, **options):
    options = {"fractions": (1.0,), "seeds": 1, "resamples": 100, "class_names": CLASSES} | options
    models = features if isinstance(features, dict) else {"model": features}
    return study.probe(models, labels, groups, splits, **options)


def table(seed=0, **changes):
    x, labels, groups, splits = planted(seed)
    rows = [
        {"diagnosis": [name for name, yes in zip(CLASSES, row, strict=True) if yes]}
        for row in labels
    ]
    ids = np.array([f"r{i:04d}" for i in range(len(x))])
    values = {
        "record_id": ids,
        "patient_id": groups,
        "split": splits,
        "labels": rows,
        "embedding": x,
    }
    values |= {"parts": {"structure": 12, "dynamics": 8}, "metadata": {"preprocess_hash": "abc"}}
    return Table(**(values | changes))


def test_subsets_are_nested_whole_patients_with_every_class():
    _, labels, groups, _ = planted(patients=400)
    labels[:, 2] = False
    labels[[5, 200, 555], 2] = True  # a rare class: three patients
    for seed in range(5):
        subsets = label_subsets(groups, labels, (0.01, 0.1, 1.0), seed)
        assert subsets[1.0].all()
        assert not (subsets[0.01] & ~subsets[0.1]).any()
        for fraction, rows in subsets.items():
            assert not set(groups[rows]) & set(groups[~rows])
            assert abs(rows.sum() - fraction * len(rows)) <= 2
            assert labels[rows].any(0).all()
        share = labels[subsets[0.1], 0].mean()
        assert abs(share - labels[:, 0].mean()) < 0.05


def test_subsets_differ_by_seed_and_ignore_row_and_column_order():
    _, labels, groups, _ = planted()
    order = np.random.default_rng(1).permutation(len(groups))
    one = label_subsets(groups, labels, (0.1,), 0)[0.1]
    assert set(groups[one]) != set(groups[label_subsets(groups, labels, (0.1,), 1)[0.1]])
    again = label_subsets(groups[order], labels[order][:, [2, 0, 1]], (0.1,), 0)[0.1]
    assert set(groups[one]) == set(groups[order][again])


def test_plain_subsets_are_nested_records_whatever_the_order_of_the_rows():
    records = np.array([f"r{i // 2:03d}" for i in range(400)])  # two windows each
    subsets = plain_subsets(records, (0.001, 0.013, 0.1, 1.0), 0)
    assert [int(s.sum()) for s in subsets.values()] == [400, 40, 6, 2]  # rounded, at least one
    assert all((a | b == a).all() for a, b in itertools.pairwise(subsets.values()))
    drawn = set(records[subsets[0.1]])
    assert len(drawn) == 20 and drawn != set(records[plain_subsets(records, (0.1,), 1)[0.1]])
    order = np.random.default_rng(1).permutation(400)
    assert set(records[order][plain_subsets(records[order], (0.1,), 0)[0.1]]) == drawn


def rare_class():
    """The planted rows with a class that only two training patients have."""
    x, labels, groups, splits = planted()
    rare = groups[splits == "train"][[0, 100]]
    labels[:, 1] &= (splits != "train") | np.isin(groups, rare)
    labels[np.isin(groups, rare), 1] = True
    return x, labels, groups, splits


def test_plain_draw_scores_every_class_and_one_without_a_positive_as_none_of_the_others():
    x, labels, groups, splits = rare_class()
    kept = {}
    options = {"fractions": (0.03, 1.0), "draw": "plain", "on_run": listen(kept)}
    plain = run(x, labels, groups, splits, **options)
    few, full = plain["cells"]
    assert plain["draw"] == "plain" and list(few["per_class"]) == CLASSES
    rare = few["per_class"]["MI"]
    assert rare["train_positives"] == [0] and full["per_class"]["MI"]["train_positives"] == [4]
    positives = [entry["train_positives"][0] for entry in few["per_class"].values()]
    scores, y = kept["model", 0.03, 0][2], labels[splits == "test", 1]
    np.testing.assert_array_equal(scores[:, 1], -scores[:, np.argmax(positives)])
    assert rare["auroc"] == pytest.approx(roc_auc_score(y, scores[:, 1])) != 0.5
    assert rare["low"] < rare["auroc"] < rare["high"]
    for metric in ("auroc", "auprc", "f1"):
        by_class = [entry[metric] for entry in few["per_class"].values()]
        assert few[f"macro_{metric}"] == pytest.approx(np.mean(by_class))
    assert few["low"] < few["macro_auroc"] < few["high"]
    assert [note for note in plain["notes"] if "MI" in note] == [
        "0.03 of the labels: MI has one outcome only in a subset, scored there as the opposite of"
        " the commonest class"
    ]
    json.dumps(plain, allow_nan=False)
    # the other draw takes care of the class, and with all labels the two are one
    guaranteed = run(x, labels, groups, splits, fractions=(0.03, 1.0))
    assert guaranteed["draw"] == "guaranteed" and guaranteed["cells"][1] == full
    assert guaranteed["cells"][0]["per_class"]["MI"]["train_positives"] == [2]
    with pytest.raises(InputError, match="unknown draw 'fair' of label subsets; choose guar"):
        run(x, labels, groups, splits, draw="fair")


def test_plain_draw_averages_subsets_that_teach_a_class_with_those_that_cannot():
    x, labels, groups, splits = rare_class()
    options = {"fractions": (0.15,), "draw": "plain"}
    several = run(x, labels, groups, splits, seeds=6, **options)["cells"][0]
    positives = np.array(several["per_class"]["MI"]["train_positives"])
    assert (positives == 0).any() and (positives > 0).any()
    kept = {}
    run(x, labels, groups, splits, seeds=6, on_run=listen(kept), **options)
    y, scores = labels[splits == "test"], [kept["model", 0.15, s][2] for s in range(6)]
    by_seed = [roc_auc_score(y[:, 1], some[:, 1]) for some in scores]
    for s, some in enumerate(scores):
        opposite = [np.array_equal(some[:, 1], -some[:, c]) for c in (0, 2)]
        assert any(opposite) == (positives[s] == 0)
    assert several["per_class"]["MI"]["auroc"] == pytest.approx(np.mean(by_seed))
    # a subset of one record teaches nothing
    none = run(x, labels, groups, splits, fractions=(0.001, 1.0), draw="plain")
    assert [cell["fraction"] for cell in none["cells"]] == [1.0]
    assert any("0.001 of the labels: no class can be learnt" in note for note in none["notes"])


def test_release_starts_at_random_and_chooses_thresholds_from_a_grid():
    x, labels, groups, splits = planted(patients=150)  # fewer rows than a batch: no shuffling
    kept = {}
    options = {"seeds": 2, "on_run": listen(kept)}
    scores = {}
    for protocol in ("paper", "release"):
        cell = run(x, labels, groups, splits, protocol=protocol, **options)["cells"][0]
        scores[protocol] = [kept["model", 1.0, seed][2] for seed in (0, 1)]
    np.testing.assert_allclose(*scores["paper"], atol=1e-4)
    assert np.abs(np.subtract(*scores["release"])).max() > 0.01
    # F1 of every threshold of the grid that the two seeds may have chosen
    y, grid = labels[splits == "test"][:, 0], np.linspace(0.05, 0.95, 51)
    one, two = (
        [f1_score(y, 1 / (1 + np.exp(-s[:, 0])) >= cut, zero_division=0) for cut in grid]
        for s in scores["release"]
    )
    possible = np.add.outer(one, two) / 2
    assert np.abs(possible - cell["per_class"]["AF"]["f1"]).min() < 1e-9


def test_ridge_solution_equals_scikit_learn():
    x, labels, _, _ = planted()
    score, _ = fit_ridge(x[:300], labels[:300], x[300:], labels[300:], 0, (0.01,))
    standard = (x - x[:300].mean(0)) / x[:300].std(0)
    for c in range(3):
        reference = LogisticRegression(C=1 / (300 * 0.01), tol=1e-8, max_iter=1000)
        expected = reference.fit(standard[:300], labels[:300, c]).decision_function(standard)
        np.testing.assert_allclose(score(x)[:, c], expected, atol=0.02)


def test_more_features_than_rows_are_solved_too():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 150)).astype(np.float32)
    labels = x[:, :3] > 0
    score, _ = fit_ridge(x[:60], labels[:60], x[60:], labels[60:], 0, (0.1,))
    standard = (x - x[:60].mean(0)) / x[:60].std(0)
    reference = LogisticRegression(C=1 / (60 * 0.1), tol=1e-8, max_iter=1000).fit(
        standard[:60], labels[:60, 0]
    )
    np.testing.assert_allclose(score(x)[:, 0], reference.decision_function(standard), atol=0.02)


def test_a_large_useless_part_does_not_drown_the_others():
    rng = np.random.default_rng(5)
    signal = rng.normal(size=(1200, 20)).astype(np.float32)
    labels = signal[:, :3] + 0.5 * rng.normal(size=(1200, 3)) > 0
    x = np.concatenate([signal, rng.normal(size=(1200, 200))], 1).astype(np.float32)
    train, val, test = slice(0, 80), slice(80, 600), slice(600, 1200)

    def value(parts):
        score, _ = fit_ridge(x[train], labels[train], x[val], labels[val], 0, STRENGTHS, parts)
        return auroc.macro_auroc(labels[test], score(x[test]))[0]

    assert value([20, 200]) > value(None) + 0.03
    assert [len(part_weights(parts)) for parts in ([220], [20, 200], [20, 200, 5])] == [1, 3, 7]
    with pytest.raises(InputError, match=r"parts of \[20, 20\] are not the 220 features"):
        study.linear_fits({"x": x}, 1200, "ridge", parts={"x": [20, 20]})


def test_signal_is_found_and_noise_scores_a_half():
    x, labels, groups, splits = planted(patients=600)
    noise = np.random.default_rng(9).normal(size=x.shape).astype(np.float32)
    result = run(
        {"signal": x, "noise": noise}, labels, groups, splits, fractions=(0.1, 1.0), seeds=2
    )
    cells = {(cell["model"], cell["fraction"]): cell for cell in result["cells"]}
    # the planted direction itself
    best = auroc.macro_auroc(labels[splits == "test"], x[splits == "test", :3])[0]
    assert cells["signal", 1.0]["macro_auroc"] > best - 0.02
    assert 0.7 < cells["signal", 0.1]["macro_auroc"] < cells["signal", 1.0]["macro_auroc"]
    assert abs(cells["noise", 1.0]["macro_auroc"] - 0.5) < 0.08
    for cell in result["cells"]:
        assert cell["low"] < cell["macro_auroc"] < cell["high"]
        assert list(cell["per_class"]) == CLASSES and len(cell["per_seed"]) == 2
    gains = {gap["fraction"]: gap for gap in result["differences"]}
    assert gains[1.0]["control"] == "noise" and gains[1.0]["low"] > 0.15
    assert not result["notes"]
    json.dumps(result, allow_nan=False)


def listen(kept):
    def on_run(model, fraction, seed, records, classes, run):
        kept[model, fraction, seed] = (records, classes, run.scores)

    return on_run


@pytest.mark.parametrize("protocol", ["ridge", "paper", "release"])
def test_scores_equal_scikit_learn_on_the_same_scores(protocol):
    x, labels, groups, splits = planted()
    kept = {}
    options = {"fractions": (0.1, 1.0), "seeds": 2, "protocol": protocol, "on_run": listen(kept)}
    result = run(np.round(x, 1), labels, groups, splits, **options)
    for cell in result["cells"]:
        for seed, value in enumerate(cell["per_seed"]):
            _, classes, scores = kept["model", cell["fraction"], seed]
            assert classes == CLASSES
            assert value == pytest.approx(
                roc_auc_score(labels[splits == "test"], scores, average="macro"), abs=1e-12
            )
        found = [kept["model", cell["fraction"], seed][2] for seed in (0, 1)]
        precision = [average_precision_score(labels[splits == "test"], s) for s in found]
        assert cell["macro_auprc"] == pytest.approx(np.mean(precision), abs=1e-12)
        assert cell["auprc_low"] < cell["macro_auprc"] < cell["auprc_high"]
        assert cell["prevalence"] == pytest.approx(labels[splits == "test"].mean())


def test_f1_is_that_of_validation_thresholds_beside_always_yes():
    x, labels, groups, splits = planted()
    y_val, y_test = (labels[splits == s] for s in ("validation", "test"))
    kept = {}
    cell = run(x, labels, groups, splits, on_run=listen(kept))["cells"][0]
    score, _ = fit_ridge(
        x[splits == "train"],
        labels[splits == "train"],
        x[splits == "validation"],
        y_val,
        0,
        STRENGTHS,
    )
    val_scores, test_scores = score(x[splits == "validation"]), kept["model", 1.0, 0][2]
    expected = []
    for c, name in enumerate(CLASSES):
        cuts = np.unique(val_scores[:, c])
        best = cuts[np.argmax([f1_score(y_val[:, c], val_scores[:, c] >= cut) for cut in cuts])]
        expected.append(f1_score(y_test[:, c], test_scores[:, c] >= best))
        assert cell["per_class"][name]["f1"] == pytest.approx(expected[-1], abs=0.02)
        always = f1_score(y_test[:, c], np.ones(len(y_test)))
        assert cell["per_class"][name]["f1_always_yes"] == pytest.approx(always)
    assert cell["macro_f1"] == pytest.approx(np.mean(expected), abs=0.01)
    assert (
        cell["f1_low"] < cell["macro_f1"] < cell["f1_high"]
        and cell["macro_f1"] > cell["f1_always_yes"]
    )


def test_macro_scores_may_leave_out_classes_of_few_patients():
    x, labels, groups, splits = planted()
    few = np.unique(groups[splits == "test"])[:4]
    labels[(splits == "test"), 1] = np.isin(groups[splits == "test"], few)
    features = {"model": x, "control": x[:, ::-1].copy()}
    everything, counted = (run(features, labels, groups, splits, min_positives=n) for n in (1, 5))
    assert not everything["notes"]
    assert counted["notes"] == [
        "MI: fewer than 5 patients with it in the test split, left out of macro scores"
    ]
    for one, two in zip(everything["cells"], counted["cells"], strict=True):
        assert one["per_class"] == two["per_class"]
        for metric in ("auroc", "auprc", "f1"):
            values = {c: entry[metric] for c, entry in two["per_class"].items()}
            assert one[f"macro_{metric}"] == pytest.approx(np.mean(list(values.values())))
            values.pop("MI")
            assert two[f"macro_{metric}"] == pytest.approx(np.mean(list(values.values())))
        assert two["high"] - two["low"] < one["high"] - one["low"]
        assert two["per_seed"] == [two["macro_auroc"]]
    with pytest.raises(InputError, match="no class has 500 positive patients in the test split"):
        run(x, labels, groups, splits, min_positives=500)


def test_probabilities_are_calibrated_on_validation_and_judged_on_test():
    x, labels, groups, splits = planted(patients=2000)
    kept = {}

    def on_run(model, fraction, seed, records, classes, one):
        kept[seed] = one

    cell = run(x, labels, groups, splits, on_run=on_run)["cells"][0]
    y, p = labels[splits == "test"], kept[0].probabilities
    found = cell["calibration"]
    assert found["brier"] == pytest.approx(((p - y) ** 2).mean())
    share = y.mean(0)
    assert found["brier_prevalence"] == pytest.approx((share * (1 - share)).mean())
    assert found["ece"] < 0.03 and found["brier"] < found["brier_prevalence"]
    assert sum(b["count"] for b in found["reliability"]) == y.size
    for b in found["reliability"]:
        if b["count"] > 200:
            assert b["share"] == pytest.approx(b["probability"], abs=0.1)
    by_class = [entry["brier"] for entry in cell["per_class"].values()]
    assert np.mean(by_class) == pytest.approx(found["brier"])
    # a higher score is a higher probability
    for c in range(3):
        assert (np.diff(p[np.argsort(kept[0].scores[:, c]), c]) >= 0).all()


def test_class_without_validation_positives_has_auroc_but_no_f1():
    x, labels, groups, splits = planted()
    labels[splits == "validation", 1] = False
    result = run(x, labels, groups, splits)
    cell = result["cells"][0]
    assert cell["per_class"]["MI"]["f1"] is None and cell["per_class"]["MI"]["auroc"] > 0.6
    assert cell["macro_f1"] == pytest.approx(
        np.mean([cell["per_class"][name]["f1"] for name in ("AF", "NORM")])
    )
    assert any("MI" in note and "no F1" in note for note in result["notes"])
    json.dumps(result, allow_nan=False)


def test_windows_of_a_record_are_scored_together():
    x, labels, groups, splits = planted()
    records = np.arange(len(x)) // 2  # the two rows of a patient become two windows of one record
    labels = np.repeat(labels[::2], 2, axis=0)
    kept = {}
    cell = run(x, labels, groups, splits, records=records, on_run=listen(kept))["cells"][0]
    ids, _, scores = kept["model", 1.0, 0]
    test = splits == "test"
    assert sorted(ids) == sorted(set(records[test])) and len(scores) == test.sum() // 2
    one = {}
    run(x, labels, groups, splits, on_run=listen(one))
    np.testing.assert_allclose(scores, one["model", 1.0, 0][2].reshape(-1, 2, 3).mean(1))
    assert cell["per_class"]["AF"]["test_positives"] == labels[test][::2, 0].sum()


def test_several_features_under_one_name_are_averaged():
    x, labels, groups, splits = planted()
    noise = np.random.default_rng(8).normal(size=x.shape).astype(np.float32)
    both, first, second = (
        run(f, labels, groups, splits)["cells"][0] for f in ({"m": [x, noise]}, x, noise)
    )
    assert both["per_fit"] == [first["macro_auroc"], second["macro_auroc"]]
    assert both["macro_auroc"] == pytest.approx((first["macro_auroc"] + second["macro_auroc"]) / 2)
    assert both["low"] < both["macro_auroc"] < both["high"]


def test_row_and_class_order_change_nothing():
    x, labels, groups, splits = planted()
    one = run(x, labels, groups, splits, fractions=(0.1, 1.0), seeds=2)
    rows, columns = np.random.default_rng(2).permutation(len(x)), [1, 2, 0]
    names = [CLASSES[c] for c in columns]
    two = run(
        x[rows],
        labels[rows][:, columns],
        groups[rows],
        splits[rows],
        fractions=(1.0, 0.1),
        seeds=2,
        class_names=names,
    )
    for a, b in zip(one["cells"], two["cells"], strict=True):
        assert a["macro_auroc"] == pytest.approx(b["macro_auroc"], abs=1e-3)
        assert (a["low"], a["high"]) == pytest.approx((b["low"], b["high"]), abs=1e-3)
        assert a["per_class"]["MI"]["auroc"] == pytest.approx(
            b["per_class"]["MI"]["auroc"], abs=1e-3
        )


def test_scale_and_shift_of_features_change_nothing_in_ridge():
    x, labels, groups, splits = planted()
    # and two constant features
    moved = np.concatenate([x * 50 + 7, np.full((len(x), 2), 3.0, np.float32)], 1)
    one, two = (run(f, labels, groups, splits)["cells"][0]["macro_auroc"] for f in (x, moved))
    assert one == pytest.approx(two, abs=2e-3)


def test_ridge_and_paper_agree_whatever_the_scale_and_a_fit_cut_short_is_reported():
    x, labels, groups, splits = planted(patients=8000, noise=0.3)
    ridge = run(x, labels, groups, splits, resamples=20)["cells"][0]
    paper = run(0.001 * x, labels, groups, splits, resamples=20, protocol="paper")["cells"][0]
    assert abs(ridge["macro_auroc"] - paper["macro_auroc"]) < 0.015
    release = run(
        0.001 * x, labels, groups, splits, resamples=20, protocol="release", fractions=(0.02, 1.0)
    )
    assert any(
        "0.02 of the labels: model was still improving after 50 epochs" in note
        for note in release["notes"]
    )


def test_class_absent_from_a_split_is_named_and_left_out():
    x, labels, groups, splits = planted()
    labels[splits == "test", 1] = False
    result = run(x, labels, groups, splits)
    assert list(result["cells"][0]["per_class"]) == ["AF", "NORM"]
    assert any("MI" in note and "test" in note for note in result["notes"])
    only = np.stack([labels[:, 0], np.ones(len(x), bool)], 1)
    result = run(x, only, groups, splits, class_names=["AF", "always"])
    assert list(result["cells"][0]["per_class"]) == ["AF"] and len(result["notes"]) == 3


def test_small_subset_is_reported():
    x, labels, groups, splits = planted()
    notes = run(x, labels, groups, splits, fractions=(0.001, 1.0))["notes"]
    assert any(note.startswith("0.001 of the labels") for note in notes)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda x, y, g, s: (x, y, g, np.where(s == "validation", "train", s)),
            "no labelled row in the validation split",
        ),
        (
            lambda x, y, g, s: (x, y, np.full(len(g), "p"), s),
            "patient p is in the train split and in another",
        ),
        (lambda x, y, g, s: (x, np.zeros_like(y), g, s), "no class has positive and negative rows"),
        (lambda x, y, g, s: (x[:-1], y, g, s), "do not match"),
        (lambda x, y, g, s: (np.where(x > 2, np.nan, x), y, g, s), "not finite"),
        (
            lambda x, y, g, s: (
                x,
                y,
                g,
                np.where((s == "train") & (np.cumsum(s == "train") > 4), "-", s),
            ),
            "4 training rows are too few for 3 classes",
        ),
    ],
)
def test_unusable_input_says_why(change, words):
    with pytest.raises(InputError, match=words):
        run(*change(*planted()))


def test_table_survives_the_file(tmp_path):
    one = table(window=np.zeros(600, np.int64))
    save_table(tmp_path / "emb.npz", one)
    two = load_table(tmp_path / "emb.npz")
    np.testing.assert_array_equal(one.embedding, two.embedding)
    assert (
        two.keys[0] == "r0000#0"
        and one.labels == two.labels
        and one.tasks == two.tasks == {"diagnosis": CLASSES}
    )
    assert one.parts == two.parts and two.metadata == {"preprocess_hash": "abc"}


def test_file_that_is_not_ours_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such embeddings file"):
        load_table(tmp_path / "absent.npz")
    for name, data in {
        "text.npz": b"hello",
        "empty.npz": b"",
        "zip.npz": b"PK\x03\x04broken",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            load_table(tmp_path / name)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InputError, match="has no record_id"):
        load_table(tmp_path / "other.npz")
    twice = table()
    twice.record_id[1] = "r0000"
    save_table(tmp_path / "twice.npz", twice)
    with pytest.raises(InputError, match="r0000 occurs more than once"):
        load_table(tmp_path / "twice.npz")


def test_control_is_joined_by_record_and_must_match():
    one, order = table(), np.random.default_rng(4).permutation(600)
    fields = ("record_id", "patient_id", "split", "embedding")
    shuffled = {name: getattr(one, name)[order] for name in fields} | {
        "labels": [one.labels[i] for i in order]
    }
    np.testing.assert_array_equal(align_features(one, table(**shuffled), "c"), one.embedding)
    renamed = one.record_id.copy()
    renamed[7] = "x1"
    with pytest.raises(InputError, match="r0007 missing from it, x1 only in it"):
        align_features(one, table(record_id=renamed), "c")
    with pytest.raises(InputError, match="other labels for r0003"):
        align_features(one, table(labels=[*one.labels[:3], {}, *one.labels[4:]]), "c")


def test_command_prints_a_table_and_writes_json(tmp_path, capsys):
    one = table()
    save_table(tmp_path / "emb.npz", one)
    random = table(embedding=np.random.default_rng(5).normal(size=(600, 20)).astype(np.float32))
    save_table(tmp_path / "random.npz", random)
    out = tmp_path / "out" / "probe.json"
    flags = [
        f"--embeddings={tmp_path / 'emb.npz'}",
        f"--control=random={tmp_path / 'random.npz'}",
        f"--out={out}",
    ]
    probing_door.main(
        [*flags, "--fractions=0.1,1", "--seeds=2", "--resamples=50", "--parts", "--per_class"]
    )
    printed = capsys.readouterr().out
    assert (
        "| diagnosis | embedding |" in printed and "| diagnosis | embedding - random | +" in printed
    )
    assert "Test macro AUPRC" in printed and "| diagnosis | share of positives |" in printed
    assert "protocol ridge, draw guaranteed" in printed
    assert "embedding: dynamics only" in printed and "| diagnosis | MI | random |" in printed
    result = json.loads(out.read_text())["results"][0]
    assert result["models"] == [
        "embedding",
        "embedding: structure only",
        "embedding: dynamics only",
        "random",
    ]
    release = [*flags, "--protocol=release", "--fractions=1", "--seeds=1", "--resamples=5"]
    for more, draw in (([], "plain"), (["--draw=guaranteed"], "guaranteed")):
        probing_door.main([*release, *more])
        assert json.loads(out.read_text())["results"][0]["draw"] == draw
    with pytest.raises(
        InputError, match="no record is labelled for task 'rhythm'; the file has diagnosis"
    ):
        probing_door.main([*flags, "--task=rhythm"])
    with pytest.raises(InputError, match="NAME=FILE"):
        probing_door.main([flags[0], "--control=random.npz"])


def write_csv(path, columns, rows):
    path.write_text("\n".join([",".join(columns), *(",".join(row) for row in rows)]) + "\n")
    return path


def test_labels_and_splits_of_a_csv_replace_those_of_the_file(tmp_path):
    one = table()
    rows = [
        [r, "a;b" if i % 3 else "", ("train", "test")[i % 2]]
        for i, r in enumerate(one.record_id[:-2])
    ]
    path = write_csv(
        tmp_path / "labels.csv", ["record_id", "diagnosis", "split"], [*rows, ["x9", "a", "train"]]
    )
    joined, notes = join_labels(one, path)
    assert joined.tasks == {"diagnosis": ["a", "b"]} and joined.labels[0] == {"diagnosis": []}
    assert joined.labels[1] == {"diagnosis": ["a", "b"]} and joined.labels[-1] == {}
    assert joined.split[:2].tolist() == ["train", "test"] and joined.split[-1] == ""
    assert len(notes) == 2 and "x9" in notes[0] and "r0598, r0599" in notes[1]
    assert one.tasks == {"diagnosis": CLASSES}  # the table itself is as it was


def test_labels_by_patient_reach_all_records_and_keep_the_other_tasks(tmp_path):
    one = table()
    path = write_csv(
        tmp_path / "l.csv",
        ["patient_id", "sepsis"],
        [[p, "yes"] for p in np.unique(one.patient_id)[:9]],
    )
    joined, _ = join_labels(one, path)
    assert sum(row.get("sepsis") == ["yes"] for row in joined.labels) == 18
    assert joined.split.tolist() == one.split.tolist() and all(
        "diagnosis" in row for row in joined.labels
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("record_id,x\nq1,a\nq2,b\n", "no record_id of it is in the embeddings: q1, q2, not r0000"),
        ("id,x\nr0001,a\n", "needs a column record_id or patient_id"),
        ("record_id,x\nr0001,a\nr0001,b\n", "line 3: record_id r0001 was listed before"),
        ("record_id,split,x\nr0001,dev,a\n", "line 2: split 'dev'"),
        ('record_id,split,x\nr0001,test,"a\nb"\nr0002,dev,c\n', "line 4: split 'dev'"),
        ("record_id\nr0001\n", "no label column"),
    ],
)
def test_csv_that_cannot_be_joined_says_why(tmp_path, text, words):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        join_labels(table(), tmp_path / "l.csv")


def test_embeddings_without_splits_are_split_by_patient():
    one = table(split=np.full(600, ""))
    split, notes = ensure_splits(one)
    assert (
        set(split.split) == {"train", "validation", "test"}
        and 0.7 < (split.split == "train").mean() < 0.9
    )
    assert "80/10/10" in notes[0]
    for patient in np.unique(one.patient_id)[:50]:
        assert len(set(split.split[one.patient_id == patient])) == 1
    assert ensure_splits(table())[1] == []


def test_command_joins_a_csv_and_writes_predictions(tmp_path, capsys):
    one = table(split=np.full(600, ""), labels=[{}] * 600)
    save_table(tmp_path / "emb.npz", one)
    _, labels, _, _ = planted()
    rows = [[r, "AF" if yes else ""] for r, yes in zip(one.record_id, labels[:, 0], strict=True)]
    csv_file, scores = (
        write_csv(tmp_path / "labels.csv", ["record_id", "af"], rows),
        tmp_path / "deep" / "scores.csv",
    )
    with pytest.raises(InputError, match="no record carries labels"):
        probing_door.main([f"--embeddings={tmp_path / 'emb.npz'}"])
    flags = [
        f"--embeddings={tmp_path / 'emb.npz'}",
        f"--labels={csv_file}",
        f"--out={tmp_path / 'probe.json'}",
    ]
    probing_door.main(
        [*flags, "--fractions=0.1,1", "--seeds=2", "--resamples=20", f"--predictions={scores}"]
    )
    assert "80/10/10" in capsys.readouterr().out
    result = json.loads((tmp_path / "probe.json").read_text())["results"][0]
    truth = dict(zip(one.record_id, labels[:, 0], strict=True))
    with open(scores, newline="") as file:
        written = [(truth[row["record_id"]], float(row["af:AF"])) for row in csv.DictReader(file)]
    assert len(written) == result["splits"]["test"]["rows"]
    cell = next(cell for cell in result["cells"] if cell["fraction"] == 1.0)
    assert roc_auc_score(*zip(*written, strict=True)) == pytest.approx(
        cell["per_seed"][0], abs=1e-6
    )


def test_command_tells_one_class_labels_in_one_line(tmp_path):
    save_table(tmp_path / "emb.npz", table(labels=[{"diagnosis": ["AF"]}] * 600))
    done = run_command("lvcg_jax.probe", f"--embeddings={tmp_path / 'emb.npz'}")
    assert_one_line_error(done, "no class has positive and negative rows", "AF")


@pytest.mark.parametrize("judge", ["validation", "folds"])
def test_other_patients_than_those_of_the_test_split_judge(judge, tmp_path, capsys):
    whole = table()
    unread = np.where((whole.split == "test")[:, None], np.float32(1e9), whole.embedding)
    noise = np.random.default_rng(1).normal(size=whole.embedding.shape).astype(np.float32)
    for name, x in (("whole", whole.embedding), ("unread", unread), ("noise", noise)):
        save_table(tmp_path / f"{name}.npz", table(embedding=x))
    flags = [f"--embeddings=a={tmp_path / 'whole.npz'}", f"--control=b={tmp_path / 'unread.npz'}"]
    flags += [f"--control=noise={tmp_path / 'noise.npz'}", f"--judge={judge}"]
    probing_door.main([*flags, "--fractions=1", "--seeds=1", "--resamples=20"])
    header, _, row, *_ = capsys.readouterr().out.splitlines()
    assert header == "| task | labels | a | b | noise |"
    _, task, labels, a, b, noise, _ = (cell.strip() for cell in row.split("|"))
    assert (task, labels, a) == ("diagnosis", "100%", b)
    assert float(a.split()[0]) > 75 > float(noise.split()[0])
    with pytest.raises(InputError, match="--save needs the test split"):
        probing_door.main([*flags, "--task=diagnosis", "--save=x.safetensors"])
