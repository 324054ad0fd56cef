"""Draws the chart of docs/results.md from the tables of that page.

python launch/draw_results.py
"""

import re
from pathlib import Path

from data_prep.base.command import Parser, run_command
from data_prep.ecg import svg
from lvcg_jax.text.charts import Dot, dot_plot

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
PICTURE = PAGE.parent / "figures" / "results.svg"
# row of a table -> what the chart calls it, and its colour: -1 is grey, for what is not ours
ROWS = {
    "`best`, 100%": ("best", 0),
    "random weights, 100%": ("random weights, same extras", 2),
    "median beat and sizes": ("median beat and sizes", 3),
    "highest known, linear probe": ("highest known, by others", -1),
}


def read_rows(text: str) -> dict[str, list[tuple[float, float | None, float | None]]]:
    """The rows of the chart: for each task the score with all labels, and its interval if there is
    one."""
    found = {}
    for name in ROWS:
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        cells = [cell.strip() for cell in line.strip("|").split("|")[1:]]
        numbers = [[float(n) for n in re.findall(r"[\d.]+", cell)] for cell in cells]
        # 'a / b / c' are 1, 10 and 100% of the labels, 'a [b, c]' is a score with its interval
        found[name] = [
            tuple(some) if "[" in cell else (some[-1], None, None)
            for some, cell in zip(numbers, cells, strict=True)
        ]
    return found


def draw(out: Path) -> Path:
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    groups = [
        (task, [Dot(words, *rows[name][i], colour=c) for name, (words, c) in ROWS.items()])
        for i, task in enumerate(("super", "sub", "form", "rhythm"))
    ]
    plot = dot_plot(groups, "PTB-XL, all labels", "test macro AUROC x 100")
    caption = (
        "Linear probes of frozen features on fold 9, with 95% intervals over patients where they"
        " were measured; what others publish is for fold 10."
    )
    return svg.write_picture(out, "What the weights know", [plot], caption)


def main(argv: list[str] | None = None) -> None:
    parser = Parser("", __doc__, prog="python launch/draw_results.py")
    parser.add_argument("--out", type=Path, default=PICTURE, help="default figures/results.svg")
    print(f"wrote {draw(parser.parse_args(argv).out)}")


if __name__ == "__main__":
    run_command(main)
