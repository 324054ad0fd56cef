"""The vectorcardiogram of one record, for people: loops in three planes, a loop to turn by hand,
axes and angles.

    lvcg vcg --record=ecg/s0010_re.hea --out=look
    lvcg vcg --record=watch.csv --rate=250 --unit=mV --leads=I,II,V2 --out=look

Takes any leads of any file that the project reads, lifts them to the heart vector with fixed lead
directions, and writes NAME-vcg.svg, NAME-vcg.html (one file, no network) and NAME-vcg.json; the
numbers are printed too. The default geometry is 'dower', in mV: against measured Frank leads it is
better than 'paper' (lvcg geometry_report).

Axes are Frank's whatever the geometry: x to the patient's left, y to the feet, z to the back. A
frontal axis is an angle in the x-y plane: 0 degrees to the left, +90 to the feet. Everything is
measured on the median beat; the vector is zero just before the QRS. These are research figures from
simple time windows, not a diagnosis.
"""

import json
import sys
from pathlib import Path

import numpy as np
from markupsafe import Markup

from data_prep.base.command import Parser, positive_float, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import file_name
from data_prep.ecg import svg
from data_prep.ecg.geometry import dipole_matrix
from data_prep.ecg.loops import ARROW_MS, WAVES, wave_planes
from data_prep.ecg.svg import Drawing
from lvcg_jax.report.heart_vector import make_loop, number_lines, open_view, summary
from lvcg_jax.report.page import macros, render
from lvcg_jax.text.flags import add_shared


def source_words(facts: dict) -> str:
    """What the loop of a summary was made from."""
    beats = f"median of {facts['beats']} beats" if facts["beats"] > 1 else "one beat"
    return f"{beats}, from {', '.join(facts['leads'])}, {facts['geometry']} geometry"


def wave_keys(facts: dict) -> list[tuple[str, str]]:
    """What the colours of a loop mean: (colour, words)."""
    return [
        (f"var(--{name})", f"{WAVES[name]} {first:.0f} to {last:.0f} ms")
        for name, (first, last) in facts["windows_ms"].items()
    ]


def planes(facts: dict) -> list[Drawing]:
    """The loop of a summary in three planes."""
    return wave_planes(np.array(facts["vcg_mv"]), np.array(facts["ms"]), facts["windows_ms"])


def draw_loops(path: Path, facts: dict, lines: list[tuple[str, str]]) -> Path:
    """The picture of a summary: the planes, P and T enlarged under them, and the numbers (name,
    value) beside them."""
    vcg, ms = np.array(facts["vcg_mv"]), np.array(facts["ms"])
    small = {name: facts["windows_ms"][name] for name in ("p", "t")}
    enlarged = wave_planes(vcg, ms, small, ", P and ST-T enlarged")
    half = len(lines) // 2
    upper, lower = _number_column(lines[:half]), _number_column(lines[half:])
    source = source_words(facts)
    caption = [f"{source[0].upper()}{source[1:]}.", *facts["notes"]]
    caption.append("Time from R. Arrow heads: direction of time. Dashed: the largest vector.")
    return svg.write_picture(
        path,
        f"Vectorcardiogram of {facts['record']}",
        [*planes(facts), upper, *enlarged, lower],
        " ".join(caption),
        columns=4,
        keys=wave_keys(facts),
    )


def _number_column(lines: list[tuple[str, str]]) -> Drawing:
    """Names with their values under them."""
    parts = []
    for i, (name, value) in enumerate(lines):
        parts.append(svg.text(name, 0, 40 + 46 * i, 12, "quiet"))
        parts.append(svg.text(value, 0, 58 + 46 * i, 14))
    words = ", ".join(f"{name} {value}" for name, value in lines)
    return Drawing(230, 40 + 46 * len(lines), "".join(parts), words)


def loop_view(facts: dict) -> Markup:
    """The loop of a summary to turn by hand, with its buttons and its data."""
    ms = facts["ms"]
    data = {name: facts[name] for name in ("ms", "vcg_mv", "windows_ms")} | {
        "names": WAVES,
        "arrow_ms": ARROW_MS,
        "step": ms[1] - ms[0],
        "start": int(np.abs(ms).argmin()),
    }
    return macros("loop.html").loop_view(data, wave_keys(facts))


def page(facts: dict, lines: list[tuple[str, str]]) -> str:
    """The page of a summary; `lines` are its numbers as (name, value)."""
    return render(
        "vcg.html",
        title=f"Vectorcardiogram of {facts['record']}",
        subtitle=source_words(facts),
        remarks=facts["notes"],
        view=loop_view(facts),
        lines=lines,
    )


def write_files(facts: dict, out: str | Path) -> list[Path]:
    """The picture, the page and the JSON of a record's summary."""
    out = Path(out)
    stem = file_name(facts["record"])
    lines = number_lines(facts["numbers"])
    numbers = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    try:
        out.mkdir(parents=True, exist_ok=True)
        picture = draw_loops(out / f"{stem}-vcg.svg", facts, lines)
        (out / f"{stem}-vcg.html").write_text(page(facts, lines), encoding="utf-8")
        (out / f"{stem}-vcg.json").write_text(numbers, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out={out}: cannot write there ({error.strerror})") from None
    return [picture, out / f"{stem}-vcg.html", out / f"{stem}-vcg.json"]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("vcg", __doc__)
    add = parser.add_argument
    add("--record", required=True, help="WFDB, EDF, DICOM, .csv, .npz, ... (docs/formats.md)")
    add("--out", required=True, help="folder for the picture, the page and the JSON")
    add("--leads", help="leads to use, e.g. I,II,V2 (default: all that the record has)")
    add(
        "--geometry",
        default="dower",
        help="lead directions: dower (default), paper, or a .json or .csv file by lead",
    )
    add_shared(parser, "rate", "unit", "lead_names")
    add("--start", type=float, default=0.0, help="second to start at (default 0)")
    add("--seconds", type=positive_float, default=10.0, help="seconds to take (default 10)")
    args = parser.parse_args(argv)
    matrix = dipole_matrix(args.geometry)
    view = open_view(
        args.record, args.leads, args.rate, args.unit, args.lead_names, args.start, args.seconds
    )
    facts = summary(view, make_loop(view, matrix), matrix, Path(args.geometry).name)
    beats = f"median of {facts['beats']} beat{'s' * (facts['beats'] != 1)}"
    leads = ", ".join(facts["leads"])
    print(f"record {facts['record']}, leads {leads}, {facts['geometry']} geometry, {beats}")
    print("\n".join(f"{name:<34} {value}" for name, value in number_lines(facts["numbers"])))
    print("\n".join([*facts["notes"], *map(str, write_files(facts, args.out))]))
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
