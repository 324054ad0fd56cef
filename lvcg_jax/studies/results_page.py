"""The Markdown of a results page, made from the numbers of `lvcg results` alone.

A result is what `evaluate` gives for one task of one data set with one draw of the label subsets.
Draws stand side by side; published figures stand beside the plain draw, which is theirs.
"""

from collections.abc import Callable, Sequence

from lvcg_jax.studies.kept import MODEL, RANDOM, RAW
from lvcg_jax.studies.published import (
    CAVEAT,
    HIGHEST_ATTENTION,
    HIGHEST_LINEAR,
    PAPER_BEST,
    Figure,
    published_rows,
)
from lvcg_jax.text.tables import (
    AUPRC_TITLE,
    CLASS_COLUMNS,
    F1_TITLE,
    auprc_rows,
    auroc_row,
    cells_of,
    class_rows,
    f1_rows,
    fractions_of,
    gain_row,
    markdown_table,
    percent,
    points,
)

PUBLISHED_DRAW = "plain"
ATTENTION = ", attention"  # behind the name of a model
DRAW_WORDS = {
    "guaranteed": "`guaranteed` draws whole patients, with a positive of each class at least",
    "plain": "`plain` draws records at random and scores every test class, as published figures do",
}


class Page:
    """The results of a document, by task and draw."""

    def __init__(self, document: dict):
        self.document = document
        self.results = [*document["results"], *document["further"]]
        self.draws = list(dict.fromkeys(result["draw"] for result in self.results))
        self.fractions = fractions_of(self.results)
        self.several = len(document["data_sets"]) > 1
        # {task as the page calls it: {draw: result}}, in the order of the data sets
        order = [data["name"] for data in document["data_sets"]]
        self.tasks: dict[str, dict[str, dict]] = {}
        for result in sorted(self.results, key=lambda result: order.index(result["data"])):
            self.tasks.setdefault(self.task(result), {})[result["draw"]] = result
        # models in the order of the tables, parts of the embedding last
        names = list(dict.fromkeys(name for r in self.results for name in r["models"]))
        self.parts = [name for name in names if name.startswith(f"{MODEL}: ")]
        self.models = [name for name in names if name not in self.parts]

    def task(self, result: dict) -> str:
        return f"{result['data']} {result['task']}" if self.several else result["task"]

    def models_of(self, result: dict, parts: bool = False) -> list[str]:
        """The rows of a task, in the order of the tables; with parts of the embedding last."""
        names = [*self.models, *self.parts] if parts else self.models
        return [name for name in names if name in result["models"]]

    def columns(self) -> list[str]:
        """A column for each fraction, side by side for each draw."""
        named = len(self.draws) > 1
        return [percent(f) + f" {draw}" * named for draw in self.draws for f in self.fractions]

    def rows(self, make: Callable[[dict], list[list[str]]], task: str) -> list[list[str]]:
        """What `make` gives for each draw's result (rows with their name first), side by side."""
        by_draw = [make(self.tasks[task][draw]) for draw in self.draws]
        return [
            [task, same[0][0], *(cell for row in same for cell in row[1:])]
            for same in zip(*by_draw, strict=True)
        ]

    def table(self, make: Callable[[dict], list[list[str]]], second: str = "features") -> list[str]:
        """The lines of a table of all tasks."""
        rows = [row for task in self.tasks for row in self.rows(make, task)]
        return markdown_table(["task", second, *self.columns()], rows)

    def published(self, task: str) -> dict[str, dict[float, Figure]]:
        """The published rows of a task, if there is a plain draw that they can stand beside."""
        result = self.tasks[task].get(PUBLISHED_DRAW)
        return published_rows(result["corpus"], result["task"]) if result else {}


def section_text(document: dict) -> str:
    """One run's section."""
    page = Page(document)
    lines = [f"## {document['name']}", "", "```bash", document["command"], "```", ""]
    lines += [*_facts(document), ""]
    lines += ["### At a glance", "", *glance(page, "AUROC")]
    lines += ["### Test macro AUROC x 100", "", *_auroc(page)]
    lines += [f"### Gain of {MODEL} over each other row (paired bootstrap)", ""]
    lines += page.table(lambda r: _gains(page, r), "difference")
    lines += [f"### Where {MODEL} does not win", "", *_not_won(page), ""]
    lines += ["### Agreement of the protocols", "", *_agreement(page), ""]
    for metric, title, make in (("AUPRC", AUPRC_TITLE, auprc_rows), ("F1", F1_TITLE, f1_rows)):
        lines += [f"### {metric}", "", *glance(page, metric), title, ""]
        lines += page.table(lambda r, make=make: make(r, page.models_of(r), page.fractions))
    lines += ["<details><summary>Every class: AUROC, AUPRC and F1 x 100</summary>", ""]
    classes = [
        [page.task(r), *row]
        for r in document["results"]
        for row in class_rows(r, page.models_of(r), page.fractions)
    ]
    fractions = [percent(f) for f in page.fractions]
    lines += markdown_table(["task", *CLASS_COLUMNS, *fractions], classes)
    lines += ["</details>", ""]
    notes = [f"- {note}" for note in document["notes"]] + [
        f"- {page.task(r)}{_of_draw(page, r)}: {note}" for r in page.results for note in r["notes"]
    ]
    return "\n".join([*lines, *(["### Notes", "", *notes] if notes else [])])


