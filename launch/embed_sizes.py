"""How fast weights embed made-up records in batches of several sizes, in turns: what SLOTS and ROWS
of lvcg_jax/embed/lvcg.py are chosen by.

    python launch/embed_sizes.py --checkpoint=best --sizes=128x16,256x32,512x64,1024x128,2048x256

A size is slots for beats x rows for records of a batch. Batches are filled as those of a data set
are; speeds count the records that fitted in.
"""

import re
import statistics
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from lvcg_jax import LVCG  # noqa: E402
from lvcg_jax.bench.records import RandomRecords  # noqa: E402
from lvcg_jax.bench.timing import take_turns  # noqa: E402
from lvcg_jax.data.packing import pack  # noqa: E402
from lvcg_jax.embed.devices import embed_packed  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    parser = Parser("embed_sizes", __doc__, prog="python launch/embed_sizes.py")
    add = parser.add_argument
    add("--checkpoint", default="best", help="weights (default best)")
    add("--sizes", default="256x32,512x64,1024x128,2048x256", help="default %(default)s")
    add("--repeats", type=positive_int, default=7, help="timed calls of each size (default 7)")
    args = parser.parse_args(argv)
    if not re.fullmatch(r"\d+x[1-9]\d*(,\d+x[1-9]\d*)*", args.sizes):
        raise InputError(f"--sizes={args.sizes}: write SLOTSxROWS, for example 512x64,1024x128")

    # one full batch of each size
    model = LVCG.load(args.checkpoint)
    records = RandomRecords(model.preprocess)
    calls, counts = {}, {}
    for size in args.sizes.split(","):
        slots, rows = map(int, size.split("x"))
        if slots < model.max_beats:
            raise InputError(f"--sizes={size}: a record may have {model.max_beats} beats")
        windows = (w | {"visible": w["lead_mask"]} for w in records.read(range(rows + 1)))
        some, batch = next(pack(windows, slots, rows, model.model.signal_samples))
        visible, fixed = batch.pop("visible"), (model.model, model.max_beats, model.variables)
        calls[size] = partial(embed_packed, *fixed, batch, visible)
        counts[size] = len(some), sum(len(window["length"]) for window in some)

    # their speeds
    lines = []
    for size, seconds in take_turns(calls, args.repeats, "sizes").items():
        count, beats = counts[size]
        median = statistics.median(seconds)
        speeds = [f"{count / x:.1f}" for x in (median, min(seconds))]
        lines.append([size, f"{1 - beats / int(size.split('x')[0]):.1%}", f"{median:.3f}", *speeds])
    header = ["slots x rows", "padding", "seconds", "records/s", "records/s of the fastest call"]
    print("\n".join(markdown_table(header, lines)))
    return 0


if __name__ == "__main__":
    run_command(main)
