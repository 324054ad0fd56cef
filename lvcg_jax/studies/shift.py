"""Does a record keep its embedding if the recording starts a little later? With random weights as
control.

    lvcg shift --checkpoint=best,small,paper --data=SHARDS --out=DIR
    lvcg shift --checkpoint=best --start=first,complete,each --wfdb=FOLDER --shift=0.4 --out=DIR

Every record is cut twice to the same length: from its start, and from --shift seconds later. Of a
record of ten seconds these are its first and its last 9.6 s. Both pieces go through the whole
preprocessing, filter and R peaks included, as two recordings would. Shards should have been built
with --store_signal; without it signals are put together from beats.

cosine   of the two embeddings of a record, features standardised by those from the start
top-1    how often the embedding from the start that is nearest to a shifted one is the record's own

--start measures models again with the temporal module starting elsewhere than their config says.
Writes shift.json and shift.md.

Axis letters: t record, d feature.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from data_prep.base.command import Parser, positive_float, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.corpora.corpus import Corpus, open_corpus
from data_prep.dataset.look import signal_mv
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.leads import LEADS
from data_prep.ecg.record import RecordRef, Waveform
from lvcg_jax.config.fields import CHOICES
from lvcg_jax.data.entries import draw_patients, list_entries
from lvcg_jax.data.windows import Failure
from lvcg_jax.embed.dataset import check_place, embed_corpus
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, take_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.stats.likeness import own_is_nearest
from lvcg_jax.stats.scaling import mean_and_scale, unit_rows
from lvcg_jax.studies.embeddings import random_weights_key
from lvcg_jax.studies.kept import RANDOM
from lvcg_jax.text.documents import to_json
from lvcg_jax.text.flags import add_shared, named_path
from lvcg_jax.text.pages import command_line, put_on_page
from lvcg_jax.text.tables import markdown_table, points

WHOLE = "whole embedding"
MEASURES = {"cosine": "cosine", "top1": "top-1"}


def shard_corpus(data: str, limit: int | None) -> Corpus:
    """The windows of all splits of a data set as records in mV, at most `limit` of them."""
    sets = {split: ShardSet(data, split) for split in read_metadata(data)["splits"]}
    entries = {entry.row: entry for entry in list_entries(list(sets.values()), limit)}
    refs = [RecordRef(row, entry.patient_id, None, {}, row) for row, entry in entries.items()]

    def read(ref: RecordRef) -> Waveform:
        entry = entries[ref.path]
        example = entry.shards[entry.index]
        return Waveform(signal_mv(example).T, entry.shards.preprocess.rate, list(LEADS))

    return Corpus("shards", data, {}, refs, "none needed", read=read)


def folder_corpus(folder: str, limit: int | None) -> Corpus:
    """The WFDB records of a folder, at most `limit` of them."""
    corpus = open_corpus("wfdb", folder)
    chosen = draw_patients([ref.patient_id or ref.record_id for ref in corpus.refs], limit)
    return dataclasses.replace(corpus, tasks={}, refs=[corpus.refs[i] for i in chosen])


def cut(wave: Waveform, start: float, shift: float, seconds: float) -> Waveform:
    """The piece of a record from `start` on, as long as a piece from 0 and one from `shift` can
    both be: at most `seconds`."""
    samples = min(round(seconds * wave.rate), len(wave.signal) - round(shift * wave.rate))
    first = round(start * wave.rate)
    return dataclasses.replace(wave, signal=wave.signal[first : first + max(samples, 0)])


def embed_twice(model: LVCG, corpus: Corpus, shift: float) -> tuple[Table, Table, list[Failure]]:
    """The embeddings of the pieces from the start and of the shifted ones, in the same order, and
    why other records have none."""
    failures: list[Failure] = []
    tables = []
    for start in (0.0, shift):
        read = lambda ref, start=start: cut(  # noqa: E731
            corpus.read(ref), start, shift, model.preprocess.seconds
        )
        pieces = dataclasses.replace(corpus, read=read)
        tables.append(embed_corpus(model, pieces, failures=failures))
    both = set(tables[0].record_id) & set(tables[1].record_id)
    one, other = (
        take_rows(table, np.flatnonzero(np.isin(table.record_id, list(both)))) for table in tables
    )
    return one, other, failures


def likeness(one: Table, other: Table, resamples: int) -> dict[str, dict]:
    """MEASURES of each part and of the whole embedding, for two tables with the same records in the
    same order, with intervals."""
    bootstrap = PatientBootstrap(one.patient_id, resamples)
    found = {}
    for name, columns in {**one.part_columns, WHOLE: slice(None)}.items():
        spread = mean_and_scale(one.embedding[:, columns].astype(np.float64))
        here, there = (unit_rows(x.embedding[:, columns], *spread) for x in (one, other))
        values = {
            "cosine": (here * there).sum(1),
            "top1": own_is_nearest(there, here, one.record_id),
        }
        found[name] = {measure: bootstrap.summary(x) for measure, x in values.items()}
    return found


def starting(model: LVCG, start: str) -> LVCG:
    """The same weights, with the temporal module starting at the 'first' slot, at the first
    'complete' beat, or at 'each' of these."""
    config = ConfigDict(model.config.to_dict())  # a copy, nested fields too
    config.model.dynamics_start = start
    return LVCG(config, model.variables, model.checkpoint.rpartition("#")[0], model.facts)


def list_models(
    checkpoints: Sequence[str], starts: Sequence[str], data: str | None
) -> Iterator[tuple[str, LVCG]]:
    """Names and models: all checkpoints, then random weights of each of their configs; each of them
    once for each start."""
    train = None if data is None else ShardSet(data, "train")
    configs: dict[str, tuple[str, ConfigDict]] = {}

    def at_starts(name: str, model: LVCG) -> Iterator[tuple[str, LVCG]]:
        if not starts:
            yield name, model
        for start in starts:
            yield f"{name}, {start}", starting(model, start)

    for text in checkpoints:
        name, path = named_path("--checkpoint", text, Path(text).resolve().name)
        model = LVCG.load(path)
        if train is not None:
            train.require_preprocess(model.preprocess)
        configs.setdefault(random_weights_key(model.config), (name, model.config))
        yield from at_starts(name, model)
    for name, config in configs.values():
        yield from at_starts(f"{RANDOM} of {name}", LVCG.random(config, 0, train))


def to_text(document: dict) -> str:
    """The table, a row for each model and part, as Markdown."""
    rows = [
        [
            model,
            part,
            *(points(*(values[key][x] for x in ("mean", "low", "high"))) for key in MEASURES),
        ]
        for model, found in document["models"].items()
        for part, values in found["likeness"].items()
    ]
    lines = [
        f"**Another start.** {document['records']} records, cut to the same length from their start"
        f" and from {document['shift']:g} s later; x 100 [95% bootstrap over patients]. Cosine: of"
        " the two embeddings, features standardised over the records; top-1: the nearest embedding"
        " from the start is the record's own.",
        "",
        *markdown_table(["model", "features", *MEASURES.values()], rows),
    ]
    return "\n".join([*lines, *(f"- {note}" for note in document["notes"]), ""])


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("shift", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        action="append",
        metavar="[NAME=]RUN",
        help="run directory or packaged weights; several with commas, or the flag again",
    )
    add("--data", metavar="SHARDS", help="the records: shards of data_prep.build,")
    add("--wfdb", metavar="FOLDER", help="or all WFDB records below a folder")
    add_shared(parser, "out")
    add("--shift", type=positive_float, default=0.4, help="seconds (default %(default)s)")
    add(
        "--start",
        default="",
        metavar="first,complete,each",
        help="where the temporal module starts (default: as each config says)",
    )
    add("--records", type=positive_int, help="records at most (default all)")
    add_shared(parser, "resamples", "page", section="shift")
    args = parser.parse_args(argv)
    if (args.data is None) == (args.wfdb is None):
        raise InputError("give one of --data and --wfdb: the records to cut")
    args.checkpoint = [name for text in args.checkpoint for name in text.split(",") if name]
    args.start = [word for word in args.start.split(",") if word]
    known = CHOICES["model.dynamics_start"]
    for word in args.start:
        if word not in known:
            raise InputError(f"--start={word}: choose from {', '.join(known)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    out = Path(args.out)
    check_place(out / "shift.json")
    source = (shard_corpus, args.data) if args.data is not None else (folder_corpus, args.wfdb)
    corpus = source[0](source[1], args.records)

    # Every model embeds the pieces of all records.
    measured: dict[str, dict] = {}
    for name, model in list_models(args.checkpoint, args.start, args.data):
        if name in measured:
            raise InputError(f"--checkpoint: two are called '{name}'; give another as NAME=RUN")
        one, other, failures = embed_twice(model, corpus, args.shift)
        measured[name] = {
            "checkpoint": model.checkpoint,
            "dynamics_start": model.config.model.dynamics_start,
            "records": len(one.record_id),
            "failed": sorted({failure.record_id for failure in failures}),
            "likeness": likeness(one, other, args.resamples),
        }
        dynamics = measured[name]["likeness"]["dynamics"]
        shown = ", ".join(f"{MEASURES[key]} {points(x['mean'])}" for key, x in dynamics.items())
        print(f"{name}: {model.checkpoint}, dynamics {shown}", flush=True)

    # The table, in files and on a page.
    last = list(measured.values())[-1]
    names = (f"{name} {found['checkpoint']}" for name, found in measured.items())
    notes = [f"Models: {'; '.join(names)}."]
    if last["failed"]:
        notes.append(f"{len(last['failed'])} records could not be used in one of the two pieces.")
    document = {
        "format": "lvcg-shift-1",
        "command": command_line("shift", argv),
        "shift": args.shift,
        "records": last["records"],
        "notes": notes,
        "models": measured,
    }
    text = to_text(document)
    write_whole(out / "shift.json", to_json(document))
    head = f"# Another start\n\n```bash\n{document['command']}\n```\n\n"
    write_whole(out / "shift.md", head + text)
    if args.page:
        put_on_page(args.page, args.section, "Another start", "shift", argv, text)
    print(text)
    print(f"shift.json, shift.md: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
