"""The tables of a search, made from its rows (lvcg_jax/search.py) and from nothing else."""

from collections.abc import Sequence

from lvcg_jax.text.tables import markdown_table, percent, points

INTRO = """# Experiments

What was tried on the way to `best`: candidates trained at one equal budget and judged by the validation split alone,
the ones that failed included. Each section is written by the command it shows.
"""


def to_text(rows: Sequence[dict]) -> str:
    """All rows: tables for each base, in the order in which they were begun, best first."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["base"], []).append(row)
    return "\n\n".join("\n".join(_group(group)).strip() for group in groups.values())


def _group(rows: list[dict]) -> list[str]:
    """The rows of one base."""
    base = next(row for row in rows if row["kind"] == "base")
    tried = {row["name"] for row in rows if "steps" in row}
    rows = [
        row
        for row in rows
        if row["kind"] == "control" or "steps" in row or row["name"] not in tried
    ]
    scored = sorted((row for row in rows if "mean" in row), key=lambda row: -row["mean"])
    failed = [row for row in rows if "mean" not in row]
    study, steps = base["study"], base["steps"]
    timed = f" ({study['budget']})" if study["budget"] != str(steps) else ""
    fractions, tasks = (
        ", ".join(map(percent, study["fractions"])),
        list(dict.fromkeys(c["task"] for c in base["cells"])),
    )
    lines = [
        f"### {steps} steps of `{base['name']}`{timed}",
        "",
        f"Every candidate has the model FLOPs of {steps} steps of {base['batch_size']} records of `{base['name']}`,"
        f" {base['tflop']:.4g} TFLOP. Scores are macro AUROC x 100 on {study['corpus']}'s validation split, never the"
        f" test split: {study['patients']} patients in two halves, the probe's strength chosen on one and judged on the"
        f" other, both ways. `mean` is over {', '.join(tasks)} with {fractions} of the labels,"
        f" {study['seeds']} label subset{'s' * (study['seeds'] > 1)} each; `gain` is over `{base['name']}`, paired by"
        " seed.",
        "",
    ]
    head = [
        "",
        f"change of {base['name']}",
        "mean",
        "gain",
        "seeds",
        "by seed",
        "steps",
        "TFLOP",
        "minutes",
    ]
    lines += markdown_table(head, [_summary(row) for row in [*scored, *failed]])
    for task in tasks:
        shares = [cell["fraction"] for cell in base["cells"] if cell["task"] == task]
        columns = [f"{task}, [95% interval over patients]", *map(percent, shares)]
        lines += markdown_table(
            columns, [[_name(row), *_cells(row, task, shares)] for row in scored]
        )
    names = list(dict.fromkeys(name for row in scored for name in row.get("terms", {})))
    trained = [row for row in scored if row.get("terms")]
    terms = [[_name(row), *(_number(row["terms"].get(name)) for name in names)] for row in trained]
    lines += markdown_table(["last validation", *names], terms)
    full = [[_name(row), row["paper"]] for row in rows if row.get("paper")]
    lines += [
        "<details><summary>Every difference from the paper's config (configs/pretrain.py)</summary>",
        "",
    ]
    lines += [*markdown_table(["", "configs/pretrain.py -> it"], full), "</details>", ""]
    notes = dict.fromkeys(note for row in scored for note in row["notes"])
    return [*lines, *(f"- {note}" for note in notes)]


def _name(row: dict) -> str:
    return f"{row['name']} (control)" if row["kind"] == "control" else row["name"]


def _summary(row: dict) -> list[str]:
    failed = f"failed: {row['reason']}" if row["reason"] else ""
    change = "; ".join(filter(None, (row["change"], failed)))
    fine = lambda name, sign="": f"{100 * row[name]:{sign}.2f}" if name in row else "-"  # noqa: E731
    by_seed = [f"{100 * value:+.2f}" for value in row.get("differences", ())]
    by_seed = by_seed or [f"{100 * value:.2f}" for value in row.get("means", ())]
    cost = [_number(row.get(name)) for name in ("steps", "tflop", "minutes")]
    scores = [
        fine("mean"),
        fine("difference", "+"),
        str(len(row["seeds"])),
        " ".join(by_seed) or "-",
    ]
    return [_name(row), change or "-", *scores, *cost]


def _cells(row: dict, task: str, fractions: Sequence[float]) -> list[str]:
    cells = {cell["fraction"]: cell for cell in row["cells"] if cell["task"] == task}
    return [
        points(*(cells.get(f, {}).get(name) for name in ("auroc", "low", "high")))
        for f in fractions
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
