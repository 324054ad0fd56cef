"""A seeded corpus of schematic 12-lead ECG, written as ordinary WFDB records.

Hearts, torsos and noise come from data_prep.dipole. Here a patient's lasting conditions become the
labels of a record: the severity of the day, the rhythm, and changes too slight to be labelled.
Every record has its own key (seed, patient, record): a bigger corpus contains the smaller
unchanged.

    python -m data_prep.synthetic --out=DIR --patients=200 --records_per_patient=5 --seed=0
"""

from data_prep.base.command import Parser, run_command
from data_prep.synthetic_heart.records import write_corpus


def main(argv=None):
    """Command line."""
    parser = Parser("synthetic", "Write a seeded synthetic 12-lead ECG corpus.")
    parser.add_argument(
        "--out",
        required=True,
        help="folder to write (new, empty, or an earlier run of the same settings)",
    )
    parser.add_argument(
        "--patients", type=int, default=200, help="number of patients (default 200)"
    )
    parser.add_argument(
        "--records_per_patient", type=int, default=5, help="records of each patient (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of a record (default 10)"
    )
    parser.add_argument("--rate", type=int, default=250, help="samples per second (default 250)")
    parser.add_argument(
        "--geometry",
        choices=("dower", "paper"),
        default="dower",
        help="torso every patient varies (default dower)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the corpus (default 0)")
    args = parser.parse_args(argv)
    options = {key: value for key, value in vars(args).items() if key != "out"}
    counts = write_corpus(args.out, **options, progress=True)
    shown = "; ".join(
        f"{task}: " + ", ".join(f"{k} {v}" for k, v in names.items())
        for task, names in counts.items()
    )
    print(
        f"wrote {args.patients * args.records_per_patient} records of {args.patients} patients to {args.out} ({shown})"
    )


if __name__ == "__main__":
    run_command(main)
