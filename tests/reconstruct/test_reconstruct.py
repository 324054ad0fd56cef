"""Derived leads: nothing hidden leaks in, every method does what it says, scores are those of the
hidden leads."""

import json
import os
from functools import partial

import jax
import numpy as np
import pytest
from helpers.pictures import of_class, read_picture, words_of
from scipy.signal import decimate

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS, LIMB, lead_mask, mask_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import Record
from data_prep.ecg.segment import stitch_beats
from data_prep.formats.wfdb_files import read_wfdb_record
from lvcg_jax.data.entries import draw_patients, list_entries
from lvcg_jax.data.packing import record_batch
from lvcg_jax.reconstruct import __main__ as reconstruct_door
from lvcg_jax.reconstruct import one_record as one_record_room
from lvcg_jax.reconstruct import study
from lvcg_jax.reconstruct.beats import BeatErrors, beat_error_table
from lvcg_jax.reconstruct.coverage import WAVES, BandCoverage, coverage_tables
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.linear import regression_matrix
from lvcg_jax.reconstruct.methods import METHODS, SOURCES, make_methods
from lvcg_jax.reconstruct.scores import record_values, score_leads, summarise
from lvcg_jax.reconstruct.unlike import DISTURBANCES
from lvcg_jax.reconstruct.views import (
    Source,
    Windows,
    derive_rows,
    drawn_view,
    fixed_view,
    score_rows,
)
from lvcg_jax.report.scores import reconstruction_section
from lvcg_jax.stats import bootstrap

A = lead_matrix("paper")
THREE = lead_mask(np.isin(LEADS, ["II", "V2", "V5"]))


@pytest.fixture(scope="module")
def entries(shards_dir):
    return list_entries([ShardSet(shards_dir, "test")])


@pytest.fixture(scope="module")
def methods(model, shards_dir):
    """All of them, fitted."""
    found = make_methods(METHODS, model, 1e-4)
    train = Windows(list_entries([ShardSet(shards_dir, "train")]))
    for method in found:
        method.fit(train)
    return found


def made(signals, scale=None, mask=4095):
    """Windows of given normalised signals [k,12,T]."""
    scale = np.ones(12, np.float32) if scale is None else scale
    more = {"lead_mask": mask, "visible": mask, "scale": scale, "offset": np.zeros(12, np.float32)}
    return [{"signal": x.astype(np.float32)} | more for x in signals]


def predict(methods, windows):
    return {name: found for method in methods for name, found in method.predict(windows).items()}


def command(*arguments):
    return reconstruct_door.main([str(a) for a in arguments])


