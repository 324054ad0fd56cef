"""Linear probe of frozen features: how much of a label can one linear layer read out of an embedding?

Every model is probed on the same rows with the same label subsets, and reported as test macro AUROC (mean over seeds)
with a 95% bootstrap interval over patients. Protocols:

`ridge`  features standardised on the training subset, L2-regularised logistic regression for all classes at once,
         strength chosen by validation macro AUROC. Deterministic: a seed only redraws the label subset.
`paper`  one linear layer on the raw features, Adam 1e-3, batches of 256, at most 50 epochs, stopping after 5 epochs
         without a better validation macro AUROC. The layer starts at zero, the seed also shuffles the batches.

    python -m lvcg_jax.probe --embeddings=emb.npz --control=random=random.npz --control=median_beat=beat.npz

Axis letters: m row, d feature, c class, r resample.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.errors import InputError, run_command
from data_prep.progress import progress_bar
from lvcg_jax import metrics
from lvcg_jax.logistic import EPOCHS, STRENGTHS, fit_paper, fit_ridge
from lvcg_jax.table import Table, align_features, list_some, load_table

SPLITS = ("train", "validation", "test")


def label_subsets(
    groups: np.ndarray, labels: np.ndarray, fractions: Sequence[float], seed: int
) -> dict[float, np.ndarray]:
    """Nested subsets of training rows, {fraction: bool [m]}: each one lies within the next larger.

    Whole patients are drawn, each class in about its share and with one positive at least (so a tiny subset may exceed
    its fraction). Depends on patient ids, labels and seed only: the same for every model, row and column order.
    """
    patients, index = np.unique(np.asarray(groups).astype(str), return_inverse=True)
    columns = np.concatenate([labels, ~labels.any(1, keepdims=True)], 1).astype(np.int64)  # last: rows without a class
    counts = np.zeros((len(patients), columns.shape[1]), np.int64)
    np.add.at(counts, index, columns)
    rows = np.bincount(index)
    digests = [hashlib.sha256(f"{seed}/{patient}".encode()).digest() for patient in patients]
    lottery = np.array(sorted(range(len(patients)), key=digests.__getitem__))  # patients in drawn order
    members = [lottery[counts[lottery, c] > 0] for c in range(counts.shape[1])]
    by_rarity = sorted(
        (c for c in range(counts.shape[1]) if len(members[c])), key=lambda c: (len(members[c]), *members[c])
    )
    pool, subsets = np.ones(len(patients), bool), {}
    for fraction in sorted(set(fractions), reverse=True):
        if fraction < 1:
            goal, chosen, have, size = (
                fraction * len(index),
                np.zeros(len(patients), bool),
                np.zeros(counts.shape[1]),
                0,
            )
            for c in [*by_rarity, None]:  # rarest class first; None fills up with whoever is next
                for p in lottery if c is None else members[c]:
                    enough = size + rows[p] > goal + 0.5 if c is None else have[c] > fraction * counts[:, c].sum() - 0.5
                    first = c is not None and c < labels.shape[1] and not have[c]
                    if enough and not first and c is not None:
                        break
                    if pool[p] and not chosen[p] and (first or (not enough and size + rows[p] <= goal + 0.5)):
                        chosen[p] = True
                        have += counts[p]
                        size += rows[p]
            pool = chosen
        subsets[fraction] = pool[index]
    return subsets


PROTOCOLS = {"ridge": fit_ridge, "paper": fit_paper}


def probe(
    features_by_model: dict[str, np.ndarray],
    labels: np.ndarray,
    groups: np.ndarray,
    splits: np.ndarray,
    fractions: Sequence[float] = (0.01, 0.1, 1.0),
    seeds: int = 3,
    protocol: str = "ridge",
    *,
    class_names: Sequence[str] | None = None,
    strengths: Sequence[float] = STRENGTHS,
    resamples: int = 1000,
    progress: bool = False,
) -> dict:
    """Probes models on the same rows; the first model is the one in question, the others are its controls.

    features {name: [m,d]}, labels bool [m,c], groups [m] patient ids, splits [m] of train / validation / test.
    Returns plain JSON data: `cells` (one per model and fraction: `macro_auroc`, `low`, `high`, `per_class`, ...),
    `differences` of the first model from each control (paired bootstrap) and `notes` on everything left out.
    """
    labels, groups, splits = np.asarray(labels), np.asarray(groups).astype(str), np.asarray(splits).astype(str)
    names = [f"class_{c}" for c in range(labels.shape[1])] if class_names is None else list(class_names)
    part = _check_input(features_by_model, labels, groups, splits, names, fractions, seeds, protocol)
    train, val, test = (np.flatnonzero(part[split]) for split in SPLITS)
    labels, notes, cells, differences = labels.astype(bool), [], [], []
    both = {s: labels[part[s]].any(0) & ~labels[part[s]].all(0) for s in SPLITS}
    for split in SPLITS:
        one_sided = [name for name, ok in zip(names, both[split], strict=True) if not ok]
        effect = "not used to choose" if split == "validation" else "left out of the macro AUROC"
        if one_sided:
            notes.append(f"{list_some(one_sided)}: no positive or no negative row in the {split} split, {effect}")
    if not (both["train"] & both["test"]).any() or not (both["train"] & both["validation"]).any():
        raise InputError("no class has positive and negative rows in the train, validation and test splits")
    subsets = [label_subsets(groups[train], labels[train], fractions, seed) for seed in range(seeds)]
    fits = len(features_by_model) * len(fractions) * seeds
    bar = progress_bar(total=fits, disable=not progress, unit="fit", leave=False)
    for fraction in sorted(set(fractions)):
        rows = [train[subset[fraction]] for subset in subsets]
        learnt = np.all([labels[r].any(0) & ~labels[r].all(0) for r in rows], axis=0)
        used, chooses = both["test"] & learnt, both["validation"] & learnt
        lost = [name for name, a, b in zip(names, both["train"] & both["test"], used, strict=True) if a and not b]
        if lost:
            notes.append(f"{fraction:.4g} of the labels: {list_some(lost)} has one outcome only in a subset, left out")
        if not used.any() or not chooses.any():
            notes.append(f"{fraction:.4g} of the labels: no class can be learnt and scored, no result")
            continue
        sizes = [len(r) for r in rows]
        if min(sizes) < labels.shape[1]:
            notes.append(f"{fraction:.4g} of the labels: {min(sizes)} training rows for {labels.shape[1]} classes")
        if max(sizes) > 1.2 * fraction * len(train) + 1:
            notes.append(f"{fraction:.4g} of the labels: {max(sizes)} rows drawn so that each class has a positive")
        resampled, used_names = {}, [name for name, ok in zip(names, used, strict=True) if ok]
        for model, features in features_by_model.items():
            fits, draws = [], []  # per seed: (macro, per class, setting), resampled AUROC [r,c]
            for seed, r in enumerate(rows):
                if seed and protocol == "ridge" and np.array_equal(r, rows[seed - 1]):
                    fits.append(fits[-1])
                    draws.append(draws[-1])
                else:
                    fit = PROTOCOLS[protocol]
                    y, y_val = labels[r][:, learnt], labels[val][:, learnt]
                    score, setting = fit(features[r], y, features[val], y_val, seed, strengths)
                    scores = score(features[test])[:, used[learnt]]
                    y_test = labels[test][:, used]
                    fits.append((*metrics.macro_auroc(y_test, scores, used_names)[:2], setting))
                    draws.append(metrics.bootstrap_auroc(y_test, scores, groups[test], resamples))
                bar.update()
            by_class = np.mean(draws, axis=0)  # [r,c]
            resampled[model] = metrics.macro_of_resamples(by_class)
            low, high = metrics.interval(resampled[model])
            per_class = {}
            for c, name in enumerate(used_names):
                class_low, class_high = metrics.interval(by_class[:, c])
                column = labels[:, names.index(name)]
                per_class[name] = {
                    "auroc": float(np.mean([f[1][name] for f in fits])),
                    "low": class_low,
                    "high": class_high,
                    "train_positives": [int(column[r].sum()) for r in rows],
                    "test_positives": int(column[test].sum()),
                }
            per_seed = [f[0] for f in fits]
            cell = {"model": model, "fraction": float(fraction), "macro_auroc": float(np.mean(per_seed))}
            cell |= {"low": low, "high": high, "per_seed": per_seed, "setting": [f[2] for f in fits]}
            cells.append(cell | {"train_rows": sizes, "per_class": per_class})
            if protocol == "paper" and EPOCHS in cell["setting"]:
                notes.append(f"{fraction:.4g} of the labels: {model} was still improving after {EPOCHS} epochs")
        first, *controls = [cell for cell in cells if cell["fraction"] == fraction]
        for other in controls:
            low, high = metrics.interval(resampled[first["model"]] - resampled[other["model"]])
            gap = {"model": first["model"], "control": other["model"], "fraction": float(fraction)}
            gap |= {"difference": first["macro_auroc"] - other["macro_auroc"], "low": low, "high": high}
            differences.append(gap)
    bar.close()
    size = {s: {"rows": int(part[s].sum()), "patients": len(np.unique(groups[part[s]]))} for s in SPLITS}
    result = {"protocol": protocol, "seeds": seeds, "models": list(features_by_model), "classes": names, "splits": size}
    return result | {"cells": cells, "differences": differences, "notes": notes}


def _check_input(features_by_model, labels, groups, splits, names, fractions, seeds, protocol) -> dict[str, np.ndarray]:
    """Rows of each split, or an InputError for what cannot be probed."""
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol '{protocol}'; choose one of {', '.join(PROTOCOLS)}")
    if not features_by_model or not fractions or seeds < 1 or not all(0 < f <= 1 for f in fractions):
        raise InputError("a probe needs a model, at least one seed and fractions above 0 up to 1 (1 = all labels)")
    if labels.ndim != 2 or not labels.shape[1] or not np.isin(labels, (0, 1)).all():
        raise InputError("labels must be 0 or 1 with a column for each class; leave out rows that are not labelled")
    if len(names) != labels.shape[1] or len(set(names)) != len(names):
        raise InputError(f"{labels.shape[1]} label columns need as many different class names, got {len(set(names))}")
    for name, features in features_by_model.items():
        if features.ndim != 2 or len({len(features), len(labels), len(groups), len(splits)}) > 1:
            raise InputError(f"'{name}': features {features.shape} do not match {len(labels)} rows of labels")
        if not np.isfinite(features).all():
            raise InputError(f"'{name}': {int((~np.isfinite(features)).any(1).sum())} rows are not finite")
    part = {split: splits == split for split in SPLITS}
    for split in SPLITS:
        if not part[split].any():
            found = ", ".join(np.unique(splits).tolist())
            raise InputError(
                f"no labelled row in the {split} split (found: {found}); probing needs {', '.join(SPLITS)}"
            )
        shared = np.intersect1d(groups[part[split]], groups[~part[split] & np.isin(splits, SPLITS)])
        if len(shared):
            raise InputError(f"patient {list_some(shared)} is in the {split} split and in another; split by patient")
    if part["train"].sum() < 2 * len(names):
        rows = int(part["train"].sum())
        raise InputError(f"{rows} training rows are too few for {len(names)} classes; embed more records")
    return part


def probe_task(tables: dict[str, np.ndarray], table: Table, task: str, **options) -> dict:
    """Probes one task of a table on the rows labelled for it; `tables` holds each model's features in its row order."""
    classes = table.tasks.get(task)
    if classes is None:
        raise InputError(f"no record is labelled for task '{task}'; the file has {', '.join(table.tasks) or 'no task'}")
    if not classes:
        raise InputError(f"task '{task}' has no class: every labelled record has an empty list")
    order = sorted(range(len(table.labels)), key=table.keys.__getitem__)  # file order must not matter
    rows = np.array([i for i in order if task in table.labels[i]])
    labels = np.array([[name in table.labels[i][task] for name in classes] for i in rows])
    features = {name: values[rows] for name, values in tables.items()}
    result = probe(features, labels, table.patient_id[rows], table.split[rows], class_names=classes, **options)
    return {"task": task} | result


