"""What probes read in the embeddings of everything that is compared.

Results are those of lvcg_jax.probe.study.evaluate, one for each data set and task, with a further
field or two. Axis letters: m row, t test row, d feature.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.progress import progress_bar
from lvcg_jax.embed.table import Table, align_features, keep_test_rows, take_rows
from lvcg_jax.probe.attention import AttentionFit, join_inputs, read_facts
from lvcg_jax.probe.frozen import ALL, frozen_probe
from lvcg_jax.probe.labels import NothingToScore, task_of
from lvcg_jax.probe.study import evaluate, linear_fits, probe_task
from lvcg_jax.studies.data_sets import DataSet
from lvcg_jax.studies.kept import Features, digest_of
from lvcg_jax.studies.peers.rows import FEW_LEADS, OWN, TITLES, Row
from lvcg_jax.studies.results_page import ATTENTION

NO_SHAPE = "LVCG, no beat shapes"
MOST = {"fractions": (1.0,), "seeds": 1}  # all labels


def without_shape(table: Table, modes: int) -> Table:
    """A table of LVCG without the numbers of its embedding that are not learned but fitted to the
    shape of beats: the last ones of the part `structure`."""
    end = table.parts["structure"]
    kept = np.delete(np.arange(table.embedding.shape[1]), np.arange(end - modes, end))
    parts = table.parts | {"structure": end - modes}
    return dataclasses.replace(table, embedding=table.embedding[:, kept], parts=parts)


def cut_to(table: Table, keys: Sequence[str]) -> Table:
    """The rows with these keys, in this order."""
    row_of = {key: i for i, key in enumerate(table.keys)}
    return take_rows(table, np.array([row_of[key] for key in keys]))


class Probes:
    """Probes of the rows that have embeddings; what is in the folder already is not made again."""

    def __init__(
        self,
        rows: Sequence[Row],
        sets: Sequence[DataSet],
        args: argparse.Namespace,
        keep: Callable[[Path, Callable[[], dict], str], dict],
        modes: int,
    ):
        """`keep` gives the JSON of a file, made if it is not there, and logs it with some words;
        `modes` are the numbers of LVCG's embedding that describe the shape of beats."""
        self.sets, self.args, self.keep, self.modes = sets, args, keep, modes
        self.folder: Path = args.out / "embeddings"
        self.rows = [row for row in rows if not row.reason]
        self.methods = [row for row in self.rows if row.few]
        titles = [row.title for row in self.rows]
        # whose differences from all others are taken
        long = [row.title for row in self.rows if "short" in row.facts]
        wanted = [TITLES[OWN], *(row.title for row in self.rows if row.kind == "control"), *long]
        self.firsts = [title for title in wanted if title in titles] or titles[:1]

    def table(self, features: Features) -> Table:
        return dataclasses.replace(features.table(self.folder), tokens=None)

    def kept(self, what: str, features: Sequence[Features], options: dict, make: Callable) -> dict:
        """A result, stored under all that it depends on; one without anything to score is only a
        note."""
        keys = [digest_of(one.key) for one in features]
        key = digest_of([*keys, what, json.dumps(options, sort_keys=True)])
        path = self.args.out / "scores" / f"{what.replace(' ', '_')}-{key}.json"

        def made() -> dict:
            try:
                return make()
            except NothingToScore as error:
                return {"nothing": str(error)}

        return self.keep(path, made, f"{what}: probed")

    def linear(self) -> list[dict]:
        """Every row on every task at every fraction."""
        results, args = [], self.args
        options = {"fractions": args.fractions, "seeds": args.seeds, "resamples": args.resamples}
        options |= {"draw": args.draw, "firsts": self.firsts}
        for data in self.sets:
            features = [row.full[data.name] for row in self.rows]
            given: list = []  # read at the first task that is not there
            for task in progress_bar(data.tasks, unit="task", desc=f"probe {data.name}"):

                def make(data=data, task=task, given=given) -> dict:
                    if not given:
                        given.extend(self.embeddings(data))
                    first, x, parts = given
                    return probe_task(x, first, task, parts=parts, progress=True, **options)

                found = self.kept(f"{data.name} {task}", features, options, make)
                results.append(self.named(found, data, task))
        return results

    def embeddings(self, data: DataSet) -> tuple[Table, dict[str, np.ndarray], dict]:
        """The first row's table, and everybody's features [m,d] and sizes of parts; LVCG's once
        more without the shape of beats."""
        tables = {row.title: self.table(row.full[data.name]) for row in self.rows}
        if TITLES[OWN] in tables and self.modes:
            tables[NO_SHAPE] = without_shape(tables[TITLES[OWN]], self.modes)
        first = next(iter(tables.values()))
        features = {name: align_features(first, table, name) for name, table in tables.items()}
        return first, features, {name: table.part_sizes for name, table in tables.items()}

    def named(self, result: dict, data: DataSet, task: str, **more) -> dict:
        """With what the page calls it."""
        names = {"task": task, "data": data.name, "corpus": data.metadata["corpus"]}
        return result | names | more

    def attention(self) -> list[dict]:
        """An attention head beside the linear probe, of each row with tokens, with all labels."""
        results, options = [], MOST | {"resamples": self.args.resamples}
        chosen = [
            (data, task, row)
            for data in self.sets
            for row in self.rows
            for task in data.tasks
            if task in self.args.attention and row.encoder
        ]
        tokens: list = [None, None]  # the features that were read last, and their inputs
        for data, task, row in progress_bar(chosen, unit="head", desc="attention"):
            features = row.full[data.name]

            def make(data=data, task=task, row=row, features=features) -> dict:
                if tokens[0] != features.name:
                    table = features.table(self.folder)
                    inputs = join_inputs(
                        read_facts(data.path, table), table.embedding, table, table.keys
                    )
                    tokens[:] = features.name, (table, inputs)
                table, inputs = tokens[1]
                found = task_of(table, task)
                parts = {row.title: table.part_sizes}
                x = {row.title: table.embedding[found.rows]}
                fits = linear_fits(x, len(found.rows), "ridge", parts=parts)
                fits[row.title + ATTENTION] = [AttentionFit(inputs, found.rows)]
                labelled = found.labels, found.patients, found.splits
                names = {"class_names": found.classes, "records": found.records}
                return evaluate(fits, *labelled, protocol="ridge", **names, **options)

            what = f"{data.name} {task} attention {row.title}"
            found = self.kept(what, [features], options, make)
            results.append(self.named(found, data, task, row=row.title))
        return results

    def few_leads(self) -> list[dict]:
        """Probes that are trained and tested with the same few leads, and with all of them on the
        same records."""
        results, data = [], self.sets[0]
        own = [title for title in (TITLES[OWN],) if title in [row.title for row in self.methods]]
        options = MOST | {"resamples": self.args.resamples, "firsts": own}
        for leads in (ALL, *FEW_LEADS) if self.methods else ():
            few = {row.title: row.few[leads if leads in FEW_LEADS else "1 lead"]
                   for row in self.methods}  # fmt: skip
            whole = {row.title: row.full[data.name] for row in self.methods}
            given: list = []
            for task in progress_bar(self.disturbed_tasks(data), unit="task", desc=leads):

                def make(task=task, leads=leads, few=few, whole=whole, given=given) -> dict:
                    if not given:
                        tables = {name: self.table(one) for name, one in few.items()}
                        keys = next(iter(tables.values())).keys
                        if leads == ALL:
                            tables = {n: cut_to(self.table(one), keys) for n, one in whole.items()}
                        given.append(tables)
                    (tables,) = given
                    first = next(iter(tables.values()))
                    x = {name: align_features(first, table, name) for name, table in tables.items()}
                    parts = {name: table.part_sizes for name, table in tables.items()}
                    return probe_task(x, first, task, parts=parts, progress=True, **options)

                used = [*few.values(), *(whole.values() if leads == ALL else ())]
                found = self.kept(f"{leads} {task}", used, options, make)
                results.append(self.named(found, data, task, leads=leads))
        return results

    def disturbed_tasks(self, data: DataSet) -> list[str]:
        """The tasks that are read with few leads and with moved electrodes: all but the 71
        statements, whose probes take longer than all others together."""
        return [task for task in data.tasks if task != "all71"] or data.tasks

    def moved(self) -> list[dict]:
        """Probes that were trained with all leads and electrodes in place, tested with few leads
        and with electrodes elsewhere."""
        results, data = [], self.sets[0]
        options = MOST | {"resamples": self.args.resamples}
        for row in progress_bar(self.methods, unit="model", desc="moved electrodes"):
            given: list = []
            tested = {**{name: [one] for name, one in row.few.items()}, **row.moved}
            used = [row.full[data.name], *(one for several in tested.values() for one in several)]
            for task in self.disturbed_tasks(data):

                def make(task=task, given=given, tested=tested, row=row) -> dict:
                    if not given:
                        given.extend(self.disturbed(row, tested))
                    return frozen_probe(*given, task, **options)

                found = self.kept(f"moved {row.title} {task}", used, options, make)
                results.append(self.named(found, data, task, row=row.title))
        return results

    def disturbed(
        self, row: Row, tested: dict[str, list[Features]]
    ) -> tuple[Table, np.ndarray, dict[str, list[np.ndarray]]]:
        """A row's table with the test records that everything has, their numbers [t], and what else
        was made of them, [t,d] each."""
        tables = {name: [self.table(one) for one in several] for name, several in tested.items()}
        table = self.table(row.full[self.sets[0].name])
        every = [set(one.keys) for several in tables.values() for one in several]
        keys = [
            key
            for key, split in zip(table.keys, table.split, strict=True)
            if split == "test" and all(key in one for one in every)
        ]
        table, test = keep_test_rows(table, keys)
        others = {name: [cut_to(one, keys).embedding for one in s] for name, s in tables.items()}
        return table, test, others
