"""Small charts as inline SVG: curves with intervals, and dots with intervals in groups. Colours
come from the page.

A chart is 360 units wide and shown at about that many pixels, on a phone as on a desk, so its
letters keep their size. Marks differ in shape as well as in colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 24, 42
LETTER = 5.6  # width of a letter of 11 units, about
_MARKS = ("circle", "square", "diamond", "triangle")
MOST_POINTS = 300  # of a curve: more than a chart has pixels to show


@dataclass(frozen=True)
class Series:
    """A curve: x and y [k], and intervals if there are any. Without a name it is not in the
    legend."""

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    colour: int = 0  # of the page's palette; -1: grey
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
    ticks: Sequence[float] = field(default=())


def colour_of(number: int) -> str:
    return "var(--grey)" if number < 0 else f"var(--s{number % 7})"


def nice_ticks(low: float, high: float, about: int = 5) -> np.ndarray:
    """Round numbers that cover most of low..high: steps of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1e-12 * max(abs(low), abs(high), 1.0))
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where these are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1,), (1, 3), (1, 2, 5)):
        ticks = [m * 10.0**p for p in powers for m in parts if low <= m * 10.0**p <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: max(1, len(ticks) // 5)]


def say(value: float) -> str:
    """A tick's number, short: 12k, 0.05, 2e-5."""
    size = abs(value)
    if size >= 1e4:
        for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= unit:
                return f"{round(value / unit, 3) + 0.0:g}{letter}"
    if not value or size >= 1e-3:
        return f"{round(value, 12) + 0.0:.6g}"
    number, power = f"{value:.0e}".split("e")
    return f"{number}e{int(power)}"


def mark(
    shape: int, x: float, y: float, colour: str, size: float = 3.4, hollow: bool = False
) -> str:
    """A circle, square, diamond or triangle."""
    fill = (
        f'fill="var(--paper)" stroke="{colour}" stroke-width="1.4"'
        if hollow
        else f'fill="{colour}"'
    )
    name = _MARKS[shape % len(_MARKS)]
    if name == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {fill}/>'
    r = size * 1.15
    corners = {
        "square": [(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)],
        "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        "triangle": [(0, -1.15), (1.1, 0.85), (-1.1, 0.85)],
    }[name]
    points = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)
    return f'<polygon points="{points}" {fill}/>'


def thin_out(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most MOST_POINTS of a curve [k]: of every stretch its lowest and highest value, so that no
    spike is lost."""
    if len(x) <= MOST_POINTS:
        return x, y
    kept = []
    for part in np.array_split(np.arange(len(x)), MOST_POINTS // 2):
        kept += sorted({int(part[y[part].argmin()]), int(part[y[part].argmax()])})
    return x[kept], y[kept]


class _Axes:
    """Where values are on the drawing."""

    def __init__(self, x_range, y_range, top: float, height: float, log_y: bool = False):
        self.x_range, self.y_range, self.top, self.height, self.log_y = (
            x_range,
            y_range,
            top,
            height,
            log_y,
        )

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log_y else v for v in (*self.y_range, value))
        return self.top + self.height * (1 - (value - low) / (high - low))


def _legend(series: Sequence[Series]) -> tuple[str, float]:
    """The names under the title, in as many lines as they need, and the height of those."""
    parts, x, y = [], float(LEFT), TOP + 8.0
    named = [s for s in series if s.name]
    if len(named) < 2:
        return "", 0.0
    for s in named:
        width = 24 + LETTER * len(s.name)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = float(LEFT), y + 15
        colour = colour_of(s.colour)
        if s.line:
            parts.append(f'<path d="M{x:.0f} {y - 4:.0f}h14" stroke="{colour}" stroke-width="2"/>')
        if s.marks:
            parts.append(mark(s.colour, x + 7, y - 4, colour, 3, hollow=not s.line))
        parts.append(f'<text x="{x + 18:.0f}" y="{y:.0f}" font-size="11">{escape(s.name)}</text>')
        x += width + 8
    return "".join(parts), y - TOP + 4


def _svg(height: float, words: str, content: str) -> str:
    label = escape(words, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}" fill="none">{content}</svg>'


def _title(title: str, left: float) -> str:
    """The title, cut where the chart ends; the whole of it shows under the pointer."""
    room = int((WIDTH - left) / 7.4)
    text = title if len(title) <= room else f"{title[: room - 1]}…"
    words = f"{escape(text)}<title>{escape(title)}</title>"
    return f'<text x="{left:.0f}" y="15" font-size="13" font-weight="600">{words}</text>'


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
) -> str:
    """Curves with axis labels; `zero` draws the line y = 0 and keeps it in view, `x_ticks` are
    (place, word)."""
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
    legend, more = _legend(series)
    axes = _Axes(x_range, y_range, TOP + more, plot_height, log_y)
    bottom, end = axes.top + plot_height, WIDTH - RIGHT
    parts = [_title(title, LEFT), legend]
    for tick in log_ticks(*y_range) if log_y else nice_ticks(*y_range):
        place = axes.y(float(tick))
        parts.append(f'<path class="rule" d="M{LEFT} {place:.1f}H{end}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{place + 4:.1f}" font-size="11" text-anchor="end">{say(tick)}</text>'
        )
    ticks = (
        x_ticks
        if x_ticks is not None
        else [(float(t), say(float(t))) for t in nice_ticks(*x_range)]
    )
    for tick, word in (tick for tick in ticks if x_range[0] <= tick[0] <= x_range[1]):
        place = axes.x(float(tick))
        parts.append(f'<path class="axis" d="M{place:.1f} {bottom:.0f}v4"/>')
        parts.append(
            f'<text x="{place:.1f}" y="{bottom + 16:.0f}" font-size="11" text-anchor="middle">{escape(word)}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {axes.top:.0f}V{bottom:.0f}H{end}"/>')
    if zero:
        parts.append(
            f'<path class="axis" d="M{LEFT} {axes.y(0):.1f}H{end}" stroke-dasharray="3 3"/>'
        )
    parts += [_draw(s, axes) for s in series]
    middle, upright = (LEFT + end) / 2, axes.top + plot_height / 2
    parts.append(
        f'<text class="quiet" x="{middle:.0f}" y="{bottom + 33:.0f}" font-size="11" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    parts.append(
        f'<text class="quiet" transform="translate(11 {upright:.0f}) rotate(-90)" font-size="11" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return _svg(bottom + BOTTOM, f"{title}: {y_label} over {x_label}", "".join(parts))


def _draw(s: Series, axes: _Axes) -> str:
    colour = colour_of(s.colour)
    x, y = np.asarray(s.x, np.float64), np.asarray(s.y, np.float64)
    there = np.isfinite(x) & np.isfinite(y) & ((y > 0) if axes.log_y else True)
    parts = []
    if s.low is not None and s.high is not None:
        for place, low, high in zip(x, s.low, s.high, strict=True):
            if np.isfinite(low) and np.isfinite(high):
                at = axes.x(place)
                path = f"M{at:.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"
                parts.append(
                    f'<path d="{path}" stroke="{colour}" stroke-width="1.6" opacity=".75"/>'
                )
    if s.line and there.sum() > 1:
        points = zip(*thin_out(x[there], y[there]), strict=True)
        path = "M" + "L".join(f"{axes.x(a):.1f} {axes.y(b):.1f}" for a, b in points)
        look = 'stroke-width="1" opacity=".35"' if s.faint else 'stroke-width="1.8"'
        parts.append(f'<path d="{path}" stroke="{colour}" {look} stroke-linejoin="round"/>')
    if s.marks or (s.line and there.sum() == 1):
        for a, b in zip(x[there], y[there], strict=True):
            parts.append(mark(s.colour, axes.x(a), axes.y(b), colour, hollow=not s.line))
    for word, a, b in zip(s.words, x, y, strict=False):
        if np.isfinite(b):
            side, anchor = (-6, "end") if axes.x(a) > WIDTH - 70 else (6, "start")
            place = f'x="{axes.x(a) + side:.1f}" y="{axes.y(b) + 11:.1f}"'
            parts.append(
                f'<text class="halo" {place} font-size="10" text-anchor="{anchor}">{escape(word)}</text>'
            )
    return "".join(parts)


def dot_plot(
    groups: Sequence[tuple[str, Sequence[Dot]]],
    title: str,
    x_label: str,
    *,
    digits: int = 1,
    guide: float | None = None,
) -> str:
    """Values with intervals under group headings, best read downwards; `guide` is a dashed line
    (chance, say)."""
    dots = [dot for _, some in groups for dot in some]
    named = max(len(dot.label) for dot in dots)
    left, right = min(150, 20 + LETTER * named), 40
    bounds = [
        v
        for dot in dots
        for v in (dot.value, dot.low, dot.high, *dot.ticks)
        if v is not None and np.isfinite(v)
    ]
    low, high = min(bounds), max(bounds)
    if guide is not None and guide < low < guide + 3 * (high - low):
        low = guide
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad
    scale = (WIDTH - left - right) / (high - low)
    place = lambda value: left + (value - low) * scale  # noqa: E731
    parts, y = [_title(title, 2)], float(TOP)
    rows = []
    for heading, some in groups:
        y += 16
        rows.append(
            f'<text class="quiet halo" x="2" y="{y:.0f}" font-size="11" font-weight="600">{escape(heading)}</text>'
        )
        for dot in some:
            y += 17
            rows.append(_row(dot, y, left, place, digits))
        y += 6
    for tick in nice_ticks(low, high, 4):
        at = place(float(tick))
        parts.append(f'<path class="rule" d="M{at:.1f} {TOP + 2}V{y:.0f}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{y + 14:.0f}" font-size="11" text-anchor="middle">{say(float(tick))}</text>'
        )
    if guide is not None and low <= guide <= high:
        parts.append(
            f'<path class="axis" d="M{place(guide):.1f} {TOP + 2}V{y:.0f}" stroke-dasharray="2 3"/>'
        )
    parts.append(f'<path class="axis" d="M{left:.0f} {y:.0f}H{WIDTH - right + 4}"/>')
    middle = (left + WIDTH - right) / 2
    parts.append(
        f'<text class="quiet" x="{middle:.0f}" y="{y + 31:.0f}" font-size="11" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    return _svg(y + 38, f"{title}: {x_label}", "".join(parts + rows))


def _row(dot: Dot, y: float, left: float, place, digits: int) -> str:
    colour, room = colour_of(dot.colour), int((left - 14) / LETTER)
    text = dot.label if len(dot.label) <= room else f"{dot.label[: room - 1]}…"
    parts = [
        f'<text x="8" y="{y:.0f}" font-size="11">{escape(text)}<title>{escape(dot.label)}</title></text>'
    ]
    middle, number = y - 4, f"{round(dot.value, digits) + 0.0:.{digits}f}"
    for tick in dot.ticks:
        parts.append(
            f'<path d="M{place(tick):.1f} {middle - 4:.0f}v8" stroke="{colour}" opacity=".6"/>'
        )
    if dot.low is not None and dot.high is not None and np.isfinite([dot.low, dot.high]).all():
        path = f"M{place(dot.low):.1f} {middle:.1f}H{place(dot.high):.1f}"
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2"/>')
    parts.append(mark(dot.colour + 1, place(dot.value), middle, colour, 3.6))
    parts.append(
        f'<text x="{WIDTH - 2}" y="{y:.0f}" font-size="11" text-anchor="end">{number}</text>'
    )
    return "".join(parts)
