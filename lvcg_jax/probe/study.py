"""Fits classifiers to label subsets and judges them on the test split, the same way for every model
and protocol.

A fit is a callable fit(rows, y, val, y_val, test, seed) that returns the scores of the validation
rows [m,c] and of the test rows [m,c], and the setting that validation chose. `fit.seeded` says
whether the seed changes a fit to the same rows; `fit.limit` is the number of epochs after which it
stops at the latest, or None.

Axis letters: m row or record, c class, r resample, k fit of a model, s seed.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from data_prep.base.csv_cells import csv_text
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.base.words import SPLITS, list_some
from lvcg_jax.embed.table import Table
from lvcg_jax.probe import linear
from lvcg_jax.probe.labels import DRAWS, NothingToScore, label_subsets, plain_subsets, task_of
from lvcg_jax.stats import calibration
from lvcg_jax.stats.auroc import (
    auroc,
    average_precision,
    best_f1_threshold,
    bootstrap_f1,
    bootstrap_ranks,
    f1_always_yes,
    f1_score,
)
from lvcg_jax.stats.blocks import Features, blocks, by_blocks, choose_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap, class_intervals
from lvcg_jax.stats.scaling import mean_by

LINEAR_PROTOCOLS = ("ridge", *linear.ADAM_SETTINGS)
PROTOCOLS = (*LINEAR_PROTOCOLS, "attention", "finetune")
# thresholds that protocol `release` chooses from, as probabilities
RELEASE_THRESHOLDS = np.linspace(0.05, 0.95, 51)
METRICS = {"auroc": "", "auprc": "auprc_", "f1": "f1_"}  # before `low` and `high` in a result
OPPOSITE = "scored there as the opposite of the commonest class"
SPLIT_WORDS = {split: f"{split} split" for split in SPLITS}  # what notes call each split
Several = Features | Sequence[Features]  # [m,d], or several that are averaged in the result


class LinearFit:
    """A linear classifier on stored features [m,d]; see above. `layer` is that of the last call."""

    def __init__(
        self,
        features: Features,
        protocol: str,
        strengths: Sequence[float] = linear.STRENGTHS,
        parts: Sequence[int] | None = None,
    ):
        self.features = features
        self.seeded = protocol != "ridge"
        self._options = (
            linear.ADAM_SETTINGS[protocol]
            if self.seeded
            else {"strengths": strengths, "parts": parts}
        )
        self._fit = linear.fit_adam if self.seeded else linear.fit_ridge
        self.limit = self._options.get("epochs")

    def __call__(self, rows, y, val, y_val, test, seed):
        x = self.features
        self.layer, setting = self._fit(x[rows], y, x[val], y_val, seed, **self._options)
        return by_blocks(self.layer, x[val]), by_blocks(self.layer, x[test]), setting


def linear_fits(
    features_by_model: Mapping[str, Several],
    rows: int,
    protocol: str,
    strengths: Sequence[float] = linear.STRENGTHS,
    parts: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, list[LinearFit]]:
    """The fits of each model, once its features are found to be usable; `parts` are the sizes of a
    model's parts."""
    if protocol not in LINEAR_PROTOCOLS:
        raise InputError(
            f"unknown protocol '{protocol}' for stored features; choose"
            f" {', '.join(LINEAR_PROTOCOLS)}"
        )
    if not features_by_model:
        raise InputError("a probe needs the features of one model at least")
    fits = {}
    for name, features in features_by_model.items():
        several = [features] if isinstance(features, Features) else list(features)
        for x in several:
            if x.ndim != 2 or len(x) != rows:
                raise InputError(f"'{name}': features {x.shape} do not match {rows} rows of labels")
            sizes = (parts or {}).get(name)
            if sizes and sum(sizes) != x.shape[1]:
                raise InputError(
                    f"'{name}': parts of {list(sizes)} are not the {x.shape[1]} features"
                )
            wrong = sum(int((~np.isfinite(some)).any(1).sum()) for some in blocks(x))
            if wrong:
                raise InputError(f"'{name}': {wrong} rows are not finite")
        fits[name] = [LinearFit(x, protocol, strengths, (parts or {}).get(name)) for x in several]
    return fits


