"""An ECG on millimetre paper as inline SVG: 25 mm/s, 10 mm/mV (5 if it would not fit), calibration
pulse, lead names.

Two layouts of the same signal: 'wide' (3 x 4 leads of 2.5 s and a rhythm strip of 10 s, 265 mm:
true to scale on paper) and 'narrow' (6 x 2 leads and a strip of 5 s) for a phone; the page shows
the one that fits. One unit is 0.01 mm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.drawing import COLUMNS
from data_prep.ecg.leads import LEADS

MM = 100  # units
LEFT, RIGHT, EDGE = 12, 3, 5  # mm: room for the pulse, at the end, above and below
PITCH = {"wide": 30, "narrow": 25}  # mm from row to row
LETTERS = {"wide": 3.2, "narrow": 4.2}  # mm
KEYS = {  # colour of the page -> what it means
    "ecg-ink": "recorded",
    "ecg-hidden": "recorded, hidden from the model",
    "computed": "† computed from recorded leads",
    "derived": "* derived by the model",
}
STYLE = """
.ecg svg { border: 1px solid var(--ecg-bold); background: var(--ecg-paper); } .ecg .narrow { display: none; }
.ecg .thin { stroke: var(--ecg-thin); stroke-width: 9; } .ecg .bold { stroke: var(--ecg-bold); stroke-width: 14; }
.ecg .trace { stroke: var(--ecg-ink); stroke-width: 30; stroke-linejoin: round; stroke-linecap: round; }
.ecg .hidden { stroke: var(--ecg-hidden); } .ecg .derived { stroke: var(--derived); stroke-width: 34; }
.ecg .computed { stroke: var(--computed); }
.ecg text, .ecg .quiet { fill: var(--ecg-ink); }
.ecg .name { font-weight: 600; paint-order: stroke; stroke: var(--ecg-paper); stroke-width: 70; }
.ecg .star { fill: var(--derived); } .ecg .dagger { fill: var(--computed); }
.ecg .absent { stroke: var(--ecg-hidden); stroke-dasharray: 60 90; stroke-width: 20; }
@media screen and (max-width: 40rem) { .ecg .wide { display: none; } .ecg .narrow { display: block; } }
@media print { .ecg .wide { width: 265mm; max-width: 100%; } }
"""


@dataclass(frozen=True)
class Tracing:
    """What is drawn: leads [12,T] in mV, NaN where there is nothing."""

    mv: np.ndarray  # recorded
    rate: float
    derived: np.ndarray | None = None  # drawn over it in another colour
    hidden: np.ndarray | None = None  # bool [12]: recorded, but not shown to the model: grey
    # bool [12]: of the derived ones, those that follow exactly from recorded leads
    computed: np.ndarray | None = None
    r_peaks: Sequence[float] = ()  # samples
    # ('p', 'qrs' or 't', first sample, last sample)
    waves: Sequence[tuple[str, float, float]] = field(default=())

    @property
    def seconds(self) -> float:
        return min(10.0, self.mv.shape[1] / self.rate)


def draw(tracing: Tracing, words: str) -> str:
    """Both layouts; `words` describe the picture to a reader who cannot see it."""
    if tracing.mv.ndim != 2 or len(tracing.mv) != len(LEADS) or tracing.mv.shape[1] < 2:
        raise InputError(f"an ECG needs a signal [12, samples] in mV, got {tracing.mv.shape}")
    return "\n".join(_layout(tracing, layout, words) for layout in PITCH)


def gain_of(tracing: Tracing, pitch: float) -> float:
    """10 mm/mV, or 5 where a lead would reach into its neighbours."""
    shown = [tracing.mv] if tracing.derived is None else [tracing.mv, tracing.derived]
    finite = np.concatenate([np.abs(x[np.isfinite(x)]) for x in shown])
    return 10.0 if not len(finite) or 10 * finite.max() <= 1.1 * pitch else 5.0


def _strips(
    tracing: Tracing, layout: str
) -> tuple[list[tuple[str, int, float, float]], int, float]:
    """Strips (lead, row, from second, to second), the row of the rhythm strip, and the seconds from
    edge to edge."""
    column = tracing.seconds / 4
    blocks = COLUMNS if layout == "wide" else (COLUMNS[0] + COLUMNS[1], COLUMNS[2] + COLUMNS[3])
    strips = [
        (lead, row, c * column, (c + 1) * column)
        for c, leads in enumerate(blocks)
        for row, lead in enumerate(leads)
    ]
    there = np.isfinite(tracing.mv).any(1)
    rhythm = "II" if there[1] or not there.any() else LEADS[int(there.argmax())]
    last, width = len(blocks[0]), len(blocks) * column
    return [*strips, (rhythm, last, 0.0, width)], last, width


def _layout(tracing: Tracing, layout: str, words: str) -> str:
    strips, last, seconds = _strips(tracing, layout)
    pitch, letters = PITCH[layout], LETTERS[layout]
    gain = gain_of(tracing, pitch)
    width = LEFT + round(25 * seconds) + RIGHT
    foot = 9 if layout == "wide" else 11
    height = (last + 1) * pitch + 2 * EDGE + foot
    parts = [_paper(width, height)]
    if tracing.waves or len(tracing.r_peaks):
        parts.append(_beats(tracing, seconds, EDGE + last * pitch, pitch, layout))
    for lead, row, begin, end in strips:
        base = EDGE + (row + 0.5) * pitch
        parts.append(_strip(tracing, lead, begin, end, base, gain))
        x, y = LEFT + 25 * begin + 1, base - min(11, 0.4 * pitch)
        mark, kind = _origin(tracing, LEADS.index(lead))
        parts.append(_text(lead + mark, x, y, letters * 1.15, f"name {kind}"))
        if begin == 0:
            parts.append(_pulse(base, gain))
        else:
            parts.append(
                f'<path class="trace" d="M{_n(LEFT + 25 * begin)} {_n(base - 3)}v{6 * MM}"/>'
            )
    scale = f"25 mm/s   {gain:g} mm/mV"
    parts.append(_text(scale, 3, height - 2.2, letters, "quiet"))
    if tracing.derived is not None and np.isfinite(tracing.derived).any():
        parts.append(_text("* derived", width - 3, height - 2.2, letters, "star", "end"))
    box = f"0 0 {width * MM} {height * MM}"
    return (
        f'<svg class="{layout}" viewBox="{box}" role="img" aria-label="{escape(words, quote=True)}" fill="none">'
        f"{''.join(parts)}</svg>"
    )


def _origin(tracing: Tracing, lead: int) -> tuple[str, str]:
    """The mark after a lead's name and its kind: recorded, computed or derived."""
    if tracing.derived is None or not np.isfinite(tracing.derived[lead]).any():
        return "", "recorded"
    return (
        ("†", "dagger")
        if tracing.computed is not None and tracing.computed[lead]
        else ("*", "star")
    )


