"""The results page: the tables of a trained run beside its controls and published figures, with a
list of what it did not win.

    lvcg results --checkpoint=runs/paper --data=data/ptbxl --out=docs/results-paper.md

Embeds the data set with the trained model, with random weights and as median beats, probes every
task at 1, 10 and 100% of the labels, and writes the section of this run; the page's other sections
stay. Embeddings and all numbers (as JSON) are kept in --work, so a second call only probes. Splits
are those of the data set.
"""

import json
import time
from pathlib import Path

from absl import logging

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import read_metadata
from lvcg_jax.config.files import load_config
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, align_features
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.probe.study import part_features, probe_task
from lvcg_jax.runs.history import describe_run
from lvcg_jax.studies.embeddings import (
    CONTROLS,
    MEDIAN,
    MODEL,
    RANDOM,
    RAW,
    Features,
    data_key,
    median_features,
    random_features,
    raw_features,
)
from lvcg_jax.studies.published import CAVEAT, published_for
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import command_line, write_section
from lvcg_jax.text.tables import (
    CLASS_COLUMNS,
    F1_TITLE,
    auroc_row,
    cells_of,
    class_rows,
    f1_rows,
    fractions_of,
    gain_row,
    markdown_table,
    percent,
    points,
)

FRACTIONS = (0.01, 0.1, 1.0)
OTHER_PROTOCOLS, OTHER_SEEDS = ("paper", "release"), 3  # whose agreement with 'ridge' is shown


def embed_all(run: Path, data: Path, work: Path, random_seeds: int) -> dict[str, list[Table]]:
    """Tables of the trained model and of its controls; each is computed once and kept in `work`."""
    config, trained = load_config(run / "config.json"), LVCG.load(run)
    key = [trained.checkpoint, data_key(data)]
    features = {
        MODEL: [Features("trained", key, lambda: embed_dataset(trained, data))],
        RANDOM: [random_features(config, seed, data) for seed in range(random_seeds)],
        RAW: [raw_features(config, data)],
        MEDIAN: [median_features(data)],
    }
    return {name: [one.table(work) for one in several] for name, several in features.items()}


def probe_all(
    tables: dict[str, list[Table]], tasks: list[str], seeds: int
) -> tuple[list[dict], list[dict]]:
    """Results of every task with protocol `ridge`, and of the first task with all labels with the
    other protocols."""
    first = tables[MODEL][0]
    features = {MODEL: first.embedding} | part_features(first, MODEL)
    parts = {name: several[0].part_sizes for name, several in tables.items()}
    for name in CONTROLS:
        features[name] = [align_features(first, table, name) for table in tables[name]]
    bar = progress_bar(tasks, unit="task")
    options = {"fractions": FRACTIONS, "seeds": seeds, "parts": parts, "progress": True}
    results = [probe_task(features, first, task, **options) for task in bar]
    main = {name: features[name] for name in (MODEL, MEDIAN)}
    options = {"fractions": (1.0,), "seeds": OTHER_SEEDS, "progress": True}
    return results, [
        probe_task(main, first, tasks[0], protocol=other, **options) for other in OTHER_PROTOCOLS
    ]


def describe_data(metadata: dict) -> dict:
    names = ("examples", "records", "patients")
    splits = {
        split: {name: values[name] for name in names}
        for split, values in metadata["splits"].items()
    }
    kept = {name: metadata[name] for name in ("corpus", "split_rule", "windows", "preprocess_hash")}
    return kept | {"splits": splits}


