"""Results of several data sets, draws and models, probed on random arrays: what stands in which
row and column of the page."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table
from lvcg_jax.probe.study import LinearFit
from lvcg_jax.studies import data_sets, results
from lvcg_jax.studies.data_sets import DataSet, describe_data
from lvcg_jax.studies.foreign import Foreign
from lvcg_jax.studies.kept import CONTROLS, MODEL
from lvcg_jax.studies.published import HIGHEST_LINEAR, PAPER_BEST, published_rows
from lvcg_jax.studies.results import Bench
from lvcg_jax.studies.results_page import section_text

DRAWS = ("guaranteed", "plain")


def make_table(name, tasks, signal, rows=120):
    """Random features; the first numbers follow the labels as closely as `signal` says."""
    rng = np.random.default_rng(len(name))
    labels = [
        {task: [c for c in "AB" if rng.random() < 0.4] for task in tasks} for _ in range(rows)
    ]
    truth = np.array([[c in next(iter(row.values())) for c in "AB"] for row in labels])
    x = np.concatenate(
        [signal * truth + rng.normal(size=truth.shape), rng.normal(size=(rows, 2))], 1
    )
    split = np.array([("train", "train", "validation", "test")[i % 4] for i in range(rows)])
    ids = np.array([f"{name}{i}" for i in range(rows)])
    return Table(ids, ids, split, labels, np.float32(x), {"structure": 3, "rhythm": 1})


def make_bench(name, corpus, tasks, files=None, attention=False):
    data = {"examples": 1, "records": 1, "patients": 1}
    metadata = {"corpus": corpus, "tasks": tasks, "splits": {"test": data}, "split_rule": "folds"}
    metadata |= {"windows": "first", "preprocess_hash": "h"}
    tables = {MODEL: [make_table(name, tasks, 2.0)]}
    tables |= {control: [make_table(name, tasks, 1.0)] for control in CONTROLS}
    return Bench(DataSet(name, Path(name), metadata, list(tasks)), tables, files or {}, attention)


@pytest.fixture(scope="module")
def document():
    """Two data sets, of which another model has embeddings of the first, but for one record."""
    ids = [f"ptbxl{i}" for i in range(1, 120)]
    random = np.random.default_rng(0).normal(size=(119, 3)).astype(np.float32)
    files = {"JEPA": [Foreign("jepa.npz", np.array(ids), random)]}
    benches = [
        make_bench("ptbxl", "ptbxl", ("super", "rhythm"), files),
        make_bench("elsewhere", "cpsc2018", ("diagnosis",), files),
    ]
    found = [
        bench.probe(task, draw, (0.1, 1.0), 2)
        for bench in benches
        for task in bench.data.tasks
        for draw in DRAWS
    ]
    run = {"checkpoint": "r@1", "steps": 1, "batch_size": 1, "differences": []}
    run |= {"validation_best": None, "validation_last": None, "pretrained_on": ["ptbxl"]}
    sets = [describe_data(bench.data) for bench in benches]
    return {
        "name": "r",
        "command": "c",
        "random_seeds": 1,
        "run": run,
        "data": sets[0],
        "data_sets": sets,
        "others": {"JEPA": ["jepa.npz"]},
        "results": [r for r in found if (r["data"], r["draw"]) == ("ptbxl", "guaranteed")],
        "further": [r for r in found if (r["data"], r["draw"]) != ("ptbxl", "guaranteed")],
        "agreement": [],
        "notes": [f"{b.data.name}: {note}" for b in benches for note in b.notes],
    }


def tables_of(text):
    """[(heading, head, rows)] of all tables."""
    found, heading, rows = [], "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif rows:
            found.append((heading, rows[0], rows[2:]))
            rows = []
        heading = line if line.startswith("###") else heading
    return found


def cell(result, model, fraction):
    return next(
        c for c in result["cells"] if c["model"] == model and c["fraction"] == fraction
    )  # fmt: skip


def test_at_a_glance_has_a_column_for_each_task_and_their_average(document):
    tables = tables_of(section_text(document))
    glance = [t for t in tables if t[0] == "### At a glance"]
    assert len(glance) == 2  # a table for each draw
    averages = [t[0] for t in tables if t[1][-1] == "average"]
    assert averages == [h for h in ("### At a glance", "### AUPRC", "### F1") for _ in DRAWS]
    for draw, (_, head, rows) in zip(DRAWS, glance, strict=True):
        tasks = ["ptbxl super", "ptbxl rhythm", "elsewhere diagnosis"]
        assert head == ["features", *tasks, "average"]
        by_name = {row[0]: row[1:] for row in rows}
        mine = [
            next(
                r
                for r in [*document["results"], *document["further"]]
                if f"{r['data']} {r['task']}" == task and r["draw"] == draw
            )
            for task in tasks
        ]
        for model in (MODEL, *CONTROLS):
            scores = np.array(
                [[cell(r, model, f)["macro_auroc"] for f in (0.1, 1.0)] for r in mine]
            )
            shown = [" / ".join(f"{100 * x:.1f}" for x in row) for row in [*scores, scores.mean(0)]]
            assert by_name[model] == shown
        # the other model has no row for the second data set, and so no average
        assert by_name["JEPA"][2:] == ["- / -", "- / -"] and "-" not in by_name["JEPA"][0]
        published = by_name.get(f"{HIGHEST_LINEAR} (published)")
        if draw == "guaranteed":
            assert published is None
        else:
            assert published == ["87.5 / 92.4", "93.9 / 96.9", "89.0 / 97.5", "90.1 / 95.6"]


def test_draws_stand_side_by_side_and_published_figures_beside_the_plain_one(document):
    text = section_text(document)
    for heading, keys in (
        ("### Test macro AUROC x 100", ("macro_auroc", "low", "high")),
        ("### AUPRC", ("macro_auprc", "auprc_low", "auprc_high")),
        ("### F1", ("macro_f1", "f1_low", "f1_high")),
    ):
        head, rows = next(
            t[1:] for t in tables_of(text) if t[0] == heading and t[1][:2] == ["task", "features"]
        )
        assert head[2:] == ["10% guaranteed", "100% guaranteed", "10% plain", "100% plain"]
        first, second = document["results"][0], document["further"][0]
        assert (first["task"], second["task"]) == ("super", "super")
        scores = [cell(r, "JEPA", f) for r in (first, second) for f in (0.1, 1.0)]
        shown = [f"{100 * c[keys[0]]:.1f} [{100 * c[keys[1]]:.1f}, {100 * c[keys[2]]:.1f}]"
                 for c in scores]  # fmt: skip
        assert ["ptbxl super", "JEPA", *shown] in rows
    assert any(row[1] == "share of positives" for _, _, rows in tables_of(text) for row in rows)
    rows = next(t[2] for t in tables_of(text) if t[0] == "### Test macro AUROC x 100")
    best = ["79.44 (LVCG)", "84.15 (LVCG)"]
    assert ["elsewhere diagnosis", f"{PAPER_BEST} (published)", "-", "-", *best] in rows
    for figure in published_rows("ptbxl", "super")[HIGHEST_LINEAR].values():
        if figure.row.model != "MELP":  # has 1% alone, which is not probed here
            assert f"- {figure.row.model}: {figure.row.words}." in text


def test_page_says_what_the_model_knows_and_what_did_not_match(document):
    text = section_text(document)
    assert "Pre-trained without labels on ptbxl. ptbxl and its pre-training data are of one" in text
    assert "It has never seen elsewhere." in text
    assert "- JEPA: embeddings of another model, read from jepa.npz." in text
    assert "- ptbxl: JEPA: 1 records are not in its file (ptbxl0)" in text
    assert "- elsewhere: JEPA: none of these records is in its file, so it has no row" in text
    document = document | {"run": document["run"] | {"pretrained_on": None}}
    assert "pre-trained on is not at hand any more" in section_text(document)


def test_every_model_is_probed_on_the_same_rows(document):
    first = document["results"][0]
    sizes = {tuple(c["train_rows"]) for c in first["cells"] if c["fraction"] == 1.0}
    assert len(sizes) == 1 and sum(first["splits"][s]["rows"] for s in first["splits"]) == 119
    assert first["models"] == [
        MODEL, *CONTROLS, f"{MODEL}: structure only", f"{MODEL}: rhythm only", "JEPA"
    ]  # fmt: skip
    compared = {gap["control"] for gap in first["differences"]}
    assert "JEPA" in compared  # a paired difference


def test_both_published_rows_are_compared_with(document):
    text = section_text(document).split("does not win")[1].split("###")[0]
    plain = next(r for r in document["further"] if (r["task"], r["draw"]) == ("super", "plain"))
    ours = 100 * cell(plain, MODEL, 1.0)["macro_auroc"]
    assert (f"{92.4 - ours:.1f} points at 100% (ECGFounder)" in text) == (ours < 92.4)
    weak = {**plain, "cells": [c | {"macro_auroc": 0.6} for c in plain["cells"]]}
    weaker = document | {"further": [weak if r is plain else r for r in document["further"]]}
    text = section_text(weaker)
    assert (
        "- ptbxl super: below the best of the LVCG paper's table (published) by 25.6 points at 10%"
        " (HeartLang), 27.5 points at 100% (HeartLang)." in text
    )
    assert "below the highest known linear probe (published) by 27.5 points at 10% (ST-MEM" in text


def test_attention_heads_are_further_rows_compared_with_the_linear_probe(document, monkeypatch):
    attention = pytest.importorskip("lvcg_jax.probe.attention")

    class Fit(LinearFit):
        """In the place of a head that takes minutes to learn."""

        def __init__(self, features, rows):
            super().__init__(features[rows], "ridge")

    monkeypatch.setattr(attention, "read_facts", lambda data, table: None)
    monkeypatch.setattr(attention, "join_inputs", lambda facts, x, table, keys: x)
    monkeypatch.setattr(attention, "AttentionFit", Fit)
    bench = make_bench("ptbxl", "ptbxl", ("super",), attention=True)
    found = [bench.probe("super", draw, (1.0,), 1) for draw in DRAWS]
    head = f"{MODEL}, attention"
    assert found[0]["models"][-2:] == [head, "random weights, attention"]
    sets = [describe_data(bench.data)]
    made = document | {"results": found[:1], "further": found[1:], "data_sets": sets, "notes": []}
    text = section_text(made)
    rows = {tuple(row[:2]) for _, _, rows in tables_of(text) for row in rows}
    assert ("super", head) in rows and ("super", f"{MODEL} - {head}") in rows
    ours = 100 * cell(found[1], head, 1.0)["macro_auroc"]
    words = f"below the highest known attention head (published) by {92.8 - ours:.1f} points"
    assert (words in text) == (ours < 92.8)


def test_data_sets_are_named_on_the_command_line(tmp_path, monkeypatch):
    tasks = {"a": {"super": ["X"], "form": ["Y"]}, "b": {"diagnosis": ["Z"]}, "c": {"super": ["X"]}}
    read = lambda path: {"corpus": "ptbxl", "tasks": tasks[Path(path).name]}  # noqa: E731
    monkeypatch.setattr(data_sets, "read_metadata", read)
    monkeypatch.setattr("lvcg_jax.probe.labels.read_metadata", read)

    def found(flags, asked):
        return {data.name: data.tasks for data in data_sets.find_data(flags, asked)}

    assert found(["a"], "all") == {"ptbxl": ["super", "form"]}
    assert found(["one=a,two=b"], "super") == {"one": ["super"]}
    both = {"one": ["form"], "two": ["diagnosis"]}
    assert found(["one=a", "two=b"], "form,diagnosis") == both
    with pytest.raises(InputError, match="two data sets are called 'ptbxl': write --data=NAME"):
        found(["a,c"], "all")
    with pytest.raises(InputError, match="no task sepsis in any of one, two"):
        found(["one=a", "two=b"], "super,sepsis")


def test_mistakes_are_named():
    with pytest.raises(InputError, match="'LVCG' is the name of another row"):
        results.read_files(["LVCG=x.npz"])
    with pytest.raises(InputError, match="write --embeddings=NAME=FILE"):
        results.read_files(["x.npz"])
    with pytest.raises(InputError, match="'both': give guaranteed or plain, or both"):
        results.main(["--checkpoint=r", "--data=d", "--draw=both"])
