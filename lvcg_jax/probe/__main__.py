"""Linear probe of frozen features: how much of a label can one linear layer read out of an
embedding?

Every model is probed on the same rows with the same label subsets, and reported as test macro AUROC
(mean over seeds) with a 95% bootstrap interval over patients, as AUPRC, and as F1 at thresholds
chosen on the validation split. Protocols:

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

Draws of label subsets: `guaranteed` takes whole patients, with a positive of every class; `plain`
takes records at random, as the literature does, and scores every class of the test split, one that
a subset cannot teach as a constant (AUROC 0.5).

Where a record has several windows, each is a row to learn from, and the record's score is the mean
over its windows. Without any split in the file patients are split 80/10/10 by a hash of their id.
"""

import argparse
import json
from pathlib import Path

from data_prep.base.command import Parser, natural_int, positive_float, run_command
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from lvcg_jax.embed.table import align_features, load_table
from lvcg_jax.probe.labels import DRAWS, ensure_splits, join_labels, task_of
from lvcg_jax.probe.study import PROTOCOLS, Predictions, evaluate, linear_fits, part_features
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
        help="embeddings file to be judged (not for finetune)",
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
    add("--protocol", default="ridge", choices=PROTOCOLS, help="see above (default ridge)")
    add(
        "--draw",
        choices=DRAWS,
        help="how label subsets are drawn (default guaranteed; plain for protocol release)",
    )
    add("--parts", action="store_true", help="also probe each part of the embedding alone")
    add("--per_class", action="store_true", help="print the scores of every class too")
    add("--out", metavar="FILE", help="write everything, classes included, as JSON")
    add(
        "--predictions",
        metavar="CSV",
        help="write test probabilities by record (first model, most labels, seed 0)",
    )
    add("--data", metavar="SHARDS", help="shards of lvcg build (attention, finetune)")
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
    return args


def main(argv: list[str] | None = None) -> None:
    args = _parse(argv)
    # the table to be judged, and the features of all models in its row order
    embedder = None
    if args.protocol == "finetune":
        from lvcg_jax.embed.dataset import embed_dataset
        from lvcg_jax.embed.lvcg import LVCG
        from lvcg_jax.probe.finetune import FineTune

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
        inputs[name] = join_inputs(facts, table.embedding, table, table.keys)
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
    options = {"seeds": args.seeds, "resamples": args.resamples, "progress": True}
    draw = args.draw or ("plain" if args.protocol == "release" else "guaranteed")
    options |= {"protocol": args.protocol, "draw": draw}
    predictions, results = Predictions(), []
    for task in progress_bar(tasks, unit="task", leave=False):
        found = task_of(table, task)
        linear = "ridge" if args.protocol in WANTED else args.protocol
        chosen = {n: x[found.rows] for n, x in features.items()}
        fits = linear_fits(chosen, len(found.rows), linear, parts=parts)
        if embedder:
            tuning = {"epochs": args.epochs, "learning_rate": args.learning_rate}
            fits = {
                "fine-tuned": [FineTune(embedder, args.data, table, found.rows, **tuning)]
            } | fits
        fits = {f"{n}, attention": [AttentionFit(x, found.rows)] for n, x in inputs.items()} | fits
        columns = (found.labels, found.patients, found.splits, args.fractions)
        hear = predictions.listener(task, next(iter(fits)), max(args.fractions))
        names = {"class_names": found.classes, "records": found.records}
        result = evaluate(fits, *columns, on_scores=hear, **names, **options)
        result["notes"] = [*notes, *more, *result["notes"]]
        results.append({"task": task} | result)
    if args.predictions:
        predictions.save(args.predictions)
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        document = {
            "format": "lvcg-probe-2",
            "metadata": table.metadata,
            "checkpoints": checkpoints,
            "results": results,
        }
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n")
    print(format_results(results, args.per_class))


if __name__ == "__main__":
    run_command(main)
