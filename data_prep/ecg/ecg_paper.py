"""An ECG on millimetre paper: 25 mm/s, 10 mm/mV (5 if it would not fit), calibration pulse, lead
names.

Two layouts of the same signal: 'wide' (3 x 4 leads of 2.5 s and a rhythm strip of 10 s, 265 mm:
true to scale on paper) and 'narrow' (6 x 2 leads and a strip of 5 s) for a phone; a page holds
both and shows the one that fits. One unit is 0.01 mm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg import svg
from data_prep.ecg.leads import LEADS
from data_prep.ecg.svg import Drawing

COLUMNS = (("I", "II", "III"), ("aVR", "aVL", "aVF"), ("V1", "V2", "V3"), ("V4", "V5", "V6"))
MM = 100  # units
PIXELS = 96 / 25.4 / MM  # in one unit: a browser prints 96 pixels as one inch
LEFT, RIGHT, EDGE = 12, 3, 5  # mm: room for the pulse, at the end, above and below
PITCH = {"wide": 30, "narrow": 25}  # mm from row to row
LETTERS = {"wide": 3.2, "narrow": 4.2}  # mm
FOOT = {"wide": 9, "narrow": 11}  # mm
DERIVED = ("var(--derived)", "var(--s1)", "var(--s2)", "var(--s4)")  # colours, in this order


@dataclass(frozen=True)
class Tracing:
    """What is drawn: leads [12,T] in mV, NaN where there is nothing; the first ten seconds."""

    mv: np.ndarray  # recorded
    rate: float
    derived: Mapping[str, np.ndarray] = field(default_factory=dict)  # by name, drawn over it
    hidden: np.ndarray | None = None  # bool [12]: recorded, but not shown to the model: grey
    # bool [12]: of the derived ones, those that follow exactly from recorded leads
    computed: np.ndarray | None = None
    r_peaks: Sequence[float] = ()  # samples
    # ('p', 'qrs' or 't', first sample, last sample)
    waves: Sequence[tuple[str, float, float]] = ()
    # [12,T] mV to either side of the first derived signal, NaN where there is no band
    band: np.ndarray | None = None

    def __post_init__(self) -> None:
        shape = self.mv.shape
        if len(shape) != 2 or shape[0] != len(LEADS) or shape[1] < 2:
            raise InputError(f"an ECG needs a signal [12, samples] in mV, got {shape}")
        for name, values in self.derived.items():
            if values.shape != shape:
                raise InputError(f"'{name}' has shape {values.shape}, the signal {shape}")
        if self.band is not None and (not self.derived or self.band.shape != shape):
            raise InputError(f"a band needs derived leads and the shape of the signal, {shape}")

    @property
    def seconds(self) -> float:
        return min(10.0, self.mv.shape[1] / self.rate)

    def is_computed(self, lead: int) -> bool:
        return self.computed is not None and bool(self.computed[lead])

    def is_derived(self, lead: int) -> bool:
        """By the model or by computation."""
        return any(np.isfinite(values[lead]).any() for values in self.derived.values())


def draw(tracing: Tracing, words: str) -> list[Drawing]:
    """Both layouts; `words` describe the picture to a reader who cannot see it."""
    return [_layout(tracing, layout, words) for layout in PITCH]


def write_ecg(path: str | Path, tracing: Tracing, title: str, caption: str = "") -> Path:
    """The wide layout as a picture with its keys."""
    seconds = tracing.mv.shape[1] / tracing.rate
    parts = [f"{tracing.rate:g} Hz"]
    parts += ["triangles: R peaks"] if len(tracing.r_peaks) else []
    parts += [f"first 10 s of {seconds:.0f} s"] if seconds > 10.01 else []
    parts += [caption] if caption else []
    named = keys(tracing) if tracing.derived else ()
    drawing = _layout(tracing, "wide", "twelve leads on ECG paper")
    return svg.write_picture(path, title, [drawing], "; ".join(parts), keys=named)


def keys(tracing: Tracing) -> list[tuple[str, str]]:
    """What the colours mean: (colour, words)."""
    found = [("var(--ecg-ink)", "recorded")]
    if tracing.hidden is not None and (tracing.hidden & np.isfinite(tracing.mv).any(1)).any():
        found.append(("var(--ecg-hidden)", "recorded, hidden from the model"))
    if tracing.computed is not None and tracing.computed.any():
        found.append(("var(--computed)", "† computed from recorded leads"))
    for colour, (name, values) in zip(DERIVED, tracing.derived.items(), strict=False):
        there = np.isfinite(values).any(1)
        if tracing.computed is not None:
            there &= ~tracing.computed
        if there.any():
            found.append((colour, f"* {name}"))
    if tracing.band is not None:
        found.append(("var(--band)", "90% band"))
    return found


def gain_of(tracing: Tracing, pitch: float) -> float:
    """10 mm/mV, or 5 where a lead would reach into its neighbours."""
    shown = [tracing.mv, *tracing.derived.values()]
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


def _layout(tracing: Tracing, layout: str, words: str) -> Drawing:
    strips, last, seconds = _strips(tracing, layout)
    pitch, letters = PITCH[layout], LETTERS[layout]
    gain = gain_of(tracing, pitch)
    width = LEFT + round(25 * seconds) + RIGHT
    height = (last + 1) * pitch + 2 * EDGE + FOOT[layout]
    parts = [_paper(width, height), _beats(tracing, seconds, EDGE + last * pitch, pitch, layout)]

    # each strip: the trace, and a pulse or a mark where it begins; names lie over all traces
    names = []
    for lead, row, begin, end in strips:
        base = EDGE + (row + 0.5) * pitch
        parts.append(_strip(tracing, lead, begin, end, base, gain))
        x, y = LEFT + 25 * begin + 1, base - min(11, 0.4 * pitch)
        mark, kind = _origin(tracing, LEADS.index(lead))
        names.append(_text(lead + mark, x, y, letters * 1.15, f"name {kind}"))
        if begin == 0:
            parts.append(_pulse(base, gain))
        else:
            start = f"M{_n(LEFT + 25 * begin)} {_n(base - 3)}"
            parts.append(f'<path class="trace" d="{start}v{6 * MM}"/>')

    parts += names
    parts.append(_text(f"25 mm/s\u2003{gain:g} mm/mV", 3, height - 2.2, letters, "quiet"))
    if any(np.isfinite(values).any() for values in tracing.derived.values()):
        parts.append(_text("* derived", width - 3, height - 2.2, letters, "star", "end"))
    return Drawing(width * MM, height * MM, "".join(parts), words, f"ecg {layout}", PIXELS)


def _origin(tracing: Tracing, lead: int) -> tuple[str, str]:
    """The mark after a lead's name and its kind: recorded, computed or derived."""
    if not tracing.is_derived(lead):
        return "", "recorded"
    return ("†", "dagger") if tracing.is_computed(lead) else ("*", "star")