def rows_of(text):
    """The cells of every Markdown table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_regression_from_mean_products_is_least_squares_on_the_samples():
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(12, 12)) @ rng.normal(size=(5, 12, 400))
    (method,) = make_methods(["regression"], None, 1e-4)
    method.fit(made(signals))
    x = np.concatenate(list(signals), axis=1)
    for leads in ([1, 7, 10], [0], [2, 3, 4, 5, 11]):
        expected = np.linalg.lstsq(x[leads].T, x.T, rcond=None)[0].T
        mask = lead_mask(np.isin(np.arange(12), leads))
        np.testing.assert_allclose(method.matrix("regression", mask)[:, leads], expected, atol=1e-3)


def test_regression_survives_visible_leads_that_say_the_same():
    rng = np.random.default_rng(1)
    x = A @ rng.normal(size=(3, 1000))
    weights = regression_matrix(x @ x.T / 1000, np.isin(LEADS, ["I", "II", "III", "aVF", "V2"]))
    np.testing.assert_allclose(weights @ x, x, atol=1e-3)


def test_copy_takes_the_closest_lead_with_its_sign():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(12, 2000))
    x[3] = -x[1] + 0.1 * rng.normal(size=2000)  # aVR goes against II
    x[8] = 0.3 * x[7] + 0.1 * rng.normal(size=2000)
    (method,) = make_methods(["copy"], None, 1e-4)
    method.fit(made([x]))
    derived = predict([method], [made([x])[0] | {"visible": THREE}])["copy"][0]
    np.testing.assert_allclose(derived[3], -x[1], atol=1e-6)
    np.testing.assert_allclose(derived[8], x[7], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "geometry"), [("geometry:paper", "paper"), ("geometry:dower", "dower")]
)
def test_pure_geometry_is_exact_for_a_dipole_in_its_unit(name, geometry):
    rng = np.random.default_rng(3)
    mv = lead_matrix(geometry) @ rng.normal(size=(3, 500))
    scale = np.ones(12, np.float32) if geometry == "paper" else mv.std(1).astype(np.float32)
    (window,) = made([mv / scale[:, None]], scale)
    (method,) = make_methods([name], None, 1e-9)
    derived = method.predict([window | {"visible": THREE}])[name][0]
    np.testing.assert_allclose(derived, mv, atol=1e-3)


def test_hidden_leads_reach_no_method(methods, entries):
    window = Windows(entries[:1]).__iter__().__next__()
    window = window | {"visible": THREE, "signal": signal_of(window)}
    hidden = ~mask_leads(THREE)
    spoiled = window | {"signal": window["signal"].copy(), "beats": window["beats"].copy()}
    spoiled["signal"][hidden], spoiled["beats"][:, hidden] = np.nan, np.nan
    one, two = predict(methods, [window]), predict(methods, [spoiled])
    assert list(one) == [name for method in methods for name in method.units] and set(one) == set(
        METHODS
    )
    for name in one:
        np.testing.assert_array_equal(one[name][0], two[name][0])


def test_the_network_gives_the_same_leads_alone_and_in_a_batch(model, methods, entries):
    windows = [w | {"visible": THREE} for w in Windows(entries[:5])]
    together = predict(methods[:1], windows)
    derive = jax.jit(partial(model.model.apply, method="reconstruct"), static_argnums=(3, 4))
    for i, window in ((0, windows[0]), (4, windows[4])):
        batch = record_batch(window, model.max_beats)
        for name, source in SOURCES.items():
            shown = np.array([[THREE]], np.int32)
            beats = derive(model.variables, batch, shown, model.max_beats, source)
            beats = np.asarray(beats)[0, : len(window["length"])]
            alone = stitch_beats(beats, window["start"], window["length"], window["num_samples"])
            np.testing.assert_allclose(together[name][i], alone, atol=1e-5)


def test_scores_by_hand():
    t = np.linspace(0, 4 * np.pi, 1000, endpoint=False)
    truth, hidden = np.tile(2 * np.sin(t) + 5, (12, 1)), np.arange(12) == 3
    scores = score_leads(truth, truth * 0.5 + 2.5, hidden)
    assert np.isnan(scores["mse"][~hidden]).all()
    values = record_values({part: x[None] for part, x in scores.items()})
    assert values["mse"][0] == pytest.approx(0.25)
    assert values["r2"][0] == pytest.approx(0.75)
    assert values["r2_mv"][0] == pytest.approx(0.75)
    assert values["r"][0] == pytest.approx(1.0)
    assert values["mae_mv"][0] == pytest.approx(2 / np.pi, rel=1e-3)
    # the error is a sine of 1 mV, leads span 4 mV; with one visible lead of 40 mV, 20 dB more
    assert values["psnr"][0] == pytest.approx(20 * np.log10(4 * np.sqrt(2)), abs=1e-3)
    truth[5] = np.linspace(0, 40, 1000)
    larger = score_leads(truth, truth * 0.5 + 2.5, hidden)["psnr"][3]
    assert larger == pytest.approx(values["psnr"][0] + 20, abs=1e-3)
    assert np.isnan(score_leads(truth, truth, hidden)["psnr"][3])  # computed, not derived
    flat = score_leads(truth, np.full_like(truth, 5.0), hidden)
    assert flat["mse"][3] == pytest.approx(1.0) and np.isnan(flat["r"][3])


def test_intervals_are_over_patients_and_differences_are_paired():
    rng = np.random.default_rng(4)
    values = np.repeat(rng.normal(size=30), 20)
    wide = bootstrap.PatientBootstrap(np.repeat(np.arange(30), 20)).summary(values)
    narrow = bootstrap.PatientBootstrap(np.arange(600)).summary(values)
    assert wide["high"] - wide["low"] > 3 * (narrow["high"] - narrow["low"])
    assert (
        wide["mean"] == pytest.approx(values.mean()) and wide["low"] < wide["mean"] < wide["high"]
    )
    mse = np.abs(rng.normal(size=(600, 12)))
    scores = {part: mse for part in score_leads(mse, mse, mse[:, 0] > 0)}
    worse = scores | {"mse": mse + 0.1}
    gap = summarise({"a": scores, "b": worse}, np.arange(600), 200, "a")["b"]["minus_first"]["mse"]
    assert gap["low"] == pytest.approx(0.1) and gap["high"] == pytest.approx(0.1)


def test_draws_are_keyed_by_the_record_and_span_three_dimensions(entries):
    view = drawn_view(entries, 3, 2, 0, A, 1e-4)
    again = drawn_view(entries[::-1], 3, 2, 0, A, 1e-4)
    key = lambda row: (row.entry.key, row.visible)  # noqa: E731
    assert sorted(map(key, view.rows)) == sorted(map(key, again.rows))
    assert len({row.visible for row in view.rows}) > 10
    for row in view.rows:
        shown = mask_leads(row.visible)
        assert shown.sum() == 3 and np.linalg.matrix_rank(A[shown]) == 3
        assert row.visible & row.hidden == 0 and row.visible | row.hidden == row.entry.lead_mask


def test_a_missing_lead_is_no_target_and_a_missing_visible_lead_is_named(entries):
    lacking = [
        type(e)(e.shards, e.index, e.record_id, e.window, e.patient_id, e.uid, 4095 & ~0b10)
        for e in entries[:1]
    ]
    blind = [
        type(e)(e.shards, e.index, e.record_id, e.window, e.patient_id, e.uid, 1)
        for e in entries[1:2]
    ]
    view = fixed_view([*lacking, *blind, *entries[2:]], ["II", "V2", "V5"], A, 1e-4)
    assert not view.rows[0].hidden & 0b10
    assert [f["record_id"] for f in view.failures] == [entries[1].record_id]
    assert any(
        entries[0].record_id in note and "are used with the others" in note for note in view.notes
    )
    scores = score_rows([Source(make_methods(["zero"], None, 1e-4))], view.rows[:1])["zero"]
    assert np.isnan(scores["mse"][0, 1]) and np.isfinite(scores["mse"][0, 0])


def test_a_limit_takes_from_as_many_patients_as_it_can(shards_dir):
    shards = [ShardSet(shards_dir, "train")]
    every = list_entries(shards)
    patients = {entry.patient_id for entry in every}
    for limit in (1, 5, 7, 23, len(every), 10**6):
        few = list_entries(shards, limit)
        assert len(few) == min(limit, len(every)) and few == [e for e in every if e in few]
        assert len({entry.patient_id for entry in few}) == min(limit, len(patients))
    rows = ["a", "b", "b", "c", "b", "c"]
    assert draw_patients(rows) == draw_patients(rows, 6) == list(range(6))
    assert draw_patients(rows, 3) == [0, 1, 3]
    assert draw_patients(rows, 5) == [0, 1, 2, 3, 5]


def test_with_all_splits_nothing_is_fitted_on_the_patient_it_is_judged_on(shards_dir):
    entries = list_entries([ShardSet(shards_dir, split) for split in ("train", "test")])
    seen = []

    class Spy:
        units = {"spy": "z"}  # noqa: RUF012

        def fit(self, windows):
            self.patients = {w["patient_id"] for w in windows}

        def predict(self, windows):
            seen.extend(
                (w["patient_id"] in self.patients, w["record_id"], w["window"]) for w in windows
            )
            return {"spy": [signal_of(w) for w in windows]}

    view = fixed_view(entries, ["I", "II"], A, 1e-4)
    scores = study.evaluate(
        [Source([Spy()])],
        view,
        entries,
        lambda: None,
        BeatErrors(view.rows, 0),
        BandCoverage(view.rows, 0),
    )
    assert not any(known for known, *_ in seen) and len(seen) == len(entries)
    assert scores["spy"]["mse"].shape == (len(entries), 12)
    np.testing.assert_allclose(record_values(scores["spy"])["mse"], 0, atol=1e-9)


def test_command_writes_all_methods_and_another_run_in_the_same_units(
    trained_run, shards_dir, tmp_path
):
    """The run's own shards as --also must give its own numbers: predictions went to mV and back."""
    out, page = tmp_path / "out", tmp_path / "page.md"
    where = [
        f"--checkpoint={trained_run}",
        f"--data={shards_dir}",
        f"--out={out}",
        f"--page={page}",
    ]
    more = [f"--also={trained_run}:{shards_dir}", "--limit=10", "--resamples=50", "--morphology=3"]
    assert command(*where, "--visible=I,II", "--k=5", *more) == 0
    results = json.loads((out / "metrics.json").read_text())
    names = [*METHODS, f"lvcg ({trained_run.name})"]
    assert results["methods"] and len(results["views"]) == 2
    for view in results["views"]:
        assert list(view["methods"]) == names and view["records"] == 10
        own, other = (view["methods"][name]["overall"] for name in ("lvcg", names[-1]))
        assert own["mse"]["mean"] == pytest.approx(other["mse"]["mean"], rel=1e-4)
        assert view["methods"]["zero"]["overall"]["mse"]["mean"] == pytest.approx(1.0, abs=1e-3)
        assert view["methods"]["zero"]["overall"]["r"]["mean"] is None
        assert view["first"] == "lvcg" and "minus_first" in view["methods"]["copy"]
        assert view["beat_rows"] == 3
        assert (
            view["methods"]["zero"]["beats"]["missed"]["mean"] == 1
            and "beats" in view["methods"]["lvcg"]
        )
        bands = view["methods"]["gaussian beat"]["bands"]
        assert "bands" not in view["methods"]["lvcg"] and bands["rows"] == 10
        assert 0 < bands["overall"]["mean"] <= 1 and bands["width"]["mean"] > 0
        assert set(bands["per_wave"]) == set(WAVES) and bands["per_class"]
    assert set(results["views"][0]["methods"]["lvcg"]["per_lead"]) == set(LEADS) - {"I", "II"}
    text = (out / "table.md").read_text()
    assert {row[0] for row in rows_of(text)} == {"method", *names}
    assert "inside the 90% band" in text
    assert (
        "front-back" in text
        and "amplifies by up to" in text
        and "stitched from the stored beats" in text
    )
    errors = words_of(read_picture(out / "I_II-leads.svg"))
    assert all(word in errors.splitlines() for word in (*names, *set(LEADS) - {"I", "II"}))
    for word in ("best", "median", "worst"):
        assert len(of_class(read_picture(out / f"I_II-{word}.svg"), "trace derived")) == 10
    assert (
        "<!-- section: reconstruct-synthetic -->" in page.read_text()
        and str(tmp_path) not in page.read_text()
    )
    html = reconstruction_section(out)  # of lvcg_jax.report
    assert html.count("<svg") == 2 and all(name in html for name in names)


