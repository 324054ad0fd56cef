"""Trains and probes a config and its ablations at one budget, and writes a table of them all.

    lvcg ablate --base=configs/pretrain.py --data=SHARDS --steps=2000 --seeds=3 --out=runs/ablations
    lvcg ablate ... --only=ecg_space,no_temporal --data=vcg_peaks:SHARDS_WITH_VCG_PEAKS
    lvcg ablate ... --probe=cpsc2018=SHARDS --probe=csn=SHARDS

Every variant is the base config with one change of configs/ablations.py, trained for --steps with
each of --seeds seeds (0, 1, ...) on the same batches of records, warmed up for at most a tenth of
the steps. Its last checkpoint embeds the data set, and a ridge probe reads out every task. Beside
them: the base with random weights, and the median beat. A variant that changes the preprocessing
(vcg_peaks, record_norm) needs shards of its own: --data=NAME:SHARDS. Without them, or if it fails,
its row of the table says why; the row of missing shards gives the command that builds them.
--probe names further data sets, which nothing is trained on: every variant that is prepared as they
are embeds them too, and all their tasks are read out.

In --out: ablations.md and ablations.json, embeddings/ and runs/. The same command again continues
where it was stopped.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.embed.table import Table, align_features, take_rows
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.probe.study import probe_task
from lvcg_jax.runs.history import last_validation
from lvcg_jax.studies.changes import (
    BASE,
    Variant,
    add_change_flags,
    drop_checkpoints,
    features_elsewhere,
    parse_changes,
    plan,
    run_of,
    variant_features,
)
from lvcg_jax.studies.embeddings import median_features, random_features
from lvcg_jax.studies.kept import MEDIAN, RANDOM
from lvcg_jax.studies.trials import Stopped, budgeted, reason_of
from lvcg_jax.text.flags import named_path
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


class Tables:
    """The embeddings of every data set by model, a table for each seed; what is in the folder
    already is not made again."""

    def __init__(self, base: Path, others: dict[str, Path], seeds: int, out: Path):
        self.data, self.seeds, self.out = {BASE: base} | others, seeds, out
        self.found: dict[str, dict[str, list[Table]]] = {name: {} for name in self.data}

    def add_variant(self, variant: Variant, drop: bool, done: Callable) -> None:
        """Trains it, if need be; `drop` deletes its checkpoints when it has embedded everything."""
        preprocess = make_preprocess(variant.config).hash()
        fits = [
            name
            for name, data in self.data.items()
            if name != BASE and ShardSet(data, "train").preprocess.hash() == preprocess
        ]
        mine: dict[str, list[Table]] = {name: [] for name in (BASE, *fits)}
        for seed in range(self.seeds):
            made = {BASE: variant_features(variant, seed, self.out)}
            made |= {
                name: features_elsewhere(variant, seed, self.out, self.data[name]) for name in fits
            }
            for name, features in made.items():
                mine[name].append(features.table(self.out / "embeddings"))
            if drop:
                drop_checkpoints(variant, seed, self.out)
            done()
        for name, tables in mine.items():
            self.found[name][variant.name] = tables

    def add_controls(self, base: Variant, done: Callable) -> None:
        """The base with random weights, and the median beat."""
        folder = self.out / "embeddings"
        for name, data in self.data.items():
            several = (random_features(base.config, seed, data) for seed in range(self.seeds))
            self.found[name][RANDOM] = [features.table(folder) for features in several]
            self.found[name][MEDIAN] = [median_features(data).table(folder)]
        done()


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
        most, rows, where = fractions[-1], [], result.get("data", "")
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
        title = f"{result['task']}{f' of {where}' if where else ''}"
        lines += [f"**{title}**", "", *markdown_table(["variant", *head], rows)]
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
    add(
        "--probe",
        action="append",
        default=[],
        metavar="NAME=SHARDS",
        help="a further data set to embed and read out; may be repeated",
    )
    add_change_flags(parser)
    args = parser.parse_args(argv)
    changes, only, data = parse_changes(args.ablations, "ABLATIONS", args.only, args.data)
    tasks, corpus = choose_tasks(args.task, data[BASE]), read_metadata(data[BASE])["corpus"]
    others = {name: Path(path) for name, path in (named_path("--probe", x) for x in args.probe)}
    work_list = [("", task) for task in tasks]
    work_list += [
        (name, task) for name, path in others.items() for task in choose_tasks("all", path)
    ]
    logging.set_verbosity(logging.WARNING)

    # train and embed what is not there yet
    variants = plan(budgeted(read_config_file(args.base), args.steps), changes, data, only)
    (args.out / "embeddings").mkdir(parents=True, exist_ok=True)
    tables = Tables(data[BASE], others, args.seeds, args.out)
    work = sum(variant.config is not None for variant in variants) * args.seeds + 1
    with progress_bar(total=work, unit="model", desc="ablations") as bar:
        for variant in variants:
            if variant.config is None:
                continue
            bar.set_postfix_str(variant.name)
            try:
                tables.add_variant(variant, args.drop_checkpoints, bar.update)
            except Stopped:
                print(f"stopped in '{variant.name}': the same command continues from here")
                return 0
            except Exception as error:
                if variant.name == BASE:  # nothing to compare with
                    raise
                variant.reason = reason_of(error, variant.data)
        tables.add_controls(variants[0], bar.update)
    # probe all on the rows that they share
    shared = {name: common_rows(found) for name, found in tables.found.items()}
    notes = [note for _, _, some in shared.values() for note in some]
    options = {"fractions": args.fractions, "seeds": args.probe_seeds, "resamples": args.resamples}
    results = []
    for name, task in progress_bar(work_list, unit="task", desc="probe"):
        found = tables.found[name or BASE]
        first, features, _ = shared[name or BASE]
        parts = {model: several[0].part_sizes for model, several in found.items()}
        result = probe_task(features, first, task, **options, parts=parts, progress=True)
        results.append(result | {"data": name})
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
    write_whole(args.out / "ablations.json", json.dumps(document, indent=1) + "\n")
    write_whole(args.out / "ablations.md", text + "\n")
    if args.page:
        put_on_page(args.page, "ablations", f"Ablations: {corpus}", "ablate", argv, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_command(main)
