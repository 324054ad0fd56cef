"""Linear probe of frozen features: how much of a label can one linear layer read out of an
embedding?

Every model is probed on the same rows with the same label subsets, and reported as test macro AUROC
(mean over seeds) with a 95% bootstrap interval over patients, as AUPRC, and as F1 at thresholds
chosen on the validation split. Probabilities are calibrated on the validation split (Platt) and
judged by Brier score and calibration error. Protocols:

ridge     features standardised on the training subset, L2-regularised logistic regression for all
          classes at once, strength chosen by validation macro AUROC. Each named part of an
          embedding weighs 1 or 0.3, also chosen by validation: where positives are few, a large
          part that says little about the task would drown the others. Deterministic: a seed only
          redraws the label subset.
paper     one linear layer, Adam 1e-3, batches of 256, stopping after 5 epochs without a better
          validation macro AUROC (at most 200). The layer starts at zero, the seed also shuffles the
          batches. Features are standardised, which the paper leaves open: on raw features of small
          scale this rate ends far from the optimum.
release   the same on raw features with at most 50 epochs, a random start, subsets drawn plainly
          and F1 thresholds from a grid, as the authors' published code does it.
attention learned queries over the frozen beat tokens, with R-R intervals and the leads' sizes
          beside them, added to the scores of `ridge` (see probe/attention.py). A control without
          tokens stays linear.
finetune  not frozen: the ridge head first, then the encoder with it (see probe/finetune.py).

    lvcg probe --embeddings=emb.npz --control=random=random.npz --control=median_beat=beat.npz
    lvcg probe --embeddings=emb.npz --labels=labels.csv --task=sepsis --predictions=scores.csv
    lvcg probe --protocol=attention --embeddings=with_tokens.npz --data=SHARDS --task=super
    lvcg probe --protocol=finetune --checkpoint=RUN --data=SHARDS --task=super --fractions=0.1
    lvcg probe --embeddings=emb.npz --task=super --fractions=1 --save=super.safetensors
    lvcg probe --embeddings=emb.npz --task=super --fractions=1 --save=super.safetensors \\
        --few_leads=lead_i.npz --few_leads=limb_leads.npz
    lvcg probe --embeddings=emb.npz --labels=ages.csv --target=age --save=age.safetensors
    lvcg probe --embeddings=new=new.npz --control=old=old.npz --judge=validation

--save keeps the classifier of all labels (seed 0) for `lvcg predict`, with a card beside it, and
with its attention over beats if that was better than the linear probe on validation; after
fine-tuning it is a run directory with the tuned weights and the file head.safetensors in it.
--few_leads adds a part for records with few leads to it.
--judge=validation is for choosing between models: the test split stays unread. The validation
patients are halved, each half judges a probe whose strength the other has chosen, and the two
scores are averaged. --judge=folds divides all training and validation patients into five folds,
each of which judges once: more patients judge, but it takes longer (probe/choosing.py).
--target predicts a number instead of classes (ridge regression, see probe/numbers.py).

Draws of label subsets: `guaranteed` takes whole patients, with a positive of every class; `plain`
takes records at random, as the literature does, and scores every class of the test split. One
without a positive in the subset is scored as the opposite of the commonest class: nothing is known
of it but that it is none of those that were seen.

Where a record has several windows, each is a row to learn from, and the record's score is the mean
over its windows. Without any split in the file patients are split 80/10/10 by a hash of their id.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from data_prep.base.command import (
    Parser,
    natural_int,
    positive_float,
    positive_int,
    run_command,
)
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from lvcg_jax.embed.table import align_features, load_table
from lvcg_jax.probe import choosing, heads, numbers
from lvcg_jax.probe.head_card import head_card, number_card
from lvcg_jax.probe.labels import DRAWS, ensure_splits, join_labels, task_of
from lvcg_jax.probe.study import PROTOCOLS, Predictions, evaluate, linear_fits, part_features
from lvcg_jax.runs.heads import check_ending
from lvcg_jax.stats.blocks import choose_rows
from lvcg_jax.text.flags import add_shared, named_path
from lvcg_jax.text.tables import format_results

# what a protocol reads, where that is not embeddings alone
WANTED = {"attention": ("embeddings", "data"), "finetune": ("checkpoint", "data")}


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("probe", __doc__)
    add = parser.add_argument
    add(
        "--embeddings",
        metavar="[NAME=]FILE",
        help="embeddings file, or folder of parts, to be judged (not for finetune)",
    )
    add(
        "--control",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="features to compare with; may be repeated",
    )
    add(
        "--labels",
        metavar="CSV",
        help="labels instead of the file's own: record_id (or patient_id), a column for each task,"
        " and split if wanted",
    )
    add_shared(parser, "task", "fractions", "seeds", "resamples")
    add("--target", metavar="COLUMN", help="a column of --labels with numbers to predict: no task")
    add("--protocol", default="ridge", choices=PROTOCOLS, help="see above (default ridge)")
    add(
        "--draw",
        choices=DRAWS,
        help="how label subsets are drawn (default guaranteed; plain for protocol release)",
    )
    add(
        "--judge",
        choices=("test", *choosing.JUDGES),
        default="test",
        help="the patients that judge: of the test split (default), halves of validation, or five"
        " folds of training and validation",
    )
    add("--parts", action="store_true", help="also probe each part of the embedding alone")
    add("--per_class", action="store_true", help="print the scores of every class too")
    add("--out", metavar="FILE", help="write everything, classes included, as JSON")
    add(
        "--predictions",
        metavar="CSV",
        help="write calibrated test probabilities by record (first model, most labels, seed 0)",
    )
    add(
        "--min_positives",
        type=positive_int,
        default=1,
        metavar="PATIENTS",
        help="macro scores leave out classes that fewer test patients have (default 1: none)",
    )
    add("--data", metavar="SHARDS", help="shards of lvcg build (attention, finetune)")
    head = parser.add_argument_group("a head for lvcg predict")
    head.add_argument(
        "--save",
        metavar="FILE",
        help="keep the classifier of one task in this .safetensors file (finetune: run directory)",
    )
    head.add_argument("--about", default="", metavar="TEXT", help="its data in words, for the card")
    head.add_argument(
        "--groups",
        metavar="CSV",
        help="record_id (or patient_id) and columns such as sex and age: scores by group",
    )
    head.add_argument(
        "--view",
        action="append",
        default=[],
        metavar="FILE",
        help="embeddings of the same records with fewer leads: what that costs; may be repeated",
    )
    head.add_argument(
        "--few_leads",
        action="append",
        default=[],
        metavar="FILE",
        help="embeddings of the same records with fewer leads: the head gets a part that learns"
        " from them and answers where leads are like these; may be repeated",
    )
    tuning = parser.add_argument_group("finetune")
    tuning.add_argument(
        "--checkpoint", metavar="RUN", help="run directory (or packaged weights) to start from"
    )
    tuning.add_argument(
        "--epochs",
        type=natural_int,
        default=10,
        help="passes over the training rows at most (default 10)",
    )
    tuning.add_argument(
        "--learning_rate",
        type=positive_float,
        default=1e-4,
        help="rate of the encoder (default 1e-4), head tenfold",
    )
    args = parser.parse_args(argv)
    given = {"embeddings": args.embeddings, "checkpoint": args.checkpoint, "data": args.data}
    wanted = WANTED.get(args.protocol, ("embeddings",))
    if {name for name, value in given.items() if value} != set(wanted):
        flags = " and ".join(f"--{name}" for name in wanted)
        raise InputError(
            f"--protocol={args.protocol} takes {flags}, and of these three flags no other"
        )
    if args.target is not None:
        _check_target(args)
    if args.judge != "test":
        _check_choosing(args)
    _check_save(args)
    return args


def _check_target(args: argparse.Namespace) -> None:
    """An InputError for flags that do not go with a number."""
    if args.labels is None:
        raise InputError(f"--target={args.target} needs --labels=CSV with a column of that name")
    if args.protocol != "ridge":
        raise InputError("--target takes the protocol ridge only")
    for name in ("view", "few_leads", "groups", "per_class", "draw"):
        if getattr(args, name):
            raise InputError(f"--{name} is for classes, not for --target")
    if args.task != "all":
        raise InputError("give --task or --target, not both")


def _check_choosing(args: argparse.Namespace) -> None:
    """An InputError for flags that need a test split."""
    if args.protocol != "ridge":
        raise InputError(f"--judge={args.judge} takes the protocol ridge only")
    for name in ("target", "save", "out", "predictions", "per_class", "draw"):
        if getattr(args, name):
            raise InputError(f"--{name} needs the test split: leave out --judge={args.judge}")


def _check_save(args: argparse.Namespace) -> None:
    """An InputError for what cannot be saved, before any work."""
    if args.save is None:
        for name in ("about", "groups", "view", "few_leads"):
            if getattr(args, name):
                raise InputError(f"--{name} is for the card of a head: give --save=FILE")
        return
    if args.protocol == "finetune":
        if Path(args.save).exists():
            raise InputError(f"--save={args.save} is there already: name a new run directory")
    else:
        check_ending(args.save)
    if args.view and args.protocol in WANTED:
        raise InputError(f"--view is for heads that read embeddings alone, not {args.protocol}")
    if args.few_leads and args.protocol == "finetune":
        raise InputError("--few_leads is for heads of frozen weights, not finetune")
    if args.target is None and (args.task == "all" or "," in args.task):
        raise InputError("--save keeps the classifier of one task: give --task=NAME")
    if 1.0 not in args.fractions:
        raise InputError("--save keeps the classifier of all labels: let --fractions contain 1")


def main(argv: list[str] | None = None) -> None:
    args = _parse(argv)
    command = shlex.join(["lvcg", "probe", *(sys.argv[1:] if argv is None else argv)])
    # the table to be judged, and the features of all models in its row order
    embedder = None
    if args.protocol == "finetune":
        from lvcg_jax.embed.dataset import embed_dataset
        from lvcg_jax.embed.lvcg import LVCG
        from lvcg_jax.probe.finetune import FineTune, save_tuned

        name, path = "linear probe", args.data
        embedder = LVCG.load(args.checkpoint)
        table = embed_dataset(embedder, args.data)
    else:
        name, path = named_path("--embeddings", args.embeddings, "embedding")
        table = load_table(path)
    features, parts = {name: table.embedding}, {name: table.part_sizes}
    inputs = {}  # of the attention probe
    if args.protocol == "attention":
        from lvcg_jax.probe.attention import AttentionFit, join_inputs, read_facts

        facts = read_facts(args.data, table)
        inputs[name] = table.beats = join_inputs(facts, table.embedding, table, table.keys)
    checkpoints = {name: table.metadata.get("checkpoint", "")}
    if args.parts:
        features |= part_features(table, name)
    for control in args.control:
        control_name, control_path = named_path("--control", control)
        if control_name in features:
            raise InputError(
                f"--control={control}: the name '{control_name}' is taken; give another"
            )
        other = load_table(control_path)
        features[control_name] = align_features(table, other, control_name)
        parts[control_name] = other.part_sizes
        if inputs and other.tokens is not None:
            inputs[control_name] = join_inputs(facts, features[control_name], other, table.keys)
        checkpoints[control_name] = other.metadata.get("checkpoint", "")
    if args.target is not None:
        table, _ = ensure_splits(table)
        return _probe_number(args, table, features, parts, command)
    # labels and splits
    notes = []
    if args.labels:
        table, notes = join_labels(table, args.labels)
    table, more = ensure_splits(table)
    tasks = list(table.tasks) if args.task == "all" else args.task.split(",")
    if not tasks:
        raise InputError(
            f"{path}: no record carries labels, so there is nothing to probe; give --labels=CSV"
        )
    if args.judge != "test":
        options = {"seeds": args.seeds, "resamples": args.resamples, "judge": args.judge}
        print(choosing.format_scores(table, features, parts, tasks, args.fractions, **options))
        return
    options = {"seeds": args.seeds, "resamples": args.resamples, "progress": True}
    draw = args.draw or ("plain" if args.protocol == "release" else "guaranteed")
    options |= {"protocol": args.protocol, "draw": draw, "min_positives": args.min_positives}
    predictions, results = Predictions(), []
    for task in progress_bar(tasks, unit="task", leave=False):
        found = task_of(table, task)
        linear = "ridge" if args.protocol in WANTED else args.protocol
        chosen = {n: choose_rows(x, found.rows) for n, x in features.items()}
        fits = linear_fits(chosen, len(found.rows), linear, parts=parts)
        if embedder:
            tuning = {"epochs": args.epochs, "learning_rate": args.learning_rate}
            fits = {
                "fine-tuned": [FineTune(embedder, args.data, table, found.rows, **tuning)]
            } | fits
        fits = {f"{n}, attention": [AttentionFit(x, found.rows)] for n, x in inputs.items()} | fits
        columns = (found.labels, found.patients, found.splits, args.fractions)
        first = next(iter(fits))
        hear = predictions.listener(task, first, max(args.fractions))
        kept = heads.Kept(first, fits[first][0])

        def on_run(*run, hear=hear, kept=kept):
            hear(*run)
            kept(*run)

        names = {"class_names": found.classes, "records": found.records}
        result = evaluate(fits, *columns, on_run=on_run, **names, **options)
        result["notes"] = [*notes, *more, *result["notes"]]
        results.append({"task": task} | result)
        if args.save:
            place, judged = Path(args.save), table
            if embedder:
                judged = save_tuned(embedder, kept.variables, place, args.data, table)
                place = place / "head.safetensors"
            _save_head(args, place, judged, found, kept, result, command)
    if args.predictions:
        predictions.save(args.predictions)
    if args.out:
        document = {
            "format": "lvcg-probe-2",
            "metadata": table.metadata,
            "checkpoints": checkpoints,
            "results": results,
        }
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    print(format_results(results, args.per_class))


def _save_head(args, place: Path, table, found, kept, result: dict, command: str) -> None:
    """Writes the head of a task with its card beside it; the table has the embeddings it reads."""
    head = heads.make_head(table, found, kept, result)
    measured = (args.about, args.view, args.groups, args.resamples, args.few_leads)
    head = heads.complete(head, table, found, *measured)
    head.save(place)
    write_whole(place.with_suffix(".md"), head_card(head, place, command))
    print(f"head of task {found.name}, {len(head.classes)} classes: {place}\n")


def _probe_number(args, table, features: dict, parts: dict, command: str) -> None:
    """All of --target."""
    found = numbers.read_numbers(table, args.labels, args.target)
    options = (args.fractions, args.seeds, args.resamples)
    result, learnt = numbers.probe_number(features, parts, found, *options)
    if args.out:
        document = {
            "format": "lvcg-probe-number-1",
            "metadata": table.metadata,
            "results": [result],
        }
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    if args.save or args.predictions:
        if not learnt:
            raise InputError("--save and --predictions need --fractions that contain 1: all labels")
        first = next(iter(features))
        head = numbers.number_head(table, found, learnt[first], result, args.about)
        if args.predictions:
            write_whole(args.predictions, numbers.predictions_csv(table, found, head))
        if args.save:
            place = Path(args.save)
            head.save(place)
            write_whole(place.with_suffix(".md"), number_card(head, place, command))
            print(f"head of the number {args.target}: {place}\n")
    print(numbers.format_number(result))


if __name__ == "__main__":
    run_command(main)
