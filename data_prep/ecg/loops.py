"""Planes of the body: loops of the heart vector in three of them, and where each lead looks in two.

Frontal: seen from the front, the patient's left at the right of the picture, the feet at the
bottom. Transverse: seen from above, the patient's left at the right, the front at the bottom.
Sagittal: seen from the patient's left, the front at the left of the picture, the feet at the
bottom. Vectors are in Frank's axes: x to the patient's left, y to the feet, z to the back.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg import svg
from data_prep.ecg.geometry import frank_axes
from data_prep.ecg.leads import LEADS
from data_prep.ecg.svg import Drawing

WAVES = {"p": "P", "qrs": "QRS", "t": "ST-T"}
# name, what is drawn to the right and upwards (axis number and sign), and the words at the ends of
# the axes
PLANES = (
    ("Frontal", (0, 1), (1, -1), ("right", "left"), ("feet", "head")),
    ("Transverse", (0, 1), (2, 1), ("right", "left"), ("front", "back")),
    ("Sagittal", (2, 1), (1, -1), ("front", "back"), ("feet", "head")),
)
ARROW_MS = {"p": 40, "qrs": 12, "t": 60}  # about one arrow head each so often
SIDE, LEFT, TOP, BOTTOM = 300, 44, 24, 44  # units; the drawing is a square of SIDE
MIDDLE = (LEFT + SIDE / 2, TOP + SIDE / 2)
# early to late, all of them readable on white and on black
TIME = ((44, 127, 184), (47, 165, 138), (217, 165, 32), (213, 94, 0))
TIME_STEPS = 32  # colours of a loop


def wave_planes(
    vcg: np.ndarray, ms: np.ndarray, windows: Mapping[str, Sequence[float]], note: str = ""
) -> list[Drawing]:
    """The waves of a beat [3,W] in each plane; `ms` [W] are its times, `windows` {wave: (first,
    last)} in ms.

    The drawing reaches as far as these waves do.
    """
    parts = {name: _part(ms, *bounds) for name, bounds in windows.items()}
    reach = _reach(np.concatenate([vcg[:, part] for part in parts.values()], axis=1))
    return [_wave_plane(vcg, ms, parts, plane, reach, note) for plane in PLANES]


def time_planes(vcg: np.ndarray, rate: float, z_front: bool = True) -> list[Drawing]:
    """A vector [3,T] in each plane, coloured by time, and what the colours mean. `z_front`: its +z
    points to the front, as in the paper's geometry; else to the back, as Frank has it."""
    vcg = np.asarray(vcg, np.float64)
    if vcg.ndim != 2 or vcg.shape[0] != 3 or vcg.shape[1] < 2 or not np.isfinite(vcg).all():
        raise InputError(f"VCG loops need finite numbers [3, samples], got {vcg.shape}")
    vcg = vcg * [[1], [1], [-1 if z_front else 1]]
    bounds = np.unique(np.linspace(0, vcg.shape[1] - 1, TIME_STEPS + 1).round().astype(int))
    parts = [slice(first, last + 1) for first, last in pairwise(bounds)]
    reach = _reach(vcg)
    drawings = [_time_plane(vcg, parts, plane, reach) for plane in PLANES]
    return [*drawings, _time_scale(len(parts), 1000 * (vcg.shape[1] - 1) / rate)]


def write_loops(
    path: str | Path,
    vcg: np.ndarray,
    rate: float,
    title: str,
    caption: str = "",
    z_front: bool = True,
) -> Path:
    """The planes of a vector [3,T], coloured by time, as a picture."""
    note = (
        "Seen from the front, from above, and from the patient's left. Dots: samples, the first"
        " one larger."
    )
    drawings = time_planes(vcg, rate, z_front)
    return svg.write_picture(path, title, drawings, f"{note} {caption}".strip(), columns=4)


