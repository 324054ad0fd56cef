"""Published figures: one file, as its sources have them, and the same on every page."""

import re

import pytest
from helpers.commands import ROOT

from lvcg_jax.studies.published import (
    HIGHEST_ATTENTION,
    HIGHEST_LINEAR,
    HIGHEST_TRAINED,
    KINDS,
    PAPER_BEST,
    published,
    published_errors,
    published_psnr,
    published_rows,
)

ROWS = (PAPER_BEST, HIGHEST_LINEAR, HIGHEST_ATTENTION, HIGHEST_TRAINED)
CORPORA = ("ptbxl", "cpsc2018", "csn", "mimic")


def row(model, kind="linear"):
    return next(r for r in published() if (r.model, r.kind) == (model, kind))


def test_figures_are_those_of_their_sources():
    """Some of each source, written down a second time."""
    shares = (0.01, 0.1, 1.0)
    lvcg, again = row("LVCG"), row("ST-MEM, re-probed")
    assert [lvcg.scores["ptbxl", "super"][f] for f in shares] == [75.33, 79.03, 80.13]
    assert [lvcg.scores["csn", "diagnosis"][f] for f in shares] == [62.47, 75.17, 84.14]
    assert [lvcg.scores["mimic", "sepsis"][f] for f in shares] == [71.68, 74.68, 76.01]
    assert [row("HeartLang").scores["ptbxl", "form"][f] for f in shares] == [58.70, 63.99, 80.23]
    assert [row("HeartLang").average[f] for f in shares] == [63.80, 73.39, 84.56]
    assert row("LVCG, rebuilt").scores["ptbxl", "super"][1.0] == 85.27
    assert [again.scores["ptbxl", "rhythm"][f] for f in shares] == [87.7, 93.9, 95.9]
    assert row("HeartLang, re-probed").scores["cpsc2018", "diagnosis"][0.1] == 67.3
    assert row("MELP").scores == {
        ("ptbxl", "super"): {0.01: 87.6},
        ("ptbxl", "rhythm"): {0.01: 87.7},
    }
    tasks = [("ptbxl", t) for t in ("super", "sub", "form", "rhythm", "all71")]
    tasks += [("cpsc2018", "diagnosis"), ("chapman", "diagnosis")]
    benchmark = {
        ("ECGFounder", "linear"): [92.4, 94.5, 87.4, 96.1, 93.1, 96.4, 96.8],
        ("Kim's ECG-JEPA", "linear"): [91.1, 91.6, 90.8, 96.9, 92.8, 97.5, 96.2],
        ("ST-MEM", "linear"): [89.6, 91.6, 88.9, 95.1, 90.8, 94.5, 94.9],
        ("MERL", "linear"): [88.7, 89.5, 86.4, 87.7, 88.3, 91.4, 91.6],
        ("ECG-CPC", "linear"): [86.3, 88.6, 87.3, 93.8, 90.4, 90.2, 86.8],
        ("best of ecg-fm-benchmarking", "attention"): [92.8, 93.9, 90.5, 96.6, 93.4, 97.5, 96.7],
        ("best of ecg-fm-benchmarking", "fine-tuned"): [93.5, 94.3, 93.4, 96.5, 94.9, 97.4, 97.2],
        ("S4", "supervised"): [93.2, 93.8, 91.9, 95.6, 94.1, 96.2, 96.3],
    }
    for name, scores in benchmark.items():
        assert [row(*name).scores[task][1.0] for task in tasks] == scores, name
    assert row("Weimann's ECG-JEPA", "attention").scores["ptbxl", "all71"] == {1.0: 93.1}
    assert published_errors("cpsc2018", 5) == {"mse": 0.40, "mae": 0.35}
    assert published_errors("ptb", 5) == {"mse": 0.78, "mae": 0.34}
    assert published_errors("ptbxl", 3) is None


def test_every_row_says_whose_it_is_and_what_was_done():
    for r in published():
        assert r.kind in KINDS and all((r.pretraining, r.protocol, r.source)), r.model
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", r.looked_up)
        values = [v for scores in r.scores.values() for v in scores.values()]
        assert values and all(50 < v < 100 for v in values), r.model
        assert all(f in (0.01, 0.1, 1.0) for scores in r.scores.values() for f in scores)


