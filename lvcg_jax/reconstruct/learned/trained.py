"""Trained networks as files, and as a method of deriving leads.

A file is a safetensors file: weights under `params/`, in half precision, arrays that the network
learned before training under `learned/`, and in its metadata, as JSON, what it is and how it was
made (`facts`).
Axis letters: n slot of a record, b row of a batch, l lead, p sample of a beat, t of a record.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as tensor_bytes

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.lottery import ticket
from data_prep.base.words import first_line
from data_prep.dataset.shards import file_sha256
from data_prep.ecg.leads import lead_mask, mask_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.reconstruct.gaussian_beat import common_beat, place, read_at
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.learned.examples import HELD, show
from lvcg_jax.reconstruct.learned.network import BEATS, LeadNetwork
from lvcg_jax.reconstruct.learned.networks import NETWORKS
from lvcg_jax.reconstruct.learned.widths import (
    Slots,
    Widths,
    known_by,
    learn_by_number,
    learn_widths,
    stored_modes,
    stored_widths,
)
from lvcg_jax.reconstruct.stretching import lost_power, whole_signal

FORMAT = "lvcg-leads-1"
ROWS = 256  # of a batch, at most; fewer rows are padded to a power of two
SIGNAL_STEP = 250  # samples: signals end in zeros up to a multiple of these, for few shapes
KEPT = 64  # sets of visible leads whose arrays are kept
EACH = 2  # complete beats of a held-out record from which the width of bands is learned


def save_network(path: str | Path, params: dict, learned: dict, facts: dict) -> None:
    """Writes the file whole or not at all."""
    half = jax.tree.map(lambda x: np.asarray(x, np.float16), params)
    tensors = flatten_dict({"params": half, "learned": learned}, sep="/")
    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    text = json.dumps({"format": FORMAT, "sha256": _content_hash(tensors)} | facts)
    write_whole(path, tensor_bytes(tensors, metadata={"facts": text}))


def read_network(path: str | Path) -> tuple[dict, dict, dict]:
    """params, learned and facts of a file; an InputError if it is none.

    Its numbers are compared with the hash in its facts, and the whole file with NAME.sha256 if that
    lies beside it, as for the one in the package.
    """
    remedy, listed = "give a file that `lvcg fit_leads` wrote", Path(path).with_suffix(".sha256")
    try:
        if listed.is_file() and file_sha256(Path(path)) != listed.read_text().split()[0]:
            raise ValueError(f"its checksum is not the one in {listed.name}")
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); {remedy}") from None
    if facts.get("format") != FORMAT or facts.get("network") not in NETWORKS:
        raise InputError(f"{path}: no trained network of this version; {remedy}")
    if facts.get("sha256") not in (None, _content_hash(tensors)):
        raise InputError(f"{path}: damaged, its numbers are not those that were saved; {remedy}")
    tree = {"params": {}, "learned": {}} | unflatten_dict(tensors, sep="/")
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), tree["params"])
    return params, tree["learned"], facts


def _content_hash(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x))
    return digest.hexdigest()


class Rows(NamedTuple):
    """What a network reads of one window."""

    x: np.ndarray  # [n,l,p]
    mean: np.ndarray | None  # [n,l,p]
    seconds: np.ndarray  # [n]
    back: np.ndarray | None  # [n,p] where the slots' own samples lie in a beat
    covered: np.ndarray | None  # bool [n,p] samples of the beat that the slot holds


class TrainedLeads:
    """A trained network behind the interface of lead_method.LeadMethod.

    One that reads beats gets partial slots laid where they belong in a beat, as gaussian_beat.py
    does it; what such a slot lacks of its beat is filled with the record's mean beat.
    """

    def __init__(
        self, name: str, path: str | Path, contents: tuple[dict, dict, dict] | None = None
    ):
        """`contents` are those of the file, if it was read already."""
        params, self._learned, self.facts = contents or read_network(path)
        self.name, self.path, self.units = name, str(path), {name: "z"}
        sizes = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.facts["sizes"].items()
        }
        self.network: LeadNetwork = NETWORKS[self.facts["network"]](**sizes)
        self._variables = {"params": params}
        self._prepare = lru_cache(KEPT)(
            lambda mask: self.network.prepare(self._learned, mask_leads(mask))
        )

    def fits(self, preprocess: Preprocess) -> bool:
        """Whether records are prepared as those are that it was trained on."""
        return preprocess.hash() == self.facts["preprocess_hash"]

    def require(self, preprocess: Preprocess) -> None:
        """Refuses records that are prepared in any other way than those it was trained on."""
        if not self.fits(preprocess):
            raise InputError(
                f"{self.path}: trained with preprocessing {self.facts['preprocess_hash']}, but the"
                f" records have {preprocess.hash()}: train it on shards that are built alike"
            )

    def describe(self) -> str:
        """One sentence for the notes under a table."""
        f = self.facts
        chosen = f", the better of {' and '.join(f['rates'])} after a tenth of that"
        chosen = chosen if f["rates"] else ""
        return (
            f"{self.name}: {f['network']}, {f['parameters']:,} parameters, {f['flops']:.2g} FLOPs"
            f" on {f['records']} training records of {f['corpus']} ({f['steps']} steps at rate"
            f" {f['rate']:g}{chosen})."
        )

    def fit(self, windows: Iterable[dict]) -> None:
        """Nothing to learn: it was trained."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        found = []
        for window, x in zip(windows, self._signals(windows, derive), strict=True):
            if "products" in self._learned:
                found.append(whole_signal(x, window, self._learned["products"]))
            else:
                seen = mask_leads(window["visible"])[:, None]
                found.append(np.where(seen, signal_of(window), x).astype(np.float32))
        return {self.name: found}

    def _signals(self, windows: Sequence[dict], compute: Callable) -> list[np.ndarray]:
        """What the network computes [12,T] for each window; rows of one length go together, and of
        those that see the same leads if it has arrays for them."""
        together: dict[tuple[int, int], list[int]] = {}
        read = [self._rows(window) for window in windows]
        for i, window in enumerate(windows):
            mask = int(window["visible"])
            alike = (mask if self._prepare(mask) else 0, read[i].x.shape[-1])
            together.setdefault(alike, []).append(i)
        found: list[np.ndarray] = [np.empty(0)] * len(windows)
        for (mask, _), places in together.items():
            rows = [read[i] for i in places]
            visible = [mask_leads(windows[i]["visible"]) for i in places]
            sizes = [np.asarray(windows[i]["scale"]) for i in places]
            extra = self._prepare(mask) if mask else {}
            derived = self._compute(compute, rows, visible, sizes, extra)
            for i, row, leads in zip(places, rows, derived, strict=True):
                found[i] = self._as_signal(leads, row, windows[i])
        return found

    def _rows(self, window: dict) -> Rows:
        rate = self.facts["preprocess"]["rate"]
        if self.network.reads != BEATS:
            signal = signal_of(window)
            samples = signal.shape[-1]
            signal = np.pad(signal, ((0, 0), (0, -samples % SIGNAL_STEP)))
            return Rows(signal[None], None, np.array([samples / rate]), None, None)
        complete = np.asarray(window["complete"], bool)
        beats = np.asarray(window["beats"], np.float32)
        length = np.asarray(window["length"], np.float64)
        placed = place(beats, length, complete)
        # a cut-off beat is taken for one of the record's usual length
        usual = length[complete].mean() if complete.any() else length.max()
        seconds = np.where(complete, length, usual) / rate
        mean, _ = common_beat(placed, complete)
        x = np.where(placed.covered[:, None], placed.beats, mean).astype(np.float32)
        mean = np.broadcast_to(mean.astype(np.float32), x.shape)
        return Rows(x, mean, seconds, placed.back, placed.covered)

    def _compute(
        self,
        compute: Callable,
        rows: list[Rows],
        visible: list[np.ndarray],
        sizes: list[np.ndarray],
        extra: dict,
    ) -> list | tuple[list, ...]:
        """What is computed of each record, such as all leads [n,l,p], in batches that are padded to
        a few sizes; a tuple of such lists if several things are."""
        counts = [len(row.x) for row in rows]
        x = np.concatenate([row.x for row in rows])
        mean = None if rows[0].mean is None else np.concatenate([row.mean for row in rows])
        seconds = np.concatenate([row.seconds for row in rows])
        of_leads = (np.repeat(values, counts, axis=0) for values in (visible, sizes))
        shown = show(x, mean, *of_leads, seconds)
        found = []
        for first in range(0, len(x), ROWS):
            some = {name: value[first : first + ROWS] for name, value in shown.items()}
            number = len(some["x"])
            short = min(ROWS, 1 << (number - 1).bit_length()) - number
            some = {
                name: np.pad(value, [(0, short)] + [(0, 0)] * (value.ndim - 1))
                for name, value in some.items()
            }
            computed = compute(self.network, self._variables, some | extra)
            found.append(jax.tree.map(lambda y, n=number: np.asarray(y)[:n], computed))
        ends = np.cumsum(counts)[:-1]
        return jax.tree.map(lambda *y: np.split(np.concatenate(y), ends), *found)

    def _as_signal(self, leads: np.ndarray, rows: Rows, window: dict) -> np.ndarray:
        if rows.back is None:
            return leads[0, :, : int(window["num_samples"])]
        where = (window["start"], window["length"], int(window["num_samples"]))
        return stitch_beats(read_at(leads, rows.back), *where)


