"""The probe behind every table: fair subsets, no leak, right numbers, and a clear word on anything left out."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from data_prep.errors import InputError
from lvcg_jax import metrics
from lvcg_jax import probe as probing
from lvcg_jax.logistic import fit_ridge
from lvcg_jax.table import Table, align_features, load_table, save_table

CLASSES = ["AF", "MI", "NORM"]


def planted(seed=0, patients=300, d=20, noise=1.0):
    """Two records a patient; three classes that are linear in the first features; splits by patient."""
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
    return probing.probe(models, labels, groups, splits, **options)


def table(seed=0, **changes):
    x, labels, groups, splits = planted(seed)
    rows = [{"diagnosis": [name for name, yes in zip(CLASSES, row, strict=True) if yes]} for row in labels]
    ids = np.array([f"r{i:04d}" for i in range(len(x))])
    values = {"record_id": ids, "patient_id": groups, "split": splits, "labels": rows, "embedding": x}
    values |= {"parts": {"structure": 12, "dynamics": 8}, "metadata": {"preprocess_hash": "abc"}}
    return Table(**(values | changes))


def test_subsets_are_nested_whole_patients_with_every_class():
    _, labels, groups, _ = planted(patients=400)
    labels[:, 2] = False
    labels[[5, 200, 555], 2] = True  # a rare class: three patients
    for seed in range(5):
        subsets = probing.label_subsets(groups, labels, (0.01, 0.1, 1.0), seed)
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
    one = probing.label_subsets(groups, labels, (0.1,), 0)[0.1]
    assert set(groups[one]) != set(groups[probing.label_subsets(groups, labels, (0.1,), 1)[0.1]])
    again = probing.label_subsets(groups[order], labels[order][:, [2, 0, 1]], (0.1,), 0)[0.1]
    assert set(groups[one]) == set(groups[order][again])


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
    reference = LogisticRegression(C=1 / (60 * 0.1), tol=1e-8, max_iter=1000).fit(standard[:60], labels[:60, 0])
    np.testing.assert_allclose(score(x)[:, 0], reference.decision_function(standard), atol=0.02)


def test_signal_is_found_and_noise_scores_a_half():
    x, labels, groups, splits = planted(patients=600)
    noise = np.random.default_rng(9).normal(size=x.shape).astype(np.float32)
    result = run({"signal": x, "noise": noise}, labels, groups, splits, fractions=(0.1, 1.0), seeds=2)
    cells = {(cell["model"], cell["fraction"]): cell for cell in result["cells"]}
    best = metrics.macro_auroc(labels[splits == "test"], x[splits == "test", :3])[0]  # the planted direction itself
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


def test_row_and_class_order_change_nothing():
    x, labels, groups, splits = planted()
    one = run(x, labels, groups, splits, fractions=(0.1, 1.0), seeds=2)
    rows, columns = np.random.default_rng(2).permutation(len(x)), [1, 2, 0]
    names = [CLASSES[c] for c in columns]
    two = run(
        x[rows], labels[rows][:, columns], groups[rows], splits[rows], fractions=(1.0, 0.1), seeds=2, class_names=names
    )
    for a, b in zip(one["cells"], two["cells"], strict=True):
        assert a["macro_auroc"] == pytest.approx(b["macro_auroc"], abs=1e-3)
        assert (a["low"], a["high"]) == pytest.approx((b["low"], b["high"]), abs=1e-3)
        assert a["per_class"]["MI"]["auroc"] == pytest.approx(b["per_class"]["MI"]["auroc"], abs=1e-3)


def test_scale_and_shift_of_features_change_nothing_in_ridge():
    x, labels, groups, splits = planted()
    moved = np.concatenate([x * 50 + 7, np.full((len(x), 2), 3.0, np.float32)], 1)  # and two constant features
    one, two = (run(f, labels, groups, splits)["cells"][0]["macro_auroc"] for f in (x, moved))
    assert one == pytest.approx(two, abs=2e-3)


def test_ridge_and_paper_protocols_agree_on_an_easy_set_and_a_short_one_is_reported():
    x, labels, groups, splits = planted(patients=8000, noise=0.3)
    ridge = run(x, labels, groups, splits, resamples=20)
    paper = run(x, labels, groups, splits, resamples=20, protocol="paper", fractions=(0.02, 1.0))
    assert abs(ridge["cells"][0]["macro_auroc"] - paper["cells"][1]["macro_auroc"]) < 0.015
    assert any("0.02 of the labels: model was still improving" in note for note in paper["notes"])


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
        (lambda x, y, g, s: (x, y, np.full(len(g), "p"), s), "patient p is in the train split and in another"),
        (lambda x, y, g, s: (x, np.zeros_like(y), g, s), "no class has positive and negative rows"),
        (lambda x, y, g, s: (x[:-1], y, g, s), "do not match"),
        (lambda x, y, g, s: (np.where(x > 2, np.nan, x), y, g, s), "not finite"),
        (
            lambda x, y, g, s: (x, y, g, np.where((s == "train") & (np.cumsum(s == "train") > 4), "-", s)),
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
    assert two.keys[0] == "r0000#0" and one.labels == two.labels and one.tasks == two.tasks == {"diagnosis": CLASSES}
    assert one.parts == two.parts and two.metadata == {"preprocess_hash": "abc"}


def test_file_that_is_not_ours_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such embeddings file"):
        load_table(tmp_path / "absent.npz")
    for name, data in {"text.npz": b"hello", "empty.npz": b"", "zip.npz": b"PK\x03\x04broken"}.items():
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
    shuffled = {name: getattr(one, name)[order] for name in fields} | {"labels": [one.labels[i] for i in order]}
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
    flags = [f"--embeddings={tmp_path / 'emb.npz'}", f"--control=random={tmp_path / 'random.npz'}", f"--out={out}"]
    probing.main([*flags, "--fractions=0.1,1", "--seeds=2", "--resamples=50", "--parts", "--per_class"])
    printed = capsys.readouterr().out
    assert "| diagnosis | embedding |" in printed and "| diagnosis | embedding - random | +" in printed
    assert "embedding: dynamics only" in printed and "| diagnosis | MI | random |" in printed
    result = json.loads(out.read_text())["results"][0]
    assert result["models"] == ["embedding", "embedding: structure only", "embedding: dynamics only", "random"]
    with pytest.raises(InputError, match="no record is labelled for task 'rhythm'; the file has diagnosis"):
        probing.main([*flags, "--task=rhythm"])
    with pytest.raises(InputError, match="NAME=FILE"):
        probing.main([flags[0], "--control=random.npz"])
