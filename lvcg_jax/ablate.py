"""Trains and probes a config and its ablations at one budget, and writes a table of them all.

    python -m lvcg_jax.ablate --base=configs/pretrain.py --data=SHARDS --steps=2000 --seeds=3 --out=runs/ablations
    python -m lvcg_jax.ablate ... --only=ecg_space,no_temporal --data=vcg_peaks:SHARDS_WITH_VCG_PEAKS

Every variant is the base config with one change of configs/ablations.py, trained for --steps with each of --seeds
seeds (0, 1, ...) on the same batches of records, warmed up for a tenth of the steps at most. Its last checkpoint
embeds the data set, and a ridge probe reads out every task. Beside them: the base with random weights, and the median
beat.
A variant that changes the preprocessing (vcg_peaks, record_norm) needs shards of its own: --data=NAME:SHARDS. Without
them, or if it fails, its row of the table says why; the row of missing shards gives the command that builds them.

In --out: ablations.md and ablations.json, embeddings/ and runs/. The same command again goes on where it was stopped.
"""

import argparse
import hashlib
import json
import runpy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from data_prep.errors import InputError, run_command
from data_prep.preprocess import Preprocess
from data_prep.progress import progress_bar
from data_prep.shards import METADATA_FILE, ShardSet, file_sha256, read_metadata
from lvcg_jax.config import differences, flatten, make_model, make_preprocess, read_config_file
from lvcg_jax.controls import median_beat_table
from lvcg_jax.embed import embed_dataset
from lvcg_jax.inference import LVCG
from lvcg_jax.metrics_log import read_metrics
from lvcg_jax.probe import probe_task
from lvcg_jax.probe_tables import auroc_row, cells_of, fractions_of, gain_row, markdown_table, percent, points
from lvcg_jax.published import in_order
from lvcg_jax.results import cached_table
from lvcg_jax.results_page import MEDIAN, RANDOM
from lvcg_jax.table import Table, align_features, take_rows
from lvcg_jax.train import train_and_evaluate

ABLATIONS_FILE = Path(__file__).resolve().parents[1] / "configs" / "ablations.py"
BASE = "base"
WARMUP_SHARE = 10  # warm-up is a tenth of the steps at most


class Stopped(Exception):
    """Somebody asked the command to stop."""


@dataclass
class Variant:
    """One row of the table: a config with its shards, or the reason why there is none."""

    name: str
    change: str  # fields that differ from the base
    config: ConfigDict | None = None
    data: Path | None = None
    reason: str = ""


