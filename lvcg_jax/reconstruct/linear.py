"""Leads derived sample by sample: a matrix [12,12] times the visible leads, fixed or fitted."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import kors_matrix
from data_prep.ecg.leads import LEADS, mask_leads
from lvcg_jax.reconstruct.lead_method import signal_of, to_mv

# share of the visible leads' mean power, so that leads which say the same can be solved for
RIDGE = 1e-6


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
        self.products, _ = mean_products(windows, ", ".join(self.rules))
        self._matrices.clear()


def mean_products(windows: Iterable[dict], what: str) -> tuple[dict[str, np.ndarray], int]:
    """Mean products of the twelve leads [12,12] by unit ('z', 'mV'), and of how many records.

    Every record counts the same, however long; those that lack a lead are left out. `what` cannot
    be fitted if there is none.
    """
    total, count = {unit: np.zeros((len(LEADS), len(LEADS))) for unit in ("z", "mV")}, 0
    for window in windows:
        if not mask_leads(window["lead_mask"]).all():
            continue
        z = signal_of(window).astype(np.float64)
        for unit, x in (("z", z), ("mV", z * window["scale"][:, None])):
            total[unit] += x @ x.T / x.shape[1]
        count += 1
    if not count:
        raise InputError(f"cannot fit {what}: no training record has all twelve leads")
    return {unit: products / count for unit, products in total.items()}, count


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


def kim_matrix(products: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Regression through the heart vector [12,12], from mean products in mV: the vector that Kors'
    matrix makes of all leads is regressed on the visible ones, and every lead on the vector."""
    kors = kors_matrix()
    to_vector = kors @ regression_matrix(products, visible)
    from_vector = np.linalg.solve(kors @ products @ kors.T, kors @ products).T  # [12,3]
    weights = from_vector @ to_vector
    weights[visible] = np.eye(len(products))[visible]
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
