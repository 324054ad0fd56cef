"""Ways to derive all twelve leads of a record from some of them, behind one small interface
(LeadMethod).

    lvcg            the trained model, from the temporal module's tokens and from the encoder's
                    own, mixed 2 to 1
    lvcg_predicted  from the temporal module's tokens alone: what its objective trains
    lvcg_encoded    from the encoder's own tokens alone
    geometry:paper  lift and project with the paper's lead directions, no network, on the
                    normalised leads
    geometry:dower  the same with Dower's coefficients, in mV, the unit that they were measured in
    regression      least squares on the visible leads, fitted on training records, on the
                    normalised leads
    regression:mV   the same in mV
    copy            the visible lead that correlates best with the hidden one in training records
                    (largest |r|), with the sign of r
    zero            nothing

What predicts in normalised units ('z') says nothing about a hidden lead's size where each lead has
its own scale; what predicts in mV does. To add a method, write a class with the three members of
LeadMethod and enter it in make_methods. A window is a dict as in data/windows.py; a method may look
only at the leads in the bit mask window['visible']. Axis letters: g group, m packed slot, r record,
l lead, p sample in beat, T sample.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.data.packing import pack
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.runs import weights

SLOTS, ROWS = 512, 64  # beats and records of every batch of a network: one shape, one compilation
# share of the visible leads' mean power, so that leads which say the same can be solved for
RIDGE = 1e-6
PAPER_EPS = 1e-4
SOURCES = {"lvcg": "both", "lvcg_predicted": "predicted", "lvcg_encoded": "encoded"}
NO_NETWORK = ("geometry:paper", "geometry:dower", "regression", "regression:mV", "copy", "zero")
METHODS = (*SOURCES, *NO_NETWORK)


class LeadMethod(Protocol):
    """One or more named ways to derive leads that share their work."""

    units: dict[str, str]  # name -> 'z' (normalised as the window is) or 'mV'

    def fit(self, windows: Iterable[dict]) -> None:
        """Learns from training records, which may be read several times; called before
        `predict`."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        """All twelve leads [12,T] of each window from its visible ones, by name."""


def signal_of(window: dict) -> np.ndarray:
    """The normalised leads [12,T] of a window: as stored, or stitched from its beats if the shards
    hold only those."""
    if "signal" in window:
        return np.asarray(window["signal"], np.float32)
    beats = np.asarray(window["beats"], np.float32)
    return stitch_beats(beats, window["start"], window["length"], int(window["num_samples"]))


def to_mv(z: np.ndarray, window: dict) -> np.ndarray:
    """Normalised leads [12,T] in mV."""
    return z * window["scale"][:, None] + window["offset"][:, None]


class LinearLeads:
    """Methods that multiply the visible leads by a matrix [12,12], which follows from which leads
    are visible.

    `rules` gives for each name the unit it works in and visible [12] -> matrix.
    """

    def __init__(self, rules: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]]):
        self.rules, self.units = rules, {name: unit for name, (unit, _) in rules.items()}
        self._matrices: dict[tuple[str, int], np.ndarray] = {}

    def fit(self, windows: Iterable[dict]) -> None:
        """Nothing to learn."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        """Hidden leads cannot reach the result: they are zero before the matrix is applied."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in self.rules}
        for window in windows:
            shown = mask_leads(window["visible"])[:, None]
            z = signal_of(window)
            x = {"z": np.where(shown, z, 0.0), "mV": np.where(shown, to_mv(z, window), 0.0)}
            for name, unit in self.units.items():
                found[name].append(self.matrix(name, int(window["visible"])) @ x[unit])
        return found

    def matrix(self, name: str, visible: int) -> np.ndarray:
        """The matrix [12,12] of a lead bit mask, made once."""
        key = (name, visible)
        if key not in self._matrices:
            self._matrices[key] = self.rules[name][1](mask_leads(visible)).astype(np.float32)
        return self._matrices[key]


class FittedLeads(LinearLeads):
    """Linear methods that are fitted on training records.

    All they need of these are the mean products of the leads, [12,12]: from them follow the weights
    for any visible leads. A rule is a function (products of its unit, visible) -> matrix.
    """

    def __init__(
        self, rules: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]]
    ):
        self.products: dict[str, np.ndarray] = {}  # by unit
        bound = {
            name: (unit, lambda visible, rule=rule, unit=unit: rule(self.products[unit], visible))
            for name, (unit, rule) in rules.items()
        }
        super().__init__(bound)

    def fit(self, windows: Iterable[dict]) -> None:
        """Every record counts the same, however long; those that lack a lead are left out."""
        total, count = {unit: np.zeros((len(LEADS), len(LEADS))) for unit in ("z", "mV")}, 0
        for window in windows:
            if not mask_leads(window["lead_mask"]).all():
                continue
            z = signal_of(window).astype(np.float64)
            for unit, x in (("z", z), ("mV", z * window["scale"][:, None])):
                total[unit] += x @ x.T / x.shape[1]
            count += 1
        if not count:
            raise InputError(
                f"cannot fit {', '.join(self.rules)}: no training record has all twelve leads"
            )
        self.products = {unit: products / count for unit, products in total.items()}
        self._matrices.clear()


