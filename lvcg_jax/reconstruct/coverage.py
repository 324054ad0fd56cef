"""Do the bands of derived leads hold what they promise? The share of true samples inside the 90%
band, over all, by lead, by wave and by diagnosis, with intervals over patients; and the width of
the band, without which a share says little.

Only hidden leads that the record has are counted, without limb leads that are computed. A record's
value is the mean over these leads; widths are in standard deviations of the true lead. ST is here
the first 80 ms after the QRS, T what follows up to its end; cut-off beats are the pieces of a beat
before the first R peak and after the last. Records unlike most (unlike.py) should get wider bands.

Axis letters: k row (one view of one record), l lead, T sample.
"""

import json
from collections.abc import Sequence

import numpy as np

from data_prep.dataset.look import r_peaks
from data_prep.ecg.delineate import delineate
from data_prep.ecg.leads import LEADS, mask_leads
from lvcg_jax.reconstruct.bands import LEVEL, REACH
from lvcg_jax.reconstruct.lead_method import LeadMethodWithBars, to_mv
from lvcg_jax.reconstruct.unlike import CLASSES, DISTURBANCES
from lvcg_jax.reconstruct.views import Row, Source, derive_bands, draw_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.text.tables import markdown_table, points, with_interval

CUT_OFF = "cut-off beats"
WAVES = ("P", "QRS", "ST", "T", CUT_OFF)
ST_SECONDS = 0.08  # after the end of the QRS
DISTURBED = 100  # rows whose visible leads are disturbed, at most


