"""Can one tell from a model whether it was trained on a patient? A membership test.

    lvcg membership --checkpoint=best --data=SHARDS [--records=1000]

Two ways to ask, each on as many records of the training split as of the test split, one a patient:

loss        the training loss of a record, a mean over a few choices of visible leads: is it lower
            for those that the model was trained on?
embedding   a logistic regression on embeddings, which learns membership from other patients (five
            folds): the strongest of the two, as it knows four fifths of the answers

AUROC of "was trained on": 50 is chance, 100 is certain. Splits may differ in themselves, as records
of PTB-XL's fold 9 were checked more often than others. So the same is asked of the same model with
random weights, which has only means and fitted parts from training records, and of the validation
split against the test split, which the weights were not trained on. No label is read.

Axis letters: m record, g group, r row of a batch.
"""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from ml_collections import FrozenConfigDict
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.data.entries import draw_patients
from lvcg_jax.data.packing import pack, read_ahead
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.model.views import draw_views
from lvcg_jax.runs import weights
from lvcg_jax.stats.auroc import auroc, bootstrap_ranks
from lvcg_jax.stats.bootstrap import PatientBootstrap, class_intervals
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.tables import markdown_table, points

PAIRS = {"trained on, held out": ("train", "test"), "neither": ("validation", "test")}
VIEWS = 2  # choices of visible leads that a loss is averaged over
SLOTS, ROWS = 512, 64  # beats and records of a batch
STRENGTH = 1e-3  # of the regression's ridge, 1 / C


def draw_records(data: str, split: str, limit: int) -> list[dict]:
    """Windows of a split, from as many patients as there can be, in memory."""
    shards = ShardSet(data, split)
    patients = [example["patient_id"] for example in shard_windows(shards)]
    return list(shard_windows(shards, numbers=draw_patients(patients, limit)))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def batch_losses(network, max_beats: int, number: int, loss, variables, batch, subsets, view):
    """The training loss of every record of a batch [g,r], with `number` leads visible."""
    key = jax.random.fold_in(jax.random.key(0), view)
    visible = draw_views(key, batch["uid"], batch["lead_mask"], subsets, number)
    outputs = network.apply(variables, batch, visible, None, max_beats)
    return network.loss_terms(outputs, batch, visible, loss)["loss"]


def losses(model: LVCG, windows: list[dict], done: Callable[[int], object]) -> np.ndarray:
    """The training loss of each record [m], a mean over VIEWS choices of visible leads."""
    number, loss = model.config.geometry.num_visible, FrozenConfigDict(model.config.loss)
    subsets, fixed = make_subsets(model.config), (model.model, model.max_beats, number, loss)
    found = []
    for some, batch in read_ahead(pack(windows, SLOTS, ROWS)):
        batch.pop("visible")
        terms = [batch_losses(*fixed, model.variables, batch, subsets, v) for v in range(VIEWS)]
        found.append(np.mean(jax.device_get(terms), axis=0)[0, : len(some)])
        done(len(some))
    return np.concatenate(found)


def attack(x: np.ndarray, member: np.ndarray) -> np.ndarray:
    """How much each row [m,d] looks like a member, learned from the other rows."""
    fit = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=2000))
    # as many members in every fold: else a fold's intercept would know of those that are left out
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return cross_val_predict(fit, x, member, cv=folds, method="decision_function")


def measure(member: np.ndarray, scores: np.ndarray, patients: list[str], resamples: int) -> dict:
    """AUROC of scores [m] with its interval."""
    bootstrap, labels = PatientBootstrap(patients, resamples), member[:, None]
    resampled, _ = bootstrap_ranks(labels, scores[:, None], bootstrap)
    value = auroc(member, scores)
    _, (low, high) = class_intervals(np.array([value]), resampled, bootstrap.carriers(labels))
    return {"auroc": value, "low": float(low), "high": float(high)}


def main(argv: list[str] | None = None) -> int:
    parser = Parser("membership", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add_shared(parser, "data")
    add("--records", type=positive_int, default=1000, help="of each split (default 1000)")
    add_shared(parser, "resamples")
    args = parser.parse_args(argv)
    needed = {split for pair in PAIRS.values() for split in pair}
    missing = sorted(needed - read_metadata(args.data)["splits"].keys())
    if missing:
        raise InputError(f"--data={args.data} has no split {missing[0]}: nothing to compare with")

    # the models, and the records
    model = LVCG.load(weights.choose(args.checkpoint))
    model.require_heart_vector("a membership test")
    train = ShardSet(args.data, "train")
    train.require_preprocess(model.preprocess)
    models = {model.checkpoint: model, "random weights": LVCG.random(model.config, 0, train)}
    records = {split: draw_records(args.data, split, args.records) for split in sorted(needed)}
    patients = {s: [window["patient_id"] for window in found] for s, found in records.items()}
    total = len(models) * sum(map(len, records.values()))

    # what every model says of every record, and how well that tells members from others
    rows = []
    with progress_bar(total=total, unit="rec") as bar:
        for name, one in models.items():
            loss = {split: losses(one, found, bar.update) for split, found in records.items()}
            x = {s: join_parts(one.embed_windows(found)[1]) for s, found in records.items()}
            for pair, (first, second) in PAIRS.items():
                member = np.repeat([True, False], [len(records[first]), len(records[second])])
                scores = {
                    "loss": -np.concatenate([loss[first], loss[second]]),
                    "embedding": attack(np.concatenate([x[first], x[second]]), member),
                }
                for way, values in scores.items():
                    both = patients[first] + patients[second]
                    found = measure(member, values, both, args.resamples)
                    rows.append([name, f"{pair}: {first}, {second}", way, points(*found.values())])
    print(f"{', '.join(f'{s} {len(found)}' for s, found in records.items())} records;", end=" ")
    print("AUROC x 100 of 'was trained on' [95% bootstrap over patients]\n")
    print("\n".join(markdown_table(["model", "splits", "from", "AUROC"], rows)))
    return 0


if __name__ == "__main__":
    run_command(main)
