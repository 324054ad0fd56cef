"""The results page: the tables of a trained run beside its controls, other models and published
figures, with a list of what it did not win.

    lvcg results --checkpoint=runs/paper --data=data/ptbxl --out=docs/results-paper.md
    lvcg results --checkpoint=runs/paper --data=ptbxl=A --data=cpsc2018=B --data=csn=C \\
        --embeddings=ECG-JEPA=jepa.npz --protocol=ridge,attention

Embeds every data set with the trained model, with random weights and as median beats, probes every
task at 1, 10 and 100% of the labels, and writes the section of this run; the page's other sections
stay. Embeddings and all numbers (as JSON) are kept in --work, so a second call only probes. Splits
are those of the data sets.

--draw        how label subsets are drawn: 'guaranteed' (one positive record of each class at least)
              and 'plain' (a plain sample, every test class scored), which published figures stand
              beside. The first named is the one of the JSON's `results`, which cards and reports
              show.
--protocol    'attention' adds rows of an attention head over the frozen beat tokens.
--embeddings  adds a row of any other model: a .npz or .parquet with record_id and embedding. Labels
              and splits are those of the data set. Repeat it, also with one name and several files.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import logging

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from lvcg_jax.config.files import PAPER_CONFIG, differences, load_config, read_config_file
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, align_features, take_rows
from lvcg_jax.probe.labels import DRAWS, task_of
from lvcg_jax.probe.study import evaluate, linear_fits, part_features, probe_task
from lvcg_jax.runs import weights
from lvcg_jax.runs.history import describe_run, trained_corpora
from lvcg_jax.studies.data_sets import DataSet, describe_data, find_data
from lvcg_jax.studies.embeddings import (
    median_features,
    random_features,
    raw_features,
    trained_features,
)
from lvcg_jax.studies.foreign import Foreign, join_foreign, read_foreign, unmatched
from lvcg_jax.studies.kept import CONTROLS, MEDIAN, MODEL, RANDOM, RAW
from lvcg_jax.studies.results_page import ATTENTION, section_text
from lvcg_jax.text.flags import add_shared, named_path
from lvcg_jax.text.pages import command_line, write_section

HEADS = ("ridge", "attention")
# whose agreement with 'ridge' is shown, with the draw that belongs to each
OTHER_PROTOCOLS, OTHER_SEEDS = {"paper": "guaranteed", "release": "plain"}, 3


def embed_all(
    trained: LVCG, data: Path, work: Path, random_seeds: int, tokens: bool
) -> dict[str, list[Table]]:
    """Tables of the trained model and of its controls; each is computed once and kept in `work`.
    With tokens: those of the model and of its first random weights have beat tokens."""
    config = trained.config
    features = {
        MODEL: [trained_features(trained, data, tokens)],
        RANDOM: [
            random_features(config, seed, data, tokens=tokens and not seed)
            for seed in range(random_seeds)
        ],
        RAW: [raw_features(config, data)],
        MEDIAN: [median_features(data)],
    }
    return {name: [one.table(work) for one in several] for name, several in features.items()}


class Bench:
    """One data set with the features of all models, ready to be probed."""

    def __init__(
        self,
        data: DataSet,
        tables: Mapping[str, list[Table]],
        files: Mapping[str, Sequence[Foreign]],
        attention: bool,
    ):
        self.data, first = data, tables[MODEL][0]
        self.record_id = first.record_id
        features = {MODEL: [first.embedding]}
        for name in CONTROLS:
            features[name] = [align_features(first, table, name) for table in tables[name]]
        features |= {name: [x] for name, x in part_features(first, MODEL).items()}
        self.parts = {name: several[0].part_sizes for name, several in tables.items()}
        # the rows that every other model has, too
        rows, others, self.notes = join_foreign(first, files)
        self.table = take_rows(first, rows)
        self.features = {name: [x[rows] for x in several] for name, several in features.items()}
        self.features |= {name: [x] for name, x in others.items()}
        # what an attention head reads
        self.inputs = {}
        if attention:
            from lvcg_jax.probe.attention import join_inputs, read_facts  # late: compiles a network

            facts, keys = read_facts(data.path, self.table), self.table.keys
            self.inputs = {
                name + ATTENTION: join_inputs(facts, self.features[name][0], tables[name][0], keys)
                for name in (MODEL, RANDOM)
            }

    def probe(self, task: str, draw: str, fractions: Sequence[float], seeds: int) -> dict:
        """Every model on one task: ridge probes, and attention heads where there are any."""
        found = task_of(self.table, task)
        features = {name: [x[found.rows] for x in xs] for name, xs in self.features.items()}
        fits = linear_fits(features, len(found.rows), "ridge", parts=self.parts)
        if self.inputs:
            from lvcg_jax.probe.attention import AttentionFit

            fits |= {name: [AttentionFit(x, found.rows)] for name, x in self.inputs.items()}
        labelled = found.labels, found.patients, found.splits
        options = {"class_names": found.classes, "records": found.records, "draw": draw}
        result = evaluate(fits, *labelled, fractions, seeds, "ridge", **options, progress=True)
        return {
            "task": task,
            "data": self.data.name,
            "corpus": self.data.metadata["corpus"],
        } | result

    def other_protocols(self) -> list[dict]:
        """The first task with all labels, by the other linear protocols."""
        main = {name: self.features[name] for name in (MODEL, MEDIAN)}
        options = {"fractions": (1.0,), "seeds": OTHER_SEEDS, "progress": True}
        return [
            probe_task(main, self.table, self.data.tasks[0], protocol=other, draw=draw, **options)
            | {"data": self.data.name}
            for other, draw in OTHER_PROTOCOLS.items()
        ]


def describe_model(checkpoint: Path, model: LVCG) -> dict:
    """How the model was trained, and on which corpora."""
    if weights.is_packaged(checkpoint):
        changed = differences(read_config_file(PAPER_CONFIG), model.config)
        of_these = {"differences": changed, "pretrained_on": model.facts["corpora"]}
        return model.facts["run"] | of_these
    found = describe_run(checkpoint, model.checkpoint)
    if "peer" in model.config:
        found["method"] = model.config.peer.method
    return found | {"pretrained_on": pretrained_on(checkpoint)}


def pretrained_on(run: Path) -> list[str] | None:
    """The corpora of a run's training data, or None if they are not at hand any more."""
    config = load_config(run / "config.json")
    try:
        return trained_corpora(config, run)
    except InputError:
        return None


