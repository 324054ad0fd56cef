"""Scores of an embedding from training and validation records alone, for choices that the test
split must not see. The patients that judge are taken in one of two ways (JUDGES):

validation  The validation patients are halved. A probe is learnt from the training records, its
            strength is chosen on one half and its AUROC is taken on the other; then the other way
            round.
folds       The training and validation patients are divided into five folds. Three teach, the next
            chooses the strength, the last judges; then the same with the next three. Every record
            judges once, so that rare classes say more; it takes five fits instead of two.

The scores are averaged. So are the bounds of their bootstrap intervals over patients: a part of the
patients judges at a time, so these are wider than an interval of all.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import fold_of
from lvcg_jax.embed.table import Table, take_rows
from lvcg_jax.probe.labels import NothingToScore
from lvcg_jax.probe.study import probe_task
from lvcg_jax.stats.blocks import choose_rows
from lvcg_jax.text.tables import cells_of, markdown_table, percent, points

SPLITS = ("train", "validation")  # all that is read
# what notes call those who teach, choose and judge
WORDS = {
    "validation": {"train": "train split", "validation": "choosing half", "test": "judging half"},
    "folds": {"train": "teaching folds", "validation": "choosing fold", "test": "judging fold"},
}
JUDGES = tuple(WORDS)
FOLDS = 5


def half_of(patient_id: str) -> int:
    """0 or 1, by a hash of the patient."""
    return fold_of(f"half/{patient_id}", 2)


def judged_by(table: Table, half: int) -> Table:
    """The table with one half of the validation patients in the place of a test split."""
    mine = np.array([half_of(str(patient)) == half for patient in table.patient_id])
    return dataclasses.replace(
        table, split=np.where((table.split == "validation") & mine, "test", table.split)
    )


def judged_by_fold(table: Table, fold: int) -> Table:
    """The table with one of five folds of all patients in the place of a test split, and the one
    before it in that of the validation split."""
    mine = np.array([fold_of(f"fold/{patient}", FOLDS) for patient in table.patient_id])
    chooses = mine == (fold - 1) % FOLDS
    return dataclasses.replace(
        table, split=np.where(mine == fold, "test", np.where(chooses, "validation", "train"))
    )


def judged(table: Table, judge: str) -> list[Table]:
    """The table once for each part of the patients that judges."""
    if judge == "folds":
        return [judged_by_fold(table, fold) for fold in range(FOLDS)]
    return [judged_by(table, half) for half in (0, 1)]


def score_table(
    table: Table,
    tasks: Sequence[str],
    fractions: Sequence[float],
    seeds: int,
    resamples: int,
    judge: str = "validation",
) -> dict:
    """`cells` (task, fraction, macro AUROC with low and high), their `mean`, and `notes` on what
    was left out."""
    foreign = sorted(set(table.split.tolist()) - set(SPLITS))
    if foreign:
        raise InputError(
            f"a search looks at {' and '.join(SPLITS)} only, and this table has rows of"
            f" {foreign[0]}"
        )
    if not np.isfinite(table.embedding).all():
        raise InputError(
            f"{int((~np.isfinite(table.embedding)).any(1).sum())} embeddings are not finite"
        )
    cells, notes, tables = [], [], judged(table, judge)
    options = {"fractions": fractions, "seeds": seeds, "resamples": resamples}
    options |= {"parts": {"": table.part_sizes}, "split_words": WORDS[judge]}
    for task in tasks:
        try:
            results = [probe_task({"": table.embedding}, one, task, **options) for one in tables]
        except NothingToScore as error:  # the same for every candidate
            notes.append(f"{task}: not scored, {error}")
            continue
        found = [cells_of(result, "") for result in results]
        for fraction in sorted(set.intersection(*map(set, found))):
            several = [cells[fraction] for cells in found]
            auroc, low, high = (
                _mean([cell[name] for cell in several]) for name in ("macro_auroc", "low", "high")
            )
            cells.append(
                {"task": task, "fraction": fraction, "auroc": auroc, "low": low, "high": high}
            )
        part = "fold" if judge == "folds" else "half"
        for number, result in enumerate(results):
            notes += [
                f"{task}, judged by {part} {number}: {note}"
                for note in result["notes"]
                if note not in result["f1_notes"]
            ]
    if not cells:
        raise InputError(f"no task can be scored with --judge={judge}; {notes[0]}")
    return {"cells": cells, "mean": _mean([cell["auroc"] for cell in cells]), "notes": notes}


def format_scores(
    table: Table,
    features: Mapping[str, np.ndarray],
    parts: Mapping[str, Sequence[int]],
    tasks: Sequence[str],
    fractions: Sequence[float],
    **options: int | str,
) -> str:
    """A Markdown table of the scores of several models: features [m,d] in the table's row order,
    and the sizes of their parts; options as of `score_table`."""
    chosen = np.flatnonzero(np.isin(table.split, SPLITS))
    if set(SPLITS) - set(table.split[chosen].tolist()):
        raise InputError(f"--judge needs rows of the {' and '.join(SPLITS)} splits")
    rows, scores = take_rows(table, chosen), {}
    for name, x in features.items():
        sizes = {str(i): size for i, size in enumerate(parts.get(name) or [x.shape[1]])}
        model = dataclasses.replace(rows, embedding=choose_rows(x, chosen), parts=sizes)
        scores[name] = score_table(model, tasks, fractions, **options)
    first = next(iter(scores.values()))
    lines = markdown_table(
        ["task", "labels", *scores],
        (
            [cells[0]["task"], percent(cells[0]["fraction"])]
            + [points(*(cell[key] for key in ("auroc", "low", "high"))) for cell in cells]
            for cells in zip(*(score["cells"] for score in scores.values()), strict=True)
        ),
    )
    return "\n".join([*lines, *(f"- {note}" for note in first["notes"])])


def mean_cells(scores: Sequence[dict]) -> list[dict]:
    """The cells of several scores of the same tasks and fractions, averaged."""
    return [
        cells[0]
        | {name: _mean([cell[name] for cell in cells]) for name in ("auroc", "low", "high")}
        for cells in zip(*(score["cells"] for score in scores), strict=True)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(np.mean(values))