def probe(
    features_by_model: Mapping[str, Several],
    labels: np.ndarray,
    groups: np.ndarray,
    splits: np.ndarray,
    fractions: Sequence[float] = (0.01, 0.1, 1.0),
    seeds: int = 3,
    protocol: str = "ridge",
    *,
    class_names: Sequence[str] | None = None,
    strengths: Sequence[float] = linear.STRENGTHS,
    parts: Mapping[str, Sequence[int]] | None = None,
    **options,
) -> dict:
    """Probes stored features {name: [m,d] or several of them}; the first model is in question, the
    others are controls.

    parts {name: sizes}, if a model's features come in parts. labels bool [m,c], groups [m] patient
    ids, splits [m] of train / validation / test; more options and the result: `evaluate`.
    """
    labels, groups, splits = (
        np.asarray(labels),
        np.asarray(groups).astype(str),
        np.asarray(splits).astype(str),
    )
    if len({len(labels), len(groups), len(splits)}) > 1:
        raise InputError(
            f"{len(labels)} rows of labels, {len(groups)} patients and {len(splits)} splits"
            " do not match"
        )
    names = [f"class_{c}" for c in range(labels.shape[1])] if class_names is None else class_names
    fits = linear_fits(features_by_model, len(labels), protocol, strengths, parts)
    return evaluate(
        fits, labels, groups, splits, fractions, seeds, protocol, class_names=names, **options
    )


def probe_task(
    features_by_model: Mapping[str, Several], table: Table, task: str, **options
) -> dict:
    """Probes one task of a table on the rows labelled for it; features are in the table's row
    order."""
    found = task_of(table, task)
    chosen = {
        name: choose_rows(x, found.rows)
        if isinstance(x, Features)
        else [choose_rows(one, found.rows) for one in x]
        for name, x in features_by_model.items()
    }
    options = {"class_names": found.classes, "records": found.records} | options
    return {"task": task} | probe(chosen, found.labels, found.patients, found.splits, **options)


class Predictions:
    """Calibrated test probabilities of the first model with the most labels, seed 0: a CSV row for
    each record."""

    def __init__(self):
        self._rows: dict[str, dict[str, str]] = {}
        self._columns: list[str] = []

    def listener(self, task: str, model: str, fraction: float) -> Callable:
        """A function for `evaluate` that keeps what this model and fraction predict."""

        def on_run(name, share, seed, records, classes, run):
            if (name, share, seed) != (model, fraction, 0):
                return
            columns = [f"{task}:{c}" for c in classes]
            self._columns += columns
            for record, row in zip(records, run.probabilities, strict=True):
                cells = zip(columns, (f"{x:.9g}" for x in row), strict=True)
                self._rows.setdefault(str(record), {"record_id": str(record)}).update(cells)

        return on_run

    def save(self, path: str | Path) -> None:
        columns = ["record_id", *self._columns]
        rows = [self._rows[record] for record in sorted(self._rows)]
        table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
        write_whole(path, csv_text(table))


def part_features(table: Table, name: str) -> dict[str, np.ndarray]:
    """{'NAME: structure only': [m,256], ...}: each part of an embedding alone."""
    return {
        f"{name}: {part} only": table.embedding[:, columns]
        for part, columns in table.part_columns.items()
    }


@dataclass(frozen=True)
class Subset:
    """The training rows of one fraction of the labels, the classes that are learnt from them and
    those that are scored. A class without a positive is scored as the opposite of the commonest
    class, and what is neither learnt nor this has a constant score."""

    fraction: float
    rows: list[np.ndarray]  # of each seed
    learnt: list[np.ndarray]  # bool [classes], of each seed: has both outcomes in its rows
    opposite: list[np.ndarray]  # bool [classes], of each seed: without a positive in its rows
    used: np.ndarray  # bool [classes]: scored
    names: list[str]  # of the classes used
    counted: np.ndarray  # bool [c]: those of the classes used that macro scores are a mean of


