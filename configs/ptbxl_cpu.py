"""A first real pre-training: the paper's model and objective on PTB-XL, within two hours on two cores.

    python -m data_prep.build --corpus=ptbxl --raw=PTBXL --out=SHARDS --config=peaks=vcg --workers=2
    python -m lvcg_jax.train --config=configs/ptbxl_cpu.py --workdir=runs/ptbxl_cpu --config.data.dir=SHARDS

Sizes, losses and batch are those of the paper; what differs is what a short run needs, and is written below. The
variant `configs/ptbxl_cpu.py:record_dower` keeps the dipole relation between leads: one scale for all leads of a record
(shards built with `--config=normalise=record`) and Dower's lead directions.

What the first run gave: 1,600 steps of 2.7 to 3.6 s on two cores (other work beside it), about 80 minutes; validation
loss best at step 1,400 (hidden leads R2 0.458, visible heart vector 0.898). Test macro AUROC x 100 on fold 9 with 1, 10
and 100% of the labels, `python -m lvcg_jax.results` (docs/results.md has intervals and every class):

    super  79.5 / 85.7 / 88.1   random weights 68.0 / 77.5 / 81.7   median beat 67.3 / 81.0 / 87.0
    sub    73.7 / 83.5 / 88.3                  61.3 / 72.5 / 79.1               61.3 / 76.6 / 86.9
    form   62.8 / 71.5 / 78.9                  58.5 / 62.8 / 71.1               57.2 / 63.5 / 74.5
    rhythm 87.6 / 93.0 / 95.8                  83.0 / 88.9 / 92.7               75.4 / 85.6 / 91.6
"""

from pathlib import Path

from ml_collections import ConfigDict

from lvcg_jax.config import read_config_file


def get_config(variant: str = "paper") -> ConfigDict:
    c = read_config_file(Path(__file__).with_name("pretrain.py"))
    c.preprocess.peaks = "vcg"  # lead II misses beats in one record of ten
    c.geometry.eps = 1e-2  # with the paper's 1e-4 a few nearly degenerate views carry the whole loss
    c.optim.learning_rate = 1e-3  # a short schedule: 1,600 steps are seven passes over 15,245 records
    c.optim.warmup_steps = 100
    c.train.steps = 1_600
    c.train.log_every = 20
    c.train.validate_every = 200
    c.train.validate_records = 512
    c.train.checkpoint_every = 100
    c.train.keep_checkpoints = 2
    if variant == "record_dower":
        c.preprocess.normalise = "record"
        c.geometry.matrix = "dower"
    elif variant != "paper":
        raise ValueError(f"unknown config variant '{variant}': choose from paper, record_dower")
    return c
