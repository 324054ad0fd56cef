"""Fits the levels and modes of model/beat_levels.py to training records.

One pass over records that have all leads: their median beats, which stay in memory, say the levels,
and the answers to these the modes. Axis letters: those of beat_levels.py, a answer, b record.
"""

from functools import partial

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.model import beat_levels
from lvcg_jax.train.beat_modes import CHUNK, MOST, in_rows
from lvcg_jax.train.patterns import leading_modes

SHARPEST = 1e-3  # mV, a ramp at least
SMALLEST = 1e-3  # deviation of an answer that counts


def fit_beat_levels(shards: ShardSet, count: int, max_beats: int) -> dict[str, np.ndarray]:
    """The parameters of BeatLevels(count), from the records of a training split."""
    beats = median_beats(shards, max_beats)
    if len(beats) < 2:
        raise InputError(
            f"model.beat_levels={count} needs training records with all twelve leads, and"
            f" {shards.directory} has {len(beats)}: set it to 0"
        )
    measured = np.asarray(beat_levels.orders(beats))  # [o,b,l,w]
    levels = np.quantile(measured, beat_levels.QUANTILES, axis=1).swapaxes(0, 1)
    away = np.abs(measured - np.median(measured, axis=1, keepdims=True))
    fitted = {
        "levels": levels.astype(np.float32),
        "ramps": (np.median(away, axis=1) + SHARPEST).astype(np.float32),
    }

    # modes
    of_records = jax.jit(jax.vmap(partial(beat_levels.answers, **fitted)))
    size = int(np.prod(beat_levels.ANSWERS))
    total, products = np.zeros(size), np.zeros((size, size), np.float32)
    for first in range(0, len(beats), CHUNK):
        rows = np.asarray(of_records(beats[first : first + CHUNK])).reshape(-1, size)
        total += rows.sum(0, dtype=np.float64)
        products += rows.T @ rows
    mean = total / len(beats)
    covariance = products / len(beats) - np.outer(mean, mean)
    modes = leading_modes(covariance, min(count, len(beats) - 1), SMALLEST)
    modes = np.pad(modes, ((0, 0), (0, count - modes.shape[1])))
    return fitted | {
        "mean": mean.reshape(beat_levels.ANSWERS).astype(np.float32),
        "modes": modes.reshape(*beat_levels.ANSWERS, count).astype(np.float32),
    }


def median_beats(shards: ShardSet, max_beats: int) -> np.ndarray:
    """[b,l,w] in mV of records that have all leads, spread over the whole set."""
    chosen = np.linspace(0, len(shards) - 1, min(len(shards), MOST)).astype(int)
    every = lead_mask(np.ones(len(LEADS), bool))
    of_records = jax.jit(jax.vmap(partial(beat_levels.median_beat, rate=shards.preprocess.rate)))
    found = []
    with progress_bar(total=len(chosen), unit="rec", desc="median beats", leave=False) as bar:
        for first in range(0, len(chosen), CHUNK):
            windows = list(shards.read(chosen[first : first + CHUNK].tolist()))
            bar.update(len(windows))
            windows = [window for window in windows if int(window["lead_mask"]) == every]
            if windows:
                rows = of_records(*in_rows(windows, max_beats))
                found.append(np.asarray(rows)[: len(windows)])
    shape = beat_levels.ANSWERS[2:]
    return np.concatenate([np.zeros((0, *shape), np.float32), *found])