def some_of(known: Sequence[str]):
    """The type of a flag that takes some of these words, with commas between."""

    def parse(text: str) -> list[str]:
        words = list(dict.fromkeys(text.split(",")))
        if not set(words) <= set(known):
            raise argparse.ArgumentTypeError(f"'{text}': give {' or '.join(known)}, or both")
        return words

    return parse


def read_files(flags: Sequence[str]) -> dict[str, list[Foreign]]:
    """The files of --embeddings by name."""
    files: dict[str, list[Foreign]] = {}
    for text in flags:
        name, path = named_path("--embeddings", text)
        if name in (MODEL, *CONTROLS) or not name:
            raise InputError(f"--embeddings={text}: '{name}' is the name of another row")
        files.setdefault(name, []).append(read_foreign(path))
    return files


def main(argv: list[str] | None = None) -> int:
    parser = Parser("results", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="RUN",
        help="run directory of lvcg train, or packaged weights",
    )
    add(
        "--data",
        required=True,
        action="append",
        metavar="[NAME=]SHARDS",
        help="shards of lvcg build, with labels; may be repeated",
    )
    add("--out", type=Path, metavar="PAGE", help="the page (default docs/results-NAME.md)")
    add("--name", help="section of the page (default: the name of the run directory)")
    add(
        "--draw",
        type=some_of(DRAWS),
        default=",".join(DRAWS),
        help="how label subsets are drawn (default %(default)s)",
    )
    add(
        "--protocol",
        type=some_of(HEADS),
        default="ridge",
        help="ridge (default), or ridge,attention",
    )
    add(
        "--embeddings",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="embeddings of another model; may be repeated",
    )
    add(
        "--random_seeds",
        type=positive_int,
        default=3,
        help="random initialisations of the control (default 3)",
    )
    add(
        "--work",
        type=Path,
        help="where embeddings and JSON are kept (default RUN/eval; of packaged weights"
        " runs/NAME/eval)",
    )
    add_shared(parser, "task", "fractions", seeds=5)
    args = parser.parse_args(argv)
    logging.set_verbosity(logging.WARNING)
    files, sets = read_files(args.embeddings), find_data(args.data, args.task)
    model = LVCG.load(args.checkpoint)
    name = args.name or args.checkpoint.resolve().name
    place = Path("runs") / name if weights.is_packaged(args.checkpoint) else args.checkpoint
    work = args.work or place / "eval"
    out = args.out or Path(f"docs/results-{name}.md")
    work.mkdir(parents=True, exist_ok=True)

    # embeddings of every data set, then probes
    attention, benches = "attention" in args.protocol, []
    for data in sets:
        tables = embed_all(model, data.path, work, args.random_seeds, attention)
        benches.append(Bench(data, tables, files, attention))
    notes = [f"{bench.data.name}: {note}" for bench in benches for note in bench.notes]
    notes += unmatched(files, {bench.data.name: bench.record_id for bench in benches})
    began = time.monotonic()
    work_list = [(b, task, draw) for b in benches for task in b.data.tasks for draw in args.draw]
    results = [
        bench.probe(task, draw, args.fractions, args.seeds)
        for bench, task, draw in progress_bar(work_list, unit="table")
    ]
    agreement = benches[0].other_protocols()
    seconds = time.monotonic() - began

    main_ones = [r["data"] == sets[0].name and r["draw"] == args.draw[0] for r in results]
    document = {
        "format": "lvcg-results-1",
        "name": name,
        "command": command_line("results", argv),
        "data": describe_data(sets[0]),
        "data_sets": [describe_data(data) for data in sets],
        "run": describe_model(args.checkpoint, model),
        "random_seeds": args.random_seeds,
        "others": {
            name: [Path(file.path).name for file in several] for name, several in files.items()
        },
        "results": [r for r, first in zip(results, main_ones, strict=True) if first],
        "further": [r for r, first in zip(results, main_ones, strict=True) if not first],
        "agreement": agreement,
        "notes": notes,
    }
    stored = work / f"results-{name}.json"
    write_whole(stored, json.dumps(document, indent=1) + "\n")
    write_section(out, name, section_text(document))
    print(f"section '{name}' of {out} written; numbers in {stored}; probing took {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    run_command(main)
