"""Figures saved as PNG: ECG paper, VCG loops, training curves, probe results, embedding maps.

Drawn with matplotlib's Figure objects only (no pyplot, no global state), in the Okabe-Ito colours,
which stay apart for colour-blind readers. Every function writes `path`, with a caption line under
the figure, and returns the path.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
INK, GREY, PALE = "#222222", "#7F7F7F", "#D9D9D9"
PAPER, THIN_GRID, BOLD_GRID = "#FFF9F8", "#F8DAD6", "#EDACA5"
COLUMNS = (("I", "II", "III"), ("aVR", "aVL", "aVF"), ("V1", "V2", "V3"), ("V4", "V5", "V6"))
MM = 1 / 25.4  # inches


def _save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=dpi, format="png", facecolor="white")
    return path


def _frame(
    width: float, height: float, title: str, caption: str, top: float = 0.42, bottom: float = 0.34
) -> Figure:
    """A figure in inches with its title and caption in place; the space between is for the axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0.01, bottom / height, 0.98, 1 - (top + bottom) / height))
    figure.text(
        0.02,
        1 - 0.14 / height,
        title,
        ha="left",
        va="top",
        fontsize=12,
        fontweight="bold",
        color=INK,
    )
    figure.text(0.02, 0.11 / height, caption, ha="left", va="bottom", fontsize=8, color=GREY)
    return figure


