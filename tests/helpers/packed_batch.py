"""A tiny model, random batches in the packed layout, and random variables without running the
initialisers."""

import jax
import numpy as np
from helpers.commands import get_config

from lvcg_jax.config.fields import flatten
from lvcg_jax.data import packing
from lvcg_jax.model.masking import beat_owner

ALL_LEADS = 4095


def tiny_config():
    """The smoke variant with beats of 16 samples: every kind of layer, few of each, and so a quick
    compilation."""
    config = get_config("smoke")
    config.preprocess.beat_samples = 16
    config.model.stage_features = (8, 12)
    config.model.stage_blocks = (1, 1)
    config.model.decoder_features = (8, 4)
    return config


def tiny_preset(name):
    """tiny_config with the choices of a preset; of its sizes only those that switch something
    on."""
    config, paper, preset = tiny_config(), flatten(get_config("paper")), flatten(get_config(name))
    config.update_from_flattened_dict(
        {field: v for field, v in preset.items() if v != paper[field]}
    )
    config.model.refine = 4 if config.model.refine else 0
    return config


def random_records(counts, beat_samples, seed=0, lead_masks=None):
    """Records with the given numbers of beats, as a list of dicts of arrays."""
    rng = np.random.default_rng(seed)
    masks = [ALL_LEADS] * len(counts) if lead_masks is None else lead_masks
    return [
        {
            "beats": rng.normal(size=(n, 12, beat_samples)).astype(np.float16),
            "length": rng.integers(40, 160, n).astype(np.int32),
            "complete": np.array([0 < k < n - 1 for k in range(n)], bool),
            "lead_mask": mask,
            "scale": rng.uniform(0.05, 0.5, 12).astype(np.float32),
            "uid": rng.integers(2**32, dtype=np.uint32),
        }
        for n, mask in zip(counts, masks, strict=True)
    ]


def pack(records, groups, capacity, padding=0.0):
    """Records in order, `groups` equal parts of them packed one by one; `padding` fills the unused
    beats."""
    rows = len(records) // groups
    batch = packing.empty((groups,), capacity, rows, records[0]["beats"].shape[-1])
    batch["beats"][:] = padding
    for g in range(groups):
        packing.fill(batch, records[g * rows : (g + 1) * rows], (g,))
    return batch


def owners(batch):
    """beat_owner of a batch, as numpy arrays."""
    return [np.asarray(x) for x in beat_owner(batch["num_beats"], batch["length"].shape[1])]


def random_variables(model, batch, max_beats, seed=0):
    """Parameters and running statistics of the right shapes, all of them random (biases and scales
    too)."""
    shapes = jax.eval_shape(
        lambda b: model.init(jax.random.key(0), b, b["lead_mask"], None, max_beats), batch
    )
    rng = np.random.default_rng(seed)

    def draw(path, x):
        name = path[-1].key
        if name == "kernel":
            return rng.normal(size=x.shape, scale=np.prod(x.shape[:-1]) ** -0.5).astype(x.dtype)
        if name.endswith("covariance"):
            mixed = rng.normal(size=x.shape)
            return (mixed @ mixed.T / len(mixed)).astype(x.dtype)
        if name in ("scale", "var"):
            return rng.uniform(0.5, 1.5, x.shape).astype(x.dtype)
        return rng.normal(size=x.shape, scale=0.3).astype(x.dtype)

    return jax.tree.map_with_path(draw, shapes)
