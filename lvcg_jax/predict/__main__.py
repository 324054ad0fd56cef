"""Answers of saved heads for new records: calibrated probabilities and decisions, with what is
known of each record and whether it is unlike those that the head learned from.

    lvcg predict --record=ecg.npy --rate=500 --unit=uV --lead_names=I,II,V2
    lvcg predict --head=super --head=rhythm --folder=FOLDER --out=answers.csv
    lvcg predict --head=mine.safetensors --data=SHARDS --out=answers.parquet
    lvcg predict --head=mine.safetensors --embeddings=embeddings.npz --out=answers.csv

`lvcg probe --save` makes heads; those of PTB-XL's tasks for the weights `best` come with the
package (super, sub, form, rhythm, all71). A head takes embeddings of its own weights and
preprocessing, no others; an attention head (lvcg probe --protocol=attention --save) reads beats
too, so --embeddings will not do for it. Scores of the windows of a record are averaged, as in the
probe. Not a medical device.
"""

import argparse
from pathlib import Path

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import read_key
from data_prep.corpora.corpus import open_corpus
from data_prep.corpora.pseudonymous import pseudonymise
from data_prep.dataset.shards import read_metadata
from data_prep.ecg.leads import parse_leads
from lvcg_jax.data.windows import Failure
from lvcg_jax.embed.dataset import (
    MAX_BEATS_HELP,
    MORE_IN_SHARDS,
    MORE_OF_FILES,
    check_place,
    count_flags,
    count_records,
    count_words,
    embed_corpus,
    embed_dataset,
    file_corpus,
    merged_warning,
    write_failures,
)
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, load_table, rename
from lvcg_jax.predict.table import (
    ROWS,
    check_ending,
    lead_warnings,
    predict_table,
    save_predictions,
)
from lvcg_jax.runs import heads
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.tables import markdown_table

SOURCES = ("record", "folder", "data", "embeddings")


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    """The command line, checked before anything is loaded."""
    parser = Parser("predict", __doc__)
    add = parser.add_argument
    add("--head", action="append", metavar="HEAD", help=heads.HEAD_HELP)
    add("--record", metavar="FILE", help="what to answer for: one file,")
    add("--folder", metavar="DIR", help="or all records below a folder, in any formats,")
    add("--data", metavar="SHARDS", help="or shards of lvcg build,")
    add("--embeddings", metavar="FILE", help="or a table of lvcg embed, by the head's weights")
    add("--out", metavar="FILE", help="table to write: .parquet or .csv (not needed for --record)")
    add(
        "--checkpoint",
        metavar="RUN",
        help="run directory of the weights that the head reads (default: packaged, or the head's)",
    )
    add("--leads", metavar="I,II,V2", help="leads that the model may see (default: all)")
    add(
        "--rows",
        choices=ROWS,
        default=ROWS[0],
        help="one row per record (default), or per window of it",
    )
    add("--max_beats", type=positive_int, metavar="N", help=MAX_BEATS_HELP)
    add_shared(parser, "pseudonyms")
    add_shared(parser.add_argument_group("of --record and --folder"), "rate", "unit", "lead_names")
    args = parser.parse_args(argv)

    # flags that go together, or do not
    given = [f"--{name}" for name in SOURCES if getattr(args, name) is not None]
    if len(given) != 1:
        names = ", ".join(f"--{name}" for name in SOURCES)
        raise InputError(f"give one of {names}, not {' and '.join(given) or 'none'}")
    if args.out is not None:
        check_ending(args.out)
    elif args.record is None:
        raise InputError(f"{given[0]} needs --out=FILE, a table ending in .parquet or .csv")
    for name in ("rate", "unit", "lead_names"):
        if getattr(args, name) is not None and args.record is None and args.folder is None:
            raise InputError(f"--{name} is for --record: other sources say it themselves")
    if args.max_beats is not None and args.record is None and args.folder is None:
        raise InputError(
            "--max_beats is for --record and --folder: elsewhere beats are cut already"
        )
    for name in ("checkpoint", "leads"):
        if getattr(args, name) is not None and args.embeddings is not None:
            raise InputError(f"--{name} does not go with --embeddings: they are made already")
    args.leads = parse_leads(args.leads) if args.leads is not None else None
    args.pseudonyms = read_key(args.pseudonyms)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)

    # the heads, all of one model
    if args.head is None:
        print(f"no --head given: the packaged head '{heads.find_head(heads.DEFAULT).stem}'")
    paths = [heads.find_head(name) for name in args.head or [heads.DEFAULT]]
    loaded = [heads.load_head(path) for path in paths]
    if args.out is not None:
        check_place(Path(args.out))

    # embeddings, and the answers for them
    failures: list[Failure] = []
    try:
        if args.embeddings is not None:
            table = rename(load_table(args.embeddings), args.pseudonyms)
        else:
            table = _embed(args, paths[0], loaded, failures)
        columns = predict_table(loaded, table, args.rows)
        if args.out is not None:
            save_predictions(args.out, columns)
    finally:
        listed = write_failures(args.out, failures) if args.out is not None else None
    if args.record is not None and len(columns["record_id"]) == 1:
        print("\n".join(_one_record(loaded, columns)))
    for warning in lead_warnings(loaded, table):
        print(f"warning: {warning}")
    of_files = args.record is not None or args.folder is not None
    remedy = MORE_OF_FILES if of_files else MORE_IN_SHARDS
    for line in merged_warning(columns, columns["record_id"], remedy):
        print(line)
    unlike = sum(int(columns[f"{head.task}:unlike"].sum()) for head in loaded)
    if unlike:
        print(f"warning: {unlike} answers are for records unlike the head's training records")
    if listed:
        print(f"what failed, and why: {listed}")
    shown = {name: columns[name] for name in ("rank", "defects") if name in columns}
    place = f": {args.out}" if args.out is not None else ""
    counts = (len(columns["record_id"]), count_records(failures), *count_flags(shown))
    print(f"{count_words(*counts)}{place}")
    return 0


