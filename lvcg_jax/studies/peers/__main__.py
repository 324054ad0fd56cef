"""Trains LVCG and other self-supervised methods with one budget, and compares them on a page.

    lvcg compare_peers --data=ptbxl=PTBXL --data=cpsc2018=CPSC --data=csn=CSN --out=runs/peers

Every method of configs/peers.py, and LVCG from scratch, is trained on the first data set for a
fifth of --steps with each of two learning rates, the same two for all. The one whose embeddings
score higher on halves of the validation patients (lvcg_jax/probe/choosing.py) is trained for all of
--steps; the --long best by the same score also four times longer. The test split chooses nothing.
The last checkpoint of each embeds all data sets with all leads, and the first one also with few
leads and with electrodes in other places (lvcg_jax/studies/moved_leads.py). Probes read out
every task, beside random weights, median beats and packaged weights. Parameters, operations, speed
relative to LVCG, and memory are measured first.

All shards need signals (lvcg build --store_signal). In --out: compare.json, stages.log, runs/,
embeddings/, scores/ and costs/. The same command continues where it was stopped, also by SIGTERM or
Ctrl-C. A method that fails is a row of the page with its reason, and the next call tries it again.
"""

import argparse
import json
from pathlib import Path

from absl import logging

from data_prep.base.command import Parser, natural_int, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.dataset.shards import ShardSet
from lvcg_jax.peers import METHODS
from lvcg_jax.probe.labels import DRAWS
from lvcg_jax.runs import weights
from lvcg_jax.studies.data_sets import DataSet, describe_data, find_data
from lvcg_jax.studies.peers.page import PICTURES, draw_pictures, section_text
from lvcg_jax.studies.peers.probes import Probes
from lvcg_jax.studies.peers.rows import OWN
from lvcg_jax.studies.peers.runs import RATE_SHARE, SIZES, Comparison
from lvcg_jax.studies.trials import Stopped, stop_signals
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import command_line, write_section

SECTION = "comparison"
TASKS = ("super", "sub", "form", "rhythm", "all71", "diagnosis")  # read out if there are such
DEFAULT_STEPS = 240  # of 64 records: one pass over PTB-XL's training records


def words_of(text: str) -> list[str]:
    """'a,b' -> ['a', 'b'], each once; '' -> []."""
    return list(dict.fromkeys(word for word in text.split(",") if word))


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("compare_peers", __doc__)
    add = parser.add_argument
    add(
        "--data",
        required=True,
        action="append",
        metavar="[NAME=]SHARDS",
        help="labelled shards with signals; the first are trained on; may be repeated",
    )
    add("--out", required=True, type=Path, metavar="DIR", help="folder for everything but the page")
    add("--page", type=Path, default=Path("docs/peers.md"), help="page (default docs/peers.md)")
    add(
        "--methods",
        type=words_of,
        default=f"{OWN},{','.join(METHODS)}",
        help="methods to compare, with commas (default: all)",
    )
    add("--size", choices=SIZES, default="small", help="of the encoders (default small)")
    add(
        "--steps",
        type=positive_int,
        default=DEFAULT_STEPS,
        help=f"training steps of every method (default {DEFAULT_STEPS})",
    )
    add(
        "--long",
        type=natural_int,
        default=4,
        help="how many of the best are also trained four times longer (default 4)",
    )
    add(
        "--packaged",
        type=words_of,
        default="best,paper,small",
        help="packaged weights beside them (default %(default)s; empty: none)",
    )
    add(
        "--attention",
        type=words_of,
        default="super,diagnosis",
        metavar="TASKS",
        help="tasks of attention heads (default %(default)s; empty: none)",
    )
    add("--task", help=f"label tasks, comma-separated (default: those of {', '.join(TASKS)})")
    add("--draw", choices=DRAWS, default="plain", help="of label subsets (default plain)")
    add(
        "--limit",
        type=positive_int,
        default=5000,
        help="training records of probes that choose a learning rate or see few leads (default"
        " 5000)",
    )
    add("--draws", type=positive_int, default=2, help="draws of moved electrodes (default 2)")
    add("--no_timing", action="store_true", help="leave out speed and memory")
    add_shared(parser, "fractions", "seeds", "resamples")
    args = parser.parse_args(argv)
    known = (OWN, *METHODS)
    for method in args.methods:
        if method not in known:
            raise InputError(f"--methods: unknown '{method}', choose from {', '.join(known)}")
    if OWN not in args.methods:
        raise InputError(f"--methods: all are compared with {OWN}, so it must be among them")
    for name in args.packaged:
        if name not in weights.names():
            there = ", ".join(weights.names()) or "none"
            raise InputError(f"--packaged: no weights '{name}'; there are {there}")
    return args


def open_sets(args: argparse.Namespace) -> list[DataSet]:
    """The data sets with the tasks that are read out; an InputError if one cannot be used."""
    sets = find_data(args.data, args.task or "all")
    if not args.task:
        for data in sets:
            data.tasks[:] = [task for task in data.tasks if task in TASKS] or data.tasks
    for split in ("train", "validation", "test"):
        if split not in sets[0].metadata["splits"]:
            raise InputError(f"{sets[0].path} has no {split} split, which a comparison needs")
    first = ShardSet(sets[0].path, "train").preprocess
    if first.normalise != "lead":
        raise InputError(
            f"{sets[0].path} has one scale for all leads: electrodes move in shards whose leads are"
            " normalised one by one, build them without --preprocess=normalise=record"
        )
    for data in sets:
        shards = ShardSet(data.path, next(iter(data.metadata["splits"])))
        shards.require_preprocess(first)
        shards.require_signal()
    return sets


def compare(args: argparse.Namespace, argv: list[str] | None) -> dict:
    """Everything that the page is made from."""
    sets = open_sets(args)
    (args.out / "embeddings").mkdir(parents=True, exist_ok=True)
    comparison = Comparison(args, sets)
    costs = comparison.costs()
    print(comparison.estimate(costs), flush=True)
    rows = [*comparison.method_rows(), *comparison.other_rows()]
    modes = sum(comparison.configs[OWN].model.beat_modes)
    probes = Probes(rows, sets, args, comparison.kept, modes)
    return {
        "format": "lvcg-compare-peers-1",
        "command": command_line("compare_peers", argv),
        "steps": args.steps,
        "rate_steps": max(args.steps // RATE_SHARE, 1),
        "rates": comparison.rates,
        "batch_size": comparison.configs[OWN].data.batch_size,
        "limit": args.limit,
        "draws": args.draws,
        "draw": args.draw,
        "data_sets": [describe_data(data) for data in sets],
        "rows": [row.to_dict() for row in rows],
        "costs": costs,
        "results": probes.linear(),
        "attention": probes.attention(),
        "few_leads": probes.few_leads(),
        "moved": probes.moved(),
    }


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    logging.set_verbosity(logging.WARNING)
    try:
        with stop_signals():
            document = compare(args, argv)
    except (Stopped, KeyboardInterrupt):
        print("stopped: the same command continues from here")
        return 0
    write_whole(args.out / "compare.json", json.dumps(document, indent=1) + "\n")
    write_section(args.page, SECTION, section_text(document))
    draw_pictures(document, args.page.parent / "figures")
    print(f"section '{SECTION}' of {args.page} and {', '.join(PICTURES)} beside it are written")
    return 0


if __name__ == "__main__":
    run_command(main)
