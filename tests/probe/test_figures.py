"""Figures: every one is written, is not blank, shows what differs, and leaves no matplotlib state
behind."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image

from data_prep.base.errors import InputError
from data_prep.ecg import drawing
from lvcg_jax.probe import figures

VERMILION = np.array([0xD5, 0x5E, 0x00]) / 255


def ecg(seconds=10, rate=100):
    t = np.arange(round(seconds * rate)) / rate
    beat = np.exp(-(((t % 0.8) - 0.4) ** 2) / 0.0004)
    return np.linspace(-1, 1, 12)[:, None] * beat


def pixels(path):
    return image.imread(path)[:, :, :3]


def share(path, colour, tolerance=0.12):
    return (np.abs(pixels(path) - colour).max(-1) < tolerance).mean()


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


@pytest.mark.parametrize("layout", ["3x4", "rows"])
def test_ecg_is_at_true_scale(tmp_path, layout):
    path = drawing.draw_ecg(
        tmp_path / "new" / "ecg.png", ecg(), 100, "record", r_peaks=[40, 120], layout=layout
    )
    drawn = pixels(path)
    millimetre = 150 / 25.4
    assert drawn.shape[1] == pytest.approx((12 + 250 + 3 + 12) * millimetre, abs=2)
    # The calibration pulse is 5 mm wide and stands at the left of every row: two upright dark
    # lines.
    dark = (drawn.max(-1) < 0.35).sum(0)[: round(17 * millimetre)]
    edges = np.flatnonzero(dark > 0.6 * dark.max())
    assert np.ptp(edges) == pytest.approx(5 * millimetre, abs=4)


def test_overlay_and_missing_lead_are_seen(tmp_path):
    plain = drawing.draw_ecg(tmp_path / "a.png", ecg(), 100)
    over = drawing.draw_ecg(
        tmp_path / "b.png", ecg(), 100, overlays={"reconstructed": 0.5 * ecg() + 0.3}
    )
    assert share(plain, VERMILION) < 1e-4 < 1e-3 < share(over, VERMILION)
    absent = ecg()
    absent[1] = np.nan
    mask = np.arange(12) != 1
    first = drawing.draw_ecg(tmp_path / "c.png", absent, 100)
    second = drawing.draw_ecg(tmp_path / "d.png", ecg(), 100, present=mask)
    np.testing.assert_array_equal(pixels(first), pixels(second))
    assert (pixels(first) != pixels(plain)).any()


def test_short_long_and_empty_records_are_drawn(tmp_path):
    short = pixels(drawing.draw_ecg(tmp_path / "short.png", ecg(4), 100))
    long = pixels(drawing.draw_ecg(tmp_path / "long.png", ecg(30), 100))
    assert (
        short.shape[1]
        < long.shape[1]
        == pixels(drawing.draw_ecg(tmp_path / "ten.png", ecg(10), 100)).shape[1]
    )
    drawing.draw_ecg(tmp_path / "none.png", np.full((12, 500), np.nan), 100)
    drawing.draw_ecg(tmp_path / "tall.png", 6 * ecg(), 100)


def test_front_is_drawn_where_it_is_said_to_be(tmp_path):
    angle = np.linspace(0, 2 * np.pi, 80)
    vcg = np.stack([np.cos(angle), np.sin(angle), 0.5 + 0.2 * np.sin(3 * angle)])
    ours = drawing.draw_vcg_loops(tmp_path / "a.png", vcg, 100, "loop")
    frank = drawing.draw_vcg_loops(
        tmp_path / "b.png", vcg * [[1], [1], [-1]], 100, "loop", z_front=False
    )
    np.testing.assert_array_equal(pixels(ours), pixels(frank))
    wrong = drawing.draw_vcg_loops(tmp_path / "c.png", vcg, 100, "loop", z_front=False)
    assert (pixels(ours) != pixels(wrong)).any()


def test_training_curves_show_validation_however_it_is_named(tmp_path):
    train = [{"step": i, "loss": 100.0 / (i + 1), "ecg": 2.0, "note": "text"} for i in range(60)]
    drawn = []
    for i, record in enumerate(
        ({"step": 5, "val/loss": 4.0}, {"step": 5, "kind": "validation", "loss": 4.0})
    ):
        drawn.append(
            figures.draw_training(
                tmp_path / f"{i}.png", [*train, record, {"step": 7, "loss": float("nan")}]
            )
        )
    np.testing.assert_array_equal(pixels(drawn[0]), pixels(drawn[1]))
    assert share(drawn[0], VERMILION) > 1e-5
    with pytest.raises(InputError, match="holds gain; found: loss"):
        figures.draw_training(tmp_path / "x.png", train, terms=["gain"])
    with pytest.raises(InputError, match="found: nothing"):
        figures.draw_training(tmp_path / "x.png", [])


def test_probe_results_of_one_or_more_tasks(tmp_path):
    one = pixels(figures.draw_probe(tmp_path / "one.png", results()))
    many = pixels(
        figures.draw_probe(
            tmp_path / "many.png", [results("super"), results("sub"), results("form")]
        )
    )
    assert many.shape[1] > one.shape[1]
    with pytest.raises(InputError, match="no number"):
        figures.draw_probe(tmp_path / "x.png", {"models": [], "cells": []})


def test_embedding_map_with_few_and_many_labels(tmp_path):
    rng = np.random.default_rng(0)
    embedding = np.concatenate([rng.normal(size=(200, 8)), np.ones((200, 1))], 1)
    for labels in (rng.choice(["NORM", "MI"], 200), rng.integers(0, 12, 200)):
        path = figures.draw_embedding(tmp_path / "map.png", embedding, labels)
        assert share(path, np.array([0x00, 0x72, 0xB2]) / 255, 0.3) > 1e-4
    with pytest.raises(InputError, match="less than two directions"):
        figures.draw_embedding(tmp_path / "x.png", np.arange(9.0)[:, None], ["a"] * 9)


@pytest.mark.parametrize(
    "signal, options, words",
    [
        (np.zeros((3, 100)), {}, r"\[12, samples\]"),
        (np.zeros((12, 100)), {"layout": "6x2"}, "unknown ECG layout '6x2'"),
        (np.zeros((12, 100)), {"overlays": {"ours": np.zeros((12, 99))}}, "overlay 'ours'"),
    ],
)
def test_unusable_ecg_says_why(tmp_path, signal, options, words):
    with pytest.raises(InputError, match=words):
        drawing.draw_ecg(tmp_path / "x.png", signal, 100, **options)


def test_pyplot_is_never_imported():
    code = "import sys, data_prep.ecg.drawing; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