def regression_matrix(products: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Least-squares weights [12,12] of every lead on the visible ones (themselves are copied), from
    mean products."""
    v = np.flatnonzero(visible)
    gram = products[np.ix_(v, v)]
    ridge = RIDGE * np.trace(gram) / max(len(v), 1) * np.eye(len(v))
    weights = np.zeros_like(products)
    weights[:, v] = np.linalg.solve(gram + ridge, products[v]).T
    weights[v] = np.eye(len(products))[v]
    return weights


def copy_matrix(products: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """The visible lead of largest |r| with each lead, with the sign of r and unscaled, [12,12]
    of -1, 0 and 1."""
    size = np.sqrt(np.diag(products))
    r = np.where(visible, products / size[:, None] / size, 0.0)
    best = np.abs(r).argmax(1)
    weights, rows = np.zeros_like(products), np.arange(len(products))
    weights[rows, best] = np.sign(r[rows, best])
    return weights


class NetworkLeads:
    """A trained LVCG; `names` maps what each result is called to the tokens it is decoded from, see
    model.reconstruct.

    It computes beats, which are stitched to the length that they were cut from.
    """

    def __init__(self, model: LVCG, names: dict[str, str], slots: int = SLOTS, rows: int = ROWS):
        self.model, self.names, self.units = model, names, {name: "z" for name in names}
        self.slots, self.rows = max(slots, model.max_beats), rows

    def fit(self, windows: Iterable[dict]) -> None:
        """Nothing to learn: it was trained."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        found: dict[str, list[np.ndarray]] = {name: [] for name in self.names}
        sources = tuple(self.names.values())
        for some, batch in pack(windows, self.slots, self.rows):
            visible = batch.pop("visible")
            model = self.model
            results = _reconstruct(
                model.model, model.max_beats, sources, model.variables, batch, visible
            )
            for name, beats in zip(self.names, jax.device_get(results), strict=True):
                found[name] += stitch_packed(beats[0], some)
        return found


@partial(jax.jit, static_argnums=(0, 1, 2))
def _reconstruct(network, max_beats: int, sources: tuple[str, ...], variables, batch, visible):
    """Beats [g,m,l,p] decoded from each source; what they share is computed once."""
    return [
        network.apply(variables, batch, visible, max_beats, source=source, method="reconstruct")
        for source in sources
    ]


def stitch_packed(beats: np.ndarray, windows: Sequence[dict]) -> list[np.ndarray]:
    """Packed beats [m,l,p] of windows, one after another -> signals [l,T] of each."""
    ends = np.cumsum([len(window["length"]) for window in windows])
    return [
        stitch_beats(
            beats[end - len(w["length"]) : end], w["start"], w["length"], int(w["num_samples"])
        )
        for w, end in zip(windows, ends, strict=True)
    ]


def check_methods(names: Sequence[str], known: Sequence[str] = METHODS) -> list[str]:
    """The names without repeats, or an InputError with what may have been meant."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise InputError(f"unknown method '{name}': {hint}")
    return list(dict.fromkeys(names))


def load_network(checkpoint: str | None, names: Sequence[str]) -> LVCG | None:
    """The model of --checkpoint, or without it the packaged one if a method of these names has a
    network."""
    if checkpoint is None and not SOURCES.keys() & set(names):
        return None
    return LVCG.load(weights.choose(checkpoint, f", or --methods={','.join(NO_NETWORK)}"))


def choose_eps(eps: float | None, model: LVCG | None) -> float:
    """The Tikhonov coefficient of the pure geometries: as given, else the model's, else the
    paper's."""
    if eps is not None:
        return eps
    return model.model.geometry.eps if model else PAPER_EPS


def make_methods(
    names: Sequence[str], model: LVCG | None, eps: float, slots: int = SLOTS, rows: int = ROWS
):
    """The methods of these names, as few LeadMethods as share their work; `eps` regularises the
    pure geometries."""
    names = check_methods(names)
    learned = {name: source for name, source in SOURCES.items() if name in names}
    if learned and model is None:
        raise InputError(f"{', '.join(learned)} needs a trained model: give --checkpoint=RUN")
    fixed = {
        "geometry:paper": ("z", partial(_lift_and_project, lead_matrix("paper"), eps)),
        "geometry:dower": ("mV", partial(_lift_and_project, lead_matrix("dower"), eps)),
        "zero": ("z", lambda visible: np.zeros((len(LEADS), len(LEADS)))),
    }
    fitted = {
        "regression": ("z", regression_matrix),
        "regression:mV": ("mV", regression_matrix),
        "copy": ("z", copy_matrix),
    }
    kinds = (
        (lambda rules: NetworkLeads(model, rules, slots, rows), learned),
        (LinearLeads, fixed),
        (FittedLeads, fitted),
    )
    chosen = [
        (make, {name: rule for name, rule in rules.items() if name in names})
        for make, rules in kinds
    ]
    return [make(rules) for make, rules in chosen if rules]


def _lift_and_project(a: np.ndarray, eps: float, visible: np.ndarray) -> np.ndarray:
    return a @ lift_matrix(a, visible, eps)
