"""Fits the modes of model/beat_shape.py: principal components of training records.

One pass over records that have all leads; seconds to a minute for 15,000. Axis letters: a lead and
sample in one row, f mode.
"""

from functools import partial

import jax
import numpy as np
from scipy.linalg import eigh

from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.model.beat_shape import TIMES, mean_and_change

CHUNK = 128  # records at a time
MOST = 20_000  # records, spread over the whole set; more change nothing that is seen
PICTURES = ("mean", "change")


def fit_beat_modes(shards: ShardSet, modes: tuple[int, int], max_beats: int) -> dict[str, dict]:
    """The parameters of BeatShape(*modes), from the records of a training split."""
    size = len(LEADS) * len(TIMES)
    count, sums = 0, {name: np.zeros(size) for name in PICTURES}
    products = {name: np.zeros((size, size)) for name in PICTURES}
    pictures = jax.jit(partial(mean_and_change, rate=shards.preprocess.rate))
    chosen = np.linspace(0, len(shards) - 1, min(len(shards), MOST)).astype(int)
    every = lead_mask(np.ones(len(LEADS), bool))
    with progress_bar(total=len(chosen), unit="rec", desc="modes of beats", leave=False) as bar:
        for first in range(0, len(chosen), CHUNK):
            windows = list(shards.read(chosen[first : first + CHUNK].tolist()))
            bar.update(len(windows))
            windows = [window for window in windows if int(window["lead_mask"]) == every]
            if not windows:
                continue
            count += len(windows)
            for name, x in zip(PICTURES, pictures(*in_rows(windows, max_beats)), strict=True):
                x = np.asarray(x, np.float64)[: len(windows)].reshape(len(windows), -1)
                sums[name] += x.sum(0)
                products[name] += x.T @ x
    if count < 2:
        raise InputError(
            f"model.beat_modes={tuple(modes)} needs training records with all twelve leads, and"
            f" {shards.directory} has {count}: set it to (0, 0)"
        )
    return {
        name: _principal(sums[name] / count, products[name] / count, number, count)
        for name, number in zip(PICTURES, modes, strict=True)
    }


def in_rows(windows: list[dict], max_beats: int) -> tuple[np.ndarray, ...]:
    """beats [b,n,l,p], length [b,n], count [b] and scale [b,l], as mean_and_change takes them; b is
    CHUNK, the last rows empty."""
    p = np.asarray(windows[0]["beats"]).shape[-1]
    beats = np.zeros((CHUNK, max_beats, len(LEADS), p), np.float16)
    length = np.zeros((CHUNK, max_beats), np.int32)
    count, scale = np.zeros(CHUNK, np.int32), np.ones((CHUNK, len(LEADS)), np.float32)
    for i, window in enumerate(windows):
        n = count[i] = min(len(window["beats"]), max_beats)
        beats[i, :n], length[i, :n] = window["beats"][:n], window["length"][:n]
        scale[i] = window["scale"]
    return beats, length, count, scale


def _principal(
    mean: np.ndarray, products: np.ndarray, number: int, count: int
) -> dict[str, np.ndarray]:
    """Mean, modes and the variance of what they leave over, of `count` vectors [a] with these mean
    products [a,a]; modes that so few vectors do not have are zero."""
    covariance = products - np.outer(mean, mean)
    size, there = len(covariance), min(number, count - 1)
    power, modes = eigh(covariance, subset_by_index=(size - there, size - 1))
    left = (np.trace(covariance) - power.sum()) / size
    found = np.zeros((size, number), np.float32)
    found[:, :there] = (modes * np.sqrt(np.maximum(power, 0.0)))[:, ::-1]
    shape = (len(LEADS), len(TIMES))
    return {
        "mean": mean.reshape(shape).astype(np.float32),
        "modes": found.reshape(*shape, number),
        "noise": np.array([max(left, 1e-4)], np.float32),
    }
