"""The parts of the embedding that are fitted to training records instead of trained: the shape of
the beats (model/beat_shape.py) and the patterns (model/patterns.py)."""

from ml_collections import ConfigDict

from data_prep.dataset.shards import ShardSet
from lvcg_jax.train.beat_modes import fit_beat_modes
from lvcg_jax.train.patterns import fit_patterns

NAMES = ("shape", "patterns")  # of their parameters in the network


def fit_parts(config: ConfigDict, shards: ShardSet) -> dict[str, dict]:
    """The parameters of those that a config asks for, by name, from a training split."""
    model, beats, chain = config.model, config.preprocess.max_beats, shards.preprocess
    fitted = {}
    if any(model.beat_modes):
        fitted["shape"] = fit_beat_modes(shards, model.beat_modes, beats)
    if model.patterns:
        samples = round(chain.seconds * chain.rate)
        fitted["patterns"] = fit_patterns(shards, model.patterns, beats, samples)
    return fitted
