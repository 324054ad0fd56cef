"""What each part of the network is: one small frozen config per part, with the paper's values.

configs/pretrain.py has the same choices as flat fields, with a comment on each and its
alternatives; config/build.py maps one to the other.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS


@dataclass(frozen=True)
class Signal:
    """The beats that the network reads."""

    beat_samples: int = 128  # P
    num_samples: int = 1000  # of a record
    rate: float = 100.0  # Hz


@dataclass(frozen=True)
class Geometry:
    """Between leads and heart vector."""

    matrix: str | tuple[tuple[float, ...], ...] = "paper"  # A, see data_prep.ecg.geometry
    eps: float = 1e-4  # Tikhonov coefficient of the lift
    learnable: bool = False
    space: str = "vcg"  # 'ecg': beats stay leads, zero where invisible, and there is no geometry

    @property
    def axes(self) -> int:
        """Channels of a beat as it is encoded and decoded."""
        return lead_matrix(self.matrix).shape[1] if self.space == "vcg" else len(LEADS)


@dataclass(frozen=True)
class Layers:
    """What all layers of encoder and decoder share."""

    norm: str = "batch"  # over valid beats, or 'layer'
    norm_momentum: float = 0.9  # of the running statistics
    norm_epsilon: float = 1e-5
    dropout: float = 0.1
    gelu_exact: bool = False  # the tanh form is faster
    dtype: str = "float32"  # of the convolutions; parameters and statistics stay float32
    remat: bool = False  # compute blocks again for their gradients

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)


@dataclass(frozen=True)
class Encoding:
    """The beat encoder: ResNet1D to one token."""

    token_dim: int = 256  # D
    token_scope: str = "beat"  # a token of all axes; 'axis': of each axis alone, then joined
    stem_features: int = 48
    stage_features: tuple[int, ...] = (96, 192, 256, 256)
    stage_blocks: tuple[int, ...] = (3, 3, 3, 2)
    width: int = 7


@dataclass(frozen=True)
class Dynamics:
    """The temporal module."""

    kind: str = "learned"  # a GRU; 'none': the encoder's tokens go on as they are
    reads: str = "predicted"  # what the GRU reads at each beat; or the 'encoded' token
    # at the first complete beat; or at the 'first' slot; 'each': at the first complete beat, and
    # for the embedding at each of them in turn
    start: str = "complete"
    state_dim: int = 256  # d_dyn
    layers: int = 1
    scan_unroll: int = 1  # beats per turn of the loop


@dataclass(frozen=True)
class Decoding:
    """The beat decoder: a token to P samples of the heart vector."""

    seed_features: int = 128
    features: tuple[int, ...] = (128, 64, 64, 32, 32)
    width: int = 5


@dataclass(frozen=True)
class Rhythm:
    """The rhythm encoder."""

    dim: int = 128  # d_rhythm
    hidden: int = 32
    basis: int = 8  # sinusoids
    heads: int = 4
    intervals: str = "complete"  # R-R intervals; 'all': the two partial ones too
    unit: str = "seconds"  # of the R-R statistics; or 'samples'
    steps: str = "seconds"  # successive differences; 'relative': as shares of the mean interval
    positions: int = 0  # slots with a learned vector each
    max_rr: float = 2.0  # seconds; longer intervals are left out; 0: none
    max_log_ratio: float = 2.0  # an interval counts as at most e^2 times the mean, or as little


@dataclass(frozen=True)
class Embedding:
    """How a record's embedding is put together."""

    structure: str = "mean"  # statistics over the tokens, see pooling.py
    lead_sizes: bool = False  # the leads' sizes in mV join the structure
    # coordinates of the mean beat, and of how its beats differ, that join it too; see beat_shape.py
    beat_modes: tuple[int, int] = (0, 0)
    patterns: int = 0  # coordinates of how often short patterns occur, that join it; patterns.py
    beat_levels: int = 0  # coordinates of what the median beat measures; beat_levels.py
    record_token: Encoding | None = None  # of the whole record, that joins it; record_token.py


@dataclass(frozen=True)
class Objective:
    """What the network must output for the loss terms."""

    ecg_source: str = "predicted"  # tokens that hidden leads are decoded from; 'encoded', 'both'
    vcg_source: str = "encoded"  # tokens that L_vcg decodes; or 'predicted'
    encoded_share: float = 1 / 3  # weight of the encoder's tokens in leads derived from both
    rhythm: bool = False  # the head that reads e_rhythm back
    rhythm_hidden_share: float = 0.3  # R-R intervals that it must guess
    view: bool = False  # also the tokens of all leads
