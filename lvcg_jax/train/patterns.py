"""Fits what model/patterns.py needs: patterns drawn by a fixed seed, levels and modes of training
records.

Two passes over records that have all leads, the first over a few. Axis letters: those of
model/patterns.py, and a for all shares of a record in one row.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np
from scipy.fft import dct
from scipy.linalg import eigh

from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.model import patterns
from lvcg_jax.model.signal import record_signal
from lvcg_jax.train.beat_modes import CHUNK, MOST, in_rows

LEVEL_RECORDS = 64  # that levels are read off
MOST_LEADS = 9  # of one pattern
RAMP = 0.2  # of a response's median size
SHARPEST = 1e-4  # mV, a ramp at least
SMALLEST = 1e-4  # deviation of a share that counts: a tenth of a sample of ten seconds


def draw_leads(seed: int = 0) -> np.ndarray:
    """Which leads [s,c,l] each pattern looks at: one to nine, few more often than many."""
    rng = np.random.default_rng(seed)
    distances, _, kernels = patterns.SHARES
    numbers = 2 ** rng.uniform(0, np.log2(MOST_LEADS + 1), (distances, kernels, 1))
    ranks = rng.random((distances, kernels, len(LEADS))).argsort(-1).argsort(-1)
    return (ranks < np.floor(numbers)).astype(np.float32)


def fit_patterns(shards: ShardSet, count: int, max_beats: int, samples: int) -> dict:
    """The parameters of Patterns(count), from the records of a training split."""
    rate = shards.preprocess.rate
    chosen = np.linspace(0, len(shards) - 1, min(len(shards), MOST)).astype(int)
    few = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), LEVEL_RECORDS)).astype(int)]
    leads = draw_leads()
    found = [signal for signal, _ in whole_signals(shards, few, max_beats, samples)]
    if not found:
        raise InputError(
            f"model.patterns={count} needs training records with all twelve leads, and"
            f" {shards.directory} has none where they were looked for: set it to 0"
        )
    fitted = {"leads": leads} | _levels(np.concatenate(found), leads, rate)

    # modes, from all records
    @jax.jit
    def shares(signals, there):
        drawn = {name: fitted[name] for name in ("leads", "levels", "ramps")}
        of_record = partial(patterns.record_shares, **drawn, rate=rate)
        return jax.lax.map(lambda x: of_record(*x), (signals, there), batch_size=patterns.RECORDS)

    size, number = int(np.prod(patterns.SHARES)), 0
    total, products = np.zeros(size), np.zeros((size, size), np.float32)
    with progress_bar(total=len(chosen), unit="rec", desc="patterns", leave=False) as bar:
        for signals, there in whole_signals(shards, chosen, max_beats, samples, bar.update):
            rows = np.asarray(shares(signals, there)).reshape(len(signals), -1)
            number += len(rows)
            total += rows.sum(0, dtype=np.float64)
            products += rows.T @ rows
    mean = total / number
    covariance = products / number - np.outer(mean, mean)
    modes = leading_modes(covariance, min(count, number - 1), SMALLEST)
    modes = np.pad(modes, ((0, 0), (0, count - modes.shape[1])))
    return fitted | {
        "mean": mean.reshape(patterns.SHARES).astype(np.float32),
        "modes": modes.reshape(*patterns.SHARES, count).astype(np.float32),
    }


def whole_signals(
    shards: ShardSet,
    chosen: np.ndarray,
    max_beats: int,
    samples: int,
    report: Callable[[int], object] = int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Signals [b,l,T] in mV of those of the chosen records that have all leads, and which samples
    [b,T] they have."""
    signals = jax.jit(jax.vmap(partial(record_signal, samples=samples)))
    every = lead_mask(np.ones(len(LEADS), bool))
    for first in range(0, len(chosen), CHUNK):
        windows = list(shards.read(chosen[first : first + CHUNK].tolist()))
        report(len(windows))
        windows = [window for window in windows if int(window["lead_mask"]) == every]
        if windows:
            beats, length, _, scale = in_rows(windows, max_beats)
            found = signals(beats, length, scale)
            yield tuple(np.asarray(x)[: len(windows)] for x in found)


def covariance_of(signals: np.ndarray) -> np.ndarray:
    """How the leads of signals [b,l,T] go together, [l,l]."""
    flat = np.swapaxes(signals, 0, 1).reshape(len(LEADS), -1)
    return (flat @ flat.T / flat.shape[1]).astype(np.float32)


def _levels(signals: np.ndarray, leads: np.ndarray, rate: float) -> dict[str, np.ndarray]:
    """Levels and ramps of all patterns, and the covariance of the leads, from a few signals
    [b,l,T]: a level is a quantile of the response."""
    steps = patterns.steps_of(rate)
    of_record = partial(patterns.responses, most=max(steps))
    respond = jax.jit(jax.vmap(of_record, (0, None, None)))
    # golden section: spread evenly between 0 and 1, whichever few are looked at
    order = np.arange(1, np.prod(patterns.SHARES) + 1)
    quantiles = (order * (np.sqrt(5) - 1) / 2 % 1).reshape(patterns.SHARES)
    levels, ramps = [], []
    for s, step in enumerate(steps):
        response = np.array(respond(signals, leads[s], step)).reshape(-1, leads.shape[1])
        ramps.append(RAMP * np.median(np.abs(response), axis=0) + SHARPEST)
        response.sort(axis=0)
        levels.append(np.take_along_axis(response, (quantiles[s] * len(response)).astype(int), 0))
    return {
        "covariance": covariance_of(signals),
        "levels": np.stack(levels).astype(np.float32),
        "ramps": np.stack(ramps).astype(np.float32),
    }


def leading_modes(covariance: np.ndarray, count: int, smallest: float) -> np.ndarray:
    """What takes numbers with this covariance [a,a], less their mean, to `count` coordinates [a,f]:
    the leading modes of their correlation, scaled and rotated as in beat_shape.Modes. A deviation
    counts as `smallest` at least."""
    size = np.sqrt(np.maximum(np.diag(covariance), smallest**2))
    power, modes = eigh(
        covariance / np.outer(size, size), subset_by_index=(len(size) - count, len(size) - 1)
    )
    modes = modes / np.maximum(power, 1e-6) ** 0.25 / size[:, None]
    return modes[:, ::-1] @ dct(np.eye(count), norm="ortho")
