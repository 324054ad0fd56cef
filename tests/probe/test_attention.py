"""Attention probe: it starts as the linear probe, sees single beats and nothing of the padding, and
does the same for the same seed."""

import contextlib
import csv
import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers.raw_files import ecg

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.windows import dataset_windows
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.table import save_table, take_rows
from lvcg_jax.predict.__main__ import main as predict
from lvcg_jax.probe import attention
from lvcg_jax.probe.__main__ import main
from lvcg_jax.probe.attention import AttentionFit, Inputs, join_inputs
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.runs.attention import SCALES, Facts, Network, Setting, added_scores, initial
from lvcg_jax.runs.heads import load_head
from lvcg_jax.stats.auroc import macro_auroc

SMALL = Setting(heads=2, values=8, hidden=8, dropout=0.1, learning_rate=3e-3)


@pytest.fixture(scope="module")
def table(model, shards_dir):
    return embed_dataset(model, shards_dir, tokens=True, progress=False)


@pytest.fixture(scope="module")
def facts(table, shards_dir):
    return attention.read_facts(shards_dir, table)


@pytest.fixture(scope="module")
def toy():
    """Records of which some have one odd beat: a large token in the middle of small ones, and a
    mean that says little. Rows 0-399 train, 400-599 validate, 600-799 test."""
    rng = np.random.default_rng(0)
    m, n, d = 800, 8, 6
    tokens = rng.normal(size=(m, n, d))
    odd = rng.random(m) < 0.3
    tokens[odd, rng.integers(0, 4, odd.sum()), 0] += 5.0
    tokens[:, :, 1] += 2.0 * rng.normal(size=(m, 1))
    num_beats = rng.integers(4, n + 1, m)
    there = np.arange(n) < num_beats[:, None]
    tokens = np.where(there[..., None], tokens, 0.0)
    mean = (tokens.sum(1) / num_beats[:, None]).astype(np.float32)
    inputs = Inputs(mean, tokens.astype(np.float16), num_beats, mean, [d])
    return inputs, np.stack([odd, mean[:, 1] > 0], 1)


PIECES = np.arange(400), np.arange(400, 600), np.arange(600, 800)


def fit_toy(toy, settings=(SMALL,), seed=0):
    inputs, labels = toy
    train, val, test = PIECES
    fit = AttentionFit(inputs, np.arange(800), settings)
    return fit(train, labels[train], val, labels[val], test, seed)


def ridge_toy(toy):
    (inputs, labels), (train, val, _) = toy, PIECES
    e = inputs.embedding
    return fit_ridge(e[train], labels[train], e[val], labels[val], 0, STRENGTHS, [6])[0]


def test_without_a_setting_it_is_the_linear_probe(toy):
    _, val, test = PIECES
    val_scores, test_scores, chosen = fit_toy(toy, settings=())
    assert chosen == "linear probe"
    for rows, scores in ((val, val_scores), (test, test_scores)):
        np.testing.assert_allclose(scores, ridge_toy(toy)(toy[0].embedding[rows]), atol=1e-5)


def test_it_finds_a_single_beat_that_the_mean_hides(toy):
    inputs, labels = toy
    test = PIECES[2]
    _, scores, chosen = fit_toy(toy)
    linear = macro_auroc(labels[test], ridge_toy(toy)(inputs.embedding[test]))[0]
    assert macro_auroc(labels[test], scores)[0] > linear + 0.02
    assert chosen.startswith("2 heads, epoch ")