def section_text(document: dict) -> str:
    """One run's section."""
    results, data = document["results"], document["data"]
    fractions, seeds = fractions_of(results), results[0]["seeds"]
    head = [percent(f) for f in fractions]
    parts = [model for model in results[0]["models"] if model not in (MODEL, *CONTROLS)]
    lines = [
        f"## {document['name']}",
        "",
        "```bash",
        document["command"],
        "```",
        "",
        *_facts(document),
        "",
    ]

    lines += ["### Test macro AUROC x 100", ""]
    lines += [
        f"Mean of {seeds} label subsets [95% bootstrap over patients], protocol `ridge`; {RANDOM}:"
        f" mean of {document['random_seeds']} initialisations with norm statistics measured on"
        f" training data; {RAW}: one as it is initialised, which is what others compare with.",
        "",
    ]
    rows = []
    for result in results:
        task = result["task"]
        rows += [
            [task, model, *auroc_row(result, model, fractions)]
            for model in (MODEL, *CONTROLS, *parts)
        ]
        for row, scores in published_for(data["corpus"], task):
            rows.append(
                [
                    task,
                    f"{row.name} (published)",
                    *(f"{scores[f]:g}" if f in scores else "-" for f in fractions),
                ]
            )
    lines += markdown_table(["task", "features", *head], rows)
    sources = {
        row.name: row.source for r in results for row, _ in published_for(data["corpus"], r["task"])
    }
    if sources:
        lines += [CAVEAT, "", *(f"- {name}: {source}" for name, source in sources.items()), ""]

    lines += [f"### Gain of {MODEL} over each control (paired bootstrap)", ""]
    gains = [
        [r["task"], f"{MODEL} - {control}", *gain_row(r, control, fractions)]
        for r in results
        for control in CONTROLS
    ]
    lines += markdown_table(["task", "difference", *head], gains)
    lines += [f"### Where {MODEL} does not win", "", *_not_won(results, parts, data["corpus"]), ""]
    lines += ["### Agreement of the protocols", "", *_agreement(document), ""]
    lines += ["### F1", "", F1_TITLE, ""]
    f1 = [[r["task"], *row] for r in results for row in f1_rows(r, (MODEL, *CONTROLS), fractions)]
    lines += markdown_table(["task", "features", *head], f1)
    lines += ["<details><summary>Every class: AUROC x 100 and F1 x 100</summary>", ""]
    classes = [
        [r["task"], *row] for r in results for row in class_rows(r, (MODEL, *CONTROLS), fractions)
    ]
    lines += markdown_table(["task", *CLASS_COLUMNS, *head], classes)
    lines += ["</details>", ""]
    notes = [f"- {r['task']}: {note}" for r in results for note in r["notes"]]
    return "\n".join([*lines, *(["### Notes", "", *notes] if notes else [])])


def _facts(document: dict) -> list[str]:
    """Data, checkpoint, training and config, a bullet each."""
    data, run = document["data"], document["run"]
    sizes = "; ".join(
        f"{split} {v['examples']} rows of {v['patients']} patients"
        for split, v in data["splits"].items()
    )
    lines = [
        f"- Data: {data['corpus']}, {data['windows']} window{'s' * (data['windows'] == 'all')} of"
        f" each record, {data['split_rule']}: {sizes}; preprocessing {data['preprocess_hash']}.",
        f"- Checkpoint {run['checkpoint']}, of a run of {run['steps']} steps with"
        f" {run['batch_size']} records each.",
    ]
    best, last = run["validation_best"], run["validation_last"]
    if best:
        lines.append(f"- Validation: best {_validation(best)}; last {_validation(last)}.")
    if run["differences"] is not None:
        changes = ", ".join(f"`{change}`" for change in run["differences"]) or "none"
        lines.append(f"- Differences from the paper's table (`configs/pretrain.py`): {changes}.")
    return lines


def _validation(row: dict) -> str:
    scores = (
        f"R2 of hidden leads {row['ecg_r2']:.3f}, of the visible heart vector {row['vcg_r2']:.3f}"
    )
    return f"loss {row['loss']:.4g} at step {row['step']} ({scores})"


