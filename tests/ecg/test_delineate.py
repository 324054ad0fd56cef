"""Boundaries of P, QRS and T: on waves of known width, in trouble, and against the marks of
cardiologists."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run
from helpers.gaussian_ecg import REGULAR, changed, filtered_ecg, raw_ecg

from data_prep.delineation_report import (
    HALVES,
    LEAD_SETS,
    SCORED,
    Errors,
    evaluate,
    half_of,
    reference_marks,
)
from data_prep.ecg.delineate import Waves, delineate, match_beats
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.segment import r_peaks_vcg

ALL = np.ones(12, bool)


def from_r(x, beats, rate=100.0, present=ALL):
    """Marks [n,7] in ms after the R peaks (s)."""
    beats = np.asarray(beats)
    return 1000 * (
        np.stack(delineate(x, rate, present, beats * rate), axis=1) / rate - beats[:, None]
    )


def typical(x, beats=REGULAR, **more):
    return dict(zip(Waves._fields, np.median(from_r(x, beats, **more), axis=0), strict=True))


def test_waves_end_where_a_reader_would_say():
    """A Gaussian wave is gone after two to three standard deviations."""
    found = typical(filtered_ecg(REGULAR))
    assert -160 - 3 * 22 < found["p_onset"] < -160 - 2 * 22 and abs(found["p_peak"] + 160) < 4
    assert -160 + 2 * 22 < found["p_offset"] < -160 + 3 * 22
    assert (
        -25 - 3 * 9 < found["qrs_onset"] < -25 - 2 * 9
        and 30 + 12 < found["qrs_offset"] < 30 + 3 * 12
    )
    assert abs(found["t_peak"] - 260) < 4 and 260 + 2 * 40 < found["t_offset"] < 260 + 3 * 40


@pytest.mark.parametrize("rate", [100.0, 128.0, 250.0, 500.0, 1000.0])
def test_marks_do_not_depend_on_the_rate_or_scale(rate):
    x = filtered_ecg(REGULAR, rate)
    reference = from_r(filtered_ecg(REGULAR), REGULAR)
    np.testing.assert_allclose(from_r(x, REGULAR, rate), reference, atol=6)
    np.testing.assert_allclose(
        from_r(-1e-4 * x, REGULAR, rate), from_r(x, REGULAR, rate), atol=1e-6
    )
    own_scales = x / x.std(axis=1, keepdims=True)
    np.testing.assert_allclose(from_r(own_scales, REGULAR, rate), reference, atol=15)


@pytest.mark.parametrize("delay", [0.001, 0.003, 0.005, 0.008])
def test_a_shift_of_less_than_a_sample_is_seen(delay):
    here = np.stack(delineate(filtered_ecg(REGULAR), 100, ALL, 100 * REGULAR))
    later = np.stack(delineate(filtered_ecg(REGULAR + delay), 100, ALL, 100 * REGULAR))
    boundaries = [0, 2, 3, 4, 6]
    np.testing.assert_allclose(10 * (later - here)[boundaries, 1:-1], 1000 * delay, atol=2)


def test_longer_waves_give_longer_intervals():
    base = typical(filtered_ecg(REGULAR))
    t = typical(filtered_ecg(REGULAR, T=changed("T", width=0.055)))
    assert (
        abs(t["t_offset"] - base["t_offset"] - 2.3 * 15) < 8
        and abs(t["qrs_offset"] - base["qrs_offset"]) < 2
    )
    wide = {"R": changed("R", width=0.03), "S": changed("S", delay=0.06, width=0.025)}
    wide = typical(filtered_ecg(REGULAR, **wide))
    assert wide["qrs_offset"] - wide["qrs_onset"] > base["qrs_offset"] - base["qrs_onset"] + 50
    assert (
        abs(wide["t_offset"] - base["t_offset"]) < 5 and abs(wide["p_onset"] - base["p_onset"]) < 5
    )
    early = typical(filtered_ecg(REGULAR, P=changed("P", delay=-0.22)))
    assert abs(early["p_onset"] - base["p_onset"] + 60) < 5


def test_an_inverted_t_wave_ends_where_an_upright_one_does():
    base, inverted = (
        typical(filtered_ecg(REGULAR, T=changed("T", height=h))) for h in (0.35, -0.35)
    )
    assert (
        abs(base["t_offset"] - inverted["t_offset"]) < 3
        and abs(base["t_peak"] - inverted["t_peak"]) < 3
    )


@pytest.mark.parametrize("lead", LEADS)
def test_one_lead_is_enough(lead):
    present = np.array([name == lead for name in LEADS])
    x = filtered_ecg(REGULAR)
    one = typical(np.where(present[:, None], x, np.nan), present=present)
    for mark, value in typical(x).items():
        assert abs(one[mark] - value) < (20 if mark.startswith("qrs") else 5), mark


def test_without_a_p_wave_there_is_no_p_mark():
    nothing = changed("P", height=0.0)
    for noise in (0.0, 0.02):
        marks = from_r(filtered_ecg(REGULAR, noise=noise, P=nothing), REGULAR)
        assert np.isnan(marks[:, :3]).all() and np.isfinite(marks[:, 3:]).all()
    rng = np.random.default_rng(3)
    beats = np.cumsum(rng.uniform(0.5, 1.1, 12)) - 0.2
    beats = beats[beats < 9.5]
    x = raw_ecg(beats, P=nothing)
    t = np.arange(1000) / 100
    flutter = np.stack(
        [np.sin(2 * np.pi * f * t + a) for f, a in ((5.3, 0.0), (6.1, 1.0), (6.9, 2.0))]
    ).sum(0)
    # fibrillation: the waves do not know of the QRS
    x += 0.04 * flutter * np.linspace(0.5, 1.5, 12)[:, None]
    assert np.isnan(from_r(x, beats)[:, 0]).mean() > 0.7
    assert np.isfinite(from_r(filtered_ecg(REGULAR), REGULAR)[:, 0]).all()


def test_an_ectopic_beat_among_normal_ones():
    early = REGULAR[5] - 0.2
    normal = np.delete(REGULAR, 5)
    shape = {"P": changed("P", height=0.0), "Q": changed("Q", height=0.0)}
    shape |= {"R": (0.0, 0.035, 1.8, (-0.5, 0.6, 0.5)), "S": (0.05, 0.03, 0.8, (0.2, 0.2, 0.9))}
    shape |= {"T": (0.30, 0.06, 0.6, (0.5, -0.6, -0.5))}
    x = filtered_ecg(normal) + filtered_ecg([early], **shape)
    marks = from_r(x, np.sort(np.append(normal, early)))
    qrs = marks[:, 4] - marks[:, 3]
    assert np.isnan(marks[5, 0]) and qrs[5] > 150 and 400 < marks[5, 6] < 520
    others = np.delete(np.arange(12), 5)
    assert np.isfinite(marks[others[1:], 0]).all() and (np.abs(qrs[others] - 99) < 15).all()


def test_marks_are_in_order_at_150_beats_a_minute():
    beats = np.arange(0.3, 9.7, 0.4)
    fast = {"T": changed("T", delay=0.2, width=0.03), "P": changed("P", delay=-0.12, width=0.018)}
    marks = from_r(filtered_ecg(beats, **fast), beats)[1:-1]
    assert np.isfinite(marks).all() and (np.diff(marks, axis=1) > 0).all()
    assert (np.abs(marks[:, 6] - 255) < 20).all() and (marks[:, 6] - 400 < marks[:, 0]).all()


def test_a_wave_cut_by_the_end_of_the_record_has_no_end():
    x = filtered_ecg(REGULAR)
    cut = delineate(x[:, : round(100 * REGULAR[3]) + 28], 100, ALL, 100 * REGULAR[:4])
    assert (
        np.isnan(cut.t_offset[-1])
        and np.isfinite(cut.t_offset[:-1]).all()
        and np.isfinite(cut.qrs_offset).all()
    )


def test_any_input_gives_an_answer():
    x = filtered_ecg(REGULAR)
    peaks = 100 * REGULAR
    assert all(len(mark) == 0 for mark in delineate(x, 100, ALL, []))
    for nothing in (0 * x, x[:, :1], x[:, :20], np.full_like(x, np.nan), np.ones_like(x)):
        assert np.isnan(np.stack(delineate(nothing, 100, ALL, peaks))).all()
    for rate in (0.0, -100.0, np.nan, np.inf, 1e9):
        assert np.isnan(np.stack(delineate(x, rate, ALL, peaks))).all()
    assert np.isnan(np.stack(delineate(x, 100, ~ALL, peaks))).all()
    strange = np.array([-5.0, np.nan, 1e9, *peaks[::-1], peaks[0], np.inf])
    marks = np.stack(delineate(x, 100, ALL, strange))
    assert np.isnan(marks[:, [0, 1, 2, -1]]).all()
    np.testing.assert_array_equal(marks[:, 3:15], np.stack(delineate(x, 100, ALL, peaks))[:, ::-1])
    np.testing.assert_array_equal(marks[:, 15], marks[:, 14])
    holes = x.copy()
    holes[3, 500], holes[7] = np.nan, np.inf
    assert np.isfinite(delineate(holes, 100, ALL, peaks).qrs_onset).all()
    for scale in (1e200, 1e-200):
        np.testing.assert_allclose(
            np.stack(delineate(scale * x, 100, ALL, peaks)), marks[:, 14:2:-1], atol=1e-6
        )


def test_noise_of_any_kind_gives_marks_inside_the_record_or_none():
    rng = np.random.default_rng(0)
    for trial in range(60):
        size = int(rng.integers(2, 1200))
        x = rng.normal(0, 1, (12, size)) * rng.choice([1e-6, 1.0, 1e6])
        x = np.cumsum(x, axis=1) if trial % 3 else np.round(x)
        peaks = rng.uniform(0, size, rng.integers(0, 30))
        present = rng.random(12) < 0.4
        marks = np.stack(delineate(x, float(rng.choice([100, 250])), present, peaks))
        assert marks.shape == (7, len(peaks))
        known = marks[np.isfinite(marks)]
        assert ((known >= 0) & (known <= size)).all()
        order = np.diff(marks, axis=0)
        assert (order[np.isfinite(order)] >= 0).all()


def test_beats_are_matched_one_to_one_or_not_at_all():
    truth, found = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.05, 2.9, 3.02, 4.4])
    assert match_beats(truth, found, 0.15).tolist() == [0, -1, 2, -1]
    assert (
        match_beats(truth, found[:0], 0.15).tolist() == [-1] * 4
        and match_beats(found[:0], truth, 1).tolist() == []
    )


def _waves(**rows):
    return {
        wave: np.array(rows.get(wave, []), np.int64).reshape(-1, 3) for wave in ("P", "QRS", "T")
    }


def test_reference_is_the_median_over_the_given_leads():
    annotations = {}
    for i, lead in enumerate(LEADS):
        late = 100 if lead == "V1" else i  # a slip in one lead
        annotations[lead] = _waves(
            P=[[200, 220, 240], [380 + late, 400, 420], [900, 920, 940]],
            QRS=[[470 + late, 500, 530], [970, 1000, -1]],
            T=[[600, 640, 700 + late], [720, 740, 760]],
        )
    centre, marks = reference_marks(annotations, 500, LEADS)
    np.testing.assert_allclose(centre, [1.0, 2.0])
    first = dict(zip(Waves._fields, marks[0], strict=True))  # the nearer P and the earlier T of two
    median = np.median([100 if lead == "V1" else i for i, lead in enumerate(LEADS)])
    assert first["qrs_onset"] == pytest.approx((470 + median) / 500)
    assert first["p_onset"] == pytest.approx((380 + median) / 500) and first["p_peak"] == 0.8
    assert first["t_offset"] == pytest.approx((700 + median) / 500)
    assert np.isnan(marks[1, [4, 5, 6]]).all() and marks[1, 0] == 1.8
    assert reference_marks(annotations, 500, ("V1",))[1][0, 3] == pytest.approx(570 / 500)
    only_two = {
        lead: waves if lead in ("I", "II") else {**waves, "P": waves["P"][:0]}
        for lead, waves in annotations.items()
    }
    assert np.isnan(reference_marks(only_two, 500, LEADS)[1][:, 0]).all()


def test_errors_count_what_was_not_found():
    errors = Errors()
    errors.ms["t_offset"] = [10.0, -20.0, 30.0, np.nan, 200.0]
    count, found, median, mean, _, signed = errors.row("t_offset")
    assert (count, found, median, mean, signed) == (5, 0.6, 20.0, 20.0, 10.0)
    assert errors.row("p_onset")[:2] == (0, 0.0)
    assert {half_of(str(i)) for i in range(20)} == set(HALVES) and half_of("1") == half_of("1")


def _write_ludb(folder):
    """Four records at 500 Hz with marks two and a half standard deviations from the middle of P, T
    and QRS."""
    (folder / "data").mkdir()
    for name in ("1", "2", "3", "4"):
        x = np.round(1000 * raw_ecg(REGULAR, 500.0, noise=0.005, seed=int(name))).astype("<i2")
        (folder / "data" / f"{name}.dat").write_bytes(x.T.tobytes())
        lines = [
            f"{name} 12 500 5000",
            *(f"{name}.dat 16 1000(0)/mV 16 0 0 0 0 {lead.lower()}" for lead in LEADS),
        ]
        (folder / "data" / f"{name}.hea").write_text("\n".join(lines) + "\n")
        samples = []
        for r in REGULAR[1:-1]:
            for code, first, peak, last in (
                (24, -0.215, -0.16, -0.105),
                (1, -0.046, 0, 0.055),
                (27, 0.17, 0.26, 0.354),
            ):
                samples += [(39, r + first), (code, r + peak), (40, r + last)]
        places = np.round(500 * np.array([s for _, s in samples])).astype(int)
        words = [
            code << 10 | step
            for (code, _), step in zip(samples, np.diff(places, prepend=0), strict=True)
        ]
        for lead in LEADS:
            (folder / "data" / f"{name}.{lead.lower()}").write_bytes(
                np.array([*words, 0], "<u2").tobytes()
            )
    rows = "".join(f"{name},Sinus rhythm,normal\n" for name in ("1", "2", "3", "4"))
    (folder / "ludb.csv").write_text("ID,Rhythms,Electric axis of the heart\n" + rows)


def test_the_command_scores_both_halves(tmp_path):
    _write_ludb(tmp_path)
    done = run(
        "data_prep.delineation_report", f"--raw={tmp_path}", f"--out={tmp_path / 'out' / 'page.md'}"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "page.md").read_text() == done.stdout
    for half in HALVES:
        assert f"## {half} half" in done.stdout
    rows = [
        line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| all twelve")
    ]
    assert len(rows) == 2 * len(SCORED)
    for row in rows:
        assert row[3] == "100.0%" and float(row[4]) < 12, row
    assert_one_line_error(
        run("data_prep.delineation_report", f"--raw={tmp_path / 'nowhere'}"), "no folder"
    )
    for lead in LEADS:
        (tmp_path / "data" / f"2.{lead.lower()}").unlink()
    assert_one_line_error(
        run("data_prep.delineation_report", f"--raw={tmp_path}"), "record 2", "no marks"
    )


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ludb in it"
)
@pytest.mark.parametrize("half", HALVES)
def test_marks_agree_with_cardiologists_on_ludb(half):
    table = evaluate(
        Path(os.environ["LVCG_REAL_DATA"]) / "ludb", Preprocess(), (half,), progress=False
    )
    most = {"qrs_onset": 12, "qrs_offset": 12, "p_onset": 12, "t_offset": 25}  # ms
    for (_, leads), errors in table.items():
        for mark in SCORED:
            count, found, median, *_ = errors.row(mark)
            print(half, leads, mark, count, round(100 * found, 1), round(median, 1))
            assert count > 300 and median <= most[mark], (leads, mark, median)
            assert found >= (0.98 if leads == "all twelve" else 0.95), (leads, mark, found)
    assert set(leads for _, leads in table) == set(LEAD_SETS)


def test_the_detectors_own_peaks_will_do():
    x = filtered_ecg(REGULAR, noise=0.01)
    for refine in (True, False):
        peaks = r_peaks_vcg(x, ALL, 100, refine=refine)
        found = np.stack(delineate(x, 100, ALL, peaks))
        np.testing.assert_allclose(
            found[3:], np.stack(delineate(x, 100, ALL, 100 * REGULAR))[3:], atol=0.5
        )
