"""Embedding tables of whole data sets, folders and files."""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_prep.base.csv_cells import csv_text
from data_prep.base.errors import InputError, NotSaid
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.base.words import counted
from data_prep.corpora.corpus import Corpus
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.record import RecordRef, Span
from data_prep.formats.any_file import read_file
from lvcg_jax import __version__
from lvcg_jax.data.entries import list_entries
from lvcg_jax.data.windows import Failure, corpus_windows, shard_windows, show_only
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import Table, record_rows, rename, window_table
from lvcg_jax.runs.attention import facts_of, join_tokens

MAX_BEATS_HELP = "beats of a window (default: as in training); more keep all of a fast rhythm"
# what to do about windows with more beats than were kept
MORE_OF_FILES = "--max_beats=40 keeps them"
MORE_IN_SHARDS = "build the shards with --preprocess=max_beats=40"


def embed_dataset(
    model: LVCG,
    data: str | Path,
    *,
    splits: Sequence[str] | None = None,
    failures: list[Failure] | None = None,
    progress: bool = True,
    limit: int | None = None,
    names: Pseudonyms | None = None,
    **options,
) -> Table:
    """The embedding table of a data set.

    Args:
      model: that embeds.
      data: the dataset directory.
      splits: of the data set; default all.
      failures: a list for what cannot be embedded; without one that is an error.
      progress: show a progress bar.
      limit: at most so many windows of each split, chosen as `list_entries` does.
      names: pseudonyms in the place of ids, also in `failures`.
      **options: `leads`, `rows`, `tokens` and `beats` of `embed_table`.
    """
    metadata, found = read_metadata(data), [] if failures is None else failures
    sets = [ShardSet(data, split) for split in splits or metadata["splits"]]
    model = model.for_shards(sets[0])
    for shards in sets:
        if model.model.signal_samples:
            shards.require_signal()
    chosen = [
        range(len(s)) if limit is None else [e.index for e in list_entries([s], limit)]
        for s in sets
    ]
    with progress_bar(total=sum(map(len, chosen)), unit="rec", disable=not progress) as bar:
        parts = zip(sets, chosen, strict=True)
        windows = itertools.chain.from_iterable(
            shard_windows(shards, bar.update, numbers) for shards, numbers in parts
        )
        table = rename(embed_table(model, windows, metadata["tasks"], found, **options), names)
    if names is not None:
        found[:] = [replace(failure, record_id=names.of(failure.record_id)) for failure in found]
    return table if failures is not None else _complete(table, found)


def embed_corpus(
    model: LVCG,
    corpus: Corpus,
    *,
    failures: list[Failure] | None = None,
    progress: bool = True,
    **options,
) -> Table:
    """The embedding table of all windows of raw records; arguments as for `embed_dataset`."""
    found = [] if failures is None else failures
    several = progress and len(corpus.refs) > 1
    with progress_bar(total=len(corpus.refs), unit="rec", disable=not several) as bar:
        windows = corpus_windows(corpus, model.cutting, found, bar.update, progress)
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
    beats: bool = False,
) -> Table:
    """The embedding table of windows.

    Args:
      model: that embeds.
      windows: see lvcg_jax/data/windows.py.
      tasks: class names of each labelling task.
      failures: a list to which windows without a visible lead are added.
      leads: that the model may see; beats are still those found with all leads.
      rows: 'window', or 'record' for one row per record (see table.record_rows).
      tokens: also keep the beat tokens.
      beats: also make what attention heads read, for a table with a row per window.
    """
    if leads:
        windows = show_only(windows, leads, failures)
    kept, outputs = model.embed_windows(*model.few_or_many(windows), tokens=tokens or beats)
    if not kept:
        raise nothing_embedded(failures)
    table = make_table(model, kept, outputs, tasks, rows)
    if beats:
        table.beats = join_tokens(facts_of(kept, model.cutting), outputs["tokens"])
    return table


