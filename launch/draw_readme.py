"""Draws the picture of the README: three leads of a synthetic record, its heart vector, its
embedding by `best`, and the nine leads that `lvcg_field` derives.

    python launch/draw_readme.py
"""

import tempfile
from pathlib import Path

import numpy as np
from scipy.interpolate import CubicSpline

from data_prep.base.command import Parser, run_command
from data_prep.ecg.leads import LEADS
from data_prep.formats.any_file import read_any
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.__main__ import main as lvcg

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "readme.svg"
VISIBLE = ("II", "V2", "V5")
ROWS = (("I", "aVR", "V1", "V4"), ("II", "aVL", "V2", "V5"), ("III", "aVF", "V3", "V6"))
SECONDS = (2.3, 4.9)  # shown of each lead
PIXELS_PER_MV = 30
STYLE = """
  .page { fill: #ffffff; } text { font: 13px system-ui, sans-serif; fill: #46566a; }
  .title { font-weight: 700; fill: #14202e; } path { fill: none; stroke-width: 1.5; }
  .seen { stroke: #14202e; } .true { stroke: #c3ccd6; stroke-width: 2.5; }
  .derived { stroke: #c2571a; }
  .loop { stroke: #2f6db0; } .step { stroke: #7d8ea3; } .derived-text { fill: #c2571a; }
  .cell { fill: #2f6db0; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #10161d; } text { fill: #a9b8c9; } .title { fill: #e8eef5; }
    .seen { stroke: #e8eef5; } .true { stroke: #46566a; } .derived { stroke: #f0935a; }
    .loop { stroke: #7fb2ea; } .derived-text { fill: #f0935a; } .cell { fill: #7fb2ea; }
  }
"""


def polyline(kind: str, x: np.ndarray, y: np.ndarray) -> str:
    points = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<path class="{kind}" d="M{points}"/>'


def trace(kind: str, mv: np.ndarray, rate: float, left: float, middle: float, width: float) -> str:
    """The shown seconds of a lead [T]."""
    first, last = (round(second * rate) for second in SECONDS)
    x = left + np.linspace(0, width, last - first)
    return polyline(kind, x, middle - PIXELS_PER_MV * mv[first:last])


def words(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def step(x: float, y: float) -> str:
    """An arrow to the right."""
    return f'<path class="step" d="M{x:g} {y:g}h26m-7 -5l7 5l-7 5"/>'


def draw() -> str:
    """The picture as SVG."""
    signal, _ = make_record(patient=5, rate=500)
    shown = signal[:, [LEADS.index(lead) for lead in VISIBLE]]

    # What is made of three leads: the derived record, the heart vector, the embedding. The
    # truth is filtered as the model's input is.
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/ecg.npz", signal=signal, rate=500.0, unit="mV", leads=LEADS)
        flags = [f"--record={folder}/ecg.npz", f"--visible={','.join(VISIBLE)}", "--write_wfdb"]
        lvcg(["reconstruct", *flags, f"--out={folder}"])
        derived = read_any(f"{folder}/ecg_derived.hea")
    model = LVCG.load("best")
    heart, embedding = model.vcg(shown, 500, VISIBLE)[0], model.embed(shown, 500, VISIBLE).mean
    window = model.preprocess.prepare(signal, 500, LEADS)[0]
    truth = window.signal * window.scale[:, None]  # [12,T]

    parts = [
        words("title", 120, 34, "three leads"),
        words("title", 372, 34, "one heart vector"),
        words("title", 715, 34, "nine more leads"),
    ]
    for k, lead in enumerate(VISIBLE):
        parts += [
            words("", 26, 96 + 84 * k, lead, "start"),
            trace("seen", truth[LEADS.index(lead)], heart.rate, 50, 92 + 84 * k, 176),
        ]

    # The loop of one beat, seen from the front: x to the patient's left, y downwards.
    first = heart.r_peaks[3] - round(0.3 * heart.rate)
    beat = heart.vcg[:2, first : first + round(0.75 * heart.rate)]
    beat = CubicSpline(np.arange(beat.shape[1]), beat, axis=1)(np.arange(0, beat.shape[1] - 1, 0.2))
    low, high = beat.min(1), beat.max(1)
    x, y = (beat - (low + high)[:, None] / 2) * 180 / (high - low).max()
    parts += [step(240, 170), polyline("loop", 372 + x, 150 + y), step(468, 170)]

    # The embedding as a strip: the darker a cell, the larger the mean size of its numbers.
    sizes = np.array([np.abs(part).mean() for part in np.array_split(embedding, 44)])
    shades = np.clip(sizes / np.quantile(sizes, 0.9), 0.08, 1)
    parts += [
        f'<rect class="cell" x="{284 + 4 * k}" y="262" width="4" height="18"'
        f' opacity="{shade:.2f}"/>'
        for k, shade in enumerate(shades)
    ]
    parts.append(words("", 372, 300, f"embedding of {len(embedding)} numbers"))

    # All twelve leads: what was recorded in grey, what was derived over it.
    for r, row in enumerate(ROWS):
        for c, lead in enumerate(row):
            left, middle, n = 512 + 106 * c, 98 + 84 * r, LEADS.index(lead)
            kind = "" if lead in VISIBLE else "derived-text"
            parts.append(words(kind, left, middle - 34, lead, "start"))
            if lead in VISIBLE:
                parts.append(trace("seen", truth[n], heart.rate, left, middle, 96))
            else:
                parts.append(trace("true", truth[n], heart.rate, left, middle, 96))
                parts.append(trace("derived", derived.signal[:, n], derived.rate, left, middle, 96))
    parts.append(words("derived-text", 715, 336, "derived by the model, over the truth"))
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 352" role="img"'
            ' width="960" height="352">',
            "<title>Three leads of an ECG, their heart vector, and nine derived leads</title>",
            f"<style>{STYLE}</style>",
            '<rect class="page" width="960" height="352" rx="12"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = Parser("", __doc__, prog="python launch/draw_readme.py")
    parser.add_argument("--out", type=Path, default=PICTURE, help="default docs/figures/readme.svg")
    args = parser.parse_args(argv)
    args.out.write_text(draw(), encoding="utf-8")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    run_command(main)
