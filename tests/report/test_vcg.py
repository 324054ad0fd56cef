"""lvcg vcg: axes and angles of known hearts, from any leads; its files; and what it says of bad
input."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run
from helpers.gaussian_ecg import dense_tachycardia
from helpers.pictures import read_picture, words_of

from data_prep.base.errors import InputError
from data_prep.ecg import signal
from data_prep.ecg.geometry import lead_matrix, save_matrix
from data_prep.ecg.leads import LEADS
from data_prep.formats.any_file import read_any
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.report import heart_vector, vcg

RATE = 250
DOWER = lead_matrix("dower")


def heart(qrs, t, seconds=10.0, rr=0.8):
    """A dipole [T,3] whose QRS and T point in two fixed directions."""
    times = np.arange(round(seconds * RATE)) / RATE
    beats = np.arange(0.4, seconds, rr)[:, None]

    def bumps(after, width):
        return np.exp(-0.5 * ((times - beats - after) / width) ** 2).sum(0)

    return np.outer(bumps(0.0, 0.014), qrs) + np.outer(bumps(0.27, 0.045), t)


def write(path, dipole, matrix=DOWER, leads=LEADS):
    """The dipole's leads as a CSV with names."""
    rows = dipole @ matrix[[LEADS.index(lead) for lead in leads]].T
    np.savetxt(path, rows, delimiter=",", header=",".join(leads), comments="", fmt="%.6f")
    return path


def facts_of(path, geometry="dower", **options):
    matrix = lead_matrix(geometry)
    view = heart_vector.open_view(path, rate=RATE, unit="mV", **options)
    return heart_vector.summary(view, heart_vector.make_loop(view, matrix), matrix, geometry)


def numbers_of(path, geometry="dower", **options):
    return facts_of(path, geometry, **options)["numbers"]


def toward(degrees, back=0.0, size=1.0):
    return size * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees)), back])


def apart(a, b):
    return abs((a - b + 180) % 360 - 180)


@pytest.mark.parametrize("qrs_axis, t_axis", [(0, 45), (55, 30), (-60, 100), (120, -150), (90, 0)])
def test_known_axes_angle_and_sizes_come_out(tmp_path, qrs_axis, t_axis):
    qrs, t = toward(qrs_axis, 0.4, 1.2), toward(t_axis, -0.3, 0.35)
    numbers = numbers_of(write(tmp_path / "heart.csv", heart(qrs, t)))
    truth = np.degrees(np.arccos(qrs @ t / np.linalg.norm(qrs) / np.linalg.norm(t)))
    for kind in ("", "peak_"):
        assert apart(numbers[f"qrs_{kind}axis_deg"], qrs_axis) < 4
        assert apart(numbers[f"t_{kind}axis_deg"], t_axis) < 6
    for kind in ("mean", "peak"):
        assert abs(numbers[f"qrs_t_angle_{kind}_deg"] - truth) < 6
    assert abs(numbers["qrs_peak_mv"] / np.linalg.norm(qrs) - 1) < 0.05
    assert abs(numbers["t_peak_mv"] / np.linalg.norm(t) - 1) < 0.12
    assert numbers["max_vector_mv"] == numbers["qrs_peak_mv"] and abs(numbers["max_vector_ms"]) <= 4
    assert abs(numbers["heart_rate_bpm"] - 75) < 1


@pytest.mark.parametrize("patient", [0, 3, 7])
def test_a_turn_by_30_degrees_in_the_frontal_plane_turns_both_axes_by_30(tmp_path, patient):
    _, info = make_record(1, patient=patient, rate=RATE, noise=0, conditions=["SR"])
    dipole = info["vcg"].astype(np.float64)
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    turned = dipole @ np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]).T
    before = numbers_of(write(tmp_path / "a.csv", dipole))
    after = numbers_of(write(tmp_path / "b.csv", turned))
    for name in ("qrs_axis_deg", "t_axis_deg", "qrs_peak_axis_deg"):
        assert apart(after[name] - before[name], 30) < 3, name
    for name in ("qrs_t_angle_mean_deg", "qrs_t_angle_peak_deg"):
        assert abs(after[name] - before[name]) < 3, name
    assert abs(after["qrs_peak_mv"] - before["qrs_peak_mv"]) < 0.01


