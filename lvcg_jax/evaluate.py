"""Fits classifiers to label subsets and judges them on the test split, the same way for every model and protocol.

A fit is a callable fit(rows, y, val, y_val, test, seed) that returns the scores of the validation rows [m,c] and of the
test rows [m,c], and the setting that validation chose. `fit.seeded` says whether the seed changes a fit to the same
rows; `fit.limit` is the number of epochs after which it stops at the latest, or None.

Axis letters: m row or record, c class, r resample, k fit of a model, s seed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.errors import InputError
from data_prep.progress import progress_bar
from data_prep.readers import SPLITS
from lvcg_jax import metrics
from lvcg_jax.label_subsets import label_subsets
from lvcg_jax.table import list_some


@dataclass(frozen=True)
class Subset:
    """The training rows of one fraction of the labels, and the classes that can be learnt from them and scored."""

    fraction: float
    rows: list[np.ndarray]  # of each seed
    learnt: np.ndarray  # bool [classes]: both outcomes in the rows of every seed
    used: np.ndarray  # bool [classes]: and in the test split
    names: list[str]  # of the classes used


@dataclass(frozen=True)
class Run:
    """One fit, judged: its test scores by record [m,c], values by class [c] and by resample [r,c]; NaN: undefined."""

    setting: float | int
    scores: np.ndarray
    auroc: np.ndarray
    auroc_resampled: np.ndarray
    f1: np.ndarray
    f1_resampled: np.ndarray


class Study:
    """Labels, patients and splits of one task; rows of one record are scored together, by the mean of their scores."""

    def __init__(self, labels, groups, splits, records, names, fractions, seeds, resamples):
        _check(labels, groups, splits, names, fractions, seeds)
        self.labels, self.names, self.resamples, self.notes = labels.astype(bool), names, resamples, []
        self.rows = {split: np.flatnonzero(splits == split) for split in SPLITS}
        self._both = {split: _both_outcomes(self.labels[rows]) for split, rows in self.rows.items()}
        both = self._both
        if not (both["train"] & both["test"]).any() or not (both["train"] & both["validation"]).any():
            where = "positive and negative rows in the train, validation and test splits"
            raise InputError(f"no class has {where} ({list_some(names)}); choose another task or split")
        for split in SPLITS:
            effect = "not used to choose" if split == "validation" else "left out of the macro AUROC"
            if not both[split].all():
                one_sided = list_some(_select(names, ~both[split]))
                self.notes.append(f"{one_sided}: no positive or no negative row in the {split} split, {effect}")
        blind = _select(names, both["test"] & ~self.labels[self.rows["validation"]].any(0))
        if blind:
            self.notes.append(f"{list_some(blind)}: no positive validation row to choose a threshold by, no F1")
        self._record_number, self.record_labels = {}, {}
        for split in SPLITS[1:]:
            rows = self.rows[split]
            self.records, first, self._record_number[split] = np.unique(
                records[rows], return_index=True, return_inverse=True
            )
            self.record_labels[split], self.patients = self.labels[rows][first], groups[rows][first]
        train = self.rows["train"]
        self._subsets = [label_subsets(groups[train], self.labels[train], fractions, seed) for seed in range(seeds)]

    def subset(self, fraction: float) -> Subset | None:
        """The rows of a fraction, with a note on everything special; None if nothing can be learnt and scored."""
        train, share = self.rows["train"], f"{fraction:.4g} of the labels"
        rows = [train[subset[fraction]] for subset in self._subsets]
        learnt = np.all([_both_outcomes(self.labels[r]) for r in rows], axis=0)
        used = self._both["test"] & learnt
        lost = _select(self.names, self._both["train"] & self._both["test"] & ~used)
        if lost:
            self.notes.append(f"{share}: {list_some(lost)} has one outcome only in a subset, left out")
        if not used.any() or not (self._both["validation"] & learnt).any():
            self.notes.append(f"{share}: no class can be learnt and scored, no result")
            return None
        sizes = [len(r) for r in rows]
        if min(sizes) < len(self.names):
            self.notes.append(f"{share}: {min(sizes)} training rows for {len(self.names)} classes")
        if max(sizes) > 1.2 * fraction * len(train) + 1:
            self.notes.append(f"{share}: {max(sizes)} rows drawn so that each class has a positive")
        return Subset(float(fraction), rows, learnt, used, _select(self.names, used))

    def runs(self, fit: Callable, subset: Subset) -> Iterator[Run]:
        """One run for each seed; a fit that cannot differ from the seed before is not repeated."""
        val, test, run = self.rows["validation"], self.rows["test"], None
        for seed, rows in enumerate(subset.rows):
            if run is None or fit.seeded or not np.array_equal(rows, subset.rows[seed - 1]):
                y, y_val = self.labels[rows][:, subset.learnt], self.labels[val][:, subset.learnt]
                val_scores, test_scores, setting = fit(rows, y, val, y_val, test, seed)
                run = self._judge(val_scores, test_scores, setting, subset)
            yield run

    def _judge(self, val_scores, test_scores, setting, subset: Subset) -> Run:
        """AUROC of the test records, and F1 at the thresholds that are best for the validation records."""
        columns = subset.used[subset.learnt]
        val_scores = _mean_by(self._record_number["validation"], val_scores[:, columns])
        scores = _mean_by(self._record_number["test"], test_scores[:, columns])
        y_val, y = (self.record_labels[split][:, subset.used] for split in SPLITS[1:])
        classes = range(len(subset.names))
        thresholds = np.array([metrics.best_f1_threshold(y_val[:, c], val_scores[:, c])[0] for c in classes])
        yes, known = scores >= thresholds, ~np.isnan(thresholds)
        return Run(
            setting,
            scores,
            np.array([metrics.auroc(y[:, c], scores[:, c]) for c in classes]),
            metrics.bootstrap_auroc(y, scores, self.patients, self.resamples),
            np.where(known, [metrics.f1_score(y[:, c], yes[:, c]) for c in classes], np.nan),
            np.where(known, metrics.bootstrap_f1(y, yes, self.patients, self.resamples), np.nan),
        )


def evaluate(
    fits: Mapping[str, Sequence[Callable]],
    labels: np.ndarray,
    groups: np.ndarray,
    splits: np.ndarray,
    fractions: Sequence[float],
    seeds: int,
    protocol: str,
    *,
    class_names: Sequence[str],
    records: np.ndarray | None = None,
    resamples: int = 1000,
    progress: bool = False,
    on_scores: Callable | None = None,
) -> dict:
    """Fits and judges models on the same rows; the first model is the one in question, the others are its controls.

    fits {name: [fit, ...]}: several fits under one name (say, three random initialisations) are averaged. labels bool
    [m,c]; groups [m] patient ids; splits [m]; records [m], if rows are windows.
    on_scores(model, fraction, seed, record ids, class names, scores [m,c]) hears the test scores of every fit.
    Returns plain JSON data: `cells` (one for each model and fraction: `macro_auroc`, `low`, `high`, `per_class`, ...),
    `differences` of the first model from each control (paired bootstrap) and `notes` on everything left out.
    """
    names, fractions = list(class_names), sorted(set(fractions))
    records = np.arange(len(labels)) if records is None else records
    study = Study(labels, groups, splits, records, names, fractions, seeds, resamples)
    work = sum(map(len, fits.values())) * len(fractions) * seeds
    bar = progress_bar(total=work, disable=not progress, unit="fit", leave=False)
    cells, differences = [], []
    for subset in filter(None, map(study.subset, fractions)):
        resampled = {}
        for model, several in fits.items():
            runs: list[list[Run]] = [[] for _ in several]  # [k][s]
            for k, fit in enumerate(several):
                for seed, run in enumerate(study.runs(fit, subset)):
                    runs[k].append(run)
                    if on_scores:
                        on_scores(model, subset.fraction, seed, study.records, subset.names, run.scores)
                    bar.update()
                if fit.limit and fit.limit in [run.setting for run in runs[k]]:
                    reason = f"{model} was still improving after {fit.limit} epochs"
                    study.notes.append(f"{subset.fraction:.4g} of the labels: {reason}")
            cell, resampled[model] = _summarise(runs, study, subset)
            cells.append({"model": model, "fraction": subset.fraction} | cell)
        first, *controls = cells[-len(fits) :]
        for other in controls:
            low, high = metrics.interval(resampled[first["model"]] - resampled[other["model"]])
            gap = {"model": first["model"], "control": other["model"], "fraction": subset.fraction}
            gap |= {"difference": first["macro_auroc"] - other["macro_auroc"], "low": low, "high": high}
            differences.append(gap)
    bar.close()
    size = {s: {"rows": len(r), "patients": len(np.unique(groups[r]))} for s, r in study.rows.items()}
    result = {"protocol": protocol, "seeds": seeds, "models": list(fits), "classes": names, "splits": size}
    return result | {"cells": cells, "differences": differences, "notes": study.notes}


def _summarise(runs: list[list[Run]], study: Study, subset: Subset) -> tuple[dict, np.ndarray]:
    """The runs [k][s] of a model -> its cell of the result, and the resampled macro AUROC [r]."""

    def mean(name):  # over fits and seeds
        return np.mean([getattr(run, name) for several in runs for run in several], axis=0)

    def bounds(samples, prefix=""):
        low, high = (None if np.isnan(x) else x for x in metrics.interval(samples))
        return {f"{prefix}low": low, f"{prefix}high": high}

    auroc, by_class, f1 = mean("auroc"), mean("auroc_resampled"), mean("f1")
    macro = metrics.macro_of_resamples(by_class)
    macro_by_run = np.array([[run.auroc.mean() for run in several] for several in runs])  # [k,s]
    y_test = study.record_labels["test"][:, subset.used]
    always = np.array([metrics.f1_always_yes(y) for y in y_test.T])
    known = ~np.isnan(f1)
    positives = np.array([study.labels[rows][:, subset.used].sum(0) for rows in subset.rows])  # [s,c]
    per_class = {}
    for c, name in enumerate(subset.names):
        per_class[name] = {"auroc": float(auroc[c]), **bounds(by_class[:, c])}
        per_class[name] |= {"f1": float(f1[c]) if known[c] else None, "f1_always_yes": float(always[c])}
        per_class[name] |= {"train_positives": positives[:, c].tolist(), "test_positives": int(y_test[:, c].sum())}
    cell = {"macro_auroc": float(macro_by_run.mean()), **bounds(macro), "per_seed": macro_by_run.mean(0).tolist()}
    if len(runs) > 1:
        cell["per_fit"] = macro_by_run.mean(1).tolist()
    cell["macro_f1"] = float(f1[known].mean()) if known.any() else None
    cell |= bounds(metrics.macro_of_resamples(mean("f1_resampled")), "f1_")
    cell["f1_always_yes"] = float(always[known].mean()) if known.any() else None
    cell["setting"] = [run.setting for several in runs for run in several]
    cell["train_rows"] = [len(rows) for rows in subset.rows]
    return cell | {"per_class": per_class}, macro


def _check(labels, groups, splits, names, fractions, seeds) -> None:
    """An InputError for labels and splits that cannot be probed."""
    if not fractions or seeds < 1 or not all(0 < f <= 1 for f in fractions):
        raise InputError("a probe needs at least one seed, and fractions above 0 up to 1 (1 = all labels)")
    if labels.ndim != 2 or not labels.shape[1] or not np.isin(labels, (0, 1)).all():
        raise InputError("labels must be 0 or 1 with a column for each class; leave out rows that are not labelled")
    if len(names) != labels.shape[1] or len(set(names)) != len(names):
        raise InputError(f"{labels.shape[1]} label columns need as many different class names, got {len(set(names))}")
    for split in SPLITS:
        here = splits == split
        if not here.any():
            found, wanted = ", ".join(np.unique(splits).tolist()), ", ".join(SPLITS)
            raise InputError(f"no labelled row in the {split} split (found: {found}); probing needs {wanted}")
        shared = np.intersect1d(groups[here], groups[~here & np.isin(splits, SPLITS)])
        if len(shared):
            raise InputError(f"patient {list_some(shared)} is in the {split} split and in another; split by patient")
    rows = int((splits == "train").sum())
    if rows < 2 * len(names):
        raise InputError(f"{rows} training rows are too few for {len(names)} classes; embed more records")


def _both_outcomes(labels: np.ndarray) -> np.ndarray:
    """Classes with a positive and a negative row: [m,c] -> [c]."""
    return labels.any(0) & ~labels.all(0)


def _select(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [name for name, yes in zip(names, chosen, strict=True) if yes]


def _mean_by(number: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows [m,c] -> the mean over the rows of each number, [number of numbers,c]."""
    total = np.zeros((number.max() + 1, values.shape[1]))
    np.add.at(total, number, values)
    return total / np.bincount(number)[:, None]
