"""Trains candidates at one equal budget and scores them on the validation split alone: a row per
candidate, best first.

    lvcg search --space=configs/search.py --data=SHARDS --budget=400 --out=runs/search
    lvcg search ... --budget=20min --only=dower,record_norm --data=record_norm:OTHER_SHARDS

A candidate is the base config with one change of --space. All get the same model FLOPs
(model/flops.py): --budget=400 is 400 steps of the base, --budget=20min as many as the base does in
20 minutes, timed once and remembered in --out; a candidate whose step is cheaper gets more of them.
Warm-up is at most a tenth of the steps. A ridge probe reads out every task at every fraction of the
labels, judged by halves of the validation patients in turn (probe/choosing.py); the mean over all
these cells is the score. The test split is never read. Beside the candidates: the base with random
weights, and the median beat. The best --finalists and the base are then trained with
--finalist_seeds seeds. A candidate that fails is a row with its reason, and is not tried again
without --retry.

In --out: rows.jsonl (of a key that occurs twice the last row counts), experiments.md, embeddings/,
scores/ and runs/, each run cut down to config.json and metrics.jsonl once it is scored. The same
command continues where it was stopped, also by SIGTERM or Ctrl-C; an edited candidate is a new row.
"""

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from data_prep.base.command import Parser, natural_int, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.config.files import PAPER_CONFIG, read_config_file
from lvcg_jax.model.flops import model_flops
from lvcg_jax.probe.choosing import SPLITS, mean_cells, score_table
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.runs.history import last_validation
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.studies.changes import (
    BASE,
    Variant,
    add_change_flags,
    describe_change,
    parse_changes,
    plan,
    run_of,
    variant_features,
)
from lvcg_jax.studies.embeddings import median_features, random_features
from lvcg_jax.studies.kept import MEDIAN, RANDOM, Features, data_key, digest_of
from lvcg_jax.studies.trials import Stopped, budgeted, fingerprint, reason_of, stop_signals
from lvcg_jax.text.pages import put_on_page
from lvcg_jax.text.tables import markdown_table, percent, points
from lvcg_jax.train.loop import train_and_evaluate

SPACE_FILE = "configs/search.py"
KEPT = ("config.json", "metrics.jsonl")  # of a run that was scored
TIMED_STEPS = 20
INTRO = """# Experiments

What was tried on the way to `best`: candidates trained at one equal budget and judged by the
validation split alone, the ones that failed included. Each section is written by the command it
shows.
"""


def step_flops(config: ConfigDict, data: Path) -> float:
    """Model FLOPs of a training step on these shards, on average."""
    counts = ShardSet(data, "train").counts
    return model_flops(config, counts)["train"] * config.data.batch_size / len(counts)


def base_steps(budget: str, base: Variant, out: Path) -> int:
    """Steps of the base: '400', or what it does in '20min', timed once."""
    found = re.fullmatch(r"([1-9]\d*)|(\d+(?:\.\d+)?)min", budget)
    if not found or (found[2] and not float(found[2])):
        raise InputError(
            f"--budget={budget}: give steps of the base such as 400, or minutes such as 20min"
        )
    if found[1]:
        return int(found[1])
    path = out / "budget.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    name = f"{budget} of {digest_of([fingerprint(base.config), data_key(base.data)])}"
    if name not in known:
        seconds = seconds_per_step(base, out)
        known[name] = {
            "steps": max(1, round(60 * float(found[2]) / seconds)),
            "seconds_per_step": seconds,
        }
        write_whole(path, json.dumps(known, indent=1) + "\n")
    return known[name]["steps"]


