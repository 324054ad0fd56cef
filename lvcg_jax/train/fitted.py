"""The parts of the embedding that are fitted to training records instead of trained: the shape of
the beats (model/beat_shape.py), the patterns (model/patterns.py), the levels of the median beat
(model/beat_levels.py), and what the last one and the record token fill unseen leads in by."""

from typing import Any

from ml_collections import ConfigDict

from data_prep.dataset.shards import ShardSet
from lvcg_jax.train.beat_levels import fit_beat_levels
from lvcg_jax.train.beat_modes import fit_beat_modes
from lvcg_jax.train.lead_covariance import fit_lead_covariance
from lvcg_jax.train.patterns import fit_patterns

NAMES = ("shape", "patterns", "levels", "lead_covariance")  # of their parameters in the network


def fit_parts(config: ConfigDict, shards: ShardSet) -> dict[str, Any]:
    """The parameters of those that a config asks for, by name, from a training split."""
    model, beats, chain = config.model, config.preprocess.max_beats, shards.preprocess
    samples = round(chain.seconds * chain.rate)
    fitted = {}
    if any(model.beat_modes):
        fitted["shape"] = fit_beat_modes(shards, model.beat_modes, beats)
    if model.patterns:
        fitted["patterns"] = fit_patterns(shards, model.patterns, beats, samples)
    if model.beat_levels:
        fitted["levels"] = fit_beat_levels(shards, model.beat_levels, beats)
    if model.beat_levels or model.record_token:
        fitted["lead_covariance"] = fit_lead_covariance(shards, beats, samples)
    return fitted
