"""The results page: from a trained run to its tables, with controls, published figures and what did
not work.

    lvcg results --checkpoint=runs/paper --data=data/ptbxl --out=docs/results.md

Embeds the data set with the trained model, with random weights and as median beats, probes every
task at 1, 10 and 100% of the labels, and writes the section of this run; the page's other sections
stay. Embeddings and all numbers (as JSON) are kept in --work, so a second call only probes. Splits
are those of the data set.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from absl import logging
from ml_collections import ConfigDict

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import METADATA_FILE, ShardSet, file_sha256, read_metadata
from lvcg_jax.config.files import (
    PAPER_CONFIG,
    differences,
    load_config,
    read_config_file,
    telling_fields,
)
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, align_features, load_table, save_table
from lvcg_jax.probe.median_beat import median_beat_table
from lvcg_jax.probe.study import part_features, probe_task
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.studies.published import in_order
from lvcg_jax.studies.results_page import CONTROLS, MEDIAN, MODEL, RANDOM, RAW, section_text
from lvcg_jax.text.pages import command_line, write_section

FRACTIONS = (0.01, 0.1, 1.0)
OTHER_PROTOCOLS, OTHER_SEEDS = ("paper", "release"), 3  # whose agreement with 'ridge' is shown


def random_weights_key(config: ConfigDict) -> str:
    """All of a config that its random weights depend on; a field that is added later changes no
    older key."""
    sections = ("preprocess", "geometry", "model")
    same = {
        name: value
        for name, value in telling_fields(config).items()
        if name.split(".")[0] in sections
    }
    return json.dumps(same, sort_keys=True)


def embed_all(run: Path, data: Path, work: Path, random_seeds: int) -> dict[str, list[Table]]:
    """Tables of the trained model, of random weights and of median beats; each is computed once and
    kept in `work`."""
    digest = file_sha256(data / METADATA_FILE)  # names the shards' checksums and the preprocessing
    config, trained = load_config(run / "config.json"), LVCG.load(run)
    same = random_weights_key(config)
    train = ShardSet(data, "train")
    tables = {MODEL: [], RANDOM: [], RAW: [], MEDIAN: []}
    tables[MODEL].append(
        cached_table(
            work, "trained", [trained.checkpoint, digest], lambda: embed_dataset(trained, data)
        )
    )
    for seed in range(random_seeds):
        make = lambda seed=seed: embed_dataset(LVCG.random(config, seed, train), data)  # noqa: E731
        tables[RANDOM].append(cached_table(work, f"random{seed}", [same, str(seed), digest], make))
    raw = [same, "raw", digest]
    tables[RAW].append(
        cached_table(work, "raw", raw, lambda: embed_dataset(LVCG.random(config, 0, None), data))
    )
    tables[MEDIAN].append(
        cached_table(work, "median_beat", [digest], lambda: median_beat_table(data))
    )
    return tables


def cached_table(work: Path, kind: str, key: list[str], make: Callable[[], Table]) -> Table:
    """The table of this kind and key from `work`, made and stored there if it is absent."""
    path = work / f"{kind}-{hashlib.sha256('|'.join(key).encode()).hexdigest()[:12]}.npz"
    if path.exists():
        return load_table(path)
    print(f"embedding: {kind}")
    table = make()
    save_table(path, table)
    return table


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


def describe_run(run: Path, checkpoint: str) -> dict:
    """What was trained, how it differs from the paper's table, for how long, and its validation
    numbers."""
    config, rows = load_config(run / "config.json"), read_metrics(run)
    validation = [row for row in rows if row["kind"] == "validation"]
    steps = max((row["step"] for row in rows), default=0)
    return {
        "name": run.name,
        "checkpoint": checkpoint,
        "differences": differences(read_config_file(PAPER_CONFIG), config),
        "steps": steps,
        "batch_size": config.data.batch_size,
        "validation_best": min(validation, key=lambda row: row["loss"], default=None),
        "validation_last": validation[-1] if validation else None,
    }


def describe_data(metadata: dict) -> dict:
    names = ("examples", "records", "patients")
    splits = {
        split: {name: values[name] for name in names}
        for split, values in metadata["splits"].items()
    }
    kept = {name: metadata[name] for name in ("corpus", "split_rule", "windows", "preprocess_hash")}
    return kept | {"splits": splits}


def shown(path: Path) -> str:
    """A path for the page: as given if relative, else its last name."""
    return path.name if path.is_absolute() else path.as_posix()


def main(argv: list[str] | None = None) -> int:
    parser = Parser("results", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="RUN",
        help="run directory of lvcg_jax.train",
    )
    add("--data", required=True, type=Path, help="shards of data_prep.build, with labels")
    add(
        "--out",
        type=Path,
        default=Path("docs/results.md"),
        help="the page (default docs/results.md)",
    )
    add("--name", help="section of the page (default: the name of the run directory)")
    add("--task", default="all", help="label tasks, comma-separated, or all (default)")
    add("--seeds", type=int, default=5, help="label subsets drawn for each fraction (default 5)")
    add(
        "--random_seeds",
        type=int,
        default=3,
        help="random initialisations of the control (default 3)",
    )
    add("--work", type=Path, help="where embeddings and JSON are kept (default RUN/eval)")
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.random_seeds < 1:
        raise InputError("--seeds and --random_seeds must be 1 at least")
    logging.set_verbosity(logging.WARNING)
    metadata = read_metadata(args.data)
    if not metadata["tasks"]:
        raise InputError(
            f"{args.data}: no task in this data set, so there is nothing to probe; build it with labels"
        )
    tasks = in_order(metadata["tasks"]) if args.task == "all" else args.task.split(",")
    name, work = args.name or args.checkpoint.resolve().name, args.work or args.checkpoint / "eval"
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
    write_section(args.out, name, section_text(document))
    print(
        f"section '{name}' of {args.out} written; numbers in {stored}; probing took {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
