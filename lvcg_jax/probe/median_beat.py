"""The control without any learning: a record's median 12-lead beat (PCA) and seven R-R statistics.

A learned embedding that does not beat these features in a linear probe has not earned its keep, so
every probe table carries them. Numpy only.

    lvcg median_beat --data=SHARDS --out=median_beat.npz
    lvcg median_beat --data=SHARDS --out=beat_and_sizes.npz --sizes

Axis letters: m record, n beat, l lead, p sample in beat, k component.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.dataset.shards import read_metadata
from data_prep.ecg.leads import LEADS, mask_leads
from lvcg_jax.data.packing import without_samples
from lvcg_jax.data.windows import dataset_windows
from lvcg_jax.embed.table import Table, save_table, window_table
from lvcg_jax.stats.scaling import fit_pca

RR_STATISTICS = ("mean", "std", "min", "max", "cv", "rmssd", "number")


def median_beat(example: dict) -> np.ndarray:
    """Median over a record's complete beats (all beats if none is complete), float32 [l*p]; missing
    leads are zero."""
    beats = np.asarray(example["beats"], np.float32)  # [n,l,p]
    if beats.ndim != 3 or not len(beats):
        raise InputError(
            f"record {example.get('record_id', '?')} has no beat, so no median beat: {beats.shape}"
        )
    complete = np.asarray(example["complete"], bool)
    beat = np.median(beats[complete] if complete.any() else beats, axis=0)
    if "lead_mask" in example:
        beat = np.where(mask_leads(int(example["lead_mask"]))[:, None], beat, 0.0)
    return np.nan_to_num(beat, nan=0.0).ravel().astype(np.float32)


def rr_features(example: dict, rate: float | None = None) -> np.ndarray:
    """R-R statistics (order of RR_STATISTICS; seconds) of the complete beats, float32 [7]; zeros
    when there is none."""
    rate = float(example["rate"] if rate is None else rate)
    rr = np.asarray(example["length"], np.float64)[np.asarray(example["complete"], bool)] / rate
    if not len(rr):
        return np.zeros(len(RR_STATISTICS), np.float32)
    rmssd = np.sqrt(np.mean(np.diff(rr) ** 2)) if len(rr) > 1 else 0.0
    return np.array(
        [rr.mean(), rr.std(), rr.min(), rr.max(), rr.std() / rr.mean(), rmssd, len(rr)], np.float32
    )


def log_sizes(example: dict) -> np.ndarray:
    """Logarithms of the leads' sizes in mV, float32 [l]; a missing lead gets the mean of the
    others."""
    present = mask_leads(int(example["lead_mask"]))
    logs = np.log(np.where(present, example["scale"], 1.0))
    return np.where(present, logs, logs[present].mean()).astype(np.float32)


def raw_features(
    examples: Iterable[dict], rate: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(median beats [m,l*p], R-R statistics [m,7]) of decoded examples; `rate` in Hz if they do not
    hold it."""
    pairs = [(median_beat(example), rr_features(example, rate)) for example in examples]
    if not pairs:
        raise InputError("the median-beat control needs at least one record")
    beats, rr = zip(*pairs, strict=True)
    return np.stack(beats), np.stack(rr)


def median_beat_features(
    beats: np.ndarray, rr: np.ndarray, is_train: np.ndarray, components: int = 256
) -> np.ndarray:
    """Control features float32 [m,k+7]; the PCA is fitted on the training rows only."""
    is_train = np.asarray(is_train, bool)
    if not len(beats) == len(rr) == len(is_train):
        raise InputError(
            f"beats, R-R statistics and rows differ in number: {len(beats)}, {len(rr)},"
            f" {len(is_train)}"
        )
    scores = fit_pca(beats[is_train], components).transform(beats)
    return np.concatenate([scores, rr], axis=1, dtype=np.float32)


def median_beat_table(
    data: str | Path, splits: Sequence[str] | None = None, sizes: bool = False
) -> Table:
    """The median-beat control of these splits of a data set (default: all), as a table that the
    probe reads.

    With `sizes` also the leads' sizes: the control of models that read them.
    """
    metadata = read_metadata(data)
    rows: list[dict] = []

    def noted() -> Iterator[dict]:
        for window in dataset_windows(data, splits):
            rows.append(without_samples(window))
            yield window

    beats, rr = raw_features(noted(), metadata["preprocess"]["rate"])
    is_train = np.array([row["split"] == "train" for row in rows])
    features = median_beat_features(beats, rr, is_train)
    facts = {
        "checkpoint": "median beat, no learning",
        "preprocess_hash": metadata["preprocess_hash"],
        "tasks": json.dumps(metadata["tasks"]),
    }
    parts = {"median_beat": features.shape[1] - rr.shape[1], "rr": rr.shape[1]}
    if sizes:
        features = np.concatenate([features, [log_sizes(row) for row in rows]], axis=1)
        parts["sizes"] = len(LEADS)
    return window_table(rows, features, parts, facts)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("median_beat", __doc__)
    parser.add_argument("--data", required=True, help="shards of data_prep.build")
    parser.add_argument("--out", required=True, help="table to write: .npz or .parquet")
    parser.add_argument(
        "--sizes",
        action="store_true",
        help="also the leads' sizes in mV, for models that read them",
    )
    args = parser.parse_args(argv)
    table = median_beat_table(args.data, sizes=args.sizes)
    save_table(args.out, table)
    print(
        f"median-beat features of {len(table.record_id)} records, {table.embedding.shape[1]}"
        f" numbers each: {args.out}"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
