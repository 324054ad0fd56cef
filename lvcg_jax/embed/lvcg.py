"""A trained model for use: embeddings, beat tokens and heart vector of any ECG.

    from lvcg_jax import LVCG

    model = LVCG.load("paper")  # packaged weights by name, or a run directory such as "runs/mine"
    e = model.embed(signal, fs=500, leads=["I", "II", "V2"])  # [samples, leads] in mV
    e.embedding, e.mean, e.parts["rhythm"], e.rank, e.defects
    LVCG.load("best").predict(signal, fs=500, leads=["I", "II", "V2"]).probabilities

Axis letters: w window of a record, m row, g group, r record, n beat, d feature.
"""

import copy
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
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
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.config.build import make_model
from lvcg_jax.config.inputs import make_preprocess, make_subsets
from lvcg_jax.data.out_of_memory import fits_in_memory
from lvcg_jax.data.packing import silent_batch
from lvcg_jax.data.windows import (
    Failure,
    corpus_windows,
    defect_words,
    lead_names,
    show_only,
    signal_corpus,
)
from lvcg_jax.embed.added_parts import with_parts
from lvcg_jax.embed.answers import Beats, Embedding, HeartVector, Prediction, prediction_of
from lvcg_jax.embed.devices import embed_packed, embed_pieces
from lvcg_jax.model.network import PARTS, Network
from lvcg_jax.model.record_token import NAME as RECORD_TOKEN
from lvcg_jax.model.views import draw_views
from lvcg_jax.peers.peer import Peer
from lvcg_jax.runs import heads
from lvcg_jax.runs.attention import facts_of, join_tokens
from lvcg_jax.runs.heads import Head
from lvcg_jax.runs.trained import load_trained
from lvcg_jax.runs.weights import weights_hash
from lvcg_jax.text.notebook import facts_html, part_words
from lvcg_jax.train import fitted

SLOTS, ROWS = 1024, 128  # beats and records of every batch of a data set
# Records of a batch of a peer, which reads whole records: every row is filled. On a CPU a
# transformer was twice as fast with 16 rows as with 128, as its attention then stays in the cache.
PEER_ROWS = 16
# windows of the small batches that a user's own signals are computed in, max_beats slots each
FEW_ROWS = (1, 8)
CALIBRATION_BATCHES = 60  # batches that norm statistics are measured on


