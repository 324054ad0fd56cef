"""Reference vectors of the authors' modules at small widths (tests/data/README.md), as a batch of
this project."""

from pathlib import Path

import numpy as np

from data_prep.ecg.segment import cut_beats

DATA = Path(__file__).parents[1] / "golden"
CHECKPOINT = DATA / "release_small.pt"
SLOTS = 20


def golden() -> dict[str, np.ndarray]:
    """Inputs `in/*`, what every stage returned `out/*`, and the loss terms `loss/*`."""
    with np.load(DATA / "release_small.npz") as file:
        return dict(file)


def golden_batch(reference: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The four records in the layout of model.py, their beats cut from the leads, and the visible
    lead masks [g,r]."""
    counts = reference["in/mask"].sum(1).astype(np.int32)
    beats, length = [], []
    for ecg, rr, n in zip(reference["in/ecg"], reference["in/rr"], counts, strict=True):
        samples = rr[:n].astype(np.int32)
        beats.append(cut_beats(ecg, np.cumsum(samples) - samples, samples, 128))
        length.append(samples)
    batch = {
        "beats": np.concatenate(beats)[None],
        "length": np.concatenate(length)[None],
        "complete": np.concatenate([(np.arange(n) > 0) & (np.arange(n) < n - 1) for n in counts])[
            None
        ],
        "num_beats": counts[None],
        "lead_mask": np.full((1, 4), 4095, np.int32),
        "uid": np.arange(4, dtype=np.uint32)[None],
    }
    return batch, (1 << reference["in/visible"]).sum(1).astype(np.int32)[None]
