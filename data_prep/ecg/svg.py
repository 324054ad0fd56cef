"""What all drawings share: text, round ticks, one style, and pictures that are files of their own.

A drawing is SVG with its size. A page takes it as it is; `write_picture` puts one or several into
a file that opens in any browser. Colours are the variables of svg.css, light or dark as the reader
has it.
"""

import html
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.files import write_whole

STYLE = Path(__file__).with_name("svg.css").read_text(encoding="utf-8")
LETTER = 0.51  # width of a letter as a share of its size, about
MARGIN, GAP = 20, 20  # pixels around and between the drawings of a picture
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Drawing:
    """SVG elements, and the size of the box that they fill."""

    width: float
    height: float
    content: str
    words: str  # for a reader who cannot see it
    kind: str = ""  # classes that the style refers to
    pixels: float = 1.0  # in one unit of width and height

    def __html__(self) -> str:
        """The drawing within a page; templates ask for this."""
        return self._element(f'role="img" aria-label="{escape(self.words)}"')

    def _repr_html_(self) -> str:
        """The drawing in a notebook, in its own size."""
        width = f"max-width: {self.width * self.pixels:.0f}px"
        return f'<style>{STYLE}</style><div style="{width}">{self.__html__()}</div>'

    def at(self, x: float, y: float) -> str:
        """The drawing at a place within a larger one."""
        size = f'width="{self.width * self.pixels:.1f}" height="{self.height * self.pixels:.1f}"'
        return self._element(f'x="{x:.1f}" y="{y:.1f}" {size}')

    def _element(self, attributes: str) -> str:
        kind = f' class="{self.kind}"' if self.kind else ""
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        return f'<svg{kind} {box} {attributes} fill="none">{self.content}</svg>'


def write_picture(
    path: str | Path,
    title: str,
    drawings: Sequence[Drawing],
    caption: str = "",
    *,
    columns: int = 1,
    keys: Iterable[tuple[str, str]] = (),
) -> Path:
    """Writes drawings side by side as one SVG file with a title, keys (colour, meaning) and a
    caption."""
    columns = min(columns, len(drawings))
    widths = [max(d.width * d.pixels for d in drawings[c::columns]) for c in range(columns)]
    width = sum(widths) + GAP * (columns - 1)
    parts = [text(title, MARGIN, MARGIN + 14, 18, bold=True, room=width)]
    y = MARGIN + 28.0
    if keys := list(keys):
        parts.append(key_row(keys, MARGIN, y + 9))
        y += 24

    for first in range(0, len(drawings), columns):
        row, x = drawings[first : first + columns], float(MARGIN)
        for drawing, room in zip(row, widths, strict=False):
            parts.append(drawing.at(x, y))
            x += room + GAP
        y += max(d.height * d.pixels for d in row) + GAP / 2

    for line in textwrap.wrap(caption, int(width / (12 * LETTER))):
        parts.append(text(line, MARGIN, y + 10, 12, "quiet"))
        y += 17
    whole = (width + 2 * MARGIN, y + MARGIN - GAP / 2)
    size = 'width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}"'.format(*whole)
    names = f"{title}: " + "; ".join(drawing.words for drawing in drawings)
    path = Path(path)
    write_whole(
        path,
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="none">\n'
        f"<title>{escape(names)}</title>\n<style>\n{STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="var(--paper)"/>\n{"".join(parts)}\n</svg>\n',
    )
    return path


def escape(words: object) -> str:
    """Words as XML takes them, without the characters that it does not know."""
    return html.escape(_NOT_XML.sub("\ufffd", str(words)))


def text(
    words: str,
    x: float,
    y: float,
    size: float = 11,
    kind: str = "",
    anchor: str = "",
    *,
    bold: bool = False,
    turned: bool = False,
    room: float = math.inf,
) -> str:
    """A line of text; what does not fit into `room` is cut off, and shows under the pointer."""
    shown = words
    if len(words) * size * LETTER * (1.12 if bold else 1.0) > room:
        shown = f"{words[: max(1, int(room / size / LETTER / (1.12 if bold else 1.0)) - 1)]}…"
    attributes = {
        "class": kind,
        "text-anchor": anchor,
        "font-weight": "600" if bold else "",
        "transform": f"translate({x:.0f} {y:.0f}) rotate(-90)" if turned else "",
    }
    more = "".join(f' {name}="{value}"' for name, value in attributes.items() if value)
    place = "" if turned else f' x="{x:.1f}" y="{y:.1f}"'
    hint = f"<title>{escape(words)}</title>" if shown != words else ""
    return f'<text{place} font-size="{size:g}"{more}>{escape(shown)}{hint}</text>'


def line(path: str, colour: str, width: float = 1.8, more: str = "") -> str:
    """A stroke along a path."""
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width:g}"{more}/>'


def dots(x: np.ndarray, y: np.ndarray, colour: str, size: float, more: str = "") -> str:
    """Round dots at places [m], as one path of strokes without length."""
    path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x, y, strict=True))
    return f'<path class="dots" d="{path}" stroke="{colour}" stroke-width="{size:g}"{more}/>'


def key_row(keys: Iterable[tuple[str, str]], x: float, y: float) -> str:
    """What colours mean, (colour, words) side by side."""
    parts = []
    for colour, words in keys:
        parts.append(line(f"M{x:.0f} {y - 4:.0f}h18", colour, 3))
        parts.append(text(words, x + 24, y, 12))
        x += 52 + 12 * LETTER * len(words)
    return "".join(parts)


def nice_ticks(low: float, high: float, about: int = 5) -> np.ndarray:
    """Round numbers that cover most of low..high: steps of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1e-12 * max(abs(low), abs(high), 1.0))
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


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