def test_beats_of_the_truth_itself_are_measured_without_error_and_those_of_nothing_are_missed(
    entries,
):
    class Truth:
        units = {"truth": "z", "nothing": "z"}  # noqa: RUF012

        def predict(self, windows):
            signals = [signal_of(w) for w in windows]
            return {"truth": signals, "nothing": [np.zeros_like(x) for x in signals]}

    view = fixed_view(entries[:6], ["I", "II"], A, 1e-4)
    beats = BeatErrors(view.rows, 4)
    score_rows([Source([Truth()])], view.rows, also=beats.add)
    found = beats.summary(20)
    assert len(beats.patients) == 4
    for measure, summary in found["truth"].items():
        assert summary["mean"] == 0, measure
    assert found["nothing"]["missed"]["mean"] == 1 and np.isnan(found["nothing"]["qrs_ms"]["mean"])
    truth, nothing = rows_of("\n".join(beat_error_table(found)))[1:]
    assert truth[2] == "0.0 [0.0, 0.0]" and nothing[2] == "-"


def test_a_band_is_judged_on_what_is_derived_by_wave_and_by_diagnosis(entries):
    class Sure:
        """The truth plus an error of 1 with a deviation that allows for it, except in V1."""

        units = {"sure": "z"}  # noqa: RUF012

        def fit(self, windows):
            pass

        def predict(self, windows):
            return {"sure": [signal_of(w) + 1 for w in windows]}

        def predict_with_bars(self, windows):
            narrow = np.where(np.array(LEADS) == "V1", 0.5, 1.0)[:, None]
            return {"sure": [(x, narrow * np.ones_like(x)) for x in self.predict(windows)["sure"]]}

    view = fixed_view(entries[:4], ["I", "II"], A, 1e-4)
    coverage = BandCoverage(view.rows, 3)
    coverage.measure([Source([Sure()])], view.rows)
    found = coverage.summary(20)["sure"]
    assert found["rows"] == 3 and found["overall"]["mean"] == pytest.approx(5 / 6)
    inside = {lead: summary["mean"] for lead, summary in found["per_lead"].items()}
    assert inside == {f"V{i}": float(i > 1) for i in range(1, 7)}  # limb leads were computed
    assert all(wave["mean"] == pytest.approx(5 / 6) for wave in found["per_wave"].values())
    assert found["width"]["mean"] == pytest.approx(2 * 1.6449 * 5.5 / 6, rel=0.02)
    labels = [set(some[found["task"]]) for some in coverage.labels]
    assert set(found["per_class"]) == set.union(*labels)
    for name, of in found["per_class"].items():
        assert of["rows"] == sum(name in some for some in labels)
    lines = rows_of("\n".join(coverage_tables({"sure": {"bands": found}, "other": {}})))
    assert [row[0] for row in lines] == ["method", "sure"] * 3
    assert lines[1][1].startswith("83.3 [")