def test_best_of_the_paper_and_highest_known_are_two_rows():
    rows = published_rows("ptbxl", "super")
    assert list(rows) == list(ROWS)
    found = {
        name: {f: (x.score, x.row.model) for f, x in row.items()} for name, row in rows.items()
    }
    assert found[PAPER_BEST][1.0] == (87.52, "HeartLang")
    assert found[HIGHEST_LINEAR] == {
        0.01: (87.6, "MELP"), 0.1: (87.5, "ST-MEM, re-probed"), 1.0: (92.4, "ECGFounder")
    }  # fmt: skip
    assert found[HIGHEST_ATTENTION] == {1.0: (92.8, "best of ecg-fm-benchmarking")}
    assert found[HIGHEST_TRAINED][1.0][0] == 93.5
    # the paper's own model is the best of its table on sub with few labels
    assert published_rows("ptbxl", "sub")[PAPER_BEST][0.01].row.model == "LVCG"
    assert PAPER_BEST not in published_rows("ptbxl", "all71")
    assert published_rows("mine", "super") == {}


def published_cells(text):
    """(row, corpora, task, share, cell) of every published figure in the tables of a page."""
    head = None
    for line in text.splitlines():
        cells = [cell.strip(" `") for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = cells
        elif "features" in head and not line.startswith("|---"):
            name = cells[head.index("features")].removesuffix(" (published)")
            if name not in ROWS:
                continue
            for title, cell in list(zip(head, cells, strict=True)):
                if title in ("features", "task", "corpus", "average"):
                    continue
                if head[0] == "features":  # a column for each task, all shares in a cell
                    *named, task = title.split()
                    for share, one in zip((0.01, 0.1, 1.0), cell.split(" / "), strict=True):
                        yield name, named or CORPORA, task, share, one
                else:  # a column for each share, published figures beside the plain draw
                    percent, *draw = title.split()
                    *named, task = cells[0].split()
                    if head[0] == "corpus":
                        named, task = [cells[0]], "diagnosis"
                    if draw == ["guaranteed"]:
                        assert cell == "-", line
                    else:
                        yield name, named or CORPORA, task, float(percent[:-1]) / 100, cell


def has_rows(text):
    return any(f"| {name}" in text for name in ROWS)


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if has_rows(p.read_text())], ids=lambda p: p.name
)
def test_published_rows_of_a_page_are_those_of_the_file(page):
    checked = 0
    for name, corpora, task, share, cell in published_cells(page.read_text()):
        figures = [published_rows(c, task).get(name, {}).get(share) for c in corpora]
        expected = {"-"} if not any(figures) else set()
        for figure in filter(None, figures):
            expected |= {f"{figure.score:.1f}", f"{figure.score} ({figure.row.model})"}
        assert cell in expected, (name, task, share, cell)
        checked += 1
    assert checked >= 20


def test_the_tables_that_compare_with_others_have_both_rows():
    for name in ("README.md", "docs/results.md", "docs/results-best.md", "docs/results-paper.md"):
        text = (ROOT / name).read_text()
        assert f"| {PAPER_BEST}" in text and f"| {HIGHEST_LINEAR}" in text, name


RESULTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("results*.md"))]


@pytest.mark.parametrize("page", RESULTS, ids=lambda p: p.name)
def test_a_page_of_results_says_what_the_weights_were_pre_trained_on(page):
    """By hand, or as `lvcg results` writes it."""
    text = " ".join(page.read_text().split())
    assert re.search(
        r"pre-trained on the training folds of PTB-XL|Pre-trained without labels", text
    )


def test_errors_of_hidden_leads_beside_ours_are_those_of_the_file():
    line = re.search(r"^\| LVCG, as the paper reports it \|(.*)\|$",
                     (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)  # fmt: skip
    shown = [tuple(map(float, cell.split("/"))) for cell in line[1].split("|")]
    places = [("cpsc2018", 3), ("cpsc2018", 5), ("ptb", 3), ("ptb", 5)]
    assert shown == [tuple(published_errors(*place).values()) for place in places]


def test_psnr_of_others_on_the_page_is_that_of_the_file():
    text = (ROOT / "docs" / "evaluation.md").read_text()
    for model, db in published_psnr("ptbxl", 3).items():
        assert f"| {model} (published) | {db} |" in text, model
    assert published_psnr("ptbxl", 5) == {}
