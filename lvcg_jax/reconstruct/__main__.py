"""Derives hidden leads of ECG records from visible ones with every method of
reconstruct/methods.py, and measures how well.

    lvcg reconstruct --checkpoint=RUN --data=SHARDS --visible=II,V2,V5 --out=DIR
    lvcg reconstruct --checkpoint=RUN --data=SHARDS --k=3,5 --split=all --out=DIR
    lvcg reconstruct --checkpoint=RUN --record=ecg.hea --visible=I,II,V2 --write_wfdb --out=DIR
    lvcg reconstruct --data=SHARDS --record=ecg.hea --visible=I,II --calibration=old.hea --out=DIR

On shards: metrics.json, table.md, a picture of the error by lead, and pictures of the best, the
median and the worst record. --k draws visible leads for each record, from its uid, among subsets
that span three dimensions: the same for every method. --split=all takes every record of a set that
the model was not trained on; what is fitted is then fitted on other patients (five folds). A record
that lacks a visible lead is used with the others; one that has none of them, or nothing to compare
with, is listed under `failures`. A method that knows how sure it is (gaussian beat) has 90% bands:
they are checked on --bands views, drawn in pictures, and written with one record. For one raw
record: a picture, and with --write_wfdb twelve leads, see reconstruct/one_record.py; an earlier
record of the same patient with all leads (--calibration) tells the patient's own beat. Without
--checkpoint the weights that the package carries are used, or none if no method of --methods has a
network.
"""

import argparse

from data_prep.base.command import Parser, natural_int, positive_float, positive_int, run_command
from data_prep.base.errors import InputError
from lvcg_jax.reconstruct.methods import FIELD, METHODS
from lvcg_jax.reconstruct.study import evaluate_shards
from lvcg_jax.runs import weights
from lvcg_jax.text.flags import add_shared


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("reconstruct", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add(
        "--data",
        metavar="SHARDS",
        help="shards to measure on (with --record: to learn typical lead sizes from)",
    )
    add("--split", default="test", help="split to measure on (default test), or all")
    add_shared(parser, "visible")
    add("--k", help="numbers of visible leads drawn for each record, e.g. 3 or 3,5")
    add(
        "--draws",
        type=positive_int,
        default=1,
        help="views drawn for each record with --k (default 1)",
    )
    add("--seed", type=natural_int, default=0, help="of the draws (default 0)")
    add(
        "--methods",
        default="all",
        help=f"comma-separated, of {', '.join((FIELD, *METHODS))} (default all)",
    )
    add(
        "--also",
        action="append",
        default=[],
        metavar="RUN:SHARDS",
        help="another run's LVCG, on its own shards",
    )
    add(
        "--learned",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a network that lvcg fit_leads trained, as a further method; may be repeated",
    )
    add(
        "--eps",
        type=positive_float,
        help="Tikhonov coefficient of the geometry methods (default: the run's)",
    )
    add("--limit", type=positive_int, help="records at most, from as many patients as can be")
    add(
        "--calibrate",
        action="store_true",
        help="let the first window of each patient, with all leads, calibrate the Gaussian model,"
        " and judge the later ones",
    )
    add(
        "--fit_data",
        metavar="SHARDS",
        help="fit on the training records of this data set instead of --data",
    )
    add(
        "--fit_records",
        type=positive_int,
        default=20_000,
        help="training records for fitted methods, at most (default 20000)",
    )
    add(
        "--morphology",
        type=natural_int,
        default=300,
        help="views whose beats are measured, QRS, QT and so on (default 300; 0: none)",
    )
    add(
        "--bands",
        type=natural_int,
        default=300,
        help="views on which the 90%% bands of methods that have them are checked (default 300;"
        " 0: none)",
    )
    add("--no_pictures", dest="pictures", action="store_false", help="draw nothing")
    add_shared(parser, "out", "resamples", "page")
    add("--section", metavar="NAME", help="name of that section (default reconstruct-CORPUS)")
    one = parser.add_argument_group("one raw record")
    one.add_argument(
        "--record",
        metavar="FILE",
        help="WFDB, EDF, DICOM, .csv, .npz, ... (docs/formats.md); any leads and rate",
    )
    add_shared(one, "rate", "unit", "lead_names")
    one.add_argument(
        "--calibration",
        metavar="FILE",
        help="an earlier record of the same patient with all twelve leads",
    )
    one.add_argument(
        "--write_wfdb", action="store_true", help="write all twelve leads as a WFDB record"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    args.argv = argv
    if args.record:
        from lvcg_jax.reconstruct.one_record import derive_record

        return derive_record(args)
    if args.calibration:
        raise InputError("--calibration goes with --record=FILE: shards calibrate with --calibrate")
    if not args.data:
        raise InputError(
            "give --data=SHARDS to measure on a data set, or --record=FILE for one record"
        )
    for text in args.also:
        if not all(text.rpartition(":")):
            raise InputError(
                f"--also={text}: write --also=RUN:SHARDS, the shards being prepared as that run was"
            )
    if not args.visible and not args.k:
        raise InputError(
            "say which leads are visible: --visible=II,V2,V5, or --k=3 to draw three for each"
            " record"
        )
    return evaluate_shards(args)


if __name__ == "__main__":
    run_command(main)