def _clean(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(True, color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)


def draw_ecg(
    path: str | Path,
    signal_mv: np.ndarray,
    rate: float,
    title: str = "",
    *,
    r_peaks: Sequence[int] | None = None,
    overlays: dict[str, np.ndarray] | None = None,
    present: np.ndarray | None = None,
    hidden: np.ndarray | None = None,
    layout: str = "3x4",
    caption: str = "",
) -> Path:
    """A 12-lead ECG [12,T] in mV, at true scale on millimetre paper: 25 mm/s, 10 mm/mV (5 if it
    would not fit).

    layout '3x4': 2.5 s of each lead in the usual four columns and a rhythm strip of lead II (of the
    first lead there is, if II is missing); 'rows': every lead for 10 s. The first 10 s are drawn.
    `overlays` {name: [12,T]} lie over the signal, `r_peaks` (samples) are triangles, a lead that is
    not `present` (or not finite) and has no overlay is named as missing. The signal of leads that
    are `hidden` [12] is grey.
    """
    signal = np.asarray(signal_mv, np.float64)
    if signal.ndim != 2 or signal.shape[0] != len(LEADS) or signal.shape[1] < 2:
        raise InputError(f"an ECG figure needs a signal [12, samples] in mV, got {signal.shape}")
    if layout not in ("3x4", "rows"):
        raise InputError(f"unknown ECG layout '{layout}'; choose 3x4 or rows")
    overlays = {name: np.asarray(values, np.float64) for name, values in (overlays or {}).items()}
    for name, values in overlays.items():
        if values.shape != signal.shape:
            raise InputError(
                f"overlay '{name}' has shape {values.shape}, the signal {signal.shape}"
            )
    present = np.isfinite(signal).any(1) & (True if present is None else np.asarray(present, bool))
    derived = np.any(
        [np.zeros(len(LEADS), bool), *(np.isfinite(values).any(1) for values in overlays.values())],
        axis=0,
    )
    ink = [GREY if hidden is not None and hidden[i] else INK for i in range(len(LEADS))]
    seconds = min(10.0, signal.shape[1] / rate)
    column = seconds / 4 if layout == "3x4" else seconds
    rhythm = "II" if present[1] or not present.any() else LEADS[int(np.argmax(present))]
    if layout == "3x4":
        strips = [
            (name, r, c * column) for c, names in enumerate(COLUMNS) for r, name in enumerate(names)
        ]
        strips = [(name, row, start, start, start + column) for name, row, start in strips] + [
            (rhythm, 3, 0, 0, seconds)
        ]
        rows, pitch = 4, 30.0
    else:
        strips = [(name, row, 0, 0, seconds) for row, name in enumerate(LEADS)]
        rows, pitch = 12, 20.0
    shown = [signal[present], *(values[np.isfinite(values).any(1)] for values in overlays.values())]
    reach = max((np.nanmax(np.abs(s)) for s in shown if s.size), default=0.0)
    gain = 10.0 if reach * 10 <= 1.1 * pitch else 5.0

    left, right = 12.0, 25 * seconds + 3  # millimetres; the calibration pulse stands left of zero
    width, height = left + right, rows * pitch + 10  # baselines lie on bold lines
    head, foot, side = 13.0, 9.0, 6.0
    figure = Figure(figsize=((width + 2 * side) * MM, (height + head + foot) * MM))
    full_width, full_height = width + 2 * side, height + head + foot
    axes = figure.add_axes(
        (side / full_width, foot / full_height, width / full_width, height / full_height)
    )
    axes.set(xlim=(-left, right), ylim=(0, height), xticks=[], yticks=[], facecolor=PAPER)
    for step, colour, line in ((1, THIN_GRID, 0.35), (5, BOLD_GRID, 0.6)):
        axes.vlines(
            np.arange(-(left // step) * step, right, step),
            0,
            height,
            colour,
            linewidth=line,
            zorder=0,
        )
        axes.hlines(
            np.arange(0, height + step, step), -left, right, colour, linewidth=line, zorder=0
        )
    axes.set(xlim=(-left, right), ylim=(0, height))
    axes.spines[:].set(color=BOLD_GRID, linewidth=0.8)

    colours = [VERMILION, BLUE, GREEN, PURPLE]
    for name, row, x0, begin, end in strips:
        base, lead = height - 5 - pitch * (row + 0.5), LEADS.index(name)
        axes.text(
            25 * x0 + 1,
            base + min(11, 0.42 * pitch),
            name,
            fontsize=10,
            fontweight="bold",
            color=INK,
            va="center",
        )
        if x0 == 0:
            pulse = np.array([[-9, 0], [-7.5, 0], [-7.5, gain], [-2.5, gain], [-2.5, 0], [-1, 0]])
            axes.plot(pulse[:, 0], base + pulse[:, 1], color=INK, linewidth=0.9)
        elif layout == "3x4":
            axes.vlines(25 * x0, base - 4, base + 4, INK, linewidth=0.9)
        if not present[lead] and not derived[lead]:
            axes.plot(
                [25 * begin + 2, 25 * end - 2],
                [base, base],
                color=GREY,
                linewidth=0.8,
                linestyle=(0, (2, 3)),
            )
            axes.text(
                25 * (begin + end) / 2,
                base + 2.5,
                "not recorded",
                color=GREY,
                fontsize=8,
                ha="center",
            )
            continue
        span = slice(round(begin * rate), min(round(end * rate) + 1, signal.shape[1]))
        x = 25 * np.arange(span.start, span.stop) / rate
        if present[lead]:
            trace = base + gain * signal[lead, span]
            axes.plot(x, trace, color=ink[lead], linewidth=0.9, solid_joinstyle="round", zorder=3)
        for colour, values in zip(colours, overlays.values(), strict=False):
            axes.plot(
                x,
                base + gain * values[lead, span],
                color=colour,
                linewidth=1.0,
                alpha=0.9,
                zorder=4,
            )
        bottom_row = row == rows - 1
        if r_peaks is not None and bottom_row:
            peaks = np.asarray(r_peaks)[np.asarray(r_peaks) < seconds * rate]
            axes.plot(
                25 * peaks / rate,
                np.full(len(peaks), 1.6),
                "^",
                color=BLUE,
                markersize=4,
                clip_on=False,
                zorder=5,
            )
    up = 1 - 4 / full_height
    figure.text(side / full_width, up, title, fontsize=12, fontweight="bold", color=INK, va="top")
    handles = [("signal", INK), *zip(overlays, colours, strict=False)] if overlays else []
    if hidden is not None and np.any(present & hidden):
        handles.insert(1, ("hidden", GREY))
    for i, (name, colour) in enumerate(reversed(handles)):
        x = 1 - (side + 42 * i) / full_width
        figure.text(
            x, up, f"— {name}", fontsize=10, fontweight="bold", color=colour, ha="right", va="top"
        )
    parts = [
        f"25 mm/s, {gain:g} mm/mV",
        f"{rate:g} Hz",
        *(["triangles: R peaks"] if r_peaks is not None else []),
    ]
    if signal.shape[1] / rate > 10.01:
        parts.append(f"first 10 s of {signal.shape[1] / rate:.0f} s")
    line = "; ".join([*parts, *([caption] if caption else [])])
    figure.text(side / full_width, 2.6 / full_height, line, fontsize=8.5, color=GREY, va="bottom")
    return _save(figure, path)


def draw_vcg_loops(
    path: str | Path,
    vcg: np.ndarray,
    rate: float,
    title: str = "",
    *,
    z_front: bool = True,
    unit: str = "mV",
    caption: str = "",
) -> Path:
    """Vectorcardiogram [3,T] (x to the patient's left, y to the feet, z) as loops in three planes,
    coloured by time.

    `z_front` says that +z points to the front (our lead matrix); False for Frank's z, which points
    to the back.
    """
    vcg = np.asarray(vcg, np.float64)
    if vcg.ndim != 2 or vcg.shape[0] != 3 or vcg.shape[1] < 2 or not np.isfinite(vcg).all():
        raise InputError(f"VCG loops need finite numbers [3, samples], got {vcg.shape}")
    x, y, front = vcg[0], vcg[1], vcg[2] if z_front else -vcg[2]
    note = "Plane views: from the front, from above, from the patient's left. Dots: samples, black: the first."
    figure = _frame(11.2, 4.2, title, f"{note} {caption}".strip())
    reach = 1.08 * max(np.abs(vcg).max(), 1e-9)
    time = 1000 * np.arange(vcg.shape[1]) / rate
    panels = (
        ("Frontal", x, -y, ("right", "left"), ("feet", "head")),
        ("Horizontal", x, -front, ("right", "left"), ("front", "back")),
        ("Sagittal", -front, -y, ("front", "back"), ("feet", "head")),
    )
    all_axes = figure.subplots(1, 3)
    for axes, (name, across, up, sides, ends) in zip(all_axes, panels, strict=True):
        points = np.stack([across, up], 1)[:, None]
        lines = LineCollection(
            np.concatenate([points[:-1], points[1:]], 1), cmap="viridis", linewidth=1.6
        )
        lines.set_array(time[:-1])
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.axvline(0, color=GREY, linewidth=0.6)
        axes.add_collection(lines)
        axes.scatter(across, up, c=time, cmap="viridis", s=5, zorder=3)
        axes.plot(across[0], up[0], "o", color=INK, markersize=4, zorder=4)
        _clean(axes)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_xlabel(f"{sides[0]}  ←  {unit}  →  {sides[1]}", fontsize=9)
        axes.set_ylabel(f"{ends[0]}  ←  {unit}  →  {ends[1]}", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))
    bar = figure.colorbar(lines, ax=all_axes, shrink=0.8, pad=0.01)
    bar.set_label("time (ms)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return _save(figure, path)
