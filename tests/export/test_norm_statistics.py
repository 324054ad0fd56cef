"""Norm statistics of all leads."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax import LVCG
from lvcg_jax.embed import lvcg
from lvcg_jax.export import norm_statistics
from lvcg_jax.model.masking import beat_owner
from lvcg_jax.model.ops.conv1d import conv1d


def test_norm_statistics_are_measured_again_with_all_leads(
    model, trained_run, shards_dir, tmp_path, monkeypatch, capsys
):
    """The statistics of the first norm are those of all lifted beats of all leads, and the run that
    is written gives the same embeddings as the model in memory."""
    monkeypatch.setattr(lvcg, "CALIBRATION_BATCHES", 3)
    shards = ShardSet(shards_dir, "train")
    measured = model.with_statistics_of_all_leads(shards)
    batches = list(lvcg._calibration_batches(model.config, shards, 0))
    assert len(batches) == 3
    kernel = measured.variables["params"]["encoder"]["stem_conv"]
    means = []
    for batch in batches:
        row, _, valid = beat_owner(batch["num_beats"], batch["beats"].shape[1])
        lifted = model.model.apply(
            model.variables, batch["beats"], batch["lead_mask"], row, method="lift"
        )[np.asarray(valid)]
        found = conv1d(lifted, kernel["kernel"], 2) + kernel["bias"]
        means.append(np.asarray(found).mean((0, 1)))
    statistics = measured.variables["batch_stats"]["encoder"]["stem_norm"]
    np.testing.assert_allclose(statistics["mean"], np.mean(means, axis=0), atol=1e-4)
    assert measured.variables["params"] is model.variables["params"]
    out = tmp_path / "again"
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={out}"]
    assert norm_statistics.main(flags) == 0
    assert "standard deviations are" in capsys.readouterr().out
    assert LVCG.load(out).checkpoint.split("#")[1] == measured.checkpoint.split("#")[1]
    with pytest.raises(InputError, match="is not empty: give a new run directory"):
        norm_statistics.main(flags)
