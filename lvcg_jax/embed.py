"""Embeddings of shards, of a folder of WFDB records or of one file, as a table (see lvcg_jax/table.py).

    python -m lvcg_jax.embed --checkpoint=RUN --data=SHARDS --out=embeddings.parquet
    python -m lvcg_jax.embed --checkpoint=RUN --wfdb=FOLDER --leads=I,II,V2 --rows=record --out=embeddings.npz
    python -m lvcg_jax.embed --checkpoint=RUN --record=ecg.npy --rate=500 --unit=uV --lead_names=I,II,V2 --out=one.npz

Raw records may have any rate, length and leads; they go through the preprocessing of the checkpoint. A record that
cannot be embedded is listed with the reason in OUT.failures.csv, and the work goes on. The same command writes the same
bytes on every run: records are computed in order, in batches of one fixed shape. Without --checkpoint the weights that
the package carries are used.
"""

import argparse
import csv
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_prep.corpora.arrays import read_file
from data_prep.errors import InputError, run_command
from data_prep.leads import parse_leads
from data_prep.progress import progress_bar
from data_prep.readers import Corpus, RecordRef, open_corpus
from data_prep.shards import ShardSet, read_metadata
from lvcg_jax import __version__, weights
from lvcg_jax.inference import LVCG, join_parts
from lvcg_jax.lead_views import list_entries
from lvcg_jax.table import Table, check_ending, record_rows, save_table, window_table
from lvcg_jax.windows import Failure, corpus_windows, shard_windows, show_only

__all__ = ["Embedder", "embed_corpus", "embed_dataset", "join_parts"]
Embedder = LVCG  # for code that also handles the network of model.py, which has the same name


def embed_dataset(
    model: LVCG,
    data: str | Path,
    *,
    splits: Sequence[str] | None = None,
    failures: list[Failure] | None = None,
    progress: bool = True,
    limit: int | None = None,
    **options,
) -> Table:
    """The embedding table of these splits of a data set (default: all); options: those of `embed_table`.

    What cannot be embedded goes to `failures`; without such a list it is an error. At most `limit` windows of each
    split, drawn by patient as `list_entries` does.
    """
    metadata, found = read_metadata(data), [] if failures is None else failures
    sets = [ShardSet(data, split) for split in splits or metadata["splits"]]
    for shards in sets:
        shards.require_preprocess(model.preprocess)
    chosen = [range(len(s)) if limit is None else [e.index for e in list_entries([s], limit)] for s in sets]
    with progress_bar(total=sum(map(len, chosen)), unit="rec", disable=not progress) as bar:
        parts = zip(sets, chosen, strict=True)
        windows = itertools.chain.from_iterable(shard_windows(shards, bar.update, numbers) for shards, numbers in parts)
        table = embed_table(model, windows, metadata["tasks"], found, **options)
    return table if failures is not None else _complete(table, found)


def embed_corpus(
    model: LVCG, corpus: Corpus, *, failures: list[Failure] | None = None, progress: bool = True, **options
) -> Table:
    """The embedding table of raw records, of all windows of each; arguments as for embed_dataset."""
    found = [] if failures is None else failures
    with progress_bar(total=len(corpus.refs), unit="rec", disable=not progress) as bar:
        windows = corpus_windows(corpus, model.preprocess, found, bar.update)
        table = embed_table(model, windows, corpus.tasks, found, **options)
    return table if failures is not None else _complete(table, found)


def embed_table(
    model: LVCG,
    windows: Iterable[dict],
    tasks: dict[str, Sequence[str]],
    failures: list[Failure],
    leads: Sequence[str] | None = None,
    rows: str = "window",
    tokens: bool = False,
) -> Table:
    """The table of these windows.

    `leads` hides all others from the model (beats stay where all leads put them); `rows` is 'window' or 'record' (see
    table.record_rows); `tokens` also keeps the beat tokens.
    """
    if leads:
        windows = show_only(windows, leads, failures)
    kept, outputs = model.embed_windows(windows, tokens=tokens)
    if not kept:
        count, first = len({failure.record_id for failure in failures}), failures[0]
        raise InputError(f"no embedding for any of {count} records; {first.record_id}: {first.reason}")
    metadata = {
        "checkpoint": model.checkpoint,
        "preprocess_hash": model.preprocess.hash(),
        "tasks": json.dumps({task: list(names) for task, names in tasks.items()}),
        "rows": rows,
        "package": f"lvcg-jax {__version__}",
    }
    table = window_table(kept, join_parts(outputs), model.part_sizes, metadata)
    table.extra |= model.lead_facts(kept)
    table.tokens = outputs.get("tokens")
    return record_rows(table) if rows == "record" else table


def _complete(table: Table, failures: list[Failure]) -> Table:
    for failure in failures:
        raise InputError(f"record {failure.record_id} has no embedding: {failure.reason}")
    return table


