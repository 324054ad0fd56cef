"""Small charts: curves with intervals, dots with intervals in groups, and scattered points.

A chart is about 360 units wide and shown at about that many pixels, on a phone as on a desk, so its
letters keep their size. Marks differ in shape as well as in colour.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.ecg import svg
from data_prep.ecg.svg import Drawing, nice_ticks, say

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 42
LETTER = 11 * svg.LETTER  # width of a letter of 11 units, about
COLOURS = 7  # of the palette
MOST_POINTS = 300  # of a curve: more than a chart has pixels to show
# corners of the marks; the first is a circle
_MARKS = (
    (),
    ((-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)),
    ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
)


@dataclass(frozen=True)
class Series:
    """A curve: x and y [k], and intervals if there are any. Without a name it is not in the
    legend."""

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    colour: int = 0  # of the palette; -1: grey
    line: bool = True
    marks: bool = False
    faint: bool = False
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    words: Sequence[str] = ()  # a name beside each mark


@dataclass(frozen=True)
class Dot:
    """One row of a dot plot: a value with its interval; `ticks` are the single values behind it."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: int = 0
    ticks: Sequence[float] = ()


def colour_of(number: int) -> str:
    return "var(--grey)" if number < 0 else f"var(--s{number % COLOURS})"


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where these are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1,), (1, 3), (1, 2, 5)):
        ticks = [m * 10.0**p for p in powers for m in parts if low <= m * 10.0**p <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: max(1, len(ticks) // 5)]


def mark(
    shape: int, x: float, y: float, colour: str, size: float = 3.4, hollow: bool = False
) -> str:
    """A circle, square, diamond or triangle."""
    hollow_look = f'fill="var(--paper)" stroke="{colour}" stroke-width="1.4"'
    look = hollow_look if hollow else f'fill="{colour}"'
    corners = _MARKS[shape % len(_MARKS)]
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {look}/>'
    points = " ".join(f"{x + 1.15 * size * a:.1f},{y + 1.15 * size * b:.1f}" for a, b in corners)
    return f'<polygon points="{points}" {look}/>'


def thin_out(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most MOST_POINTS of a curve [k]: of every stretch its lowest and highest value, so that no
    spike is lost."""
    if len(x) <= MOST_POINTS:
        return x, y
    kept = []
    for part in np.array_split(np.arange(len(x)), MOST_POINTS // 2):
        kept += sorted({int(part[y[part].argmin()]), int(part[y[part].argmax()])})
    return x[kept], y[kept]


@dataclass(frozen=True)
class _Axes:
    """Where values are on the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: float
    height: float
    width: float = WIDTH - LEFT - RIGHT
    log_y: bool = False
    ticks: int = 5  # about so many; on the upright axis, a few if the chart is low

    def x(self, value):
        low, high = self.x_range
        return LEFT + self.width * (value - low) / (high - low)

    def y(self, value):
        low, high, value = (np.log10(v) if self.log_y else v for v in (*self.y_range, value))
        return self.top + self.height * (1 - (value - low) / (high - low))

    def frame(
        self, x_label: str, y_label: str, x_ticks: Sequence[tuple[float, str]] | None = None
    ) -> str:
        """Grid, ticks, axes and labels."""
        bottom, end, parts = self.top + self.height, LEFT + self.width, []
        upright = self.ticks if self.height > 300 else min(self.ticks, 5)
        y_ticks = log_ticks(*self.y_range) if self.log_y else nice_ticks(*self.y_range, upright)
        for tick in y_ticks:
            place = self.y(float(tick))
            parts.append(f'<path class="rule" d="M{LEFT} {place:.1f}H{end}"/>')
            parts.append(svg.text(say(float(tick)), LEFT - 6, place + 4, anchor="end"))
        if x_ticks is None:
            found = nice_ticks(*self.x_range, self.ticks)
            x_ticks = [(float(tick), say(float(tick))) for tick in found]
        for tick, word in x_ticks:
            if self.x_range[0] <= tick <= self.x_range[1]:
                place = self.x(tick)
                parts.append(f'<path class="axis" d="M{place:.1f} {bottom:.0f}v4"/>')
                parts.append(svg.text(word, place, bottom + 16, anchor="middle"))
        parts.append(f'<path class="axis" d="M{LEFT} {self.top:.0f}V{bottom:.0f}H{end}"/>')
        middle, upright = (LEFT + end) / 2, self.top + self.height / 2
        parts.append(svg.text(x_label, middle, bottom + 33, kind="quiet", anchor="middle"))
        parts.append(svg.text(y_label, 11, upright, kind="quiet", anchor="middle", turned=True))
        return "".join(parts)


def _legend(series: Sequence[Series], end: float) -> tuple[str, float]:
    """The names under the title, in as many lines as they need, and the height of those."""
    parts, x, y = [], float(LEFT), TOP + 8.0
    named = [s for s in series if s.name]
    if len(named) < 2:
        return "", 0.0
    for s in named:
        width = 24 + LETTER * len(s.name)
        if x > LEFT and x + width > end - RIGHT:
            x, y = float(LEFT), y + 15
        colour = colour_of(s.colour)
        if s.line:
            parts.append(svg.line(f"M{x:.0f} {y - 4:.0f}h14", colour, 2))
        if s.marks:
            parts.append(mark(s.colour, x + 7, y - 4, colour, 3, hollow=not s.line))
        parts.append(svg.text(s.name, x + 18, y))
        x += width + 8
    return "".join(parts), y - TOP + 4


def line_chart(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None,
    zero: bool = False,
    plot_height: float = 150,
    width: float = WIDTH,
) -> Drawing:
    """Curves with axis labels; `zero` draws the line y = 0 and keeps it in view, `x_ticks` are
    (place, word)."""
    # the ranges of both axes, with room at the ends
    x = np.concatenate([np.asarray(s.x, np.float64) for s in series])
    values = [
        np.asarray(v, np.float64) for s in series for v in (s.y, s.low, s.high) if v is not None
    ]
    y = np.concatenate([*values, *([np.zeros(1)] if zero else [])])
    y = y[np.isfinite(y)]
    low, high = float(y.min()), float(y.max())
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    y_range = (low / 1.15, high * 1.15) if log_y else (low - pad, high + pad)
    room = 0.0 if x_ticks is None else 0.35
    x_range = (float(x.min()) - room, float(x.max()) + room)
    if x_range[1] <= x_range[0]:
        x_range = (x_range[0] - 1, x_range[1] + 1)

    legend, more = _legend(series, width)
    inner, ticks = width - LEFT - RIGHT, 5 if width == WIDTH else 10
    axes = _Axes(x_range, y_range, TOP + more, plot_height, inner, log_y, ticks)
    parts = [svg.text(title, LEFT, 15, 13, bold=True, room=width - LEFT), legend]
    parts.append(axes.frame(x_label, y_label, x_ticks))
    if zero:
        path = f"M{LEFT} {axes.y(0):.1f}H{width - RIGHT}"
        parts.append(f'<path class="axis" d="{path}" stroke-dasharray="3 3"/>')
    parts += [_draw(s, axes) for s in series] + [_words(s, axes) for s in series]
    height, words = axes.top + plot_height + BOTTOM, f"{title}: {y_label} over {x_label}"
    return Drawing(width, height, "".join(parts), words)


def _draw(s: Series, axes: _Axes) -> str:
    colour = colour_of(s.colour)
    x, y = np.asarray(s.x, np.float64), np.asarray(s.y, np.float64)
    there = np.isfinite(x) & np.isfinite(y) & ((y > 0) if axes.log_y else True)
    parts = []
    if s.low is not None and s.high is not None:
        for place, low, high in zip(x, s.low, s.high, strict=True):
            if np.isfinite(low) and np.isfinite(high):
                path = f"M{axes.x(place):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"
                parts.append(svg.line(path, colour, 1.6, ' opacity=".75"'))
    if s.line and there.sum() > 1:
        points = zip(*thin_out(x[there], y[there]), strict=True)
        path = "M" + "L".join(f"{axes.x(a):.1f} {axes.y(b):.1f}" for a, b in points)
        look = ' stroke-linejoin="round"' + (' opacity=".35"' if s.faint else "")
        parts.append(svg.line(path, colour, 1.0 if s.faint else 1.8, look))
    if s.marks or (s.line and there.sum() == 1):
        for a, b in zip(x[there], y[there], strict=True):
            parts.append(mark(s.colour, axes.x(a), axes.y(b), colour, hollow=not s.line))
    return "".join(parts)


def _words(s: Series, axes: _Axes) -> str:
    """The names beside the marks of a curve."""
    parts = []
    for word, x, y in zip(s.words, s.x, s.y, strict=False):
        if np.isfinite(y):
            far = axes.x(x) > LEFT + axes.width - 58
            side, anchor = (-6, "end") if far else (6, "start")
            parts.append(svg.text(word, axes.x(x) + side, axes.y(y) + 11, 10, "halo", anchor))
    return "".join(parts)


def dot_plot(
    groups: Sequence[tuple[str, Sequence[Dot]]],
    title: str,
    x_label: str,
    *,
    digits: int = 1,
    guide: float | None = None,
) -> Drawing:
    """Values with intervals under group headings, read from top to bottom; `guide` is a dashed
    line (chance, say). Long names make the chart wider."""
    dots = [dot for _, some in groups for dot in some]
    left, right = min(220, 20 + LETTER * max(len(dot.label) for dot in dots)), 40
    width = WIDTH + max(0.0, left - 150)

    # the range of the values, with the guide in it if that is near
    bounds = [v for dot in dots for v in (dot.value, dot.low, dot.high, *dot.ticks)]
    bounds = [v for v in bounds if v is not None and math.isfinite(v)]
    low, high = min(bounds), max(bounds)
    if guide is not None and guide < low < guide + 3 * (high - low):
        low = guide
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def place(value: float) -> float:
        return left + (value - low) * (width - left - right) / (high - low)

    rows, y = [], float(TOP)
    for heading, some in groups:
        y += 16
        rows.append(svg.text(heading, 2, y, kind="quiet halo", bold=True))
        for dot in some:
            y += 17
            rows.append(_row(dot, y, left, width, place, digits))
        y += 6

    parts = [svg.text(title, 2, 15, 13, bold=True, room=width)]
    for tick in nice_ticks(low, high, 4):
        at = place(float(tick))
        parts.append(f'<path class="rule" d="M{at:.1f} {TOP + 2}V{y:.0f}"/>')
        parts.append(svg.text(say(float(tick)), at, y + 14, anchor="middle"))
    if guide is not None and low <= guide <= high:
        path = f"M{place(guide):.1f} {TOP + 2}V{y:.0f}"
        parts.append(f'<path class="axis" d="{path}" stroke-dasharray="2 3"/>')
    parts.append(f'<path class="axis" d="M{left:.0f} {y:.0f}H{width - right + 4:.0f}"/>')
    middle = (left + width - right) / 2
    parts.append(svg.text(x_label, middle, y + 31, kind="quiet", anchor="middle"))
    return Drawing(width, y + 38, "".join(parts + rows), f"{title}: {x_label}")


def _row(
    dot: Dot, y: float, left: float, width: float, place: Callable[[float], float], digits: int
) -> str:
    colour, middle = colour_of(dot.colour), y - 4
    parts = [svg.text(dot.label, 8, y, room=left - 14)]
    for tick in dot.ticks:
        parts.append(svg.line(f"M{place(tick):.1f} {middle - 4:.0f}v8", colour, 1, ' opacity=".6"'))
    if dot.low is not None and dot.high is not None and np.isfinite([dot.low, dot.high]).all():
        parts.append(
            svg.line(f"M{place(dot.low):.1f} {middle:.1f}H{place(dot.high):.1f}", colour, 2)
        )
    parts.append(mark(dot.colour + 1, place(dot.value), middle, colour, 3.6))
    number = f"{round(dot.value, digits) + 0.0:.{digits}f}"
    parts.append(svg.text(number, width - 2, y, anchor="end"))
    return "".join(parts)


def scatter(
    points: np.ndarray, labels: Sequence[str], title: str, x_label: str, y_label: str
) -> Drawing:
    """Points [m,2] in the colours of their labels: the commonest ones, the others in grey."""
    labels = np.asarray(labels).astype(str)
    names, counts = np.unique(labels, return_counts=True)
    names = names[np.lexsort((names, -counts))]
    shown, rest = names[:COLOURS], np.isin(labels, names[COLOURS:])
    low, high = points.min(0), points.max(0)
    pad = 0.04 * np.maximum(high - low, 1e-9)
    ranges = [(float(a), float(b)) for a, b in zip(low - pad, high + pad, strict=True)]
    axes = _Axes(*ranges, TOP, height=400, width=440, ticks=8)
    x, y = axes.x(points[:, 0]), axes.y(points[:, 1])
    size = float(np.clip(110 / math.sqrt(len(points)), 3, 7))

    parts = [svg.text(title, LEFT, 15, 13, bold=True), axes.frame(x_label, y_label)]
    if rest.any():
        parts.append(svg.dots(x[rest], y[rest], "var(--rule)", size))
    # some of each label at a time, so that no label covers another
    for some in np.array_split(np.random.default_rng(0).permutation(len(points)), 12):
        for number, name in enumerate(shown):
            here = some[labels[some] == name]
            if len(here):
                look = ' opacity=".8"'
                parts.append(svg.dots(x[here], y[here], colour_of(number), size, look))

    left = LEFT + axes.width + 24
    named = [(colour_of(i), f"{n} ({(labels == n).sum()})") for i, n in enumerate(shown)]
    if rest.any():
        named.append(("var(--rule)", f"{len(names) - COLOURS} others ({rest.sum()})"))
    for row, (colour, words) in enumerate(named):
        at = TOP + 20.0 + 20 * row
        parts.append(svg.dots(np.array([left]), np.array([at - 4]), colour, 9))
        parts.append(svg.text(words, left + 12, at, 12, room=150))
    height = TOP + axes.height + BOTTOM
    return Drawing(left + 160, height, "".join(parts), f"{title}: {y_label} over {x_label}")
