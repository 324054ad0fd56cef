"""`lvcg readout`: a probe that learned from true leads reads derived ones."""

import json

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.base.lottery import fold_of
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data.entries import list_entries
from lvcg_jax.reconstruct.lead_method import signal_of, to_mv
from lvcg_jax.reconstruct.views import read_windows
from lvcg_jax.studies.readout import as_recorded, choose_entries, main


def test_true_leads_come_back_as_they_were_prepared(shards_dir):
    shards = ShardSet(shards_dir, "test")
    (window,) = read_windows(list_entries([shards])[:1])
    mv, all_leads = to_mv(signal_of(window), window), np.ones(12, bool)
    again = as_recorded(shards.preprocess, window, mv, all_leads)
    np.testing.assert_array_equal(again["length"], window["length"])
    np.testing.assert_allclose(again["scale"], window["scale"], rtol=0.05)
    flat = as_recorded(shards.preprocess, window, 0 * mv, all_leads)
    assert flat is None and all_leads.all()


def test_who_chooses_the_strength_of_the_probe_is_not_judged(shards_dir):
    train = {e.key for e in list_entries([ShardSet(shards_dir, "train")])}
    found = choose_entries(str(shards_dir), "validation", None, 1000)
    choosing = {e.key for e in found["validation"]}
    assert {e.key for e in found["train"]} == train - choosing and choosing < train
    assert all(not fold_of(e.patient_id, 10) for e in found["validation"])
    with pytest.raises(InputError, match="--split=train"):
        choose_entries(str(shards_dir), "train", None, 10)


def test_the_command(shards_dir, trained_run, tmp_path, capsys):
    where = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path}"]
    few = ["--resamples=20", "--few=1", "--methods=geometry:paper,zero"]
    assert main([*where, *few, "--visible=I,II", "--limit=16"]) == 0
    text = (tmp_path / "readout.md").read_text()
    assert text.split("```")[2].strip() in capsys.readouterr().out
    found = json.loads((tmp_path / "readout.json").read_text())
    (result, *_) = found["results"]
    forms = ["12 leads", "I, II alone", "I, II: geometry:paper", "I, II: zero"]
    assert result["models"] == forms
    cells = {cell["model"]: cell for cell in result["cells"]}
    # leads that are zero are no leads: the record is that of the visible ones alone
    assert cells[forms[1]]["macro_auroc"] == cells[forms[3]]["macro_auroc"]
    assert cells[forms[0]]["low"] <= cells[forms[0]]["macro_auroc"] <= cells[forms[0]]["high"]
    with pytest.raises(InputError, match="--visible"):
        main(where)
