"""Trains small supervised networks on several forms of the same records: what each lets one read.

    lvcg ceiling --data=SHARDS --out=runs/ceiling --page=docs/experiments.md
    lvcg ceiling ... --inputs='vcg beats,whole record in mV' --tflop=16 --seeds=1

An embedding that is made from an input cannot say more than the input holds. So every input gets a
network of its own, the same for all but for its first layer, trained end to end on all tasks of the
training split with the same number of floating-point operations. It is judged by the validation
split; the test split is never read. Inputs, by name:

vcg beats               beats stretched from R to R, z-scored leads lifted to the heart vector
12-lead beats           the same beats as twelve z-scored leads
12-lead beats in mV     as their sizes are, in units of each lead's usual size
centred windows in mV   0.35 s before R to 0.55 s after it, not stretched
field modes in mV       beats in the six leading modes of the leads' covariance
whole record z-scored   all samples, and no beats
whole record in mV      the same, in mV

Beats and windows also carry their R-R interval and the one before. The shards need signals (lvcg
build --store_signal). In --out: ceiling.json, ceiling.md and trainings/, with the scores of each
training once it has ended. The same command again goes on with those that are missing.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_float, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.probe.labels import choose_tasks, in_order
from lvcg_jax.studies.ceiling import training
from lvcg_jax.studies.ceiling.inputs import INPUTS, Crops, fit_inputs, read_split
from lvcg_jax.studies.kept import data_key, digest_of
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import put_on_page
from lvcg_jax.text.tables import markdown_table, points

TASKS = ("super", "sub", "form", "rhythm")  # the usual ones, if there are such
VERSION = 1  # raise it when the same choices give other numbers


class Trainings:
    """The trainings of a study; what is in the folder already is not made again."""

    def __init__(self, data: Path, out: Path, tasks: Sequence[str], tflop: float):
        self.data, self.tflop = data, tflop
        classes = read_metadata(data)["tasks"]
        self.tasks = {task: classes[task] for task in tasks}
        self.folder = out / "trainings"
        self.crops: dict[str, tuple[Crops, Crops]] = {}
        regime = json.dumps(dataclasses.asdict(training.REGIME), sort_keys=True)
        self.key = [str(VERSION), data_key(data), regime, f"{tflop:g}", *tasks]

    def path(self, name: str, seed: int) -> Path:
        """The file of one training."""
        key = digest_of([*self.key, name, str(seed)])
        return self.folder / f"{name.replace(' ', '_')}-{seed}-{key}.json"

    def read(self, names: Sequence[str]) -> None:
        """Both splits into memory, as these inputs need them."""
        train, validation = (ShardSet(self.data, split) for split in ("train", "validation"))
        train.require_signal()
        chosen = {name: INPUTS[name] for name in names}
        kinds = dict.fromkeys(one.units for one in chosen.values())
        learnt, judging = (read_split(shards, self.tasks, kinds) for shards in (train, validation))
        fitted = fit_inputs(learnt, train, chosen.values())
        rate = train.preprocess.rate
        self.crops = {
            name: (Crops(one, learnt, fitted, rate), Crops(one, judging, fitted, rate))
            for name, one in chosen.items()
        }

    def make(self, name: str, seed: int, bar) -> None:
        """Trains, judges and keeps the scores."""
        learnt, judging = self.crops[name]
        start = bar.n

        def done(share: float, loss: float) -> None:
            bar.set_postfix_str(f"{name}, seed {seed}, loss {loss:.3f}", refresh=False)
            bar.update(start + share - bar.n)

        sizes = [len(classes) for classes in self.tasks.values()]
        network, variables, facts = training.train(learnt, sizes, 1e12 * self.tflop, seed, done)
        scores, left_out = training.judge(
            training.scores_of(network, variables, judging), judging, self.tasks
        )
        found = {"input": name, "seed": seed, "scores": scores, "left_out": left_out} | facts
        found |= {"training_records": len(learnt), "validation_records": len(judging)}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.path(name, seed), json.dumps(found) + "\n")

    def found(self, work: Sequence[tuple[str, int]]) -> list[dict]:
        """The trainings that have ended."""
        paths = [self.path(name, seed) for name, seed in work]
        return [json.loads(path.read_text()) for path in paths if path.exists()]


def choose_inputs(text: str) -> list[str]:
    """'a,b' or 'all' -> names of inputs."""
    names = [name.strip().replace("_", " ") for name in text.split(",")]
    names = list(INPUTS) if names == ["all"] else list(dict.fromkeys(names))
    wrong = [name for name in names if name not in INPUTS]
    if wrong:
        raise InputError(f"--inputs: no input '{wrong[0]}'; there are {', '.join(INPUTS)}")
    return names


def to_text(document: dict) -> str:
    """The table, from the numbers alone."""
    results, tasks = document["results"], document["tasks"]
    names = dict.fromkeys(result["input"] for result in results)
    rows = []
    for name in names:
        mine = [result for result in results if result["input"] == name]
        first = mine[0]
        scores = [_spread([one["scores"][task] for one in mine]) for task in tasks]
        seen = f"{first['records_seen']:,} ({first['passes']:.1f} passes)"
        cost = [f"{first['parameters']:,}", f"{first['flops'] / 1e12:.2f}", seen]
        rows.append([name, *scores, str(len(mine)), *cost])
    head = ["input", *tasks, "trainings", "parameters", "TFLOP", "records seen"]
    left_out = _left_out(results)
    lines = [
        f"{document['corpus']}: one network for all tasks, trained end to end on"
        f" {results[0]['training_records']} records of the training split and judged by"
        f" {results[0]['validation_records']} of the validation split; the test split was not read."
        " The weights are those of the last step. All inputs share one regime; its learning rate"
        " and dropout were the better of two choices for whole records in mV in short trials with"
        " one seed, judged by the same validation records. Macro AUROC x 100, mean of the trainings"
        " (lowest to highest).",
        "",
        *markdown_table(head, rows),
        "Every input has the same operations, so a cheaper one sees more records. A row is what a"
        " small network reads from that input at this budget, not the most that anybody could:"
        " compare rows of one table, and take a difference within their ranges for none. An input"
        " that is low here holds less, or makes it harder to find, and no frozen embedding made"
        " from it is likely to get further.",
    ]
    return "\n".join([*lines, *(["", *left_out] if left_out else [])])


def _spread(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    several = f" ({points(low)} to {points(high)})" if len(values) > 1 else ""
    return points(float(np.mean(values))) + several


def _left_out(results: Sequence[Mapping]) -> list[str]:
    return [
        f"- {task}: left out, as no validation record has them or all do: {', '.join(classes)}"
        for task, classes in results[0]["left_out"].items()
        if classes
    ]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("ceiling", __doc__)
    add = parser.add_argument
    add("--data", required=True, metavar="SHARDS", help="labelled shards with signals")
    add_shared(parser, "out", "page")
    add(
        "--tflop",
        type=positive_float,
        default=4.0,
        help="10^12 floating-point operations of each training (default 4)",
    )
    add("--seeds", type=positive_int, default=3, help="trainings of each input (default 3)")
    add("--inputs", default="all", help="names of inputs, comma-separated, or all (default)")
    add(
        "--task",
        help="label tasks, comma-separated, or all (default: super, sub, form and rhythm, or all"
        " where there is none of them)",
    )
    args = parser.parse_args(argv)
    names, data, out = choose_inputs(args.inputs), Path(args.data), Path(args.out)
    usual = [task for task in in_order(read_metadata(data)["tasks"]) if task in TASKS]
    tasks = choose_tasks(args.task or ",".join(usual) or "all", data)

    # every input with one seed, then with the next
    trainings = Trainings(data, out, tasks, args.tflop)
    work = [(name, seed) for seed in range(args.seeds) for name in names]
    missing = [(name, seed) for name, seed in work if not trainings.path(name, seed).exists()]
    if missing:
        trainings.read(list(dict.fromkeys(name for name, _ in missing)))
    out.mkdir(parents=True, exist_ok=True)
    text = ""
    shown = "{l_bar}{bar}| {n:.1f}/{total} trainings [{elapsed}<{remaining}{postfix}]"
    with progress_bar(total=len(missing), desc="ceiling", bar_format=shown) as bar:
        for name, seed in [*missing, (None, None)]:
            if name is not None:
                trainings.make(name, seed, bar)
            results = trainings.found(work)
            results.sort(key=lambda result: (names.index(result["input"]), result["seed"]))
            document = {
                "format": "lvcg-ceiling-1",
                "corpus": read_metadata(data)["corpus"],
                "tasks": tasks,
                "tflop": args.tflop,
                "results": results,
            }
            text = to_text(document)
            write_whole(out / "ceiling.json", json.dumps(document, indent=1) + "\n")
            write_whole(out / "ceiling.md", text + "\n")
            if args.page:
                put_on_page(args.page, "ceiling", "Supervised ceilings", "ceiling", argv, text)
    print(text)
    return 0


if __name__ == "__main__":
    run_command(main)
