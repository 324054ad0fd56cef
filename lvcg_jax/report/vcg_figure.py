"""The three plane views of a vector loop as a PNG: the whole beat, and P and T enlarged, with their
numbers.

Frontal: seen from the front, the patient's left at the right of the picture, the feet at the
bottom. Transverse: seen from above, the patient's left at the right, the front at the bottom.
Sagittal: seen from the patient's left, the front at the left of the picture, the feet at the
bottom.
"""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from data_prep.ecg.drawing import BLUE, GREEN, GREY, INK, PALE, VERMILION

COLOURS = {"p": GREEN, "qrs": BLUE, "t": VERMILION}
NAMES = {"p": "P", "qrs": "QRS", "t": "ST-T"}
# name, what is drawn to the right and upwards (axis number and sign), and the words at the ends of
# the axes
PLANES = (
    ("Frontal", (0, 1), (1, -1), ("right", "left"), ("feet", "head")),
    ("Transverse", (0, 1), (2, 1), ("right", "left"), ("front", "back")),
    ("Sagittal", (2, 1), (1, -1), ("front", "back"), ("feet", "head")),
)
ARROW_MS = {"p": 40, "qrs": 12, "t": 60}  # about one arrow head each so often


def draw_loops(path: str | Path, facts: dict, lines: list[tuple[str, str]]) -> Path:
    """Draws the summary of lvcg_jax.report.vcg: two rows of planes, the numbers (name, value)
    beside them."""
    vcg, ms = np.array(facts["vcg_mv"]), np.array(facts["ms"])
    parts = {name: _part(ms, *bounds) for name, bounds in facts["windows_ms"].items()}
    small = np.concatenate([np.arange(len(ms))[parts[name]] for name in ("p", "t")])
    figure = Figure(figsize=(13.2, 8.0))
    figure.text(
        0.02,
        0.975,
        f"Vectorcardiogram of {facts['record']}",
        fontsize=13,
        fontweight="bold",
        color=INK,
        va="top",
    )
    beats = f"median of {facts['beats']} beats" if facts["beats"] > 1 else "one beat"
    source = f"{beats}, from {', '.join(facts['leads'])}, {facts['geometry']} geometry"
    figure.text(0.02, 0.943, source, fontsize=9, color=GREY, va="top")
    left, width, gap = 0.055, 0.192, 0.052
    for row, (shown, reach, bottom) in enumerate(
        ((("p", "qrs", "t"), _reach(vcg), 0.53), (("p", "t"), _reach(vcg[:, small]), 0.085))
    ):
        for column, plane in enumerate(PLANES):
            axes = figure.add_axes((left + column * (width + gap), bottom, width, 0.36))
            _draw_plane(axes, vcg, ms, {name: parts[name] for name in shown}, plane, reach)
            title = plane[0] if row == 0 else f"{plane[0]}, P and ST-T enlarged"
            axes.set_title(title, fontsize=10, color=INK)
    _write_numbers(figure, 0.775, facts, lines)
    path = Path(path)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=130, format="png", facecolor="white")
    return path


def _part(ms: np.ndarray, first: float, last: float) -> slice:
    """Samples of a wave, with one before and after it so that the parts of the loop meet."""
    inside = np.flatnonzero((ms >= first - 1e-6) & (ms <= last + 1e-6))
    return slice(max(0, inside[0] - 1), min(len(ms), inside[-1] + 2))


def _reach(vcg: np.ndarray) -> float:
    return 1.12 * max(float(np.abs(vcg).max()), 1e-3)


def _draw_plane(axes, vcg, ms, parts, plane, reach) -> None:
    _, (across, sign_across), (up, sign_up), sides, ends = plane
    points = np.stack([sign_across * vcg[across], sign_up * vcg[up]])  # [2,W]
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.axvline(0, color=GREY, linewidth=0.6)
    for name, part in parts.items():
        axes.plot(
            *points[:, part], color=COLOURS[name], linewidth=1.5, solid_joinstyle="round", zorder=3
        )
        _draw_arrows(axes, points[:, part], ms[part], name, reach)
        top = part.start + int(np.linalg.norm(vcg[:, part], axis=0).argmax())
        if name != "p":
            axes.plot(
                *zip((0, 0), points[:, top], strict=True),
                color=COLOURS[name],
                linewidth=0.9,
                linestyle=(0, (3, 2)),
            )
    axes.plot(0, 0, "o", color=INK, markersize=3.5, zorder=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(True, color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.set_xlabel(f"{sides[0]}  ←  mV  →  {sides[1]}", fontsize=8.5, labelpad=2)
    axes.set_ylabel(f"{ends[0]}  ←  mV  →  {ends[1]}", fontsize=8.5, labelpad=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    # numbers with Frank's sign
    for axis, sign in ((axes.xaxis, sign_across), (axes.yaxis, sign_up)):
        axis.set_major_formatter(lambda value, _, sign=sign: f"{round(value * sign, 6) + 0.0:g}")


def _draw_arrows(axes, points, ms, name, reach) -> None:
    """Arrow heads in the direction of time, where the loop moves far enough in this plane to show
    one."""
    step = max(2, round(ARROW_MS[name] / (ms[1] - ms[0])))
    for i in range(step // 2, points.shape[1] - 1, step):
        move = points[:, min(i + 2, points.shape[1] - 1)] - points[:, max(i - 1, 0)]
        if np.hypot(*move) < 0.012 * reach:
            continue
        begin = points[:, i]
        end = begin + 1e-3 * reach * move / np.hypot(*move)
        style = {"arrowstyle": "-|>", "color": COLOURS[name], "mutation_scale": 15, "linewidth": 0}
        axes.annotate("", xy=tuple(end), xytext=tuple(begin), arrowprops=style, zorder=4)


def _write_numbers(figure: Figure, x: float, facts: dict, lines: list[tuple[str, str]]) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=COLOURS[name],
            linewidth=2,
            label=f"{NAMES[name]}  {first:.0f} to {last:.0f} ms",
        )
        for name, (first, last) in facts["windows_ms"].items()
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(x - 0.006, 0.925),
        frameon=False,
        fontsize=9,
    )
    y = 0.80
    for name, value in lines:
        figure.text(x, y, name, fontsize=8.5, color=GREY, va="top")
        wrapped = textwrap.fill(value, 40)
        figure.text(x, y - 0.021, wrapped, fontsize=10, color=INK, va="top")
        y -= 0.048 + 0.021 * wrapped.count("\n")
    notes = " ".join(
        [*facts["notes"], "Time from R. Arrow heads: direction of time. Dashed: largest vector."]
    )
    figure.text(
        x,
        y - 0.005,
        textwrap.fill(notes, 46),
        fontsize=8,
        color=INK if facts["notes"] else GREY,
        va="top",
    )
