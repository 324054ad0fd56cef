"""Errors of derived leads in what clinicians measure: R peak, QRS, QT, PR, ST, by method, with
intervals over patients.

A record's value is the mean absolute error over its beats (see data_prep/ecg/morphology.py); over a
data set, the mean over records.
"""

from collections.abc import Sequence

import numpy as np

from data_prep.ecg.leads import mask_leads
from data_prep.ecg.morphology import MEASURES, compare_morphology
from lvcg_jax.reconstruct.views import Row, draw_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.text.tables import markdown_table, with_interval

TITLES = {
    "r_peak_ms": "R peak ms",
    "qrs_ms": "QRS ms",
    "qt_ms": "QT ms",
    "pr_ms": "PR ms",
    "st_mv": "ST mV",
    "missed": "beats missed",
}


class BeatErrors:
    """Collects the errors of rows as they are derived; of many rows, `limit` drawn by record."""

    def __init__(self, rows: Sequence[Row], limit: int):
        self.chosen = draw_rows(rows, limit)
        self.patients: list[str] = []
        self.values: dict[str, dict[str, list[float]]] = {}  # method -> measure -> a value per row

    def add(self, row: Row, truth: np.ndarray, derived: dict[str, np.ndarray]) -> None:
        """True and derived leads [12,T] of a row, in mV."""
        if id(row) not in self.chosen:
            return
        self.patients.append(row.entry.patient_id)
        rate, hidden = row.entry.shards.preprocess.rate, mask_leads(row.hidden)
        for name, leads in derived.items():
            found = compare_morphology(truth, leads, rate, hidden)
            values = self.values.setdefault(name, {measure: [] for measure in TITLES})
            for measure in MEASURES:
                errors = found.errors[measure]
                values[measure].append(
                    float(np.nanmean(errors)) if np.isfinite(errors).any() else np.nan
                )
            values["missed"].append(float(found.missed.mean()) if len(found.missed) else np.nan)

    def summary(self, resamples: int) -> dict[str, dict[str, dict[str, float]]]:
        """{method: {measure: mean with its interval, ...}}."""
        bootstrap = PatientBootstrap(self.patients, resamples)
        return {
            name: {
                measure: bootstrap.summary(np.array(column)) for measure, column in columns.items()
            }
            for name, columns in self.values.items()
        }


def beat_error_table(methods: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """A row per method; a dash where a method's leads have no beat to measure."""
    rows = []
    for name, found in methods.items():
        digits = {"st_mv": 3, "missed": 3}
        rows.append(
            [
                name,
                *(
                    with_interval(found[measure], digits=digits.get(measure, 1))
                    for measure in TITLES
                ),
            ]
        )
    return markdown_table(["method", *TITLES.values()], rows)
