"""Builds a dataset directory from a corpus: records -> windows of beats -> ArrayRecord shards.

    lvcg build --corpus=ptbxl --raw=/data/ptbxl --out=/data/shards/ptbxl --workers=8

The plan (which record goes to which shard, and every option) is fixed first and saved. Each shard
is then built by itself, under a temporary name, and renamed when it is complete. So the same
command gives the same bytes with any number of workers, continues after a crash, and repairs a
finished directory in which a file was lost or damaged. A record that cannot be used never stops a
build. Every record is listed in ledger.csv: whether it was kept and why not, all defects that were
found (see data_prep/ecg/quality.py), and a hash of its signal, which identifies records with the
same signal. With two workers or more, that also holds for a record that ends the process that
reads it; the exit code is then 3.

For a job array, --shard=2/8 builds the second of eight shares of the shards, without a word to the
other seven. When all have ended, the same command without --shard compares every shard with its
checksum, builds what a failed job left, and finishes.

dataset.json holds the preprocessing and its hash, the tasks and their classes, and what was dropped
and why. For every split it has the shards (file, examples, bytes, sha256, first uid), the numbers
of examples, records, patients and beats, and the kept records per class (`label_counts`). uids are
32-bit hashes, so some of a million collide: the later one (in shard order) is hashed again with a
counter, and `uid_rehash` lists such windows.
"""

import sys
from pathlib import Path

from data_prep.base.command import Parser, positive_int, run_command, share_of_work
from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import FLAG, read_key
from data_prep.base.words import printable
from data_prep.corpora.corpus import CORPORA, apply_splits, open_corpus
from data_prep.corpora.pseudonymous import pseudonymise
from data_prep.dataset import shards
from data_prep.dataset.builder import build
from data_prep.ecg.preprocess import Preprocess

CRASHED = 3  # exit code of a finished build in which records ended their worker process


def parse_pairs(flag: str, pairs: list[str]) -> dict[str, str]:
    """The FIELD=VALUE texts of a flag as a dictionary."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(
                f"--{flag}={pair}: write FIELD=VALUE, for example --preprocess=peaks=vcg"
            )
    return dict(pair.split("=", 1) for pair in pairs)


def parse_overrides(pairs: list[str]) -> Preprocess:
    """The preprocessing, with fields changed by FIELD=VALUE texts."""
    return Preprocess.from_dict(parse_pairs("preprocess", pairs))


def make_parser() -> Parser:
    """The flags of this command."""
    parser = Parser(
        "build",
        "Build ArrayRecord shards of beats from ECG records. The same command again continues after"
        "\na crash, and repairs damaged files of a finished dataset.",
        epilog="With --runner=beam, all other flags are options of the Beam pipeline, for example"
        "\n--runner=beam --beam_runner=FlinkRunner --flink_master=host:8081;"
        "\n--raw and --out must then be folders that all workers see.",
    )
    add, field = parser.add_argument, {"action": "append", "default": [], "metavar": "FIELD=VALUE"}
    add("--corpus", required=True, help=f"kind of raw data: {', '.join(CORPORA)}")
    add("--raw", required=True, help="folder of the raw records")
    add("--out", required=True, help="dataset directory to write")
    add(
        "--workers",
        type=positive_int,
        default=1,
        help="processes (default 1; any number gives the same files)",
    )
    add(
        "--runner",
        choices=("local", "beam"),
        default="local",
        help="local processes, or an Apache Beam pipeline",
    )
    add("--beam_runner", default="DirectRunner", help="the Beam runner (default DirectRunner)")
    add(
        "--windows",
        choices=("first", "all"),
        default="first",
        help="windows to keep of a long record",
    )
    add(
        "--splits",
        metavar="PATH",
        help="your own splits: columns record_id or patient_id, and split;\n"
        "or the folder of a published split: files *_train.csv, *_val.csv, *_test.csv",
    )
    add("--option", **field, help="an option of the corpus; repeatable")
    add("--preprocess", **field, help="a preprocessing field; repeatable")
    add("--store_signal", action="store_true", help="also store the whole normalised signal")
    add(
        "--duplicates",
        choices=("drop", "keep"),
        default="drop",
        help="one signal in two splits: keep only the copy closest to testing, or all",
    )
    add(
        "--no_detectors",
        action="store_true",
        help="do not compare two beat detectors for the ledger (saves time)",
    )
    add(
        "--shard_records",
        type=positive_int,
        default=1024,
        help="input records per shard (default 1024)",
    )
    add(
        "--shard",
        type=share_of_work,
        metavar="I/N",
        help="build only the I-th of N shares of the shards, beside jobs that build the others;\n"
        "then the same command without --shard checks them and finishes",
    )
    add("--limit", type=positive_int, help="only the first N records of the corpus")
    add("--pseudonyms", **FLAG)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and args.runner == "local":
        parser.error(parser.unknown(rest[0]))
    if args.shard and args.runner == "beam":
        raise InputError("--shard is for local builds: Beam shares out the shards by itself")
    preprocess, names = parse_overrides(args.preprocess), read_key(args.pseudonyms)
    corpus = open_corpus(args.corpus, args.raw, parse_pairs("option", args.option))
    if args.splits:
        corpus = apply_splits(corpus, args.splits)
    corpus = pseudonymise(corpus, names)
    metadata = build(
        corpus,
        args.out,
        preprocess,
        workers=args.workers,
        windows=args.windows,
        store_signal=args.store_signal,
        shard_records=args.shard_records,
        limit=args.limit,
        detectors=not args.no_detectors,
        duplicates=args.duplicates,
        beam_options=[f"--runner={args.beam_runner}", *rest] if args.runner == "beam" else None,
        share=args.shard,
    )
    if metadata is None:
        print(
            "share {} of {} is built; when all are, the same command without --shard"
            " finishes".format(*args.shard)
        )
        return 0
    print("\n".join(map(printable, shards.describe(metadata).split("\n"))))
    for note in corpus.notes:
        print(f"note          {printable(note)}")
    print(f"ledger        {Path(args.out) / shards.LEDGER_FILE}")
    crashed = metadata["defects"].get("crashed", 0)
    if crashed:
        print(f"WARNING       {crashed} records ended their worker process and were left out")
    return CRASHED if crashed else 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