def seconds_per_step(base: Variant, out: Path) -> float:
    """The median of a few steps of the base, without compilation."""
    config = budgeted(base.config, TIMED_STEPS)
    config.data.dir, config.train.validate_records = str(base.data), base.config.data.batch_size
    with tempfile.TemporaryDirectory(dir=out) as folder:
        run = Path(folder) / "timed"
        if train_and_evaluate(config, run) != "finished":
            raise Stopped
        rates = [
            row["records_per_second"]
            for row in read_metrics(run)
            if row["kind"] == "train" and row["step"] > 1
        ]
    return config.data.batch_size / float(np.median(rates))


def set_budget(variants: Sequence[Variant], steps: int) -> None:
    """As many steps for each as the base's FLOPs in `steps` steps allow."""
    flops = steps * step_flops(variants[0].config, variants[0].data)
    for variant in variants:
        if variant.config is not None:
            own = round(flops / step_flops(variant.config, variant.data))
            variant.config = budgeted(variant.config, max(own, 1))


class Laboratory:
    """Trains and scores what is compared with one base, and keeps a row of each in
    OUT/rows.jsonl."""

    def __init__(
        self,
        variants: Sequence[Variant],
        paper: ConfigDict,
        args: argparse.Namespace,
        options: dict,
    ):
        self.variants, self.base, self.args, self.options = variants, variants[0], args, options
        self.out: Path = args.out
        self.paper = {
            v.name: describe_change(paper, v.config) for v in variants if v.config is not None
        }
        set_budget(variants, base_steps(args.budget, self.base, self.out))
        self.path = self.out / "rows.jsonl"
        self.lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows: dict[str, dict] = {row["key"]: row for row in map(json.loads, self.lines)}
        self.base_key = self.key_of(self.base)

    def key_of(self, variant: Variant) -> str:
        """Names a row: by all that its numbers depend on, or by the variant's name if it has no
        config."""
        if variant.config is None:
            return digest_of([self.base_key, variant.name])
        return digest_of(
            [*run_of(variant, 0, self.out)[1], json.dumps(self.options, sort_keys=True)]
        )

    def score(self, features: Features) -> dict:
        """The score of these features; what is in OUT already is not made again."""
        key = digest_of([*features.key, json.dumps(self.options, sort_keys=True)])
        path = self.out / "scores" / f"{features.name}-{key}.json"
        if not path.exists():
            score = score_table(features.table(self.out / "embeddings"), **self.options)
            path.parent.mkdir(exist_ok=True)
            write_whole(path, json.dumps(score) + "\n")
        return json.loads(path.read_text())

    def trial(self, variant: Variant, seeds: int) -> None:
        """Trains and scores a variant with seeds 0, 1, ... and puts down its row."""
        key, kind = self.key_of(variant), "base" if variant is self.base else "candidate"
        row = self.rows.get(key, {"reason": "", "seeds": []})
        if variant.config is not None and (
            not self.args.retry if row["reason"] else len(row["seeds"]) >= seeds
        ):
            return
        scores, facts = [], []
        row = self.new_row(key, variant.name, kind) | {
            "change": variant.change,
            "reason": variant.reason,
        }
        if variant.config is not None:
            row |= {"paper": self.paper[variant.name]} | self.cost_of(variant)
        for seed in range(seeds) if variant.config is not None else ():
            run = run_of(variant, seed, self.out)[2]
            try:
                score = self.score(variant_features(variant, seed, self.out, SPLITS))
                facts.append(facts_of(run))
                scores.append(score)
            except Stopped:
                raise
            except Exception as error:
                if variant is self.base:  # nothing to compare with
                    raise
                row["reason"] = f"seed {seed}: {reason_of(error, variant.data)}".replace(
                    f"{self.out}/", ""
                )
                break
            if not self.args.keep:
                trim_run(run)
        for name in facts[0] if facts else ():
            row[name] = _mean_of([fact[name] for fact in facts])
        self.put(row, scores)

    def controls(self) -> None:
        """The rows of random weights and of the median beat."""
        config, data, seeds = self.base.config, self.base.data, range(self.args.seeds)
        random = [random_features(config, seed, data, SPLITS) for seed in seeds]
        for name, several in ((RANDOM, random), (MEDIAN, [median_features(data, SPLITS)])):
            row = self.new_row(digest_of([self.base_key, name]), name, "control")
            self.put(row, list(map(self.score, several)))

    def new_row(self, key: str, name: str, kind: str) -> dict:
        row = {
            "key": key,
            "base": self.base_key,
            "name": name,
            "kind": kind,
            "change": "",
            "reason": "",
            "seeds": [],
        }
        if kind == "base":
            metadata = read_metadata(self.base.data)
            row["study"] = self.options | {"budget": self.args.budget, "corpus": metadata["corpus"]}
            row["study"] |= {"patients": metadata["splits"]["validation"]["patients"]}
        return row

    def cost_of(self, variant: Variant) -> dict:
        steps = variant.config.train.steps
        tflop = steps * step_flops(variant.config, variant.data) / 1e12
        return {
            "steps": steps,
            "batch_size": variant.config.data.batch_size,
            "tflop": float(f"{tflop:.4g}"),
        }

    def put(self, row: dict, scores: list[dict]) -> None:
        """Adds what follows from the scores of the row's seeds, appends the row if it is new, and
        writes the page."""
        if scores:
            row |= {"seeds": list(range(len(scores))), "means": [score["mean"] for score in scores]}
            row |= {
                "mean": float(np.mean(row["means"])),
                "cells": mean_cells(scores),
                "notes": scores[0]["notes"],
            }
            if row["kind"] != "base":  # paired by seed
                pairs = zip(row["means"], self.rows[self.base_key]["means"], strict=False)
                row["differences"] = [mine - base for mine, base in pairs]
                row["difference"] = float(np.mean(row["differences"]))
        line = json.dumps(row)
        if line != json.dumps(self.rows.get(row["key"])):
            self.rows[row["key"]] = row
            self.lines.append(line)
            write_whole(self.path, "\n".join([*self.lines, ""]))
        self.publish()

    def finalists(self) -> list[Variant]:
        """The best of all rows of this base, judged by the seeds that every candidate has, as far
        as they are ours."""
        mine = [
            row
            for row in self.rows.values()
            if row["base"] == self.base_key and row["kind"] == "candidate"
        ]
        ended = [row for row in mine if not row["reason"]]
        ended.sort(key=lambda row: -np.mean(row["means"][: self.args.seeds]))
        best = {row["key"] for row in ended[: self.args.finalists]}
        return [v for v in self.variants[1:] if v.config is not None and self.key_of(v) in best]

    def publish(self) -> None:
        """The page, from the rows alone."""
        text = to_text(list(self.rows.values()))
        write_whole(self.out / "experiments.md", text + "\n")
        if self.args.page:
            page = Path(self.args.page)
            if not page.exists():
                page.parent.mkdir(parents=True, exist_ok=True)
                write_whole(page, INTRO)
            title = f"Search: {self.rows[self.base_key]['study']['corpus']}"
            put_on_page(
                self.args.page, self.out.resolve().name, title, "search", self.args.argv, text
            )

    def run(self) -> None:
        """The base, controls, candidates and finalists, in this order."""
        self.trial(self.base, self.args.seeds)
        self.controls()
        for variant in progress_bar(self.variants[1:], unit="candidate", desc="candidates"):
            self.trial(variant, self.args.seeds)
            jax.clear_caches()  # what was compiled for one candidate is of no use to the next
        chosen = self.finalists()
        for variant in progress_bar(
            [self.base, *chosen] if chosen else [], unit="candidate", desc="finalists"
        ):
            self.trial(variant, self.args.finalist_seeds)


