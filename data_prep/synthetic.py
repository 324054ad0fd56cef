"""Writes a seeded corpus of schematic 12-lead ECG as ordinary WFDB records, to try things out.

    lvcg synthetic --out=DIR --patients=200 --records_per_patient=5 --seed=0

What it holds is described in data_prep/synthetic_heart/records.py. A larger corpus of the same seed
contains the smaller one unchanged.
"""

import sys

from data_prep.base.command import Parser, natural_int, positive_float, positive_int, run_command
from data_prep.synthetic_heart.records import write_corpus


def main(argv: list[str] | None = None) -> int:
    parser = Parser("synthetic", "Write a seeded synthetic 12-lead ECG corpus.")
    add = parser.add_argument
    add(
        "--out",
        required=True,
        help="folder to write (new, empty, or an earlier run of the same settings)",
    )
    add("--patients", type=positive_int, default=200, help="number of patients (default 200)")
    add(
        "--records_per_patient",
        type=positive_int,
        default=5,
        help="records of each patient (default 5)",
    )
    add("--seconds", type=positive_float, default=10.0, help="length of a record (default 10)")
    add("--rate", type=positive_int, default=250, help="samples per second (default 250)")
    add(
        "--geometry",
        choices=("dower", "paper"),
        default="dower",
        help="the torso that every patient varies (default dower)",
    )
    add("--seed", type=natural_int, default=0, help="seed of the corpus (default 0)")
    args = parser.parse_args(argv)
    options = {key: value for key, value in vars(args).items() if key != "out"}
    counts = write_corpus(args.out, **options, progress=True)
    shown = "; ".join(
        f"{task}: " + ", ".join(f"{name} {count}" for name, count in names.items())
        for task, names in counts.items()
    )
    records = args.patients * args.records_per_patient
    print(f"wrote {records} records of {args.patients} patients to {args.out} ({shown})")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
