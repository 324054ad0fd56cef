"""Does a few-lead view of a record give the embedding of all its leads? Measured, with random
weights as control.

    lvcg view_agreement --checkpoint=runs/paper --checkpoint=best=runs/long --data=SHARDS --out=DIR

Every test record is seen through all its leads, and --draws times through --k of them that span
three dimensions, drawn by the record's uid: the same views for every model and every call. Features
are standardised by the all-lead embeddings of the training records, since any two raw embeddings
are alike: they share a mean.

cosine   of a view's embedding with that of all leads; 'strangers' is the same of different records,
         all leads
top-1    how often the nearest all-lead embedding of the test split is the record's own: a model
         that gives all records one embedding does not win this
AUROC    of a probe trained, and its strength chosen, with all leads; tested with all, and with the
         views

Beats and R-R intervals are found with all leads, so the rhythm part has nothing to disagree on, and
makes agreement of the whole embedding easy: read 'without rhythm' beside it. Writes
view_agreement.json, view_agreement.md and view_agreement.svg.

Axis letters: t test row, d feature, v draw of the views.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.base.words import SPLITS
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.entries import list_entries
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed.dataset import check_place, embed_dataset
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import Table, keep_test_rows
from lvcg_jax.probe.figures import draw_probe
from lvcg_jax.probe.frozen import ALL, frozen_probe
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.reconstruct.views import Row, View, drawn_view
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.stats.likeness import own_is_nearest, stranger_cosine
from lvcg_jax.stats.scaling import mean_and_scale, unit_rows
from lvcg_jax.studies.embeddings import random_weights_key
from lvcg_jax.studies.kept import RANDOM
from lvcg_jax.text.documents import to_json
from lvcg_jax.text.flags import add_shared, named_path
from lvcg_jax.text.pages import command_line, put_on_page
from lvcg_jax.text.tables import auroc_row, gain_row, markdown_table, percent, points

# says which leads span three dimensions, whatever geometry a model has
GEOMETRY, EPS = "paper", 1e-4
WHOLE, NO_RHYTHM = "whole embedding", "without rhythm"
MEASURES = {"cosine": "cosine", "strangers": "cosine of strangers", "top1": "top-1"}


def open_models(checkpoints: Sequence[str], data: str) -> dict[str, LVCG]:
    """{name: model} of the flags '[NAME=]RUN', each followed by random weights of its config if
    none has them yet."""
    paths: dict[str, str] = {}
    for text in checkpoints:
        name, path = named_path("--checkpoint", text, Path(text).resolve().name)
        if name in paths:
            raise InputError(
                f"--checkpoint={text}: the name '{name}' is taken; give another as NAME=RUN"
            )
        paths[name] = path
    train, _, _ = (ShardSet(data, split) for split in SPLITS)  # all three are there and whole
    models = {name: LVCG.load(path) for name, path in paths.items()}
    for model in models.values():
        train.require_preprocess(model.preprocess)
    found, seen = {}, set()
    for name, model in models.items():
        found[name] = model
        key = random_weights_key(model.config)
        if key not in seen:
            found[f"{RANDOM} of {name}"] = LVCG.random(model.config, 0, train)
            seen.add(key)
    return found


def draw_test_views(data: str, k: int, draws: int, limit: int | None) -> View:
    """The views of the test records: its rows go through the draws of one record, then of the
    next."""
    entries = list_entries([ShardSet(data, "test")], limit)
    return drawn_view(entries, k, draws, 0, lead_matrix(GEOMETRY), EPS)


def view_windows(rows: Sequence[Row], done: Callable[[], object]) -> Iterator[dict]:
    """The windows of some rows of one split, each with the leads visible that its row shows."""
    windows = shard_windows(rows[0].entry.shards, done, [row.entry.index for row in rows])
    for window, row in zip(windows, rows, strict=True):
        yield window | {"visible": row.visible}


def embed_views(model: LVCG, view: View, draws: int) -> np.ndarray:
    """Embeddings [v,t,d] of every draw."""
    with progress_bar(total=len(view.rows), unit="view", desc="views") as bar:
        several = (view_windows(view.rows[draw::draws], bar.update) for draw in range(draws))
        return np.stack([join_parts(model.embed_windows(windows)[1]) for windows in several])


def feature_sets(table: Table) -> dict[str, np.ndarray]:
    """Columns of the whole embedding, of all but rhythm, and of each part."""
    every = np.arange(table.embedding.shape[1])
    parts = {name: every[place] for name, place in table.part_columns.items()}
    others = [columns for name, columns in parts.items() if name != "rhythm"]
    mixed = {NO_RHYTHM: np.concatenate(others)} if 1 < len(others) < len(parts) else {}
    return {WHOLE: every} | mixed | parts


def agreement(table: Table, test: np.ndarray, views: np.ndarray, resamples: int) -> dict[str, dict]:
    """MEASURES of each of the feature sets, for views [v,t,d] of a table's test rows [t], with
    intervals."""
    spread = mean_and_scale(table.embedding[table.split == "train"].astype(np.float64))
    bootstrap, records = PatientBootstrap(table.patient_id[test], resamples), table.record_id[test]
    found = {}
    for name, columns in feature_sets(table).items():
        mean, scale = (values[columns] for values in spread)
        full, *seen = (
            unit_rows(x[:, columns], mean, scale) for x in (table.embedding[test], *views)
        )
        by_draw = {
            "cosine": np.array([(view * full).sum(1) for view in seen]),  # [v,t]
            "top1": np.array([own_is_nearest(view, full, records) for view in seen]),
        }
        found[name] = {
            measure: bootstrap.summary(values.mean(0)) for measure, values in by_draw.items()
        }
        found[name] |= {
            f"{measure}_by_draw": values.mean(1).tolist() for measure, values in by_draw.items()
        }
        found[name] |= {
            "strangers": bootstrap.summary(stranger_cosine(full, records)),
            "numbers": len(columns),
        }
    return found


def measure(model: LVCG, view: View, tasks: Sequence[str], args: argparse.Namespace) -> dict:
    """All numbers of one model."""
    table = embed_dataset(model, args.data, limit=args.records)
    table, test = keep_test_rows(table, [row.entry.row for row in view.rows[:: args.draws]])
    views = embed_views(model, view, args.draws)
    tested = {view_name(args.k): list(views)}
    options = (args.fractions, args.seeds, args.resamples)
    return {
        "checkpoint": model.checkpoint,
        "agreement": agreement(table, test, views, args.resamples),
        "probe": [
            frozen_probe(table, test, tested, task, *options)
            for task in progress_bar(tasks, unit="task", desc="probe", leave=False)
        ],
    }


def view_name(k: int) -> str:
    return f"{k} leads" if k > 1 else "1 lead"


def to_text(document: dict) -> str:
    """The tables, a column for each model, as Markdown."""
    models, seen = document["models"], view_name(document["k"])
    first = next(iter(models.values()))
    rows = []
    for name in dict.fromkeys(name for found in models.values() for name in found["agreement"]):
        for key, title in MEASURES.items():
            values = [found["agreement"].get(name, {}).get(key, {}) for found in models.values()]
            rows.append(
                [
                    name,
                    title,
                    *(points(*(v.get(part) for part in ("mean", "low", "high"))) for v in values),
                ]
            )
    times = (
        f"{document['draws']} views a record of {seen}"
        if document["draws"] > 1
        else f"one view a record of {seen}"
    )
    lines = [
        f"**Agreement** of {times} with all leads, x 100, {document['test_rows']} test records [95%"
        " bootstrap over patients]. Cosine: of features standardised by the training records;"
        " strangers: different records, all leads; top-1: the nearest all-lead embedding is the"
        " record's own.",
        "",
        *markdown_table(["features", "measure", *models], rows),
    ]
    rows = []
    for i, result in enumerate(first["probe"]):
        results = [found["probe"][i] for found in models.values()]
        for fraction in document["fractions"]:
            start = [result["task"], percent(fraction)]
            for leads in (ALL, seen):
                rows.append([*start, leads, *(auroc_row(r, leads, [fraction])[0] for r in results)])
            rows.append([*start, "drop", *(gain_row(r, seen, [fraction])[0] for r in results)])
    protocol = "ridge, strength chosen on validation records with all leads"
    lines += [
        f"**Probe** trained with all leads ({protocol}): test macro AUROC x 100 with all leads,"
        " with the views (mean of the draws), and the drop between the two (paired bootstrap).",
        "",
        *markdown_table(["task", "labels", "tested with", *models], rows),
    ]
    return "\n".join([*lines, *(f"- {note}" for note in document["notes"]), ""])


def side_by_side(models: dict[str, dict]) -> list[dict]:
    """The probe results of all models as one for each task, to draw."""
    results = []
    for several in zip(*(found["probe"] for found in models.values()), strict=True):
        pairs = zip(models, several, strict=True)
        cells = [
            cell | {"model": f"{name}, {cell['model']}"}
            for name, result in pairs
            for cell in result["cells"]
        ]
        names = list(dict.fromkeys(cell["model"] for cell in cells))
        results.append({"task": several[0]["task"], "models": names, "cells": cells})
    return results


def notes_of(view: View, models: dict[str, dict]) -> list[str]:
    """What a reader of the tables must know."""
    notes = [
        *view.notes,
        "Beats and R-R intervals are found with all leads: rhythm has nothing to disagree"
        f" on, '{NO_RHYTHM}' has.",
    ]
    short = {failure["record_id"] for failure in view.failures}
    if short:
        notes.append(
            f"{len(short)} test records have no lead beyond those of a view and are left out."
        )
    first = next(iter(models.values()))
    notes += [f"{result['task']}: {note}" for result in first["probe"] for note in result["notes"]]
    sizes = [
        f"{name} {found['checkpoint']}, {found['agreement'][WHOLE]['numbers']}"
        for name, found in models.items()
    ]
    return [*notes, f"Models, and the size of their embeddings: {'; '.join(sizes)}."]


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("view_agreement", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        action="append",
        metavar="[NAME=]RUN",
        help="run directory; may be repeated",
    )
    add_shared(parser, "data", "out")
    add("--k", type=int, default=3, help="visible leads of a view (default 3)")
    add("--draws", type=positive_int, default=3, help="views of each test record (default 3)")
    add("--records", type=positive_int, help="records of each split at most (default all)")
    add_shared(
        parser, "task", "seeds", "resamples", "page", fractions="1", section="view_agreement"
    )
    args = parser.parse_args(argv)
    if not 1 <= args.k < len(LEADS):
        raise InputError(f"--k={args.k}: give 1 to 11; a view of all twelve leads is no other view")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    out, tasks = Path(args.out), choose_tasks(args.task, args.data)
    check_place(out / "view_agreement.json")
    models = open_models(args.checkpoint, args.data)
    view = draw_test_views(args.data, args.k, args.draws, args.records)
    measured = {}
    for name, model in models.items():
        print(f"{name}: {model.checkpoint}", flush=True)
        measured[name] = measure(model, view, tasks, args)
    command = command_line("view_agreement", argv)
    document = {
        "format": "lvcg-view-agreement-1",
        "command": command,
        "k": args.k,
        "draws": args.draws,
        "fractions": args.fractions,
        "test_rows": len(view.rows) // args.draws,
        "notes": notes_of(view, measured),
        "models": measured,
    }
    text = to_text(document)
    write_whole(out / "view_agreement.json", to_json(document))
    write_whole(
        out / "view_agreement.md", f"# Few leads against all\n\n```bash\n{command}\n```\n\n{text}"
    )
    title = f"Probes trained with all leads, tested with {view_name(args.k)}"
    picture = draw_probe(out / "view_agreement.svg", side_by_side(measured), title)
    if args.page:
        there = os.path.relpath(picture, Path(args.page).parent)
        section = f"{text}\n![{title}]({there})\n"
        put_on_page(
            args.page, args.section, "Few leads against all", "view_agreement", argv, section
        )
    print(text)
    print(f"view_agreement.json, view_agreement.md, view_agreement.svg: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