def facts_of(run: Path) -> dict:
    """Minutes of training and the terms of the last validation, from the run's numbers."""
    rows = [row for row in read_metrics(run) if row["kind"] == "train"]
    batch_size = json.loads((run / "config.json").read_text())["data"]["batch_size"]
    gaps = np.diff([0, *(row["step"] for row in rows)])
    seconds = sum(
        gap * batch_size / row["records_per_second"] for gap, row in zip(gaps, rows, strict=True)
    )
    validation = last_validation(run) or {}
    terms = {name: value for name, value in validation.items() if name not in ("step", "kind")}
    if not np.isfinite(list(terms.values())).all():
        raise InputError("the validation loss is not finite")
    return {"minutes": round(seconds / 60, 2), "terms": terms}


def _mean_of(values: list):
    """The mean of numbers, or of dictionaries of numbers name by name."""
    if isinstance(values[0], dict):
        return {name: _mean_of([value[name] for value in values]) for name in values[0]}
    return float(np.mean(values))


def trim_run(run: Path) -> None:
    """Leaves config and numbers of a run."""
    for path in run.iterdir() if run.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()


def to_text(rows: Sequence[dict]) -> str:
    """The tables of each base, in the order in which they were begun; best first."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["base"], []).append(row)
    return "\n\n".join("\n".join(_group(group)).strip() for group in groups.values())


def _group(rows: list[dict]) -> list[str]:
    """The rows of one base: scores with gains, each task, terms of the loss, configs and notes."""
    base = next(row for row in rows if row["kind"] == "base")
    tried = {row["name"] for row in rows if "steps" in row}
    rows = [
        row
        for row in rows
        if row["kind"] == "control" or "steps" in row or row["name"] not in tried
    ]
    scored, failed = [r for r in rows if "mean" in r], [r for r in rows if "mean" not in r]
    # Finalists have more seeds than the others: rows are compared by the seeds that all have.
    common = min(len(row["seeds"]) for row in scored if row["kind"] != "control")
    scored.sort(key=lambda row: -np.mean(row["means"][:common]))
    more = any(len(row["seeds"]) > common for row in scored)

    study, steps = base["study"], base["steps"]
    timed = f" ({study['budget']})" if study["budget"] != str(steps) else ""
    tasks = list(dict.fromkeys(cell["task"] for cell in base["cells"]))
    seeds = "seed 0" if common == 1 else f"seeds 0 to {common - 1}"
    every = "; `all seeds` is the gain over all that a row has" if more else ""
    lines = [
        f"### {steps} steps of `{base['name']}`{timed}",
        "",
        f"Every candidate has the model FLOPs of {steps} steps of {base['batch_size']} records of"
        f" `{base['name']}`, {base['tflop']:.4g} TFLOP. Scores are macro AUROC x 100 on"
        f" {study['corpus']}'s validation split, never the test split: {study['patients']} patients"
        " in two halves, the probe's strength chosen on one and judged on the other, both ways."
        f" `mean` is over {', '.join(tasks)} with {', '.join(map(percent, study['fractions']))} of"
        f" the labels, {study['seeds']} label subset{'s' * (study['seeds'] > 1)} each; `gain` is"
        f" over `{base['name']}`, paired by seed. Both are of {seeds}, which all have{every}.",
        "",
    ]
    head = ["", f"change of {base['name']}", "mean", "gain", "seeds", "by seed"]
    head += ["all seeds"] * more + ["steps", "TFLOP", "minutes"]
    lines += markdown_table(head, [_summary(row, common, more) for row in [*scored, *failed]])
    for task in tasks:
        shares = [cell["fraction"] for cell in base["cells"] if cell["task"] == task]
        columns = [f"{task}, all seeds of a row [95% interval over patients]"]
        cells = [[_name(row), *_cells(row, task, shares)] for row in scored]
        lines += markdown_table([*columns, *map(percent, shares)], cells)
    names = list(dict.fromkeys(name for row in scored for name in row.get("terms", {})))
    trained = [row for row in scored if row.get("terms")]
    terms = [[_name(row), *(_number(row["terms"].get(name)) for name in names)] for row in trained]
    lines += markdown_table(["last validation", *names], terms)
    full = [[_name(row), row["paper"]] for row in rows if row.get("paper")]
    title = "Every difference from the paper's config (configs/pretrain.py)"
    lines += [f"<details><summary>{title}</summary>", ""]
    lines += [*markdown_table(["", "configs/pretrain.py -> it"], full), "</details>", ""]
    notes = dict.fromkeys(note for row in scored for note in row["notes"])
    return [*lines, *(f"- {note}" for note in notes)]


def _name(row: dict) -> str:
    return f"{row['name']} (control)" if row["kind"] == "control" else row["name"]


def _summary(row: dict, common: int, more: bool) -> list[str]:
    """A row of the table: mean and gain over the first `common` seeds, and with `more` the gain
    over all its seeds."""
    failed = f"failed: {row['reason']}" if row["reason"] else ""
    change = "; ".join(filter(None, (row["change"], failed)))
    means, gains = row.get("means", []), row.get("differences", [])
    by_seed = [f"{100 * x:+.2f}" for x in gains] or [f"{100 * x:.2f}" for x in means]
    scores = [
        f"{100 * np.mean(means[:common]):.2f}" if means else "-",
        f"{100 * np.mean(gains[:common]):+.2f}" if gains else "-",
        str(len(row["seeds"])),
        " ".join(by_seed) or "-",
    ]
    if more:
        scores.append(f"{100 * np.mean(gains):+.2f}" if len(gains) > common else "-")
    cost = [_number(row.get(name)) for name in ("steps", "tflop", "minutes")]
    return [_name(row), change or "-", *scores, *cost]


def _cells(row: dict, task: str, fractions: Sequence[float]) -> list[str]:
    cells = {cell["fraction"]: cell for cell in row["cells"] if cell["task"] == task}
    return [
        points(*(cells.get(f, {}).get(name) for name in ("auroc", "low", "high")))
        for f in fractions
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("search", __doc__)
    add = parser.add_argument
    add(
        "--space",
        metavar="FILE",
        default=SPACE_FILE,
        help="file of base and candidates (default configs/search.py)",
    )
    add("--base", metavar="CONFIG", help="another base, e.g. configs/pretrain.py:best")
    add("--budget", required=True, help="steps of the base, e.g. 400, or its minutes, e.g. 20min")
    add("--seeds", type=positive_int, default=1, help="trainings of every candidate (default 1)")
    add(
        "--finalists",
        type=natural_int,
        default=3,
        help="how many of the best get more seeds (default 3; 0: none)",
    )
    add(
        "--finalist_seeds",
        type=positive_int,
        default=3,
        help="trainings of base and finalists (default 3)",
    )
    add("--retry", action="store_true", help="train again what failed")
    add("--keep", action="store_true", help="keep the checkpoints of trainings that were scored")
    add_change_flags(parser)
    args = parser.parse_args(argv)
    args.argv = argv
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    changes, only, data = parse_changes(args.space, "CANDIDATES", args.only, args.data)
    options = {"tasks": choose_tasks(args.task, data[BASE]), "fractions": args.fractions}
    options |= {"seeds": args.probe_seeds, "resamples": args.resamples}
    if "validation" not in read_metadata(data[BASE])["splits"]:
        raise InputError(
            f"{data[BASE]} has no validation split, and a search is judged by nothing else"
        )
    logging.set_verbosity(logging.WARNING)
    variants = plan(read_config_file(args.base or args.space), changes, data, only)
    (args.out / "embeddings").mkdir(parents=True, exist_ok=True)
    try:
        with stop_signals():
            laboratory = Laboratory(variants, read_config_file(PAPER_CONFIG), args, options)
            laboratory.run()
    except (Stopped, KeyboardInterrupt):
        print("stopped: the same command continues from here")
        return 0
    print((args.out / "experiments.md").read_text())
    return 0


if __name__ == "__main__":
    run_command(main)