def _of_draw(page: Page, result: dict) -> str:
    return f" ({result['draw']})" if len(page.draws) > 1 else ""


def _facts(document: dict) -> list[str]:
    """Data, checkpoint, training, pre-training and config, a bullet each."""
    run, lines = document["run"], []
    for data in document["data_sets"]:
        sizes = "; ".join(
            f"{split} {v['examples']} rows of {v['patients']} patients"
            for split, v in data["splits"].items()
        )
        name = data["corpus"] + f" (`{data['name']}`)" * (data["name"] != data["corpus"])
        lines.append(
            f"- Data: {name}, {data['windows']} window{'s' * (data['windows'] == 'all')} of each"
            f" record, {data['split_rule']}: {sizes}; preprocessing {data['preprocess_hash']}."
        )
    lines.append(
        f"- Checkpoint {run['checkpoint']}, of a run of {run['steps']} steps with"
        f" {run['batch_size']} records each."
    )
    if run.get("method"):
        lines.append(
            f"- Rows called {MODEL} are of another method: `{run['method']}` (see"
            " [Peers](peers.md))."
        )
    lines.append(f"- {_pretraining(document)}")
    best, last = run["validation_best"], run["validation_last"]
    if best:
        lines.append(f"- Validation: best {_validation(best)}; last {_validation(last)}.")
    if run["differences"] is not None:
        changes = ", ".join(f"`{change}`" for change in run["differences"]) or "none"
        lines.append(f"- Differences from the paper's table (`configs/pretrain.py`): {changes}.")
    for name, files in document["others"].items():
        lines.append(f"- {name}: embeddings of another model, read from {', '.join(files)}.")
    return lines


def _pretraining(document: dict) -> str:
    """Which of the data sets the model knows from its pre-training."""
    known = document["run"]["pretrained_on"]
    if known is None:
        return (
            "What it was pre-trained on is not at hand any more. Most published models were"
            " pre-trained on another corpus than they are probed on."
        )
    sets = document["data_sets"]
    same = [data["name"] for data in sets if data["corpus"] in known]
    new = [data["name"] for data in sets if data["corpus"] not in known]
    text = f"Pre-trained without labels on {', '.join(known)}."
    if same:
        text += (
            f" {', '.join(same)} and its pre-training data are of one corpus, an advantage that"
            " most published models did not have."
        )
    return text + (f" It has never seen {', '.join(new)}." if new else "")


def _validation(row: dict) -> str:
    loss = f"loss {row['loss']:.4g} at step {row['step']}"
    if "ecg_r2" not in row:  # of another method
        return loss
    leads, vector = row["ecg_r2"], row["vcg_r2"]
    return f"{loss} (R2 of hidden leads {leads:.3f}, of the visible heart vector {vector:.3f})"


def glance(page: Page, metric: str) -> list[str]:
    """A column for each task and one for their average; a table for each draw."""
    shares = " / ".join(f"{100 * f:g}" for f in page.fractions)
    head, key, lines = ["features", *page.tasks, "average"], f"macro_{metric.lower()}", []
    for draw in page.draws:
        results = [by_draw[draw] for by_draw in page.tasks.values()]
        rows = []
        for model in page.models:
            cells = [cells_of(result, model) for result in results]
            scores = [[c.get(f, {}).get(key) for f in page.fractions] for c in cells]
            rows.append([model, *_joined(scores, 100)])
        if metric == "AUROC" and draw == PUBLISHED_DRAW:
            figures = [page.published(task) for task in page.tasks]
            for name in dict.fromkeys(name for found in figures for name in found):
                mine = [found.get(name, {}) for found in figures]
                scores = [[x[f].score if f in x else None for f in page.fractions] for x in mine]
                rows.append([f"{name} (published)", *_joined(scores, 1)])
        lines += [
            f"Test macro {metric} x 100 with {shares}% of the labels; {DRAW_WORDS[draw]}.",
            "",
        ]
        lines += markdown_table(head, rows)
    return lines


def _joined(scores: list[list[float | None]], factor: float) -> list[str]:
    """Scores [task][fraction] -> '75.3 / 79.0 / 80.1' of each task and of the mean over tasks,
    which only exists where every task has a score."""
    columns = list(zip(*scores, strict=True))
    known = [[x for x in column if x is not None] for column in columns]
    mean = [sum(x) / len(x) if len(x) == len(scores) else None for x in known]
    return [
        " / ".join("-" if x is None else f"{factor * x:.1f}" for x in row)
        for row in [*scores, mean]
    ]


