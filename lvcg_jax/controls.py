"""The control without any learning: a record's median 12-lead beat (PCA) and seven R-R statistics.

A learned embedding that does not beat these features in a linear probe has not earned its keep, so every probe table
carries them. Numpy only.

    python -m lvcg_jax.controls --data=SHARDS --out=median_beat.npz
    python -m lvcg_jax.controls --data=SHARDS --out=beat_and_sizes.npz --sizes

Axis letters: m record, n beat, l lead, p sample in beat, k component.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.errors import InputError, run_command
from data_prep.leads import LEADS, mask_leads
from data_prep.shards import read_metadata
from lvcg_jax.table import Table, save_table, window_table
from lvcg_jax.windows import dataset_windows, without_samples

RR_STATISTICS = ("mean", "std", "min", "max", "cv", "rmssd", "number")


@dataclass(frozen=True)
class Pca:
    """Principal axes of training rows."""

    mean: np.ndarray  # [D]
    axes: np.ndarray  # [D,k] orthonormal columns, largest variance first
    variance: np.ndarray  # [k]
    total_variance: float

    def project(self, x: np.ndarray) -> np.ndarray:
        """[m,D] -> float32 [m,k]"""
        return ((np.asarray(x, np.float64) - self.mean) @ self.axes).astype(np.float32)


def median_beat(example: dict) -> np.ndarray:
    """Median over a record's complete beats (all beats if none is complete), float32 [l*p]; missing leads are zero."""
    beats = np.asarray(example["beats"], np.float32)  # [n,l,p]
    if beats.ndim != 3 or not len(beats):
        raise InputError(f"record {example.get('record_id', '?')} has no beat, so no median beat: {beats.shape}")
    complete = np.asarray(example["complete"], bool)
    beat = np.median(beats[complete] if complete.any() else beats, axis=0)
    if "lead_mask" in example:
        beat = np.where(mask_leads(int(example["lead_mask"]))[:, None], beat, 0.0)
    return np.nan_to_num(beat, nan=0.0).ravel().astype(np.float32)


def rr_features(example: dict, rate: float | None = None) -> np.ndarray:
    """R-R statistics (order of RR_STATISTICS; seconds) of the complete beats, float32 [7]; zeros when there is none."""
    rate = float(example["rate"] if rate is None else rate)
    rr = np.asarray(example["length"], np.float64)[np.asarray(example["complete"], bool)] / rate
    if not len(rr):
        return np.zeros(len(RR_STATISTICS), np.float32)
    rmssd = np.sqrt(np.mean(np.diff(rr) ** 2)) if len(rr) > 1 else 0.0
    return np.array([rr.mean(), rr.std(), rr.min(), rr.max(), rr.std() / rr.mean(), rmssd, len(rr)], np.float32)


def log_sizes(example: dict) -> np.ndarray:
    """Logarithms of the leads' sizes in mV, float32 [l]; a missing lead gets the mean of the others."""
    present = mask_leads(int(example["lead_mask"]))
    logs = np.log(np.where(present, example["scale"], 1.0))
    return np.where(present, logs, logs[present].mean()).astype(np.float32)


def raw_features(examples: Iterable[dict], rate: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(median beats [m,l*p], R-R statistics [m,7]) of decoded examples; `rate` in Hz if they do not hold it."""
    pairs = [(median_beat(example), rr_features(example, rate)) for example in examples]
    if not pairs:
        raise InputError("the median-beat control needs at least one record")
    beats, rr = zip(*pairs, strict=True)
    return np.stack(beats), np.stack(rr)


def fit_pca(x: np.ndarray, components: int = 256) -> Pca:
    """Principal axes of rows [m,D]; fewer than asked when the rows span fewer dimensions. Signs are fixed."""
    x = np.asarray(x, np.float64)
    if len(x) < 2 or not np.isfinite(x).all():
        raise InputError(f"PCA needs at least two rows of finite numbers, got {x.shape}")
    mean = x.mean(0)
    x = x - mean
    m, size = x.shape
    if m >= size:
        variance, axes = np.linalg.eigh(x.T @ x / m)
        variance, axes = variance[::-1], axes[:, ::-1]
    else:
        _, singular, axes = np.linalg.svd(x, full_matrices=False)
        variance, axes = singular**2 / m, axes.T
    keep = np.flatnonzero(variance > 1e-10 * max(variance[0], 1e-300))[:components]
    variance, axes = variance[keep], axes[:, keep]
    largest = axes[np.abs(axes).argmax(0), np.arange(len(keep))]
    return Pca(mean, axes * np.where(largest < 0, -1.0, 1.0), variance, float(np.square(x).sum() / m))


def median_beat_features(
    beats: np.ndarray, rr: np.ndarray, is_train: np.ndarray, components: int = 256
) -> tuple[np.ndarray, Pca]:
    """Control features float32 [m,k+7] and the PCA, which is fitted on the training rows only."""
    is_train = np.asarray(is_train, bool)
    if not len(beats) == len(rr) == len(is_train):
        raise InputError(f"beats, R-R statistics and rows differ in number: {len(beats)}, {len(rr)}, {len(is_train)}")
    pca = fit_pca(beats[is_train], components)
    return np.concatenate([pca.project(beats), rr.astype(np.float32)], axis=1), pca


def median_beat_table(data: str | Path, splits: Sequence[str] | None = None, sizes: bool = False) -> Table:
    """The median-beat control of these splits of a data set (default: all), as a table that the probe reads.

    With `sizes` also the leads' sizes: the control of models that read them.
    """
    metadata = read_metadata(data)
    rows: list[dict] = []

    def noted() -> Iterator[dict]:
        for window in dataset_windows(data, splits):
            rows.append(without_samples(window))
            yield window

    beats, rr = raw_features(noted(), metadata["preprocess"]["rate"])
    features, pca = median_beat_features(beats, rr, np.array([row["split"] == "train" for row in rows]))
    facts = {
        "checkpoint": "median beat, no learning",
        "preprocess_hash": metadata["preprocess_hash"],
        "tasks": json.dumps(metadata["tasks"]),
    }
    parts = {"median_beat": pca.axes.shape[1], "rr": rr.shape[1]}
    if sizes:
        features = np.concatenate([features, [log_sizes(row) for row in rows]], axis=1)
        parts["sizes"] = len(LEADS)
    return window_table(rows, features, parts, facts)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lvcg_jax.controls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="shards of data_prep.build")
    parser.add_argument("--out", required=True, help="table to write: .npz or .parquet")
    parser.add_argument("--sizes", action="store_true", help="also the leads' sizes in mV, for models that read them")
    args = parser.parse_args(argv)
    table = median_beat_table(args.data, sizes=args.sizes)
    save_table(args.out, table)
    print(
        f"median-beat features of {len(table.record_id)} records, {table.embedding.shape[1]} numbers each: {args.out}"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