def test_the_same_seed_gives_the_same_scores_and_another_one_others(toy, monkeypatch):
    monkeypatch.setattr(attention, "EPOCHS", 3)
    one, two, other = (fit_toy(toy, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one[1], two[1])
    assert one[2] == two[2] and not np.array_equal(one[1], other[1])


def test_scores_do_not_depend_on_padding_or_on_order_of_rows(toy):
    inputs, _ = toy
    network = Network(SMALL, 2)
    rng = np.random.default_rng(1)
    n, d = inputs.tokens.shape[1:]
    params = initial(network, inputs, 0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
    scales = dict(zip(SCALES, np.float32([0.5, 2.0, 0.0, 1.0]), strict=True))
    rows = rng.permutation(800)[:50]
    scores = added_scores(params, network, scales, inputs, rows)
    # other numbers in the slots that no beat fills, and one more slot
    wide = np.full((800, n + 1, d), 7, np.float16)
    there = np.arange(n + 1) < inputs.num_beats[:, None]
    wide[:, :n][there[:, :n]] = inputs.tokens[there[:, :n]]
    wider = Inputs(inputs.record, wide, inputs.num_beats, inputs.embedding, [d])
    again = added_scores(params, network, scales, wider, rows[::-1])
    np.testing.assert_allclose(again[::-1], scores, atol=1e-4)
    assert scores.std(0).min() > 0


def test_facts_are_those_of_the_shards(facts, table, shards_dir):
    windows = {f"{w['record_id']}#{w['window']}": w for w in dataset_windows(shards_dir)}
    row = 3
    window = windows[table.keys[row]]
    n, whole = len(window["length"]), window["complete"]
    assert facts.num_beats[row] == n
    ratio = np.log(window["length"] / window["length"][whole].mean()) * whole
    own, before, after, complete, complete_before, complete_after, place = facts.beat[row, :n].T
    np.testing.assert_allclose(own, np.clip(ratio, -2, 2), atol=1e-4)
    np.testing.assert_array_equal(complete, whole)
    np.testing.assert_array_equal(before[1:], own[:-1])
    np.testing.assert_array_equal(after[:-1], own[1:])
    np.testing.assert_array_equal(complete_before[1:], complete[:-1])
    assert before[0] == complete_before[0] == complete_after[-1] == 0 and (np.diff(place) > 0).all()
    np.testing.assert_allclose(facts.record[row, -12:], np.log(window["scale"]), atol=1e-5)


def test_tokens_follow_their_record_into_another_order(facts, table):
    inputs = join_inputs(facts, table.embedding, table, table.keys)
    size = table.tokens.shape[1]
    ends = np.cumsum(table.extra["num_beats"])
    row = 5
    own = table.tokens[ends[row - 1] : ends[row]]
    np.testing.assert_array_equal(inputs.tokens[row, : len(own), :size], own.astype(np.float16))
    assert not inputs.tokens[row, len(own) :].any()
    # the same rows the other way round
    turned = Facts(*(x[::-1] for x in (facts.num_beats, facts.beat, facts.record)))
    other = join_inputs(turned, table.embedding[::-1], table, table.keys[::-1])
    np.testing.assert_array_equal(other.tokens[::-1], inputs.tokens)


def test_rows_that_the_shards_do_not_have_are_named(table, shards_dir, facts):
    strange = take_rows(table, np.arange(3))
    strange.record_id[1] = "nobody"
    with pytest.raises(InputError, match=r"1 rows .* \(record nobody\)"):
        attention.read_facts(shards_dir, strange)
    with pytest.raises(InputError, match="lvcg embed --tokens"):
        join_inputs(facts, table.embedding, take_rows(table, slice(None)), table.keys)


@pytest.fixture(scope="module")
def saved(table, shards_dir, tmp_path_factory):
    """What the command wrote: a head, the probe's predictions and scores; and what it printed."""
    folder = tmp_path_factory.mktemp("attention")
    save_table(folder / "with.npz", table)
    save_table(folder / "without.npz", take_rows(table, slice(None)))
    flags = ["--protocol=attention", f"--data={shards_dir}", "--task=rhythm", "--fractions=1"]
    flags += [f"--embeddings=mine={folder / 'with.npz'}", "--seeds=1", "--resamples=20"]
    flags += [f"--control=same={folder / 'with.npz'}", f"--control=linear={folder / 'without.npz'}"]
    flags += [f"--save={folder / 'rhythm.safetensors'}", f"--predictions={folder / 'probe.csv'}"]

    def silent(*given):  # a linear layer that says nothing, so that attention is what is kept
        layer, setting = fit_ridge(*given)
        return dataclasses.replace(layer, weights=0 * layer.weights), setting

    with pytest.MonkeyPatch.context() as patch, open(folder / "said.txt", "w") as said:
        patch.setattr(attention, "EPOCHS", 3)
        patch.setattr(attention, "fit_ridge", silent)
        patch.setattr(AttentionFit.__init__, "__defaults__", ((SMALL,),))
        with contextlib.redirect_stdout(said):
            main([*flags, f"--out={folder / 'o.json'}"])
    return folder


def test_command_compares_it_with_the_linear_probe_and_with_controls(saved):
    result = json.loads((saved / "o.json").read_text())["results"][0]
    assert result["protocol"] == "attention"
    assert result["models"] == ["mine, attention", "same, attention", "mine", "same", "linear"]
    assert "| rhythm | mine, attention - mine |" in (saved / "said.txt").read_text()
    by_name = {cell["model"]: cell["macro_auroc"] for cell in result["cells"]}
    assert by_name["mine, attention"] == by_name["same, attention"]
    assert by_name["mine"] == by_name["linear"] > 0.5


def rows_of(path):
    with open(path, newline="") as file:
        return {row["record_id"]: row for row in csv.DictReader(file)}


def test_a_saved_head_answers_as_the_probe_did(shards_dir, model, trained_run, saved):
    head, out = load_head(saved / "rhythm.safetensors"), saved / "answers.csv"
    assert "with attention over beats" in (saved / "rhythm.md").read_text()
    flags = [f"--head={saved / 'rhythm.safetensors'}", f"--out={out}"]
    assert predict([*flags, f"--checkpoint={trained_run}", f"--data={shards_dir}"]) == 0
    found, probe = rows_of(out), rows_of(saved / "probe.csv")
    columns = [name for name in next(iter(probe.values())) if name.startswith("rhythm:")]
    assert len(columns) >= 2 and len(probe) > 5
    for record, row in probe.items():
        for column in columns:
            assert float(found[record][column]) == pytest.approx(float(row[column]), abs=1e-6)
    # from Python, one record and several; without its attention it says something else
    alone = model.predict(ecg(3), 500, LEADS, head).probabilities
    several = model.predict([ecg(4), ecg(3)], 500, LEADS, head)
    assert several[1].probabilities == pytest.approx(alone, abs=1e-3)
    linear = dataclasses.replace(head, attention=None)
    assert model.predict(ecg(3), 500, LEADS, linear).probabilities != pytest.approx(alone, abs=1e-3)


def test_a_saved_head_says_what_it_needs_and_is_refused_if_damaged(saved, tmp_path):
    path = saved / "rhythm.safetensors"
    with pytest.raises(InputError, match="reads beats beside embeddings: ask it with lvcg predict"):
        predict(
            [f"--head={path}", f"--embeddings={saved / 'with.npz'}", f"--out={tmp_path / 'a.csv'}"]
        )
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    (tmp_path / path.name).write_bytes(data)
    with pytest.raises(InputError, match="is damaged"):
        load_head(tmp_path / path.name)


def test_command_says_what_it_needs():
    with pytest.raises(InputError, match="--protocol=attention takes --embeddings and --data"):
        main(["--protocol=attention", "--embeddings=trained.npz"])