def _auroc(page: Page) -> list[str]:
    """Scores with intervals, published figures with whose they are, and the sources of these."""
    seeds, rows, sources = page.results[0]["seeds"], [], {}
    for task in page.tasks:
        rows += page.rows(
            lambda r: [
                [model, *auroc_row(r, model, page.fractions)]
                for model in page.models_of(r, parts=True)
            ],
            task,
        )
        for name, figures in page.published(task).items():
            cells = [
                f"{figures[f].score} ({figures[f].row.model})"
                if draw == PUBLISHED_DRAW and f in figures
                else "-"
                for draw in page.draws
                for f in page.fractions
            ]
            rows.append([task, f"{name} (published)", *cells])
            sources |= {(x.row.model, x.row.kind): x.row.words for x in figures.values()}
    lines = [
        f"Mean of {seeds} label subsets [95% bootstrap over patients], protocol `ridge` where no"
        f" other is named; {RANDOM}: mean of {page.document['random_seeds']} initialisations with"
        f" norm statistics measured on training data; {RAW}: one as it is initialised, which is"
        " what others compare with.",
        "",
        *markdown_table(["task", "features", *page.columns()], rows),
    ]
    if sources:
        lines += [CAVEAT, "", *(f"- {model}: {words}." for (model, _), words in sources.items())]
        return [*lines, ""]
    if PUBLISHED_DRAW not in page.draws:
        lines += ["Published figures stand beside the plain draw only: `--draw=plain`.", ""]
    return lines


def _gains(page: Page, result: dict) -> list[list[str]]:
    return [
        [f"{MODEL} - {other}", *gain_row(result, other, page.fractions)]
        for other in page.models_of(result)
        if other != MODEL
    ]


def _not_won(page: Page) -> list[str]:
    """Every other row, part and published figure that is not clearly beaten, as sentences; of the
    draws, the first, and for published figures the plain one."""
    lines = []
    for task, by_draw in page.tasks.items():
        for gap in by_draw[page.draws[0]]["differences"]:
            lines += _gap_words(task, gap, page.parts)
        for name, figures in page.published(task).items():
            model = {
                PAPER_BEST: MODEL,
                HIGHEST_LINEAR: MODEL,
                HIGHEST_ATTENTION: MODEL + ATTENTION,
            }.get(name)
            ours = cells_of(by_draw[PUBLISHED_DRAW], model) if model else {}
            behind = {
                f: figures[f].score - 100 * cell["macro_auroc"]
                for f, cell in ours.items()
                if f in figures and figures[f].score > 100 * cell["macro_auroc"]
            }
            if behind:
                gaps = ", ".join(
                    f"{gap:.1f} points at {percent(f)} ({figures[f].row.model})"
                    for f, gap in behind.items()
                )
                end = "" if model == MODEL else f"; {model}"
                what = name.replace(",", "")
                lines.append(f"- {task}: below the {what} (published) by {gaps}{end}.")
    if not lines:
        return ["It is clearly ahead of all other rows on every task and at every fraction."]
    return [f"Intervals are of the difference, {MODEL} minus the other.", "", *lines]


def _gap_words(task: str, gap: dict, parts: Sequence[str]) -> list[str]:
    """A sentence on a difference that is not clearly above zero, else nothing."""
    where = f"- {task}, {percent(gap['fraction'])} of the labels"
    size = f"{abs(100 * gap['difference']):.1f} points"
    interval = f"[{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    if gap["control"] in parts:
        part = gap["control"].removeprefix(f"{MODEL}: ").removesuffix(" only")
        words = f"{part} alone scores {size} more than the whole embedding {interval}"
        return [f"{where}: {words}."] if gap["difference"] < 0 else []
    if gap["control"] == MODEL + ATTENTION:
        words = f"an attention head adds {size} to the linear probe {interval}"
        return [f"{where}: {words}."] if gap["difference"] < 0 else []
    if gap["difference"] <= 0:
        doubt = "" if gap["high"] < 0 else ", within the uncertainty"
        return [f"{where}: {gap['control']} is ahead by {size} {interval}{doubt}."]
    if gap["low"] <= 0:
        return [f"{where}: ahead of {gap['control']} by {size} only, not clear of zero {interval}."]
    return []


def _agreement(page: Page) -> list[str]:
    """How far the other protocols are from 'ridge' on the first task with all labels."""
    lines = [
        "`paper`: Adam on standardised features; `release`: Adam on raw features, 50 epochs at"
        " most. The paper does not say whether features are standardised; that `paper` does so"
        " was decided after seeing test scores of a toy model.",
        "",
    ]
    for other in page.document["agreement"]:
        by_draw = page.tasks[page.task(other)]
        ridge = by_draw.get(other["draw"], next(iter(by_draw.values())))
        for model in other["models"]:
            one, two = (cells_of(result, model).get(1.0) for result in (ridge, other))
            if one and two:
                scores = (
                    f"`ridge` {points(one['macro_auroc'])}, `{other['protocol']}`"
                    f" {points(two['macro_auroc'])}"
                )
                gap = f"{abs(100 * (one['macro_auroc'] - two['macro_auroc'])):.1f} points apart"
                end = ", still improving when it was stopped" if two["cut_short"] else ""
                lines.append(
                    f"- {page.task(other)}, 100% of the labels, {model}: {scores}: {gap}{end}."
                )
    return lines
