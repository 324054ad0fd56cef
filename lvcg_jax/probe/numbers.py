"""Probe of a number: how well can one linear layer read an age, an interval or a laboratory value
out of an embedding?

The numbers come from a column of a user's CSV. Ridge regression on standardised features; the
strength, and weights of the parts of an embedding, are those of the least squared error on the
validation split, which also corrects slope and offset and gives the width of an interval. Judged on
the test split by mean absolute error, R2 and correlation, beside the median of the training rows as
an answer for everybody.

Axis letters: m row, d feature, r resample.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import SPLITS, list_some
from data_prep.formats.tables import read_keyed
from lvcg_jax import __version__
from lvcg_jax.embed.table import Table
from lvcg_jax.probe.heads import UNLIKE_WORDS, usual_leads
from lvcg_jax.probe.labels import label_subsets
from lvcg_jax.probe.linear import STRENGTHS, part_weights
from lvcg_jax.runs.heads import NUMBER, Head
from lvcg_jax.stats.bootstrap import PatientBootstrap, interval
from lvcg_jax.stats.layer import Linear
from lvcg_jax.stats.scaling import mean_and_scale, mean_by
from lvcg_jax.stats.spread import fit_spread
from lvcg_jax.text.tables import markdown_table, percent

CONSTANT = "median of the training rows"
WITHIN = 0.9  # share of the validation records that an interval holds
FEWEST = 10  # records of a split
SCORES = ("mae", "r2", "r")
CHOSEN_BY = {
    "calibration": "slope and offset of least squares on the validation split",
    "interval": f"to either side the error that {100 * WITHIN:g}% of the validation records stay"
    " below",
    "unlike": UNLIKE_WORDS,
}


@dataclass(frozen=True)
class Numbers:
    """The rows of a table with a number, by split."""

    name: str
    rows: dict[str, np.ndarray]  # numbers of rows in the table
    values: dict[str, np.ndarray]  # of these rows
    records: dict[str, np.ndarray]  # [m] number of the record that a row is a window of
    patients: dict[str, np.ndarray]  # [m]
    notes: list[str]


def read_numbers(table: Table, path: str | Path, column: str) -> Numbers:
    """A column of a CSV (record_id or patient_id, and split if wanted) for the rows of a table;
    empty cells are left out."""
    key, lines = read_keyed(Path(path), (column,))
    by_id = {}
    for line in lines:
        try:
            if line[column]:
                by_id[line[key]] = float(line[column])
                if not math.isfinite(by_id[line[key]]):
                    raise ValueError
        except ValueError:
            raise InputError(
                f"{path} line {line.line}: {column} {line[column][:20]!r} is no number"
            ) from None
    ids = getattr(table, key).tolist()
    known, splits = np.array([name in by_id for name in ids]), table.split
    if "split" in lines[0]:
        named = {line[key]: line["split"] for line in lines}
        splits = np.array([named.get(name, "") for name in ids])
    found: dict[str, dict] = {name: {} for name in ("rows", "values", "records", "patients")}
    for split in SPLITS:
        rows = np.flatnonzero(known & (splits == split))
        if len(set(table.record_id[rows].tolist())) < FEWEST:
            raise InputError(
                f"{path}: {len(rows)} rows of the {split} split have a {column}: {FEWEST} records"
                " are needed"
            )
        found["rows"][split] = rows
        found["values"][split] = np.array([by_id[ids[i]] for i in rows])
        found["records"][split] = np.unique(table.record_id[rows], return_inverse=True)[1]
        found["patients"][split] = table.patient_id[rows]
    shared = [
        patient
        for a, b in itertools.combinations(SPLITS, 2)
        for patient in np.intersect1d(found["patients"][a], found["patients"][b])
    ]
    if shared:
        raise InputError(f"patient {list_some(shared)} is in two splits; split by patient")
    missing = sorted({name for name, yes in zip(ids, known, strict=True) if not yes})
    notes = (
        [f"{len(missing)} {key} without a value of {column}: {list_some(missing)}"]
        if missing
        else []
    )
    return Numbers(column, **found, notes=notes)


def fit_number(
    x: np.ndarray,
    y: np.ndarray,
    x_val: np.ndarray,
    y_val: np.ndarray,
    parts: Sequence[int] | None = None,
) -> tuple[Linear, float]:
    """(linear layer, chosen strength) of ridge regression; see above."""
    shift, scale = mean_and_scale(x)
    z, z_val = (((a - shift) / scale).astype(np.float32) for a in (x, x_val))
    middle, size = float(y.mean()), max(float(y.std()), 1e-12)
    best: tuple = (np.inf, None, None)
    for weight in part_weights(parts or [x.shape[1]]):
        a, a_val = z * weight, z_val * weight
        variance, axes = np.linalg.eigh((a.T @ a / len(a)).astype(np.float64))
        target = axes.T @ (a.T @ ((y - middle) / size) / len(a))
        for strength in STRENGTHS:
            w = size * (axes @ (target / (np.maximum(variance, 0) + strength)))
            error = float(((a_val @ w + middle - y_val) ** 2).mean())
            if error < best[0]:
                columns = (weight * w).astype(np.float32)[:, None]
                bias = np.array([middle], np.float32)
                best = (error, Linear(columns, bias, shift, scale), strength)
    return best[1], best[2]


def probe_number(
    features: Mapping[str, np.ndarray],
    parts: Mapping[str, Sequence[int]],
    found: Numbers,
    fractions: Sequence[float],
    seeds: int,
    resamples: int,
) -> tuple[dict, dict[str, tuple]]:
    """Plain JSON data: a cell for each model and fraction; and what each model learnt from all
    labels (layer, strength, what it says of the validation records)."""
    train, val = found.rows["train"], found.rows["validation"]
    y, y_val = found.values["train"], found.values["validation"]
    truth = {s: mean_by(found.records[s], found.values[s][:, None])[:, 0] for s in SPLITS[1:]}
    _, first = np.unique(found.records["test"], return_index=True)
    bootstrap = PatientBootstrap(found.patients["test"][first], resamples)
    everybody = np.ones((len(train), 1), bool)
    subsets = [
        label_subsets(found.patients["train"], everybody, fractions, s) for s in range(seeds)
    ]
    cells, learnt = [], {}
    for fraction in sorted(set(fractions)):
        for model, x in features.items():
            runs = []
            for seed in range(seeds if fraction < 1 else 1):
                rows = subsets[seed][fraction]
                known = (np.asarray(x[train[rows]]), y[rows], np.asarray(x[val]), y_val)
                layer, strength = fit_number(*known, parts.get(model))
                said = {
                    s: mean_by(found.records[s], layer(np.asarray(x[found.rows[s]])))[:, 0]
                    for s in SPLITS[1:]
                }
                slope, offset = correct(said["validation"], truth["validation"])
                runs.append(_judge(truth["test"], slope * said["test"] + offset, bootstrap))
                if fraction == 1:
                    learnt[model] = (layer, strength, said["validation"])
            cells.append({"model": model, "fraction": float(fraction)} | _mean(runs))
    constant = _judge(truth["test"], np.full(len(truth["test"]), np.median(y)), bootstrap)
    cells.append({"model": CONSTANT, "fraction": 1.0} | _mean([constant]))
    sizes = {
        s: {"rows": len(found.rows[s]), "patients": len(np.unique(found.patients[s]))}
        for s in SPLITS
    }
    result = {"task": found.name, "kind": NUMBER, "protocol": "ridge", "seeds": seeds}
    result |= {"models": [*features, CONSTANT], "splits": sizes, "cells": cells}
    return result | {"notes": found.notes}, learnt


def correct(said: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Slope and offset of least squares: ridge regression shrinks what it says to the mean."""
    return tuple(np.polyfit(said, truth, 1)) if np.ptp(said) > 0 else (1.0, 0.0)


