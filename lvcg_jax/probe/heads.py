"""Makes a head of a probe (see lvcg_jax/runs/heads.py), with scores by group of patients and
with fewer leads.

Axis letters: m row, r record, d feature, c class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.formats.tables import read_keyed
from lvcg_jax import __version__
from lvcg_jax.embed.table import Table, align_features, load_table
from lvcg_jax.probe.labels import Task, task_of
from lvcg_jax.probe.study import Run, evaluate, linear_fits
from lvcg_jax.runs.attention import Attention
from lvcg_jax.runs.heads import ATTENTION, UNLIKE, Head
from lvcg_jax.stats import calibration
from lvcg_jax.stats.auroc import auroc, bootstrap_ranks, macro_auroc
from lvcg_jax.stats.bootstrap import PatientBootstrap, class_intervals
from lvcg_jax.stats.calibration import apply_platt
from lvcg_jax.stats.layer import Linear
from lvcg_jax.stats.spread import fit_spread

MOST = 0.9  # of the training records have a lead that the head is said to be trained with
FEWEST = 10  # patients of a group that have a class, for the class to be scored there
NOT_KEPT = ("f1_low", "f1_high", "f1_always_yes")
AGES = (40, 60, 80)  # years at which groups by age begin
UNLIKE_WORDS = f"farther from the mean of the training records than {100 * UNLIKE:g}% of them"
CHOSEN_BY = {
    "thresholds": "highest F1 on the validation split",
    "calibration": "Platt's scaling on the validation split, classes of few positives held near one"
    " slope for all",
    "unlike": UNLIKE_WORDS,
}


@dataclass(frozen=True)
class Tested:
    """Answers for the test records, with the truth."""

    records: np.ndarray  # [r]
    patients: np.ndarray  # [r]
    labels: np.ndarray  # bool [r,c]
    probabilities: np.ndarray  # [r,c]
    unlike: np.ndarray  # bool [r]
    classes: list[str]


class Kept:
    """Called with every run of `evaluate`; keeps that of one model with all labels, seed 0, and
    what its fit had learnt then: a layer and, of fine-tuning, the tuned weights, or what attention
    adds to it."""

    def __init__(self, model: str, fit: Callable):
        self.model, self.fit = model, fit
        self.run: Run | None = None
        self.layer: Linear | None = None
        self.variables: dict | None = None
        self.attention: Attention | None = None

    def __call__(self, model, fraction, seed, records, classes, run: Run) -> None:
        if (model, fraction, seed) == (self.model, 1.0, 0):
            self.run, self.layer = run, getattr(self.fit, "layer", None)
            self.variables = getattr(self.fit, "variables", None)
            self.attention = getattr(self.fit, "attention", None)


def make_head(table: Table, found: Task, kept: Kept, result: dict) -> Head:
    """The head of the run that was kept, with the result of `evaluate` that it belongs to."""
    run, layer = kept.run, kept.layer
    if run is None or layer is None or not run.learnt.any():
        raise InputError(f"nothing was learnt from all labels of task '{found.name}': no head")
    train = found.splits == "train"
    numbers = np.unique(found.records[train], return_inverse=True)[1]
    platt = run.platt[:, run.learnt]
    cell = next(
        c for c in result["cells"] if (c["model"], c["fraction"]) == (result["models"][0], 1.0)
    )
    facts = {
        "task": found.name,
        "classes": [c for c, yes in zip(found.classes, run.learnt, strict=True) if yes],
        "checkpoint": table.metadata.get("checkpoint", ""),
        "preprocess_hash": table.metadata.get("preprocess_hash", ""),
        "parts": table.parts,
        "leads": usual_leads(table, found.rows[train]),
        "training": {
            "splits": result["splits"],
            "protocol": result["protocol"],
            "setting": run.setting,
        },
        "scores": cell | {"per_class": {c: _brief(x) for c, x in cell["per_class"].items()}},
        "notes": result["notes"],
        "chosen_by": CHOSEN_BY,
        "package": f"lvcg-jax {__version__}",
    }
    if kept.attention is not None:
        facts |= {"kind": ATTENTION, "attention": kept.attention.facts()}
    return Head(
        layer,
        platt,
        apply_platt(platt, run.thresholds[run.learnt]),
        fit_spread(table.embedding[found.rows[train]], layer.shift, layer.scale, numbers),
        facts,
        kept.attention,
    )


def _brief(scores: dict) -> dict:
    """Scores of a class without those that a head's card does not show."""
    return {name: x for name, x in scores.items() if name not in NOT_KEPT}


