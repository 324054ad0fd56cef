"""What is compared: every method trained at one budget, its controls, and the embeddings of all.

Everything is made once and kept in a folder under a name that follows from config and data, so a
command that was stopped continues.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.bench.cost import Cost, compare_speed
from lvcg_jax.bench.timing import Program
from lvcg_jax.config.files import read_config_file
from lvcg_jax.data.windows import Failure, dataset_windows
from lvcg_jax.embed.dataset import embed_dataset, embed_table
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, take_rows
from lvcg_jax.peers import METHODS
from lvcg_jax.peers.vit import TransformerPeer
from lvcg_jax.probe.choosing import SPLITS, score_table
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.stats.rank import effective_rank
from lvcg_jax.studies.data_sets import DataSet
from lvcg_jax.studies.embeddings import (
    median_features,
    random_features,
    trained_features,
)
from lvcg_jax.studies.kept import MEDIAN, Features, data_key, digest_of
from lvcg_jax.studies.moved_leads import Change, moves
from lvcg_jax.studies.peers.rows import FEW_LEADS, OWN, TITLES, Row
from lvcg_jax.studies.trials import Stopped, budgeted, fingerprint, reason_of
from lvcg_jax.train.loop import COLLAPSED, train_and_evaluate

# --size: LVCG's config, and the word behind a method's name in configs/peers.py
SIZES = {
    "small": ("configs/ptbxl_cpu.py:small", ""),
    "best": ("configs/ptbxl_cpu.py:best", "-best"),
    "smoke": ("configs/pretrain.py:smoke", "-smoke"),
}
# encoder -> the method whose config gives its random weights
RANDOM_OF = {"LVCG": OWN, "ResNet": "simclr", "transformer": "st_mem"}
CHOOSING = {"fractions": (1.0,), "seeds": 1, "resamples": 10}  # its intervals are not shown
RATE_SHARE, LONGER = 5, 4  # a fifth of the steps for each rate; four times as many at the end
ASSUMED_GFLOPS = 50.0  # of two cores, to say beforehand how long it takes
REPEATS = 5


@dataclass(frozen=True)
class Trial:
    """One training: its config, all that it depends on, and its run directory."""

    name: str
    config: ConfigDict
    key: list[str]
    run: Path


def choose_rate(trials: Sequence[dict]) -> float | None:
    """The learning rate of the highest score, of equal ones the first; None if all have failed."""
    ended = [trial for trial in trials if trial["score"] is not None]
    return max(ended, key=lambda trial: trial["score"])["rate"] if ended else None


def method_config(method: str, size: str, data: Path) -> ConfigDict:
    """The config of a method for these shards, whatever their preprocessing is."""
    own, word = SIZES[size]
    config = read_config_file(own if method == OWN else f"configs/peers.py:{method}{word}")
    config.preprocess.update(ShardSet(data, "train").preprocess.to_dict())
    return config


def learning_rates() -> list[float]:
    """The two rates of configs/peers.py."""
    files = ("configs/peers.py:simclr", "configs/peers.py:simclr-low")
    return [read_config_file(file).optim.learning_rate for file in files]


def encoder_of(method: str) -> str:
    if method == OWN:
        return "LVCG"
    return "transformer" if issubclass(METHODS[method], TransformerPeer) else "ResNet"


def embed_part(
    model: LVCG,
    data: Path,
    splits: Sequence[str] | None = None,
    change: Change | None = None,
    **options,
) -> Table:
    """A data set embedded with `leads`, `tokens` and `limit` of embed_dataset, or after a change of
    its windows. Records without any of the leads are left out."""
    failures: list[Failure] = []
    if change is None:
        return embed_dataset(model, data, splits=splits, failures=failures, **options)
    windows = progress_bar(map(change, dataset_windows(data, splits)), unit="rec")
    return embed_table(model, windows, read_metadata(data)["tasks"], failures)


def run_facts(run: Path) -> dict:
    """How the training of a run went: its loss at the beginning and at the end, and whether the
    embeddings all point the same way."""
    rows = [row for row in read_metrics(run) if row["kind"] == "train"]
    found = {"first_loss": rows[0]["loss"], "last_loss": rows[-1]["loss"]}
    spread = rows[-1].get("embedding_std")
    return found if spread is None else found | {"collapsed": spread < COLLAPSED}


class Comparison:
    """Trains and embeds everything that is compared; what is in the folder already is not made
    again."""

    def __init__(self, args: argparse.Namespace, sets: Sequence[DataSet]):
        self.args, self.sets, self.first = args, sets, sets[0]
        self.out: Path = args.out
        self.folder = self.out / "embeddings"
        self.rates = learning_rates()
        self.configs = {m: method_config(m, args.size, self.first.path) for m in args.methods}
        self.trained: tuple[Path, LVCG] | None = None  # the run that was used last
        self.moves = moves(args.draws)

    # ---- Stages

    def log(self, words: str) -> None:
        """A line for a finished stage."""
        line = f"{time.strftime('%Y-%m-%d %H:%M')} {words}"
        print(line, flush=True)
        with open(self.out / "stages.log", "a") as file:
            file.write(line + "\n")

    def kept(self, path: Path, make: Callable[[], dict], words: str) -> dict:
        """A JSON file, made and logged if it is not there."""
        if not path.exists():
            made = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(made) + "\n")
            self.log(words)
        return json.loads(path.read_text())

    def embed(self, features: Features) -> None:
        """Makes embeddings that are not there yet."""
        if not features.path(self.folder).exists():
            features.table(self.folder)
            self.log(f"{features.name}: embedded")

    # ---- Cost

    def costs(self) -> dict[str, dict]:
        """What each method costs, or why that is not known. With timing LVCG's programs take turns
        with those of each."""
        found, folder = {}, self.out / "costs"

        @cache
        def own() -> tuple[Cost, dict[str, Program]]:
            cost = Cost(self.configs[OWN])
            return cost, cost.programs()

        for method, config in self.configs.items():
            key = digest_of([fingerprint(config), fingerprint(self.configs[OWN])])
            path = folder / f"{method}-{key}.json"
            try:
                make = lambda c=config: Cost(c).count()  # noqa: E731
                found[method] = self.kept(path, make, f"{method}: operations counted")
                if not self.args.no_timing:
                    path = folder / f"{method}-timed-{key}.json"
                    make = lambda c=config: compare_speed(Cost(c), *own(), REPEATS)  # noqa: E731
                    speed = self.kept(path, make, f"{method}: speed measured")
                    for part, values in speed.items():
                        found[method][part] |= values
            except Exception as error:
                found[method] = {"reason": reason_of(error, None)}
        return found

    def estimate(self, costs: dict[str, dict]) -> str:
        """How much training and embedding there is, in words."""
        args, train, embed = self.args, 0.0, 0.0
        sizes = {name: s["examples"] for name, s in self.first.metadata["splits"].items()}
        part = min(args.limit, sizes["train"]) + sizes["validation"]
        records = sum(s["examples"] for d in self.sets for s in d.metadata["splits"].values())
        each = len(self.rates) * part + len(FEW_LEADS) * (part + sizes["test"])
        each += sum(map(len, self.moves.values())) * sizes["test"]
        known = {m: cost for m, cost in costs.items() if "reason" not in cost}
        for cost in known.values():
            step = cost["train"]["gflop"] * cost["batch_size"]
            train += step * args.steps * (1 + len(self.rates) / RATE_SHARE)
            train += step * args.steps * LONGER * args.long / len(known)
            share = 1 + args.long / len(known)
            embed += cost["embed"]["gflop"] * (share * records + each)
        hours = (train + embed) / ASSUMED_GFLOPS / 3600
        return (
            f"{train / 1e3:.0f} TFLOP of training and {embed / 1e3:.0f} of embedding by"
            f" {len(known)} methods: {hours:.1f} hours at {ASSUMED_GFLOPS:g} GFLOP/s; compiling,"
            " packaged weights, controls and probes come on top"
        )

    # ---- Training

    def trial(self, method: str, rate: float, steps: int) -> Trial:
        config = budgeted(self.configs[method], steps)
        config.optim.learning_rate = rate
        config.data.dir = str(self.first.path)
        name = f"{method}-{rate:g}-{steps}"
        key = [fingerprint(config), data_key(self.first.path)]
        return Trial(name, config, key, self.out / "runs" / f"{name}-{digest_of(key)}")

    def model_of(self, trial: Trial) -> LVCG:
        """The finished run of a trial, trained or continued if need be."""
        if self.trained is None or self.trained[0] != trial.run:
            self.trained = None
            if train_and_evaluate(trial.config, trial.run) != "finished":
                raise Stopped
            self.log(f"{trial.name}: trained")
            self.trained = trial.run, LVCG.load(trial.run, "latest")
        return self.trained[1]

    def features(self, trial: Trial, data: Path, what: str, **options) -> Features:
        """Embeddings by a trial, which is trained for them if need be; `what` names the options of
        embed_part."""
        make = lambda: embed_part(self.model_of(trial), data, **options)  # noqa: E731
        return Features(f"{trial.name}-{what}", [*trial.key, data_key(data), what], make)

    def score(self, features: Features) -> float:
        """The mean AUROC on halves of the validation patients."""
        tasks = [task for task in self.first.tasks if task != "all71"] or self.first.tasks
        options = CHOOSING | {"tasks": tasks}
        key = digest_of([*features.key, json.dumps(options, sort_keys=True)])
        path = self.out / "scores" / f"validation-{features.name}-{key}.json"

        def make() -> dict:
            table = features.table(self.folder)
            return score_table(take_rows(table, np.isin(table.split, SPLITS)), **options)

        return self.kept(path, make, f"{features.name}: validation scored")["mean"]

    def try_rates(self, method: str) -> list[dict]:
        """The validation score of each learning rate after a share of the steps, or a reason."""
        trials, steps = [], max(self.args.steps // RATE_SHARE, 1)
        for rate in self.rates:
            found = {"rate": rate, "score": None, "reason": ""}
            trial = self.trial(method, rate, steps)
            options = {"limit": self.args.limit, "splits": SPLITS}
            what = f"choosing{self.args.limit}"
            try:
                features = self.features(trial, self.first.path, what, **options)
                found["score"] = self.score(features)
            except Stopped:
                raise
            except Exception as error:
                found["reason"] = reason_of(error, self.first.path)
                self.log(f"{trial.name}: failed, {found['reason']}")
            trials.append(found)
        return trials

    def train_row(self, row: Row, rate: float) -> None:
        """Trains a method for the steps of its row and makes all its embeddings; a failure is the
        row's reason."""
        trial = self.trial(row.method, rate, row.steps)
        try:
            for data in self.sets:
                tokens = self.has_attention(data)
                what = data.name + "-tokens" * tokens
                row.full[data.name] = self.features(trial, data.path, what, tokens=tokens)
            if "short" not in row.facts:
                for name, leads in FEW_LEADS.items():
                    what = f"{name.replace(' ', '_')}-{self.args.limit}"
                    options = {"leads": leads, "limit": self.args.limit}
                    row.few[name] = self.features(trial, self.first.path, what, **options)
                for name, changes in self.moves.items():
                    row.moved[name] = [
                        self.features(
                            trial,
                            self.first.path,
                            f"{name.replace(' ', '_')}-{draw}",
                            splits=("test",),
                            change=change,
                        )
                        for draw, change in enumerate(changes)
                    ]
            for features in self.all_features(row):
                self.embed(features)
            row.facts |= run_facts(trial.run) | self.dimensions(row)
            row.facts["validation"] = self.score(row.full[self.first.name])
        except Stopped:
            raise
        except Exception as error:
            row.reason = reason_of(error, self.first.path)
            row.full, row.few, row.moved = {}, {}, {}
            self.log(f"{trial.name}: failed, {row.reason}")

    def dimensions(self, row: Row) -> dict:
        """How many numbers a row's embedding has, and how many dimensions they use."""
        x = row.full[self.first.name].table(self.folder).embedding
        return {"numbers": x.shape[1], "rank": effective_rank(x)}

    def all_features(self, row: Row) -> list[Features]:
        moved = [features for several in row.moved.values() for features in several]
        return [*row.full.values(), *row.few.values(), *moved]

    def has_attention(self, data: DataSet) -> bool:
        """Whether an attention head reads a task of this data set."""
        return bool(set(self.args.attention) & set(data.tasks))

    # ---- Rows

    def method_rows(self) -> list[Row]:
        """Every method with the budget of all, and the best with the longer one."""
        rows = []
        for method in self.configs:
            jax.clear_caches()  # what was compiled for one method is of no use to the next
            title, encoder = TITLES[method], encoder_of(method)
            row = Row(title, "method", encoder, method, self.args.steps)
            row.facts["rates"] = self.try_rates(method)
            rate = row.facts["rate"] = choose_rate(row.facts["rates"])
            if rate is None:
                row.reason = row.facts["rates"][0]["reason"]
            else:
                self.train_row(row, rate)
            rows.append(row)
        ended = [row for row in rows if not row.reason]
        best = sorted(ended, key=lambda row: -row.facts["validation"])[: self.args.long]
        for short in best:
            title = f"{short.title}, {LONGER} x longer"
            row = Row(title, "method", short.encoder, short.method, LONGER * self.args.steps)
            row.facts["rate"], row.facts["short"] = short.facts["rate"], short.title
            self.train_row(row, short.facts["rate"])
            rows.append(row)
        return rows

    def other_rows(self) -> list[Row]:
        """Random weights of every encoder, the median beat, and packaged weights."""
        rows = []
        used = {encoder_of(method) for method in self.configs}
        for encoder in [name for name in RANDOM_OF if name in used]:
            config = method_config(RANDOM_OF[encoder], self.args.size, self.first.path)
            row = Row(f"random {encoder}", "control", encoder)
            row.full = {
                d.name: self.named(
                    random_features(config, 0, d.path, tokens=self.has_attention(d)), row, d
                )
                for d in self.sets
            }
            rows.append(row)
        row = Row(MEDIAN, "control")
        row.full = {d.name: self.named(median_features(d.path), row, d) for d in self.sets}
        rows.append(row)
        for name in self.args.packaged:
            row = Row(f"packaged {name}", "packaged", "LVCG")
            model = LVCG.load(name)
            row.full = {
                d.name: self.named(trained_features(model, d.path, self.has_attention(d)), row, d)
                for d in self.sets
            }
            rows.append(row)
        for row in rows:
            try:
                for features in row.full.values():
                    self.embed(features)
                row.facts |= self.dimensions(row)
            except Exception as error:
                row.reason, row.full = reason_of(error, None), {}
                self.log(f"{row.title}: failed, {row.reason}")
        return rows

    def named(self, features: Features, row: Row, data: DataSet) -> Features:
        """The same features with the row's and the data set's name in that of their file."""
        name = f"{row.title.replace(' ', '_')}-{data.name}-{features.name}"
        return dataclasses.replace(features, name=name)
