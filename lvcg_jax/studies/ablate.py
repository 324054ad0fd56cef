"""Trains and probes a config and its ablations at one budget, and writes a table of them all.

    lvcg ablate --base=configs/pretrain.py --data=SHARDS --steps=2000 --seeds=3 --out=runs/ablations
    lvcg ablate ... --only=ecg_space,no_temporal --data=vcg_peaks:SHARDS_WITH_VCG_PEAKS

Every variant is the base config with one change of configs/ablations.py, trained for --steps with
each of --seeds seeds (0, 1, ...) on the same batches of records, warmed up for at most a tenth of
the steps. Its last checkpoint embeds the data set, and a ridge probe reads out every task. Beside
them: the base with random weights, and the median beat. A variant that changes the preprocessing
(vcg_peaks, record_norm) needs shards of its own: --data=NAME:SHARDS. Without them, or if it fails,
its row of the table says why; the row of missing shards gives the command that builds them.

In --out: ablations.md and ablations.json, embeddings/ and runs/. The same command again continues
where it was stopped.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import read_metadata
from lvcg_jax.config.files import read_config_file
from lvcg_jax.embed.table import Table, align_features, take_rows
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.probe.study import probe_task
from lvcg_jax.runs.history import last_validation
from lvcg_jax.studies.changes import (
    BASE,
    Stopped,
    Variant,
    add_change_flags,
    budgeted,
    parse_changes,
    plan,
    reason_of,
    run_of,
    variant_features,
)
from lvcg_jax.studies.embeddings import MEDIAN, RANDOM, median_features, random_features
from lvcg_jax.text.pages import put_on_page, shown
from lvcg_jax.text.tables import (
    auroc_row,
    cells_of,
    fractions_of,
    gain_row,
    markdown_table,
    percent,
    points,
)

ABLATIONS_FILE = "configs/ablations.py"


def variant_tables(
    variant: Variant, seeds: int, out: Path, drop_checkpoints: bool, done: Callable
) -> list[Table]:
    """The embeddings of one variant, a table for each seed; what is in `out` already is not made
    again."""
    tables = []
    for seed in range(seeds):
        features = variant_features(variant, seed, out, drop_checkpoints=drop_checkpoints)
        tables.append(features.table(out / "embeddings"))
        done()
    return tables


def control_tables(base: Variant, seeds: int, out: Path, done: Callable) -> dict[str, list[Table]]:
    """The base with random weights, one table for each seed, and the median beat."""
    random, folder = [], out / "embeddings"
    for seed in range(seeds):
        random.append(random_features(base.config, seed, base.data).table(folder))
        done()
    return {RANDOM: random, MEDIAN: [median_features(base.data).table(folder)]}


def common_rows(
    tables: dict[str, list[Table]],
) -> tuple[Table, dict[str, list[np.ndarray]], list[str]]:
    """The base's table and everybody's features [m,d], on the rows that all have; and a note if
    some do not."""
    base = tables[BASE][0]
    every = [table for several in tables.values() for table in several]
    shared = set(base.keys).intersection(*(table.keys for table in every))
    cut = lambda table: take_rows(table, np.array([key in shared for key in table.keys]))  # noqa: E731
    first = cut(base)
    features = {
        name: [align_features(first, cut(table), name) for table in several]
        for name, several in tables.items()
    }
    lost = max(len(table.keys) for table in every) - len(shared)
    notes = [f"{lost} rows that not all data sets have are left out."] if lost else []
    return first, features, notes


def final_validation(variant: Variant, seeds: int, out: Path) -> list[dict | None]:
    """The last validation of each seed's run, None where there is none."""
    return [
        last_validation(run_of(variant, seed, out)[2])
        for seed in range(seeds)
        if variant.config is not None
    ]


