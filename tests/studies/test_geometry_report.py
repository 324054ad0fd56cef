"""lvcg geometry_report: true directions are found, nobody is scored by his own fit, and PTB's
numbers."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run

from data_prep.base.errors import InputError
from data_prep.base.lottery import fold_of
from data_prep.ecg.geometry import lead_matrix, save_matrix
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.reconstruct.linear import copy_matrix, regression_matrix
from lvcg_jax.report.scores import geometry_section
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.studies import geometry_report
from lvcg_jax.text.documents import GEOMETRY_SCORES

VISIBLE = np.isin(LEADS, ("II", "V2", "V5"))
TRUE = lead_matrix("dower") + 0.1 * np.random.default_rng(5).standard_normal((12, 3))
NAMES = [*(lead.lower() for lead in LEADS), *geometry_report.FRANK]


def write_patient(folder, number, signals, names=NAMES):
    """[T,c] in mV as a PTB record at 250 Hz, columns in a shuffled order."""
    place = folder / f"patient{number:03d}"
    place.mkdir(parents=True)
    order = np.random.default_rng(number).permutation(len(names))
    lines = [f"s{number:04d} {len(names)} 250 {len(signals)}"]
    lines += [f"s{number:04d}.dat 16 2000(0)/mV 16 0 0 0 0 {names[i]}" for i in order]
    (place / f"s{number:04d}.hea").write_text("\n".join(lines) + "\n")
    adc = np.round(2000 * signals[:, order]).astype("<i2")
    (place / f"s{number:04d}.dat").write_bytes(adc.tobytes())


@pytest.fixture(scope="module")
def ptb(tmp_path_factory):
    """Fourteen hearts behind one torso, with a little noise; one has a flat lead, one no Frank
    leads."""
    folder = tmp_path_factory.mktemp("ptb")
    rng = np.random.default_rng(0)
    for number in range(16):
        _, info = make_record(2, patient=number, rate=250, seconds=11, conditions=["SR"], noise=0)
        vector = info["vcg"].astype(np.float64) * np.exp(0.5 * rng.standard_normal())
        leads = vector @ TRUE.T + 0.01 * rng.standard_normal((len(vector), 12))
        if number == 14:
            leads[:, LEADS.index("V3")] = 0.25
        both = np.concatenate([leads, vector], axis=1)
        write_patient(
            folder,
            number,
            both if number != 15 else both[:, :12],
            NAMES[: 15 if number != 15 else 12],
        )
    return folder


@pytest.fixture(scope="module")
def hearts(ptb):
    return geometry_report.load_hearts(ptb, progress=False)


@pytest.fixture(scope="module")
def table(hearts, tmp_path_factory):
    path = tmp_path_factory.mktemp("matrix") / "true.json"
    save_matrix(path, TRUE)
    return geometry_report.evaluate(hearts, VISIBLE, [str(path)])


def medians(table, row, unit="mV"):
    return dict(zip(GEOMETRY_SCORES, np.median(table[row, unit], axis=0), strict=True))


def test_one_record_a_patient_and_the_unusable_are_named(hearts):
    assert hearts.leads.shape == (14, 12, 1000) and hearts.frank.shape == (14, 3, 1000)
    assert any("patient014" in text and "V3" in text for text in hearts.left_out)
    assert any("patient015" in text and "vx" in text for text in hearts.left_out)
    residual = hearts.leads - TRUE @ hearts.frank
    # leads and vector are the right ones, whatever their order in the file
    assert np.abs(residual).std() < 0.02


def test_fit_finds_the_true_directions_and_scores_best(hearts, table):
    np.testing.assert_allclose(
        geometry_report.fit_frank(hearts.leads, hearts.frank), TRUE, atol=0.02
    )
    fitted, given, dower, paper = (
        medians(table, row) for row in ("fit", "true.json", "dower", "paper")
    )
    assert min(fitted["r_x"], fitted["r_y"], fitted["r_z"]) > 0.99
    assert fitted["r2_all"] > 0.98 and fitted["r2"] == pytest.approx(given["r2"], abs=0.02)
    assert fitted["r2_all"] > dower["r2_all"] > paper["r2_all"] and paper["r_z"] < -0.5
    alone = medians(table, "fit12")
    assert alone["r2_all"] >= fitted["r2_all"] - 1e-3  # no three dimensions hold more of the leads


def test_controls_predict_the_hidden_leads_only(table):
    regression, copy = (
        medians(table, geometry_report.ROWS[-2], "z-scored"),
        medians(table, geometry_report.ROWS[-1], "z-scored"),
    )
    assert np.isnan([regression["r_x"], copy["r2_all"]]).all()
    assert regression["r2"] > copy["r2"] and regression["mse"] < copy["mse"]
    # z-scored: the variance is one
    assert regression["r2"] == pytest.approx(1 - regression["mse"], abs=1e-6)


def test_copy_takes_the_sign_and_regression_uses_visible_leads_only(hearts):
    products = geometry_report.products(hearts.leads)
    copy, regression = copy_matrix(products, VISIBLE), regression_matrix(products, VISIBLE)
    assert copy[LEADS.index("aVR"), LEADS.index("II")] == -1
    for weights in (copy, regression):
        np.testing.assert_array_equal(weights[:, ~VISIBLE], 0)
        np.testing.assert_allclose(weights[VISIBLE][:, VISIBLE], np.eye(3), atol=1e-9)


def test_nobody_is_scored_by_a_fit_that_saw_him(hearts):
    seen = []

    def fit(rows):
        seen.append(rows)
        return rows

    scores = geometry_report.cross_fit(hearts, 5, fit, lambda rows, i: [float(rows[i])])
    assert scores.sum() == 0 and len(seen) == len({fold_of(p, 5) for p in hearts.patients})


def test_every_patient_counts_alike_in_a_fit(hearts):
    louder = 1 + 9.0 * (np.arange(14) == 3)[:, None, None]
    before = geometry_report.fit_frank(hearts.leads, hearts.frank)
    np.testing.assert_allclose(
        geometry_report.fit_frank(hearts.leads * louder, hearts.frank * louder), before, atol=1e-9
    )


def test_command_prints_the_table_and_saves_a_usable_fit(ptb, tmp_path, capsys):
    out, fit = tmp_path / "geometry.md", tmp_path / "fit.json"
    save_matrix(tmp_path / "mine.json", TRUE)
    more = [f"--geometry={tmp_path / 'mine.json'}", "--geometry=fit"]
    assert geometry_report.main([f"--raw={ptb}", f"--out={out}", f"--save_fit={fit}", *more]) == 0
    text, printed = out.read_text(), capsys.readouterr().out
    assert text in printed and f"--config.geometry.matrix={fit}" in printed
    for word in (
        "14 patients",
        "| mine.json | mV |",
        "| fit12 | z-scored |",
        "patient014",
        "9 leads from II, V2, V5",
    ):
        assert word in text, word
    np.testing.assert_allclose(lead_matrix(str(fit)), TRUE, atol=0.02)
    html = geometry_section(out)  # of lvcg_jax.report
    assert html.count("<svg") == 5 and "mine.json" in html and "14 patients of PTB" in html


def test_mistakes_are_told(ptb, tmp_path):
    assert_one_line_error(
        run("lvcg_jax.studies.geometry_report", f"--raw={ptb}", "--visible=II,V22"),
        "did you mean V2",
    )
    for arguments, words in (
        (["--visible=" + ",".join(LEADS)], "nothing is left"),
        (["--folds=1"], "2 or more"),
        (["--geometry=frank"], "unknown geometry"),
        (["--save_fit=fit.txt"], ".json"),
    ):
        with pytest.raises(InputError, match=words):
            geometry_report.main([f"--raw={ptb}", *arguments])
    write_patient(tmp_path, 1, np.zeros((3000, 15)))
    with pytest.raises(InputError, match="0 patients with 12 leads and vx, vy, vz"):
        geometry_report.main([f"--raw={tmp_path}"])


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ptb in it"
)
def test_ptb_gives_the_known_numbers():
    """What 289 patients gave (medians; MSE: means) lies within the sampling error of those that are
    here."""
    table = geometry_report.evaluate(
        geometry_report.load_hearts(Path(os.environ["LVCG_REAL_DATA"]) / "ptb", progress=False),
        VISIBLE,
    )
    known = {
        ("paper", "mV"): {"r_x": 0.90, "r_y": 0.96, "r_z": -0.90, "r2_all": 0.821, "r2": 0.247},
        ("paper", "z-scored"): {
            "r_x": 0.93,
            "r_y": 0.95,
            "r_z": -0.81,
            "r2_all": 0.871,
            "r2": 0.602,
        },
        ("dower", "mV"): {"r_x": 0.98, "r_y": 0.97, "r_z": 0.94, "r2_all": 0.935, "r2": 0.784},
        ("fit", "mV"): {"r_x": 0.99, "r_y": 0.97, "r_z": 0.97, "r2_all": 0.942, "r2": 0.752},
        (geometry_report.ROWS[-2], "mV"): {"r2": 0.803},
        (geometry_report.ROWS[-2], "z-scored"): {"r2": 0.695, "mse": 0.357, "mae": 0.291},
        (geometry_report.ROWS[-1], "z-scored"): {"r2": 0.482, "mse": 0.557},
    }
    bootstrap = PatientBootstrap(np.arange(len(table["paper", "mV"])))
    for row, values in known.items():
        for name, value in values.items():
            found = bootstrap.summary(table[row][:, GEOMETRY_SCORES.index(name)])
            start = "" if name in ("mse", "mae") else "median_"
            low, high = found[f"{start}low"], found[f"{start}high"]
            assert low - 0.01 <= value <= high + 0.01, (row, name, value, found, low, high)
    regression = medians(table, geometry_report.ROWS[-2], "z-scored")
    assert abs(regression["r2"] - 0.70) <= 0.03
    gain = medians(table, "dower")["r2"] - medians(table, "paper")["r2"]
    assert gain > 0.3  # why the VCG page takes Dower's directions