class TrainedLeadsWithBars(TrainedLeads):
    """A network that also says how large its errors are, see widths.py."""

    def __init__(
        self, name: str, path: str | Path, contents: tuple[dict, dict, dict] | None = None
    ):
        super().__init__(name, path, contents)
        self._held: list[dict] = []
        self._widths = lru_cache(None)(self._learn_widths)

    def fit(self, windows: Iterable[dict]) -> None:
        """Keeps records of the patients that no training step saw: those with a low ticket."""
        unseen = (w for w in windows if ticket(w["patient_id"]) <= self.facts["held_ticket"])
        self._widths.cache_clear()
        kept = islice((w for w in unseen if np.any(w["complete"])), HELD)
        self._held = sorted(kept, key=lambda window: window["patient_id"])

    def learn_bands(self, windows: Iterable[dict]) -> dict[str, np.ndarray]:
        """What a file stores for bands, learned from windows of patients that no training step
        saw; nothing if none has a complete beat."""
        self.fit(windows)
        return learn_by_number(self._look) if self._held else {}

    def _look(self, visible: np.ndarray) -> list[Slots]:
        """The held-out records, some slots of each, derived from these leads; records that lack
        one of them show the others."""
        rows, complete = [], []
        for window in self._held:
            whole = np.asarray(window["complete"], bool)
            some = np.sort([*np.flatnonzero(whole)[:EACH], *np.flatnonzero(~whole)])
            rows.append(Rows(*(part[some] for part in self._rows(window))))
            complete.append(whole[some])
        there = [mask_leads(window["lead_mask"]) for window in self._held]
        shown = [leads & visible for leads in there]
        sizes = [np.asarray(window["scale"]) for window in self._held]
        extra = self._prepare(lead_mask(visible))
        both = self._compute(
            lambda *given: (derive(*given), *expected_error(*given)), rows, shown, sizes, extra
        )
        return [
            Slots(
                np.where(read.covered[:, None], (x - read.x) / expected, np.nan),
                token,
                whole,
                leads & ~visible & (leads & visible).any(),
            )
            for read, x, expected, token, whole, leads in zip(
                rows, *both, complete, there, strict=True
            )
        ]

    def _learn_widths(self, mask: int) -> Widths:
        """Of these visible leads, or of their number if there is too little to learn from."""
        arrays, visible = self._learned["bands"], mask_leads(mask)
        found = None
        if self._held and visible.any():
            found = learn_widths(self._look(visible), stored_modes(arrays))
        return found or stored_widths(arrays, int(visible.sum()))

    def predict_with_bars(
        self, windows: Sequence[dict]
    ) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        found = []
        derived, widths = self.predict(windows)[self.name], self._signals(windows, self._width)
        for window, x, width in zip(windows, derived, widths, strict=True):
            hidden = ~mask_leads(window["visible"])[:, None]
            cut_off = np.repeat(~np.asarray(window["complete"], bool), window["length"])
            width = width * np.where(cut_off, self._widths(int(window["visible"])).ends, 1.0)
            deviation = np.sqrt(width**2 + lost_power(window))
            found.append((x, np.where(hidden, deviation, 0.0).astype(np.float32)))
        return {self.name: found}

    def _width(self, network: LeadNetwork, variables: dict, shown: dict) -> np.ndarray:
        """What the network expects of its errors [b,l,p], times what held-out records teach. All
        rows see the same leads, but those that fill the batch up, which see none."""
        expected, token = map(np.asarray, expected_error(network, variables, shown))
        widths = self._widths(lead_mask(np.asarray(shown["visible"]).any(0)))
        return expected * widths.factor(known_by(token, stored_modes(self._learned["bands"])))


def open_network(name: str, path: str | Path) -> TrainedLeads:
    """The network of a file as a method of this name, with bands if it has them."""
    contents = read_network(path)
    kind = TrainedLeadsWithBars if contents[1].get("bands") else TrainedLeads
    return kind(name, path, contents)


@partial(jax.jit, static_argnums=0)
def derive(network: LeadNetwork, variables: dict, shown: dict) -> jax.Array:
    """All leads [b,l,p] of a batch."""
    return network.apply(variables, shown)


@partial(jax.jit, static_argnums=0)
def expected_error(
    network: LeadNetwork, variables: dict, shown: dict
) -> tuple[jax.Array, jax.Array]:
    """How large the network expects the error of each sample to be, [b,l,p], and tokens [b,d]."""
    return network.apply(variables, shown, method="spread")