def test_visible_leads_that_are_not_what_they_are_called_are_judged_against_the_true_hidden_ones(
    entries,
):
    class Wary:
        """The truth of V1, and a deviation as large as the visible leads are rough."""

        units = {"wary": "z"}  # noqa: RUF012

        def fit(self, windows):
            pass

        def predict(self, windows):
            return {"wary": [signal_of(w) for w in windows]}

        def predict_with_bars(self, windows):
            found = []
            for w, x in zip(windows, self.predict(windows)["wary"], strict=True):
                rough = np.diff(x[mask_leads(w["visible"])]).std()
                found.append((x, np.full_like(x, rough)))
            return {"wary": found}

    view = fixed_view(entries[:4], ["II", "V2", "V5"], A, 1e-4)
    coverage = BandCoverage(view.rows, 4)
    coverage.measure([Source([Wary()])], view.rows)
    found = coverage.summary(20)["wary"]
    unlike = {kind: found["unlike"][kind] for kind in DISTURBANCES}
    assert all(of["rows"] == 4 and of["inside"] == 1 for of in unlike.values())
    assert unlike["last visible lead is noise"]["times"] > 1.5
    assert found["per_wave"]["cut-off beats"]["mean"] == 1
    text = "\n".join(coverage_tables({"wary": {"bands": found}}))
    assert "| wary | last visible lead is noise | 4 | 100.0 |" in text
    (window,) = Windows(entries[:1])
    window |= {"visible": THREE, "signal": signal_of(window)}
    swapped = DISTURBANCES["arm electrodes swapped"](window)
    for name, axis in (("signal", 0), ("beats", 1)):
        before, after = np.moveaxis(window[name], axis, 0), np.moveaxis(swapped[name], axis, 0)
        np.testing.assert_array_equal(after[1], before[2].astype(np.float32))  # II, visible
        np.testing.assert_array_equal(after[[0, 2, 7]], before[[0, 2, 7]].astype(np.float32))