def to_text(document: dict) -> str:
    """The tables, from the numbers alone."""
    variants, results = document["variants"], document["results"]
    many = f"{document['seeds']} training{'s' * (document['seeds'] > 1)}"
    budget = f"{document['steps']} steps of {document['batch_size']} records, {many} of each"
    lines = [
        f"{document['corpus']}, {budget}; `{BASE}` is {document['base']}. Test macro AUROC x 100"
        f" with 95% bootstrap intervals over patients, ridge probe, mean over {many} and"
        f" {document['probe_seeds']} label subset{'s' * (document['probe_seeds'] > 1)}.",
        "",
    ]
    rows = []
    for v in variants:
        r2 = [f"{row['ecg_r2']:.3f}" if row else "-" for row in v["validation"]]
        rows.append(
            [
                v["name"],
                v["change"] or "-",
                ", ".join(r2) if not v["reason"] else f"not run: {v['reason']}",
            ]
        )
    lines += markdown_table(
        ["variant", "change", "R2 of hidden leads in validation, by seed"], rows
    )
    for result in results:
        fractions = fractions_of([result])
        if not fractions:
            lines += [
                f"**{result['task']}**: no result",
                "",
                *(f"- {note}" for note in result["notes"]),
                "",
            ]
            continue
        most, rows = fractions[-1], []
        for model in result["models"]:
            cell = cells_of(result, model)[most]
            seeds = " ".join(points(value) for value in cell.get("per_fit", [cell["macro_auroc"]]))
            gain = gain_row(result, model, fractions)[-1] if model != BASE else "-"
            rows.append([model, *auroc_row(result, model, fractions), gain, seeds])
        head = [
            *map(percent, fractions),
            f"{BASE} - it, {percent(most)}",
            f"by seed, {percent(most)}",
        ]
        lines += [f"**{result['task']}**", "", *markdown_table(["variant", *head], rows)]
        lines += [f"- {note}" for note in result["notes"]] + ([""] if result["notes"] else [])
    return "\n".join([*lines, *(f"- {note}" for note in document["notes"])])


def main(argv: list[str] | None = None) -> int:
    parser = Parser("ablate", __doc__)
    add = parser.add_argument
    add(
        "--base",
        required=True,
        metavar="CONFIG",
        help="config that is ablated, e.g. configs/pretrain.py:demo",
    )
    add("--steps", required=True, type=positive_int, help="training steps of every variant")
    add("--seeds", type=positive_int, default=3, help="trainings of every variant (default 3)")
    add(
        "--ablations",
        metavar="FILE",
        default=ABLATIONS_FILE,
        help="file of changes (default configs/ablations.py)",
    )
    add(
        "--drop_checkpoints",
        action="store_true",
        help="delete the checkpoints of a run once it has embedded the data",
    )
    add_change_flags(parser)
    args = parser.parse_args(argv)
    changes, only, data = parse_changes(args.ablations, "ABLATIONS", args.only, args.data)
    tasks, corpus = choose_tasks(args.task, data[BASE]), read_metadata(data[BASE])["corpus"]
    logging.set_verbosity(logging.WARNING)

    # train and embed what is not there yet
    variants = plan(budgeted(read_config_file(args.base), args.steps), changes, data, only)
    (args.out / "embeddings").mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Table]] = {}
    work = sum(variant.config is not None for variant in variants) * args.seeds + args.seeds
    with progress_bar(total=work, unit="model", desc="ablations") as bar:
        for variant in variants:
            if variant.config is None:
                continue
            bar.set_postfix_str(variant.name)
            try:
                tables[variant.name] = variant_tables(
                    variant, args.seeds, args.out, args.drop_checkpoints, bar.update
                )
            except Stopped:
                print(f"stopped in '{variant.name}': the same command continues from here")
                return 0
            except Exception as error:
                if variant.name == BASE:  # nothing to compare with
                    raise
                variant.reason = reason_of(error, variant.data)
        tables |= control_tables(variants[0], args.seeds, args.out, bar.update)
    # probe all on the rows that they share
    first, features, notes = common_rows(tables)
    parts = {name: several[0].part_sizes for name, several in tables.items()}
    options = {"fractions": args.fractions, "seeds": args.probe_seeds, "resamples": args.resamples}
    options |= {"parts": parts, "progress": True}
    results = [
        probe_task(features, first, task, **options)
        for task in progress_bar(tasks, unit="task", desc="probe")
    ]
    document = {
        "format": "lvcg-ablate-1",
        "base": f"`{shown(Path(args.base))}`",
        "corpus": corpus,
        "steps": args.steps,
        "batch_size": variants[0].config.data.batch_size,
        "seeds": args.seeds,
        "probe_seeds": args.probe_seeds,
        "variants": [
            {"name": v.name, "change": v.change, "reason": v.reason}
            | {"validation": final_validation(v, args.seeds, args.out)}
            for v in variants
        ],
        "results": results,
        "notes": notes,
    }
    text = to_text(document)
    (args.out / "ablations.json").write_text(json.dumps(document, indent=1) + "\n")
    (args.out / "ablations.md").write_text(text + "\n")
    if args.page:
        put_on_page(args.page, "ablations", f"Ablations: {corpus}", "ablate", argv, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_command(main)
