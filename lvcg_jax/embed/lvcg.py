"""A trained model for use: embeddings, beat tokens and heart vector of any ECG.

    from lvcg_jax import LVCG

    model = LVCG.load("runs/paper")  # a run directory, or the name of packaged weights such as "paper"
    e = model.embed(signal, fs=500, leads=["I", "II", "V2"])  # [samples, leads] in mV
    e.embedding, e.mean, e.parts["rhythm"], e.rank, e.defects

Axis letters: w window of a record, m row, g group, r record, n beat, d feature.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.dataset.look import r_peaks
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix, lift_matrix, subset_facts
from data_prep.ecg.leads import mask_leads, parse_leads
from lvcg_jax.config.build import make_model, make_preprocess, make_subsets
from lvcg_jax.data.packing import pack, read_ahead, silent_batch
from lvcg_jax.data.windows import (
    Failure,
    corpus_windows,
    lead_names,
    show_only,
    signal_corpus,
)
from lvcg_jax.embed.table import beat_weighted_mean
from lvcg_jax.model.network import PARTS, Network
from lvcg_jax.model.views import draw_views
from lvcg_jax.runs.trained import load_trained
from lvcg_jax.runs.weights import weights_hash

SLOTS, ROWS = 1024, 128  # beats and records of every batch of a data set
# windows of the small batches that a user's own signals are computed in, max_beats slots each
FEW_ROWS = (1, 8)
CALIBRATION_BATCHES = 60  # batches that set the norm statistics of random weights


@dataclass(frozen=True)
class Embedding:
    """The embedding of one record, a row for each of its windows of (at most) ten seconds."""

    embedding: np.ndarray  # float32 [w,d] = [structure; dynamics; rhythm]
    parts: dict[str, np.ndarray]  # the three by name, [w,.] each
    num_beats: np.ndarray  # [w]
    visible: list[list[str]]  # leads that the model saw
    # [w] dimensions that these leads span: under 3 the heart vector is not all there
    rank: np.ndarray
    condition: np.ndarray  # [w] of their directions; inf if rank < 3
    gain: np.ndarray  # [w] how much the lift amplifies at most
    defects: list[list[str]]  # what was found wrong, in the words of data_prep.ecg.quality
    start_seconds: np.ndarray  # [w] where the window starts in the record

    @property
    def mean(self) -> np.ndarray:
        """One vector [d] for the record: its windows weighted by their number of beats."""
        return beat_weighted_mean(self.embedding, self.num_beats)


@dataclass(frozen=True)
class Beats:
    """The beats of one window, with a token each. Samples count from the start of the window."""

    tokens: np.ndarray  # float32 [n,d]
    start: np.ndarray  # [n] first sample
    length: np.ndarray  # [n] samples
    complete: np.ndarray  # [n] from R peak to R peak
    rate: float  # Hz
    start_seconds: float  # of the window in the record


@dataclass(frozen=True)
class HeartVector:
    """The heart vector of one window, lifted from the visible leads of the normalised signal, as
    the model sees it."""

    vcg: np.ndarray  # float32 [3,T], x to the left, y down, z to the front in the paper's geometry
    r_peaks: np.ndarray  # [k] samples
    rate: float  # Hz
    start_seconds: float  # of the window in the record
    rank: int  # dimensions that the visible leads span


class LVCG:
    """A model with its weights, and the preprocessing that it was trained with."""

    def __init__(self, config: ConfigDict, variables, name: str, facts: dict | None = None):
        self.config, self.variables = config, variables
        self.facts = facts or {}  # what is known of packaged weights, see weights.py
        self.model, self.preprocess = make_model(config), make_preprocess(config)
        self.max_beats = self.preprocess.max_beats
        self.checkpoint = f"{name}#{weights_hash(variables)}"

    @classmethod
    def load(cls, checkpoint: str | Path, which: str = "lowest") -> "LVCG":
        """The weights of a run directory (of lowest validation loss, or the latest), or packaged
        ones by name."""
        found = load_trained(checkpoint, which)
        return cls(found.config, found.variables, found.name, found.facts)

    @classmethod
    def random(cls, config: ConfigDict, seed: int, shards: ShardSet | None) -> "LVCG":
        """Random weights, the control: as initialised; with shards, norm statistics are measured on
        them."""
        from lvcg_jax.data.batches import BatchMaker, train_batches

        model, subsets = make_model(config), make_subsets(config)
        variables = _initialise(model, config.preprocess.max_beats, seed)
        params, batch_stats = variables["params"], variables.get("batch_stats", {})
        if batch_stats and shards is not None:
            maker = BatchMaker(shards, 1, 1, [0], True)
            batches = train_batches(maker, maker.order(config.data.batch_size, seed), prefetch=1)
            sizes = (config.geometry.num_visible, shards.preprocess.max_beats)
            for step in range(CALIBRATION_BATCHES):
                batch = {name: x[0] for name, x in next(batches).items()}
                batch_stats = _calibrate(
                    model, *sizes, params, batch_stats, batch, subsets, jax.random.key(step)
                )
        return cls(config, {"params": params, "batch_stats": batch_stats}, f"random@seed{seed}")

    @property
    def part_sizes(self) -> dict[str, int]:
        """Names and sizes of the parts of the embedding, in order."""
        return self.model.part_sizes

    @property
    def directions(self) -> np.ndarray:
        """Lead directions [12,3]: those of the config, or as learned."""
        learned = self.variables["params"].get("directions")
        return (
            lead_matrix(self.model.geometry.matrix)
            if learned is None
            else np.asarray(learned, np.float64)
        )

    def embed(
        self, signal, fs, leads, unit: str = "mV", visible: Sequence[str] | None = None
    ) -> Embedding | list[Embedding]:
        """The Embedding of a record [samples, leads] at any rate, with its lead names in any order
        and case.

        A list of records gives a list; `fs` and `leads` are then those of all, or a list with one
        for each. `visible` hides all leads but these from the model; beats are still found with all
        leads, as in shards.
        """
        if not (isinstance(signal, list | tuple) and len(signal) and np.ndim(signal[0]) == 2):
            windows = self._windows(signal, fs, leads, unit, visible)
            return self._embedding(*self.embed_windows(windows, *self._few(windows)))
        count = len(signal)
        rates = fs if np.ndim(fs) else [fs] * count
        names = (
            leads
            if not isinstance(leads, str) and not isinstance(leads[0], str)
            else [leads] * count
        )
        if len(rates) != count or len(names) != count:
            raise InputError(
                f"{count} signals, but fs for {len(rates)} and leads for {len(names)}: give one for each"
            )
        records = [
            self._windows(x, rate, lead, unit, visible, f"signal {i}")
            for i, (x, rate, lead) in enumerate(zip(signal, rates, names, strict=True))
        ]
        windows = [window for record in records for window in record]
        rows, parts = self.embed_windows(windows, *self._few(windows))
        ends = np.cumsum([len(record) for record in records])
        pieces = [slice(end - len(record), end) for record, end in zip(records, ends, strict=True)]
        return [self._embedding(rows[s], {name: x[s] for name, x in parts.items()}) for s in pieces]

    def tokens(
        self, signal, fs, leads, unit: str = "mV", visible: Sequence[str] | None = None
    ) -> list[Beats]:
        """The beat tokens of each window of a record; arguments as for `embed`."""
        windows = self._windows(signal, fs, leads, unit, visible)
        rows, outputs = self.embed_windows(windows, *self._few(windows), tokens=True)
        ends = np.cumsum([len(row["length"]) for row in rows])
        rate = self.preprocess.rate
        return [
            Beats(tokens, row["start"], row["length"], row["complete"], rate, row["start_seconds"])
            for row, tokens in zip(rows, np.split(outputs["tokens"], ends[:-1]), strict=True)
        ]

    def vcg(
        self, signal, fs, leads, unit: str = "mV", visible: Sequence[str] | None = None
    ) -> list[HeartVector]:
        """The heart vector of each window of a record, before any learning; arguments as for
        `embed`."""
        windows = self._windows(signal, fs, leads, unit, visible)
        ranks = self.lead_facts(windows)["rank"].tolist()
        lifts = lift_matrix(
            self.directions, mask_leads([w["visible"] for w in windows]), self.model.geometry.eps
        )
        rate = self.preprocess.rate
        return [
            HeartVector(
                (lift @ w["signal"]).astype(np.float32), r_peaks(w), rate, w["start_seconds"], rank
            )
            for w, lift, rank in zip(windows, lifts, ranks, strict=True)
        ]

    def embed_windows(
        self, windows: Iterable[dict], slots: int = SLOTS, rows: int = ROWS, tokens: bool = False
    ) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Windows (see windows.py) -> the same without their samples, and the parts of their
        embeddings, each [m,.].

        Every batch has one and the same shape, and is filled in order: there is one compilation,
        and as nothing else (batch size, number of records, timing) enters, the same windows give
        the same bytes on every run. The next batches are read meanwhile. With `tokens`, also the
        beat tokens [sum of n,d], window after window.
        """
        found: list[dict] = []
        outputs: dict[str, list[np.ndarray]] = {
            name: [] for name in (*PARTS, *(["tokens"] if tokens else []))
        }
        for some, batch in read_ahead(pack(windows, max(slots, self.max_beats), rows)):
            visible = batch.pop("visible")
            result = self.embed_batch(batch, visible)
            for name in PARTS:
                outputs[name].append(result[name][0, : len(some)])
            if tokens:
                outputs["tokens"].append(result["tokens"][result["mask"]])
            wrong = ~np.all([np.isfinite(outputs[name][-1]).all(-1) for name in PARTS], axis=0)
            if wrong.any():
                record = some[int(wrong.argmax())]["record_id"]
                raise InputError(
                    f"the embedding of record {record} is not finite: {self.checkpoint} has diverged"
                )
            found += some
        if not found:
            sizes = self.part_sizes | {"tokens": self.model.encoding.token_dim}
            return [], {name: np.zeros((0, sizes[name]), np.float32) for name in outputs}
        return found, {name: np.concatenate(values) for name, values in outputs.items()}

    def embed_batch(
        self, batch: dict[str, np.ndarray], visible: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """A batch (see packing.py) -> the parts [g,r,.], tokens [g,r,n,d] and their mask."""
        visible = batch["lead_mask"] if visible is None else visible
        return jax.device_get(
            embed_packed(self.model, self.max_beats, self.variables, batch, visible)
        )

    def lead_facts(self, windows: Sequence[dict]) -> dict[str, np.ndarray]:
        """Rank, condition and gain [m] of the visible leads of each window in the model's
        geometry."""
        masks, place = np.unique([w["visible"] for w in windows], return_inverse=True)
        facts = subset_facts(self.directions, mask_leads(masks), self.model.geometry.eps)
        return {name: values[place] for name, values in facts.items()}

    def _windows(self, signal, fs, leads, unit, visible, name: str = "signal") -> list[dict]:
        """The windows of one raw record; a record that cannot be used raises."""
        failures: list[Failure] = []
        windows = list(
            corpus_windows(signal_corpus(signal, fs, leads, unit, name), self.preprocess, failures)
        )
        if visible is not None:
            chosen = parse_leads(visible if isinstance(visible, str) else ",".join(visible))
            windows = list(show_only(windows, chosen, failures))
        if not windows:
            raise InputError(f"{name}: {failures[0].reason}")
        lost = "".join(f";window_left_out:{failure.window}:hidden" for failure in failures)
        return [window | {"defects": f"{window['defects']}{lost}".strip(";")} for window in windows]

    def _few(self, windows: Sequence[dict]) -> tuple[int, int]:
        """The smallest of a few batch shapes that holds these windows: few, so that any signal
        finds it compiled."""
        for rows in FEW_ROWS:
            if len(windows) <= rows:
                return rows * self.max_beats, rows
        return SLOTS, ROWS

    def _embedding(self, rows: list[dict], parts: dict[str, np.ndarray]) -> Embedding:
        return Embedding(
            embedding=join_parts(parts),
            parts=parts,
            num_beats=np.array([len(row["length"]) for row in rows]),
            visible=[lead_names(row) for row in rows],
            **self.lead_facts(rows),
            defects=[row["defects"].split(";") if row["defects"] else [] for row in rows],
            start_seconds=np.array([row["start_seconds"] for row in rows]),
        )


@partial(jax.jit, static_argnums=(0, 1))
def embed_packed(model: Network, max_beats: int, variables, batch, visible):
    """The parts, the tokens and their mask; compiled once in a process for each model and shape of
    batch."""
    return model.apply(variables, batch, visible, max_beats, method="embed")


@partial(jax.jit, static_argnums=(0, 1))
def _initialise(model: Network, max_beats: int, seed):
    batch = silent_batch(model.signal.beat_samples)
    return model.init(jax.random.key(seed), batch, batch["lead_mask"], None, max_beats)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _calibrate(
    model: Network, num_visible: int, max_beats: int, params, batch_stats, batch, subsets, key
):
    visible = draw_views(key, batch["uid"], batch["lead_mask"], subsets, num_visible)
    variables = {"params": params, "batch_stats": batch_stats}
    return model.apply(variables, batch, visible, key, max_beats, mutable=["batch_stats"])[1][
        "batch_stats"
    ]


def join_parts(parts: dict[str, np.ndarray]) -> np.ndarray:
    """[structure; dynamics; rhythm]: the embedding of the paper."""
    return np.concatenate([parts[name] for name in PARTS], axis=-1)
