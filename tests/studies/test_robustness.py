"""Moved electrodes and fewer leads: what must change nothing changes nothing, and the tables hold
every condition."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
from helpers.pictures import read_picture, words_of

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.embed.lvcg import LVCG, embed_packed
from lvcg_jax.probe.frozen import ALL, frozen_probe
from lvcg_jax.probe.study import probe_task
from lvcg_jax.reconstruct.methods import NetworkLeads
from lvcg_jax.report.scores import robustness_section
from lvcg_jax.studies import robustness
from lvcg_jax.studies.robustness import ProjectedLeads, add_noise, move, rotate

A = lead_matrix("paper")
THREE = lead_mask(np.isin(LEADS, ["II", "V2", "V5"]))


@pytest.fixture(scope="module")
def bench(model, shards_dir, tmp_path_factory):
    found, notes = robustness.open_bench(
        model, str(shards_dir), tmp_path_factory.mktemp("bench") / "e.npz", None
    )
    assert notes == []
    return found


@pytest.fixture(scope="module")
def results(trained_run, shards_dir, tmp_path_factory):
    """The command's folder, with half the records and one seed."""
    out = tmp_path_factory.mktemp("robustness")
    flags = [
        f"--checkpoint={trained_run}",
        f"--data={shards_dir}",
        f"--out={out}",
        f"--page={out / 'page.md'}",
    ]
    more = [
        "--seeds=1",
        "--derive_records=6",
        "--train_records=40",
        "--resamples=30",
        "--task=diagnosis",
    ]
    assert robustness.main([*flags, *more]) == 0
    return out


def tables_of(text):
    """Markdown tables as lists of rows of cells, the header first."""
    tables, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            tables.append([rows[0], *rows[2:]])
            rows = []
    return tables


@pytest.mark.parametrize("degrees", [0, 360])
def test_a_rotation_by_nothing_changes_nothing(model, bench, degrees):
    turned = rotate(A, degrees, seed=3)
    np.testing.assert_allclose(turned, A, atol=1e-12)
    plain = bench.table.embedding[bench.test_rows]
    np.testing.assert_allclose(bench.embed(move(model, turned, turned)), plain, atol=1e-5)
    windows = [w | {"visible": THREE} for w in bench.windows[:3]]
    moved = ProjectedLeads(model, turned, {"moved": turned}).predict(windows)["moved"]
    for one, two in zip(
        moved, NetworkLeads(model, {"lvcg": "both"}).predict(windows)["lvcg"], strict=True
    ):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_rotations_keep_lengths_and_angles_and_differ_by_seed():
    turned = rotate(A, 30, seed=0)
    np.testing.assert_allclose(turned @ turned.T, A @ A.T, atol=1e-12)
    assert np.abs(turned - A).max() > 0.1
    assert np.abs(turned - rotate(A, 30, seed=1)).max() > 0.1
    np.testing.assert_allclose(rotate(turned, -30, seed=0), A, atol=1e-12)


def test_more_noise_moves_embeddings_further_and_compiles_once(model, bench):
    plain = bench.table.embedding[bench.test_rows]
    shifts = []
    for level in (0.0, *robustness.NOISE):
        moved = move(model, add_noise(A, level, 0), A)
        shifts.append(np.linalg.norm(bench.embed(moved) - plain))
        if level == 0.0:
            compiled = embed_packed._cache_size()
    assert shifts[0] < 1e-3
    assert np.all(np.diff(shifts) > 0)
    assert embed_packed._cache_size() == compiled


def test_a_learned_geometry_is_moved_from_where_it_is(model, bench):
    learned = add_noise(A, 0.1, 7)
    params = {**model.variables["params"], "directions": learned.astype(np.float32)}
    own = LVCG(model.config, {**model.variables, "params": params}, "learned")
    own.model = own.model.clone(geometry=dataclasses.replace(own.model.geometry, learnable=True))
    np.testing.assert_allclose(own.directions, learned, atol=1e-6)
    expected = bench.embed(own, windows=bench.windows[:4])
    again = bench.embed(move(own, own.directions, own.directions), windows=bench.windows[:4])
    np.testing.assert_allclose(again, expected, atol=1e-4)
    assert np.abs(expected - bench.embed(model, windows=bench.windows[:4])).max() > 1e-3


def test_lead_sets_are_nested_and_hold_the_devices():
    sets = robustness.lead_sets()
    nested = [set(leads) for name, leads in sets.items() if name not in robustness.DEVICES]
    assert [len(leads) for leads in nested] == list(range(12, 0, -1))
    assert all(small < large for large, small in pairwise(nested))
    wanted = [{"I"}, {"II"}, {"I", "II"}, {"I", "II", "V2"}, set(LEADS[:6]), set(LEADS)]
    assert all(leads in [set(s) for s in sets.values()] for leads in wanted)
    assert all(set(leads) <= set(LEADS) for leads in sets.values())


def test_hiding_leads_hides_them(model, bench):
    spoiled = [w | {"beats": w["beats"].copy()} for w in bench.windows[:4]]
    for window in spoiled:
        window["beats"][:, 6:] = np.nan
    few = LEADS[:6]
    one, two = bench.embed(model, few, spoiled), bench.embed(model, few, bench.windows[:4])
    np.testing.assert_array_equal(one, two)
    assert np.abs(two - bench.embed(model, LEADS, bench.windows[:4])).max() > 1e-4


