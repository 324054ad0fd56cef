"""Figures of lvcg_jax.studies.robustness, made from its numbers alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.ecg.drawing import BLUE, GREY, INK, PALETTE, VERMILION, _clean, _frame, _save


def draw_perturbation(path: str | Path, result: dict) -> Path:
    """Change of AUROC (with all labels) and of R2 with the size of the perturbation, with 95%
    intervals."""
    names = list(result["perturbations"])
    kinds = {kind: [n for n in names if n.startswith(kind)] for kind in ("noise", "rotation")}
    note = f"Mean of {result['seeds']} draws, bars: 95% bootstrap over patients. Lines are set a little apart."
    figure = _frame(9.6, 6.0, "Moved electrodes", note)
    grid = figure.subplots(2, 2, sharey="row")
    fraction = max(result["fractions"])
    for column, (kind, some) in enumerate(kinds.items()):
        top, bottom = grid[:, column]
        for i, probe in enumerate(result["probe"]):
            gaps = {d["control"]: d for d in probe["differences"] if d["fraction"] == fraction}
            rows = [
                [-100 * gaps[n][k] for k in ("difference", "high", "low")]
                if n in gaps
                else [np.nan] * 3
                for n in some
            ]
            _lines(
                top,
                np.array(rows),
                0.06 * (i - len(result["probe"]) / 2),
                PALETTE[i % len(PALETTE)],
                probe["task"],
            )
        for i, (way, label) in enumerate(
            (("lift_and_project", "lift and project"), ("lift_only", "lift only"))
        ):
            found = [result["perturbations"][n]["derived"][way]["r2"] for n in some]
            rows = [[f[k] for k in ("mean", "low", "high")] for f in found]
            _lines(bottom, np.array(rows), 0.06 * (i - 0.5), (BLUE, VERMILION)[i], label)
        for axes in (top, bottom):
            _clean(axes)
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.set_xticks(range(len(some)), [n.split()[1] for n in some], fontsize=8)
        bottom.set_xlabel(
            "noise on each entry of A" if kind == "noise" else "rotation (degrees)", fontsize=9
        )
    grid[0, 0].set_ylabel("change of AUROC (x 100)", fontsize=9)
    grid[1, 0].set_ylabel("change of R2, derived leads", fontsize=9)
    for axes in grid[:, 1]:
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    return _save(figure, path)


def _lines(axes, rows: np.ndarray, shift: float, colour: str, label: str) -> None:
    """Values with intervals, rows [k,3] of value, low, high, at 0, 1, 2, ..."""
    x = np.arange(len(rows)) + shift
    axes.vlines(x, rows[:, 1], rows[:, 2], colour, linewidth=1.6)
    axes.plot(x, rows[:, 0], "o-", color=colour, markersize=4, linewidth=1.2, label=label)


def draw_sparsity(path: str | Path, result: dict) -> Path:
    """A curve for each task over the number of leads, devices as marks, and one for the hidden
    leads."""
    sets = result["sets"]
    nested = [name for name in sets if name.split()[0].isdigit()]
    devices = [name for name in sets if name not in nested]
    tasks = [probe["task"] for probe in result["frozen"]]
    columns = min(3, len(tasks) + 1)
    rows = -(-(len(tasks) + 1) // columns)
    note = f"Nested sets: the first leads of {', '.join(result['order'])}. Bars: 95% bootstrap over patients."
    figure = _frame(3.6 * columns + 0.4, 2.9 * rows + 0.9, "Fewer leads", note)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, frozen, retrained in zip(grid, result["frozen"], result["retrained"], strict=False):
        for probe, colour, label in (
            (frozen, BLUE, "probe of 12 leads"),
            (retrained, VERMILION, "retrained"),
        ):
            found = {
                c["model"]: [100 * c[k] for k in ("macro_auroc", "low", "high")]
                for c in probe["cells"]
            }
            _curve(axes, found, sets, nested, devices, colour, label)
        axes.set_title(frozen["task"], fontsize=10, color=INK)
        axes.set_ylabel("macro AUROC (x 100)", fontsize=9)
    last = grid[len(tasks)]
    for method, colour in (("lvcg", BLUE), ("regression", GREY)):
        found = {
            n: [s["r2"][method][k] for k in ("mean", "low", "high")]
            for n, s in sets.items()
            if "r2" in s
        }
        _curve(last, found, sets, nested, devices, colour, method)
    last.set_title("hidden leads", fontsize=10, color=INK)
    last.set_ylabel("R2", fontsize=9)
    for axes in grid[: len(tasks) + 1]:
        _clean(axes)
        axes.set_xlabel("visible leads", fontsize=9)
        axes.set_xticks([1, 2, 3, 4, 6, 8, 10, 12])
        axes.legend(frameon=False, fontsize=7)
    for axes in grid[len(tasks) + 1 :]:
        axes.remove()
    return _save(figure, path)


def _curve(
    axes,
    found: dict,
    sets: dict,
    nested: Sequence[str],
    devices: Sequence[str],
    colour: str,
    label: str,
) -> None:
    """Nested sets as a line over their number of leads, devices as open marks with their names."""
    there = [name for name in reversed(nested) if name in found]
    rows, x = (
        np.array([found[name] for name in there]),
        [len(sets[name]["leads"]) for name in there],
    )
    axes.vlines(x, rows[:, 1], rows[:, 2], colour, linewidth=1.2)
    axes.plot(x, rows[:, 0], "o-", color=colour, markersize=3.5, linewidth=1.2, label=label)
    for name in (name for name in devices if name in found):
        place = (len(sets[name]["leads"]), found[name][0])
        axes.plot(
            *place, "D", markerfacecolor="white", markeredgecolor=colour, markersize=5, zorder=4
        )
        axes.annotate(name, place, (5, -7), textcoords="offset points", fontsize=6, color=colour)
