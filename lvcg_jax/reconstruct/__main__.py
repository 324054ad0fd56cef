"""Derives hidden leads of ECG records from visible ones with every method of lead_methods.py, and
measures it.

    lvcg reconstruct --checkpoint=RUN --data=SHARDS --visible=II,V2,V5 --out=DIR
    lvcg reconstruct --checkpoint=RUN --data=SHARDS --k=3,5 --split=all --out=DIR
    lvcg reconstruct --checkpoint=RUN --record=ecg.hea --visible=I,II,V2 --write_wfdb --out=DIR

On shards: metrics.json, table.md and pictures of the best, the median and the worst record. --k
draws visible leads for each record, from its uid, among subsets that span three dimensions: the
same for every method. --split=all takes every record of a set that the model was not trained on;
what is fitted is then fitted on other patients (five folds). A record that lacks a visible lead
goes on with the others; one that has none of them, or nothing to compare with, is listed under
`failures`. For one raw record: a picture, and with --write_wfdb twelve leads, see derive_record.py.
Without --checkpoint the weights that the package carries are used, or none if no method of
--methods has a network.

Axis letters: k row (one view of one record), l lead, T sample.
"""

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from lvcg_jax.reconstruct.methods import METHODS
from lvcg_jax.reconstruct.study import evaluate_shards
from lvcg_jax.runs import weights


def main(argv: list[str] | None = None) -> int:
    parser = Parser("reconstruct", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add(
        "--data",
        metavar="SHARDS",
        help="shards to measure on (with --record: to learn typical lead sizes from)",
    )
    add("--split", default="test", help="split to measure on (default test), or all")
    add(
        "--visible",
        action="append",
        default=[],
        metavar="LEADS",
        help="visible leads, e.g. II,V2,V5; may be repeated",
    )
    add("--k", help="numbers of visible leads drawn for each record, e.g. 3 or 3,5")
    add("--draws", type=int, default=1, help="views drawn for each record with --k (default 1)")
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--methods", default="all", help=f"comma-separated, of {', '.join(METHODS)} (default all)")
    add(
        "--also",
        action="append",
        default=[],
        metavar="RUN:SHARDS",
        help="another run's LVCG, on its own shards",
    )
    add(
        "--eps",
        type=float,
        help="Tikhonov coefficient of the geometry methods (default: the run's)",
    )
    add("--limit", type=int, help="at most so many records, drawn by patient")
    add(
        "--fit_data",
        metavar="SHARDS",
        help="fit on the training records of this data set instead of --data",
    )
    add(
        "--fit_records",
        type=int,
        default=20_000,
        help="training records for fitted methods (default 20000)",
    )
    add(
        "--morphology",
        type=int,
        default=300,
        help="views whose beats are measured, QRS, QT and so on (default 300)",
    )
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    add("--no_pictures", dest="pictures", action="store_false", help="draw nothing")
    add("--page", metavar="FILE", help="also write the table into a section of this page")
    add("--section", metavar="NAME", help="name of that section (default reconstruct-CORPUS)")
    add("--out", required=True, metavar="DIR", help="folder for everything that is written")
    one = parser.add_argument_group("one raw record")
    one.add_argument(
        "--record", metavar="FILE", help="WFDB, .npy, .npz, .csv, .edf; any leads, rate and length"
    )
    one.add_argument("--rate", type=float, help="Hz, if the file does not say")
    one.add_argument("--unit", help="mV, uV or V, if the file does not say")
    one.add_argument("--lead_names", help="of the columns, if the file does not say, e.g. I,II,V2")
    one.add_argument(
        "--write_wfdb", action="store_true", help="write all twelve leads as a WFDB record"
    )
    args = parser.parse_args(argv)
    args.argv = argv
    if args.record:
        from lvcg_jax.reconstruct.one_record import derive_record

        return derive_record(args)
    if not args.data:
        raise InputError(
            "give --data=SHARDS to measure on a data set, or --record=FILE for one record"
        )
    for text in args.also:
        if not all(text.rpartition(":")):
            raise InputError(
                f"--also={text}: write --also=RUN:SHARDS, the shards being prepared as that run was"
            )
    if (
        args.draws < 1
        or args.resamples < 1
        or args.fit_records < 1
        or (args.limit is not None and args.limit < 1)
    ):
        raise InputError("--draws, --resamples, --fit_records and --limit must be 1 or more")
    if args.morphology < 0:
        raise InputError("--morphology must be 0 (no beat is measured) or more")
    if not args.visible and not args.k:
        raise InputError(
            "say which leads are visible: --visible=II,V2,V5, or --k=3 to draw three for each record"
        )
    return evaluate_shards(args)


if __name__ == "__main__":
    run_command(main)