@dataclass(frozen=True)
class Run:
    """One fit, judged: its test scores by record [m,c], values by class [c] and by resample [r,c];
    NaN: undefined. What a head needs beside its layer is of all classes of the task, scored or
    not."""

    setting: float | int | None  # None: nothing could be learnt
    learnt: np.ndarray  # bool [classes]
    thresholds: np.ndarray  # [classes] scores of highest validation F1
    platt: np.ndarray  # [2,classes] from scores to probabilities, fitted to validation
    scores: np.ndarray
    probabilities: np.ndarray  # [m,c], calibrated
    brier: np.ndarray
    ece: np.ndarray
    bins: np.ndarray  # [b,3] reliability of all classes together
    raw_bins: np.ndarray  # the same without calibration
    auroc: np.ndarray
    auroc_resampled: np.ndarray
    auprc: np.ndarray
    auprc_resampled: np.ndarray
    f1: np.ndarray
    f1_resampled: np.ndarray


class Study:
    """Labels, patients and splits of one task; the score of a record is the mean over its
    rows."""

    def __init__(
        self,
        labels: np.ndarray,
        groups: np.ndarray,
        splits: np.ndarray,
        records: np.ndarray,
        names: list[str],
        fractions: Sequence[float],
        seeds: int,
        resamples: int,
        words: Mapping[str, str],
        draw: str,
        thresholds: np.ndarray | None,
        min_positives: int,
    ):
        _check(labels, groups, splits, names, fractions, seeds, words)
        if draw not in DRAWS:
            raise InputError(f"unknown draw '{draw}' of label subsets; choose {', '.join(DRAWS)}")
        self.labels, self.names = labels.astype(bool), names
        self._plain, self._thresholds = draw == "plain", thresholds
        self.notes, self.f1_notes = [], []  # what is left out of AUROC, and of F1 alone
        self.rows = {split: np.flatnonzero(splits == split) for split in SPLITS}
        self._both = {split: _both_outcomes(self.labels[rows]) for split, rows in self.rows.items()}
        both = self._both
        if (
            not (both["train"] & both["test"]).any()
            or not (both["train"] & both["validation"]).any()
        ):
            where = f"positive and negative rows in each of {', '.join(words.values())}"
            raise NothingToScore(
                f"no class has {where} ({list_some(names)}); choose another task or split"
            )
        # notes on classes that a split cannot teach or judge
        effects = dict.fromkeys(SPLITS, "left out of the macro AUROC")
        effects["validation"] = "not used to choose"
        if self._plain:
            effects["train"] = OPPOSITE
        for split, effect in effects.items():
            if not both[split].all():
                one_sided = list_some(_select(names, ~both[split]))
                self.notes.append(
                    f"{one_sided}: no positive or no negative row in the {words[split]}, {effect}"
                )
        blind = _select(names, both["test"] & ~self.labels[self.rows["validation"]].any(0))
        if blind:
            where = f"no positive row in the {words['validation']} to choose a threshold by"
            self.f1_notes.append(f"{list_some(blind)}: {where}, no F1")
        # records of the validation and test splits, and the training rows of each seed
        self._record_number, self.record_labels = {}, {}
        for split in SPLITS[1:]:
            rows = self.rows[split]
            self.records, first, self._record_number[split] = np.unique(
                records[rows], return_index=True, return_inverse=True
            )
            self.record_labels[split] = self.labels[rows][first]
            if split == "test":
                self.bootstrap = PatientBootstrap(groups[rows][first], resamples)
        # classes of too few positive test patients to count in a mean
        y, patient = self.record_labels["test"], self.bootstrap.patient
        positives = np.array([len(np.unique(patient[column])) for column in y.T])
        self._counted = positives >= min_positives
        few = _select(names, both["test"] & ~self._counted)
        if few:
            what = f"fewer than {min_positives} patients with it in the {words['test']}"
            self.notes.append(f"{', '.join(few)}: {what}, left out of macro scores")
        if not (both["train"] & both["test"] & self._counted).any():
            raise NothingToScore(
                f"no class has {min_positives} positive patients in the {words['test']}: lower"
                " --min_positives"
            )
        train = self.rows["train"]
        self._subsets = [
            plain_subsets(records[train], fractions, seed)
            if self._plain
            else label_subsets(groups[train], self.labels[train], fractions, seed)
            for seed in range(seeds)
        ]

    def subset(self, fraction: float) -> Subset | None:
        """The rows of a fraction, with a note on everything special; None if nothing can be learnt
        and scored."""
        train, share = self.rows["train"], f"{fraction:.4g} of the labels"
        rows = [train[subset[fraction]] for subset in self._subsets]
        learnt = [_both_outcomes(self.labels[r]) for r in rows]
        always = np.all(learnt, axis=0)
        lost = _select(self.names, self._both["train"] & self._both["test"] & ~always)
        if self._plain:
            # validation must know one of the classes of a subset to choose a setting
            judged = [(x & self._both["validation"]).any() for x in learnt]
            if not all(judged):
                self.notes.append(
                    f"{share}: {judged.count(False)} of {len(rows)} subsets teach no class that"
                    " validation can judge, all classes scored as constants there"
                )
            learnt = [x & yes for x, yes in zip(learnt, judged, strict=True)]
            used, can_choose = self._both["test"], any(judged)
            opposite = [x.any() & ~self.labels[r].any(0) for x, r in zip(learnt, rows, strict=True)]
        else:
            learnt, used = [always] * len(rows), self._both["test"] & always
            opposite = [np.zeros_like(always)] * len(rows)
            can_choose = (self._both["validation"] & always).any()
        if lost:
            effect = OPPOSITE if self._plain else "left out"
            self.notes.append(
                f"{share}: {list_some(lost)} has one outcome only in a subset, {effect}"
            )
        if not used.any() or not can_choose:
            self.notes.append(f"{share}: no class can be learnt and scored, no result")
            return None
        sizes = [len(r) for r in rows]
        if min(sizes) < len(self.names):
            self.notes.append(f"{share}: {min(sizes)} training rows for {len(self.names)} classes")
        if max(sizes) > 1.2 * fraction * len(train) + 1:
            self.notes.append(f"{share}: {max(sizes)} rows drawn so that each class has a positive")
        names, counted = _select(self.names, used), self._counted[used]
        if not counted.any():
            self.notes.append(f"{share}: no class of enough patients can be learnt, no result")
            return None
        return Subset(float(fraction), rows, learnt, opposite, used, names, counted)

    def runs(self, fit: Callable, subset: Subset) -> Iterator[Run]:
        """One run for each seed; a fit that cannot differ from the seed before is not repeated."""
        val, test, run = self.rows["validation"], self.rows["test"], None
        for seed, rows in enumerate(subset.rows):
            if run is None or fit.seeded or not np.array_equal(rows, subset.rows[seed - 1]):
                learnt, setting = subset.learnt[seed], None
                scores = {s: np.zeros((len(self.rows[s]), len(self.names))) for s in SPLITS[1:]}
                if learnt.any():
                    y, y_val = self.labels[rows][:, learnt], self.labels[val][:, learnt]
                    *found, setting = fit(rows, y, val, y_val, test, seed)
                    commonest = int(y.sum(0).argmax())
                    for split, columns in zip(scores, found, strict=True):
                        scores[split][:, learnt] = columns
                        scores[split][:, subset.opposite[seed]] = -columns[:, [commonest]]
                run = self._judge(scores, setting, learnt, subset.used)
            yield run

    def _judge(
        self, row_scores: dict[str, np.ndarray], setting, learnt: np.ndarray, used: np.ndarray
    ) -> Run:
        """AUROC and AUPRC of the test records; F1 at the thresholds that are best for the
        validation records, and probabilities calibrated on these."""
        val_scores, scores = (
            mean_by(self._record_number[split], row_scores[split]) for split in SPLITS[1:]
        )
        y_val = self.record_labels["validation"]
        thresholds = np.array(
            [
                best_f1_threshold(y_val[:, c], val_scores[:, c], self._thresholds)[0]
                for c in range(len(self.names))
            ]
        )
        platt = calibration.fit_platt(y_val, val_scores)
        probabilities = calibration.apply_platt(platt, scores)[:, used]
        # the test records, with the classes that are scored
        scores, y = scores[:, used], self.record_labels["test"][:, used]
        classes = range(y.shape[1])
        yes, known = scores >= thresholds[used], ~np.isnan(thresholds[used])
        auroc_resampled, auprc_resampled = bootstrap_ranks(y, scores, self.bootstrap)
        by_class = zip(y.T, probabilities.T, strict=True)
        return Run(
            setting,
            learnt,
            thresholds,
            platt,
            scores,
            probabilities,
            calibration.brier(y, probabilities),
            np.array([calibration.error_of(calibration.reliability(*pair)) for pair in by_class]),
            calibration.reliability(y, probabilities),
            calibration.reliability(y, expit(scores)),
            np.array([auroc(y[:, c], scores[:, c]) for c in classes]),
            auroc_resampled,
            np.array([average_precision(y[:, c], scores[:, c]) for c in classes]),
            auprc_resampled,
            np.where(known, [f1_score(y[:, c], yes[:, c]) for c in classes], np.nan),
            np.where(known, bootstrap_f1(y, yes, self.bootstrap), np.nan),
        )

    def carriers(self, subset: Subset) -> np.ndarray:
        """Test patients with the rarer outcome of each class used, [c]; 0 where the score is the
        same for everybody."""
        found = self.bootstrap.carriers(self.record_labels["test"][:, subset.used])
        varies = np.any(subset.learnt + subset.opposite, axis=0)
        return np.where(varies[subset.used], found, 0)


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
    on_run: Callable | None = None,
    split_words: Mapping[str, str] = SPLIT_WORDS,
    draw: str = "guaranteed",
    min_positives: int = 1,
    firsts: Sequence[str] = (),
) -> dict:
    """Fits and judges models on the same rows; the first model is the one in question, the others
    are its controls.

    fits {name: [fit, ...]}: several fits under one name (say, three random initialisations) are
    averaged. labels bool [m,c]; groups [m] patient ids; splits [m]; records [m], if rows are
    windows. on_run(model, fraction, seed, record ids, class names, run) is called with the `Run` of
    every fit, whose scores and probabilities [m,c] are of these test records and classes. Returns
    plain JSON data: `cells` (one for each model and fraction: `macro_auroc`, `low`, `high`,
    `macro_auprc`, `macro_f1`, `calibration`, `per_class`, ...), `differences` of the
    first model from each control (paired bootstrap) and `notes` on everything left out; those on
    F1 alone are also in `f1_notes`. `split_words` is what the notes call train, validation and
    test. `firsts` names the models whose differences from all others are taken instead.

    `draw` is how label subsets are drawn (see labels.py). With 'guaranteed' a class without both
    outcomes in a subset is left out; with 'plain' every class of the test split is scored, and one
    without a positive in a subset has the negative score of the class that is commonest there.
    Macro scores are means over the classes that at least `min_positives` patients of the test split
    have; notes name the others.
    """
    names, models, fractions = list(class_names), list(fits), sorted(set(fractions))
    records = np.arange(len(labels)) if records is None else records
    thresholds = logit(RELEASE_THRESHOLDS) if protocol == "release" else None
    subsets = (fractions, seeds, resamples, split_words, draw, thresholds, min_positives)
    study = Study(labels, groups, splits, records, names, *subsets)
    work = sum(map(len, fits.values())) * len(fractions) * seeds
    bar = progress_bar(total=work, disable=not progress, unit="fit", leave=False)
    cells, differences = [], []
    for subset in filter(None, map(study.subset, fractions)):
        resampled = {}
        for model, several in fits.items():
            runs: list[list[Run]] = [[] for _ in several]  # [k][s]
            cut_short = False
            for k, fit in enumerate(several):
                for seed, run in enumerate(study.runs(fit, subset)):
                    runs[k].append(run)
                    if on_run:
                        on_run(model, subset.fraction, seed, study.records, subset.names, run)
                    bar.update()
                if fit.limit and fit.limit in [run.setting for run in runs[k]]:
                    cut_short = True
                    reason = f"{model} was still improving after {fit.limit} epochs"
                    study.notes.append(f"{subset.fraction:.4g} of the labels: {reason}")
            cell, resampled[model] = _summarise(runs, study, subset)
            named = {"model": model, "fraction": subset.fraction, "cut_short": cut_short}
            cells.append(named | cell)
        # differences of the first model from each control, with the same patients drawn for both
        score = {cell["model"]: cell["macro_auroc"] for cell in cells[-len(fits) :]}
        for first, other in itertools.product(firsts or [models[0]], models):
            if first == other:
                continue
            (values, samples), (other_values, other_samples) = resampled[first], resampled[other]
            _, (low, high) = class_intervals(
                (values - other_values)[subset.counted],
                (samples - other_samples)[:, subset.counted],
                study.carriers(subset)[subset.counted],
                bounded=False,
            )
            gap = {"model": first, "control": other, "fraction": subset.fraction}
            gap |= {
                "difference": score[first] - score[other],
                "low": float(low),
                "high": float(high),
            }
            differences.append(gap)
    bar.close()
    size = {
        s: {"rows": len(r), "patients": len(np.unique(groups[r]))} for s, r in study.rows.items()
    }
    result = {
        "protocol": protocol,
        "draw": draw,
        "seeds": seeds,
        "min_positives": min_positives,
        "models": models,
        "classes": names,
        "splits": size,
    }
    notes = {"notes": [*study.notes, *study.f1_notes], "f1_notes": study.f1_notes}
    return result | {"cells": cells, "differences": differences} | notes