class LVCG:
    """A trained model: network, weights, and the preprocessing that it was trained with.

    `load` makes one from packaged weights or from a run directory. Then `embed`, `predict`,
    `tokens` and `vcg` take any ECG: any sampling rate and length, one to twelve leads in any order.

    Attributes:
      model: the linen module, a lvcg_jax.model.network.Network (or a peer, see lvcg_jax/peers).
      variables: its weights and norm statistics: {'params': ..., 'batch_stats': ...}.
      config: the config that it was trained with.
      preprocess: filter, beat detection and normalisation; every signal goes through it.
      max_beats: of a window; of faster records the rest is one interval, see `with_max_beats`.
      checkpoint: the name of the weights, with a hash of their content: 'paper#1a2b3c4d'.
      facts: what is known of packaged weights, for example their training data; else empty.

    Example:
      >>> from lvcg_jax import LVCG
      >>> model = LVCG.load("paper")
      >>> e = model.embed(signal, fs=500, leads=LEADS)  # [samples, leads] in mV
      >>> e.embedding.shape  # one row per window of at most ten seconds
      (1, 640)
      >>> few = model.embed(signal[:, :2], fs=500, leads=["I", "II"])
      >>> few.rank.tolist()  # two limb leads span a plane only
      [2]
    """

    def __init__(self, config: ConfigDict, variables, name: str, facts: dict | None = None):
        """A model from its parts; `load` and `random` are the usual ways to get one.

        Args:
          config: describes the network and the preprocessing, as in configs/pretrain.py.
          variables: weights and norm statistics, {'params': ..., 'batch_stats': ...}.
          name: of the weights; becomes the first half of `checkpoint`.
          facts: what is known of the weights.
        """
        self.config, self.variables, self.facts = config, variables, facts or {}
        self.model: Network | Peer = make_model(config)
        self.preprocess = make_preprocess(config)
        self.max_beats = self.preprocess.max_beats
        self.checkpoint = f"{name}#{weights_hash(variables)}"

    @classmethod
    def load(cls, checkpoint: str | Path, which: str = "lowest") -> "LVCG":
        """A model with trained weights.

        Args:
          checkpoint: a run directory of `lvcg train`, a folder of `lvcg export
            --format=huggingface`, or the name of weights that the package carries ('best', 'paper',
            'small'). A directory of that name goes first.
          which: of a run directory, the checkpoint of 'lowest' validation loss or the 'latest'.

        Returns:
          The model, on the first device of this process.

        Raises:
          InputError: there are no such weights, or they are damaged.

        Example:
          >>> LVCG.load("paper").part_sizes
          {'structure': 256, 'dynamics': 256, 'rhythm': 128}
        """
        require_no_fork()
        found = load_trained(checkpoint, which)
        return cls(found.config, found.variables, found.name, found.facts)

    @classmethod
    def random(cls, config: ConfigDict, seed: int, shards: ShardSet | None) -> "LVCG":
        """A model with random weights: the control that every trained one is held against.

        Args:
          config: as of a trained model (`model.config`).
          seed: of the weights; the same seed gives the same weights.
          shards: the training split, on which batch norm statistics and fitted parts are
            measured; None leaves them as initialised.

        Returns:
          The model.

        Example:
          >>> control = LVCG.random(LVCG.load("small").config, seed=1, shards=None)
          >>> control.checkpoint.split("#")[0]
          'random@seed1'
        """
        require_no_fork()
        model, subsets = make_model(config), make_subsets(config)
        variables = _initialise(model, config.preprocess.max_beats, seed)
        params, batch_stats = variables["params"], variables.get("batch_stats", {})
        if shards is not None:
            params = params | fitted.fit_parts(config, shards)
        if batch_stats and shards is not None:
            sizes = (config.geometry.num_visible, shards.preprocess.max_beats)
            batches = _calibration_batches(config, shards, seed, model.signal_samples)
            for step, batch in enumerate(batches):
                batch_stats = _calibrate(
                    model, *sizes, params, batch_stats, batch, subsets, jax.random.key(step)
                )
        return cls(config, {"params": params, "batch_stats": batch_stats}, f"random@seed{seed}")

    def with_statistics_of_all_leads(self, shards: ShardSet) -> "LVCG":
        """The same weights, with batch norm statistics measured as embeddings are computed.

        In training the running statistics are of views of a few leads, and of activations with
        dropout; an embedding sees all leads, without dropout. Here they are the mean over batches
        of training records with all their leads.

        Args:
          shards: the training split.

        Returns:
          Another model. What that does to leads derived from a few visible ones was not measured.

        Raises:
          InputError: the model has no batch norm, or the shards have another preprocessing.
        """
        self.require_heart_vector("measuring norm statistics of all leads")
        if not self.variables.get("batch_stats"):
            raise InputError(f"{self.checkpoint} has no batch norm statistics to measure")
        shards.require_preprocess(self.preprocess)
        layers = dataclasses.replace(self.model.layers, dropout=0.0, norm_momentum=0.0)
        model = self.model.clone(layers=layers)
        params, start = self.variables["params"], self.variables["batch_stats"]
        sizes = (self.config.geometry.num_visible, self.max_beats)
        found = [  # with a momentum of 0, each batch's own
            _calibrate(model, *sizes, params, start, batch, None, jax.random.key(0))
            for batch in _calibration_batches(self.config, shards, 0, 0)
        ]
        mean = jax.tree.map(lambda *several: sum(several) / len(several), *found)
        name = f"{self.checkpoint.rpartition('#')[0]}+all_leads"
        return LVCG(self.config, {"params": params, "batch_stats": mean}, name, self.facts)

    def with_parts(
        self,
        shards: ShardSet,
        beat_modes: tuple[int, int] = (0, 0),
        patterns: int = 0,
        beat_levels: int = 0,
        record_token: "LVCG | None" = None,
        structure: str | None = None,
    ) -> "LVCG":
        """The same weights, with other parts beside the tokens in the embedding.

        Args:
          shards: the training split, to whose records they are fitted.
          beat_modes: how many numbers the mean beat in mV gets, and how many what differs between
            beats (`model.beat_modes`).
          patterns: how many numbers say how often short patterns occur (`model.patterns`).
          beat_levels: how many numbers say what the median beat measures (`model.beat_levels`).
          record_token: a model that was trained by configs/record_token.py, or one that has its
            token already (`model.record_token`).
          structure: which statistics of the tokens of beats stay in the embedding
            (`model.structure`); None changes nothing.

        Returns:
          Another model, with these numbers in the structure part of its embeddings instead of those
          that it had.

        Raises:
          InputError: the shards or the model of the record token have another preprocessing, that
            model has no record token, or there are no two records with all leads.
        """
        self.require_heart_vector("adding parts")
        shards.require_preprocess(self.preprocess)
        config, variables = with_parts(
            self, shards, beat_modes, patterns, beat_levels, record_token, structure
        )
        return LVCG(config, variables, f"{self.checkpoint.rpartition('#')[0]}+parts", self.facts)

    def with_max_beats(self, count: int) -> "LVCG":
        """The same weights, for windows of more beats than they were trained with.

        No weight belongs to a beat's number, so windows that had no more beats before keep their
        embedding, up to rounding. A fast rhythm keeps all its beats, where otherwise those beyond
        `preprocess.max_beats` are one interval (defect 'merged_tail').

        Args:
          count: beats of a window of ten seconds, first and last pieces included; 40 is enough.

        Returns:
          Another model, whose `preprocess` and hash are still those of the training.

        Raises:
          InputError: fewer beats than in training, or a model in which the number matters.
        """
        self.require_heart_vector("--max_beats")
        trained, model = self.preprocess.max_beats, self.config.model
        if count < trained:
            raise InputError(f"max_beats={count}: the weights were trained with {trained}, or more")
        if count > trained and (model.get("rhythm_positions") or model.get("padding") == "counted"):
            raise InputError(
                f"max_beats={count}: {self.checkpoint} has weights for {trained} beats of a window"
                " (model.rhythm_positions) or counts empty ones (model.padding)"
            )
        dataclasses.replace(self.preprocess, max_beats=count)  # checks the number
        other = copy.copy(self)
        other.max_beats = count
        return other

    def for_shards(self, shards: ShardSet) -> "LVCG":
        """This model, with as many beats of a window as these shards were cut with; an InputError
        if anything else in their preprocessing is another."""
        theirs, model = shards.preprocess, self
        alike = dataclasses.replace(self.preprocess, max_beats=theirs.max_beats)
        if theirs == alike and theirs.max_beats > self.max_beats:
            model = self.with_max_beats(theirs.max_beats)
        shards.require_preprocess(model.cutting)
        return model

    @property
    def cutting(self) -> Preprocess:
        """The preprocessing with `max_beats` of this model: how windows are cut for it."""
        return dataclasses.replace(self.preprocess, max_beats=self.max_beats)

    def _facts(self) -> dict[str, object]:
        total = sum(self.part_sizes.values())
        return {
            "weights": self.checkpoint,
            "embedding": f"{total} numbers ({part_words(self.part_sizes)})",
            "parameters": f"{sum(x.size for x in jax.tree.leaves(self.variables['params'])):,}",
            "preprocessing": self.preprocess.hash(),
        }

    def __repr__(self) -> str:
        return f"LVCG({', '.join(f'{k}: {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts_html("LVCG", self._facts())

    @property
    def step(self) -> int:
        """The training step that the weights are of."""
        return int(self.facts.get("step", self.checkpoint.rpartition("#")[0].rpartition("@")[2]))

    def require_heart_vector(self, what: str) -> None:
        """An InputError for a peer (see lvcg_jax/peers), which embeds and does nothing else."""
        if "peer" in self.config:
            raise InputError(
                f"{what} needs a model of LVCG itself: {self.checkpoint} is of the method"
                f" '{self.config.peer.method}', which only embeds"
            )

    @property
    def part_sizes(self) -> dict[str, int]:
        """Names and sizes of the parts of the embedding, in order."""
        return self.model.part_sizes

    @property
    def directions(self) -> np.ndarray:
        """Directions of the twelve leads, [12,3], or the modes of a field, [12,k]: those of the
        config, or as learned."""
        learned = self.variables["params"].get("directions")
        return (
            lead_matrix(self.model.geometry.matrix)
            if learned is None
            else np.asarray(learned, np.float64)
        )

    def embed(
        self, signal, fs, leads, unit: str = "mV", visible: Sequence[str] | None = None
    ) -> Embedding | list[Embedding]:
        """The embedding of a record, or of each of several records.

        Args:
          signal: one record [samples, leads], or [samples] of a single lead; or a list of records.
          fs: samples per second; for a list, one number for all or one for each record.
          leads: the lead of each column, as a list or as 'I,II,V2', in any order and case; for a
            list, one for all or one for each record.
          unit: of the signal: 'mV', 'uV' or 'V'.
          visible: leads that the model may see; all others are hidden from it, but beats are still
            found with all leads, as in shards. None shows all.

        Returns:
          An Embedding, or a list of them for a list of records.

        Raises:
          InputError: a record cannot be used; the message says why.

        Example:
          >>> model = LVCG.load("paper")
          >>> model.embed(signal, fs=500, leads=LEADS, visible=["I", "II", "V2"]).visible
          [['I', 'II', 'V2']]
          >>> both = model.embed([signal, signal[::2]], fs=[500, 250], leads=LEADS)
          >>> len(both)
          2
        """
        found = [
            self._embedding(*one) for one in self._embed_each(signal, fs, leads, unit, visible)
        ]
        return found if _are_several(signal) else found[0]

    def _embed_each(
        self, signal, fs, leads, unit: str, visible, tokens: bool = False
    ) -> list[tuple[list[dict], dict[str, np.ndarray]]]:
        """What `embed_windows` returns, for each record; their windows share batches."""
        require_no_fork()
        if not _are_several(signal):
            windows = self._windows(signal, fs, leads, unit, visible)
            return [self.embed_windows(windows, *self._few(windows), tokens=tokens)]
        count = len(signal)
        rates = fs if np.ndim(fs) else [fs] * count
        names = (
            leads
            if not isinstance(leads, str) and not isinstance(leads[0], str)
            else [leads] * count
        )
        if len(rates) != count or len(names) != count:
            raise InputError(
                f"{count} signals, but fs for {len(rates)} and leads for {len(names)}: give one"
                " for each"
            )
        records = [
            self._windows(x, rate, lead, unit, visible, f"signal {i}")
            for i, (x, rate, lead) in enumerate(zip(signal, rates, names, strict=True))
        ]
        windows = [window for record in records for window in record]
        rows, parts = self.embed_windows(windows, *self._few(windows), tokens=tokens)
        # where each record ends among the windows, and among their beats
        ends = np.cumsum([len(record) for record in records])
        beats = np.cumsum([len(row["length"]) for row in rows])[ends - 1]
        pieces = {
            name: np.split(x, (beats if name == "tokens" else ends)[:-1])
            for name, x in parts.items()
        }
        return [
            (rows[end - len(record) : end], {name: x[i] for name, x in pieces.items()})
            for i, (record, end) in enumerate(zip(records, ends, strict=True))
        ]

    def predict(
        self,
        signal,
        fs,
        leads,
        head: Head | str | Path = heads.DEFAULT,
        unit: str = "mV",
        visible: Sequence[str] | None = None,
    ) -> Prediction | list[Prediction]:
        """What a head says of a record, or of each of several records. Not a medical device.

        Args:
          signal: one record [samples, leads], or a list of records, as for `embed`.
          fs: samples per second.
          leads: the lead of each column.
          head: file of `lvcg probe --save`, or a packaged head of these weights by its task
            ('super', 'sub', 'form', 'rhythm', 'all71' of `best`), or one that is loaded already.
          unit: of the signal: 'mV', 'uV' or 'V'.
          visible: leads that the model may see; None shows all.

        Returns:
          A Prediction, or a list of them for a list of records.

        Raises:
          InputError: a record cannot be used, or the head reads embeddings of other weights.

        Example:
          >>> found = LVCG.load("best").predict(signal, fs=500, leads=LEADS)  # doctest: +SKIP
          >>> sorted(found.probabilities)  # doctest: +SKIP
          ['CD', 'HYP', 'MI', 'NORM', 'STTC']
        """
        if not isinstance(head, Head):
            head = heads.load_head(head, self.checkpoint.partition("#")[0])
        head.require(self.checkpoint, self.preprocess.hash())
        found = []
        reads_beats = head.attention is not None
        for rows, parts in self._embed_each(signal, fs, leads, unit, visible, reads_beats):
            tokens, beats = parts.pop("tokens", None), None
            if tokens is not None:
                beats = join_tokens(facts_of(rows, self.cutting), tokens)
            found.append(prediction_of(head, self._embedding(rows, parts), beats))
        return found if _are_several(signal) else found[0]

    def tokens(
        self, signal, fs, leads, unit: str = "mV", visible: Sequence[str] | None = None
    ) -> list[Beats]:
        """The beats of a record and their tokens.

        Args:
          signal: one record [samples, leads].
          fs: samples per second.
          leads: the lead of each column.
          unit: of the signal: 'mV', 'uV' or 'V'.
          visible: leads that the model may see; None shows all.

        Returns:
          One Beats per window.

        Example:
          >>> (beats,) = LVCG.load("paper").tokens(signal, fs=500, leads=LEADS)
          >>> beats.tokens.shape[1], len(beats.start) == len(beats.tokens)
          (256, True)
        """
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
        """The heart vector of a record, before any learning.

        Args:
          signal: one record [samples, leads].
          fs: samples per second.
          leads: the lead of each column.
          unit: of the signal: 'mV', 'uV' or 'V'.
          visible: leads that it is lifted from; None takes all.

        Returns:
          One HeartVector per window.

        Example:
          >>> (found,) = LVCG.load("paper").vcg(signal, fs=500, leads=LEADS)
          >>> found.vcg.shape, found.rate
          ((3, 1000), 100.0)
        """
        self.require_heart_vector("a heart vector")
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
        self,
        windows: Iterable[dict],
        slots: int | None = None,
        rows: int | None = None,
        tokens: bool = False,
    ) -> tuple[list[dict], dict[str, np.ndarray]]:
        """The embeddings of windows, for data sets: `embed_dataset` and `embed_corpus` call it.

        Every batch has the same shape and is filled in order, so there is one compilation, and the
        same windows give the same bytes on every run. Each device of this process computes batches.

        Args:
          windows: see lvcg_jax/data/windows.py.
          slots: beats of a batch; default that of a data set.
          rows: windows of a batch, likewise.
          tokens: also return the beat tokens.

        Returns:
          The windows without their samples, and the parts of their embeddings by name, [m,.] each;
          with `tokens` also 'tokens' [sum of n,d], window after window.
        """
        (found,) = self.embed_pieces([windows], slots, rows, tokens)
        return found

    def embed_pieces(
        self,
        pieces: Iterable[Iterable[dict]],
        slots: int | None = None,
        rows: int | None = None,
        tokens: bool = False,
    ) -> Iterator[tuple[list[dict], dict[str, np.ndarray]]]:
        """What `embed_windows` returns, for each of many lists of windows. No batch has windows of
        two, and while one is computed the next is read."""
        require_no_fork()
        most_slots, most_rows = self._many()
        rows = rows or most_rows
        shape = max(slots or most_slots, self.max_beats), rows, self.model.signal_samples
        sizes = self.part_sizes | ({"tokens": self.model.feature_dim} if tokens else {})
        fixed = self.model, self.max_beats, self.variables
        memory = fits_in_memory(
            f"a batch of {rows} windows ({shape[0]} beats)",
            "close other programs, take smaller weights such as 'small', or give embed_windows"
            " fewer slots and rows",
        )
        with memory:
            for found, outputs in embed_pieces(*fixed, pieces, shape, sizes):
                finite = [np.isfinite(outputs[name]).all(-1) for name in self.part_sizes]
                wrong = ~np.all(finite, axis=0)
                if wrong.any():
                    record = found[int(wrong.argmax())]["record_id"]
                    raise InputError(
                        f"the embedding of record {record} is not finite: {self.checkpoint} has"
                        " diverged"
                    )
                yield found, outputs

    def embed_batch(
        self, batch: dict[str, np.ndarray], visible: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """A batch (see packing.py) -> the parts [g,r,.], tokens [g,r,n,d] and their mask."""
        require_no_fork()
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
        """The windows of one raw record; an InputError for a record that cannot be used."""
        failures: list[Failure] = []
        windows = list(
            corpus_windows(signal_corpus(signal, fs, leads, unit, name), self.cutting, failures)
        )
        if visible is not None:
            chosen = parse_leads(visible if isinstance(visible, str) else ",".join(visible))
            windows = list(show_only(windows, chosen, failures))
        if not windows:
            raise InputError(f"{name}: {failures[0].reason}")
        lost = "".join(f";window_left_out:{failure.window}:hidden" for failure in failures)
        return [
            window | {"defects": f"{defect_words(window)}{lost}".strip(";"), "of_record": []}
            for window in windows
        ]

    def few_or_many(self, windows: Iterable[dict]) -> tuple[Iterator[dict], int, int]:
        """The same windows, and slots and rows of the batches for them: small ones if there are few
        windows, which compile and run faster."""
        windows = iter(windows)
        first = list(itertools.islice(windows, FEW_ROWS[-1] + 1))
        return itertools.chain(first, windows), *self._few(first)

    def _few(self, windows: Sequence[dict]) -> tuple[int, int]:
        """The smallest of a few batch shapes that holds these windows; there are only a few, so
        that most signals find theirs compiled."""
        for rows in FEW_ROWS:
            if len(windows) <= rows:
                return rows * self.max_beats, rows
        return self._many()

    def _many(self) -> tuple[int, int]:
        """Slots and rows of the batches of a data set. A batch of LVCG is full when its slots are;
        a peer's cost is that of its rows."""
        if isinstance(self.model, Peer):
            return PEER_ROWS * self.max_beats, PEER_ROWS
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


def _are_several(signal) -> bool:
    """Whether these are several records, each [samples, leads], and not one."""
    return isinstance(signal, list | tuple) and bool(len(signal)) and np.ndim(signal[0]) == 2


_process: int | None = None  # the first in which a model was used


def require_no_fork() -> None:
    """An InputError in a process that was forked after a model was used: the threads of JAX are not
    there, and the child would wait for them for ever."""
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise InputError(
            f"process {os.getpid()} was forked from process {_process}, which has used a model: JAX"
            " cannot run here; start processes with multiprocessing.get_context('spawn')"
        )


@partial(jax.jit, static_argnums=(0, 1))
def _initialise(model: Network | Peer, max_beats: int, seed):
    batch = silent_batch(model.signal.beat_samples, model.signal_samples)
    return model.init(jax.random.key(seed), batch, batch["lead_mask"], None, max_beats)


def _calibration_batches(
    config: ConfigDict, shards: ShardSet, seed: int, signal: int = 0
) -> Iterator[dict]:
    """Batches of training records to measure norm statistics on; with so many samples of their
    signals."""
    from lvcg_jax.data.batches import BatchMaker, train_batches

    if signal:
        shards.require_signal()
    maker = BatchMaker(shards, 1, 1, [0], True, signal)
    batches = train_batches(maker, maker.order(config.data.batch_size, seed), prefetch=1)
    for _ in range(CALIBRATION_BATCHES):
        yield {name: x[0] for name, x in next(batches).items()}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _calibrate(
    model: Network | Peer,
    num_visible: int,
    max_beats: int,
    params,
    batch_stats,
    batch,
    subsets,
    key,
):
    """The norm statistics after one batch, of views drawn from the subsets or (None) of all
    leads."""
    visible = batch["lead_mask"]
    if subsets is not None:
        visible = draw_views(key, batch["uid"], visible, subsets, num_visible)
    variables = {"params": params, "batch_stats": batch_stats}
    measured = model.apply(variables, batch, visible, key, max_beats, mutable=["batch_stats"])[1]
    if RECORD_TOKEN in batch_stats:  # it learns by itself, and no call of the network reaches it
        variables["batch_stats"] = measured["batch_stats"]
        method = "read_records"
        measured = model.apply(
            variables, batch, visible, max_beats, True, method=method, mutable=["batch_stats"]
        )[1]
    return measured["batch_stats"]


def join_parts(parts: dict[str, np.ndarray]) -> np.ndarray:
    """[structure; dynamics; rhythm]: the embedding of the paper, or those of them that a model
    has."""
    return np.concatenate([parts[name] for name in PARTS if name in parts], axis=-1)