def _n(mm: float) -> int:
    return round(mm * MM)


def _text(words: str, x: float, y: float, size: float, kind: str, anchor: str = "start") -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}" xml:space="preserve"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def _paper(width: int, height: int) -> str:
    """Lines every millimetre, bold ones every five, counted from the first second and from the
    first row's edge."""
    lines = {"thin": [], "bold": []}
    for mm in range(1, width):
        lines["bold" if (mm - LEFT) % 5 == 0 else "thin"].append(f"M{mm * MM} 0V{height * MM}")
    for mm in range(1, height):
        lines["bold" if (mm - EDGE) % 5 == 0 else "thin"].append(f"M0 {mm * MM}H{width * MM}")
    return "".join(f'<path class="{kind}" d="{"".join(some)}"/>' for kind, some in lines.items())


def _pulse(base: float, gain: float) -> str:
    """One millivolt for 0.2 s."""
    start = f"M{_n(LEFT - 9)} {_n(base)}"
    return f'<path class="trace" d="{start}h{_n(1.5)}v{_n(-gain)}h{5 * MM}v{_n(gain)}h{_n(1.5)}"/>'


def _strip(tracing: Tracing, lead: str, begin: float, end: float, base: float, gain: float) -> str:
    number = LEADS.index(lead)
    grey = tracing.hidden is not None and tracing.hidden[number]
    traces = [(tracing.mv[number], "trace hidden" if grey else "trace")]
    if tracing.derived is not None:
        exact = tracing.computed is not None and tracing.computed[number]
        traces.append((tracing.derived[number], "trace computed" if exact else "trace derived"))
    drawn = [
        f'<path class="{kind}" d="{path}"/>'
        for x, kind in traces
        if (path := _path(x, tracing.rate, begin, end, base, gain))
    ]
    if drawn:
        return "".join(drawn)
    middle = LEFT + 12.5 * (begin + end)
    dashes = f'<path class="absent" d="M{_n(LEFT + 25 * begin + 2)} {_n(base)}H{_n(LEFT + 25 * end - 2)}"/>'
    return dashes + _text("not recorded", middle, base - 1.5, 3, "quiet", "middle")


def _path(x: np.ndarray, rate: float, begin: float, end: float, base: float, gain: float) -> str:
    """The samples from begin to end as steps between points; a stretch without values is left
    open."""
    first, last = round(begin * rate), min(round(end * rate), len(x) - 1)
    place = np.round((LEFT + 25 * np.arange(first, last + 1) / rate) * MM).astype(int)
    height = np.round((base - gain * np.nan_to_num(x[first : last + 1])) * MM).astype(int)
    there = np.isfinite(x[first : last + 1])
    edges = np.flatnonzero(np.diff(there, prepend=False, append=False))
    path = []
    for start, stop in edges.reshape(-1, 2):
        steps = np.stack([np.diff(place[start:stop]), np.diff(height[start:stop])], axis=1).ravel()
        path.append(f"M{place[start]} {height[start]}l" + " ".join(map(str, steps.tolist())))
    return "".join(path)


def _beats(tracing: Tracing, seconds: float, top: float, pitch: float, layout: str) -> str:
    """Waves as pale bands over the rhythm strip, R peaks as triangles under it, with the R-R
    intervals in ms."""
    parts = []
    for kind, first, last in tracing.waves:
        a, b = max(first / tracing.rate, 0.0), min(last / tracing.rate, seconds)
        if b > a:
            x, width = _n(LEFT + 25 * a), _n(25 * (b - a))
            place = f'x="{x}" y="{_n(top + 1)}" width="{width}" height="{_n(pitch - 6)}"'
            parts.append(f'<rect {place} fill="var(--{kind})" opacity=".14"/>')
    y, times = top + pitch - 2.2, np.asarray(tracing.r_peaks, np.float64) / tracing.rate
    times = times[times <= seconds]
    for time in times:
        x = LEFT + 25 * time
        corners = f"{_n(x)},{_n(y - 1.4)} {_n(x + 1)},{_n(y + 0.4)} {_n(x - 1)},{_n(y + 0.4)}"
        parts.append(f'<polygon class="beat" points="{corners}" fill="var(--qrs)"/>')
    if layout == "wide":
        for one, two in pairwise(times):
            if two - one > 0.36:
                parts.append(
                    _text(
                        f"{1000 * (two - one):.0f}",
                        LEFT + 12.5 * (one + two),
                        y + 0.5,
                        2.6,
                        "quiet",
                        "middle",
                    )
                )
    return "".join(parts)
