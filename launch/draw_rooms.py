"""Draws the rooms of the project and the imports between them, for docs/architecture.md.

    python launch/draw_rooms.py

The rooms and their order are those of the import-linter contracts in pyproject.toml, what a room is
for is the first sentence of its `__init__.py` (of a door: its line in `lvcg --help`), and the
arrows are read from the import graph. Rooms on one level stand in one row. An arrow that follows
from others is left out: if a row imports a second one and that imports a third, no arrow leads from
the first to the third.
"""

import importlib
import textwrap
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

import grimp

from data_prep.base.command import Parser, run_command
from lvcg_jax.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lvcg_jax", "data_prep")
PICTURE = ROOT / "docs" / "figures" / "rooms.svg"

# Sizes in pixels.
MARGIN, GUTTER, BETWEEN = 24, 76, 120
COLUMN, GAP, LINE, PADDING = 372, 16, 15, 12
CHARACTER = 6.6  # width of a letter of a description, about
STYLE = """
  .page { fill: #ffffff; } .room { fill: #f3f6fa; stroke: #b8c4d3; }
  .name { fill: #14202e; font: 600 14px ui-monospace, monospace; }
  .what { fill: #46566a; font: 12px system-ui, sans-serif; }
  .title { fill: #14202e; font: 700 16px system-ui, sans-serif; }
  .import { fill: none; stroke: #5b7ea6; stroke-width: 1.5; } .head { fill: #5b7ea6; }
  .across { stroke: #b06a2c; } .across-head { fill: #b06a2c; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #10161d; } .room { fill: #1b2530; stroke: #3d4e61; }
    .name, .title { fill: #e8eef5; } .what { fill: #a9b8c9; }
    .import { stroke: #7fa8d6; } .head { fill: #7fa8d6; }
    .across { stroke: #dd9a5e; } .across-head { fill: #dd9a5e; }
  }
"""


def read_graph() -> grimp.ImportGraph:
    """The imports of both packages, with the libraries that they import."""
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def room_of(module: str) -> str:
    """'lvcg_jax.model.losses' -> 'lvcg_jax.model'; a module that lies directly in a package is a
    room by itself."""
    return ".".join(module.split(".")[:2])


def room_imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """{room: rooms that it imports}. The packages' own `__init__` and the table of commands, which
    import rooms when they are first asked for one, are no rooms."""
    imports: dict[str, set[str]] = {}
    no_rooms = {*PACKAGES, "lvcg_jax.__main__"}
    for module in graph.modules:
        if module.split(".")[0] in PACKAGES and room_of(module) not in no_rooms:
            found = {room_of(other) for other in graph.find_modules_directly_imported_by(module)}
            ours = {room for room in found if room.split(".")[0] in PACKAGES}
            imports.setdefault(room_of(module), set()).update(ours - no_rooms - {room_of(module)})
    return imports