def format_results(results: Sequence[dict], per_class: bool = False) -> str:
    """Markdown: test macro AUROC x 100 [95% interval] by task, model and fraction; gains over controls; notes."""
    fractions = sorted({cell["fraction"] for result in results for cell in result["cells"]})
    head = [f"{100 * f:g}%" for f in fractions]

    def table(title, columns, rows):
        lines = [title, "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]

    def entries(found, key, sign=""):
        by = {
            c["fraction"]: f"{100 * c[key]:{sign}.1f} [{100 * c['low']:{sign}.1f}, {100 * c['high']:{sign}.1f}]"
            for c in found
        }
        return [by.get(f, "-") for f in fractions]

    scores, gains, classes, notes = [], [], [], []
    for result in results:
        task = result.get("task", "")
        for model in result["models"]:
            mine = [cell for cell in result["cells"] if cell["model"] == model]
            scores.append([task, model, *entries(mine, "macro_auroc")])
            for name in result["classes"]:
                found = [c["per_class"][name] | {"fraction": c["fraction"]} for c in mine if name in c["per_class"]]
                classes.append([task, name, model, *entries(found, "auroc")])
            gap = [d for d in result["differences"] if d["control"] == model]
            if gap:
                gains.append([task, f"{gap[0]['model']} - {model}", *entries(gap, "difference", "+")])
        notes += [f"- {task}: {note}" for note in result["notes"]]
    protocol, seeds = (results[0]["protocol"], results[0]["seeds"]) if results else ("", 0)
    title = f"Test macro AUROC x 100, mean of {seeds} label subsets [95% bootstrap over patients], protocol {protocol}"
    lines = table(title, ["task", "features", *head], scores)
    if gains:
        lines += table("Gain over each control (paired bootstrap)", ["task", "difference", *head], gains)
    if per_class:
        lines += table(
            "AUROC x 100 by class", ["task", "class", "features", *head], sorted(classes, key=lambda r: r[:2])
        )
    return "\n".join([*lines, *(["Notes", "", *notes] if notes else [])])


def _named(text: str, default: str | None = None) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return name, path
    if default is None:
        raise InputError(f"--control={text}: write --control=NAME=FILE.npz")
    return default, text


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lvcg_jax.probe", description="Linear probe of frozen features.")
    add = parser.add_argument
    add("--embeddings", required=True, metavar="[NAME=]FILE", help="embeddings file (.npz) to be judged")
    add("--control", action="append", default=[], metavar="NAME=FILE", help="features to compare with; may be repeated")
    add("--task", default="all", help="label tasks, comma-separated, or all (default)")
    add("--fractions", default="0.01,0.1,1", help="fractions of the training labels (default 0.01,0.1,1)")
    add("--seeds", type=int, default=3, help="label subsets drawn for each fraction (default 3)")
    add("--protocol", default="ridge", choices=PROTOCOLS, help="ridge (default) or paper")
    add("--parts", action="store_true", help="also probe each part of the embedding alone")
    add("--per_class", action="store_true", help="print the AUROC of every class too")
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    add("--out", metavar="FILE", help="write everything, classes included, as JSON")
    args = parser.parse_args(argv)
    try:
        fractions = [float(f) for f in args.fractions.split(",")]
    except ValueError:
        raise InputError(f"--fractions={args.fractions}: give numbers such as 0.01,0.1,1") from None
    name, path = _named(args.embeddings, "embedding")
    table = load_table(path)
    features, first = {name: table.embedding}, 0
    for part, size in table.parts.items() if args.parts else ():
        features[f"{name}: {part} only"] = table.embedding[:, first : first + size]
        first += size
    for control in args.control:
        control_name, control_path = _named(control)
        if control_name in features:
            raise InputError(f"--control={control}: the name '{control_name}' is taken; give another")
        features[control_name] = align_features(table, load_table(control_path), control_name)
    options = {"fractions": fractions, "seeds": args.seeds, "protocol": args.protocol, "resamples": args.resamples}
    results = []
    tasks = list(table.tasks) if args.task == "all" else args.task.split(",")
    for task in progress_bar(tasks, unit="task", leave=False):
        results.append(probe_task(features, table, task, progress=True, **options))
    if not results:
        raise InputError(f"{path}: no record carries labels, so there is nothing to probe")
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        document = {"format": "lvcg-probe-1", "metadata": table.metadata, "results": results}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n")
    print(format_results(results, args.per_class))


if __name__ == "__main__":
    run_command(main)
