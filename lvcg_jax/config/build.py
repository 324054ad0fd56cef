"""From a config to what it describes: the network, the preprocessing, the subsets of visible
leads."""

import numpy as np
from ml_collections import ConfigDict

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import GEOMETRIES, lead_matrix, training_subsets
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.config.fields import check_choices
from lvcg_jax.model.network import Network


def make_model(config: ConfigDict) -> Network:
    """The model that a config describes."""
    check_choices(config)
    return Network(
        geometry=as_geometry(config.geometry.matrix),
        eps=config.geometry.eps,
        learnable_geometry=config.geometry.learnable,
        beat_samples=config.preprocess.beat_samples,
        num_samples=round(config.preprocess.seconds * config.preprocess.rate),
        rate=config.preprocess.rate,
        rhythm_head=config.loss.lambda_rhythm > 0,
        ecg_source=config.loss.ecg_source,
        vcg_source=config.loss.vcg_source,
        view_term=config.loss.lambda_view > 0,
        anchor_term=config.loss.lambda_base > 0,
        **config.model.to_dict(),
    )


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
