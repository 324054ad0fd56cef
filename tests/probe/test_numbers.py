"""Numbers: the planted one is found, its head says the same as the probe, and errors are told."""

import csv
import json

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table, save_table
from lvcg_jax.predict import __main__ as predict_door
from lvcg_jax.probe import __main__ as door
from lvcg_jax.probe.linear import STRENGTHS
from lvcg_jax.probe.numbers import fit_number
from lvcg_jax.runs.heads import load_head


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Embeddings, and a CSV with a number that is linear in them; a tenth of the cells is empty."""
    folder, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    x = rng.normal(size=(500, 12)).astype(np.float32) * rng.uniform(0.1, 5, 12).astype(np.float32)
    age = 50 + 8 * x[:, 0] / x[:, 0].std() + 4 * rng.normal(size=500)
    patients = np.array([f"p{i // 2}" for i in range(500)])
    splits = np.repeat(rng.choice(["train", "validation", "test"], 250, p=[0.6, 0.2, 0.2]), 2)
    ids = np.array([f"r{i:03d}" for i in range(500)])
    meta = {"checkpoint": "run@1#abcd", "preprocess_hash": "h"}
    extra = {"num_beats": np.full(500, 9), "rank": np.full(500, 3)}
    table = Table(
        ids, patients, splits, [{}] * 500, x, {"a": 8, "b": 4}, meta, np.zeros(500, int), extra
    )
    save_table(folder / "emb.npz", table)
    cells = ["" if i % 10 == 3 else f"{a:.3f}" for i, a in enumerate(age)]
    rows = [f"{r},{c},{i % 2}" for i, (r, c) in enumerate(zip(ids, cells, strict=True))]
    (folder / "ages.csv").write_text("\n".join(["record_id,age,sex", *rows]) + "\n")
    return folder


def test_ridge_regression_equals_scikit_learn():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 10)).astype(np.float32)
    y = x[:, 0] + 0.1 * rng.normal(size=200)
    layer, strength = fit_number(x[:150], y[:150], x[150:], y[150:])
    assert strength in STRENGTHS
    z = (x - x[:150].mean(0)) / x[:150].std(0)
    reference = Ridge(alpha=150 * strength).fit(z[:150], y[:150])
    np.testing.assert_allclose(layer(x)[:, 0], reference.predict(z), atol=1e-3)


def test_a_planted_number_is_found_and_its_head_predicts_it(files, capsys):
    flags = [f"--embeddings={files / 'emb.npz'}", f"--labels={files / 'ages.csv'}", "--target=age"]
    more = [f"--save={files / 'age.safetensors'}", f"--predictions={files / 'p.csv'}"]
    options = ["--fractions=0.1,1", "--seeds=2", "--resamples=50", f"--out={files / 'out.json'}"]
    door.main([*flags, *more, *options])
    said = capsys.readouterr().out
    assert "| embedding | 100% | 3." in said and "50 record_id without a value of age" in said
    (result,) = json.loads((files / "out.json").read_text())["results"]
    few, full, constant = result["cells"]
    assert full["r2_low"] < full["r2"] < full["r2_high"] and full["r2"] > 0.7
    assert few["mae"] > full["mae"] and constant["mae"] > 1.5 * full["mae"]
    assert constant["r"] is None and constant["r2"] <= 0
    with open(files / "p.csv", newline="") as file:
        written = {row["record_id"]: row for row in csv.DictReader(file)}
    y, p = np.array([[float(r["age"]), float(r["age:predicted"])] for r in written.values()]).T
    assert mean_absolute_error(y, p) == pytest.approx(full["mae"], abs=1e-6)
    assert r2_score(y, p) == pytest.approx(full["r2"], abs=1e-6)
    # the head
    head = load_head(files / "age.safetensors")
    assert head.is_number and "Not a medical device" in (files / "age.md").read_text()
    out = files / "answers.csv"
    source = f"--embeddings={files / 'emb.npz'}"
    predict_door.main([f"--head={files / 'age.safetensors'}", source, f"--out={out}"])
    with open(out, newline="") as file:
        answers = {row["record_id"]: row for row in csv.DictReader(file)}
    inside = []
    for record, row in written.items():
        found = {name: float(answers[record][f"age{name}"]) for name in ("", ":low", ":high")}
        assert found[""] == pytest.approx(float(row["age:predicted"]), abs=1e-5)
        inside.append(found[":low"] <= float(row["age"]) <= found[":high"])
    assert 0.75 < np.mean(inside) < 1


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--target=height"], "has no column 'height'"),
        (["--target=age", "--task=super"], "give --task or --target, not both"),
        (["--target=age", "--protocol=paper"], "protocol ridge only"),
        (["--target=age", "--draw=plain"], "--draw is for classes"),
    ],
)
def test_what_does_not_go_with_a_number_is_told(files, flags, words):
    labels = [f"--embeddings={files / 'emb.npz'}", f"--labels={files / 'ages.csv'}"]
    with pytest.raises(InputError, match=words):
        door.main([*labels, *flags])
    with pytest.raises(InputError, match="needs --labels=CSV"):
        door.main([labels[0], "--target=age"])
    (files / "bad.csv").write_text("record_id,age\nr001,old\n")
    with pytest.raises(InputError, match="line 2: age 'old' is no number"):
        door.main([labels[0], f"--labels={files / 'bad.csv'}", "--target=age"])
