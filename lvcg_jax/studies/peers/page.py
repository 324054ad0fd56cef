"""The section of docs/peers.md that compares methods, and its pictures, made from the numbers of
`lvcg compare_peers` alone."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path

from data_prep.ecg.svg import Drawing, write_picture
from lvcg_jax.probe.frozen import ALL
from lvcg_jax.studies.peers.rows import FEW_LEADS, OWN, TITLES
from lvcg_jax.studies.published import CAVEAT, published
from lvcg_jax.studies.results_page import ATTENTION, DRAW_WORDS, Page, glance
from lvcg_jax.text.charts import Dot, dot_plot
from lvcg_jax.text.tables import auroc_row, cells_of, markdown_table, points

LVCG = TITLES[OWN]
UNCLEAR, BELOW = "†", "‡"  # not clearly above the random weights of its encoder; below them
COLOURS = {"LVCG": 0, "ResNet": 1, "transformer": 2}
PICTURES = ("peers-auroc.svg", "peers-leads.svg", "peers-moved.svg")


def scored(results: Sequence[dict]) -> list[dict]:
    """Those in which there was something to score."""
    return [result for result in results if "nothing" not in result]


def difference(result: dict, model: str, other: str, fraction: float = 1.0) -> dict | None:
    """How far a model is ahead of another on the same patients: difference, low and high."""
    for gap in result["differences"]:
        if (gap["model"], gap["control"], gap["fraction"]) == (model, other, fraction):
            return gap
        if (gap["model"], gap["control"], gap["fraction"]) == (other, model, fraction):
            names = {"difference": "difference", "low": "high", "high": "low"}
            return {name: -gap[there] for name, there in names.items()}
    return None


def mark_rows(result: dict, rows: Sequence[dict]) -> dict[str, dict]:
    """The trained rows that do not clearly beat the random weights of their own encoder with all
    labels: {title: the gain, with its `mark`}."""
    found = {}
    for row in rows:
        gap = difference(result, row["title"], f"random {row['encoder']}")
        if row["kind"] == "method" and gap is not None and gap["low"] <= 0:
            found[row["title"]] = gap | {"mark": BELOW if gap["difference"] <= 0 else UNCLEAR}
    return found


def why_not(row: dict, gap: dict, control: dict) -> str:
    """What is known of a row that does not clearly beat the random weights of a control."""
    gain = points(gap["difference"], gap["low"], gap["high"], "+")
    facts, words = row["facts"], []
    if facts.get("collapsed"):
        words.append("it has collapsed: all embeddings point the same way")
    if "rank" in facts and "rank" in control["facts"]:
        words.append(
            f"its {facts['numbers']} numbers use {facts['rank']:.1f} dimensions, those of random"
            f" weights {control['facts']['rank']:.1f}"
        )
    if "first_loss" in facts:
        fell = facts["last_loss"] < facts["first_loss"]
        losses = f"from {facts['first_loss']:.3g} to {facts['last_loss']:.3g}"
        words.append(f"its loss {'fell' if fell else 'did not fall'}, {losses}")
    return f"- {row['title']}: {gain} over random {row['encoder']}; {'; '.join(words)}."


def with_marks(results: Sequence[dict], marks: dict[str, dict]) -> list[dict]:
    """The results with the marks behind the names of their models."""
    names = {title: f"{title} {gap['mark']}" for title, gap in marks.items()}
    results = copy.deepcopy(list(results))
    for result in results:
        result["models"] = [names.get(name, name) for name in result["models"]]
        for cell in result["cells"]:
            cell["model"] = names.get(cell["model"], cell["model"])
        for gap in result["differences"]:
            for side in ("model", "control"):
                gap[side] = names.get(gap[side], gap[side])
    return results


def section_text(document: dict) -> str:
    """The whole section."""
    rows, results = document["rows"], scored(document["results"])
    lines = ["## The comparison", "", "<!-- not run: hours -->", "```bash", document["command"]]
    lines += ["```", "", *_facts(document)]
    if not results:
        return "\n".join([*lines, "Nothing could be scored.", *_notes(document)])
    marks = mark_rows(results[0], rows)
    page = Page({**document, "results": with_marks(results, marks), "further": []})
    lines += ["### At a glance", "", *glance(page, "AUROC")]
    lines += _marks(results[0], rows, marks)
    lines += [f"![Test AUROC with all labels](figures/{PICTURES[0]})", ""]
    lines += ["<details><summary>All rows with intervals over patients</summary>", ""]
    lines += page.table(
        lambda r: [[m, *auroc_row(r, m, page.fractions)] for m in page.models_of(r)]
    )
    lines += ["</details>", "", f"### {LVCG} against each", "", *_against(page, results)]
    lines += ["### Attention heads", "", *_attention(document)]
    lines += ["### Fewer leads", "", *_few_leads(document)]
    lines += ["### Electrodes elsewhere", "", *_moved(document)]
    lines += ["### Dimensions", "", *_dimensions(rows)]
    lines += ["### Longer training", "", *_longer(rows, results)]
    lines += ["### Learning rates", "", *_rates(document)]
    lines += ["### Cost", "", *_cost(document)]
    lines += ["### What is published of the same methods", "", *_published(results)]
    return "\n".join([*lines, *_notes(document)])


def _facts(document: dict) -> list[str]:
    data = document["data_sets"]
    sizes = []
    for one in data:
        by_split = [f"{split} {values['examples']:,}" for split, values in one["splits"].items()]
        sizes.append(f"{one['name']} ({', '.join(by_split)})")
    rates = " and ".join(f"{rate:g}" for rate in document["rates"])
    steps, batch = document["steps"], document["batch_size"]
    return [
        f"Each method has one training of {steps} steps with {batch} records of {data[0]['name']},"
        f" {steps * batch:,} in all, at the better of the rates {rates}; its last checkpoint is"
        f" probed. Records by split: {'; '.join(sizes)}. Intervals are 95% bootstraps over test"
        " patients: what another training of the same method would give is not in them.",
        "",
    ]


def _marks(result: dict, rows: Sequence[dict], marks: dict[str, dict]) -> list[str]:
    """What the marks mean, why each row has one, and which rows have no score."""
    lines = [
        f"- Random weights: `random ENCODER`, norm statistics measured. {UNCLEAR}: not clearly"
        f" above those of its own encoder on {result['data']} {result['task']} with all labels;"
        f" {BELOW}: below them. {'Rows with a mark:' if marks else 'No row has a mark.'}"
    ]
    by_title = {row["title"]: row for row in rows}
    lines += [
        why_not(row, gap, by_title[f"random {row['encoder']}"])
        for row, gap in ((by_title[title], gap) for title, gap in marks.items())
    ]
    lines += [f"- {row['title']}: no scores, {row['reason']}" for row in rows if row["reason"]]
    return [*lines, ""]


def _against(page: Page, results: Sequence[dict]) -> list[str]:
    """Gains of LVCG over every other row with all labels, a column for each task."""
    if LVCG not in results[0]["models"]:
        return [f"{LVCG} has no scores.", ""]
    cells = []
    for other in results[0]["models"]:
        gaps = [difference(result, LVCG, other) for result in results]
        if other != LVCG:
            cells.append([other, *map(_gap_cell, gaps)])
    words = "AUROC x 100 of LVCG minus the other with all labels, on the same patients."
    return [words, "", *markdown_table(["other", *map(page.task, results)], cells)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _gap_cell(gap: dict | None) -> str:
    return "-" if gap is None else points(gap["difference"], gap["low"], gap["high"], "+")


def _attention(document: dict) -> list[str]:
    found = scored(document["attention"])
    if not found:
        return ["None was asked for.", ""]
    rows = []
    for result in found:
        title = result["row"]
        head = auroc_row(result, title + ATTENTION, (1.0,))
        gap = difference(result, title + ATTENTION, title)
        where = f"{result['data']} {result['task']}"
        rows.append([where, title, *auroc_row(result, title, (1.0,)), *head, _gap_cell(gap)])
    words = "Test macro AUROC x 100 with all labels, of a linear probe and of an attention head."
    return [words, "", *markdown_table(["task", "features", "linear", "attention", "gain"], rows)]


def _few_leads(document: dict) -> list[str]:
    """Trained and tested with the same leads: a row for each method, the sets side by side."""
    found = scored(document["few_leads"])
    if not found:
        return ["Nothing could be scored.", ""]
    tasks = list(dict.fromkeys(result["task"] for result in found))
    sets = list(dict.fromkeys(result["leads"] for result in found))
    by_place = {(result["task"], result["leads"]): result for result in found}
    rows = []
    for model in found[0]["models"]:
        scores = []
        for task in tasks:
            several = [by_place.get((task, leads)) for leads in sets]
            cells = [cells_of(r, model).get(1.0, {}) if r else {} for r in several]
            scores.append([cell.get("macro_auroc") for cell in cells])
        scores.append([_mean(column) for column in zip(*scores, strict=True)])
        rows.append([model, *(" / ".join(map(points, row)) for row in scores)])
    names = "; ".join(f"{name}: {', '.join(leads)}" for name, leads in FEW_LEADS.items())
    lines = [
        f"Test macro AUROC x 100 with {' / '.join(sets)} ({names}), probe trained with the same"
        f" leads on at most {document['limit']:,} training records, all of their labels.",
        "",
        *markdown_table(["features", *tasks, "average"], rows),
    ]
    own = [
        [result["leads"], result["task"], other, _gap_cell(difference(result, LVCG, other))]
        for result in found
        for other in result["models"]
        if other != LVCG and difference(result, LVCG, other)
    ]
    lines += [f"<details><summary>{LVCG} minus each, with the same leads</summary>", ""]
    lines += [*markdown_table(["leads", "task", "other", "difference"], own), "</details>", ""]
    return [*lines, f"![Fewer leads](figures/{PICTURES[1]})", ""]


def changes_of(results: Sequence[dict]) -> dict[str, dict[str, dict[str, dict]]]:
    """What each disturbance does to each row: {disturbance: {row: {task: difference from the
    undisturbed probe}}}."""
    found: dict[str, dict[str, dict[str, dict]]] = {}
    for result in results:
        for name in result["models"]:
            gap = difference(result, name, ALL)
            if name != ALL and gap:
                found.setdefault(name, {}).setdefault(result["row"], {})[result["task"]] = gap
    return found


def _moved(document: dict) -> list[str]:
    found = changes_of(scored(document["moved"]))
    if not found:
        return ["Nothing could be scored.", ""]
    titles = list(dict.fromkeys(title for by_row in found.values() for title in by_row))
    tasks = list(dict.fromkeys(t for by_row in found.values() for x in by_row.values() for t in x))
    average, first = [], []
    for title in titles:
        several = [by_row.get(title, {}) for by_row in found.values()]
        means = [_mean([x[t]["difference"] if t in x else None for t in tasks]) for x in several]
        average.append([title, *(points(mean, sign="+") for mean in means)])
        first.append([title, *(_gap_cell(x.get(tasks[0])) for x in several)])
    return [
        "Change of the test macro AUROC x 100 of a probe that was trained with all leads and"
        f" electrodes in place, with all labels; mean of {document['draws']} draws where directions"
        " are drawn. The leads themselves change, in mV, the same for every method"
        " (`lvcg_jax/studies/moved_leads.py`); beats are those found before.",
        "",
        f"Average over {', '.join(tasks)}:",
        "",
        *markdown_table(["features", *found], average),
        f"{tasks[0]}, with intervals over patients:",
        "",
        *markdown_table(["features", *found], first),
        f"![Electrodes elsewhere](figures/{PICTURES[2]})",
        "",
    ]


def _dimensions(rows: Sequence[dict]) -> list[str]:
    cells = [
        [row["title"], str(row["facts"]["numbers"]), f"{row['facts']['rank']:.1f}"]
        for row in rows
        if "rank" in row["facts"]
    ]
    words = (
        "How many numbers an embedding has, and how many dimensions they use: the effective rank, e"
        " to the entropy of the shares that principal components have of the variance. An embedding"
        " that has collapsed uses one. The units of its numbers matter, so compare methods that"
        " have the same encoder."
    )
    return [words, "", *markdown_table(["features", "numbers", "dimensions used"], cells)]


def _longer(rows: Sequence[dict], results: Sequence[dict]) -> list[str]:
    long = [row for row in rows if "short" in row["facts"] and not row["reason"]]
    if not long:
        return ["Nothing was trained for longer.", ""]
    cells = []
    for row in long:
        gaps = [difference(result, row["title"], row["facts"]["short"]) for result in results]
        mean = _mean([gap["difference"] if gap else None for gap in gaps])
        steps = f"{row['steps']:,}"
        cells.append([row["title"], steps, *map(_gap_cell, gaps), points(mean, sign="+")])
    tasks = [f"{result['data']} {result['task']}" for result in results]
    words = (
        "The best by validation, trained longer with the same learning rate: gain of test AUROC x"
        " 100 over the short training, all labels."
    )
    return [words, "", *markdown_table(["features", "steps", *tasks, "average"], cells)]


def _rates(document: dict) -> list[str]:
    cells = []
    for row in document["rows"]:
        trials = row["facts"].get("rates")
        if trials:
            scores = [points(t["score"]) if not t["reason"] else t["reason"] for t in trials]
            rate = row["facts"]["rate"]
            chosen = "-" if rate is None else f"{rate:g}"
            cells.append([row["title"], *scores, chosen, points(row["facts"].get("validation"))])
    rates = [f"rate {rate:g}" for rate in document["rates"]]
    words = (
        f"Mean AUROC x 100 on halves of the validation patients, after {document['rate_steps']}"
        f" steps, with at most {document['limit']:,} training records; and of the whole training,"
        " with all of them, by which the best are chosen for longer training."
    )
    return [words, "", *markdown_table(["method", *rates, "chosen", "whole training"], cells)]


def _cost(document: dict) -> list[str]:
    cells, timed = [], False
    for method, cost in document["costs"].items():
        if "reason" in cost:
            cells.append([TITLES[method], cost["reason"], *["-"] * 6])
            continue
        parts = [cost[part] for part in ("train", "embed")]
        speeds = [part.get("times_the_speed") for part in parts]
        timed = timed or None not in speeds
        cells.append(
            [
                TITLES[method],
                f"{cost['parameters'] / 1e6:.2f}",
                *(f"{part['gflop']:.2f}" for part in parts),
                *map(_number, speeds),
                *(_number(part.get("program_memory_gib")) for part in parts),
            ]
        )
    both = ("training", "embedding")
    head = ["parameters, millions", *(f"GFLOP, {word}" for word in both)]
    head += [f"speed, {word}" for word in both] + [f"GiB, {word}" for word in both]
    words = (
        f"Operations of one record in batches of {document['batch_size']}, as XLA counts them;"
        f" records a second relative to {LVCG}, whose programs took turns with each; what the"
        " compiled program of a batch asks for in memory."
    )
    words += "" if timed else " Speed and memory were left out (`--no_timing`)."
    return [words, "", *markdown_table(["method", *head], cells)]


def _published(results: Sequence[dict]) -> list[str]:
    """Rows of published.toml by the names of the methods that are compared."""
    tasks = {(result["corpus"], result["task"]): result for result in results}
    cells, sources = [], {}
    for row in published():
        mine = {place: row.scores[place] for place in tasks if place in row.scores}
        if row.kind == "control" or not mine or not any(t in row.model for t in TITLES.values()):
            continue
        scores = [
            " / ".join(f"{mine[p][f]:g}" if f in mine.get(p, {}) else "-" for f in (0.01, 0.1, 1.0))
            for p in tasks
        ]
        cells.append([f"{row.model} ({row.kind})", *scores])
        sources[f"{row.model} ({row.kind}, {row.source})"] = row.words
    if not cells:
        return ["Nothing that we know of, for these tasks.", ""]
    head = [f"{result['data']} {result['task']}" for result in tasks.values()]
    lines = ["Macro AUROC x 100 with 1 / 10 / 100% of the labels. " + CAVEAT, ""]
    lines += markdown_table(["published", *head], cells)
    return [*lines, *(f"- {name}: {words}." for name, words in sources.items()), ""]


def _notes(document: dict) -> list[str]:
    """What was left out of the tables, each once."""
    notes = []
    for name in ("results", "attention", "few_leads", "moved"):
        for result in document[name]:
            where = " ".join(
                result[key] for key in ("data", "task", "row", "leads") if key in result
            )
            if "nothing" in result:
                notes.append(f"- {where}: {result['nothing']}")
            elif name == "results":
                notes += [f"- {where}: {n}" for n in result["notes"] if n not in result["f1_notes"]]
    draw = DRAW_WORDS[document["draw"]]
    return ["### Notes", "", f"- Label subsets: {draw}; linear probes: `ridge`.", *notes]


def _mean(values: Sequence[float | None]) -> float | None:
    """None unless all are known."""
    return None if None in values or not values else math.fsum(values) / len(values)


# ---- Pictures


def draw_pictures(document: dict, folder: Path) -> list[Path]:
    """The pictures that there are numbers for."""
    folder.mkdir(parents=True, exist_ok=True)
    note = "Bars: 95% bootstrap over test patients, of one training each. "
    by_encoder = "Blue: LVCG's encoder, the next two colours: ResNet and transformer."
    charts = (
        ("All labels, linear probe", auroc_plots(document), by_encoder),
        ("Fewer leads", leads_plots(document), "The probe is trained with the same leads. "),
        ("Electrodes elsewhere", moved_plots(document), "The probe is trained with all in place. "),
    )
    return [
        write_picture(folder / name, title, plots, note + words, columns=2)
        for name, (title, plots, words) in zip(PICTURES, charts, strict=True)
        if plots
    ]


def colour_of(document: dict, title: str) -> int:
    """Trained rows by their encoder, all others grey."""
    for row in document["rows"]:
        if row["title"] == title and row["kind"] == "method":
            return COLOURS[row["encoder"]]
    return -1


def _dots(document: dict, result: dict) -> list[Dot]:
    """All models of a result with all labels, best first."""
    dots = []
    for model in result["models"]:
        cell = cells_of(result, model).get(1.0)
        if cell and cell["macro_auroc"] is not None:
            values = [
                None if cell[k] is None else 100 * cell[k] for k in ("macro_auroc", "low", "high")
            ]
            dots.append(Dot(model, *values, colour_of(document, model)))
    return sorted(dots, key=lambda dot: -dot.value)


def auroc_plots(document: dict) -> list[Drawing]:
    """A plot for each task."""
    plots = []
    for result in scored(document["results"]):
        dots = _dots(document, result)
        if dots:
            title = f"{result['data']} {result['task']}"
            plots.append(
                dot_plot([("100% of the labels", dots)], title, "test macro AUROC (x 100)")
            )
    return plots


def leads_plots(document: dict) -> list[Drawing]:
    """The first task and the others, a plot each, with a group for each set of leads."""
    tasks: dict[str, list] = {}
    for result in scored(document["few_leads"]):
        dots = _dots(document, result)
        if dots:
            tasks.setdefault(result["task"], []).append((result["leads"], dots))
    return [dot_plot(groups, task, "test macro AUROC (x 100)") for task, groups in tasks.items()]


def moved_plots(document: dict) -> list[Drawing]:
    """A plot for each disturbance: the change on the first task."""
    plots = []
    for name, by_row in changes_of(scored(document["moved"])).items():
        task = next(iter(next(iter(by_row.values()))))
        dots = [
            Dot(title, *(100 * gaps[task][k] for k in ("difference", "low", "high")),
                colour_of(document, title))
            for title, gaps in by_row.items()
            if task in gaps
        ]  # fmt: skip
        dots.sort(key=lambda dot: -dot.value)
        plots.append(dot_plot([(task, dots)], name, "change of AUROC (x 100)", guide=0.0))
    return plots
