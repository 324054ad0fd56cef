"""Figures that others have published, read from published.toml, to stand beside ours.

Two questions are asked of them: what is the best of the LVCG paper's own table, and what is the
highest figure known, whoever reached it and with whatever pre-training. They are two rows, as the
paper's baselines are weak.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PAPER_TABLE = "LVCG paper"
PAPER_BEST = "best of the LVCG paper's table"
# rows of a table, and the kinds of classifier that compete in each
HIGHEST = {
    "highest known, linear probe": ("linear",),
    "highest known, attention head": ("attention",),
    "highest known, all weights trained": ("fine-tuned", "supervised"),
}
HIGHEST_LINEAR, HIGHEST_ATTENTION, HIGHEST_TRAINED = HIGHEST
KINDS = {
    "linear": "linear probe",
    "attention": "attention head",
    "fine-tuned": "fine-tuned",
    "supervised": "all weights trained from scratch",
    "control": "control",
}
CAVEAT = (
    "Published figures are for the usual splits (PTB-XL: folds 1-8 train, 9 validation, 10 test),"
    " for label subsets drawn plainly, and mostly for models pre-trained elsewhere, so they give a"
    " scale and are no paired comparison. Classes of CSN differ from source to source."
)


@dataclass(frozen=True)
class Published:
    """One row of somebody's table; scores are macro AUROC x 100."""

    model: str
    kind: str
    pretraining: str
    protocol: str
    source: str
    looked_up: str
    # (corpus, task) -> {share of labels: score}
    scores: dict[tuple[str, str], dict[float, float]]
    average: dict[float, float]  # over the tasks of the source
    table: str = ""

    @property
    def words(self) -> str:
        """All that a reader needs in order to judge the row."""
        return (
            f"{KINDS[self.kind]}, {self.protocol}; pre-training: {self.pretraining};"
            f" {self.source}, looked up {self.looked_up}"
        )


@dataclass(frozen=True)
class Figure:
    """A published score, and whose it is."""

    score: float
    row: Published


@cache
def _document() -> dict:
    return tomllib.loads(files(__package__).joinpath("published.toml").read_text(encoding="utf-8"))


def _shares(percents: dict[str, float]) -> dict[float, float]:
    """{'10': 79.03} -> {0.1: 79.03}."""
    return {int(percent) / 100: score for percent, score in percents.items()}


@cache
def published() -> tuple[Published, ...]:
    """All rows of the file, in its order."""
    rows = []
    for row in _document()["row"]:
        scores = {
            (corpus, task): _shares(percents)
            for corpus, tasks in row["auroc"].items()
            for task, percents in tasks.items()
        }
        rest = {name: value for name, value in row.items() if name not in ("auroc", "average")}
        rows.append(Published(**rest, scores=scores, average=_shares(row.get("average", {}))))
    return tuple(rows)


def published_errors(corpus: str, visible: int) -> dict[str, float] | None:
    """MSE and MAE of hidden leads in the paper, z-scored, with this many leads visible."""
    for entry in _document()["reconstruction"]:
        if (entry["corpus"], entry["visible"]) == (corpus, visible):
            return {name: entry[name] for name in ("mse", "mae")}
    return None


def published_psnr(corpus: str, visible: int) -> dict[str, float]:
    """Models that others derived hidden leads with, from so many visible ones: {model: dB}."""
    return {
        entry["model"]: entry["db"]
        for entry in _document()["psnr"]
        if (entry["corpus"], entry["visible"]) == (corpus, visible)
    }


def published_rows(corpus: str, task: str) -> dict[str, dict[float, Figure]]:
    """The published rows of a table, {name: {share of labels: figure}}; a row without any figure
    for this task is left out."""
    rows = published()
    chosen = {PAPER_BEST: [row for row in rows if row.table == PAPER_TABLE]}
    chosen |= {name: [row for row in rows if row.kind in kinds] for name, kinds in HIGHEST.items()}
    found = {name: _highest(several, corpus, task) for name, several in chosen.items()}
    return {name: figures for name, figures in found.items() if figures}


def _highest(rows: list[Published], corpus: str, task: str) -> dict[float, Figure]:
    """The highest score at each share of the labels; of equal ones the first."""
    best: dict[float, Figure] = {}
    for row in rows:
        for share, score in row.scores.get((corpus, task), {}).items():
            if share not in best or score > best[share].score:
                best[share] = Figure(score, row)
    return best
