"""Planes of the body as inline SVG: the heart vector's loop in three of them, and where each lead
looks in two."""

from html import escape

import numpy as np

from data_prep.ecg.geometry import frank_axes
from data_prep.ecg.leads import LEADS
from lvcg_jax.report.svg_chart import nice_ticks
from lvcg_jax.report.vcg_figure import ARROW_MS, NAMES, PLANES, _part, _reach

SIDE, LEFT, TOP, BOTTOM = 300, 44, 24, 44  # units; the drawing is a square of SIDE


def draw_planes(facts: dict) -> list[str]:
    """A drawing for each plane of a summary of lvcg_jax.report.vcg."""
    vcg, ms = np.array(facts["vcg_mv"]), np.array(facts["ms"])
    parts = {name: _part(ms, *bounds) for name, bounds in facts["windows_ms"].items()}
    return [_plane(vcg, ms, parts, plane, _reach(vcg)) for plane in PLANES]


def draw_directions(matrix: np.ndarray) -> list[str]:
    """Directions [12,3] of the limb leads in the frontal plane and of the chest leads in the
    transverse one."""
    a = frank_axes(matrix)
    reach = 1.3 * float(np.linalg.norm(a, axis=1).max())
    return [_rays(a, LEADS[:6], PLANES[0], reach), _rays(a, LEADS[6:], PLANES[1], reach)]


def _rays(a: np.ndarray, leads: tuple[str, ...], plane: tuple, reach: float) -> str:
    title, (across, sign_across), (up, sign_up), sides, ends = plane
    scale, middle = SIDE / 2 / reach, (LEFT + SIDE / 2, TOP + SIDE / 2)
    drawn = []
    for lead in leads:
        vector = a[LEADS.index(lead)]
        move = np.array([sign_across * vector[across], -sign_up * vector[up]]) * scale
        word = move * (1 + 15 / max(float(np.hypot(*move)), 1e-9))
        drawn.append(
            f'<path d="M{middle[0]} {middle[1]}l{move[0]:.1f} {move[1]:.1f}" stroke="var(--s0)" stroke-width="2"/>'
        )
        place = f'x="{middle[0] + word[0]:.1f}" y="{middle[1] + word[1] + 4:.1f}"'
        drawn.append(
            f'<text {place} font-size="12" font-weight="600" text-anchor="middle">{lead}</text>'
        )
    words = f"{title} plane: directions of {', '.join(leads)}"
    ways = (
        f"{sides[0]} ← mV per mV of the vector → {sides[1]}",
        f"{ends[0]} ← mV per mV → {ends[1]}",
    )
    return _frame(f"{title}: {leads[0]} to {leads[-1]}", plane, reach, ways, words, drawn)


def _frame(
    title: str, plane: tuple, reach: float, ways: tuple[str, str], words: str, drawn: list[str]
) -> str:
    """A square with axes through its middle, what is drawn over them, and the words at the axes."""
    _, (_, sign_across), (_, sign_up), *_ = plane
    scale, middle = SIDE / 2 / reach, (LEFT + SIDE / 2, TOP + SIDE / 2)
    lines = [f'<text x="{LEFT}" y="15" font-size="13" font-weight="600">{escape(title)}</text>']
    lines.append(f'<rect class="rule" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>')
    for tick in nice_ticks(-reach, reach, 4):
        at, place = f"{round(float(tick), 6) + 0.0:g}", float(tick) * scale
        h, v = middle[0] + sign_across * place, middle[1] - sign_up * place
        line = "axis" if abs(tick) < 1e-9 else "rule"
        lines.append(f'<path class="{line}" d="M{h:.1f} {TOP}v{SIDE}M{LEFT} {v:.1f}h{SIDE}"/>')
        lines.append(
            f'<text x="{h:.1f}" y="{TOP + SIDE + 15}" font-size="11" text-anchor="middle">{at}</text>'
        )
        lines.append(
            f'<text x="{LEFT - 5}" y="{v + 4:.1f}" font-size="11" text-anchor="end">{at}</text>'
        )
    lines += [*drawn, f'<circle cx="{middle[0]}" cy="{middle[1]}" r="2.6" fill="var(--ink)"/>']
    lines.append(_label(ways[0], f'x="{middle[0]}" y="{TOP + SIDE + 33}"'))
    lines.append(_label(ways[1], f'transform="translate(11 {middle[1]}) rotate(-90)"'))
    box = f"0 0 {LEFT + SIDE + 8} {TOP + SIDE + BOTTOM}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(words)}" fill="none">{"".join(lines)}</svg>'


def _plane(
    vcg: np.ndarray, ms: np.ndarray, parts: dict[str, slice], plane: tuple, reach: float
) -> str:
    title, (across, sign_across), (up, sign_up), sides, ends = plane
    scale = SIDE / 2 / reach
    x = LEFT + SIDE / 2 + sign_across * vcg[across] * scale
    y = TOP + SIDE / 2 - sign_up * vcg[up] * scale
    drawn = []
    for name, part in parts.items():
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[part], y[part], strict=True))
        drawn.append(
            f'<path d="{path}" stroke="var(--{name})" stroke-width="1.8" stroke-linejoin="round"/>'
        )
        drawn += _arrows(x[part], y[part], ms, name)
    words = f"{title} plane: loops of {', '.join(NAMES[name] for name in parts)} in mV"
    ways = (f"{sides[0]} ← mV → {sides[1]}", f"{ends[0]} ← mV → {ends[1]}")
    return _frame(title, plane, reach, ways, words, drawn)


def _label(words: str, place: str) -> str:
    return f'<text class="quiet" {place} font-size="11" text-anchor="middle">{escape(words)}</text>'


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