def test_a_stored_signal_is_the_truth(raw_corpus, tmp_path):
    corpus = open_corpus("synthetic", raw_corpus)
    build(corpus, tmp_path / "data", Preprocess(), store_signal=True, limit=10, progress=False)
    entries = list_entries([ShardSet(tmp_path / "data", "train")])[:1]
    view = fixed_view(entries, ["II", "V2", "V5"], A, 1e-4)
    ((_, truth, _),) = derive_rows([Source(make_methods(["zero"], None, 1e-4))], view.rows)
    ref = next(ref for ref in corpus.refs if ref.record_id == entries[0].record_id)
    record = corpus.load(ref)
    window = Preprocess().prepare(record.signal, record.rate, record.leads)[0]
    np.testing.assert_allclose(
        truth, window.signal * window.scale[:, None] + window.offset[:, None], atol=5e-3
    )


def one_record(raw_corpus):
    ref = open_corpus("synthetic", raw_corpus).refs[0]
    return f"{ref.path}.hea", read_wfdb_record(ref.path)


def test_one_record_becomes_a_wfdb_record_with_derived_leads_marked(
    trained_run, raw_corpus, tmp_path, capsys
):
    path, record = one_record(raw_corpus)
    where = [f"--checkpoint={trained_run}", f"--record={path}", f"--out={tmp_path}", "--write_wfdb"]
    assert command(*where, "--visible=V2,i,II") == 0
    said = capsys.readouterr().out
    assert "median of 80 training records" in said and "against the hidden leads" in said
    (header,) = tmp_path.glob("*_derived.hea")
    written = read_wfdb_record(str(header)[:-4])
    assert written.names == [
        lead if lead in ("I", "II", "V2") else f"{lead} (derived)" for lead in LEADS
    ]
    assert any("derived by lvcg" in line and "V3" in line for line in written.comments)
    assert any(
        "Einthoven" in line and "aVF" in line and "V3" not in line for line in written.comments
    )
    one, two, three = written.signal[:, :3].T
    np.testing.assert_allclose(three, two - one, atol=2e-3)
    names = [name.upper() for name in record.names]
    (window,) = Preprocess().prepare(record.signal, record.rate, record.names)
    np.testing.assert_allclose(
        two, window.signal[1] * window.scale[1] + window.offset[1], atol=2e-3
    )
    drawn = read_picture(next(tmp_path.glob("*.svg")))
    assert len(of_class(drawn, "trace derived")) == 9

    spoiled = record.signal.copy()
    spoiled[:, [names.index(f"V{k}") for k in (1, 3, 4, 5, 6)]] = 7 * np.random.default_rng(
        0
    ).normal(size=(len(spoiled), 5))
    np.savez(
        tmp_path / "spoiled.npz",
        signal=spoiled,
        rate=record.rate,
        unit="mV",
        leads=np.array(record.names),
    )
    where[1] = f"--record={tmp_path / 'spoiled.npz'}"
    assert command(*where, "--visible=V2,I,II") == 0
    again = read_wfdb_record(str(tmp_path / "spoiled_derived"))
    np.testing.assert_array_equal(again.signal, written.signal)