def test_three_leads_that_span_space_tell_what_twelve_tell(tmp_path):
    path = write(tmp_path / "heart.csv", heart(toward(40, 0.5), toward(20, -0.2, 0.3)))
    twelve, three = numbers_of(path), numbers_of(path, leads="v2, I, II")
    assert facts_of(path, leads="v2, I, II")["leads"] == ["I", "II", "V2"]
    for name, value in twelve.items():
        assert abs(three[name] - value) < 0.02 + 0.03 * abs(value), name


def test_paper_geometry_is_shown_in_franks_axes(tmp_path):
    """Its +z is the front: a heart that points to the back must still have a positive z."""
    paper = lead_matrix("paper")
    dipole = heart(toward(30, 0.8), toward(30, -0.3, 0.3))
    path = write(tmp_path / "heart.csv", dipole, matrix=paper * [1, 1, -1])
    numbers = numbers_of(path, "paper")
    assert abs(numbers["max_vector_z_mv"] - 0.8) < 0.05 and apart(numbers["qrs_axis_deg"], 30) < 4


def test_a_matrix_file_in_any_order_is_the_same_matrix(tmp_path):
    path = write(tmp_path / "heart.csv", heart(toward(40, 0.5), toward(20, -0.2, 0.3)))
    rows = dict(zip(LEADS, DOWER.tolist(), strict=True))
    eight = [lead for lead in LEADS if lead not in ("III", "aVR", "aVL", "aVF")]
    shuffled = [LEADS[i] for i in np.random.default_rng(0).permutation(len(LEADS))]
    (tmp_path / "any.json").write_text(json.dumps({lead.upper(): rows[lead] for lead in shuffled}))
    (tmp_path / "eight.csv").write_text(
        "z,lead,y,x\n"
        + "".join(
            f"{rows[lead][2]},{lead},{rows[lead][1]},{rows[lead][0]}\n" for lead in eight[::-1]
        )
    )
    save_matrix(tmp_path / "saved.json", DOWER)
    expected = numbers_of(path)
    for name in ("any.json", "eight.csv", "saved.json"):
        np.testing.assert_allclose(
            lead_matrix(str(tmp_path / name)), DOWER, atol=1e-12, err_msg=name
        )
        assert numbers_of(path, str(tmp_path / name)) == pytest.approx(expected, abs=1e-9), name


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.json", '{"I": [1, 0, 0], "VV2": [0, 0, 1]}', "did you mean V2"),
        ("a.json", '{"I": [1, 0, 0], "i": [1, 0, 0]}', "twice"),
        ("a.json", '{"I": [1, 0]}', "three numbers"),
        ("a.json", '{"I": [1, 0, 0], "II": [0, 1, 0]}', "no row for V1"),
        ("a.json", "[[1, 0, 0]]", "lead names"),
        ("a.json", "7", "lead names"),
        ("a.json", "{", "not JSON"),
        ("a.csv", "lead,x,y\nI,1,0\n", "columns lead, x, y, z"),
        ("a.csv", "lead,x,y,z\nI,1,0\n", "three numbers"),
        ("gone.json", None, "cannot read"),
    ],
)
def test_a_wrong_matrix_file_is_told(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words) as error:
        lead_matrix(str(tmp_path / name))
    assert name in str(error.value)


