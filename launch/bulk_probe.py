"""Probes a table of made-up embeddings from a folder of parts and from one file, and prints how
much memory each takes and what each scores.

    python launch/bulk_probe.py --out=runs/bulk_probe [--rows=100000] [--numbers=988]
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.base.words import SPLITS  # noqa: E402
from lvcg_jax.embed.parts import Source, write_parts  # noqa: E402
from lvcg_jax.embed.table import load_table, save_table  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402

CLASSES = 5
KINDS = {"RssAnon": "in memory", "RssFile": "mapped from disk"}  # of /proc/PID/status


class MadeUp:
    """Stands in for a model: random numbers, a few of which say the class."""

    checkpoint = "made_up#0"

    def __init__(self, numbers: int):
        self.part_sizes = {"structure": numbers - numbers // 4, "rhythm": numbers // 4}
        self.preprocess = self  # only its hash is asked for

    def hash(self) -> str:
        return "none"

    def embed_pieces(self, pieces: Iterator) -> Iterator[tuple[list[dict], dict]]:
        for windows in map(list, pieces):
            rng = np.random.default_rng(int(windows[0]["record_id"]))
            rows = {
                name: rng.normal(size=(len(windows), size)).astype(np.float32)
                for name, size in self.part_sizes.items()
            }
            for window, row in zip(windows, rows["structure"], strict=True):
                yes = row[:CLASSES] + rng.normal(size=CLASSES) > 1
                window["labels"] = {"made_up": [f"c{c}" for c in np.flatnonzero(yes)]}
            yield windows, rows

    def lead_facts(self, windows: list[dict]) -> dict[str, np.ndarray]:
        return {"rank": np.full(len(windows), 3)}


def windows(piece: str, first: int, stop: int, failures: list, done) -> Iterator[dict]:
    """Nameless records, eight of ten for training."""
    for number in range(first, stop):
        done()
        split = SPLITS[max(0, number % 10 - 7)]
        yield {
            "record_id": str(number),
            "patient_id": str(number),
            "split": split,
            "window": 0,
            "start_seconds": 0.0,
            "length": [0],
            "visible": 4095,
            "defects": "",
        }


def main(argv: list[str] | None = None) -> int:
    parser = Parser("bulk_probe", __doc__, prog="python launch/bulk_probe.py")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="new folder for everything")
    add("--rows", type=positive_int, default=100_000, help="default 100000")
    add("--numbers", type=positive_int, default=988, help="of a row (default 988)")
    args = parser.parse_args(argv)
    if args.out.exists():
        raise InputError(f"{args.out} exists already: give a new folder")
    folder, file = args.out / "parts", args.out / "one.npz"
    tasks = {"made_up": [f"c{c}" for c in range(CLASSES)]}
    write_parts(MadeUp(args.numbers), Source("", tasks, {"": args.rows}, windows), folder)
    save_table(file, load_table(folder))
    lines, scores = [], set()
    for name, place in (("a folder of parts", folder), ("one file", file)):
        peaks, score = probe(place, args.out / "probe.json")
        lines.append([name, *(f"{peak:,.0f}" for peak in peaks), f"{score:.5f}"])
        scores.add(round(score, 5))
    heading = ["probe of", *(f"MiB {words}" for words in KINDS.values()), "macro AUROC"]
    print("\n".join(markdown_table(heading, lines)))
    return 0 if len(scores) == 1 else 1


def probe(table: Path, out: Path) -> tuple[list[float], float]:
    """The most that a probe held of each kind of memory, in MiB, and its score."""
    flags = [f"--embeddings={table}", f"--out={out}", "--fractions=1", "--resamples=20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lvcg_jax.probe", *flags], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    peaks = dict.fromkeys(KINDS, 0.0)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        for kind in KINDS:
            found = re.search(rf"{kind}:\s+(\d+) kB", status)
            peaks[kind] = max(peaks[kind], int(found[1]) / 1024 if found else 0.0)
        time.sleep(0.02)
    if process.returncode:
        raise InputError(f"lvcg probe ended with exit code {process.returncode}")
    (result,) = json.loads(out.read_text())["results"]
    return list(peaks.values()), result["cells"][0]["macro_auroc"]


if __name__ == "__main__":
    run_command(main)
