"""Draws the model for docs/method.md: what goes through it, and where the terms of the loss are.

    python launch/draw_model.py

Sizes are those of the paper's preset, read from configs/pretrain.py.
"""

from dataclasses import dataclass
from pathlib import Path

from data_prep.base.command import Parser, run_command
from data_prep.ecg import svg
from lvcg_jax.config.files import read_config_file

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "figures" / "model.svg"
WIDTH, HEIGHT, LINE = 920, 400, 15
DATA, LEARNED, FIXED, RESULT = "var(--grey)", "var(--s0)", "var(--s2)", "var(--s1)"


@dataclass(frozen=True)
class Box:
    """A step or what comes out of one, with the place of its upper left corner."""

    x: float
    y: float
    name: str
    lines: tuple[str, ...]
    colour: str
    width: float = 150

    @property
    def height(self) -> float:
        return 28 + LINE * len(self.lines)

    def side(self, where: str) -> tuple[float, float]:
        """The middle of its left, right, top or bottom side."""
        across, down = {"left": (0, 0.5), "right": (1, 0.5), "top": (0.5, 0), "bottom": (0.5, 1)}[
            where
        ]
        return self.x + across * self.width, self.y + down * self.height

    def draw(self) -> str:
        frame = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="7"'
        parts = [f'<rect {frame} fill="var(--wash)" stroke="{self.colour}" stroke-width="1.6"/>']
        parts.append(svg.text(self.name, self.x + 10, self.y + 18, 13, bold=True))
        for number, words in enumerate(self.lines):
            parts.append(svg.text(words, self.x + 10, self.y + 34 + LINE * number, 11, "quiet"))
        return "".join(parts)


def arrow(start: tuple[float, float], end: tuple[float, float], words: str = "") -> str:
    """A line with one bend at most from place to place, with a head and words beside it."""
    (x, y), (u, v) = start, end
    level = abs(y - v) < 1
    upright = abs(x - u) < 1
    middle = (x + u) / 2
    path = f"M{x} {y}L{u} {v}" if level or upright else f"M{x} {y}H{middle}V{v}H{u}"
    if upright:
        sign = 1 if v > y else -1
        head = f"M{u} {v}l-4 {-7 * sign}h8z"
    else:
        head = f"M{u} {v}l-7 -4v8z"
    parts = [svg.line(path, "var(--grey)", 1.4), f'<path d="{head}" fill="var(--grey)"/>']
    if words:
        place = (x + 7, (y + v) / 2 + 4, "") if upright else (middle, min(y, v) - 5, "middle")
        parts.append(svg.text(words, place[0], place[1], 11, "quiet halo", place[2]))
    return "".join(parts)


def draw(path: Path = PICTURE) -> Path:
    """Writes the picture."""
    c = read_config_file("configs/pretrain.py")
    token, state, rhythm = c.model.token_dim, c.model.state_dim, c.model.rhythm_dim
    samples = c.preprocess.beat_samples

    # what goes through the model, from left to right, and what comes out of it
    top, low, out = 8, 143, 268
    leads = Box(
        10, top, "Beats of the leads", (f"[n, 12, {samples}], R to R;", "some are visible"), DATA
    )
    lift = Box(200, top, "Lift", ("A⁺ of the visible", "rows of A"), FIXED, 120)
    encoder = Box(360, top, "Encoder", ("ResNet1D, each beat", "by itself"), LEARNED, 140)
    gru = Box(
        560,
        top,
        "Temporal module",
        ("GRU over the beats, fed", "its own predictions"),
        LEARNED,
        165,
    )
    decoder = Box(
        560, low, "Decoder", ("token to heart vector,", "one for ẑ and for z"), LEARNED, 165
    )
    project = Box(770, low, "Project", ("A · heart vector",), FIXED, 140)
    intervals = Box(10, low, "R-R intervals", ("of the complete beats",), DATA)
    rhythms = Box(200, low, "Rhythm encoder", ("sinusoids, attention,", "statistics"), LEARNED)
    parts = [
        Box(200, out, "rhythm", (f"[{rhythm}]",), RESULT),
        Box(365, out, "structure", (f"[{token}] mean of z",), RESULT, 130),
        Box(770, top, "dynamics", (f"[{state}] last state",), RESULT, 140),
    ]
    losses = [
        Box(560, out, "L_vcg", ("decoded z against the", "lifted visible leads"), DATA, 165),
        Box(770, out, "L_ecg", ("derived leads against", "the true hidden ones"), DATA, 140),
        Box(560, out + 78, "L_temp", ("steps of ẑ against steps of z",), DATA, 195),
    ]
    boxes = [leads, lift, encoder, gru, decoder, project, intervals, rhythms, *parts, *losses]

    arrows = [
        arrow(leads.side("right"), lift.side("left")),
        arrow(lift.side("right"), encoder.side("left")),
        arrow(encoder.side("right"), gru.side("left"), "z"),
        arrow(gru.side("right"), (770, gru.side("right")[1])),
        arrow(gru.side("bottom"), decoder.side("top"), "ẑ"),
        arrow(decoder.side("right"), (770, decoder.side("right")[1])),
        arrow(project.side("bottom"), losses[1].side("top")),
        arrow(decoder.side("bottom"), losses[0].side("top")),
        arrow(encoder.side("bottom"), (encoder.side("bottom")[0], out)),
        arrow((encoder.side("bottom")[0], decoder.side("left")[1]), decoder.side("left"), "z"),
        arrow(intervals.side("right"), (200, intervals.side("right")[1])),
        arrow(rhythms.side("bottom"), parts[0].side("top")),
    ]
    content = "".join([*arrows, *(box.draw() for box in boxes)])
    drawing = svg.Drawing(WIDTH, HEIGHT, content, "boxes of the model and the way through them")
    keys = [(DATA, "data and terms of the loss"), (FIXED, "fixed geometry")]
    keys += [(LEARNED, "learned"), (RESULT, "parts of the embedding")]
    caption = (
        "z: tokens of the encoder; ẑ: those that the temporal module predicts. The embedding joins"
        " structure, dynamics and rhythm; the terms of the loss are for training alone, and in the"
        " paper's objective none of them reaches the rhythm encoder."
    )
    return svg.write_picture(path, "The model", [drawing], caption, keys=keys)


def main(argv: list[str] | None = None) -> None:
    parser = Parser("", __doc__, prog="python launch/draw_model.py")
    parser.add_argument(
        "--out", type=Path, default=PICTURE, help="docs/figures/model.svg if left out"
    )
    print(f"wrote {draw(parser.parse_args(argv).out)}")


if __name__ == "__main__":
    run_command(main)
