"""LVCG for scikit-learn: a transformer of ECG records, and a classifier of them.

    from lvcg_jax import LVCGClassifier, LVCGEmbedder

    make_pipeline(LVCGEmbedder("best"), StandardScaler(), LogisticRegression()).fit(paths, y)
    LVCGClassifier("best").fit(paths, y, groups=patients).predict_proba(paths)

Records are paths of files that this project reads, wfdb.Record objects, or arrays [samples, leads],
for which `fs` and `leads` are given. A classifier with `checkpoint=None` takes embeddings (or any
other features) instead of records.

Axis letters: m row, d feature, c class.
"""

import os
from functools import cache

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from data_prep.base.errors import InputError
from data_prep.ecg.leads import canonical
from data_prep.formats.any_file import read_any
from data_prep.formats.wfdb_files import to_millivolts
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.stats.calibration import apply_platt, fit_platt
from lvcg_jax.text.notebook import part_names

VALIDATION = 0.2  # of the rows, or of the groups: they choose the strength and calibrate
TOGETHER = 64  # records that are embedded at a time


class LVCGEmbedder(TransformerMixin, BaseEstimator):
    """Embeds ECG records: one row per record, the mean of its windows weighted by their beats.

    There is nothing to fit, and the estimator holds no weights: they are loaded once per process,
    so that clones and copies in files are small.

    Args:
      checkpoint: packaged weights by name, or a run directory.
      fs: samples per second of records that are arrays.
      leads: the lead of each column of records that are arrays.
      unit: of records that are arrays: 'mV', 'uV' or 'V'.
      visible: leads that the model may see; None shows all.

    Example:
      >>> LVCGEmbedder("best", fs=500, leads=LEADS).fit_transform([signal]).shape
      (1, 988)
    """

    def __init__(self, checkpoint="best", *, fs=None, leads=None, unit="mV", visible=None):
        self.checkpoint = checkpoint
        self.fs = fs
        self.leads = leads
        self.unit = unit
        self.visible = visible

    def fit(self, X, y=None):
        """Loads the model, so that a wrong name is found early; learns nothing."""
        _load(str(self.checkpoint))
        return self

    def transform(self, X) -> np.ndarray:
        """Records -> embeddings, float32 [m,d]."""
        model, found = _load(str(self.checkpoint)), []
        for first in range(0, len(X), TOGETHER):
            some = _take(X, first, TOGETHER)
            records = [self._read(one, first + i) for i, one in enumerate(some)]
            signals, rates, leads = (list(column) for column in zip(*records, strict=True))
            found += [e.mean for e in model.embed(signals, rates, leads, visible=self.visible)]
        if not found:
            raise InputError("there is no record to embed: 0 sample(s) were given")
        return np.stack(found)

    def get_feature_names_out(self, input_features=None) -> np.ndarray:
        """The names of the numbers: structure0, structure1, ..., rhythm127."""
        return np.array(part_names(_load(str(self.checkpoint)).part_sizes), dtype=object)

    def _read(self, record, number: int) -> tuple[np.ndarray, float, list[str]]:
        """Signal [samples, leads] in mV, rate and leads of one record."""
        if isinstance(record, str | os.PathLike):
            read = read_any(record)
            signal, rate, names = read.signal, read.rate, read.leads
        elif hasattr(record, "p_signal"):  # of the library wfdb
            if record.p_signal is None:
                raise InputError(f"record {number} has no physical signal: use wfdb.rdrecord")
            rate = record.fs
            signal, names = to_millivolts(
                np.asarray(record.p_signal, np.float32),
                list(record.sig_name),
                list(record.units),
                str(record.record_name),
            )
        else:
            if self.fs is None or self.leads is None:
                raise InputError(
                    f"record {number} is an array: give fs and leads to {type(self).__name__}"
                )
            rate, names = self.fs, self.leads
            names = names.split(",") if isinstance(names, str) else list(names)
            signal = np.asarray(record, np.float32)
            signal, names = to_millivolts(signal, names, [self.unit] * len(names), f"{number}")
        known = [i for i, name in enumerate(names) if canonical(name)]
        if not known:
            raise InputError(f"record {number}: none of its columns is a standard lead")
        return signal[:, known], float(rate), [names[i] for i in known]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags


