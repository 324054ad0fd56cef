"""Pictures of training curves, probe scores and embeddings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from data_prep.base.errors import InputError
from data_prep.ecg.drawing import BLUE, GREY, INK, PALE, PALETTE, VERMILION, _clean, _frame, _save
from lvcg_jax.runs.metrics_log import curves_of
from lvcg_jax.stats.scaling import fit_pca

LOSS_TERMS = ("ecg", "vcg", "temp", "rhythm", "ecg_r2", "vcg_r2")


def draw_training(
    path: str | Path,
    records: Sequence[dict],
    title: str = "Training",
    *,
    terms: Sequence[str] | None = None,
    caption: str = "",
) -> Path:
    """Loss curves from metrics.jsonl: one panel a term, training as a line, validation as dots.

    `terms` selects and orders panels; how a record's numbers are named is said in
    metrics_log.curves_of.
    """
    curves = curves_of(records)
    if terms is None:
        terms = [name for name in curves if "loss" in name or name in LOSS_TERMS] or list(curves)
    absent = [name for name in terms if name not in curves]
    if not terms or absent:
        raise InputError(
            f"no training record holds {', '.join(absent) or 'a loss'}; found: {', '.join(curves) or 'nothing'}"
        )
    columns = 2 if len(terms) == 4 else min(3, len(terms))
    rows = -(-len(terms) // columns)
    note = "Thin: each logged step; thick: running median; dots: validation."
    figure = _frame(3.7 * columns + 0.4, 2.6 * rows + 0.8, title, f"{note} {caption}".strip())
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, term in zip(grid, terms, strict=False):
        every = []
        for split, colour in (("train", BLUE), ("validation", VERMILION)):
            points = np.array(sorted(curves[term].get(split, [])), np.float64).reshape(-1, 2)
            points = points[np.isfinite(points).all(1)]
            if not len(points):
                continue
            every.append(points[:, 1])
            if split == "train":
                thin = len(points) > 20
                axes.plot(
                    *points.T,
                    color=colour,
                    linewidth=0.7 if thin else 1.6,
                    alpha=0.35 if thin else 1.0,
                )
                if thin:
                    half = max(2, len(points) // 40)
                    smooth = [
                        np.median(points[max(0, i - half) : i + half + 1, 1])
                        for i in range(len(points))
                    ]
                    axes.plot(points[:, 0], smooth, color=colour, linewidth=1.8, label=split)
            else:
                axes.plot(*points.T, "o-", color=colour, markersize=3.5, linewidth=1.0, label=split)
        _clean(axes)
        values = np.concatenate(every) if every else np.ones(1)
        if values.min() > 0 and values.max() / values.min() > 20:
            axes.set_yscale("log")
        axes.set_title(term, fontsize=10, color=INK)
        axes.set_xlabel("step", fontsize=9)
        axes.set_ylabel("value (log scale)" if axes.get_yscale() == "log" else "value", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(frameon=False, fontsize=8)
    for axes in grid[len(terms) :]:
        axes.remove()
    return _save(figure, path)


def draw_probe(
    path: str | Path,
    results: Sequence[dict] | dict,
    title: str = "Linear probe",
    *,
    caption: str = "",
) -> Path:
    """Dots with 95% intervals of probe results (one dict per task): the first model in colour,
    controls in grey."""
    results = [results] if isinstance(results, dict) else list(results)
    fractions = sorted({cell["fraction"] for result in results for cell in result["cells"]})
    if not fractions:
        raise InputError("these probe results hold no number to draw")
    models = list(dict.fromkeys(model for result in results for model in result["models"]))
    columns = min(4, len(results))
    rows = -(-len(results) // columns)
    height = rows * (0.55 + len(fractions) * (0.24 * len(models) + 0.16)) + 1.15
    note = "Test macro AUROC, mean of label subsets (ticks); bars: 95% bootstrap over patients; grey: others."
    figure = _frame(max(7.0, 2.5 + 2.6 * columns), height, title, f"{note} {caption}".strip())
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    places = [(f, m) for f in fractions for m in models]
    y = {place: i + 0.7 * (i // len(models)) for i, place in enumerate(places)}
    markers = "osD^vP*X"
    for axes, result in zip(grid, results, strict=False):
        for cell in result["cells"]:
            position, first = (
                y[cell["fraction"], cell["model"]],
                cell["model"] == result["models"][0],
            )
            colour, marker = (
                (BLUE if first else GREY),
                markers[models.index(cell["model"]) % len(markers)],
            )
            value, low, high = (100 * cell[key] for key in ("macro_auroc", "low", "high"))
            axes.plot(
                [low, high],
                [position] * 2,
                color=colour,
                linewidth=2.2 if first else 1.4,
                solid_capstyle="butt",
            )
            axes.annotate(
                f"{value:.1f}",
                (high, position),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
            axes.plot(
                value,
                position,
                marker,
                color=colour,
                markersize=7 if first else 5.5,
                markeredgecolor="white",
            )
            seeds = [100 * v for v in cell["per_seed"]]
            if np.ptp(seeds) > 0:
                axes.plot(
                    seeds,
                    [position] * len(seeds),
                    "|",
                    color=colour,
                    markersize=7,
                    markeredgewidth=0.8,
                    zorder=1,
                )
        _clean(axes)
        axes.grid(False, axis="y")
        low, high = axes.get_xlim()
        axes.set_xlim(low - 0.03 * (high - low), high + 0.12 * (high - low))  # room for the numbers
        if low < 52:
            axes.axvline(50, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        axes.set_title(result.get("task", ""), fontsize=10, color=INK)
        axes.set_xlabel("macro AUROC (x 100)", fontsize=9)
        for i in range(1, len(fractions)):
            axes.axhline(y[fractions[i], models[0]] - 0.85, color=PALE, linewidth=0.8)
        axes.set_yticks(list(y.values()), [f"{m}  ({100 * f:g}%)" for f, m in places], fontsize=8)
        axes.set_ylim(max(y.values()) + 0.7, -0.7)
    for axes in grid[::columns]:
        axes.set_ylabel("features (share of training labels)", fontsize=9)
    for axes in grid[len(results) :]:
        axes.remove()
    return _save(figure, path)


def draw_embedding(
    path: str | Path,
    embedding: np.ndarray,
    labels: Sequence[str],
    title: str = "Embedding",
    *,
    caption: str = "",
) -> Path:
    """First two principal components of standardised embeddings [m,d], coloured by label (the seven
    commonest)."""
    embedding, labels = np.asarray(embedding, np.float64), np.asarray(labels).astype(str)
    if embedding.ndim != 2 or len(embedding) != len(labels) or len(labels) < 3:
        raise InputError(
            f"an embedding map needs [rows, features] and a label per row, got {embedding.shape}, {len(labels)}"
        )
    spread = embedding.std(0)
    scaled = embedding / np.where(spread > 1e-9, spread, 1.0)
    pca = fit_pca(scaled, 2)
    points = pca.transform(scaled)
    if points.shape[1] < 2:
        raise InputError(
            "these embeddings vary along less than two directions; there is no map to draw"
        )
    names, counts = np.unique(labels, return_counts=True)
    names = names[np.lexsort((names, -counts))]
    shown, rest = names[: len(PALETTE)], names[len(PALETTE) :]
    note = f"PCA of {len(labels)} records, each feature scaled to unit variance."
    figure = _frame(7.2, 5.4, title, f"{note} {caption}".strip())
    axes = figure.subplots()
    size = float(np.clip(6000 / len(labels), 5, 28))
    if len(rest):
        other = np.isin(labels, rest)
        axes.scatter(*points[other].T, s=size, color=PALE, linewidth=0)
    order = np.random.default_rng(0).permutation(len(labels))  # so that no label covers another
    colour_of = dict(zip(shown, PALETTE, strict=False))
    order = order[np.isin(labels[order], shown)]
    axes.scatter(
        *points[order].T,
        s=size,
        c=[colour_of[name] for name in labels[order]],
        alpha=0.75,
        linewidth=0,
    )
    for name in shown:
        axes.scatter(
            [], [], s=30, color=colour_of[name], label=f"{name} ({(labels == name).sum()})"
        )
    if len(rest):
        axes.scatter([], [], s=30, color=PALE, label=f"{len(rest)} others ({other.sum()})")
    _clean(axes)
    share = 100 * pca.explained_variance_ratio_
    axes.set_xlabel(f"principal component 1 ({share[0]:.0f}% of variance)", fontsize=9)
    axes.set_ylabel(f"principal component 2 ({share[1]:.0f}% of variance)", fontsize=9)
    legend = {"frameon": False, "fontsize": 9, "loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(title="label (records)", title_fontsize=9, **legend)
    return _save(figure, path)
