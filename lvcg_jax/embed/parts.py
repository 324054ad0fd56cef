"""Embeddings of a large data set, as a folder of parts: in little memory, by many processes, and
continued where they were stopped.

    plan.json                           what is embedded, by which model, and in which parts
    part-00000-of-00196.parquet         the rows of one part: an embeddings file of its own
    table.json, table.failures.csv      written once all parts are there

A part depends on its own records alone, so it does not matter which process computes it, in which
order, or on how many devices. Each is written whole or not at all. Of several processes each takes
a share, (2, 8) say, without a word to the others; the last to end writes table.json, after which
`load_table` reads the folder.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write, whole_file
from data_prep.base.lock import only_one, share_folder
from data_prep.base.progress import progress_bar
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.corpora.corpus import Corpus
from data_prep.dataset.shards import METADATA_FILE, ShardSet, file_sha256, read_metadata
from lvcg_jax.data.windows import Failure, corpus_windows, shard_windows, show_only
from lvcg_jax.embed.dataset import (
    count_flags,
    count_records,
    make_table,
    nothing_embedded,
    table_metadata,
    write_failures,
)
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import LISTING, Table, read_listing, read_parquet, save_table

PLAN, FAILURES = "plan.json", "table.failures.csv"
PART_ROWS = 4096  # windows (of shards) or records (of files) of a part, if nothing else is said
COUNTS = ("rows", "records", "failed", "weak", "unknown")  # of a part, and of all


@dataclass(frozen=True)
class Source:
    """Records in a fixed order, any range of which can be read by itself."""

    key: str  # changes with the records
    tasks: dict[str, Sequence[str]]
    pieces: dict[str, int]  # name of a split ('' if there are none) -> its items
    # piece, first item, item to stop before, list for failures, called after each item -> windows
    read: Callable[[str, int, int, list[Failure], Callable[[], object]], Iterator[dict]]


def shard_source(
    model: LVCG,
    data: str | Path,
    splits: Sequence[str] | None = None,
    names: Pseudonyms | None = None,
) -> Source:
    """The windows of shards, with pseudonyms if there are `names`; the records of a part are those
    that begin in its range."""
    metadata = read_metadata(data)
    sets = {split: ShardSet(data, split) for split in splits or metadata["splits"]}
    for shards in sets.values():
        shards.require_preprocess(model.cutting)
        if model.model.signal_samples:
            shards.require_signal()

    def read(split, first, stop, failures, done):
        shards = sets[split]
        numbers = range(_next_record(shards, first), _next_record(shards, stop))
        windows = shard_windows(shards, done, numbers)
        if names is None:
            return windows
        return (
            w | {name: names.of(w[name]) for name in ("record_id", "patient_id")} for w in windows
        )

    pieces = {split: len(shards) for split, shards in sets.items()}
    key = file_sha256(Path(data) / METADATA_FILE) + (names.of("") if names else "")
    return Source(key, metadata["tasks"], pieces, read)


def _next_record(shards: ShardSet, number: int) -> int:
    """The first example from this number on with which a record begins."""
    if 0 < number < len(shards):
        before = shards[number - 1]["record_id"]
        while number < len(shards) and shards[number]["record_id"] == before:
            number += 1
    return number


def corpus_source(model: LVCG, corpus: Corpus) -> Source:
    """All windows of raw records."""
    listing = hashlib.sha256()
    for ref in corpus.refs:
        line = [ref.record_id, ref.patient_id, ref.split, ref.labels]
        listing.update(json.dumps(line, sort_keys=True).encode())

    def read(piece, first, stop, failures, done):
        some = dataclasses.replace(corpus, refs=corpus.refs[first:stop])
        return corpus_windows(some, model.cutting, failures, done)

    return Source(listing.hexdigest(), corpus.tasks, {"": len(corpus.refs)}, read)


@dataclass(frozen=True)
class Written:
    """What a process knows at its end of the parts that it had to do, or of all of them."""

    counts: dict[str, int]  # of COUNTS
    missing: int  # parts that other processes have still to write; 0: the table is finished
    failures: str | None = None  # the file that lists what failed, if anything did


def write_parts(
    model: LVCG,
    source: Source,
    folder: str | Path,
    *,
    leads: Sequence[str] | None = None,
    rows: str = "window",
    part_rows: int = PART_ROWS,
    share: tuple[int, int] = (1, 1),
    progress: bool = True,
) -> Written:
    """Writes the parts of this share that are not there yet or damaged, and table.json if it then
    has all.

    Args:
      model: that embeds.
      source: what to embed.
      folder: to write to; one of another model, source or option is refused.
      leads: that the model may see; None shows all.
      rows: 'window', or 'record' for one row per record.
      part_rows: windows (of shards) or records (of files) of a part.
      share: (2, 8): every eighth part, from the second on.
      progress: show a progress bar.
    """
    folder = Path(folder)
    ranges = [
        (piece, first, min(first + part_rows, count))
        for piece, count in source.pieces.items()
        for first in range(0, count, part_rows)
    ]
    names = [f"part-{i:05d}-of-{len(ranges):05d}.parquet" for i in range(len(ranges))]
    metadata = table_metadata(model, source.tasks, rows)
    plan = metadata | {"records": source.key, "leads": list(leads or [])}
    plan |= {"parts": dict(zip(names, map(list, ranges), strict=True))}
    plan |= {"precision": jax.config.jax_default_matmul_precision}
    mine = dict(list(zip(names, ranges, strict=True))[share[0] - 1 :: share[1]])
    own = share_folder(folder, share)
    _check_folder(folder, plan)
    with only_one(own / "lock", f"{folder.name} is being written"):
        _write(folder / PLAN, plan, own)
        listed = _listed(folder)
        todo = {n: r for n, r in mine.items() if not _is_whole(folder / n, listed.get(n))}
        _embed(model, source, folder, own, mine, todo, leads, rows, progress)
        missing = sum(not (folder / name).is_file() for name in names)
        written = _finish(folder, mine if missing else names, missing, model, metadata, own)
    with contextlib.suppress(OSError):  # not empty: another process has taken the same share
        own.rmdir()
    return written


def _embed(
    model: LVCG,
    source: Source,
    folder: Path,
    own: Path,
    mine: dict[str, tuple],
    todo: dict[str, tuple],
    leads: Sequence[str] | None,
    rows: str,
    progress: bool,
) -> None:
    """Computes and writes the parts that are to do, of those of this share."""
    total, left = (sum(stop - first for _, first, stop in x.values()) for x in (mine, todo))
    with progress_bar(total=total, initial=total - left, unit="rec", disable=not progress) as bar:
        failures: dict[str, list[Failure]] = {name: [] for name in todo}

        def windows(name: str) -> Iterator[dict]:
            found = source.read(*todo[name], failures[name], bar.update)
            return show_only(found, leads, failures[name]) if leads else found

        answers = model.embed_pieces(map(windows, todo))
        for name, (found, outputs) in zip(todo, answers, strict=True):
            table = make_table(model, found, outputs, source.tasks, rows) if found else None
            metadata = table_metadata(model, source.tasks, rows)
            table = _with_failures(model, table, failures.pop(name), metadata)
            save_table(folder / name, table, own)


def _with_failures(
    model: LVCG, table: Table | None, failures: list[Failure], metadata: dict[str, str]
) -> Table:
    """The table of a part, which also says what has no row in it; it may have none at all."""
    if table is None:
        nobody, size = np.array([], str), sum(model.part_sizes.values())
        none = np.zeros((0, size), np.float32)
        table = Table(*[nobody] * 3, [], none, model.part_sizes, metadata, np.array([], int))
    told = json.dumps([dataclasses.astuple(failure) for failure in failures])
    return dataclasses.replace(table, metadata=table.metadata | {"failures": told})


def _check_folder(folder: Path, plan: dict) -> None:
    """Refuses a folder that holds something else, or other embeddings."""
    # listed before the plan is looked for: another process may be starting on the same folder
    there = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    if not (folder / PLAN).is_file():
        if any(not name.startswith("share-") for name in there):
            raise InputError(f"{folder}: not empty, and no folder of embeddings: name a new one")
        return
    try:
        before = json.loads((folder / PLAN).read_bytes())
    except ValueError:
        raise InputError(
            f"{folder / PLAN} is damaged: delete it, the same command writes it again"
        ) from None
    different = [name for name in plan if before.get(name) != json.loads(json.dumps(plan[name]))]
    if different:
        raise InputError(
            f"{folder} holds other embeddings (different: {', '.join(different)}): name a new"
            " folder, or delete this one"
        )


def _write(path: Path, content: dict, own: Path) -> None:
    try:
        with whole_file(path, own) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None


def _listed(folder: Path) -> dict[str, str]:
    """The checksums of the parts of a finished folder; none before."""
    if not (folder / LISTING).is_file():
        return {}
    return {part["file"]: part["sha256"] for part in read_listing(folder)["parts"]}


def _is_whole(path: Path, sha256: str | None) -> bool:
    """Whether a part is there as it was written."""
    if not path.is_file():
        return False
    if sha256 is not None:
        return file_sha256(path) == sha256
    try:
        read_parquet(path)
    except Exception:  # pyarrow has errors of its own for a damaged file
        return False
    return True


def _describe(path: Path) -> tuple[dict, list[Failure]]:
    """What table.json says of a part, and what has no row in it."""
    data, header = read_parquet(path)
    columns = {
        name: np.array(data[name].to_pylist())
        for name in ("rank", "defects")
        if name in data.column_names
    }
    failures = [Failure(*values) for values in json.loads(header["metadata"]["failures"])]
    records = len(set(data["record_id"].to_pylist()))
    counts = (len(data), records, count_records(failures), *count_flags(columns))
    facts = {"file": path.name, "sha256": file_sha256(path)}
    return facts | dict(zip(COUNTS, counts, strict=True)), failures


def _finish(
    folder: Path,
    names: Iterable[str],
    missing: int,
    model: LVCG,
    metadata: dict[str, str],
    own: Path,
) -> Written:
    """Reads these parts once more, and counts; if none is missing, lists them in table.json."""
    parts, failures = [], []
    for name in names:
        try:
            facts, failed = _describe(folder / name)
        except Exception as error:
            raise InputError(
                f"{folder / name} is damaged ({error}): run the command that wrote it again"
            ) from None
        parts.append(facts)
        failures += failed
    counts = {name: sum(part[name] for part in parts) for name in COUNTS}
    if missing:
        return Written(counts, missing)
    if write_failures(str(own / "table"), failures):
        listed = str(folder / FAILURES)
        os.replace(own / FAILURES, listed)
    else:
        listed = (folder / FAILURES).unlink(missing_ok=True)
    if not counts["rows"]:
        raise nothing_embedded(failures)
    listing = {"sizes": model.part_sizes, "metadata": metadata, "parts": parts}
    _write(folder / LISTING, listing, own)
    return Written(counts, 0, listed)
