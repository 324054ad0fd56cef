"""Charts: curves keep their spikes, every value has a place, names are never confused."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from lvcg_jax.text.charts import Dot, Series, dot_plot, line_chart, log_ticks, scatter, thin_out


def parse(drawing):
    return ET.fromstring(drawing.__html__())


def words(drawing):
    return [e.text for e in parse(drawing).iter("text")]


def test_curves_keep_their_spikes():
    x, y = np.arange(5000.0), np.zeros(5000)
    y[1234] = 9.0
    thin = thin_out(x, y)
    assert len(thin[0]) <= 300 and thin[1].max() == 9.0 and thin[0][thin[1].argmax()] == 1234


def test_a_line_chart_has_legend_axes_intervals_and_escapes_names():
    one = Series([0, 1, 2], [1, 2, 4], "a <b>", 0, marks=True, low=[0, 1, 3], high=[2, 3, 5])
    two = Series([0, 1, 2], [3, np.nan, 2], "two", 1, marks=True)
    drawing = line_chart([one, two], "title", "step", "loss", zero=True)
    found = words(drawing)
    assert {"title", "a <b>", "two", "step", "loss"} <= set(found)
    assert drawing.content.count('opacity=".75"') == 3  # the intervals
    assert drawing.content.count("stroke-dasharray") == 1  # y = 0
    assert parse(drawing).get("aria-label") == "title: loss over step"
    tall = line_chart([one, two], "title", "step", "loss", plot_height=300)
    assert tall.height == drawing.height + 150


def test_one_value_and_logarithms_are_drawn():
    assert "<circle" in line_chart([Series([3], [5.0])], "one", "x", "y").content
    drawing = line_chart([Series([1, 2, 3], [1e-3, 1.0, 1e3])], "log", "x", "y", log_y=True)
    places = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawing.content.split("s0")[0])]
    path = re.search(r'd="(M[^"]+)" stroke="var\(--s0\)"', drawing.content)[1]
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2) and places
    assert log_ticks(0.5, 200.0) == pytest.approx([1, 10, 100])


def test_dots_lie_where_their_values_are():
    dots = [Dot("low", 10.0, 5.0, 15.0), Dot("high", 30.0, colour=-1, ticks=(29.0, 31.0))]
    drawing = dot_plot([("group", dots)], "title", "score", guide=0.0)
    found = words(drawing)
    assert {"group", "low", "high", "10.0", "30.0", "score"} <= set(found)
    low, high = re.findall(r"M([\d.]+) [\d.]+H([\d.]+)\" stroke=\"var\(--s0\)\"", drawing.content)[
        0
    ]
    square = re.search(r'<polygon points="([\d.]+),', drawing.content)[1]
    assert float(low) < float(square) + 4 < float(high)


def test_long_names_make_a_dot_plot_wider():
    names = [f"random weights of paper, {k} leads" for k in (3, 12)]
    drawing = dot_plot([("all", [Dot(name, 1.0 + k) for k, name in enumerate(names)])], "t", "x")
    assert set(names) <= set(words(drawing)) and drawing.width > 360


def test_a_scatter_shows_all_points_and_the_commonest_labels():
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.repeat([f"n{k}" for k in range(9)], 10), ["n0"] * 5])
    drawing = scatter(rng.normal(size=(95, 2)), labels, "map", "x", "y")
    assert drawing.content.count("h0") == 95 + 8  # and the legend
    assert "n0 (15)" in words(drawing) and "2 others (20)" in words(drawing)
    few = scatter(rng.normal(size=(20, 2)), ["a", "b"] * 10, "map", "x", "y")
    assert "others" not in " ".join(words(few)) and "a (10)" in words(few)