class LVCGClassifier(ClassifierMixin, BaseEstimator):
    """Classifies ECG records by a linear layer on their embeddings, with calibrated probabilities.

    The layer is that of `lvcg probe` (protocol ridge): it is fitted to four fifths of the records,
    or of the groups, and the others choose its strength and calibrate it.

    Args:
      checkpoint: packaged weights by name, or a run directory; None: X holds features, not records.
      fs: samples per second of records that are arrays.
      leads: the lead of each column of records that are arrays.
      unit: of records that are arrays: 'mV', 'uV' or 'V'.
      visible: leads that the model may see; None shows all.
      random_state: seed of the split into records that fit and records that choose.

    Example:
      >>> classifier = LVCGClassifier("best")
      >>> classifier.fit(paths, y, groups=patients).predict_proba(paths).shape
      (120, 2)
    """

    def __init__(
        self, checkpoint="best", *, fs=None, leads=None, unit="mV", visible=None, random_state=0
    ):
        self.checkpoint = checkpoint
        self.fs = fs
        self.leads = leads
        self.unit = unit
        self.visible = visible
        self.random_state = random_state

    def fit(self, X, y, groups=None):
        """Learns from records and their classes; y [m], or 0 and 1 [m,c] where a record may have
        several classes. `groups` [m] keep the records of a patient together."""
        if self.checkpoint is None:
            x, y = validate_data(self, X, y, dtype=np.float32, multi_output=True)
        else:
            x, y = self._embed(X), np.asarray(y)
            check_consistent_length(x, y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self._several = type_of_target(y) == "multilabel-indicator"
        self.classes_ = np.arange(y.shape[1]) if self._several else np.unique(y)
        if not self._several and len(self.classes_) < 2:
            raise InputError("y has one class only: there is nothing to tell apart")
        labels = y.astype(bool) if self._several else y[:, None] == self.classes_
        if len(self.classes_) == 2 and not self._several:
            labels = labels[:, 1:]
        # a class that no row, or every row, has keeps its share as its probability
        taught = labels.any(0) & ~labels.all(0)
        self._constant = np.where(taught, np.nan, labels.mean(0))
        self._taught = taught
        if not taught.any():
            raise InputError("no class has rows with and without it: there is nothing to learn")
        labels = labels[:, taught]

        # strength and calibration by rows that the layer has not seen
        splitter = ShuffleSplit if groups is None else GroupShuffleSplit
        split = splitter(n_splits=1, test_size=VALIDATION, random_state=self.random_state)
        fit, val = next(split.split(x, groups=groups)) if len(x) > 9 else (slice(None),) * 2
        for rows in (fit, val):
            if not (labels[rows].any(0) & ~labels[rows].all(0)).all():
                fit = val = slice(None)  # too few rows of a class to set some aside
        known = (x[fit], labels[fit], x[val], labels[val])
        self.layer_, self.strength_ = fit_ridge(*known, 0, STRENGTHS)
        self.platt_ = fit_platt(labels[val], self.layer_(x[val]))
        return self

    def predict_proba(self, X) -> np.ndarray:
        """Calibrated probabilities [m,c], in the order of `classes_`."""
        check_is_fitted(self)
        if self.checkpoint is None:
            x = validate_data(self, X, dtype=np.float32, reset=False)
        else:
            x = self._embed(X)
        found = np.tile(self._constant, (len(x), 1))
        found[:, self._taught] = apply_platt(self.platt_, self.layer_(x))
        if self._several:
            return found
        if len(self.classes_) == 2:
            return np.concatenate([1 - found, found], axis=1)
        return found / found.sum(1, keepdims=True)

    def predict(self, X) -> np.ndarray:
        """The likeliest class of each record; with several per record, 1 where at least 0.5."""
        found = self.predict_proba(X)
        if self._several:
            return (found >= 0.5).astype(int)
        return self.classes_[found.argmax(1)]

    def _embed(self, X) -> np.ndarray:
        names = ("checkpoint", "fs", "leads", "unit", "visible")
        return LVCGEmbedder(**{name: getattr(self, name) for name in names}).transform(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        if self.checkpoint is not None:
            tags.input_tags.two_d_array = False
            tags.input_tags.three_d_array = True
            tags.input_tags.string = True
        return tags


@cache
def _load(checkpoint: str) -> LVCG:
    return LVCG.load(checkpoint)


def _take(X, first: int, count: int) -> list:
    """Some records of a list, an array, or a column of a data frame."""
    if hasattr(X, "iloc"):
        X = X.iloc[:, 0] if X.ndim == 2 else X
        return X.iloc[first : first + count].tolist()
    return list(X[first : first + count])
