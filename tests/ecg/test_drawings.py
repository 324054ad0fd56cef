"""Drawings of ECG and heart vector: true to scale, they show what differs, and the files are valid
whatever a record is called."""

import re

import numpy as np
import pytest
from helpers.pictures import NAME, of_class, read_picture, words_of

from data_prep.base.errors import InputError
from data_prep.ecg import ecg_paper, loops, svg
from data_prep.ecg.ecg_paper import Tracing, write_ecg
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS

MM = 96 / 25.4  # pixels


def ecg(seconds=10, rate=100):
    t = np.arange(round(seconds * rate)) / rate
    beat = np.exp(-(((t % 0.8) - 0.4) ** 2) / 0.0004)
    return np.linspace(-1, 1, 12)[:, None] * beat


def points_of(path):
    """Places [k,2] of a trace 'Mx yl dx dy dx dy ...'."""
    start, steps = re.fullmatch(r"M([-\d ]+)l([-\d ]+)", path.get("d")).groups()
    moves = np.array(steps.split(), int).reshape(-1, 2)
    return np.array(start.split(), int) + np.concatenate([[[0, 0]], moves.cumsum(0)])


def test_ecg_is_at_true_scale(tmp_path):
    tracing = Tracing(ecg(), 100, r_peaks=[40, 120])
    root = read_picture(write_ecg(tmp_path / "new" / "ecg.svg", tracing, "record"))
    (paper,) = of_class(root, "ecg wide")
    _, _, width, height = map(float, paper.get("viewBox").split())
    assert width == 100 * (12 + 250 + 3)  # units of 0.01 mm
    assert float(paper.get("width")) == pytest.approx((12 + 250 + 3) * MM, abs=0.1)
    assert float(paper.get("height")) / float(paper.get("width")) == pytest.approx(
        height / width, rel=1e-3
    )
    # the rhythm strip: ten seconds in 250 mm, its R peak of lead II as high as 10 mm/mV say
    rhythm = points_of(of_class(paper, "trace")[-2])
    assert np.ptp(rhythm[:, 0]) == pytest.approx(25_000, abs=30)
    assert np.ptp(rhythm[:, 1]) == pytest.approx(1000 * np.ptp(ecg()[1]), abs=2)
    # the calibration pulse: 1 mV for 0.2 s
    assert "h150v-1000h500v1000h150" in of_class(paper, "trace")[-1].get("d")
    assert len(of_class(paper, "beat")) == 2 and "800" in words_of(paper)  # ms between them


def test_derived_and_missing_leads_are_seen(tmp_path):
    plain = read_picture(write_ecg(tmp_path / "a.svg", Tracing(ecg(), 100), ""))
    assert not of_class(plain, "derived") and "*" not in words_of(plain)
    hidden = np.arange(12) > 2
    over = np.where(hidden[:, None], 0.5 * ecg() + 0.3, np.nan)
    tracing = Tracing(ecg(), 100, {"one": over, "two": -over}, hidden)
    both = read_picture(write_ecg(tmp_path / "b.svg", tracing, ""))
    assert len(of_class(both, "trace derived")) == 2 * 9
    assert len({e.get("style") for e in of_class(both, "trace derived")}) == 2
    assert len(of_class(both, "trace hidden")) == 9
    text = words_of(both)
    assert "V6*" in text and "III*" not in text and "* one" in text and "* two" in text

    absent = ecg()
    absent[1] = np.nan
    gone = read_picture(write_ecg(tmp_path / "c.svg", Tracing(absent, 100), ""))
    assert words_of(gone).count("not recorded") == 1 and len(of_class(gone, "absent")) == 1
    names = [e.text for e in of_class(gone, "name")]
    assert names == [lead for column in ecg_paper.COLUMNS for lead in column] + ["I"]  # the rhythm


def test_a_band_is_drawn_under_its_trace_and_at_its_scale(tmp_path):
    derived = np.where(np.arange(12)[:, None] > 2, ecg(), np.nan)
    band = np.full_like(derived, 0.2)
    band[4] = np.nan  # no band in aVL
    tracing = Tracing(ecg(), 100, {"one": derived}, band=band)
    root = read_picture(write_ecg(tmp_path / "band.svg", tracing, ""))
    areas = of_class(root, "band")
    assert len(areas) == 8 and "90% band" in words_of(root)
    _, steps = re.fullmatch(r"M([-\d ]+)l([-\d ]+)z", areas[0].get("d")).groups()
    moves = np.array(steps.split(), int).reshape(-1, 2).cumsum(0)
    assert moves[-1, 0] == 0 and moves[-1, 1] == -400  # back at the start, 0.4 mV above it
    order = [e.get("class") for e in root.iter() if e.get("class")]
    assert order.index("band") < order.index("trace derived")
    with pytest.raises(InputError, match="a band needs derived leads"):
        Tracing(ecg(), 100, band=band)


