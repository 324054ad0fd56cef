"""Scores of derived leads against the true ones, with bootstrap intervals over patients, and their
tables.

All is measured on hidden leads that the record has. Errors without a unit are in standard
deviations of the true lead of that record (the z-score of the paper), so a lead's R2 is 1 - MSE,
and zero scores MSE 1 and R2 0. The value of a record is the mean over its hidden leads; in mV its
R2 is that of all hidden leads together, where large leads count more. Over a data set: the mean
over records, and the median over patients (a patient's value is the mean of its records).

PSNR is 20 log10(peak / RMSE) in dB, lead by lead, with the peak of the published code of Nef-Net:
all leads of a record are scaled together so that they span 0 to 1. The peak is then 1, in mV the
distance from the lowest to the highest sample of all its leads. (Nef-Net scales beat by beat.)
Limb leads that are computed exactly have no PSNR, which would be that of rounding.

Axis letters: k row (one view of one record), l lead, T sample, r resample, m patient.
"""

import math
from collections.abc import Sequence

import numpy as np

from data_prep.ecg.leads import LEADS
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.text.tables import markdown_table, with_interval

MEASURES = ("mse", "mae", "r2", "r", "mae_mv", "rmse_mv", "r2_mv", "psnr")
# in one lead R2 is the same in any unit
LEAD_MEASURES = ("mse", "mae", "r2", "r", "mae_mv", "rmse_mv", "psnr")
_PARTS = ("mse", "mae", "r", "mse_mv", "mae_mv", "power_mv", "psnr")
EXACT_PSNR = 80.0  # dB; a lead this close was computed from the visible ones, not derived


def score_leads(
    truth_mv: np.ndarray, derived_mv: np.ndarray, hidden: np.ndarray
) -> dict[str, np.ndarray]:
    """Scores [l] of each lead of one record [l,T] in mV; NaN where a lead is not hidden (r: or is
    constant)."""
    truth = truth_mv[hidden].astype(np.float64)
    truth = truth - truth.mean(1, keepdims=True)
    derived = derived_mv[hidden].astype(np.float64) - truth_mv[hidden].mean(1, keepdims=True)
    error, power = derived - truth, (truth**2).mean(1)
    spread = np.maximum(np.sqrt(power), 1e-9)
    centred = derived - derived.mean(1, keepdims=True)
    product = np.sqrt(power * (centred**2).mean(1))
    known = truth_mv[np.isfinite(truth_mv)]
    span = np.ptp(known) if known.size else np.nan  # of all leads of the record
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.where(product > 1e-12, (truth * centred).mean(1) / product, np.nan)
        psnr = 20 * np.log10(span / np.sqrt((error**2).mean(1)))
    found = {
        "mse": (error**2).mean(1) / spread**2,
        "mae": np.abs(error).mean(1) / spread,
        "r": r,
        "mse_mv": (error**2).mean(1),
        "mae_mv": np.abs(error).mean(1),
        "power_mv": power,
        "psnr": np.where(psnr < EXACT_PSNR, psnr, np.nan),
    }
    scores = {name: np.full(len(hidden), np.nan) for name in _PARTS}
    for name, values in found.items():
        scores[name][hidden] = values
    return scores


def record_values(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores [k,l] -> the value [k] of every row for each of MEASURES; NaN where a row has none."""
    mean = {name: _mean_of_leads(values) for name, values in scores.items()}
    return {
        "mse": mean["mse"],
        "mae": mean["mae"],
        "r2": 1.0 - mean["mse"],
        "r": mean["r"],
        "mae_mv": mean["mae_mv"],
        "rmse_mv": np.sqrt(mean["mse_mv"]),
        "r2_mv": 1.0 - mean["mse_mv"] / np.maximum(mean["power_mv"], 1e-18),
        "psnr": mean["psnr"],
    }


def _mean_of_leads(values: np.ndarray) -> np.ndarray:
    there = np.isfinite(values)
    count = there.sum(-1)
    return np.where(count > 0, np.where(there, values, 0.0).sum(-1) / np.maximum(count, 1), np.nan)


def summarise(
    scores: dict[str, dict[str, np.ndarray]], patients: Sequence[str], resamples: int, first: str
) -> dict:
    """Scores {method: {part: [k,l]}} -> for each method `overall` and `per_lead` summaries of every
    measure, and `minus_first`: the same rows' difference from the method `first` (positive MSE:
    this method is worse)."""
    bootstrap = PatientBootstrap(patients, resamples)
    values = {name: record_values(parts) for name, parts in scores.items()}
    result = {}
    for name, parts in scores.items():
        found = {
            "overall": {m: bootstrap.summary(values[name][m]) for m in MEASURES},
            "per_lead": {},
        }
        for i, lead in enumerate(LEADS):
            if np.isfinite(parts["mse"][:, i]).any():
                column = record_values({part: x[:, i : i + 1] for part, x in parts.items()})
                found["per_lead"][lead] = {m: bootstrap.summary(column[m]) for m in LEAD_MEASURES}
                found["per_lead"][lead]["rows"] = int(np.isfinite(parts["mse"][:, i]).sum())
        if name != first:
            found["minus_first"] = {
                m: bootstrap.summary(values[name][m] - values[first][m]) for m in MEASURES
            }
        result[name] = found
    return result


def overall_table(methods: dict[str, dict], first: str) -> list[str]:
    """A row per method: errors and R2, and how much worse than the method `first` its MSE is."""
    header = [
        "method",
        "MSE",
        "MAE",
        "R2 (median)",
        "R2 (mean)",
        "r",
        "MAE mV",
        "R2 in mV (median)",
        "PSNR dB",
    ]
    rows = []
    for name, found in methods.items():
        o = found["overall"]
        cells = [with_interval(o["mse"]), with_interval(o["mae"]), with_interval(o["r2"], "median")]
        cells += [with_interval(o["r2"]), with_interval(o["r"]), with_interval(o["mae_mv"])]
        gap = with_interval(found["minus_first"]["mse"], sign="+") if name != first else "-"
        cells += [with_interval(o["r2_mv"], "median"), with_interval(o["psnr"], digits=1)]
        rows.append([name, *cells, gap])
    return markdown_table([*header, f"MSE minus {first}"], rows)


def lead_table(methods: dict[str, dict], measure: str = "mse") -> list[str]:
    """A row per method, a column per lead: the mean over records."""
    leads = [lead for lead in LEADS if any(lead in found["per_lead"] for found in methods.values())]
    rows = []
    for name, found in methods.items():
        rows.append([name, *(_number(found["per_lead"].get(lead), measure) for lead in leads)])
    return markdown_table(["method", *leads], rows)


def _number(found: dict | None, measure: str) -> str:
    return (
        "-"
        if found is None or not math.isfinite(found[measure]["mean"])
        else f"{found[measure]['mean']:.2f}"
    )
