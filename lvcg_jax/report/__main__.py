"""A page to open, send and print: of a training run, or of one record. One HTML file, no network.

    lvcg report --checkpoint=runs/paper
    lvcg report --checkpoint=runs/paper --embeddings=emb.parquet --probe=probe.json --data=SHARDS
    lvcg report --record=ecg.hea --leads=I,II,V2 --checkpoint=runs/paper --reference=emb.npz

Of a run: training curves, probe with controls, derived leads on ECG paper, maps of the embedding,
fewer leads and moved electrodes, geometry, configuration against the paper's, versions, model card.
Files of other commands that lie in the run directory (or one folder below) under their usual names
are found; a part that is not there is left out. Of a record: twelve leads on ECG paper with beats,
leads that were derived in another colour, intervals and axes, the heart vector to turn by hand,
signal quality, and the nearest neighbours in a reference set; without --checkpoint by the weights
that the package carries. Not for diagnosis.
"""

import argparse
from pathlib import Path

from absl import logging

from data_prep.base.command import Parser, natural_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.pseudonyms import read_key
from lvcg_jax.text.flags import add_shared

RUN_FILES = {
    "embeddings": ("FILE", "embeddings of lvcg embed or lvcg results (.npz, .parquet)"),
    "probe": ("FILE", "JSON of lvcg probe --out or of lvcg results"),
    "reconstruction": ("DIR", "folder of lvcg reconstruct --out"),
    "robustness": ("DIR", "folder of lvcg robustness --out"),
    "geometry": ("FILE", "page of lvcg geometry_report --out"),
}
OF_RUN = (*RUN_FILES, "records", "map_rows", "tsne")
OF_RECORD = ("leads", "reference", "rate", "unit", "lead_names", "start")


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    """The command line; flags of the other kind of report are refused."""
    parser = Parser("report", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        metavar="RUN",
        help="run directory to report on; with --record: the model, also by name (default best)",
    )
    add(
        "--record",
        metavar="FILE",
        help="report on this record: WFDB, EDF, DICOM, .csv, .npz, ... (docs/formats.md)",
    )
    add(
        "--out",
        type=Path,
        metavar="HTML",
        help="page to write (default RUN/report.html; of a record NAME-report.html)",
    )
    add(
        "--data",
        type=Path,
        metavar="SHARDS",
        help="shards (default: the run's own, if they are still there)",
    )
    add_shared(parser, "pseudonyms")

    add = parser.add_argument_group("of a run").add_argument
    for name, (kind, words) in RUN_FILES.items():
        add(f"--{name}", type=Path, metavar=kind, help=words)
    records = "validation records whose leads are derived and drawn (default 3)"
    add("--records", type=natural_int, metavar="N", help=records)
    rows = "rows of the maps at most, drawn at random (default 10000)"
    add("--map_rows", type=natural_int, metavar="N", help=rows)
    tsne = "t-SNE beside PCA (default yes; 10000 rows: a minute or two)"
    add("--tsne", choices=("yes", "no"), help=tsne)

    one = parser.add_argument_group("of a record")
    add = one.add_argument
    leads = "leads that are visible (default: all that the record has)"
    add("--leads", metavar="I,II,V2", help=leads)
    reference = "embeddings to find neighbours in, of the same model"
    add("--reference", type=Path, metavar="FILE", help=reference)
    add("--start", type=float, help="second to start at (default 0); ten seconds are shown")
    add_shared(one, "rate", "unit", "lead_names")

    args = parser.parse_args(argv)
    if args.checkpoint is None and args.record is None:
        raise InputError(
            "give --checkpoint=RUN for the report of a run, or --record=FILE for that of a record"
        )
    for name in OF_RUN if args.record else OF_RECORD:
        if getattr(args, name) is not None:
            kind = "run" if args.record else "record"
            raise InputError(f"--{name} is for the report of a {kind}: see lvcg report --help")
    args.run = None if args.record else Path(args.checkpoint)
    for name, (_, words) in (RUN_FILES | {"reference": ("", "embeddings of lvcg embed")}).items():
        path = getattr(args, name)
        if path is not None and not path.exists():
            raise InputError(f"--{name}={path}: no such file or folder; give the {words}")
    args.pseudonyms = read_key(args.pseudonyms)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    logging.set_verbosity(logging.ERROR)
    from lvcg_jax.embed.dataset import check_place
    from lvcg_jax.text.pages import command_line

    names = args.pseudonyms
    command = command_line("report", argv)
    name = "" if args.run else Path(args.record).stem
    if names is not None:  # a command line holds names of files, which are names of records
        command, name = "lvcg report --pseudonyms=KEYFILE", names.of(name)
    out = args.out or (args.run / "report.html" if args.run else Path(f"{name}-report.html"))
    if args.run is None or args.run.is_dir():
        check_place(out)
    if args.run:
        from lvcg_jax.report import run

        default = run.Options(args.run, {})
        options = run.Options(
            args.run,
            {name: getattr(args, name) for name in RUN_FILES},
            args.data,
            default.records if args.records is None else args.records,
            default.map_rows if args.map_rows is None else args.map_rows,
            args.tsne != "no",
            command,
            names,
        )
        text = run.run_page(options, print)
    else:
        from lvcg_jax.report import record
        from lvcg_jax.runs import weights

        checkpoint = weights.choose(args.checkpoint)
        how = {
            name: getattr(args, name)
            for name in ("leads", "reference", "data", "rate", "unit", "lead_names")
        }
        options = record.Options(
            args.record, checkpoint, **how, start=args.start or 0.0, command=command, names=names
        )
        text = record.record_page(options)
    write_whole(out, text)
    print(f"{out} ({len(text.encode()) / 1e6:.1f} MB): open it in a browser")
    return 0


if __name__ == "__main__":
    run_command(main)
