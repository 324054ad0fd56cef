"""Pre-training on real recordings: the objective is learnable, not only runnable."""

import os

import pytest
from helpers.commands import get_config

from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.train.loop import train_and_evaluate

needs_data = pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ,
    reason="needs LVCG_REAL_DATA: the folder with an unpacked ptbxl in it",
)


@needs_data
def test_validation_loss_on_ptbxl_falls_by_thirty_percent(tmp_path):
    """600 records, 80 steps of a narrow model: validation loss at the end against step 40, when
    the first large errors are gone."""
    config = get_config("demo")
    corpus = open_corpus("ptbxl", os.path.join(os.environ["LVCG_REAL_DATA"], "ptbxl"))
    data = tmp_path / "data"
    metadata = build(corpus, data, make_preprocess(config), limit=600, workers=2, progress=False)
    assert sum(split["records"] for split in metadata["splits"].values()) > 570
    config.data.dir, config.data.batch_size = str(data), 16
    config.train.steps, config.train.validate_every, config.train.validate_records = 80, 40, 96
    config.optim.warmup_steps, config.train.checkpoint_every = 20, 1000
    train_and_evaluate(config, tmp_path / "run")
    losses = {
        row["step"]: row["loss"]
        for row in read_metrics(tmp_path / "run")
        if row["kind"] == "validation"
    }
    print({step: round(loss) for step, loss in losses.items()})
    assert losses[80] <= 0.7 * losses[40], losses
