"""Ways to derive all twelve leads of a record from some of them, behind one small interface.

    lvcg_field      LVCG on a field of the whole beat (learned/field.py), packaged and ready to use
    lvcg            the trained model, from the temporal module's tokens and from the encoder's
                    own, mixed 2 to 1
    lvcg_predicted  from the temporal module's tokens alone: what its objective trains
    lvcg_encoded    from the encoder's own tokens alone
    geometry:paper  lift and project with the paper's lead directions, no network, on the
                    normalised leads
    geometry:dower  the same with Dower's coefficients, in mV, the unit that they were measured in;
                    this is KIM, regression through the heart vector, with published coefficients
    kim:fitted      KIM with fitted ones: the heart vector that Kors' matrix makes of twelve leads
                    is regressed on the visible leads, and all leads on it, in mV
    regression      least squares on the visible leads, fitted on training records, on the
                    normalised leads
    regression:mV   the same in mV
    gaussian beat   from the whole beat at once, by a Gaussian model of beats that is fitted on
                    training records, on the normalised leads (gaussian_beat.py)
    copy            the visible lead that correlates best with the hidden one in training records
                    (largest |r|), with the sign of r
    zero            nothing

Networks of other papers, trained by `lvcg fit_leads`, are further methods (learned/trained.py).
What predicts in normalised units ('z') says nothing about a hidden lead's size where each lead has
its own scale; what predicts in mV does. To add a method, write a class with the three members of
LeadMethod (lead_method.py), and a fourth if it knows how sure it is, and enter it in make_methods.
Axis letters: g group, m packed slot, l lead, p sample in beat, T sample.
"""

import difflib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.segment import stitch_beats
from lvcg_jax.data.packing import pack
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.model.parts import Geometry
from lvcg_jax.reconstruct import gaussian_beat
from lvcg_jax.reconstruct.lead_method import LeadMethod
from lvcg_jax.reconstruct.learned.trained import TrainedLeads, open_network
from lvcg_jax.reconstruct.linear import (
    FittedLeads,
    LinearLeads,
    copy_matrix,
    kim_matrix,
    regression_matrix,
)
from lvcg_jax.runs import weights
from lvcg_jax.text.flags import named_path

SLOTS, ROWS = 512, 64  # beats and records of every batch of a network: one shape, one compilation
SOURCES = {"lvcg": "both", "lvcg_predicted": "predicted", "lvcg_encoded": "encoded"}
NO_NETWORK = (
    "geometry:paper", "geometry:dower", "kim:fitted", "regression", "regression:mV",
    gaussian_beat.NAME, "copy", "zero",
)  # fmt: skip
METHODS = (*SOURCES, *NO_NETWORK)
# LVCG on a field of the whole beat, as the package carries it
FIELD, PACKAGED = "lvcg_field", Path(__file__).with_name("packaged") / "field.safetensors"


UPSTROKE = 1 / 16  # share of an interval that the upstroke of the next R peak takes: 50 ms of 0.8 s


class NetworkLeads:
    """A trained LVCG; `names` maps what each result is called to the tokens it is decoded from, see
    model.reconstruct.

    It computes beats, which are stitched to the length that they were cut from.
    """

    def __init__(self, model: LVCG, names: dict[str, str], slots: int = SLOTS, rows: int = ROWS):
        model.require_heart_vector("deriving leads")
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


def without_next_beat(x: np.ndarray, window: dict) -> np.ndarray:
    """The leads [l,T] of a window, level over the last UPSTROKE of its last interval.

    Every interval that a network learns from ends in the upstroke of the next R peak, so it ends
    the last one in it, too, although that is cut off long before a next beat.
    """
    length = int(window["length"][-1])
    if window["complete"][-1] or length < 2:
        return x
    last = min(length - 1, max(1, round(UPSTROKE * length)))
    return np.concatenate([x[:, :-last], np.repeat(x[:, -last - 1, None], last, axis=1)], axis=1)


def check_methods(names: Sequence[str], known: Sequence[str] = (FIELD, *METHODS)) -> list[str]:
    """The names without repeats, or an InputError with what may have been meant."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise InputError(f"unknown method '{name}': {hint}")
    return list(dict.fromkeys(names))


def choose_names(text: str, preprocess: Preprocess) -> list[str]:
    """The methods of --methods; 'all' leaves out the packaged network if records are prepared
    otherwise than it needs."""
    if text != "all":
        return check_methods(text.split(","))
    return [*([FIELD] if field_fits(preprocess) else []), *METHODS]


def field_fits(preprocess: Preprocess) -> bool:
    """Whether records that are prepared like this can be given to the packaged network."""
    return PACKAGED.is_file() and open_network(FIELD, PACKAGED).fits(preprocess)


def load_learned(texts: Sequence[str]) -> list[TrainedLeads]:
    """The trained networks of --learned=NAME=FILE, each under a name of its own."""
    found: list[TrainedLeads] = []
    for text in texts:
        name, path = named_path("--learned", text)
        if name in (FIELD, *METHODS, gaussian_beat.CALIBRATED, *(method.name for method in found)):
            raise InputError(f"--learned={text}: there is a method '{name}' already: rename it")
        found.append(open_network(name, path))
    return found


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
    return model.model.geometry.eps if model else Geometry().eps


def make_methods(
    names: Sequence[str], model: LVCG | None, eps: float, slots: int = SLOTS, rows: int = ROWS
) -> list[LeadMethod]:
    """The methods of these names, as few LeadMethods as share their work; `eps` regularises the
    pure geometries."""
    names = check_methods(names, (FIELD, *METHODS, gaussian_beat.CALIBRATED))
    learned = {name: source for name, source in SOURCES.items() if name in names}
    if learned and model is None:
        raise InputError(f"{', '.join(learned)} needs a trained model: give --checkpoint=RUN")
    fixed = {
        "geometry:paper": ("z", partial(_lift_and_project, lead_matrix("paper"), eps)),
        "geometry:dower": ("mV", partial(_lift_and_project, lead_matrix("dower"), eps)),
        "zero": ("z", lambda visible: np.zeros((len(LEADS), len(LEADS)))),
    }
    fitted = {
        "kim:fitted": ("mV", kim_matrix),
        "regression": ("z", regression_matrix),
        "regression:mV": ("mV", regression_matrix),
        "copy": ("z", copy_matrix),
    }
    kinds = (
        (lambda rules: open_network(FIELD, PACKAGED), {FIELD: None}),
        (lambda rules: NetworkLeads(model, rules, slots, rows), learned),
        (LinearLeads, fixed),
        (FittedLeads, fitted),
        (
            lambda rules: gaussian_beat.GaussianBeat(tuple(rules)),
            dict.fromkeys((gaussian_beat.NAME, gaussian_beat.CALIBRATED)),
        ),
    )
    chosen = [
        (make, {name: rule for name, rule in rules.items() if name in names})
        for make, rules in kinds
    ]
    return [make(rules) for make, rules in chosen if rules]


def _lift_and_project(a: np.ndarray, eps: float, visible: np.ndarray) -> np.ndarray:
    return a @ lift_matrix(a, visible, eps)
