"""Does a diagnosis survive in derived leads? A probe that learned from true records reads records
whose hidden leads were derived.

    lvcg readout --checkpoint=best --data=SHARDS --visible=II,V2,V5 --visible=I --out=DIR

The probe (ridge, all labels) learns from the embeddings of training records with their true leads.
It then reads records of --split that have all twelve leads, in several forms:

12 leads      as they are
the leads     the visible ones alone, with the limb leads that follow from them
method        all twelve, those that are not visible derived by a method of reconstruct/methods.py

A record in any but the first form goes through the preprocessing of a record that was recorded so:
R peaks are found in its leads, and these are normalised as they are, only the filter is not applied
a second time. A record in which no R peak is found is given the mean training embedding, and
counted. What a method does better than the visible leads alone is what deriving is worth to the
reader; what it lacks to 12 leads is what deriving lost.

--split=test has the probe's strength chosen on the validation split; any other split has it chosen
on a tenth of the training patients, who are then not learned from. Writes readout.json and
readout.md.

Axis letters: t judged record, d feature, l lead, T sample.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.lottery import fold_of
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.leads import LEADS, mask_leads, parse_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.signal import recover_limb_leads
from lvcg_jax.data.entries import Entry, list_entries
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed.dataset import check_place, embed_table
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import Table
from lvcg_jax.probe.frozen import ALL, frozen_probe
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.probe.study import SPLIT_WORDS
from lvcg_jax.reconstruct.methods import METHODS, check_methods, choose_eps, make_methods
from lvcg_jax.reconstruct.views import (
    CHUNK,
    Source,
    View,
    Windows,
    check_visible,
    derive_rows,
    fixed_view,
)
from lvcg_jax.runs import weights
from lvcg_jax.text.documents import to_json
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import command_line, put_on_page
from lvcg_jax.text.tables import auroc_row, cells_of, gain_row, markdown_table, points

CHOOSING_FOLDS = 10  # of training patients, one of which chooses the strength of the probe


def choose_entries(
    data: str, split: str, limit: int | None, train_records: int
) -> dict[str, list[Entry]]:
    """Records to learn from, to choose the probe's strength with, and to be judged, under the names
    of the splits that a probe gives them."""
    if split == "train":
        raise InputError("--split=train: the probe learns from these records; give another split")
    judged = [e for e in list_entries([ShardSet(data, split)], limit) if not _lacking(e)]
    if not judged:
        raise InputError(f"{data}: no record of the split {split} has all twelve leads")
    train = list_entries([ShardSet(data, "train")], train_records)
    if split == "test":
        choose = list_entries([ShardSet(data, "validation")], train_records)
    else:
        choose = [e for e in train if not fold_of(e.patient_id, CHOOSING_FOLDS)]
        train = [e for e in train if fold_of(e.patient_id, CHOOSING_FOLDS)]
    return {"train": train, "validation": choose, "test": judged}


def _lacking(entry: Entry) -> bool:
    return not mask_leads(entry.lead_mask).all()


def embed_true(model: LVCG, data: str, entries: dict[str, list[Entry]]) -> Table:
    """The embeddings of all these records with their true leads, those to be judged last."""
    total = sum(map(len, entries.values()))
    with progress_bar(total=total, unit="rec", desc="true leads") as bar:
        windows = itertools.chain.from_iterable(
            (
                window | {"split": split}
                for window in shard_windows(
                    some[0].shards, bar.update, [entry.index for entry in some]
                )
            )
            for split, some in entries.items()
            if some
        )
        return embed_table(model, windows, read_metadata(data)["tasks"], [])


def as_recorded(
    preprocess: Preprocess, window: dict, mv: np.ndarray, present: np.ndarray
) -> dict | None:
    """A record of these filtered leads [l,T] in mV as preprocessing gives it, with the uid of
    another window; None if there is no R peak."""
    found = preprocess.cut_window(mv.astype(np.float64), present.copy(), [])
    if isinstance(found, str):
        return None
    names = ("beats", "start", "length", "complete", "scale", "lead_mask")
    return {name: getattr(found, name) for name in names} | {
        "visible": found.lead_mask,
        "uid": window["uid"],
        "record_id": window["record_id"],
    }


def embed_derived(
    model: LVCG, source: Source, view: View, instead: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Embeddings [t,d] of the view's records with the visible leads alone, and with all leads as
    each method derives them; also how many are `instead` [d], as they show no R peak."""
    alone = view.name.replace("_", ", ") + " alone"
    rows, found, lost = view.rows, {}, {}
    windows = [{"uid": row.entry.uid, "record_id": row.entry.record_id} for row in rows]
    with progress_bar(total=len(rows), unit="rec", desc=view.name) as bar:
        for first in range(0, len(rows), CHUNK):
            some = rows[first : first + CHUNK]
            forms: dict[str, list[dict | None]] = {}
            for window, (row, truth, derived) in zip(
                windows[first : first + CHUNK], derive_rows([source], some), strict=True
            ):
                _, shown = recover_limb_leads(np.zeros((len(LEADS), 0)), mask_leads(row.visible))
                mixed = {n: np.where(shown[:, None], truth, x) for n, x in derived.items()}
                kinds = {alone: (truth, shown)} | {
                    name: (x, np.ones(len(LEADS), bool)) for name, x in mixed.items()
                }
                for name, (leads, present) in kinds.items():
                    record = as_recorded(model.preprocess, window, leads, present)
                    forms.setdefault(name, []).append(record)
                bar.update()
            for name, records in forms.items():
                block = np.tile(instead, (len(records), 1))
                there = [i for i, record in enumerate(records) if record is not None]
                if there:
                    shown_windows = [records[i] for i in there]
                    block[there] = join_parts(model.embed_windows(shown_windows)[1])
                found.setdefault(name, []).append(block)
                lost[name] = lost.get(name, 0) + len(records) - len(there)
    return {name: np.concatenate(blocks) for name, blocks in found.items()}, lost


