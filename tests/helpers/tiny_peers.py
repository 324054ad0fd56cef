"""Peers at the smallest size, and batches of random records for them."""

import numpy as np
from helpers.commands import ROOT
from helpers.packed_batch import ALL_LEADS

from lvcg_jax.config.files import read_config_file
from lvcg_jax.data import packing

SAMPLES, SLOTS, BEAT = 200, 6, 16  # of a record; beats of it at most; samples of a beat


def peer_config(variant):
    """configs/peers.py:VARIANT."""
    return read_config_file(f"{ROOT / 'configs' / 'peers.py'}:{variant}")


def tiny_peer(method):
    """The smoke variant of a method on records of two seconds, with one stage of the ResNet."""
    config = peer_config(f"{method}-smoke")
    config.preprocess.update({"seconds": 2.0, "beat_samples": BEAT, "max_beats": SLOTS})
    config.model.update({"stage_features": (8,), "stage_blocks": (1,), "stem_features": 8})
    config.peer.update({"patch": 20, "vit_layers": 1})
    config.optim.warmup_steps = 1
    return config


def random_windows(counts, seed=0, lead_masks=None):
    """Records of two seconds with these numbers of beats, as shards give them."""
    rng = np.random.default_rng(seed)
    masks = [ALL_LEADS] * len(counts) if lead_masks is None else lead_masks
    windows = []
    for number, (n, mask) in enumerate(zip(counts, masks, strict=True)):
        ends = np.sort(rng.choice(np.arange(5, SAMPLES - 5), n - 1, replace=False))
        length = np.diff(np.concatenate([[0], ends, [SAMPLES]])).astype(np.int32)
        windows.append(
            {
                "beats": rng.normal(size=(n, 12, BEAT)).astype(np.float16),
                "length": length,
                "complete": np.array([0 < k < n - 1 for k in range(n)], bool),
                "lead_mask": mask,
                "scale": rng.uniform(0.05, 0.5, 12).astype(np.float32),
                "uid": rng.integers(2**32, dtype=np.uint32),
                "signal": rng.normal(size=(12, SAMPLES)).astype(np.float16),
                "patient_id": f"patient {number // 2}",
            }
        )
    return windows


def peer_batch(windows, groups=1, slots=40):
    """The windows (None: an empty row) in equal groups, [g,...]."""
    rows = len(windows) // groups
    batch = packing.empty((groups,), slots, rows, BEAT, signal=SAMPLES)
    for g in range(groups):
        packing.fill(batch, windows[g * rows : (g + 1) * rows], (g,))
    return batch
