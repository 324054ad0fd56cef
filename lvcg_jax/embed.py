"""Embeddings of shards or of single records.

    python -m lvcg_jax.embed --checkpoint=RUN --data=SHARDS --out=embeddings.npz

The npz holds, for each record: record_id, patient_id, split, labels (JSON, by name), num_beats, lead_mask, and the
embedding [m,640] = [structure; dynamics; rhythm] with the names and sizes of its parts.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from data_prep.errors import InputError, run_command
from data_prep.leads import LEADS
from data_prep.progress import progress_bar
from data_prep.shards import ShardSet, read_metadata, uid_of
from lvcg_jax.checkpoint import Checkpoints
from lvcg_jax.config import load_config, make_model, make_preprocess, make_subsets
from lvcg_jax.data import BatchMaker, ordered_batches, train_batches
from lvcg_jax.model import PARTS
from lvcg_jax.state import create_state, make_optimizer
from lvcg_jax.table import Table, example_table, save_table
from lvcg_jax.views import draw_views

CALIBRATION_BATCHES = 60  # batches that set the norm statistics of random weights


class Embedder:
    """A model with its weights, ready to embed; `preprocess` is the chain it was trained with."""

    def __init__(self, config: ConfigDict, variables, checkpoint: str):
        self.config, self.variables, self.checkpoint = config, variables, checkpoint
        self.model, self.preprocess = make_model(config), make_preprocess(config)
        self.max_beats = self.preprocess.max_beats
        self._apply = jax.jit(
            lambda variables, batch, visible, max_beats: self.model.apply(
                variables, batch, visible, max_beats, method="embed"
            ),
            static_argnums=3,
        )

    @classmethod
    def load(cls, run: str | Path, which: str = "best") -> "Embedder":
        """The weights of a run directory: the best by validation loss, or the latest."""
        run = Path(run)
        if not run.is_dir():
            raise InputError(f"no run directory {run}: give the --workdir of a training run")
        config = load_config(run / "config.json")
        abstract = jax.eval_shape(partial(fresh_state, config), 0)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), abstract)
        checkpoints = Checkpoints(run)
        state, step = checkpoints.restore_for_use(placed, which)
        checkpoints.close()
        return cls(config, {"params": state.eval_params, "batch_stats": state.batch_stats}, f"{run.name}@{step}")

    @classmethod
    def random(cls, config: ConfigDict, seed: int, shards: ShardSet) -> "Embedder":
        """Random weights, the control: as initialised, with norm statistics measured on training data."""
        state = jax.jit(partial(fresh_state, config))(seed)
        model, subsets = make_model(config), make_subsets(config)
        max_beats = shards.preprocess.max_beats

        @jax.jit
        def calibrate(batch_stats, batch, key):
            batch = jax.tree.map(lambda x: x[0], batch)
            visible = draw_views(key, batch["uid"], batch["lead_mask"], subsets, config.geometry.num_visible)
            variables = {"params": state.params, "batch_stats": batch_stats}
            return model.apply(variables, batch, visible, key, max_beats, mutable=["batch_stats"])[1]["batch_stats"]

        batch_stats = state.batch_stats
        if batch_stats:
            batches = train_batches(BatchMaker(shards, 1, 1, [0], False), config.data.batch_size, seed, 1)
            for step in range(CALIBRATION_BATCHES):
                batch_stats = calibrate(batch_stats, next(batches), jax.random.key(step))
        return cls(config, {"params": state.params, "batch_stats": batch_stats}, f"random weights, seed {seed}")

    def embed_batch(self, batch: dict[str, np.ndarray], visible: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """A batch in the layout of model.py -> the parts [g,r,.], tokens [g,r,n,d] and their mask."""
        visible = batch["lead_mask"] if visible is None else visible
        return jax.device_get(self._apply(self.variables, batch, visible, self.max_beats))

    def embed_shards(
        self, shards: ShardSet, batch_size: int = 64, done: Callable[[int], object] = lambda records: None
    ) -> dict[str, np.ndarray]:
        """Every example of a split: the parts, each [m,.], in shard order; `done` hears of every finished batch."""
        shards.require_preprocess(self.preprocess)
        batches = ordered_batches(BatchMaker(shards, 1, 1, [0], True), batch_size)
        parts = {name: [] for name in PARTS}
        for batch in batches:
            outputs = self.embed_batch({name: x[0] for name, x in batch.items()})
            valid = batch["num_beats"][0, 0] > 0
            for name in PARTS:
                parts[name].append(outputs[name][0][valid])
            done(int(valid.sum()))
        return {name: np.concatenate(values) for name, values in parts.items()}

    def embed_record(self, signal: np.ndarray, rate: float, leads: Sequence[str]) -> dict[str, np.ndarray]:
        """A raw record in mV [T,c] with its lead names -> the parts, each [w,.], one row a window."""
        rows = []
        for window in self.preprocess.prepare(signal, rate, leads):
            uid = uid_of("record", window.window)
            batch = record_batch(window.beats, window.length, window.complete, window.lead_mask, uid, self.max_beats)
            outputs = self.embed_batch(batch)
            rows.append({name: outputs[name][0, 0] for name in PARTS})
        return {name: np.stack([row[name] for row in rows]) for name in PARTS}


def record_batch(beats, length, complete, lead_mask: int, uid: int, capacity: int) -> dict[str, np.ndarray]:
    """One record's beats [n,l,p] as a batch with `capacity` slots, so that any beat count shares one compilation."""

    def slots(x: np.ndarray, dtype) -> np.ndarray:
        padded = np.zeros((1, capacity, *x.shape[1:]), dtype)
        padded[0, : len(x)] = x
        return padded

    return {
        "beats": slots(beats, np.float16),
        "length": slots(length, np.int32),
        "complete": slots(complete, bool),
        "num_beats": np.array([[len(length)]], np.int32),
        "lead_mask": np.array([[lead_mask]], np.int32),
        "uid": np.array([[uid]], np.uint32),
    }


