"""A probe that is fitted with all leads and then tested on other embeddings of the test rows.

Axis letters: t test row, d feature.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from lvcg_jax.embed.table import Table
from lvcg_jax.probe.labels import task_of
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.probe.study import SPLIT_WORDS, evaluate

ALL = "12 leads"  # what the probe that is tested on its own kind of embedding is called


class FrozenFit:
    """A fit (see study.py) on undisturbed rows, tested on other embeddings of the test rows.

    `fitted` is shared by all that test one probe: it is fitted once for each subset of the labels.
    `place` gives the row of `tested` for each row of the task.
    """

    seeded, limit = False, None

    def __init__(
        self,
        features: np.ndarray,
        parts: Sequence[int],
        fitted: dict,
        tested: np.ndarray | None = None,
        place: np.ndarray | None = None,
    ):
        self.features, self.parts, self.fitted = features, parts, fitted
        self.tested, self.place = tested, place

    def __call__(self, rows, y, val, y_val, test, seed):
        key, x = (rows.tobytes(), y.shape[1]), self.features
        if key not in self.fitted:
            self.fitted[key] = fit_ridge(x[rows], y, x[val], y_val, seed, STRENGTHS, self.parts)
        linear, setting = self.fitted[key]
        tested = x[test] if self.tested is None else self.tested[self.place[test]]
        return linear(x[val]), linear(tested), setting


def frozen_probe(
    table: Table,
    test_rows: np.ndarray,
    tested: dict[str, list[np.ndarray]],
    task: str,
    fractions: Sequence[float],
    seeds: int,
    resamples: int,
    split_words: Mapping[str, str] = SPLIT_WORDS,
) -> dict:
    """evaluate() of a table's embedding against others of its test rows [t], {name: [test
    embeddings [t,d], ...]}."""
    found = task_of(table, task)
    x, parts, fitted = table.embedding[found.rows], table.part_sizes, {}
    place = np.full(len(table.record_id), -1)
    place[test_rows] = np.arange(len(test_rows))
    fits = {ALL: [FrozenFit(x, parts, fitted)]}
    for name, several in tested.items():
        fits[name] = [FrozenFit(x, parts, fitted, e, place[found.rows]) for e in several]
    options = {
        "class_names": found.classes,
        "records": found.records,
        "resamples": resamples,
        "split_words": split_words,
    }
    columns = (found.labels, found.patients, found.splits)
    return {"task": task} | evaluate(fits, *columns, fractions, seeds, "ridge", **options)