@pytest.mark.parametrize(
    "geometry, leads, direction, axis_told",
    [
        ("dower", "I,II,III", "front-back", True),
        ("paper", "I,II,aVF", "front-back", True),
        ("paper", "I,V1,V2", "head-feet", False),
        ("paper", "I", "only left-right", False),
    ],
)
def test_leads_that_do_not_span_space_say_what_is_unseen(
    tmp_path, geometry, leads, direction, axis_told
):
    path = write(tmp_path / "heart.csv", heart(toward(40, 0.5), toward(20, -0.2, 0.3)))
    facts = facts_of(path, geometry, leads=leads)
    text = " ".join(facts["notes"])
    assert (
        direction in text
        and f"amplifies by up to {facts['gain']:.1f}" in text
        and facts["rank"] < 3
    )
    assert len(facts["unseen_directions"]) == 3 - facts["rank"]
    matrix = lead_matrix(geometry)[np.isin(LEADS, leads.split(","))] * [
        1,
        1,
        -1 if geometry == "paper" else 1,
    ]
    np.testing.assert_allclose(matrix @ np.array(facts["unseen_directions"]).T, 0, atol=1e-9)
    assert (facts["numbers"]["qrs_axis_deg"] is not None) == axis_told
    _, page, _ = vcg.write_files(facts, tmp_path / "out")
    assert direction in page.read_text() and "amplifies" in page.read_text()


def test_leads_that_hardly_see_a_direction_say_so(tmp_path):
    path = write(tmp_path / "heart.csv", heart(toward(40, 0.5), toward(20, -0.2, 0.3)))
    facts = facts_of(path, leads="I,V1,V2")
    assert facts["rank"] == 3 and facts["gain"] > 10 and "hardly seen" in facts["notes"][0]
    assert facts_of(path)["notes"] == []


def test_command_writes_picture_page_and_numbers(tmp_path, capsys):
    path = write(tmp_path / "we <b>ird.csv", heart(toward(55, 0.3), toward(20, -0.2, 0.3)))
    arguments = [f"--record={path}", f"--rate={RATE}", "--unit=mV", f"--out={tmp_path / 'out'}"]
    assert vcg.main(arguments) == 0
    printed = capsys.readouterr().out
    picture, page, data = (
        next((tmp_path / "out").glob(f"*.{suffix}")) for suffix in ("svg", "html", "json")
    )
    drawn = words_of(read_picture(picture))
    assert "Vectorcardiogram of we <b>ird" in drawn and "Sagittal, P and ST-T enlarged" in drawn
    facts = json.loads(data.read_text())
    assert apart(facts["numbers"]["qrs_axis_deg"], 55) < 4 and facts["geometry"] == "dower"
    html = page.read_text()
    for name, value in heart_vector.number_lines(facts["numbers"]):
        assert name in html and value in html and value in printed
        assert name in drawn and value in drawn
    assert "://" not in html and not re.search(r"(src|href)=", html)  # one file, nothing fetched
    assert "<b>" not in html and "prefers-color-scheme: dark" in html and "pointerdown" in html
    held = json.loads(re.search(r'id="loop">(.*?)</script>', html, re.DOTALL)[1])
    np.testing.assert_array_equal(held["vcg_mv"], facts["vcg_mv"])


def test_beats_unlike_the_others_are_left_out(tmp_path):
    dipole = heart(toward(40, 0.3), toward(30, -0.2, 0.3))
    times = np.arange(len(dipole)) / RATE
    ectopic = np.outer(np.exp(-0.5 * ((times - 3.6) / 0.03) ** 2), 2 * toward(-120, -0.5))
    facts = facts_of(
        write(tmp_path / "heart.csv", np.where(abs(times - 3.6)[:, None] < 0.3, ectopic, dipole))
    )
    assert "1 of" in facts["notes"][0] and apart(facts["numbers"]["qrs_axis_deg"], 40) < 4


def test_beats_of_a_dense_tachycardia_are_shown(tmp_path):
    np.savetxt(tmp_path / "fast.csv", dense_tachycardia(RATE).T, delimiter=",",
               header=",".join(LEADS), comments="", fmt="%.6f")  # fmt: skip
    facts = facts_of(tmp_path / "fast.csv", geometry="paper")
    assert facts["numbers"]["heart_rate_bpm"] == pytest.approx(182, abs=2)


