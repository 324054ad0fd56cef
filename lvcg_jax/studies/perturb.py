"""Moved electrodes: a trained model that believes in other lead directions than those it was
trained with.

    noise      every entry of A [12,3] plus a normal number times the level; a seed gives one direction to go in
    rotation   every lead direction turned by an angle about one axis, which the seed draws

Embeddings only lift, so there A is changed in the lift. Derived leads are lifted and projected: the
model believes in the changed A altogether ('lift_and_project'), or lifts with it and projects with
the true one ('lift_only').
"""

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from data_prep.ecg.geometry import lift_table
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.model.network import Network
from lvcg_jax.reconstruct.methods import NetworkLeads


def add_noise(a: np.ndarray, level: float, seed: int) -> np.ndarray:
    """A [12,3] with normal noise of standard deviation `level` on each entry; levels of one seed
    lie on one line."""
    return a + level * np.random.default_rng(seed).standard_normal(a.shape)


def rotate(a: np.ndarray, degrees: float, seed: int) -> np.ndarray:
    """A [12,3] with every row turned by an angle about an axis that is uniform on the sphere."""
    axis = np.random.default_rng(seed).standard_normal(3)
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(degrees)
    turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross  # Rodrigues
    return a @ turn.T


@cache
def movable(kind: type[Network]) -> type[Network]:
    """This kind of network with its lift and its projection as variables, so that one compilation
    serves every geometry."""

    class MovedElectrodes(kind):
        def setup(self):
            super().setup()
            self.table = self.get_variable("geometry", "table")
            self.directions = self.get_variable("geometry", "directions")

    return MovedElectrodes


def move(model: LVCG, lift: np.ndarray, project: np.ndarray) -> LVCG:
    """The same weights with lead directions [12,3] to lift with and [12,3] to project with."""
    names = [f.name for f in dataclasses.fields(model.model) if f.name not in ("parent", "name")]
    fields = {name: getattr(model.model, name) for name in names}
    fields["geometry"] = dataclasses.replace(model.model.geometry, learnable=False)
    geometry = {
        "table": lift_table(lift, model.model.geometry.eps).astype(np.float32),
        "directions": project.astype(np.float32),
    }
    moved = copy.copy(model)
    moved.model = movable(type(model.model))(**fields)
    moved.variables = {**model.variables, "geometry": geometry}
    return moved


class ProjectedLeads:
    """A LeadMethod: the heart vector that a model decodes, lifted with one geometry and projected
    with several."""

    def __init__(self, model: LVCG, lift: np.ndarray, projections: dict[str, np.ndarray]):
        self.projections, self.units = projections, {name: "z" for name in projections}
        axes = np.eye(*lift.shape)  # its first three leads are then the heart vector itself
        self._network = NetworkLeads(move(model, lift, axes), {"vcg": "both"})

    def fit(self, windows: Iterable[dict]) -> None:
        """Nothing to learn: it was trained."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        vectors = [x[:3] for x in self._network.predict(windows)["vcg"]]  # [3,T] each
        return {
            name: [a.astype(np.float32) @ v for v in vectors]
            for name, a in self.projections.items()
        }