def rows_of(package: str) -> list[list[str]]:
    """The rooms of a package from top to bottom, as the contract in pyproject.toml has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c.get("containers") == [package])
    return [[f"{package}.{name.strip()}" for name in row.split("|")] for row in layers]


def reduced(imports: dict[int, set[int]]) -> dict[int, set[int]]:
    """The imports of rows without those that follow from others."""

    def reached(row: int) -> set[int]:
        return imports[row].union(*map(reached, imports[row]))

    return {
        row: {one for one in below if not any(one in reached(other) for other in below - {one})}
        for row, below in imports.items()
    }


def purpose(room: str) -> str:
    """What a room is for, in one sentence."""
    for commands in COMMANDS.values():
        for module, line in commands.values():
            if module == room:
                return line
    text = importlib.import_module(room).__doc__ or ""
    return " ".join(text.split()).split(". ")[0].removesuffix(".")


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(path: str, x: float, y: float, to: str, kind: str = "") -> str:
    """A line, and a head at (x, y) that points `to` the left, right or down."""
    back = {"left": (7, -4, 7, 4), "right": (-7, -4, -7, 4), "down": (-4, -7, 4, -7)}[to]
    a, b, c, d = (x + back[0], y + back[1], x + back[2], y + back[3])
    return (
        f'<path class="import {kind}" d="{path}"/>'
        f'<path class="head {kind}{"-head" if kind else ""}"'
        f' d="M{x:g} {y:g}L{a:g} {b:g}L{c:g} {d:g}Z"/>'
    )


class Column:
    """The rows of one package: where each stands, and its boxes."""

    def __init__(self, package: str, left: float):
        self.left, self.rows, self.boxes = left, rows_of(package), []
        self.top: list[float] = []
        self.height: list[float] = []
        y = 0.0
        for row in self.rows:
            width = (COLUMN - GAP * (len(row) - 1)) / len(row)
            wrapped = [
                textwrap.wrap(purpose(room), int((width - 2 * PADDING) / CHARACTER)) for room in row
            ]
            self.top.append(y)
            self.height.append(2 * PADDING + LINE * (1 + max(map(len, wrapped))) - 2)
            for k, (room, lines) in enumerate(zip(row, wrapped, strict=True)):
                self.boxes.append(
                    (left + k * (width + GAP), y, width, self.height[-1], room, lines)
                )
            y += self.height[-1] + GAP
        self.bottom = y - GAP

    def move_down(self, by: float) -> None:
        self.top = [y + by for y in self.top]
        self.boxes = [(x, y + by, *rest) for x, y, *rest in self.boxes]

    def middle(self, row: int, part: float = 0.5) -> float:
        return self.top[row] + part * self.height[row]

    def draw(self) -> list[str]:
        drawn = []
        for x, y, width, height, room, lines in self.boxes:
            drawn.append(
                f'<rect class="room" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
                ' rx="7"/>'
            )
            first = y + PADDING + 11
            drawn.append(text("name", x + PADDING, first, room.split(".")[1]))
            drawn += [
                text("what", x + PADDING, first + LINE * (k + 1), line)
                for k, line in enumerate(lines)
            ]
        return drawn


def draw() -> str:
    """The picture as SVG."""
    columns = [
        Column(PACKAGES[0], MARGIN + GUTTER),
        Column(PACKAGES[1], MARGIN + GUTTER + COLUMN + BETWEEN),
    ]
    top, bottom = 64, max(column.bottom for column in columns)
    for column in columns:
        column.move_down(top + bottom - column.bottom)
    width, height = columns[1].left + COLUMN + GUTTER + MARGIN, top + bottom + MARGIN

    # Imports between rows, numbered through both columns.
    rooms = room_imports(read_graph())
    places = [(c, r) for c, column in enumerate(columns) for r in range(len(column.rows))]
    number = {room: n for n, (c, r) in enumerate(places) for room in columns[c].rows[r]}
    rows = reduced(
        {
            n: {number[one] for room in columns[c].rows[r] for one in rooms.get(room, ())} - {n}
            for n, (c, r) in enumerate(places)
        }
    )

    # Arrows to the next row go straight down, others of a package around its outer side, those to
    # the other package through the middle.
    arrows = []
    for source, targets in rows.items():
        for target in sorted(targets):
            (c, r), (d, s) = places[source], places[target]
            here, there = columns[c], columns[d]
            if c != d:
                x, end, y, z = here.left + COLUMN, there.left - 2, here.middle(r), there.middle(s)
                half = (x + end) / 2
                path = f"M{x:g} {y:g}C{half:g} {y:g} {half:g} {z:g} {end - 6:g} {z:g}"
                arrows.append(arrow(path, end, z, "right", "across"))
            elif s == r + 1:
                x, y, z = here.left + COLUMN / 4, here.top[r] + here.height[r], here.top[s] - 2
                arrows.append(arrow(f"M{x:g} {y:g}V{z - 6:g}", x, z, "down"))
            else:
                side = -1 if c == 0 else 1
                x = here.left if c == 0 else here.left + COLUMN
                y, z, end = here.middle(r, 0.7), there.middle(s, 0.3), x + 2 * side
                out = x + side * min(GUTTER + 18, 22 + 11 * (s - r))
                path = f"M{x:g} {y:g}C{out:g} {y:g} {out:g} {z:g} {end + 6 * side:g} {z:g}"
                arrows.append(arrow(path, end, z, "right" if c == 0 else "left"))

    titles = [
        text("title", column.left, column.top[0] - 18, title)
        for column, title in zip(
            columns, ("lvcg_jax: learning, with JAX", "data_prep: ECG, without JAX"), strict=True
        )
    ]
    parts = [*titles, *arrows, *columns[0].draw(), *columns[1].draw()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
            f' width="{width:g}" height="{height:g}">',
            "<title>The rooms of lvcg_jax and data_prep, and which imports which</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width:g}" height="{height:g}" rx="12"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = Parser("", __doc__, prog="python launch/draw_rooms.py")
    parser.add_argument(
        "--out", type=Path, default=PICTURE, help="docs/figures/rooms.svg if left out"
    )
    args = parser.parse_args(argv)
    args.out.write_text(draw(), encoding="utf-8")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    run_command(main)