def budgeted(config: ConfigDict, steps: int) -> ConfigDict:
    """The config at this budget: only the last checkpoint counts, and it is validated once."""
    config = config.copy_and_resolve_references()
    config.optim.warmup_steps = min(config.optim.warmup_steps, steps // WARMUP_SHARE)
    config.train.steps = config.train.validate_every = steps
    config.train.log_every = min(config.train.log_every, max(steps // 10, 1))
    config.train.checkpoint_every = min(config.train.checkpoint_every, steps)
    config.train.keep_checkpoints = 1
    return config


def plan(
    base: ConfigDict, changes: dict[str, Callable], data: dict[str, Path], only: Sequence[str] | None
) -> list[Variant]:
    """The base and its ablations, each with shards that fit it or a reason."""
    ShardSet(data[BASE], "train").require_preprocess(make_preprocess(base))
    variants = [Variant(BASE, "", base, data[BASE])]
    for name in changes if only is None else only:
        variant = Variant(name, "")
        try:
            config = base.copy_and_resolve_references()
            changes[name](config)
            variant.change = "; ".join(map(_short, differences(base, config)))
            if not variant.change:
                raise InputError("the base has this already")
            make_model(config)  # refuses fields that do not go together
            variant.data = data.get(name, data[BASE])
            _require_shards(variant, make_preprocess(config), name in data)
            variant.config = config
        except Exception as error:  # a change may be anybody's code
            variant.reason = _reason(error, variant.data)
        variants.append(variant)
    return variants


def _require_shards(variant: Variant, preprocess: Preprocess, own: bool) -> None:
    """Shards that fit, or what builds them."""
    metadata = read_metadata(variant.data)
    if own or metadata["preprocess_hash"] == preprocess.hash():
        ShardSet(variant.data, "train").require_preprocess(preprocess)
        return
    usual = Preprocess().to_dict()
    fields = [f"--config={name}={value}" for name, value in preprocess.to_dict().items() if value != usual[name]]
    command = f"python -m data_prep.build --corpus={metadata['corpus']} --raw=RAW --out=SHARDS {' '.join(fields)}"
    raise InputError(f"needs shards of its own: {command}, then --data={variant.name}:SHARDS")


def _short(change: str) -> str:
    """A difference of configs, without the numbers of a matrix."""
    return change if len(change) < 100 else f"{change.split(':')[0]}: other rows"


def _reason(error: Exception, data: Path | None) -> str:
    """One line for the table, without the path of the shards."""
    line = (str(error).strip().splitlines() or [""])[0][:300]
    line = line.replace(str(data), data.name) if data else line
    return line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"


def train_and_embed(config: ConfigDict, data: Path, run: Path, drop_checkpoints: bool) -> Table:
    """Trains a run to its end, or goes on with it, and embeds the data set with its last checkpoint."""
    config.data.dir = str(data)
    if train_and_evaluate(config, run) != "finished":
        raise Stopped
    table = embed_dataset(LVCG.load(run, "latest"), data)
    if drop_checkpoints:
        for folder in ("checkpoints", "best"):
            shutil.rmtree(run / folder, ignore_errors=True)
    return table


def run_of(variant: Variant, seed: int, out: Path) -> tuple[ConfigDict, list[str], Path]:
    """Config, fingerprint and run directory of one training."""
    config = variant.config.copy_and_resolve_references()
    config.seed = seed
    key = [_fingerprint(config), file_sha256(variant.data / METADATA_FILE)]
    digest = hashlib.sha256("|".join(key).encode()).hexdigest()[:8]
    return config, key, out / "runs" / f"{variant.name}-seed{seed}-{digest}"


def variant_tables(variant: Variant, seeds: int, out: Path, drop_checkpoints: bool, done: Callable) -> list[Table]:
    """The embeddings of one variant, a table for each seed; what is in `out` already is not made again."""
    tables = []
    for seed in range(seeds):
        config, key, run = run_of(variant, seed, out)
        make = lambda config=config, run=run: train_and_embed(config, variant.data, run, drop_checkpoints)  # noqa: E731
        tables.append(cached_table(out / "embeddings", f"{variant.name}-seed{seed}", key, make))
        done()
    return tables


def _fingerprint(config: ConfigDict) -> str:
    fields = {name: value for name, value in flatten(config).items() if name != "data.dir"}
    return json.dumps(fields, sort_keys=True)


def control_tables(base: Variant, seeds: int, out: Path, done: Callable) -> dict[str, list[Table]]:
    """The base with random weights, one table for each seed, and the median beat."""
    digest, train = file_sha256(base.data / METADATA_FILE), ShardSet(base.data, "train")
    work, random = out / "embeddings", []
    for seed in range(seeds):
        make = lambda seed=seed: embed_dataset(LVCG.random(base.config, seed, train), base.data)  # noqa: E731
        random.append(cached_table(work, f"random{seed}", [_fingerprint(base.config), str(seed), digest], make))
        done()
    median = cached_table(work, "median_beat", [digest], lambda: median_beat_table(base.data))
    return {RANDOM: random, MEDIAN: [median]}


def common_rows(tables: dict[str, list[Table]]) -> tuple[Table, dict[str, list[np.ndarray]], list[str]]:
    """The base's table and everybody's features [m,d], on the rows that all have; and a note if some do not."""
    base = tables[BASE][0]
    every = [table for several in tables.values() for table in several]
    shared = set(base.keys).intersection(*(table.keys for table in every))
    cut = lambda table: take_rows(table, np.array([key in shared for key in table.keys]))  # noqa: E731
    first = cut(base)
    features = {
        name: [align_features(first, cut(table), name) for table in several] for name, several in tables.items()
    }
    lost = max(len(table.keys) for table in every) - len(shared)
    notes = [f"{lost} rows that not all data sets have are left out."] if lost else []
    return first, features, notes


def final_validation(variant: Variant, seeds: int, out: Path) -> list[dict | None]:
    """The last validation of each seed's run, None where there is none."""
    found: list[dict | None] = []
    for seed in range(seeds) if variant.config is not None else ():
        run = run_of(variant, seed, out)[2]
        rows = [row for row in read_metrics(run) if row["kind"] == "validation"]
        found.append(rows[-1] if rows else None)
    return found


def to_text(document: dict) -> str:
    """The tables, from the numbers alone."""
    variants, results = document["variants"], document["results"]
    many = f"{document['seeds']} training{'s' * (document['seeds'] > 1)}"
    budget = f"{document['steps']} steps of {document['batch_size']} records, {many} of each"
    lines = [
        f"{document['corpus']}, {budget}; `{BASE}` is {document['base']}. Test macro AUROC x 100 with 95% bootstrap"
        f" intervals over patients, ridge probe, mean over {many} and {document['probe_seeds']} label"
        f" subset{'s' * (document['probe_seeds'] > 1)}.",
        "",
    ]
    rows = []
    for v in variants:
        r2 = [f"{row['ecg_r2']:.3f}" if row else "-" for row in v["validation"]]
        rows.append([v["name"], v["change"] or "-", ", ".join(r2) if not v["reason"] else f"not run: {v['reason']}"])
    lines += markdown_table(["variant", "change", "R2 of hidden leads in validation, by seed"], rows)
    for result in results:
        fractions = fractions_of([result])
        if not fractions:
            lines += [f"**{result['task']}**: no result", "", *(f"- {note}" for note in result["notes"]), ""]
            continue
        most, rows = fractions[-1], []
        for model in result["models"]:
            cell = cells_of(result, model)[most]
            seeds = " ".join(points(value) for value in cell.get("per_fit", [cell["macro_auroc"]]))
            gain = gain_row(result, model, fractions)[-1] if model != BASE else "-"
            rows.append([model, *auroc_row(result, model, fractions), gain, seeds])
        head = [*map(percent, fractions), f"{BASE} - it, {percent(most)}", f"by seed, {percent(most)}"]
        lines += [f"**{result['task']}**", "", *markdown_table(["variant", *head], rows)]
        lines += [f"- {note}" for note in result["notes"]] + ([""] if result["notes"] else [])
    return "\n".join([*lines, *(f"- {note}" for note in document["notes"])])


def read_changes(path: Path) -> dict[str, Callable]:
    """ABLATIONS of a file: {name: change(config)}."""
    if not path.is_file():
        raise InputError(f"no ablations file {path}")
    changes = runpy.run_path(str(path)).get("ABLATIONS")
    if not isinstance(changes, dict) or not changes:
        raise InputError(f"{path} has no ABLATIONS, a dictionary of names and functions that change a config")
    return changes


def parse_data(flags: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """['SHARDS', 'NAME:SHARDS', ...] -> {'base': Path, NAME: Path}."""
    found: dict[str, Path] = {}
    for text in flags:
        name, colon, folder = text.partition(":")
        key, path = (name, Path(folder)) if colon and name in names else (BASE, Path(text))
        if key in found:
            raise InputError(f"--data={text}: there are shards for '{key}' already ({found[key]})")
        found[key] = path
    if BASE not in found:
        raise InputError("--data=SHARDS, the shards of the base config, is needed")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lvcg_jax.ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--base", required=True, metavar="CONFIG", help="config that is ablated, e.g. configs/pretrain.py:demo")
    add("--data", required=True, action="append", metavar="[NAME:]SHARDS", help="shards of the base, or of one variant")
    add("--steps", required=True, type=int, help="training steps of every variant")
    add("--seeds", type=int, default=3, help="trainings of every variant (default 3)")
    add("--out", required=True, type=Path, help="folder for tables, embeddings and runs")
    add("--only", metavar="A,B", help="ablations to run (default: all)")
    add("--ablations", type=Path, default=ABLATIONS_FILE, help="file of changes (default configs/ablations.py)")
    add("--tasks", default="all", help="label tasks to probe, comma-separated, or all (default)")
    add("--fractions", default="0.01,0.1,1", help="fractions of the training labels (default 0.01,0.1,1)")
    add("--probe_seeds", type=int, default=3, help="label subsets drawn for each fraction (default 3)")
    add("--drop_checkpoints", action="store_true", help="delete the checkpoints of a run once it has embedded the data")
    add("--page", metavar="FILE", help="also write the tables as a section of this page, e.g. docs/results.md")
    args = parser.parse_args(argv)
    if args.steps < 1 or args.seeds < 1 or args.probe_seeds < 1:
        raise InputError("--steps, --seeds and --probe_seeds must be 1 or more")
    try:
        fractions = [float(f) for f in args.fractions.split(",")]
    except ValueError:
        raise InputError(f"--fractions={args.fractions}: give numbers such as 0.01,0.1,1") from None
    changes = read_changes(args.ablations)
    only = args.only.split(",") if args.only else None
    for name in only or ():
        if name not in changes:
            raise InputError(f"--only: unknown ablation '{name}', choose from {', '.join(changes)}")
    data = parse_data(args.data, list(changes))
    metadata = read_metadata(data[BASE])
    if not metadata["tasks"]:
        raise InputError(f"{data[BASE]}: no task in this data set, so there is nothing to probe; build it with labels")
    tasks = in_order(metadata["tasks"]) if args.tasks == "all" else args.tasks.split(",")
    logging.set_verbosity(logging.WARNING)

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
                tables[variant.name] = variant_tables(variant, args.seeds, args.out, args.drop_checkpoints, bar.update)
            except Stopped:
                print(f"stopped in '{variant.name}': the same command goes on from here")
                return 0
            except Exception as error:
                if variant.name == BASE:  # nothing to compare with
                    raise
                variant.reason = _reason(error, variant.data)
        tables |= control_tables(variants[0], args.seeds, args.out, bar.update)
    first, features, notes = common_rows(tables)
    parts = {name: list(several[0].parts.values()) for name, several in tables.items()}
    options = {"fractions": fractions, "seeds": args.probe_seeds, "parts": parts, "progress": True}
    results = [probe_task(features, first, task, **options) for task in progress_bar(tasks, unit="task", desc="probe")]
    document = {
        "format": "lvcg-ablate-1",
        "base": f"`{args.base}`" if not Path(args.base).is_absolute() else f"`{Path(args.base).name}`",
        "corpus": metadata["corpus"],
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
        from lvcg_jax.reconstruct import put_on_page

        put_on_page(args.page, "ablations", f"Ablations: {metadata['corpus']}", "lvcg_jax.ablate", argv, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_command(main)
