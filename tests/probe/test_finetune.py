"""Fine-tuning: the head alone leaves the encoder as it is, then everything moves; deterministic,
blind to padding."""

import csv
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run

from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.predict import __main__ as predict_door
from lvcg_jax.probe.finetune import AllSplits, FineTune
from lvcg_jax.probe.labels import task_of
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge


@pytest.fixture(scope="module")
def embedder(trained_run):
    return LVCG.load(trained_run)


@pytest.fixture(scope="module")
def table(embedder, shards_dir):
    return embed_dataset(embedder, shards_dir, progress=False)


@pytest.fixture(scope="module")
def task(table):
    return task_of(table, "rhythm")


@pytest.fixture
def make(embedder, shards_dir, table, task):
    def make(epochs, learning_rate=1e-3):
        return FineTune(
            embedder, shards_dir, table, task.rows, epochs, learning_rate, progress=False
        )

    return make


def rows_of(task):
    train, val, test = (np.flatnonzero(task.splits == s) for s in ("train", "validation", "test"))
    learnt = task.labels[train].any(0) & ~task.labels[train].all(0)
    return train, task.labels[train][:, learnt], val, task.labels[val][:, learnt], test


def changed(a, b):
    return [
        not np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]


def test_head_alone_is_the_ridge_probe_and_leaves_the_encoder_bit_identical(
    make, embedder, table, task
):
    train, y, val, y_val, test = rows_of(task)
    tune = make(epochs=0)
    params, _, epoch = tune.tune(train, y, val, y_val, 0)
    assert epoch == 0
    stored = {name: embedder.variables["params"][name] for name in params["backbone"]}
    assert not any(changed(params["backbone"], stored))
    x = table.embedding[task.rows]
    head, _ = fit_ridge(x[train], y, x[val], y_val, 0, STRENGTHS, table.part_sizes)
    _, scores, _ = tune(train, y, val, y_val, test, 0)
    # the same records in the same order, embedded anew
    np.testing.assert_allclose(scores, head(x[test]), atol=1e-3)


def test_the_head_weighs_parts_as_the_linear_probe_beside_it_does(
    embedder, shards_dir, table, task
):
    train, y, val, y_val, _ = rows_of(task)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=table.embedding.shape).astype(np.float32)
    last = table.part_columns[list(table.parts)[-1]]  # the one part that knows the label
    noise[task.rows, last.start] += 1.5 * task.labels[:, 0]
    other = replace(table, embedding=noise)
    tune = FineTune(embedder, shards_dir, other, task.rows, 0, 1e-3, progress=False)
    params, _, _ = tune.tune(train, y, val, y_val, 0)
    x = noise[task.rows]
    with_parts, without = (
        fit_ridge(x[train], y, x[val], y_val, 0, STRENGTHS, parts)[0].weights
        for parts in (table.part_sizes, None)
    )
    np.testing.assert_allclose(params["head"]["kernel"], with_parts, rtol=1e-5)
    assert np.abs(with_parts - without).max() > 1e-3


def begin(tune, train, y, val, y_val):
    params, fixed = tune.start(
        fit_ridge(tune._features[train], y, tune._features[val], y_val, 0, STRENGTHS)[0]
    )
    return params, tune._tx.init(params), fixed


def test_full_phase_moves_encoder_and_head_but_not_decoder_or_norm_statistics(make, task):
    train, y, val, y_val, _ = rows_of(task)
    tune = make(epochs=1)
    start, state, fixed = begin(tune, train, y, val, y_val)
    params, before, losses = start, jax.device_get(fixed), []
    for _ in range(5):
        params, state, loss = tune.step(params, state, fixed, train[:64], y[:64])
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert sum(changed(params["backbone"], start["backbone"])) > 0.9 * len(
        jax.tree.leaves(start["backbone"])
    )
    assert all(changed(params["head"], start["head"]))
    assert not any(changed(before, fixed)) and not set(before["params"]) & set(params["backbone"])


def test_rows_that_fill_a_batch_change_no_score_and_no_update(make, task):
    train, y, val, y_val, _ = rows_of(task)
    tune = make(epochs=1)
    start, state, fixed = begin(tune, train, y, val, y_val)
    alone = np.concatenate([tune.scores(start, fixed, val[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(tune.scores(start, fixed, val)[:3], alone, atol=1e-4)
    fill, losses = np.full(10, -1), []
    for rows, labels in (
        (
            np.concatenate([train[:54], fill]),
            np.concatenate([y[:54], np.ones((10, y.shape[1]), bool)]),
        ),
        (
            np.concatenate([fill, train[:54]]),
            np.concatenate([np.zeros((10, y.shape[1]), bool), y[:54]]),
        ),
    ):
        losses.append(float(tune.step(start, state, fixed, rows, labels)[2]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_same_seed_gives_the_same_scores(make, task):
    train, y, val, y_val, test = rows_of(task)
    one, two = (make(epochs=1)(train, y, val, y_val, test, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])
    assert one[2] == two[2]


def test_all_splits_are_one_list_in_the_order_of_the_table(shards_dir, table):
    shards = AllSplits(shards_dir)
    numbers = [len(shards) - 1, 0, 50, 51]
    assert [e["record_id"] for e in shards.read(numbers)] == table.record_id[numbers].tolist()
    assert len(shards) == len(table.record_id)


def test_command_tunes_scores_and_writes_predictions(trained_run, shards_dir, tmp_path):
    out, scores = tmp_path / "tuned.json", tmp_path / "scores.csv"
    flags = [
        f"--checkpoint={trained_run}",
        f"--data={shards_dir}",
        "--protocol=finetune",
        "--task=rhythm",
        "--seeds=1",
    ]
    flags += ["--fractions=1", "--epochs=2", "--learning_rate=1e-3", "--resamples=20"]
    more = [f"--predictions={scores}", f"--save={tmp_path / 'tuned'}"]
    done = run("lvcg_jax.probe", *flags, f"--out={out}", *more)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| rhythm | fine-tuned - linear probe |" in done.stdout
    result = json.loads(out.read_text())["results"][0]
    assert result["protocol"] == "finetune" and result["models"] == ["fine-tuned", "linear probe"]
    tuned, frozen = result["cells"]
    assert tuned["train_rows"] == frozen["train_rows"] and tuned["macro_auroc"] > 0.5
    assert len(scores.read_text().splitlines()) == 1 + result["splits"]["test"]["rows"]
    # the run directory that was saved, with its head, says the same
    head, answers = tmp_path / "tuned" / "head.safetensors", tmp_path / "answers.csv"
    assert predict_door.main([f"--head={head}", f"--data={shards_dir}", f"--out={answers}"]) == 0
    one, two = (
        {row["record_id"]: row for row in csv.DictReader(path.read_text().splitlines())}
        for path in (scores, answers)
    )
    for record, row in one.items():
        for name in row.keys() - {"record_id"}:
            assert float(two[record][name]) == pytest.approx(float(row[name]), abs=1e-4)


def test_command_without_a_checkpoint_says_what_it_needs(shards_dir):
    done = run("lvcg_jax.probe", "--protocol=finetune", f"--data={shards_dir}")
    assert_one_line_error(done, "--checkpoint and --data")