def fresh_state(config: ConfigDict, seed):
    """A train state as initialised from a seed, on a batch of one empty record."""
    preprocess = make_preprocess(config)
    beats = np.zeros((2, len(LEADS), preprocess.beat_samples))
    batch = record_batch(beats, np.ones(2), np.ones(2), lead_mask=2 ** len(LEADS) - 1, uid=0, capacity=2)
    return create_state(config, make_model(config), make_optimizer(config), batch, preprocess.max_beats, seed)


def embed_dataset(embedder: Embedder, data: str | Path, batch_size: int = 64, progress: bool = True) -> Table:
    """The embedding table of all splits of a data set."""
    metadata = read_metadata(data)
    embedding, examples, splits = [], [], []
    total = sum(split["examples"] for split in metadata["splits"].values())
    with progress_bar(total=total, unit="rec", disable=not progress) as bar:
        for split in metadata["splits"]:
            shards = ShardSet(data, split)
            embedding.append(join_parts(embedder.embed_shards(shards, batch_size, bar.update)))
            examples += shards.read(range(len(shards)))
            splits += [split] * len(shards)
    sizes = (embedder.model.token_dim, embedder.model.state_dim, embedder.model.rhythm_dim)
    table = example_table(examples, splits, np.concatenate(embedding), metadata)
    table.parts = dict(zip(PARTS, sizes, strict=True))
    table.metadata["checkpoint"] = embedder.checkpoint
    return table


def join_parts(parts: dict[str, np.ndarray]) -> np.ndarray:
    """[structure; dynamics; rhythm]: the embedding of the paper."""
    return np.concatenate([parts[name] for name in PARTS], axis=-1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lvcg_jax.embed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True, help="run directory of lvcg_jax.train")
    parser.add_argument("--data", required=True, help="shards of data_prep.build")
    parser.add_argument("--out", required=True, help="npz file to write")
    parser.add_argument("--which", choices=("best", "latest"), default="best", help="which checkpoint of the run")
    parser.add_argument(
        "--random_weights", type=int, metavar="SEED", help="the control: the run's model with random weights"
    )
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args(argv)
    if not args.out.endswith(".npz"):
        raise InputError(f"--out={args.out} must end in .npz")
    read_metadata(args.data)
    if args.random_weights is None:
        embedder = Embedder.load(args.checkpoint, args.which)
    else:
        config = load_config(Path(args.checkpoint) / "config.json")
        embedder = Embedder.random(config, args.random_weights, ShardSet(args.data, "train"))
    table = embed_dataset(embedder, args.data, args.batch_size)
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    save_table(args.out, table)
    parts = " + ".join(f"{name} {size}" for name, size in table.parts.items())
    numbers = f"{len(table.record_id)} embeddings of {table.embedding.shape[1]} numbers ({parts})"
    print(f"{numbers} from {embedder.checkpoint}: {args.out}")
    return 0


if __name__ == "__main__":
    run_command(main)
