"""The results page: its numbers are those of the probe, a rerun replaces its own section only,
losses are told."""

import json
from html import unescape

import pytest

from data_prep.base.errors import InputError
from lvcg_jax.probe.labels import in_order
from lvcg_jax.report.scores import probe_section
from lvcg_jax.studies import embeddings, results
from lvcg_jax.studies.kept import CONTROLS, MODEL, RANDOM
from lvcg_jax.studies.results_page import section_text
from lvcg_jax.text.pages import write_section
from lvcg_jax.text.tables import points


@pytest.fixture(scope="module")
def page(trained_run, shards_dir, tmp_path_factory):
    """The page of the smoke run, beside a section that somebody else wrote."""
    folder = tmp_path_factory.mktemp("results")
    path = folder / "docs" / "results.md"
    write_section(path, "other", "## other\n\nkept as it is")
    flags = [
        f"--checkpoint={trained_run}",
        f"--data={shards_dir}",
        f"--out={path}",
        f"--work={folder / 'work'}",
    ]
    flags += ["--name=smoke", "--seeds=2", "--random_seeds=2", "--draw=guaranteed"]
    assert results.main(flags) == 0
    return path, folder / "work", flags


def table_rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line[:2] == "| "
    ]


def test_page_holds_the_numbers_of_the_json(page):
    path, work, _ = page
    rows = table_rows(path.read_text())
    document = json.loads((work / "results-smoke.json").read_text())
    assert [result["task"] for result in document["results"]] == in_order(["rhythm", "diagnosis"])
    checked = 0
    for result in document["results"]:
        for model in result["models"]:
            cells = [cell for cell in result["cells"] if cell["model"] == model]
            expected = [points(cell["macro_auroc"], cell["low"], cell["high"]) for cell in cells]
            assert [result["task"], model, *expected] in rows
            checked += len(cells)
        for gap in result["differences"]:
            if gap["control"] in CONTROLS:
                row = next(
                    r for r in rows if r[:2] == [result["task"], f"{MODEL} - {gap['control']}"]
                )
                assert points(gap["difference"], gap["low"], gap["high"], "+") in row
        always = [points(c["f1_always_yes"]) for c in result["cells"] if c["model"] == MODEL]
        assert [result["task"], "always yes", *always] in rows
    assert checked == 2 * 7 * 3  # tasks, models (with three parts), fractions
    random = next(cell for cell in document["results"][0]["cells"] if cell["model"] == RANDOM)
    html = probe_section(work / "results-smoke.json")  # of lvcg_jax.report
    assert html.count("<svg") == 2 and document["command"] in unescape(html) and RANDOM in html
    assert len(random["per_fit"]) == 2 and sum(random["per_fit"]) / 2 == pytest.approx(
        random["macro_auroc"]
    )


def test_page_says_what_was_run_on_what(page, trained_run, shards_dir):
    path, work, _ = page
    text = path.read_text()
    document = json.loads((work / "results-smoke.json").read_text())
    assert (
        f"--checkpoint={trained_run.name} --data={shards_dir.name}" in text
        and str(trained_run) not in text
    )
    assert "`train.steps: 500000 -> 20`" in text and "of a run of 20 steps" in text
    assert document["run"]["checkpoint"] in text and document["data"]["split_rule"] in text
    assert f"R2 of hidden leads {document['run']['validation_last']['ecg_r2']:.3f}" in text
    assert "100% of the labels, LVCG: `ridge`" in text and "<details>" in text


def test_rerun_replaces_its_section_and_embeds_nothing(page, monkeypatch):
    path, _, flags = page
    before = path.read_text()
    for name in ("embed_dataset", "median_beat_table"):
        monkeypatch.setattr(embeddings, name, None)
    results.main(flags)
    assert path.read_text() == before  # the same numbers, from stored embeddings
    write_section(path, "smoke", "## smoke\n\nnothing")
    text = path.read_text()
    assert (
        text.count("<!-- section: smoke -->") == 1
        and "kept as it is" in text
        and "median beat" not in text.split("<!-- section: smoke -->")[1]
    )