def directions(matrix: np.ndarray) -> list[Drawing]:
    """Directions [12,3] of the limb leads in the frontal plane and of the chest leads in the
    transverse one."""
    a = frank_axes(matrix)
    reach = 1.3 * float(np.linalg.norm(a, axis=1).max())
    return [_rays(a, LEADS[:6], PLANES[0], reach), _rays(a, LEADS[6:], PLANES[1], reach)]


def _part(ms: np.ndarray, first: float, last: float) -> slice:
    """Samples of a wave, with one before and after it so that the parts of the loop meet."""
    inside = np.flatnonzero((ms >= first - 1e-6) & (ms <= last + 1e-6))
    return slice(max(0, inside[0] - 1), min(len(ms), inside[-1] + 2))


def _reach(vcg: np.ndarray) -> float:
    return 1.12 * max(float(np.abs(vcg).max()), 1e-3)


def _places(vcg: np.ndarray, plane: tuple, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Where vectors [3,T] are on the drawing of a plane."""
    _, (across, sign_across), (up, sign_up), *_ = plane
    scale = SIDE / 2 / reach
    return MIDDLE[0] + sign_across * vcg[across] * scale, MIDDLE[1] - sign_up * vcg[up] * scale


def _path(x: np.ndarray, y: np.ndarray) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _wave_plane(
    vcg: np.ndarray,
    ms: np.ndarray,
    parts: dict[str, slice],
    plane: tuple,
    reach: float,
    note: str,
) -> Drawing:
    x, y = _places(vcg, plane, reach)
    drawn = []
    for name, part in parts.items():
        colour = f"var(--{name})"
        drawn.append(svg.line(_path(x[part], y[part]), colour, more=' stroke-linejoin="round"'))
        drawn += _arrows(x[part], y[part], ms, name)
        if name != "p":  # the largest vector
            top = part.start + int(np.linalg.norm(vcg[:, part], axis=0).argmax())
            path = f"M{MIDDLE[0]} {MIDDLE[1]}L{x[top]:.1f} {y[top]:.1f}"
            drawn.append(svg.line(path, colour, 1, ' stroke-dasharray="4 3"'))
    words = f"{plane[0]} plane: loops of {', '.join(WAVES[name] for name in parts)} in mV"
    return _frame(plane[0] + note, plane, reach, ("mV", "mV"), words, drawn)


def _arrows(x: np.ndarray, y: np.ndarray, ms: np.ndarray, name: str) -> list[str]:
    """Heads in the direction of time, where the loop moves far enough to show one."""
    step, arrows = max(2, round(ARROW_MS[name] / (ms[1] - ms[0]))), []
    for i in range(step // 2, len(x) - 1, step):
        a, b = max(i - 1, 0), min(i + 2, len(x) - 1)
        move = np.array([x[b] - x[a], y[b] - y[a]])
        if np.hypot(*move) < 2.5:
            continue
        angle = np.degrees(np.arctan2(move[1], move[0]))
        place = f"translate({x[i]:.1f} {y[i]:.1f}) rotate({angle:.0f})"
        arrows.append(f'<path d="M5 0L-4 4L-4 -4z" fill="var(--{name})" transform="{place}"/>')
    return arrows


def _time_plane(vcg: np.ndarray, parts: list[slice], plane: tuple, reach: float) -> Drawing:
    x, y = _places(vcg, plane, reach)
    drawn = []
    for k, part in enumerate(parts):
        colour = _time_colour(k / max(1, len(parts) - 1))
        drawn.append(svg.line(_path(x[part], y[part]), colour, more=' stroke-linejoin="round"'))
        drawn.append(svg.dots(x[part], y[part], colour, 3.6))
    drawn.append(svg.dots(x[:1], y[:1], "var(--ink)", 7))
    words = f"{plane[0]} plane: loop of the heart vector in mV, coloured by time"
    return _frame(plane[0], plane, reach, ("mV", "mV"), words, drawn)


def _time_colour(share: float) -> str:
    """From the first of TIME (0) to the last (1)."""
    place = share * (len(TIME) - 1)
    k = min(int(place), len(TIME) - 2)
    mixed = np.array(TIME[k]) * (1 - place + k) + np.array(TIME[k + 1]) * (place - k)
    return "#" + "".join(f"{round(value):02x}" for value in mixed)


def _time_scale(steps: int, end_ms: float) -> Drawing:
    """The colours from zero (bottom) to the end (top), with times."""
    high, parts = SIDE / steps, []
    for k in range(steps):
        place = f'x="8" y="{TOP + SIDE - (k + 1) * high:.2f}" width="14" height="{high + 0.5:.2f}"'
        parts.append(f'<rect {place} fill="{_time_colour(k / max(1, steps - 1))}"/>')
    for tick in svg.nice_ticks(0, end_ms):
        parts.append(svg.text(svg.say(float(tick)), 27, TOP + SIDE * (1 - tick / end_ms) + 4))
    parts.append(svg.text("time (ms)", 70, MIDDLE[1], kind="quiet", anchor="middle", turned=True))
    return Drawing(76, TOP + SIDE + BOTTOM, "".join(parts), "the colours of time")


def _rays(a: np.ndarray, leads: tuple[str, ...], plane: tuple, reach: float) -> Drawing:
    title, (across, sign_across), (up, sign_up), *_ = plane
    drawn = []
    for lead in leads:
        vector = a[LEADS.index(lead)]
        move = np.array([sign_across * vector[across], -sign_up * vector[up]]) * SIDE / 2 / reach
        word = move * (1 + 15 / max(float(np.hypot(*move)), 1e-9))
        path = f"M{MIDDLE[0]} {MIDDLE[1]}l{move[0]:.1f} {move[1]:.1f}"
        drawn.append(svg.line(path, "var(--s0)", 2))
        x, y = MIDDLE[0] + word[0], MIDDLE[1] + word[1] + 4
        drawn.append(svg.text(lead, x, y, 12, anchor="middle", bold=True))
    words = f"{title} plane: directions of {', '.join(leads)}"
    units = ("mV per mV of the vector", "mV per mV")
    return _frame(f"{title}: {leads[0]} to {leads[-1]}", plane, reach, units, words, drawn)


def _frame(
    title: str, plane: tuple, reach: float, units: tuple[str, str], words: str, drawn: list[str]
) -> Drawing:
    """A square with axes through its middle, what is drawn over them, and the words at the axes."""
    _, (_, sign_across), (_, sign_up), sides, ends = plane
    scale = SIDE / 2 / reach
    parts = [svg.text(title, LEFT, 15, 13, bold=True)]
    parts.append(f'<rect class="rule" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>')
    for tick in svg.nice_ticks(-reach, reach, 6):
        number, place = svg.say(float(tick)), float(tick) * scale
        h, v = MIDDLE[0] + sign_across * place, MIDDLE[1] - sign_up * place
        kind = "axis" if abs(tick) < 1e-9 else "rule"
        parts.append(f'<path class="{kind}" d="M{h:.1f} {TOP}v{SIDE}M{LEFT} {v:.1f}h{SIDE}"/>')
        parts.append(svg.text(number, h, TOP + SIDE + 15, anchor="middle"))
        parts.append(svg.text(number, LEFT - 5, v + 4, anchor="end"))
    parts += [*drawn, f'<circle cx="{MIDDLE[0]}" cy="{MIDDLE[1]}" r="2.6" fill="var(--ink)"/>']
    across = f"{sides[0]} ← {units[0]} → {sides[1]}"
    upwards = f"{ends[0]} ← {units[1]} → {ends[1]}"
    parts.append(svg.text(across, MIDDLE[0], TOP + SIDE + 33, kind="quiet", anchor="middle"))
    parts.append(svg.text(upwards, 11, MIDDLE[1], kind="quiet", anchor="middle", turned=True))
    return Drawing(LEFT + SIDE + 8, TOP + SIDE + BOTTOM, "".join(parts), words)