def test_one_record_comes_with_its_band(shards_dir, raw_corpus, tmp_path, capsys):
    path, _ = one_record(raw_corpus)
    where = [f"--data={shards_dir}", f"--record={path}", f"--out={tmp_path}", "--write_wfdb"]
    assert command(*where, "--visible=V2,I,II", "--methods=gaussian beat,regression") == 0
    said = capsys.readouterr().out
    assert "expected to hold 90% of the true samples" in said and "inside the band" in said
    (header,) = tmp_path.glob("*_derived.hea")
    written = read_wfdb_record(str(header)[:-4])
    derived = [f"V{i}" for i in (1, 3, 4, 5, 6)]
    assert written.names[12:] == [f"{lead} (derived) sd" for lead in derived]
    assert (written.signal[:, 12:] > 0).mean() > 0.99
    drawn = read_picture(next(tmp_path.glob("*.svg")))
    assert len(of_class(drawn, "band")) == 5 and "90% band" in words_of(drawn)


def test_an_earlier_record_of_the_patient_calibrates_one_record(
    shards_dir, raw_corpus, tmp_path, capsys
):
    path, record = one_record(raw_corpus)
    old = tmp_path / "old.npz"
    facts = {"rate": record.rate, "unit": "mV", "leads": np.array(record.names)}
    np.savez(old, signal=record.signal, **facts)
    where = [f"--data={shards_dir}", f"--record={path}", f"--out={tmp_path}", "--visible=I,II"]
    assert command(*where, f"--calibration={old}", "--methods=gaussian beat", "--write_wfdb") == 0
    said = capsys.readouterr().out
    assert "derived by gaussian beat, calibrated" in said and "inside the band" in said
    assert "record old calibrates" in said and "cannot be checked" in said
    assert "size of derived leads: that of the calibration record old" in said
    (header,) = tmp_path.glob("*_derived.hea")
    written = read_wfdb_record(str(header)[:-4])
    assert written.names[12:] == [f"V{i} (derived) sd" for i in range(1, 7)]
    # calibrated by itself, a record comes back but for what its beats do not share
    r = [float(cells[1]) for cells in rows_of(said) if cells[0].startswith("V")]
    assert len(r) == 6 and min(r) > 0.9, r

    mistakes = {
        ("--calibrate",): "give --calibration=FILE",
        (f"--calibration={tmp_path / 'few.npz'}",): "lacks V5, V6",
    }
    few = [i for i, name in enumerate(record.names) if name.upper() not in ("V5", "V6")]
    facts["leads"] = facts["leads"][few]
    np.savez(tmp_path / "few.npz", signal=record.signal[:, few], **facts)
    for flags, words in mistakes.items():
        with pytest.raises(InputError, match=words):
            command(*where, *flags)
    with pytest.raises(InputError, match="goes with --record"):
        command(*where[::2], f"--calibration={old}", "--k=3")


