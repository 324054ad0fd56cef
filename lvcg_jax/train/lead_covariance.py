"""Fits what unseen leads are filled in by where a whole record is read (model/record_token.py): how
the leads of training records go together, in mV."""

import numpy as np

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.train.patterns import covariance_of, whole_signals

RECORDS = 512  # that it is measured on, spread over the whole set


def fit_lead_covariance(shards: ShardSet, max_beats: int, samples: int) -> np.ndarray:
    """[l,l], the mean over training records that have all leads."""
    chosen = np.linspace(0, len(shards) - 1, min(len(shards), RECORDS)).astype(int)
    found = [
        covariance_of(signals[i : i + 1])
        for signals, _ in whole_signals(shards, chosen, max_beats, samples)
        for i in range(len(signals))
    ]
    if not found:
        raise InputError(
            "the record token needs training records with all twelve leads, and"
            f" {shards.directory} has none where they were looked for"
        )
    return np.mean(found, axis=0)