def make_table(
    model: LVCG,
    windows: list[dict],
    outputs: dict[str, np.ndarray],
    tasks: dict[str, Sequence[str]],
    rows: str = "window",
) -> Table:
    """The table of what `LVCG.embed_windows` returned."""
    metadata = table_metadata(model, tasks, rows)
    table = window_table(windows, join_parts(outputs), model.part_sizes, metadata)
    table.extra |= model.lead_facts(windows)
    table.tokens = outputs.get("tokens")
    return record_rows(table) if rows == "record" else table


def table_metadata(model: LVCG, tasks: dict[str, Sequence[str]], rows: str) -> dict[str, str]:
    """What a table says of the model and of itself."""
    more = model.max_beats > model.preprocess.max_beats
    return {
        "checkpoint": model.checkpoint,
        "preprocess_hash": model.preprocess.hash(),
        **({"max_beats": str(model.max_beats)} if more else {}),
        "tasks": json.dumps({task: list(names) for task, names in tasks.items()}),
        "rows": rows,
        "package": f"lvcg-jax {__version__}",
    }


def nothing_embedded(failures: list[Failure]) -> InputError:
    """The InputError for a table without a row."""
    count, first = count_records(failures), failures[0]
    what = "record" if count == 1 else f"no embedding for any of {count} records;"
    return InputError(f"{what} {first.record_id}: {first.reason}")


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

    def read(ref: RecordRef, span: Span | None = None):
        try:
            return read_file(ref.path, ref.record_id, rate, unit, names, span)
        except NotSaid as error:
            absent = [f"--{name}" for name, value in flags.items() if value is None]
            raise InputError(f"{error} (for one file: {', '.join(absent)})") from None

    stem = Path(path).stem
    refs = [RecordRef(stem, stem, None, {}, path)]
    return Corpus("file", "", {}, refs, "none given", read=read, in_parts=True)


def count_flags(columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Rows of rank below 3 and rows with unknown leads, from the columns rank and defects."""
    weak = int((columns["rank"] < 3).sum()) if "rank" in columns else 0
    return weak, sum("unknown_lead:" in cell for cell in columns.get("defects", ()))


def count_words(rows: int, failed: int, weak: int, unknown: int) -> str:
    """What became of the records, on one line."""
    return (
        f"{counted(rows, 'row')}, {counted(failed, 'record')} with failures,"
        f" {counted(weak, 'row')} of rank below 3, {counted(unknown, 'row')} with unknown leads"
    )


def merged_warning(columns: Mapping[str, np.ndarray], ids: np.ndarray, remedy: str) -> list[str]:
    """A line on rows with more beats than were kept, from the column defects, if there are any."""
    cells = columns.get("defects", np.zeros(0, str)).tolist()
    merged = [i for i, cell in enumerate(cells) if "merged_tail" in cell]
    if not merged:
        return []
    return [
        f"warning: {len(merged)} rows have more beats than are kept, and the rest of each is one"
        f" interval (merged_tail; first: record {ids[merged[0]]}): {remedy}"
    ]


def count_records(failures: list[Failure]) -> int:
    """Records that failed in whole or in part."""
    return len({failure.record_id for failure in failures})


def write_failures(out: str, failures: list[Failure]) -> str | None:
    """Writes OUT.failures.csv and returns its name; None, and no such file, if nothing failed."""
    path = Path(f"{out}.failures.csv")
    if not failures:
        path.unlink(missing_ok=True)
        return None
    rows = [(f.record_id, "" if f.window is None else f.window, f.reason) for f in failures]
    write_whole(path, csv_text([("record_id", "window", "reason"), *rows]))
    return str(path)


def check_place(out: Path, folder: bool = False) -> None:
    """Makes the folder of a table, or the one that it is, so that a place that cannot be written is
    found before the work and not after it."""
    place = out if folder else out.parent
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out={out}: cannot write there ({error.strerror})") from None
    wrong = "a folder" if out.is_dir() and not folder else "no permission"
    if wrong == "a folder" or not os.access(place, os.W_OK):
        raise InputError(f"--out={out}: cannot write there ({wrong})")