def usual_leads(table: Table, rows: np.ndarray) -> list[str]:
    """Leads that nearly all of these rows have; none where the table does not say."""
    if "leads" not in table.extra:
        return []
    cells = [cell.split(";") for cell in table.extra["leads"][rows].tolist()]
    return [lead for lead in LEADS if np.mean([lead in cell for cell in cells]) >= MOST]


def answer_test_records(head: Head, table: Table, found: Task) -> Tested:
    """The head's answers for the test records of the task."""
    test = found.splits == "test"
    records, first, numbers = np.unique(found.records[test], return_index=True, return_inverse=True)
    rows = found.rows[test]
    beats = None if table.beats is None else table.beats.take(rows)
    answers = head.answer(table.embedding[rows], numbers, beats)
    columns = [found.classes.index(name) for name in head.classes]
    return Tested(
        records,
        found.patients[test][first],
        found.labels[test][first][:, columns],
        answers.values,
        answers.unlike,
        head.classes,
    )


def head_of_few(whole: Head, table: Table, path: str | Path, task: str, resamples: int) -> Head:
    """A linear head for the leads that the embeddings in a file show, learnt from them as the head
    of all leads was from a table. They must be of the same records, by the same weights."""
    few = load_table(path)
    whole.require(*(few.metadata.get(key, "") for key in ("checkpoint", "preprocess_hash")))
    x = align_features(table, few, str(path))
    if "leads" not in few.extra:
        raise InputError(f"--few_leads={path}: it does not say which leads it shows")
    row_of = {key: i for i, key in enumerate(few.keys)}
    shown = few.extra["leads"][[row_of[key] for key in table.keys]]
    same = replace(table, embedding=x, extra=table.extra | {"leads": shown}, beats=None)
    found = task_of(same, task)
    fits = linear_fits({"": x[found.rows]}, len(found.rows), "ridge", parts={"": few.part_sizes})
    kept = Kept("", fits[""][0])
    columns = (found.labels, found.patients, found.splits, (1.0,), 1, "ridge")
    names = {"class_names": found.classes, "records": found.records, "resamples": resamples}
    result = evaluate(fits, *columns, on_run=kept, **names)
    head = make_head(same, found, kept, result)
    if not head.facts["leads"]:
        raise InputError(f"--few_leads={path}: its records do not show the same leads")
    return head


def view_scores(head: Head, tested: Tested, path: str | Path) -> dict:
    """How the head fares with embeddings of the test records that show fewer leads."""
    table = load_table(path)
    head.require(*(table.metadata.get(key, "") for key in ("checkpoint", "preprocess_hash")))
    place = {record: i for i, record in enumerate(tested.records.tolist())}
    rows = np.array([i for i, record in enumerate(table.record_id.tolist()) if record in place])
    if len({table.record_id[i] for i in rows}) < len(place) or "leads" not in table.extra:
        raise InputError(
            f"--view={path}: it must hold every test record, with its leads: write it with"
            " lvcg embed --leads=... from the same data set"
        )
    numbers = np.array([place[record] for record in table.record_id[rows].tolist()])
    answers = head.answer(table.embedding[rows], numbers)
    sets, counts = np.unique(table.extra["leads"][rows], return_counts=True)
    classes = list(head.facts["scores"]["per_class"])
    columns = [head.classes.index(name) for name in classes]

    def score(probabilities):
        return macro_auroc(tested.labels[:, columns], probabilities[:, columns])[0]

    return {
        "leads": str(sets[counts.argmax()]).split(";"),
        "macro_auroc": score(answers.values),
        "all_leads": score(tested.probabilities),
        "ece": calibration.error_of(calibration.reliability(tested.labels, answers.values)),
        "unlike": float(answers.unlike.mean()),
    }


