"""Training of the record token (lvcg_jax/model/record_token.py), which then joins trained weights:

    lvcg build --corpus=ptbxl --raw=PTBXL --out=SHARDS --preprocess=peaks=vcg
    lvcg add_parts --checkpoint=best --data=SHARDS --patterns=336 --structure=mean --out=TEACHER
    python -m lvcg_jax.train --config=configs/record_token.py --config.data.dir=SHARDS --workdir=RUN
        --config.peer.teacher=TEACHER  # one line
    lvcg add_parts --checkpoint=best --data=SHARDS --patterns=192 --beat_levels=144
        --record_token=RUN --structure=none --out=RUN2  # one line

This is how the packaged `best` got its token: TEACHER is what `best` was before. 160 passes took 43
minutes on two cores with other work beside it. docs/experiments.md has the learning curve.

The variant `configs/record_token.py:smoke` shows in seconds that everything runs.
"""

from pathlib import Path

from ml_collections import ConfigDict

from lvcg_jax.config.files import read_config_file

BATCH = 256
PASSES = 160  # over PTB-XL's 15,245 training records, 59 steps each


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "smoke"):
        raise ValueError(f"unknown config variant '{variant}': choose smoke, or none")
    # shards, and so preprocessing, as `best` has them; the sections that only LVCG reads stay
    preset = "smoke" if variant else "best"
    c = read_config_file(Path(__file__).with_name(f"pretrain.py:{preset}"))
    c.model.patterns = 0
    c.model.beat_levels = 0
    c.model.beat_modes = (0, 0)
    c.model.dropout = 0.0
    c.model.record_token = 256
    c.data.batch_size = BATCH  # each view is compared with 510 others
    c.optim.learning_rate = 6e-3
    c.optim.batch_rule = "none"
    c.optim.weight_decay = 0.05
    c.optim.warmup_steps = 200
    c.train.steps = PASSES * 59
    c.train.log_every = 59
    c.train.validate_every = 10 * 59
    c.train.validate_records = 512
    c.train.checkpoint_every = 5 * 59

    c.peer = ConfigDict()
    c.peer.method = "record_views"
    c.peer.teacher = "best"  # a run or packaged weights, with the shards' preprocessing
    c.peer.targets = 256  # principal components of what it says
    c.peer.predictor = 512  # hidden layer of the head that tells them
    c.peer.contrast = 0.03  # weight of telling records apart
    c.peer.projection = (256, 128)  # layers of the head whose outputs are compared for that
    c.peer.temperature = 0.1
    if variant == "smoke":
        tiny = read_config_file(Path(__file__).with_name("pretrain.py:smoke"))
        for name in ("data", "train"):
            c[name] = tiny[name]
        c.optim.warmup_steps = tiny.optim.warmup_steps
        c.model.record_token = 16
        c.model.record_stem = 4
        c.model.record_features = (8, 8, 8, 8)
        c.model.record_blocks = (1, 1, 1, 1)
        c.peer.update({"teacher": "", "targets": 8, "predictor": 16, "projection": (16, 8)})
    return c