def _embed(
    args: argparse.Namespace, path: Path, loaded: list[heads.Head], failures: list[Failure]
) -> Table:
    """The embedding table of the records, by the weights that the heads read."""
    if args.data is not None:
        read_metadata(args.data)
    elif args.folder is not None:
        names = ("rate", "unit", "lead_names")
        corpus = open_corpus("files", args.folder, {name: getattr(args, name) for name in names})
    else:
        corpus = file_corpus(args.record, args.rate, args.unit, args.lead_names)
    model = LVCG.load(args.checkpoint or heads.weights_of(path, loaded[0]))
    if args.max_beats is not None:
        model = model.with_max_beats(args.max_beats)
    for head in loaded:
        head.require(model.checkpoint, model.preprocess.hash())
    beats = any(head.attention for head in loaded)
    options = {"leads": args.leads, "failures": failures, "beats": beats}
    if args.data is not None:
        return embed_dataset(model, args.data, names=args.pseudonyms, **options)
    corpus = pseudonymise(corpus, args.pseudonyms)
    return embed_corpus(model, corpus, **options)


def _one_record(loaded: list[heads.Head], columns: dict) -> list[str]:
    """What to print of a single record."""
    lines = []
    for head in loaded:
        if head.is_number:
            value, low, high = (
                columns[name][0] for name in (head.task, f"{head.task}:low", f"{head.task}:high")
            )
            lines += [f"{head.task}: {value:.4g}, 90% interval {low:.4g} to {high:.4g}", ""]
        else:
            lines += _classes(head, columns)
        nearer = 100 * columns[f"{head.task}:quantile"][0]
        lines.append(
            f"{nearer:.1f}% of this head's training records are nearer to their mean than this"
            " record"
        )
    defects = columns.get("defects", [""])[0]
    return [*lines, *([f"defects: {defects}"] if defects else [])]


def _classes(head: heads.Head, columns: dict) -> list[str]:
    """A table of the classes of a head, the likeliest first."""
    yes = columns[head.task][0].split(";")
    found = {name: columns[f"{head.task}:{name}"][0] for name in head.classes}
    answered = head.of_leads(columns["leads"][0].split(";")) if "leads" in columns else head
    limits = dict(zip(head.classes, answered.thresholds.tolist(), strict=True))
    rows = [
        [name, f"{found[name]:.3f}", f"{limits[name]:.3f}", "yes" if name in yes else "no"]
        for name in sorted(found, key=found.get, reverse=True)
    ]
    return markdown_table([head.task, "probability", "threshold", "answer"], rows)


if __name__ == "__main__":
    run_command(main)