@pytest.fixture(scope="module")
def derive_with_bands(shards_dir, raw_corpus):
    """signal [T,12], rate, visible leads -> leads and deviations [12,T] by the Gaussian model."""
    _, record = one_record(raw_corpus)
    (method,) = make_methods(["gaussian beat"], None, 1e-4)
    train = Windows(list_entries([ShardSet(shards_dir, "train")]))
    method.fit(train)
    preprocess, sizes = train.entries[0].shards.preprocess, one_record_room.typical_sizes(train)

    def derived(signal, rate, visible):
        facts = ({}, None, "test")
        made = Record("made", "made", signal.astype(np.float32), rate, record.names, *facts)
        found, _ = one_record_room.derive(made, visible, preprocess, [method], sizes)
        return found.mv["gaussian beat"], found.deviation["gaussian beat"]

    return derived, record


def test_one_lead_two_beats_another_rate_and_noise_are_derived_with_a_band(derive_with_bands):
    derived, record = derive_with_bands
    signal, rate = record.signal, record.rate
    whole, band = derived(signal, rate, ["I", "II", "V2"])
    one, wide = derived(signal, rate, ["I"])
    assert np.isfinite(one).all() and wide[6:].mean() > band[6:].mean()
    # limb leads fit together, whether one is visible or none
    none, _ = derived(signal, rate, ["V2"])
    for mv in (one, none, whole):
        np.testing.assert_allclose(mv[:6], LIMB @ mv[:2], atol=1e-4)
    # 2.5 s hold two or three beats
    short, sure = derived(signal[: int(2.5 * rate)], rate, ["I", "II", "V2"])
    assert np.isfinite(short).all() and (sure[8] > 0).all()
    # every other sample was not recorded
    slower, _ = derived(decimate(signal, 2, axis=0), rate / 2, ["I", "II", "V2"])
    assert np.corrcoef(slower[8], whole[8])[0, 1] > 0.97
    noisy = signal.copy()
    column = [name.upper() for name in record.names].index("V2")
    noisy[:, column] = np.random.default_rng(0).normal(size=len(noisy))
    noise, unsure = derived(noisy, rate, ["I", "II", "V2"])
    assert np.isfinite(noise).all() and (unsure[8] > 0).all()
    with pytest.raises(InputError, match="every lead is absent, without values, flat or railed"):
        derived(np.ones_like(signal), rate, ["I", "II", "V2"])


def test_a_wrong_unit_of_one_record_is_noticed(shards_dir, raw_corpus, tmp_path):
    _, record = one_record(raw_corpus)
    for factor, word in ((1000, "gain or unit is wrong"), (0.001, "thousand times too little")):
        facts = {"rate": record.rate, "unit": "mV", "leads": np.array(record.names)}
        np.savez(tmp_path / "odd.npz", signal=factor * record.signal, **facts)
        where = [f"--data={shards_dir}", f"--record={tmp_path / 'odd.npz'}", "--visible=II"]
        with pytest.raises(InputError, match=word):
            command(*where, f"--out={tmp_path}", "--methods=regression")