def test_one_beat_is_enough_and_less_is_told(tmp_path):
    dipole = heart(toward(40, 0.3), toward(30, -0.2, 0.3))
    one = facts_of(write(tmp_path / "one.csv", dipole[: round(1.05 * RATE)]))
    assert one["beats"] == 1 and one["numbers"]["heart_rate_bpm"] is None
    assert apart(one["numbers"]["qrs_axis_deg"], 40) < 6
    with pytest.raises(InputError, match=r"record short: record of 0.40 s is too short"):
        facts_of(write(tmp_path / "short.csv", dipole[: round(0.4 * RATE)]))
    late = np.roll(
        heart(toward(40, 0.3), toward(30, -0.2, 0.3), seconds=1.1, rr=9), round(0.45 * RATE), axis=0
    )
    with pytest.raises(InputError, match="record late holds no whole beat"):
        facts_of(write(tmp_path / "late.csv", late))  # R is 0.25 s before the end


def test_mistakes_with_leads_are_told(tmp_path):
    dipole = heart(toward(40, 0.3), toward(30, -0.2, 0.3))
    path = write(tmp_path / "few.csv", dipole, leads=("I", "II", "V2"))
    with pytest.raises(InputError, match="unknown lead 'V22': did you mean V2?"):
        facts_of(path, leads="I,V22")
    with pytest.raises(InputError, match="record few has no lead V5: it has I, II, V2"):
        facts_of(path, leads="I,V5")
    flat = np.loadtxt(path, delimiter=",", skiprows=1)
    flat[:, 2] = 0.1
    np.savetxt(path, flat, delimiter=",", header="I,II,V2", comments="")
    with pytest.raises(InputError, match="lead V2 is flat.*leave it out"):
        facts_of(path, leads="I,II,V2")
    facts = facts_of(path)
    assert facts["leads"] == ["I", "II"] and "V2" in facts["notes"][0] and facts["rank"] == 2
    with pytest.raises(InputError, match="cannot write there"):
        vcg.write_files(facts, path)
    with pytest.raises(InputError, match="--seconds"):
        facts_of(path, seconds=0.2)


def test_a_mistake_ends_the_command_with_one_line(tmp_path):
    path = write(tmp_path / "few.csv", heart(toward(40), toward(30, 0.2)), leads=("I", "II", "V2"))
    done = run(
        "lvcg_jax.report.vcg",
        f"--record={path}",
        "--rate=250",
        "--unit=mV",
        "--leads=I,VII",
        f"--out={tmp_path}",
    )
    assert_one_line_error(done, "VII", "did you mean")


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ptb in it"
)
def test_axes_from_twelve_leads_are_near_those_of_measured_frank_leads():
    gaps = []
    for path in sorted((Path(os.environ["LVCG_REAL_DATA"]) / "ptb").glob("*/*.hea"))[:24]:
        view = heart_vector.open_view(path)
        record = read_any(path)
        places = [
            [name.lower() for name in record.leads].index(name) for name in ("vx", "vy", "vz")
        ]
        frank = signal.resample(
            record.signal[: round(10 * record.rate), places].T, record.rate, view.rate
        )
        measured = np.zeros((12, frank.shape[1]))
        measured[:3] = signal.bandpass(frank, view.rate, *heart_vector.BAND, 3)
        as_leads = heart_vector.View("frank", measured, np.arange(12) < 3, view.peaks, view.rate)
        truth = heart_vector.measure(heart_vector.make_loop(as_leads, np.eye(12)[:, :3]))
        told = heart_vector.measure(heart_vector.make_loop(view, DOWER))
        gaps.append([apart(told["qrs_axis_deg"], truth["qrs_axis_deg"])])
        gaps[-1].append(abs(told["qrs_t_angle_mean_deg"] - truth["qrs_t_angle_mean_deg"]))
    assert np.all(np.median(gaps, axis=0) < 18), np.median(gaps, axis=0)