def _judge(y: np.ndarray, said: np.ndarray, bootstrap: PatientBootstrap) -> np.ndarray:
    """Mean absolute error, R2 and correlation: of all patients first, then resampled, [1+r,3]."""
    found = [_scores(y, said, np.ones((len(y), 1)))]
    found += [_scores(y, said, weights) for _, weights in bootstrap.weights()]
    return np.concatenate(found)


def _scores(y: np.ndarray, said: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The three scores under row weights [m,r], [r,3]; a constant answer has no correlation."""
    w = weights / weights.sum(0)
    errors, y, said = y - said, y - y.mean(), said - said.mean()

    def spread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return w.T @ (a * b) - (w.T @ a) * (w.T @ b)

    variance = np.maximum(spread(y, y), 1e-300)
    product = np.sqrt(variance * np.maximum(spread(said, said), 0))
    r = np.divide(spread(y, said), product, out=np.full_like(product, np.nan), where=product > 1e-9)
    return np.stack([w.T @ np.abs(errors), 1 - w.T @ errors**2 / variance, r], axis=1)


def _mean(runs: list[np.ndarray]) -> dict:
    """The mean over runs [1+r,3], with intervals."""
    values = np.mean(runs, axis=0)
    cell = {}
    for column, name in enumerate(SCORES):
        found = (values[0, column], *interval(values[1:, column]))
        keys = (name, f"{name}_low", f"{name}_high")
        plain = [float(x) if math.isfinite(x) else None for x in found]
        cell |= dict(zip(keys, plain, strict=True))
    return cell


def number_head(table: Table, found: Numbers, learnt: tuple, result: dict, about: str) -> Head:
    """The head of a model that has learnt from all labels; the table has its embeddings."""
    layer, strength, said = learnt
    truth = mean_by(found.records["validation"], found.values["validation"][:, None])[:, 0]
    slope, offset = correct(said, truth)
    # the quantile of a sample that one more record stays below with this probability
    level = min(np.ceil((len(truth) + 1) * WITHIN) / len(truth), 1.0)
    half = np.quantile(np.abs(slope * said + offset - truth), level, method="higher")
    train = found.rows["train"]
    facts = {
        "kind": NUMBER,
        "task": found.name,
        "classes": [found.name],
        "checkpoint": table.metadata.get("checkpoint", ""),
        "preprocess_hash": table.metadata.get("preprocess_hash", ""),
        "parts": table.parts,
        "leads": usual_leads(table, train),
        "training": {"splits": result["splits"], "protocol": "ridge", "setting": strength},
        "scores": next(
            c for c in result["cells"] if (c["model"], c["fraction"]) == (result["models"][0], 1.0)
        ),
        "constant": result["cells"][-1],
        "notes": result["notes"],
        "chosen_by": CHOSEN_BY,
        "about": about,
        "package": f"lvcg-jax {__version__}",
    }
    spread = fit_spread(table.embedding[train], layer.shift, layer.scale, found.records["train"])
    return Head(layer, np.array([[slope], [offset]]), np.array([half]), spread, facts)


def format_number(result: dict) -> str:
    """The scores as a table."""
    rows = [
        [cell["model"], percent(cell["fraction"]), *(_with_interval(cell, name) for name in SCORES)]
        for cell in result["cells"]
    ]
    columns = ["features", "labels", "mean absolute error", "R2", "correlation"]
    lines = [
        f"{result['task']} on the test split, mean of {result['seeds']} label subsets under 100%"
        " [95% bootstrap over patients]",
        "",
        *markdown_table(columns, rows),
        *(f"- {note}" for note in result["notes"]),
    ]
    return "\n".join(lines)


def _with_interval(cell: dict, name: str) -> str:
    value, low, high = (cell[key] for key in (name, f"{name}_low", f"{name}_high"))
    return "-" if value is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def predictions_csv(table: Table, found: Numbers, head: Head) -> str:
    """record_id, number and prediction of the test records, as CSV."""
    records = np.unique(table.record_id[found.rows["test"]])
    truth = mean_by(found.records["test"], found.values["test"][:, None])[:, 0]
    said = head.answer(table.embedding[found.rows["test"]], found.records["test"]).values[:, 0]
    rows = zip(records, truth, said, strict=True)
    lines = [f"record_id,{found.name},{found.name}:predicted"]
    return "\n".join([*lines, *(f"{r},{a:.9g},{b:.9g}" for r, a, b in rows)]) + "\n"
