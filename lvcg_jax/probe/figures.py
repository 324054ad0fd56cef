"""Pictures of training curves, probe scores and embeddings, and the charts in them."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.svg import Drawing, write_picture
from lvcg_jax.runs.metrics_log import curves_of
from lvcg_jax.stats.scaling import fit_pca
from lvcg_jax.text.charts import Dot, Series, dot_plot, line_chart, scatter
from lvcg_jax.text.tables import cells_of, fractions_of, percent

# name in metrics.jsonl -> title and what is on the y axis; others have their own names there
CURVES = {
    "loss": ("total loss", "loss"),
    "ecg": ("term: hidden leads", "loss"),
    "vcg": ("term: heart vector", "loss"),
    "temp": ("term: dynamics", "loss"),
    "rhythm": ("term: rhythm", "loss"),
    "ecg_r2": ("R2 of hidden leads", "R2 (no unit)"),
    "vcg_r2": ("R2 of the heart vector", "R2 (no unit)"),
    "learning_rate": ("learning rate", "learning rate (no unit)"),
    "records_per_second": ("throughput", "records / s"),
    "memory_gib": ("memory", "GiB, the most so far"),
    "gradient_norm": ("norm of the gradient", "norm, before clipping"),
    "ecg_worst5": ("hidden leads: share of the worst 5%", "share of the term"),
    "vcg_worst5": ("heart vector: share of the worst 5%", "share of the term"),
}
LOSS_TERMS = ("ecg", "vcg", "temp", "rhythm", "ecg_r2", "vcg_r2")
LEAST_R2 = -1.0  # the first steps are far below, and would hide the rest
LOG_FROM = 8.0  # a curve that spans so many times its smallest value has a logarithmic axis
CHANCE = 50.0  # AUROC x 100 of a guess
COLUMNS = 2  # charts side by side in a picture: as wide as a page of documentation


def training_charts(curves: dict, terms: Iterable[str], loss: str = "loss") -> list[Drawing]:
    """A chart for each of these curves of metrics_log.curves_of; `loss` is the unit of the loss
    terms."""
    charts = []
    for name in terms:
        title, y_label = CURVES.get(name, (name, name))
        y_label = loss if y_label == "loss" else y_label
        least = LEAST_R2 if name.endswith("r2") else -math.inf
        charts += curve_chart(curves[name], title, y_label, least)
    return charts


def curve_chart(
    curve: dict[str, list[tuple[float, float]]], title: str, y_label: str, least: float
) -> list[Drawing]:
    """One number over the steps, from `least` on; no chart if there is no such value."""
    series, every = [], []
    for split, colour in (("train", 0), ("validation", 1)):
        points = np.array(sorted(curve.get(split, [])), np.float64).reshape(-1, 2)
        points = points[np.isfinite(points).all(1) & (points[:, 1] >= least)]
        if not len(points):
            continue
        every.append(points[:, 1])
        x, y = points.T
        if split == "train" and len(points) > 20:
            half = max(2, len(points) // 40)
            smooth = [float(np.median(y[max(0, i - half) : i + half + 1])) for i in range(len(y))]
            series += [Series(x, y, "", colour, faint=True), Series(x, smooth, "training", colour)]
        else:
            name = "training" if split == "train" else "validation"
            series.append(Series(x, y, name, colour, marks=split != "train"))
    if not series:
        return []
    values = np.concatenate(every)
    log_y = bool(values.min() > 0 and values.max() / values.min() > LOG_FROM)
    y_label += ", log" if log_y else ""
    return [line_chart(series, title, "step", y_label, log_y=log_y)]


def draw_training(
    path: str | Path,
    records: Sequence[dict],
    title: str = "Training",
    *,
    terms: Sequence[str] | None = None,
    caption: str = "",
) -> Path:
    """Curves from the records of metrics.jsonl; `terms` selects and orders the charts (default:
    the losses)."""
    curves = curves_of(records)
    if terms is None:
        terms = [name for name in curves if "loss" in name or name in LOSS_TERMS] or list(curves)
    absent = [name for name in terms if name not in curves]
    if not terms or absent:
        raise InputError(
            f"no training record holds {', '.join(absent) or 'a loss'};"
            f" found: {', '.join(curves) or 'nothing'}"
        )
    note = "Thin: each logged step; thick: running median; marks: validation."
    charts = training_charts(curves, terms)
    return write_picture(path, title, charts, f"{note} {caption}".strip(), columns=COLUMNS)


def probe_plots(results: Sequence[dict]) -> list[Drawing]:
    """Dots with 95% intervals by share of the labels, a plot for each task: the first model in
    colour, the others in grey."""
    plots = []
    for result in results:
        groups = []
        for fraction in fractions_of(results):
            dots = [_probe_dot(result, model, fraction) for model in result["models"]]
            groups.append((f"{percent(fraction)} of the labels", [dot for dot in dots if dot]))
        groups = [group for group in groups if group[1]]
        if groups:
            title = result.get("task", "")
            plots.append(dot_plot(groups, title, "test macro AUROC (x 100)", guide=CHANCE))
    return plots


def _probe_dot(result: dict, model: str, fraction: float) -> Dot | None:
    cell = cells_of(result, model).get(fraction)
    if cell is None or cell.get("macro_auroc") is None or not math.isfinite(cell["macro_auroc"]):
        return None
    value, low, high = (
        None if cell.get(k) is None else 100 * cell[k] for k in ("macro_auroc", "low", "high")
    )
    ticks = [100 * v for v in cell.get("per_seed", ())]
    spread = ticks if ticks and max(ticks) > min(ticks) else []
    return Dot(model, value, low, high, 0 if model == result["models"][0] else -1, spread)


def draw_probe(
    path: str | Path,
    results: Sequence[dict] | dict,
    title: str = "Linear probe",
    *,
    caption: str = "",
) -> Path:
    """The plots of probe results, one dict for each task."""
    plots = probe_plots([results] if isinstance(results, dict) else results)
    if not plots:
        raise InputError("these probe results hold no number to draw")
    note = (
        "Mean of the label subsets (small strokes: each of them); bars: 95% bootstrap over"
        " patients; blue: the first features, grey: the others; dotted: chance."
    )
    return write_picture(path, title, plots, f"{note} {caption}".strip(), columns=COLUMNS)


def draw_embedding(
    path: str | Path,
    embedding: np.ndarray,
    labels: Sequence[str],
    title: str = "Embedding",
    *,
    caption: str = "",
) -> Path:
    """First two principal components of standardised embeddings [m,d], coloured by label."""
    embedding = np.asarray(embedding, np.float64)
    if embedding.ndim != 2 or len(embedding) != len(labels) or len(labels) < 3:
        raise InputError(
            "an embedding map needs [rows, features] and a label per row,"
            f" got {embedding.shape}, {len(labels)}"
        )
    spread = embedding.std(0)
    scaled = embedding / np.where(spread > 1e-9, spread, 1.0)
    pca = fit_pca(scaled, 2)
    points = pca.transform(scaled)
    if points.shape[1] < 2:
        raise InputError(
            "these embeddings vary along less than two directions; there is no map to draw"
        )
    share = 100 * pca.explained_variance_ratio_
    names = [f"principal component {k + 1} ({share[k]:.0f}% of variance)" for k in range(2)]
    drawing = scatter(points, labels, "by label (records)", *names)
    note = f"PCA of {len(labels)} records, each feature scaled to unit variance."
    return write_picture(path, title, [drawing], f"{note} {caption}".strip())
