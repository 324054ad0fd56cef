"""Reference vectors of the authors' modules at small widths (tests/golden/README.md), as a batch of
this project."""

from pathlib import Path

import numpy as np

from data_prep.ecg.segment import cut_beats
from lvcg_jax.data import packing

DATA = Path(__file__).parents[1] / "golden"
CHECKPOINT = DATA / "release_small.pt"
SLOTS = 20


def golden() -> dict[str, np.ndarray]:
    """Inputs `in/*`, what every stage returned `out/*`, and the loss terms `loss/*`."""
    with np.load(DATA / "release_small.npz") as file:
        return dict(file)


def golden_batch(reference: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The four records in the layout of packing.py, their beats cut from the leads, and the visible
    lead masks [g,r]."""
    counts = reference["in/mask"].sum(1).astype(np.int32)
    windows = []
    for ecg, rr, n in zip(reference["in/ecg"], reference["in/rr"], counts, strict=True):
        length = rr[:n].astype(np.int32)
        beats = cut_beats(ecg, np.cumsum(length) - length, length, 128)
        complete = (np.arange(n) > 0) & (np.arange(n) < n - 1)
        record = {"lead_mask": 4095, "scale": np.ones(12), "uid": len(windows)}
        windows.append({"beats": beats, "length": length, "complete": complete} | record)
    batch = packing.fill(packing.empty((1,), counts.sum(), len(counts), 128), windows)
    # not rounded to the float16 of a batch: the authors' numbers come from these
    batch["beats"] = np.concatenate([window["beats"] for window in windows])[None]
    return batch, (1 << reference["in/visible"]).sum(1).astype(np.int32)[None]