def test_section_marks_are_guarded(tmp_path):
    path = tmp_path / "page.md"
    write_section(path, "one", "1")
    assert path.read_text().startswith("# Results")
    path.write_text(path.read_text().replace("<!-- end: one -->", ""))
    with pytest.raises(InputError, match="begins but does not end"):
        write_section(path, "one", "2")
    with pytest.raises(InputError, match="cannot name a section"):
        write_section(path, "a --> b", "3")


def document(gaps, corpus="ptbxl", score=0.8):
    """A smallest document: one task, all labels."""
    models = [MODEL, f"{MODEL}: rhythm only", *CONTROLS]
    cell = {
        "fraction": 1.0,
        "cut_short": True,
        "macro_auroc": score,
        "low": 0.7,
        "high": 0.9,
        "macro_f1": None,
        "f1_always_yes": None,
    }
    cells = [cell | {"model": model, "per_class": {}} for model in models]
    names = ("difference", "low", "high")
    differences = [
        {"model": MODEL, "control": control, "fraction": 1.0} | dict(zip(names, gap, strict=True))
        for control, gap in zip(models[1:], gaps, strict=True)
    ]
    result = {
        "task": "super",
        "data": "mine",
        "corpus": corpus,
        "draw": "plain",
        "protocol": "ridge",
        "seeds": 3,
        "models": models,
        "classes": [],
        "notes": [],
    }
    result |= {"cells": cells, "differences": differences}
    run = {
        "name": "r",
        "checkpoint": "r@1",
        "steps": 1,
        "batch_size": 1,
        "differences": [],
        "validation_best": None,
        "pretrained_on": [corpus],
    }
    data = {
        "name": "mine",
        "corpus": corpus,
        "split_rule": "folds",
        "windows": "first",
        "preprocess_hash": "h",
        "splits": {},
    }
    rest = {
        "name": "r",
        "command": "c",
        "random_seeds": 1,
        "agreement": [result | {"protocol": "paper"}],
        "data_sets": [data],
        "further": [],
        "others": {},
        "notes": [],
    }
    return {"run": run | {"validation_last": None}, "data": data, "results": [result]} | rest


def test_what_is_not_won_is_told_from_the_numbers():
    text = section_text(
        document(
            [(-0.01, -0.02, 0.01), (0.02, -0.01, 0.05), (0.1, 0.05, 0.2), (-0.03, -0.04, -0.02)]
        )
    )
    assert "rhythm alone scores 1.0 points more than the whole embedding" in text
    assert "ahead of random weights by 2.0 points only, not clear of zero [-1.0, +5.0]" in text
    assert "median beat is ahead by 3.0 points [-4.0, -2.0]." in text
    best = "super: below the best of the LVCG paper's table (published) by 7.5 points at 100%"
    assert f"{best} (HeartLang)." in text
    highest = "super: below the highest known linear probe (published) by 12.4 points at 100%"
    assert f"{highest} (ECGFounder)." in text
    won = section_text(document([(0.1, 0.05, 0.2)] * 4, corpus="mine"))
    assert "clearly ahead of all other rows" in won and "HeartLang" not in won
    assert "`paper` 80.0: 0.0 points apart, still improving when it was stopped." in won


def test_data_set_without_labels_is_refused(trained_run, shards_dir, tmp_path):
    (tmp_path / "data").mkdir()
    metadata = json.loads((shards_dir / "dataset.json").read_text()) | {"tasks": {}}
    (tmp_path / "data" / "dataset.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match="no task in this data set"):
        results.main(
            [
                f"--checkpoint={trained_run}",
                f"--data={tmp_path / 'data'}",
                f"--out={tmp_path / 'p.md'}",
            ]
        )
