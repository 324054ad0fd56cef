"""What a measurement needs of a config: records, typical batches, a fresh state, and the programs
that train and embed."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import Corpus, open_corpus
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from data_prep.synthetic_heart.records import write_corpus
from lvcg_jax.bench.plain_model import make_plain_model
from lvcg_jax.bench.records import RandomRecords
from lvcg_jax.bench.timing import Measured, Program, TrainProgram, take_turns
from lvcg_jax.config.build import make_model
from lvcg_jax.config.inputs import make_preprocess, make_subsets
from lvcg_jax.data.batches import BatchMaker, check_batch_size
from lvcg_jax.runs.state import TrainState, create_state, make_optimizer
from lvcg_jax.train.sharding import (
    batch_sharding,
    group_devices,
    make_mesh,
    replicated,
    state_sharding,
)
from lvcg_jax.train.steps import Watch, make_train_step

if TYPE_CHECKING:
    from lvcg_jax.bench.torch_programs import TorchBaseline

# what ours takes turns with: the plain modules, or PyTorch on padded or on valid beats
TORCH_BASELINES = ("torch", "torch_packed")
BASELINES = ("jax", *TORCH_BASELINES)
DRAWN_BATCHES = 101
PEAK_PRODUCTS = 4  # matrix products of one timed call


class Drawn(NamedTuple):
    """Record numbers of some batches, and the slots of a group where training sets them."""

    maker: BatchMaker
    numbers: list[np.ndarray]
    slots: int | None

    def padding(self, numbers: np.ndarray) -> float:
        """The share of a batch's encoder slots that no beat fills."""
        maker = self.maker
        counts = maker.shards.counts[numbers].reshape(maker.accumulate, maker.groups, -1)
        slots = self.slots or maker.capacity(counts)
        return 1.0 - counts.sum() / (slots * maker.accumulate * maker.groups)

    def typical(self) -> dict[str, np.ndarray]:
        """The batch with the median padding, arrays [a,g,...]."""
        ordered = sorted(self.numbers, key=self.padding)
        return self.maker(ordered[len(ordered) // 2], self.slots)


class Bench:
    """What the parts share: config, data, batches, a fresh state, and the peak of this machine."""

    def __init__(
        self,
        config,
        folder: Path,
        *,
        data: str | None = None,
        repeats: int = 5,
        records: int = 400,
        baseline: str | None = None,
        profile: str | None = None,
        sizes: Sequence[int] = (1024,),
        cache: str | None = None,
    ):
        self.config, self.data, self.folder = config, data, folder
        self.repeats, self.records, self.sizes = repeats, records, sizes
        self.baseline, self.profile = baseline, profile
        self.cache = Path(cache) if cache else folder / "packed"
        self.mesh = make_mesh(config)
        self.groups, self.batch_size = self.mesh.shape["data"], config.data.batch_size
        self.devices = group_devices(self.mesh)
        check_batch_size(self.batch_size, config.optim.accumulate, self.groups * self.devices)

        # records: real ones, whose preprocessing then is the config's, or made-up ones
        if self.data:
            self.shards = ShardSet(self.data, "train")
            found, wanted = self.shards.preprocess.beat_samples, config.preprocess.beat_samples
            if found != wanted:
                raise InputError(
                    f"{self.data} has beats of {found} samples, the config wants {wanted}"
                )
            config.preprocess.update(self.shards.preprocess.to_dict())
        else:
            self.shards = RandomRecords(make_preprocess(config))
        self.max_beats = config.preprocess.max_beats
        self.models = {"ours": make_model(config)}
        self.signal = self.models["ours"].signal_samples
        if self.data and self.signal:
            self.shards.require_signal()
        if self.baseline == "jax":
            self.models["baseline"] = make_plain_model(config)

    def maker(self, accumulate: int) -> BatchMaker:
        groups = (self.groups, range(self.groups))
        pack = self.config.data.pack
        return BatchMaker(self.shards, accumulate, *groups, pack, self.signal, self.devices)

    def drawn(self, part: str) -> Drawn:
        """Batches as training makes them; to embed, of records drawn at random."""
        maker = self.maker(self.config.optim.accumulate if part == "train" else 1)
        if part == "train":
            order = maker.order(self.batch_size, 0)
            numbers = [order[step] for step in range(DRAWN_BATCHES)]
            return Drawn(maker, numbers, maker.training_slots(order))
        rng = np.random.default_rng(0)
        return Drawn(
            maker,
            [rng.integers(len(self.shards), size=self.batch_size) for _ in range(DRAWN_BATCHES)],
            None,
        )

    def _init(self, seed: int) -> TrainState:
        maker = BatchMaker(self.shards, 1, 1, [0], True, self.signal)
        batch = {name: x[0] for name, x in maker(np.zeros(1, int)).items()}
        return create_state(
            self.config,
            self.models["ours"],
            make_optimizer(self.config),
            batch,
            self.max_beats,
            seed,
        )

    @cached_property
    def abstract(self) -> TrainState:
        """Shapes and types of a train state."""
        return jax.eval_shape(self._init, 0)

    @cached_property
    def shardings(self):
        """Where the arrays of the state live."""
        return state_sharding(self.mesh, self.abstract, self.config)

    @cached_property
    def state(self) -> TrainState:
        """A fresh train state, of either model: they share their parameters."""
        return jax.jit(self._init, out_shardings=self.shardings)(0)

    @property
    def variables(self) -> dict:
        """What the state embeds with."""
        return {"params": self.state.params, "batch_stats": self.state.batch_stats}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models that take turns."""
        return ("ours", "baseline") if self.baseline else ("ours",)

    @cached_property
    def torch(self) -> "TorchBaseline":
        """The model in PyTorch, with the variables of the state."""
        from lvcg_jax.bench.torch_programs import TorchBaseline

        return TorchBaseline(self.config, self.variables, self.baseline == "torch_packed")

    def runs_torch(self, name: str) -> bool:
        """Whether the model of this name is the one in PyTorch."""
        return name == "baseline" and self.baseline in TORCH_BASELINES

    @cached_property
    def peak(self) -> dict[str, float]:
        """The highest GFLOP/s of a matrix product of each size, in the model's compute type and
        with rows spread over the devices."""
        seconds = take_turns({str(n): self.product(n) for n in self.sizes}, max(self.repeats, 5))
        return {n: self.product_gflop(int(n)) / min(times) for n, times in seconds.items()}

    def product(self, n: int) -> Callable[[], list[jax.Array]]:
        """A call that multiplies matrices of this size, PEAK_PRODUCTS times."""
        dtype, multiply = jnp.dtype(self.config.model.dtype), jax.jit(jnp.matmul)
        rows = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
        a = jax.device_put(jnp.ones((n * self.mesh.size, n), dtype), rows)
        b = jax.device_put(jnp.ones((n, n), dtype), replicated(self.mesh))
        return lambda: [multiply(a, b) for _ in range(PEAK_PRODUCTS)]

    def product_gflop(self, n: int) -> float:
        return 2e-9 * n**3 * self.mesh.size * PEAK_PRODUCTS

    @cached_property
    def synthetic_corpus(self) -> Corpus:
        """Synthetic WFDB records at 100 Hz, in a folder that goes away at the end."""
        write_corpus(
            self.folder / "raw", patients=-(-self.records // 5), records_per_patient=5, rate=100
        )
        return open_corpus("synthetic", self.folder / "raw")

    @cached_property
    def synthetic_shards(self) -> Path:
        """The synthetic records as shards."""
        build(
            self.synthetic_corpus,
            self.folder / "data",
            make_preprocess(self.config),
            progress=False,
            store_signal=self.signal > 0,
        )
        return self.folder / "data"


def train_call(bench: Bench, batch: dict[str, np.ndarray], state, name: str = "ours") -> tuple:
    """A training step of one of the models, and its arguments: a state with a watch, and a batch
    [a,g,...]."""
    tx, subsets = make_optimizer(bench.config), make_subsets(bench.config)
    given = bench.config, subsets, bench.max_beats, bench.mesh, bench.shardings
    step = make_train_step(bench.models[name], tx, *given)
    watch = jax.device_put(Watch.new(batch["num_beats"].shape), replicated(bench.mesh))
    return step, (state, watch), jax.device_put(batch, batch_sharding(bench.mesh))


def train_program(bench: Bench, batch: dict[str, np.ndarray], name: str = "ours") -> Measured:
    """A training step of one of the models, compiled if it can be, from a fresh state."""
    if bench.runs_torch(name):
        return bench.torch.train_program(batch)
    return TrainProgram(*train_call(bench, batch, jax.tree.map(jnp.copy, bench.state), name))


def embed_call(bench: Bench, model, variables, batch: dict[str, np.ndarray]) -> tuple:
    """The embedding of a batch [g,...] by a model, and its arguments."""

    def embed(variables, batch):
        return model.apply(variables, batch, batch["lead_mask"], bench.max_beats, method="embed")

    placed = jax.device_put(batch, batch_sharding(bench.mesh, leading=0))
    return jax.jit(embed), variables, placed


def embed_program(bench: Bench, batch: dict[str, np.ndarray], name: str = "ours") -> Measured:
    """The embedding of a batch [g,...] by one of the models, compiled if it can be."""
    if bench.runs_torch(name):
        return bench.torch.embed_program(batch)
    return Program(*embed_call(bench, bench.models[name], bench.variables, batch))