def tables(results: Sequence[dict], few: int) -> list[str]:
    """For each task the macro AUROC of every form of the records and what it lacks to 12 leads, and
    the AUROC of each class with at least `few` positives."""
    lines = []
    for result in results:
        models = result["models"]
        rows = [
            [
                name,
                *auroc_row(result, name, [1.0]),
                *(["-"] if name == ALL else gain_row(result, name, [1.0])),
            ]
            for name in models
        ]
        heads = ["leads", "macro AUROC x 100", f"{ALL} minus this (paired)"]
        lines += [f"Task {result['task']}:", "", *markdown_table(heads, rows)]
        classes = {name: cells_of(result, name)[1.0]["per_class"] for name in models}
        named = {
            label: entry["test_positives"]
            for label, entry in classes[ALL].items()
            if entry["test_positives"] >= few
        }
        rows = [
            [
                name,
                *(
                    points(*(classes[name][label][key] for key in ("auroc", "low", "high")))
                    for label in named
                ),
            ]
            for name in models
        ]
        heads = ["leads", *(f"{label} ({count})" for label, count in named.items())]
        if named:
            lines += ["AUROC x 100 by class (positive records):", "", *markdown_table(heads, rows)]
        lines += [*(f"- {note}" for note in result["notes"]), ""]
    return lines


def parse_flags(argv: list[str] | None):
    parser = Parser("readout", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add_shared(parser, "data", "out", "resamples", "page")
    add("--section", metavar="NAME", help="name of that section (default readout-CORPUS)")
    add("--split", default="test", help="split to judge (default test)")
    add_shared(parser, "task", "visible")
    methods = "lvcg,gaussian beat,regression"
    add("--methods", default=methods, help=f"of {', '.join(METHODS)} (default {methods})")
    add("--limit", type=positive_int, help="records judged at most, from many patients")
    fit = "training records for the probe and for fitted methods, at most (default 20000)"
    add("--fit_records", type=positive_int, default=20_000, help=fit)
    few = "positive records of a class that is shown by name, at least (default 10)"
    add("--few", type=positive_int, default=10, help=few)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    if not args.visible:
        raise InputError("say which leads are visible: --visible=II,V2,V5, which may be repeated")
    shown = [check_visible(parse_leads(text)) for text in args.visible]
    names, tasks = check_methods(args.methods.split(",")), choose_tasks(args.task, args.data)
    out = Path(args.out)
    check_place(out / "readout.md")

    # the model, the records, and methods fitted on training records
    model = LVCG.load(weights.choose(args.checkpoint))
    entries = choose_entries(args.data, args.split, args.limit, args.fit_records)
    entries["test"][0].shards.require_preprocess(model.preprocess)
    eps = choose_eps(None, model)
    source = Source(make_methods(names, model, eps))
    for method in source.methods:
        method.fit(Windows(entries["train"]))

    # embeddings of all forms of the judged records
    table = embed_true(model, args.data, entries)
    judged = len(table.record_id) - len(entries["test"]) + np.arange(len(entries["test"]))
    instead = table.embedding[table.split == "train"].mean(0)
    tested, notes = {}, []
    for leads in shown:
        view = fixed_view(entries["test"], leads, model.directions, eps)
        found, lost = embed_derived(model, source, view, instead)
        alone, *_ = found
        of_view = {alone: alone} | {name: f"{', '.join(leads)}: {name}" for name in names}
        tested |= {shown_as: [found[name]] for name, shown_as in of_view.items()}
        notes += [f"{of_view[n]}: {k} records show no R peak." for n, k in lost.items() if k]

    # what the probe reads in them
    words = dict(SPLIT_WORDS)
    if args.split != "test":
        words |= {"validation": "patients who choose", "test": f"{args.split} split"}
    results = [
        frozen_probe(table, judged, tested, task, [1.0], 1, args.resamples, words) for task in tasks
    ]
    corpus = read_metadata(args.data)["corpus"]
    about = [
        f"{len(judged)} records of {corpus}, split {args.split}; the probe learned from"
        f" {len(entries['train'])} records with their true leads. Model {model.checkpoint}. 95%"
        " bootstrap over patients.",
        "",
    ]
    if model.preprocess.normalise == "lead":
        notes.append("Methods that predict a lead's shape are given the true lead's size.")
    text = "\n".join([*about, *tables(results, args.few), *(f"- {note}" for note in notes), ""])
    command, title = command_line("readout", argv), f"Diagnoses in derived leads: {corpus}"
    write_whole(out / "readout.md", f"# {title}\n\n```bash\n{command}\n```\n\n{text}")
    document = {"format": "lvcg-readout-1", "notes": notes, "results": results}
    write_whole(out / "readout.json", to_json(document))
    if args.page:
        put_on_page(args.page, args.section or f"readout-{corpus}", title, "readout", argv, text)
    print(text)
    print(f"readout.md, readout.json: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