def _summarise(
    runs: list[list[Run]], study: Study, subset: Subset
) -> tuple[dict, tuple[np.ndarray, np.ndarray]]:
    """The runs [k][s] of a model -> its cell of the result, and the AUROC of each class [c], also
    resampled [r,c]."""

    def mean(name):  # over fits and seeds
        return np.mean([getattr(run, name) for several in runs for run in several], axis=0)

    carriers = study.carriers(subset)
    by_class, cell = {}, {}
    for metric, prefix in METRICS.items():
        # a class may have no F1: where validation has no positive to choose a threshold by
        values, resampled = mean(metric), mean(f"{metric}_resampled")
        known, bounds = ~np.isnan(values), np.full((len(values), 2), np.nan)
        counted, macro = known & subset.counted, (None, None, None)
        if known.any():
            bounds[known], _ = class_intervals(values[known], resampled[:, known], carriers[known])
        if counted.any():
            _, whole = class_intervals(values[counted], resampled[:, counted], carriers[counted])
            macro = (float(values[counted].mean()), *map(float, whole))
        by_class[metric] = values, bounds
        names = (f"macro_{metric}", f"{prefix}low", f"{prefix}high")
        cell |= dict(zip(names, macro, strict=True))
    # what knowing nothing scores, and how many positives each class has
    y_test = study.record_labels["test"][:, subset.used]
    always, share = np.array([f1_always_yes(y) for y in y_test.T]), y_test.mean(0)
    # [s,c]
    positives = np.array([study.labels[rows][:, subset.used].sum(0) for rows in subset.rows])
    errors, by_bin, per_class = mean("brier"), mean("ece"), {}
    for c, name in enumerate(subset.names):
        entry = {}
        for metric, prefix in METRICS.items():
            values, bounds = by_class[metric]
            found = [None if np.isnan(x) else float(x) for x in (values[c], *bounds[c])]
            entry |= dict(zip((metric, f"{prefix}low", f"{prefix}high"), found, strict=True))
        per_class[name] = entry | {
            "brier": float(errors[c]),
            "ece": float(by_bin[c]),
            "prevalence": float(share[c]),
            "f1_always_yes": float(always[c]),
            "train_positives": positives[:, c].tolist(),
            "test_positives": int(y_test[:, c].sum()),
        }
    counted = subset.counted
    macro_by_run = np.array(
        [[run.auroc[counted].mean() for run in several] for several in runs]
    )  # [k,s]
    cell["per_seed"] = macro_by_run.mean(0).tolist()
    if len(runs) > 1:
        cell["per_fit"] = macro_by_run.mean(1).tolist()
    known = ~np.isnan(by_class["f1"][0]) & counted
    cell["prevalence"] = float(share[counted].mean())
    cell["calibration"] = _calibration(runs, errors[counted], share[counted])
    cell["f1_always_yes"] = float(always[known].mean()) if known.any() else None
    cell["setting"] = [run.setting for several in runs for run in several]
    cell["train_rows"] = [len(rows) for rows in subset.rows]
    return cell | {"per_class": per_class}, (mean("auroc"), mean("auroc_resampled"))