def test_a_flat_or_absent_visible_lead_of_one_record_is_named_and_the_others_go_on(
    trained_run, raw_corpus, tmp_path, capsys
):
    _, record = one_record(raw_corpus)
    names = [name.upper() for name in record.names]
    columns = [names.index(lead) for lead in ("I", "V2", "V5")]
    signal = record.signal[:, columns].copy()
    signal[:, 1] = 0.25
    np.savez(
        tmp_path / "few.npz",
        signal=signal,
        rate=record.rate,
        unit="mV",
        leads=np.array(["I", "V2", "V5"]),
    )
    where = [f"--checkpoint={trained_run}", f"--record={tmp_path / 'few.npz'}", f"--out={tmp_path}"]
    assert command(*where, "--visible=I,V2,V5,V6", "--methods=lvcg,geometry:dower") == 0
    said = capsys.readouterr().out
    assert "no lead V6" in said and "V2 is flat" in said and "2 of 3 dimensions" in said


MISTAKES = {
    "--visible=II,V7": ("unknown lead 'V7'", "did you mean V"),
    "--visible=I,II,III,aVR,aVL,aVF,V1,V2,V3,V4,V5,V6": ("all twelve leads are visible", "nothing"),
    "--k=12": ("nothing to reconstruct",),
    "--k=three": ("--k=three",),
    "--methods=lvgc --k=3": ("unknown method 'lvgc'", "did you mean lvcg"),
    "--also=nowhere --k=3": ("--also=nowhere", "RUN:SHARDS"),
    "--split=tset --k=3": ("no split 'tset'",),
    "": ("--visible", "--k"),
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes_are_told_in_one_line(trained_run, shards_dir, tmp_path, flags):
    with pytest.raises(InputError) as error:
        command(
            f"--checkpoint={trained_run}",
            f"--data={shards_dir}",
            f"--out={tmp_path}",
            *flags.split(),
        )
    for word in MISTAKES[flags]:
        assert word in str(error.value)


def test_mistakes_with_one_record(trained_run, raw_corpus, tmp_path):
    path, record = one_record(raw_corpus)
    where = [f"--checkpoint={trained_run}", f"--out={tmp_path}"]
    with pytest.raises(InputError, match="nothing to derive"):
        command(*where, f"--record={path}")
    np.save(tmp_path / "short.npy", record.signal[: int(0.6 * record.rate), :2])
    short = [
        f"--record={tmp_path / 'short.npy'}",
        f"--rate={record.rate}",
        "--unit=mV",
        "--lead_names=I,II",
    ]
    with pytest.raises(InputError, match="too short"):
        command(*where, *short)
    with pytest.raises(InputError, match="none of V1"):
        command(*where, *short, "--visible=V1")


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ptb in it"
)
def test_regression_and_copy_on_ptb_are_as_published(tmp_path):
    """289 patients gave regression R2 .695 and MSE .357, copy R2 .482 and MSE .557 from II, V2, V5;
    fewer are here."""
    corpus = open_corpus("ptb", os.path.join(os.environ["LVCG_REAL_DATA"], "ptb"))
    build(corpus, tmp_path / "data", Preprocess(), store_signal=True, workers=2, progress=False)
    flags = [
        f"--data={tmp_path / 'data'}",
        f"--out={tmp_path}",
        "--split=all",
        "--visible=II,V2,V5",
        "--no_pictures",
    ]
    assert command(*flags, "--methods=regression,copy") == 0
    found = json.loads((tmp_path / "metrics.json").read_text())["views"][0]["methods"]
    for name, r2, mse in (("regression", 0.695, 0.357), ("copy", 0.482, 0.557)):
        values = found[name]["overall"]
        assert values["r2"]["median"] == pytest.approx(r2, abs=0.03), name
        assert values["mse"]["low"] < mse + 0.03 and mse - 0.03 < values["mse"]["high"], name
