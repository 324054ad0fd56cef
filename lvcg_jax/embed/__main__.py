"""Embeddings of shards, of a folder of WFDB records or of one file, as a table (see
lvcg_jax/embed/table.py).

    lvcg embed --checkpoint=RUN --data=SHARDS --out=embeddings.parquet
    lvcg embed --checkpoint=RUN --wfdb=FOLDER --leads=I,II,V2 --rows=record --out=embeddings.npz
    lvcg embed --folder=FOLDER --labels=labels.csv --out=embeddings.parquet
    lvcg embed --record=ecg.npy --rate=500 --unit=uV --lead_names=I,II,V2 --out=one.npz
    lvcg embed --data=SHARDS --part=2/8 --out=embeddings

Raw records may have any rate, length and leads; they go through the preprocessing of the
checkpoint. A record that cannot be embedded is listed with the reason in OUT.failures.csv, and the
others are embedded. The same command writes the same bytes on every run: records are computed in
order, in batches of one fixed shape, on all devices. Without --checkpoint the weights that the
package carries are used.

An --out without an ending is a folder of .parquet parts, for data sets of any size: memory does not
grow with the records, the same command continues after a crash, and --part=2/8 does the second of
eight shares, beside processes that do the others (see lvcg_jax/embed/parts.py). The folder is then
given to other commands in the place of an embeddings file.
"""

import argparse
import contextlib
from collections.abc import Iterable
from pathlib import Path

import jax

from data_prep.base.command import (
    Parser,
    natural_int,
    positive_int,
    run_command,
    share_of_work,
)
from data_prep.base.errors import InputError
from data_prep.base.files import require_local
from data_prep.base.lock import only_one
from data_prep.base.pseudonyms import read_key
from data_prep.base.words import counted
from data_prep.corpora.corpus import Corpus, open_corpus
from data_prep.corpora.pseudonymous import pseudonymise
from data_prep.dataset.shards import ShardSet, read_metadata
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
from lvcg_jax.embed.parts import PART_ROWS, corpus_source, shard_source, write_parts
from lvcg_jax.embed.table import check_ending, save_table
from lvcg_jax.runs import weights
from lvcg_jax.runs.trained import WHICH, WHICH_HELP
from lvcg_jax.text.flags import add_shared


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    """The command line, checked before anything is loaded."""
    parser = Parser("embed", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--data", metavar="SHARDS", help="what to embed: shards of data_prep.build,")
    add(
        "--wfdb",
        metavar="FOLDER",
        help="or all WFDB records below a folder (labels.csv, if there, gives the labels),",
    )
    add("--folder", metavar="FOLDER", help="or all records below a folder, in any formats,")
    add("--record", metavar="FILE", help="or one file of any format that is read (docs/formats.md)")
    add(
        "--out",
        required=True,
        metavar="FILE",
        help="table to write: .parquet or .npz, or without an ending a folder of parts",
    )
    add(
        "--leads",
        metavar="I,II,V2",
        help="leads that the model may see (default: all that a record has)",
    )
    add(
        "--rows",
        choices=("window", "record"),
        default="window",
        help="one row per window (default), or per record: the mean of its windows",
    )
    add("--splits", metavar="NAMES", help="splits of --data, e.g. test (default: all)")
    add("--tokens", action="store_true", help="also store the beat tokens (.npz only)")
    add("--which", choices=WHICH, default="lowest", help=WHICH_HELP)
    add(
        "--precision",
        choices=("default", "highest"),
        default="default",
        help="of products on accelerators: 'highest' gives the numbers of a CPU, more slowly",
    )
    add(
        "--random_weights",
        type=natural_int,
        metavar="SEED",
        help="the control: the run's model with random weights",
    )
    add("--labels", metavar="CSV", help="labels of --folder (default FOLDER/labels.csv, if there)")
    add_shared(parser, "pseudonyms")
    add_shared(parser.add_argument_group("of --record and --folder"), "rate", "unit", "lead_names")
    add("--max_beats", type=positive_int, metavar="N", help=MAX_BEATS_HELP)
    many = parser.add_argument_group("a folder of parts")
    many.add_argument(
        "--part",
        type=share_of_work,
        metavar="I/N",
        help="do the I-th of N shares of the parts; other processes do the others",
    )
    many.add_argument(
        "--part_rows",
        type=positive_int,
        metavar="N",
        help=f"windows of --data, or records of files, in a part (default {PART_ROWS})",
    )
    args = parser.parse_args(argv)

    # flags that go together, or do not
    sources = ("data", "wfdb", "folder", "record")
    given = [f"--{name}" for name in sources if getattr(args, name) is not None]
    if len(given) != 1:
        raise InputError(
            "give one of --data, --wfdb, --folder and --record,"
            f" not {' and '.join(given) or 'none'}"
        )
    if args.labels is not None and args.folder is None:
        raise InputError("--labels is for --folder: other sources have their labels with them")
    require_local(args.out)
    args.folder_of_parts = not Path(args.out).suffix
    for name in ("part", "part_rows"):
        if getattr(args, name) is not None and not args.folder_of_parts:
            raise InputError(
                f"--{name} is for a folder of parts: give an --out without an ending,"
                f" {Path(args.out).stem} say"
            )
    if not args.folder_of_parts:
        check_ending(args.out)
    if Path(args.out).suffix != ".npz" and args.tokens:
        raise InputError(f"--tokens needs an --out that ends in .npz, not {args.out}")
    if args.random_weights is not None and args.data is None:
        raise InputError(
            "--random_weights needs --data: its norm statistics are measured on the training split"
        )
    if args.splits is not None and args.data is None:
        raise InputError("--splits is for --data: other sources have no stored splits")
    for name in ("rate", "unit", "lead_names"):
        if getattr(args, name) is not None and args.record is None and args.folder is None:
            raise InputError(f"--{name} is for --record: other sources say it themselves")
    if args.max_beats is not None and args.data is not None:
        raise InputError("--max_beats is for files: shards have the beats that lvcg build kept")
    args.leads = parse_leads(args.leads) if args.leads is not None else None
    args.pseudonyms = read_key(args.pseudonyms)
    return args


def _check_splits(given: str | None, there: Iterable[str]) -> None:
    """An InputError for a split that the data set does not have."""
    wrong = [name for name in (given or "").split(",") if name and name not in there]
    if wrong:
        raise InputError(f"--splits={given}: no split {wrong[0]}; there are {', '.join(there)}")


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)

    # source and place of the table, checked before the model is loaded
    corpus = None
    if args.data is not None:
        _check_splits(args.splits, read_metadata(args.data)["splits"])
    elif args.wfdb is not None:
        corpus = open_corpus("wfdb", args.wfdb)
    elif args.folder is not None:
        names = ("labels", "rate", "unit", "lead_names")
        corpus = open_corpus("files", args.folder, {name: getattr(args, name) for name in names})
    else:
        corpus = file_corpus(args.record, args.rate, args.unit, args.lead_names)
    if corpus is not None:
        corpus = pseudonymise(corpus, args.pseudonyms)
    check_place(Path(args.out), args.folder_of_parts)
    exact = jax.default_matmul_precision("highest")
    with exact if args.precision == "highest" else contextlib.nullcontext():
        if args.folder_of_parts:
            return write_folder(args, corpus)
        with only_one(f"{args.out}.lock", f"{Path(args.out).name} is being written"):
            return write_table(args, corpus)