def _calibration(runs: list[list[Run]], errors: np.ndarray, share: np.ndarray) -> dict:
    """How far the probabilities of a model's runs can be taken at their word; all classes pooled
    for `ece` and the reliability curve, which has an entry for each bin with records in it."""
    flat = [run for several in runs for run in several]
    bins = np.sum([run.bins for run in flat], axis=0)
    return {
        "method": "Platt's scaling on the validation split",
        "brier": float(errors.mean()),
        "brier_prevalence": float((share * (1 - share)).mean()),
        "ece": float(np.mean([calibration.error_of(run.bins) for run in flat])),
        "ece_uncalibrated": float(np.mean([calibration.error_of(run.raw_bins) for run in flat])),
        "reliability": [
            {"probability": float(p / n), "share": float(y / n), "count": int(n)}
            for n, p, y in bins
            if n
        ],
    }


def _check(labels, groups, splits, names, fractions, seeds, words) -> None:
    """An InputError for labels and splits that cannot be probed."""
    if not fractions or seeds < 1 or not all(0 < f <= 1 for f in fractions):
        raise InputError(
            "a probe needs at least one seed, and fractions above 0 up to 1 (1 = all labels)"
        )
    if labels.ndim != 2 or not labels.shape[1] or not np.isin(labels, (0, 1)).all():
        raise InputError(
            "labels must be 0 or 1 with a column for each class; leave out rows that are"
            " not labelled"
        )
    if len(names) != labels.shape[1] or len(set(names)) != len(names):
        raise InputError(
            f"{labels.shape[1]} label columns need as many different class names, got"
            f" {len(set(names))}"
        )
    for split in SPLITS:
        here = splits == split
        if not here.any():
            found, wanted = ", ".join(np.unique(splits).tolist()), ", ".join(SPLITS)
            raise NothingToScore(
                f"no labelled row in the {words[split]} (found: {found}); probing needs {wanted}"
            )
        shared = np.intersect1d(groups[here], groups[~here & np.isin(splits, SPLITS)])
        if len(shared):
            raise InputError(
                f"patient {list_some(shared)} is in the {words[split]} and in another;"
                " split by patient"
            )
    rows = int((splits == "train").sum())
    if rows < 2 * len(names):
        raise NothingToScore(
            f"{rows} training rows are too few for {len(names)} classes; embed more records"
        )


def _both_outcomes(labels: np.ndarray) -> np.ndarray:
    """Classes with a positive and a negative row: [m,c] -> [c]."""
    return labels.any(0) & ~labels.all(0)


def _select(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [name for name, yes in zip(names, chosen, strict=True) if yes]
