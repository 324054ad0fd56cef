"""From a config to what the network is given: the preprocessing, the lead directions, the subsets
of visible leads."""

import numpy as np
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import GEOMETRIES, lead_matrix, training_subsets
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess


def as_geometry(matrix) -> str | tuple[tuple[float, ...], ...]:
    """A geometry's name, or its rows as nested tuples (as linen wants its fields); a file of rows
    is read."""
    if isinstance(matrix, str) and matrix in GEOMETRIES:
        return matrix
    return tuple(tuple(float(v) for v in row) for row in lead_matrix(matrix))


def make_subsets(config: ConfigDict):
    """Lead bit masks that training views are drawn from."""
    geometry = config.geometry
    matrix = lead_matrix(as_geometry(geometry.matrix))
    most = geometry.most_visible or geometry.num_visible
    if not 1 <= geometry.num_visible <= most <= len(LEADS):
        raise InputError(
            f"geometry: {geometry.num_visible} to {most} visible leads: give 1 to {len(LEADS)}"
        )
    limits = (geometry.eps, geometry.identifiable_only, geometry.max_gain)
    sizes = range(geometry.num_visible, most + 1)
    return np.concatenate([training_subsets(matrix, size, *limits) for size in sizes])


def make_preprocess(config: ConfigDict) -> Preprocess:
    """The preprocessing that a config describes."""
    return Preprocess.from_dict(config.preprocess.to_dict())
