"""Probe results as Markdown tables."""

import math
from collections.abc import Iterable, Sequence

from data_prep.base.words import markdown_cell

F1_TITLE = (
    "Test macro F1 x 100, thresholds chosen on the validation split. The control 'always yes'"
    " answers yes for every record: 2p / (1 + p) for a class with a share p of positives. (The"
    " majority answer scores 0 wherever it is no.)"
)
AUPRC_TITLE = (
    "Test macro AUPRC x 100 (average precision). The control 'share of positives' is what a"
    " constant score reaches."
)
CALIBRATION_TITLE = (
    "Calibration on the test split after Platt's scaling on the validation split: macro Brier"
    " score, and the expected calibration error x 100 of all classes pooled (before the scaling)."
    " The control 'share of positives' always answers that."
)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, with an empty one after it; whatever is in a cell stays in it."""
    cells = [[markdown_cell(cell) for cell in row] for row in (columns, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:], ""]


def percent(fraction: float) -> str:
    return f"{100 * fraction:g}%"


def points(
    value: float | None, low: float | None = None, high: float | None = None, sign: str = ""
) -> str:
    """'87.1 [86.2, 88.0]': a score times 100 with its interval."""
    if value is None:
        return "-"
    interval = "" if low is None else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * value:{sign}.1f}{interval}"


def fractions_of(results: Sequence[dict]) -> list[float]:
    return sorted({cell["fraction"] for result in results for cell in result["cells"]})


def cells_of(result: dict, model: str) -> dict[float, dict]:
    """{fraction: cell} of one model."""
    return {cell["fraction"]: cell for cell in result["cells"] if cell["model"] == model}


def auroc_row(result: dict, model: str, fractions: Sequence[float]) -> list[str]:
    cells = cells_of(result, model)
    return [
        points(*(cells.get(f, {}).get(key) for key in ("macro_auroc", "low", "high")))
        for f in fractions
    ]


def f1_rows(result: dict, models: Sequence[str], fractions: Sequence[float]) -> list[list[str]]:
    """Macro F1 of each model, and of answering yes for every record."""
    names = ("macro_f1", "f1_low", "f1_high")
    return _score_rows(result, models, fractions, names, ("always yes", "f1_always_yes"))


def auprc_rows(result: dict, models: Sequence[str], fractions: Sequence[float]) -> list[list[str]]:
    """Macro AUPRC of each model, and of a constant score."""
    names = ("macro_auprc", "auprc_low", "auprc_high")
    return _score_rows(result, models, fractions, names, ("share of positives", "prevalence"))


def _score_rows(result, models, fractions, names, control) -> list[list[str]]:
    """A row for each model: the three `names` of its cells; then the control (label, name) that
    needs no model."""
    rows = []
    for model in models:
        cells = cells_of(result, model)
        scores = [points(*(cells.get(f, {}).get(name) for name in names)) for f in fractions]
        rows.append([model, *scores])
    cells, (label, name) = cells_of(result, models[0]), control
    return [*rows, [label, *(points(cells.get(f, {}).get(name)) for f in fractions)]]


def calibration_rows(
    result: dict, models: Sequence[str], fractions: Sequence[float]
) -> list[list[str]]:
    """Brier score and calibration error of each model, and the Brier score of a constant."""
    rows = []
    for model in models:
        found = {f: cell.get("calibration") for f, cell in cells_of(result, model).items()}
        rows.append([model, *(_calibration(found.get(f)) for f in fractions)])
    cells = cells_of(result, models[0])
    constant = [cells.get(f, {}).get("calibration") for f in fractions]
    shown = [f"{one['brier_prevalence']:.4f}" if one else "-" for one in constant]
    return [*rows, ["share of positives", *shown]]


def _calibration(found: dict | None) -> str:
    if found is None:
        return "-"
    before = f"{100 * found['ece_uncalibrated']:.2f}"
    return f"{found['brier']:.4f}, {100 * found['ece']:.2f} ({before})"


def gain_row(result: dict, control: str, fractions: Sequence[float]) -> list[str]:
    """Gains of the first model over a control, with paired intervals."""
    gaps = {gap["fraction"]: gap for gap in result["differences"] if gap["control"] == control}
    return [
        points(*(gaps.get(f, {}).get(key) for key in ("difference", "low", "high")), "+")
        for f in fractions
    ]


CLASS_COLUMNS = ("class", "features", "test positives (F1 of always yes)")


def class_rows(result: dict, models: Sequence[str], fractions: Sequence[float]) -> list[list[str]]:
    """CLASS_COLUMNS, then AUROC [interval], AUPRC and F1 at each fraction; a class left out has one
    row that says so."""
    rows = []
    for name in result["classes"]:
        by_model = {model: _of_class(result, model, name) for model in models}
        if not any(by_model.values()):
            rows.append([name, "left out", "-", *["-"] * len(fractions)])
            continue
        for model, found in by_model.items():
            entry = next(iter(found.values()), None)
            positives = (
                f"{entry['test_positives']} ({points(entry['f1_always_yes'])})" if entry else "-"
            )
            rows.append([name, model, positives, *(_class_score(found.get(f)) for f in fractions)])
    return rows


def _of_class(result: dict, model: str, name: str) -> dict[float, dict]:
    return {
        f: cell["per_class"][name]
        for f, cell in cells_of(result, model).items()
        if name in cell["per_class"]
    }


def _class_score(entry: dict | None) -> str:
    if entry is None:
        return "-"
    others = [
        f", {word} {points(entry[name])}"
        for word, name in (("AUPRC", "auprc"), ("F1", "f1"))
        if entry.get(name) is not None
    ]
    return points(entry["auroc"], entry["low"], entry["high"]) + "".join(others)


def format_results(results: Sequence[dict], per_class: bool = False) -> str:
    """All of a probe: AUROC, gains over controls, AUPRC, F1, if wanted each class, and notes."""
    fractions = fractions_of(results)
    head = [percent(f) for f in fractions]
    scores, gains, auprc, f1, calibrated, classes, notes = [], [], [], [], [], [], []
    for result in results:
        task, models = result.get("task", ""), result["models"]
        scores += [[task, model, *auroc_row(result, model, fractions)] for model in models]
        gains += [
            [task, f"{models[0]} - {model}", *gain_row(result, model, fractions)]
            for model in models[1:]
        ]
        auprc += [[task, *row] for row in auprc_rows(result, models, fractions)]
        f1 += [[task, *row] for row in f1_rows(result, models, fractions)]
        calibrated += [[task, *row] for row in calibration_rows(result, models, fractions)]
        classes += [[task, *row] for row in class_rows(result, models, fractions)]
        notes += [f"- {task}: {note}" for note in result["notes"]]
    protocol, draw, seeds = (
        [results[0].get(name, "") for name in ("protocol", "draw", "seeds")]
        if results
        else ("", "", 0)
    )
    subsets = (
        f"mean of {seeds} label subsets [95% bootstrap over patients], protocol {protocol}, draw"
        f" {draw}"
    )
    lines = [
        f"Test macro AUROC x 100, {subsets}",
        "",
        *markdown_table(["task", "features", *head], scores),
    ]
    if gains:
        lines += [
            "Gain over each control (paired bootstrap)",
            "",
            *markdown_table(["task", "difference", *head], gains),
        ]
    lines += [AUPRC_TITLE, "", *markdown_table(["task", "features", *head], auprc)]
    lines += [F1_TITLE, "", *markdown_table(["task", "features", *head], f1)]
    lines += [CALIBRATION_TITLE, "", *markdown_table(["task", "features", *head], calibrated)]
    if per_class:
        columns = ["task", *CLASS_COLUMNS, *head]
        lines += ["AUROC, AUPRC and F1 x 100 by class", "", *markdown_table(columns, classes)]
    return "\n".join([*lines, *(["Notes", "", *notes] if notes else [])])


def with_interval(
    summary: dict[str, float], which: str = "mean", digits: int = 3, sign: str = ""
) -> str:
    """'0.357 [0.340, 0.372]', or '-' where there is no value."""
    prefix = "median_" if which == "median" else ""
    values = (summary[which], summary[f"{prefix}low"], summary[f"{prefix}high"])
    if not all(map(math.isfinite, values)):
        return "-"
    value, low, high = (f"{round(v, digits) + 0.0:{sign}.{digits}f}" for v in values)  # no -0.000
    return f"{value} [{low}, {high}]"