def test_the_frozen_probe_is_fitted_once_and_agrees_with_itself(bench):
    plain = bench.table.embedding[bench.test_rows]
    noisy = plain + np.random.default_rng(0).normal(size=plain.shape) * plain.std(0) * 10
    tested = {"same": [plain], "noise": [noisy, -plain]}
    found = frozen_probe(bench.table, bench.test_rows, tested, "diagnosis", (1.0,), 2, 20)
    gaps = {gap["control"]: gap for gap in found["differences"]}
    assert gaps["same"]["difference"] == 0 and gaps["same"]["low"] == gaps["same"]["high"] == 0
    assert len({tuple(cell["setting"]) for cell in found["cells"] if cell["model"] != "noise"}) == 1


def test_a_retrained_probe_weighs_parts_as_the_frozen_one_does(bench):
    table, noise = bench.table, np.random.default_rng(1).normal(size=bench.table.embedding.shape)
    noisy = dataclasses.replace(table, embedding=noise.astype(np.float32))
    last = table.part_columns[list(table.parts)[-1]]  # the one part that knows a label
    known = [row.get("diagnosis", [""])[:1] == ["NORM"] for row in table.labels]
    noisy.embedding[:, last.start] += 1.5 * np.array(known)
    frozen = frozen_probe(noisy, bench.test_rows, {}, "diagnosis", (1.0,), 1, 20)["cells"][0]
    features = {ALL: noisy.embedding}
    again = robustness.retrained_probe(noisy, features, "diagnosis", 20)["cells"][0]
    plain = probe_task(features, noisy, "diagnosis", fractions=(1.0,), seeds=1, resamples=20)
    assert again == frozen and again["macro_auroc"] != plain["cells"][0]["macro_auroc"]


def cell(probe, model, key="macro_auroc", fraction=1.0):
    return next(c[key] for c in probe["cells"] if c["model"] == model and c["fraction"] == fraction)


def test_tables_hold_every_condition(results):
    moved, f1, fewer, shares = tables_of((results / "table.md").read_text())
    names = [*robustness.perturbations(1)]
    assert [row[0] for row in moved[1:]] == names and len(names) == 8
    assert moved[0][1:3] == ["diagnosis 1%", "diagnosis 100%"]
    assert {len(row) for row in moved} == {len(moved[0])} and {len(row) for row in fewer} == {
        len(fewer[0])
    }
    assert [row[0] for row in fewer[1:]] == list(robustness.lead_sets())
    assert all("[" in cell for row in fewer[1:] for cell in row[4:6])
    assert all("[" in cell for row in fewer[2:] for cell in row[6:])
    # F1 and averages over tasks, and every share of the labels
    document = json.loads((results / "robustness.json").read_text())
    probes = document["moved_electrodes"]["probe"]
    assert [row[0] for row in f1[1:]] == names and f1[0][-2:] == [
        "average F1 1%",
        "average F1 100%",
    ]
    gaps = [cell(p, names[-1], "macro_f1") - cell(p, ALL, "macro_f1") for p in probes]
    assert f1[-1][-1] == f"{100 * np.mean(gaps):+.1f}"
    assert [row[0] for row in shares[1:]] == list(robustness.lead_sets())
    frozen = document["fewer_leads"]["frozen"]
    by_share = [[cell(p, "3 leads", fraction=f) for f in (0.01, 0.1, 1.0)] for p in frozen]
    row = next(row for row in shares if row[0] == "3 leads")
    for shown, scores in zip(row[1:], [*by_share, np.mean(by_share, axis=0)], strict=True):
        assert shown == " / ".join(f"{100 * score:.1f}" for score in scores)
    shifts = [p["embedding_shift"] for p in document["moved_electrodes"]["perturbations"].values()]
    assert np.all(np.diff(shifts[:4]) > 0)
    assert document["fewer_leads"]["sets"]["2 leads"]["rank"] == 2
    assert document["fewer_leads"]["train_records"] == 40
    page = (results / "page.md").read_text()
    assert "EASI" in (results / "table.md").read_text() and "<!-- section: robustness -->" in page
    assert "](./perturbation.svg)" in page


def test_a_report_draws_what_was_written(results):
    html = robustness_section(results)
    assert html.count("<svg") == 6 and "Holter 3" in html and "rotation (degrees)" in html


@pytest.mark.parametrize(
    "name, charts, words",
    [("perturbation.svg", 4, "rotation (degrees)"), ("sparsity.svg", 2, "Holter 3")],
)
def test_pictures_are_not_blank(results, name, charts, words):
    root = read_picture(results / name)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 1 + charts
    curves = [e for e in root.iter() if e.get("stroke") == "var(--s0)" and "L" in e.get("d", "")]
    assert len(curves) == charts and words in words_of(root)


def test_embeddings_of_another_model_are_refused(results, model, shards_dir):
    other = LVCG(model.config, model.variables, "another")
    with pytest.raises(InputError, match="embeddings.npz is of"):
        robustness.open_bench(other, str(shards_dir), results / "embeddings.npz", None)


def test_a_task_that_is_not_there_is_told_before_the_work(trained_run, shards_dir, results):
    flags = [
        f"--checkpoint={trained_run}",
        f"--data={shards_dir}",
        f"--out={results}",
        "--task=diagnose",
    ]
    with pytest.raises(InputError, match="diagnosis"):
        robustness.main(flags)


def test_a_limit_draws_from_many_patients_and_says_so(model, shards_dir, results):
    whole, _ = robustness.open_bench(model, str(shards_dir), results / "embeddings.npz", None)
    bench, notes = robustness.open_bench(model, str(shards_dir), results / "embeddings.npz", 7)
    assert len(bench.windows) == 7 and "7 of" in notes[0]
    keys = np.array(bench.table.keys)[bench.test_rows]
    assert keys.tolist() == [f"{w['record_id']}#{w['window']}" for w in bench.windows]
    assert (bench.table.split == "test").sum() == 7
    there = {w["patient_id"] for w in whole.windows}
    assert len({w["patient_id"] for w in bench.windows}) == min(7, len(there))