def load_model(args: argparse.Namespace) -> LVCG:
    """The model that the flags ask for."""
    checkpoint = weights.choose(args.checkpoint)
    if args.random_weights is None:
        model = LVCG.load(checkpoint, args.which)
        return model if args.max_beats is None else model.with_max_beats(args.max_beats)
    config = weights.config_of(checkpoint)
    return LVCG.random(config, args.random_weights, ShardSet(args.data, "train"))


def write_table(args: argparse.Namespace, corpus: Corpus | None) -> int:
    """Writes the table that the flags ask for, of a corpus or else of --data."""
    model = load_model(args)

    # the table, and the list of what has no row in it
    failures: list[Failure] = []
    options = {"leads": args.leads, "rows": args.rows, "tokens": args.tokens, "failures": failures}
    try:
        if args.data is not None:
            splits = args.splits.split(",") if args.splits else None
            table = embed_dataset(model, args.data, splits=splits, names=args.pseudonyms, **options)
        else:
            table = embed_corpus(model, corpus, **options)
            print("".join(f"note: {note}\n" for note in corpus.all_notes()), end="")
        save_table(args.out, table)
    finally:
        listed = write_failures(args.out, failures)
    remedy = MORE_IN_SHARDS if args.data is not None else MORE_OF_FILES
    print("".join(f"{x}\n" for x in merged_warning(table.extra, table.record_id, remedy)), end="")
    counts = (len(table.record_id), count_records(failures), *count_flags(table.extra))
    say(args, model, len(set(table.record_id.tolist())), counts, listed)
    return 0


def write_folder(args: argparse.Namespace, corpus: Corpus | None) -> int:
    """Writes the folder of parts that the flags ask for, or a share of it."""
    model, share = load_model(args), args.part or (1, 1)
    if args.data is not None:
        splits = args.splits.split(",") if args.splits else None
        model = model.for_shards(
            ShardSet(args.data, next(iter(read_metadata(args.data)["splits"])))
        )
        source = shard_source(model, args.data, splits, args.pseudonyms)
    else:
        source = corpus_source(model, corpus)
    options = {"leads": args.leads, "rows": args.rows, "part_rows": args.part_rows or PART_ROWS}
    written = write_parts(model, source, args.out, share=share, **options)
    if corpus is not None:
        print("".join(f"note: {note}\n" for note in corpus.all_notes()), end="")
    if written.missing:
        print(
            f"share {share[0]} of {share[1]} is done; {written.missing} parts of other shares are"
            " not there yet: the last share to end finishes the table"
        )
    counts = dict(written.counts)
    say(args, model, counts.pop("records"), tuple(counts.values()), written.failures)
    return 0


def say(
    args: argparse.Namespace,
    model: LVCG,
    records: int,
    counts: tuple[int, int, int, int],
    listed: str | None,
) -> None:
    """Prints what was written, and in the last line the counts of `count_words`."""
    parts = " + ".join(f"{name} {size}" for name, size in model.part_sizes.items())
    numbers = f"{sum(model.part_sizes.values())} numbers each ({parts})"
    rows = f"{counted(counts[0], 'row')} of {counted(records, 'record')}"
    print(f"{rows}, {numbers}, from {model.checkpoint}: {args.out}")
    if listed:
        print(f"{counted(counts[1], 'record')} failed in whole or in part: see {listed}")
    print(count_words(*counts))


if __name__ == "__main__":
    run_command(main)
