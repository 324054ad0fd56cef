"""What a finished model says of each record of a data set, for another model to learn from.

The teacher's embeddings of whole records, with all leads, are reduced to the leading principal
components of the training records. They are computed once for a run and kept in its directory.
Axis letters: b record, d number of an embedding, k component.
"""

from functools import partial
from pathlib import Path

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import require_local, whole_file
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from lvcg_jax.config.build import make_model
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.data.batches import BatchMaker, ordered_batches
from lvcg_jax.data.mixture import Mixture
from lvcg_jax.model.network import PARTS
from lvcg_jax.runs.trained import Trained, load_trained
from lvcg_jax.runs.weights import weights_hash
from lvcg_jax.stats.scaling import mean_and_scale

NAME = "targets.npz"  # in the run directory
RECORDS = 64  # of a batch


class Targets:
    """The targets of a run, as they are kept: float16 [b,k] of the training and of the validation
    records, in the order of their shards."""

    def __init__(self, workdir: Path):
        with np.load(workdir / NAME) as kept:
            self.train, self.validation = kept["train"], kept["validation"]


def keep_targets(
    workdir: Path,
    checkpoint: str,
    count: int,
    train: ShardSet | Mixture,
    validation: ShardSet | None,
) -> None:
    """Writes `count` targets of all records into the run directory, unless they are there."""
    require_local(workdir)
    teacher = load_trained(checkpoint)
    theirs = make_preprocess(teacher.config)
    if theirs.hash() != train.preprocess.hash():
        raise InputError(
            f"peer.teacher={checkpoint} was trained with another preprocessing ({theirs.hash()},"
            f" the shards have {train.preprocess.hash()})"
        )
    name = f"{teacher.name}#{weights_hash(teacher.variables)}"
    if (workdir / NAME).exists():
        with np.load(workdir / NAME) as kept:
            if str(kept["teacher"]) == name and kept["train"].shape == (len(train), count):
                return
    said = [embed_records(teacher, shards) for shards in (train, validation) if shards is not None]
    shift, scale = mean_and_scale(said[0])
    said = [(x - shift) / scale for x in said]
    power, axes = np.linalg.eigh(said[0].T.astype(np.float64) @ said[0] / len(said[0]))
    if count > len(power):
        raise InputError(f"peer.targets={count}: {name} says {len(power)} numbers of a record")
    # the components keep their share of the power, on average 1
    axes = axes[:, ::-1][:, :count] / np.sqrt(power[::-1][:count].mean())
    targets = [(x @ axes).astype(np.float16) for x in said]
    arrays = dict(zip(("train", "validation"), [*targets, targets[0][:0]], strict=False))
    with whole_file(workdir / NAME) as path, open(path, "wb") as file:
        np.savez(file, teacher=name, **arrays)


def embed_records(teacher: Trained, shards: ShardSet | Mixture) -> np.ndarray:
    """The embeddings [b,d] of all records, with all leads that they have."""
    model, max_beats = make_model(teacher.config), shards.preprocess.max_beats
    names = [part for part in PARTS if part in model.part_sizes]
    embed = jax.jit(partial(model.apply, teacher.variables, max_beats=max_beats, method="embed"))
    maker, found = BatchMaker(shards, 1, 1, [0], pack=True, signal=model.signal_samples), []
    with progress_bar(total=len(shards), unit="rec", desc=f"what {teacher.name} says") as bar:
        for batch in ordered_batches(maker, RECORDS):
            batch = {name: x[0] for name, x in batch.items()}
            parts = jax.device_get(embed(batch, batch["lead_mask"]))
            there = batch["num_beats"][0] > 0
            found.append(np.concatenate([parts[name][0][there] for name in names], axis=-1))
            bar.update(int(there.sum()))
    return np.concatenate(found)