def _not_won(results: list[dict], parts: list[str], corpus: str) -> list[str]:
    """Every control, part and published figure that is not clearly beaten, as sentences."""
    lines = []
    for result in results:
        for gap in result["differences"]:
            where = f"- {result['task']}, {percent(gap['fraction'])} of the labels"
            size, interval = f"{abs(100 * gap['difference']):.1f} points", _interval(gap)
            if gap["control"] in parts:
                if gap["difference"] < 0:
                    part = gap["control"].removeprefix(f"{MODEL}: ").removesuffix(" only")
                    lines.append(
                        f"{where}: {part} alone scores {size} more than the whole embedding"
                        f" {interval}."
                    )
            elif gap["difference"] <= 0:
                doubt = "" if gap["high"] < 0 else ", within the uncertainty"
                lines.append(f"{where}: {gap['control']} is ahead by {size} {interval}{doubt}.")
            elif gap["low"] <= 0:
                lines.append(
                    f"{where}: ahead of {gap['control']} by {size} only, not clear of zero"
                    f" {interval}."
                )
        for row, scores in published_for(corpus, result["task"]):
            ours = {f: 100 * cell["macro_auroc"] for f, cell in cells_of(result, MODEL).items()}
            behind = {f: scores[f] - ours[f] for f in ours if scores.get(f, 0.0) > ours[f]}
            if behind:
                gaps = ", ".join(f"{gap:.1f} points at {percent(f)}" for f, gap in behind.items())
                lines.append(
                    f"- {result['task']}: below {row.name} (published, another test set) by {gaps}."
                )
    if not lines:
        return ["It is clearly ahead of all controls on every task and at every fraction."]
    return [f"Intervals are of the difference, {MODEL} minus the other.", "", *lines]


def _interval(gap: dict) -> str:
    return f"[{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"


def _agreement(document: dict) -> list[str]:
    """How far the other protocols are from 'ridge' on the first task with all labels."""
    lines = [
        "`paper`: Adam on standardised features; `release`: Adam on raw features, 50 epochs at"
        " most. The paper does not say whether features are standardised; that `paper` does so"
        " was decided after seeing test scores of a toy model.",
        "",
    ]
    for other in document["agreement"]:
        ridge = next(result for result in document["results"] if result["task"] == other["task"])
        for model in other["models"]:
            one, two = (cells_of(result, model).get(1.0) for result in (ridge, other))
            if one and two:
                scores = (
                    f"`ridge` {points(one['macro_auroc'])}, `{other['protocol']}`"
                    f" {points(two['macro_auroc'])}"
                )
                gap = f"{abs(100 * (one['macro_auroc'] - two['macro_auroc'])):.1f} points apart"
                end = ", still improving when it was stopped" if two["cut_short"] else ""
                lines.append(
                    f"- {other['task']}, 100% of the labels, {model}: {scores}: {gap}{end}."
                )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = Parser("results", __doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, type=Path, metavar="RUN", help="run directory of lvcg train")
    add("--data", required=True, type=Path, help="shards of lvcg build, with labels")
    add("--out", type=Path, metavar="PAGE", help="the page (default docs/results-NAME.md)")
    add("--name", help="section of the page (default: the name of the run directory)")
    add(
        "--random_seeds",
        type=positive_int,
        default=3,
        help="random initialisations of the control (default 3)",
    )
    add("--work", type=Path, help="where embeddings and JSON are kept (default RUN/eval)")
    add_shared(parser, "task", seeds=5)
    args = parser.parse_args(argv)
    logging.set_verbosity(logging.WARNING)
    tasks, metadata = choose_tasks(args.task, args.data), read_metadata(args.data)
    name, work = args.name or args.checkpoint.resolve().name, args.work or args.checkpoint / "eval"
    out = args.out or Path(f"docs/results-{name}.md")
    work.mkdir(parents=True, exist_ok=True)

    tables = embed_all(args.checkpoint, args.data, work, args.random_seeds)
    began = time.monotonic()
    results, agreement = probe_all(tables, tasks, args.seeds)
    seconds = time.monotonic() - began
    document = {
        "format": "lvcg-results-1",
        "name": name,
        "command": command_line("results", argv),
        "data": describe_data(metadata),
        "run": describe_run(args.checkpoint, tables[MODEL][0].metadata["checkpoint"]),
        "random_seeds": args.random_seeds,
        "results": results,
        "agreement": agreement,
    }
    stored = work / f"results-{name}.json"
    stored.write_text(json.dumps(document, indent=1) + "\n")
    write_section(out, name, section_text(document))
    print(f"section '{name}' of {out} written; numbers in {stored}; probing took {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    run_command(main)
