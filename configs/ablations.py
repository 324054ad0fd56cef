"""Ablations: one small change each, on the paper's config here and on any other with
lvcg_jax.studies.ablate.

python -m lvcg_jax.train --config=configs/ablations.py:ecg_space --workdir=runs/ecg_space
--config.data.dir=SHARDS lvcg ablate --base=configs/pretrain.py --data=SHARDS --steps=2000 --seeds=3
--out=runs/ablations
"""

from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from data_prep.ecg.geometry import lead_matrix
from lvcg_jax.config.files import read_config_file

SHUFFLE_SEED = 0


def ecg_space(c: ConfigDict) -> None:
    """Beats are encoded and decoded as twelve leads, hidden ones zero: no geometry."""
    c.model.space = "ecg"


def learnable_geometry(c: ConfigDict) -> None:
    """The lead directions are trained."""
    c.geometry.learnable = True


def shuffled_geometry(c: ConfigDict) -> None:
    """Every lead has the direction of another."""
    rows = lead_matrix(c.geometry.matrix)
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(rows))
    with c.ignore_type():  # rows in place of a name
        c.geometry.matrix = tuple(map(tuple, rows[order].tolist()))


def no_bottleneck(c: ConfigDict) -> None:
    """A token of each axis alone, joined to the size of a token of all three."""
    c.model.token_scope = "axis"


def no_temporal(c: ConfigDict) -> None:
    """No GRU: hidden leads are decoded from the encoder's token of the same beat; e_dyn is the mean
    token of the complete beats."""
    c.model.dynamics = "none"
    c.model.state_dim = c.model.token_dim
    c.loss.lambda_temp = 0.0


def no_vcg_loss(c: ConfigDict) -> None:
    """Hidden leads only."""
    c.loss.lambda_vcg = 0.0


def vcg_peaks(c: ConfigDict) -> None:
    """R peaks from all leads; needs its own shards."""
    c.preprocess.peaks = "vcg"


def dower(c: ConfigDict) -> None:
    """Dower's lead directions."""
    c.geometry.matrix = "dower"


def record_norm(c: ConfigDict) -> None:
    """One scale for all leads of a record; needs its own shards."""
    c.preprocess.normalise = "record"


def all_subsets(c: ConfigDict) -> None:
    """identifiable_only=False: training views need not span three dimensions."""
    c.geometry.identifiable_only = False


_ALL = (ecg_space, learnable_geometry, shuffled_geometry, no_bottleneck, no_temporal, no_vcg_loss)
_OURS = (vcg_peaks, dower, record_norm, all_subsets)
ABLATIONS = {change.__name__: change for change in (*_ALL, *_OURS)}


def get_config(variant: str) -> ConfigDict:
    if variant not in ABLATIONS:
        raise ValueError(f"unknown ablation '{variant}': choose from {', '.join(ABLATIONS)}")
    c = read_config_file(Path(__file__).with_name("pretrain.py"))
    ABLATIONS[variant](c)
    return c