def read_groups(path: str | Path, tested: Tested) -> dict[str, np.ndarray]:
    """Columns of a user's CSV (record_id or patient_id, then sex, age or any other), as the group
    of each test record; '' where it says nothing. Ages in years become ranges."""
    key, lines = read_keyed(Path(path))
    by_id = {line[key]: line for line in lines}
    ids = tested.records if key == "record_id" else tested.patients
    names = [name for name in lines[0] if name not in ("record_id", "patient_id", "split")]
    found = {
        name: np.array([_group(name, by_id.get(i, {}).get(name, ""), path) for i in ids.tolist()])
        for name in names
    }
    if not any((values != "").any() for values in found.values()):
        raise InputError(f"--groups={path}: it says nothing of any test record")
    return found


def _group(name: str, cell: str, path: str | Path) -> str:
    if name != "age" or not cell:
        return cell
    try:
        age = float(cell)
    except ValueError:
        raise InputError(f"--groups={path}: age {cell[:20]!r} is no number of years") from None
    edges = [0, *AGES]
    first = max(edge for edge in edges if edge <= max(age, 0))
    after = next((edge for edge in edges if edge > first), None)
    return f"{first} and over" if after is None else f"{first} to {after - 1}"


def group_scores(tested: Tested, groups: dict[str, np.ndarray], resamples: int) -> list[dict]:
    """AUROC, Brier score and calibration error in each group of the test records; the AUROC is a
    mean over classes that enough patients of the group have."""
    rows = [_scores(tested, np.ones(len(tested.records), bool), "all", "", resamples)]
    for name, values in groups.items():
        for value in sorted(set(values.tolist()) - {""}):
            rows.append(_scores(tested, values == value, name, value, resamples))
    return rows


def _scores(tested: Tested, here: np.ndarray, name: str, value: str, resamples: int) -> dict:
    y, p, patients = tested.labels[here], tested.probabilities[here], tested.patients[here]
    bootstrap = PatientBootstrap(patients, resamples)
    chosen = bootstrap.carriers(y) >= FEWEST
    entry = {
        "column": name,
        "group": value,
        "records": int(here.sum()),
        "patients": bootstrap.count,
        "classes": int(chosen.sum()),
        "brier": float(calibration.brier(y, p).mean()),
        "ece": calibration.error_of(calibration.reliability(y, p)),
        "unlike": float(tested.unlike[here].mean()),
    }
    if not chosen.any():
        return entry | {"macro_auroc": None, "low": None, "high": None}
    values = np.array([auroc(y[:, c], p[:, c]) for c in np.flatnonzero(chosen)])
    resampled, _ = bootstrap_ranks(y[:, chosen], p[:, chosen], bootstrap)
    _, (low, high) = class_intervals(values, resampled, bootstrap.carriers(y)[chosen])
    return entry | {"macro_auroc": float(values.mean()), "low": float(low), "high": float(high)}


def complete(
    head: Head,
    table: Table,
    found: Task,
    about: str,
    views: Sequence[str],
    groups: str | None,
    resamples: int,
    few_leads: Sequence[str] = (),
) -> Head:
    """The head with all that was measured of it on the test split, words on its data, and heads for
    few leads."""
    tested = answer_test_records(head, table, found)
    by_group = group_scores(tested, read_groups(groups, tested) if groups else {}, resamples)
    more = {
        "about": about,
        "groups": by_group,
        "views": [view_scores(head, tested, path) for path in views],
    }
    few = tuple(head_of_few(head, table, path, found.name, resamples) for path in few_leads)
    return replace(head, facts=head.facts | more, few=few)
