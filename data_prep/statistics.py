"""The table of data sets of a paper, from the shards: records, patients, classes, rates, beats.

    lvcg statistics --data=data/ptbxl --data=data/cpsc2018 --out=datasets.md

A row for each data set, then the number of records of every class in every split. Only dataset.json
and ledger.csv are read; `lvcg verify` proves that the shards agree with them.
"""

import sys
from pathlib import Path

from data_prep.base.command import Parser, run_command
from data_prep.base.files import write_whole
from data_prep.dataset.statistics import statistics


def main(argv: list[str] | None = None) -> int:
    parser = Parser("statistics", "Print a Markdown table of data sets and of their classes.")
    add = parser.add_argument
    add("--data", required=True, action="append", help="a dataset directory; repeatable")
    add("--out", type=Path, help="also write the tables to this file")
    args = parser.parse_args(argv)
    text = statistics(args.data)
    print(text, end="")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(args.out, text)
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