def file_corpus(path: str, rate: float | None, unit: str | None, leads: str | None) -> Corpus:
    """One file of any kind that this project reads, as a corpus of one record."""
    if not any(Path(f"{path}{suffix}").is_file() for suffix in ("", ".hea", ".dat", ".mat")):
        raise InputError(f"no record file {path}")
    names = leads.split(",") if leads else None
    flags = {"rate": rate, "unit": unit, "lead_names": names}

    def read(ref: RecordRef):
        try:
            return read_file(ref.path, ref.record_id, rate, unit, names)
        except InputError as error:
            absent = [f"--{name}" for name, value in flags.items() if value is None]
            hint = f" (for one file: {', '.join(absent)})" if "is not known" in str(error) else ""
            raise InputError(f"{error}{hint}") from None

    stem = Path(path).stem
    return Corpus("file", "", {}, [RecordRef(stem, stem, None, {}, path)], "none given", read=read)


def write_failures(out: str, failures: list[Failure]) -> str | None:
    """OUT.failures.csv, or none if nothing failed; returns its name."""
    path = Path(f"{out}.failures.csv")
    if not failures:
        path.unlink(missing_ok=True)
        return None
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("record_id", "window", "reason"))
        writer.writerows((f.record_id, "" if f.window is None else f.window, f.reason) for f in failures)
    return str(path)


def check_place(out: Path) -> None:
    """Makes the folder of a table to be written, so that nobody learns only after the work that it cannot be."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out={out}: cannot write there ({error.strerror})") from None
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise InputError(f"--out={out}: cannot write there ({'a folder' if out.is_dir() else 'no permission'})")


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    """The command line, checked before anything is loaded."""
    parser = argparse.ArgumentParser(
        prog="python -m lvcg_jax.embed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--data", metavar="SHARDS", help="what to embed: shards of data_prep.build,")
    add("--wfdb", metavar="FOLDER", help="or all WFDB records below a folder (labels.csv, if there, gives the labels),")
    add("--record", metavar="FILE", help="or one file: WFDB, .edf, .npy, .npz, .csv")
    add("--out", required=True, metavar="FILE", help="table to write: .parquet or .npz")
    add("--leads", metavar="I,II,V2", help="leads that the model may see (default: all that a record has)")
    add("--rows", choices=("window", "record"), default="window", help="a row a window (default), or a record's mean")
    add("--tokens", action="store_true", help="also store the beat tokens (.npz only)")
    add("--which", choices=("best", "latest"), default="best", help="which checkpoint of the run (default: best)")
    add("--random_weights", type=int, metavar="SEED", help="the control: the run's model with random weights")
    add("--rate", type=float, help="of --record, where the file does not say: samples a second,")
    add("--unit", help="unit (mV, uV, V),")
    add("--lead_names", metavar="I,II,V2", help="and the lead of each column")
    args = parser.parse_args(argv)
    given = [f"--{name}" for name in ("data", "wfdb", "record") if getattr(args, name) is not None]
    if len(given) != 1:
        raise InputError(f"give one of --data, --wfdb and --record, not {' and '.join(given) or 'none'}")
    if check_ending(args.out) != ".npz" and args.tokens:
        raise InputError(f"--tokens needs an --out that ends in .npz, not {args.out}")
    if args.random_weights is not None and args.data is None:
        raise InputError("--random_weights needs --data: its norm statistics are measured on the training split")
    for name in ("rate", "unit", "lead_names"):
        if getattr(args, name) is not None and args.record is None:
            raise InputError(f"--{name} is for --record: other sources say it themselves")
    args.leads = parse_leads(args.leads) if args.leads is not None else None
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    if args.data is not None:
        read_metadata(args.data)
    elif args.wfdb is not None:
        corpus = open_corpus("wfdb", args.wfdb)
    else:
        corpus = file_corpus(args.record, args.rate, args.unit, args.lead_names)
    check_place(Path(args.out))
    checkpoint = weights.choose(args.checkpoint)
    if args.random_weights is None:
        model = LVCG.load(checkpoint, args.which)
    else:
        config = weights.config_of(checkpoint)
        model = LVCG.random(config, args.random_weights, ShardSet(args.data, "train"))
    failures: list[Failure] = []
    options = {"leads": args.leads, "rows": args.rows, "tokens": args.tokens, "failures": failures}
    try:
        if args.data is not None:
            table = embed_dataset(model, args.data, **options)
        else:
            table = embed_corpus(model, corpus, **options)
        save_table(args.out, table)
    finally:
        listed = write_failures(args.out, failures)
    parts = " + ".join(f"{name} {size}" for name, size in table.parts.items())
    rows = f"{len(table.record_id)} rows of {len(set(table.record_id.tolist()))} records"
    print(f"{rows}, {table.embedding.shape[1]} numbers each ({parts}), from {model.checkpoint}: {args.out}")
    if listed:
        print(f"{len({failure.record_id for failure in failures})} records failed in whole or in part: see {listed}")
    return 0


if __name__ == "__main__":
    run_command(main)