def _n(mm: float) -> int:
    return round(mm * MM)


def _text(words: str, x: float, y: float, size: float, kind: str, anchor: str = "") -> str:
    return svg.text(words, _n(x), _n(y), _n(size), kind, anchor)


def _paper(width: int, height: int) -> str:
    """Lines every millimetre, bold ones every five, counted from the first second and from the
    first row's edge."""
    lines = {"thin": [], "bold": []}
    for mm in range(1, width):
        lines["bold" if (mm - LEFT) % 5 == 0 else "thin"].append(f"M{mm * MM} 0V{height * MM}")
    for mm in range(1, height):
        lines["bold" if (mm - EDGE) % 5 == 0 else "thin"].append(f"M0 {mm * MM}H{width * MM}")
    grid = "".join(f'<path class="{kind}" d="{"".join(some)}"/>' for kind, some in lines.items())
    return f'<rect class="sheet" width="{width * MM}" height="{height * MM}"/>{grid}'


def _pulse(base: float, gain: float) -> str:
    """One millivolt for 0.2 s."""
    start = f"M{_n(LEFT - 9)} {_n(base)}"
    return f'<path class="trace" d="{start}h{_n(1.5)}v{_n(-gain)}h{5 * MM}v{_n(gain)}h{_n(1.5)}"/>'


