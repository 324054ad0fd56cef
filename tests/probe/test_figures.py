"""Pictures of training, probe and embedding: each is a valid file that shows what it was given."""

import numpy as np
import pytest
from helpers.pictures import NAME, read_picture, words_of

from data_prep.base.errors import InputError
from lvcg_jax.probe import figures


def results(task="super"):
    cells = []
    for fraction in (0.01, 1.0):
        for i, model in enumerate(("model", "random weights")):
            value = 0.8 - 0.1 * i + 0.05 * fraction
            numbers = {
                "macro_auroc": value,
                "low": value - 0.02,
                "high": value + 0.02,
                "per_seed": [value] * 3,
            }
            cells.append({"model": model, "fraction": fraction} | numbers)
    return {"task": task, "models": ["model", "random weights"], "cells": cells}


def charts_of(root):
    return len(list(root.iter(f"{NAME}svg"))) - 1


def test_training_curves_show_validation_however_it_is_named(tmp_path):
    train = [{"step": i, "loss": 100.0 / (i + 1), "ecg": 2.0, "note": "text"} for i in range(60)]
    drawn = []
    for i, record in enumerate(
        ({"step": 5, "val/loss": 4.0}, {"step": 5, "kind": "validation", "loss": 4.0})
    ):
        rows = [*train, record, {"step": 7, "loss": float("nan")}]
        drawn.append(figures.draw_training(tmp_path / f"{i}.svg", rows))
    assert drawn[0].read_text() == drawn[1].read_text()
    root = read_picture(drawn[0])
    assert charts_of(root) == 2 and "validation" in words_of(root) and "loss, log" in words_of(root)
    with pytest.raises(InputError, match="holds gain; found: loss"):
        figures.draw_training(tmp_path / "x.svg", train, terms=["gain"])
    with pytest.raises(InputError, match="found: nothing"):
        figures.draw_training(tmp_path / "x.svg", [])


def test_probe_results_of_one_or_more_tasks(tmp_path):
    one = read_picture(figures.draw_probe(tmp_path / "one.svg", results()))
    several = [results("super"), results("sub"), results("form")]
    many = read_picture(figures.draw_probe(tmp_path / "many.svg", several, caption="who made it"))
    assert charts_of(one) == 1 and charts_of(many) == 3
    assert float(many.get("width")) > float(one.get("width"))
    text = words_of(many)
    assert "85.0" in text and "100% of the labels" in text and "who made it" in text
    with pytest.raises(InputError, match="no number"):
        figures.draw_probe(tmp_path / "x.svg", {"models": [], "cells": []})


def test_embedding_map_with_few_and_many_labels(tmp_path):
    rng = np.random.default_rng(0)
    embedding = np.concatenate([rng.normal(size=(200, 8)), np.ones((200, 1))], 1)
    for labels in (rng.choice(["NORM", "MI"], 200), rng.integers(0, 12, 200)):
        root = read_picture(figures.draw_embedding(tmp_path / "map.svg", embedding, labels))
        dots = sum(e.get("d").count("h0") for e in root.iter() if e.get("class") == "dots")
        assert dots >= 200 and "PCA of 200 records" in words_of(root)
    with pytest.raises(InputError, match="less than two directions"):
        figures.draw_embedding(tmp_path / "x.svg", np.arange(9.0)[:, None], ["a"] * 9)
    with pytest.raises(InputError, match="a label per row"):
        figures.draw_embedding(tmp_path / "x.svg", embedding, ["a"] * 9)
