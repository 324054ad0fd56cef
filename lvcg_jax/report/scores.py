"""Sections of a run's report that are made from what other commands wrote: probe, derived leads,
robustness, geometry.

Each reader takes exactly the file of its command and says in one line what is wrong with another.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from data_prep.base.errors import InputError
from lvcg_jax.probe.figures import probe_plots
from lvcg_jax.report.page import join, parts
from lvcg_jax.studies.robustness_report import fewer_charts, moved_charts
from lvcg_jax.text.charts import Dot, dot_plot
from lvcg_jax.text.documents import GEOMETRY_SCORES, read_json, read_probe
from lvcg_jax.text.pages import shown
from lvcg_jax.text.tables import auroc_row, fractions_of, gain_row, percent, with_interval

# what of GEOMETRY_SCORES is drawn
UNIT_OF_SCORE = dict.fromkeys(("r_x", "r_y", "r_z"), "correlation r (no unit)") | dict.fromkeys(
    ("r2_all", "r2"), "R2 (no unit)"
)


def probe_section(path: Path) -> Markup:
    """Dots with intervals by task, the first model in colour, and tables of scores and of gains
    over the controls."""
    document = read_probe(path)
    results, fractions = document["results"], fractions_of(document["results"])
    command = (
        document.get("command")
        or f"lvcg probe --embeddings=FILE --control=NAME=FILE --out={path.name}"
    )
    seeds, protocol = results[0].get("seeds", 0), results[0].get("protocol", "")
    caption = (
        f"Linear probe of frozen features, protocol {protocol}: mean of {seeds} label subsets"
        " (small strokes), bars: 95% bootstrap over patients. Blue: this model; grey: controls and"
        " parts; dotted: chance."
    )
    head = [percent(f) for f in fractions]
    scores = [
        [r["task"], model, *auroc_row(r, model, fractions)]
        for r in results
        for model in r["models"]
    ]
    gains = [
        [r["task"], f"{r['models'][0]} - {model}", *gain_row(r, model, fractions)]
        for r in results
        for model in r["models"][1:]
    ]
    text = parts.figure(parts.grid(probe_plots(results)), caption, command)
    text += parts.heading("Test macro AUROC x 100 [95%]")
    text += parts.table(["task", "features", *head], scores)
    if gains:
        text += parts.heading("Gain over each control (paired bootstrap)")
        text += parts.table(["task", "difference", *head], gains)
    notes = [f"{r['task']}: {line}" for r in results for line in r.get("notes", ())]
    if notes:
        text += parts.folded(f"{len(notes)} notes", join(map(parts.paragraph, notes)))
    return text


def reconstruction_section(folder: Path) -> Markup:
    """R2 of derived leads by method, a drawing for each view, and the error of every lead."""
    path = folder / "metrics.json" if folder.is_dir() else folder
    document = read_json(path, ("lvcg-reconstruct-1",), "lvcg reconstruct --out=DIR")
    plots, tables = [], Markup()
    for view in document["views"]:
        dots = []
        for name, found in view["methods"].items():
            r2 = found["overall"]["r2"]
            if r2["median"] is not None:
                bounds = (r2["median"], r2["median_low"], r2["median_high"])
                dots.append(Dot(name, *bounds, 0 if name == view["first"] else -1))
        if dots:
            groups = [(f"{view['records']} records, {view['patients']} patients", dots)]
            x_label = "R2 of hidden leads (median over patients)"
            plots.append(dot_plot(groups, view["view"], x_label, digits=2, guide=0.0))
        tables += parts.heading(f"Mean squared error by hidden lead: {view['view']}")
        tables += _lead_errors(view)
    caption = (
        "Leads that the model did not see, derived by every method; bars: 95% bootstrap over"
        " patients. 1 is perfect."
    )
    command = f"lvcg reconstruct --checkpoint=RUN --data=SHARDS --out={shown(folder)}"
    text = parts.figure(parts.grid(plots), caption, command) + tables
    notes = document.get("notes", ())
    return text + parts.list(notes) if notes else text


def _lead_errors(view: dict) -> Markup:
    every = (lead for found in view["methods"].values() for lead in found["per_lead"])
    leads, rows = list(dict.fromkeys(every)), []
    for name, found in view["methods"].items():
        means = [found["per_lead"].get(lead, {}).get("mse", {}).get("mean") for lead in leads]
        overall = with_interval(_known(found["overall"]["mse"]))
        rows.append([name, overall, *("-" if m is None else f"{m:.2f}" for m in means)])
    return parts.table(["method", "all hidden leads [95%]", *leads], rows)


def _known(summary: dict) -> dict:
    """JSON has no NaN: it is null there."""
    return {name: math.nan if value is None else value for name, value in summary.items()}


def robustness_section(folder: Path) -> Markup:
    """AUROC and derived leads with fewer leads, and with electrodes that are not where the model
    believes."""
    path = folder / "robustness.json" if folder.is_dir() else folder
    document = read_json(path, ("lvcg-robustness-1",), "lvcg robustness --out=DIR")
    command = f"lvcg robustness --checkpoint=RUN --data=SHARDS --out={shown(folder)}"
    fewer, moved = document["fewer_leads"], document["moved_electrodes"]
    text = parts.heading("Fewer leads")
    text += parts.figure(
        parts.grid(fewer_charts(fewer)),
        f"Nested sets: the first leads of {', '.join(fewer['order'])}; open marks: devices. Bars:"
        " 95% bootstrap over patients. Retrained: probe trained with the same leads, on"
        f" {fewer['train_records']} training records.",
        command,
    )
    text += parts.heading("Moved electrodes")
    text += parts.figure(
        parts.grid(moved_charts(moved)),
        f"Change against electrodes in place, mean of {moved['seeds']} draws; bars: 95% bootstrap"
        f" over patients. Leads derived from {', '.join(moved['derived_from'])} of"
        f" {moved['derived_records']} records.",
        command,
    )
    return text + join(parts.paragraph(line, "soft") for line in document.get("notes", ()))


def geometry_section(path: Path) -> Markup:
    """The page of lvcg_jax.studies.geometry_report: agreement with measured Frank leads as dots,
    and its table."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); lvcg geometry_report --out=FILE writes it"
        ) from None
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    width = 2 + len(GEOMETRY_SCORES)  # the geometry, the unit, and the scores
    if len(cells) < 3 or any(len(row) != width for row in cells):
        raise InputError(f"{path} is not the page that lvcg geometry_report --out=FILE writes")

    head, _, *rows = cells
    plots = []
    for column, score in enumerate(GEOMETRY_SCORES, 2):
        if score not in UNIT_OF_SCORE:
            continue
        groups = []
        for unit in dict.fromkeys(row[1] for row in rows):
            found = [(row[0], _numbers(row[column])) for row in rows if row[1] == unit]
            dots = [Dot(name, *n, 0 if name == "paper" else -1) for name, n in found if n]
            if dots:
                groups.append((f"leads in {unit}" if unit == "mV" else f"leads {unit}", dots))
        if groups:
            plots.append(dot_plot(groups, head[column], UNIT_OF_SCORE[score], digits=2))
    about = text.partition("\n|")[0].strip().split("\n\n")[-1].replace("`", "")
    drawn = parts.figure(
        parts.grid(plots),
        f"Fixed lead directions held against Frank leads that were measured. {about}",
        f"lvcg geometry_report --raw=PTB_FOLDER --out={path.name}",
    )
    return drawn + parts.folded("All numbers", parts.table(head, rows))


def _numbers(cell: str) -> list[float] | None:
    """'0.972 [0.960, 0.980]' -> value, low, high."""
    found = re.findall(r"-?\d+(?:\.\d+)?", cell)
    return [float(number) for number in found] if len(found) == 3 else None


# flag -> title of its section, and what makes it
READERS: dict[str, tuple[str, Callable[[Path], Markup]]] = {
    "probe": ("Linear probe", probe_section),
    "reconstruction": ("Derived leads, measured", reconstruction_section),
    "robustness": ("Fewer leads and moved electrodes", robustness_section),
    "geometry": ("Geometry check", geometry_section),
}
