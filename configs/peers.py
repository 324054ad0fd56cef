"""Other self-supervised methods on the same shards, with one budget for all (docs/peers.md).

    lvcg build --corpus=ptbxl --raw=PTBXL --out=SHARDS --preprocess=peaks=vcg --store_signal
    python -m lvcg_jax.train --config=configs/peers.py:simclr --config.data.dir=SHARDS
    python -m lvcg_jax.train --config=configs/peers.py:simclr-low --config.data.dir=SHARDS
    python -m lvcg_jax.train --config=configs/peers.py:st_mem-best --config.data.dir=SHARDS
    python -m lvcg_jax.train --config=configs/peers.py:byol-smoke --workdir=runs/byol

A variant is a method, and further words after it:

    low     the second of the two learning rates that every method is tried with
    best    encoders of the size of LVCG's `best`, instead of `small`
    smoke   seconds on two cores, on synthetic records: shows that everything runs

The budget is that of `configs/ptbxl_cpu.py:small`: 1,600 steps of 64 records, warm-up and cosine,
AdamW, the last checkpoint. What the papers do beyond that is listed in docs/peers.md.
"""

from pathlib import Path

from ml_collections import ConfigDict

from lvcg_jax.config.files import read_config_file

LEARNING_RATES = (1e-3, 3e-4)  # tried for every method
# What a method has of its own; the other fields are those of `common`.
METHODS = {
    "simclr": {"temperature": 0.1},
    "byol": {"momentum": 0.99},
    "barlow_twins": {"projection": (256, 256)},
    "moco_v3": {"temperature": 0.2, "momentum": 0.99},
    "simsiam": {"projection": (256, 256), "predictor": 64},
    "ts_tcc": {"temperature": 0.2},
    "clocs": {"temperature": 0.1},
    "astcl": {"projection": (256, 256), "predictor": 64},
    "crt": {"hidden_share": 0.7, "temperature": 0.2},
    "st_mem": {"hidden_share": 0.75},
    "heartlang": {"hidden_share": 0.5},
    "ecg_jepa": {"hidden_share": 0.6, "momentum": 0.996},
}


def common() -> ConfigDict:
    """What all methods share, at the size of LVCG's `small`.

    The sections that only LVCG reads (geometry, loss, most of model) stay as they are.
    """
    c = read_config_file(Path(__file__).with_name("ptbxl_cpu.py:small"))
    c.model.dropout = 0.0
    c.model.beat_modes = (0, 0)  # LVCG's own
    c.model.patterns = 0
    c.model.beat_levels = 0
    c.optim.learning_rate = LEARNING_RATES[0]

    c.peer = ConfigDict()
    c.peer.method = ""
    # mV of one unit of the input, so that sizes in mV are seen; 0: every lead has unit deviation
    c.peer.unit_mv = 0.2
    c.peer.projection = (256, 128)  # layers of the projection head
    c.peer.predictor = 128  # hidden layer of a predictor or discriminator
    c.peer.temperature = 0.1  # of InfoNCE
    c.peer.momentum = 0.99  # of a teacher, per step
    # transformers, and the small networks that fill in or look ahead
    c.peer.patch = 50  # samples
    c.peer.hidden_share = 0.75  # of patches, times or words
    c.peer.vit_dim = 96
    c.peer.vit_layers = 5
    c.peer.vit_heads = 4
    c.peer.decoder_dim = 64
    c.peer.decoder_layers = 1
    c.peer.codes = 512  # HeartLang: words of the vocabulary
    c.peer.code_dim = 32
    return c


def make_best(c: ConfigDict) -> None:
    """The sizes of LVCG's `best`, and a transformer of 3.6 million parameters."""
    large = read_config_file(Path(__file__).with_name("pretrain.py:best"))
    for name in ("token_dim", "stem_features", "stage_features", "stage_blocks"):
        c.model[name] = large.model[name]
    c.peer.projection = (512, *c.peer.projection[1:])
    c.peer.vit_dim = 192
    c.peer.vit_layers = 8
    c.peer.decoder_dim = 128
    c.peer.decoder_layers = 2


def make_smoke(c: ConfigDict) -> None:
    """The sizes of LVCG's `smoke`."""
    tiny = read_config_file(Path(__file__).with_name("pretrain.py:smoke"))
    for name in ("token_dim", "stem_features", "stage_features", "stage_blocks"):
        c.model[name] = tiny.model[name]
    for name in ("data", "train"):
        c[name] = tiny[name]
    c.optim.warmup_steps = tiny.optim.warmup_steps
    sizes = {"projection": (16, 8), "predictor": 8, "codes": 16, "code_dim": 4}
    sizes |= {"vit_dim": 16, "vit_layers": 2, "vit_heads": 2, "decoder_dim": 8}
    c.peer.update(sizes)


def get_config(variant: str) -> ConfigDict:
    method, *words = variant.split("-")
    if method not in METHODS:
        raise ValueError(f"unknown method '{method}': choose from {', '.join(METHODS)}")
    c = common()
    c.peer.method = method
    c.peer.update(METHODS[method])
    for word in words:
        if word == "low":
            c.optim.learning_rate = LEARNING_RATES[1]
        elif word in ("best", "smoke"):
            {"best": make_best, "smoke": make_smoke}[word](c)
        else:
            raise ValueError(f"unknown word '{word}' in '{variant}': choose low, best or smoke")
    return c