class BandCoverage:
    """Collects the coverage of rows, of many rows `limit` drawn by record."""

    def __init__(self, rows: Sequence[Row], limit: int):
        self.chosen = draw_rows(rows, limit)
        self.patients: list[str] = []
        self.labels: list[dict[str, list[str]]] = []
        self.task = ""  # the first of the data set
        self.values: dict[str, dict[str, list[float]]] = {}  # method -> part -> a value per row
        # disturbance -> method -> (inside, width, width of the same row undisturbed) per row
        self.disturbed: dict[str, dict[str, list[tuple[float, float, float]]]] = {}

    def measure(self, sources: Sequence[Source], rows: Sequence[Row]) -> None:
        """Derives those of the rows that were drawn, by every method that has bands."""
        able = [
            Source(some, source.entries)
            for source in sources
            if (some := [m for m in source.methods if isinstance(m, LeadMethodWithBars)])
        ]
        rows = [row for row in rows if able and id(row) in self.chosen]
        widths: dict[int, dict[str, float]] = {}  # of rows, by method
        for row, window, found in derive_bands(able, rows):
            truth = to_mv(window["signal"], window)
            hidden = mask_leads(row.hidden & ~window["visible"])  # without computed limb leads
            if not hidden.any():
                continue
            self.task = self.task or next(iter(row.entry.shards.metadata.get("tasks", ())), "")
            self.patients.append(row.entry.patient_id)
            self.labels.append(json.loads(window["labels"]))
            waves = wave_masks(window, truth, row.entry.shards.preprocess.rate)
            for name, (leads, deviation) in found.items():
                parts = self.values.setdefault(name, {})
                values = _coverage(truth, leads, deviation, hidden, waves)
                widths.setdefault(id(row), {})[name] = values["width"]
                for part, value in values.items():
                    parts.setdefault(part, []).append(value)
        # some of them once more, with visible leads that are not what they are called
        some = [row for row in rows if id(row) in widths][:DISTURBED]
        for kind, change in DISTURBANCES.items():
            for row, window, found in derive_bands(able, some, change=change):
                truth = to_mv(window["signal"], window)
                hidden = mask_leads(row.hidden & ~window["visible"])
                for name, pair in found.items():
                    values = _coverage(truth, *pair, hidden, {})
                    self.disturbed.setdefault(kind, {}).setdefault(name, []).append(
                        (values["inside"], values["width"], widths[id(row)][name])
                    )

    def summary(self, resamples: int) -> dict[str, dict]:
        """{method: coverage and width over all, by lead, by wave, by class of the first task}."""
        if not self.values:
            return {}
        bootstrap = PatientBootstrap(self.patients, resamples)
        given = [labels.get(self.task, ()) for labels in self.labels]
        result = {}
        for name, columns in self.values.items():
            values = {part: np.array(column) for part, column in columns.items()}
            found = {
                "level": LEVEL,
                "rows": len(self.patients),
                "overall": bootstrap.summary(values["inside"]),
                "width": bootstrap.summary(values["width"]),
                "task": self.task,
            }
            for part, keys in (("per_wave", WAVES), ("per_lead", LEADS)):
                there = [key for key in keys if np.isfinite(values[key]).any()]
                found[part] = {key: bootstrap.summary(values[key]) for key in there}
            found["per_class"] = {}
            for label in sorted({label for some in given for label in some}):
                having = np.array([label in some for some in given])
                found["per_class"][label] = {"rows": int(having.sum())} | {
                    part: bootstrap.summary(np.where(having, values[part], np.nan))
                    for part in ("inside", "width")
                }
            found["unlike"] = self._unlike(name, values)
            result[name] = found
        return result

    def _unlike(self, name: str, values: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
        """Rows, coverage and width of records unlike most, and how many times as wide they are as
        all records or, if their leads were disturbed, as themselves undisturbed."""
        found = {}
        for kind, labels in CLASSES.items():
            having = np.array(
                [any(set(labels) & set(some) for some in all_of.values()) for all_of in self.labels]
            )
            if having.any():
                mean = {part: float(values[part][having].mean()) for part in ("inside", "width")}
                times = mean["width"] / float(values["width"].mean())
                found[kind] = {"rows": int(having.sum())} | mean | {"times": times}
        for kind, methods in self.disturbed.items():
            inside, width, before = np.array(methods[name]).mean(0).tolist()
            if width == before:  # no visible lead is one that this changes
                continue
            found[kind] = {"rows": len(methods[name]), "inside": inside, "width": width}
            found[kind]["times"] = width / before
        return found


def wave_masks(window: dict, truth: np.ndarray, rate: float) -> dict[str, np.ndarray]:
    """Which samples [T] of the true leads [12,T] belong to each of WAVES."""
    waves = delineate(truth, rate, mask_leads(window["lead_mask"]), r_peaks(window))
    after = waves.qrs_offset + ST_SECONDS * rate
    bounds = {
        "P": (waves.p_onset, waves.p_offset),
        "QRS": (waves.qrs_onset, waves.qrs_offset),
        "ST": (waves.qrs_offset, after),
        "T": (after, waves.t_offset),
    }
    at = np.arange(truth.shape[1])[:, None]
    masks = {name: ((at >= a) & (at < b)).any(1) for name, (a, b) in bounds.items()}
    partial = ~np.asarray(window["complete"], bool)
    start, length = (np.asarray(window[name])[partial] for name in ("start", "length"))
    return masks | {CUT_OFF: ((at >= start) & (at < start + length)).any(1)}


def _coverage(
    truth: np.ndarray,
    leads: np.ndarray,
    deviation: np.ndarray,
    hidden: np.ndarray,
    waves: dict[str, np.ndarray],
) -> dict[str, float]:
    """The values of one row from signals [12,T] in mV; NaN for what it does not have."""
    inside = np.abs(leads - truth) <= REACH * deviation
    width = 2 * REACH * deviation.mean(1) / np.maximum(truth.std(1), 1e-9)
    values = {"inside": inside[hidden].mean(), "width": width[hidden].mean()}
    for lead, known, row in zip(LEADS, hidden, inside, strict=True):
        values[lead] = row.mean() if known else np.nan
    for wave, mask in waves.items():
        values[wave] = inside[hidden][:, mask].mean() if mask.any() else np.nan
    return {part: float(value) for part, value in values.items()}


def coverage_tables(methods: dict[str, dict]) -> list[str]:
    """Of the methods that have bands: over all and by wave, by lead, and by class with widths."""
    banded = {name: found["bands"] for name, found in methods.items() if "bands" in found}
    if not banded:
        return []
    some = next(iter(banded.values()))
    title = (
        f"Share of true samples inside the {100 * LEVEL:.0f}% band, in percent, and mean width of"
        f" the band in standard deviations of the lead, {some['rows']} rows:"
    )
    rows = [
        [
            name,
            _percent(found["overall"]),
            with_interval(found["width"], digits=2),
            *(_percent(found["per_wave"].get(wave)) for wave in WAVES),
        ]
        for name, found in banded.items()
    ]
    lines = [title, "", *markdown_table(["method", "inside", "width", *WAVES], rows)]
    leads = [lead for lead in LEADS if lead in some["per_lead"]]
    rows = [[n, *(_percent(f["per_lead"].get(lead)) for lead in leads)] for n, f in banded.items()]
    lines += ["By hidden lead:", "", *markdown_table(["method", *leads], rows)]
    if some["per_class"]:
        heads = [f"{label} ({found['rows']})" for label, found in some["per_class"].items()]
        rows = [
            [
                name,
                *(
                    f"{_percent(of['inside'])}, width {of['width']['mean']:.2f}"
                    for of in found["per_class"].values()
                ),
            ]
            for name, found in banded.items()
        ]
        lines += [f"By class of the task {some['task']} (rows), a row in each of its classes:", ""]
        lines += markdown_table(["method", *heads], rows)
    if some["unlike"]:
        rows = [
            [
                name,
                kind,
                str(of["rows"]),
                points(of["inside"]),
                f"{of['width']:.2f}",
                f"{of['times']:.2f}",
            ]
            for name, found in banded.items()
            for kind, of in found["unlike"].items()
        ]
        heads = ["method", "records", "rows", "inside", "width", "times as wide"]
        lines += [
            "Records unlike most (times as wide as all records or, where visible leads were"
            " disturbed, as the same records before):",
            "",
            *markdown_table(heads, rows),
        ]
    return lines


def _percent(found: dict[str, float] | None) -> str:
    return "-" if found is None else points(found["mean"], found["low"], found["high"])