def test_short_long_empty_and_tall_records_are_drawn(tmp_path):
    width = {}
    for seconds in (4, 10, 30):
        path = write_ecg(tmp_path / f"{seconds}.svg", Tracing(ecg(seconds), 100), "")
        width[seconds] = float(read_picture(path).get("width"))
    assert width[4] < width[10] == width[30]
    assert "first 10 s of 30 s" in (tmp_path / "30.svg").read_text()
    nothing = read_picture(
        write_ecg(tmp_path / "none.svg", Tracing(np.full((12, 500), np.nan), 100), "")
    )
    assert words_of(nothing).count("not recorded") == 13
    assert "5 mm/mV" in words_of(
        read_picture(write_ecg(tmp_path / "t.svg", Tracing(6 * ecg(), 100), ""))
    )


def test_a_page_gets_a_wide_and_a_narrow_layout():
    wide, narrow = ecg_paper.draw(Tracing(ecg(), 100), "words")
    assert (wide.kind, narrow.kind) == ("ecg wide", "ecg narrow") and narrow.width < wide.width
    for drawing in (wide, narrow):
        assert (
            drawing.__html__().count('class="name') == 13
            and 'aria-label="words"' in drawing.__html__()
        )


@pytest.mark.parametrize(
    "signal, derived, words",
    [
        (np.zeros((3, 100)), {}, r"\[12, samples\]"),
        (np.zeros((12, 1)), {}, r"\[12, samples\]"),
        (np.zeros((12, 100)), {"ours": np.zeros((12, 99))}, "'ours' has shape"),
    ],
)
def test_unusable_ecg_says_why(signal, derived, words):
    with pytest.raises(InputError, match=words):
        Tracing(signal, 100, derived)


@pytest.mark.parametrize(
    "name", ["a <b>&\"'</svg>", "tab\tbell\x07 null\x00", "\ud800 half", "ä ♥ 心"]
)
def test_any_name_gives_a_valid_file(tmp_path, name):
    root = read_picture(write_ecg(tmp_path / "x.svg", Tracing(ecg(), 100), name, name))
    shown = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in name)
    assert root.find(f"{NAME}text").text == shown


def loop():
    angle = np.linspace(0, 2 * np.pi, 80)
    return np.stack([np.cos(angle), np.sin(angle), 0.5 + 0.2 * np.sin(3 * angle)])


def test_front_is_drawn_where_it_is_said_to_be(tmp_path):
    ours = loops.time_planes(loop(), 100)
    assert loops.time_planes(loop() * [[1], [1], [-1]], 100, z_front=False) == ours
    wrong = loops.time_planes(loop(), 100, z_front=False)
    assert wrong[0] == ours[0] and wrong[1] != ours[1] and wrong[2] != ours[2]
    root = read_picture(loops.write_loops(tmp_path / "l.svg", loop(), 100, "loop", "who made it"))
    assert "front ← mV → back" in words_of(root) and "time (ms)" in words_of(root)
    assert "who made it" in words_of(root)
    # z > 0 is the front: below the middle of the transverse plane
    path = re.findall(r'class="dots" d="M([\d.]+) ([\d.]+)h0"', ours[1].content)[-1]
    assert float(path[1]) > loops.MIDDLE[1]
    with pytest.raises(InputError, match="finite numbers"):
        loops.time_planes(np.full((3, 9), np.nan), 100)


def test_waves_have_their_colours_and_reach():
    vcg, ms = loop() * np.linspace(0, 1, 80), np.linspace(-200, 590, 80)
    windows = {"p": (-200, -60), "qrs": (-50, 50), "t": (60, 590)}
    frontal, *_ = loops.wave_planes(vcg, ms, windows)
    for wave in windows:
        assert f'stroke="var(--{wave})"' in frontal.content
        assert f'fill="var(--{wave})"' in frontal.content  # arrow heads
    assert frontal.content.count("stroke-dasharray") == 2  # largest vectors of QRS and T
    small = loops.wave_planes(vcg, ms, {"p": windows["p"]}, ", enlarged")[0]
    assert "var(--qrs)" not in small.content and "Frontal, enlarged" in small.content


def test_lead_directions_point_to_the_leads():
    frontal, transverse = loops.directions(lead_matrix("dower"))
    for drawing, leads in ((frontal, LEADS[:6]), (transverse, LEADS[6:])):
        for lead in leads:
            assert f">{lead}</text>" in drawing.content
    ends = re.findall(r'd="M[\d.]+ [\d.]+l(-?[\d.]+) (-?[\d.]+)"', frontal.content)
    assert float(ends[0][0]) > 0 and float(ends[1][1]) > 0  # I to the left, II to the feet


def test_ticks_and_numbers_are_round():
    assert svg.nice_ticks(0.03, 0.98).tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    numbers = (0.0, 12_000.0, 0.25, 2e-5, -1.5e6)
    assert [svg.say(v) for v in numbers] == ["0", "12k", "0.25", "2e-5", "-1.5M"]


def test_text_that_does_not_fit_is_cut_and_told_under_the_pointer():
    assert svg.text("short", 0, 0, room=200).count("short") == 1
    cut = svg.text("a rather long name", 0, 0, room=40)
    assert "…</text>" not in cut and "…<title>a rather long name</title>" in cut
