"""Shows what the shards hold of one record: where it comes from, what was found wrong, its leads,
beats and loops.

    python -m data_prep.inspect --data=shards/ptbxl --record=4711 --out=look

Prints the record's row of the ledger and what is stored of it, and draws the twelve leads on ECG
paper with the detected beats, and the loop of its lifted heart vector in three planes. The signal
is the filtered one, back in mV; if the shards do not hold it whole, it is stitched from the stored
beats.
"""

import sys
from pathlib import Path

from data_prep.base.command import Parser, natural_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.words import printable
from data_prep.dataset import shards
from data_prep.dataset.look import describe, draw, find_record
from data_prep.dataset.shards import ShardSet


def main(argv: list[str] | None = None) -> int:
    parser = Parser("inspect", "Show what a dataset directory holds of one record.")
    parser.add_argument("--data", required=True, help="dataset directory of data_prep.build")
    parser.add_argument("--record", required=True, help="record id, as in ledger.csv")
    parser.add_argument("--out", default=".", help="folder for the two SVG figures (default: here)")
    parser.add_argument(
        "--window", type=natural_int, help="window to draw (default: the first that is stored)"
    )
    args = parser.parse_args(argv)
    metadata = shards.read_metadata(args.data)
    row, position = find_record(args.data, args.record)
    examples = []
    if row["kept"] == "yes":
        stored = ShardSet(args.data, row["split"])
        examples = stored.read(range(position, position + int(row["windows"])))
        if any(example["record_id"] != args.record for example in examples):
            raise InputError(
                f"{args.data}: ledger and shards do not match; run the build command of this"
                " dataset again"
            )
    print("\n".join(map(printable, describe(row, examples, metadata).split("\n"))))
    if not examples:
        print("nothing of it is stored, so there is nothing to draw")
        return 0
    windows = [example["window"] for example in examples]
    wanted = windows[0] if args.window is None else args.window
    if wanted not in windows:
        raise InputError(
            f"record {args.record} has no window {wanted}; stored: {', '.join(map(str, windows))}"
        )
    for path in draw(row, examples[windows.index(wanted)], metadata, Path(args.out)):
        print(f"{'figure':<13} {path}")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