def _strip(tracing: Tracing, lead: str, begin: float, end: float, base: float, gain: float) -> str:
    number = LEADS.index(lead)
    grey = tracing.hidden is not None and tracing.hidden[number]
    traces = [(tracing.mv[number], "trace hidden" if grey else "trace", "")]
    for colour, values in zip(DERIVED, tracing.derived.values(), strict=False):
        kind = "trace computed" if tracing.is_computed(number) else "trace derived"
        other = f' style="stroke: {colour}"' if colour != DERIVED[0] else ""
        traces.append((values[number], kind, other))
    drawn = [
        f'<path class="{kind}"{other} d="{path}"/>'
        for x, kind, other in traces
        if (path := _path(x, tracing.rate, begin, end, base, gain))
    ]
    if tracing.band is not None:
        middle, half = next(iter(tracing.derived.values()))[number], tracing.band[number]
        area = _area(middle - half, middle + half, tracing.rate, begin, end, base, gain)
        drawn = [f'<path class="band" d="{area}"/>' if area else "", *drawn]
    if any(drawn):
        return "".join(drawn)
    first, last = LEFT + 25 * begin + 2, LEFT + 25 * end - 2
    dashes = f'<path class="absent" d="M{_n(first)} {_n(base)}H{_n(last)}"/>'
    return dashes + _text("not recorded", (first + last) / 2, base - 1.5, 3, "quiet", "middle")


def _path(x: np.ndarray, rate: float, begin: float, end: float, base: float, gain: float) -> str:
    """The samples from begin to end as steps between points; a stretch without values is left
    open."""
    return "".join(map(_steps, _stretches(x[None], rate, begin, end, base, gain)))


def _area(
    low: np.ndarray,
    high: np.ndarray,
    rate: float,
    begin: float,
    end: float,
    base: float,
    gain: float,
) -> str:
    """The area between two signals, along the one and back along the other."""
    found = _stretches(np.stack([low, high]), rate, begin, end, base, gain)
    rings = (np.concatenate([p[:, :2], p[::-1, ::2]]) for p in found)
    return "".join(f"{_steps(ring)}z" for ring in rings)


def _stretches(
    x: np.ndarray, rate: float, begin: float, end: float, base: float, gain: float
) -> list[np.ndarray]:
    """Places [k,1+s] of each stretch in which all signals [s,T] have values: across, and down for
    each of them."""
    first, last = round(begin * rate), min(round(end * rate), x.shape[1] - 1)
    place = np.round((LEFT + 25 * np.arange(first, last + 1) / rate) * MM).astype(int)
    height = np.round((base - gain * np.nan_to_num(x[:, first : last + 1])) * MM).astype(int)
    there = np.isfinite(x[:, first : last + 1]).all(0)
    edges = np.flatnonzero(np.diff(there, prepend=False, append=False)).reshape(-1, 2)
    points = np.concatenate([place[None], height]).T
    return [points[start:stop] for start, stop in edges]


def _steps(points: np.ndarray) -> str:
    """Points [k,2] as a path of steps from one to the next."""
    steps = np.diff(points, axis=0).ravel().tolist()
    return f"M{points[0, 0]} {points[0, 1]}l" + " ".join(map(str, steps))


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
    for one, two in pairwise(times) if layout == "wide" else ():
        if two - one > 0.36:
            words, x = f"{1000 * (two - one):.0f}", LEFT + 12.5 * (one + two)
            parts.append(_text(words, x, y + 0.5, 2.6, "quiet", "middle"))
    return "".join(parts)
