"""The main job as a user runs it: what lands in the run directory, and what a mistake looks
like."""

import json
import shutil
from functools import partial

import jax
import numpy as np
import pytest
from helpers.commands import CONFIG, assert_one_line_error, get_config, run, train_arguments
from jax._src.array import ArrayImpl

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import write_corpus
from lvcg_jax import LVCG
from lvcg_jax.config.fields import POSITIVE_FIELDS, flatten
from lvcg_jax.config.files import load_config
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.data.order import BatchOrder
from lvcg_jax.runs.checkpoint import Checkpoints
from lvcg_jax.runs.metrics_log import MetricsLog, read_metrics
from lvcg_jax.runs.state import TrainState, take_weights
from lvcg_jax.train import loop
from lvcg_jax.train.__main__ import default_workdir
from lvcg_jax.train.loop import everything_closed, train_and_evaluate


def test_run_directory_says_what_was_done(trained_run, smoke):
    assert flatten(load_config(trained_run / "config.json")) == flatten(smoke)
    versions = json.loads((trained_run / "versions.json").read_text())
    assert {"jax", "flax", "lvcg-jax", "python"} <= versions.keys()
    rows = read_metrics(trained_run)
    train = [row for row in rows if row["kind"] == "train"]
    validation = [row for row in rows if row["kind"] == "validation"]
    assert [row["step"] for row in train] == list(range(1, 21))
    assert {
        "loss",
        "ecg",
        "vcg",
        "temp",
        "ecg_r2",
        "vcg_r2",
        "ecg_worst5",
        "gradient_norm",
        "learning_rate",
    } <= train[0].keys()
    assert [row["step"] for row in validation] == [10, 20]
    for row in train:
        assert row["loss"] == pytest.approx(row["ecg"] + row["vcg"] + 0.1 * row["temp"], rel=1e-4)
    assert list((trained_run / "tensorboard").glob("events*"))
    best = min(validation, key=lambda row: row["loss"])
    assert [int(p.name) for p in (trained_run / "lowest").iterdir() if p.name.isdigit()] == [
        best["step"]
    ]
    assert Checkpoints(trained_run).lowest_loss == pytest.approx(best["loss"])


def test_paper_config_is_the_preprocessing_default():
    assert make_preprocess(get_config("paper")) == Preprocess()


def test_accumulated_gradients_equal_one_batch(quick, tmp_path):
    """With layer norm a batch split in two micro-batches gives the same losses as the whole
    batch."""
    losses = []
    for accumulate in (1, 2):
        config = quick.copy_and_resolve_references()
        config.model.norm, config.optim.accumulate, config.train.steps = "layer", accumulate, 6
        config.data.pack, config.optim.learning_rate = False, 1e-5
        train_and_evaluate(config, tmp_path / str(accumulate))
        losses.append(
            [r["loss"] for r in read_metrics(tmp_path / str(accumulate)) if r["kind"] == "train"]
        )
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_other_choices_of_the_config_train_too(quick, tmp_path):
    """Moving average, rhythm loss, learnable Dower geometry, mean reduction, constant rate, padded
    slots, bf16; and of the published code: the anchor term, its GRU, norms of the embedding, decay
    of everything."""
    quick.optim.ema_decay, quick.loss.lambda_rhythm, quick.loss.reduction = 0.9, 1.0, "mean"
    quick.geometry.learnable, quick.geometry.matrix, quick.geometry.max_gain = True, "dower", 10.0
    quick.optim.schedule, quick.data.pack, quick.model.dtype = "constant", False, "bfloat16"
    quick.loss.lambda_base, quick.optim.decay, quick.model.embedding_norm = 1.0, "all", True
    quick.model.dynamics, quick.model.dynamics_layers, quick.model.padding = "zero", 2, "counted"
    quick.train.steps = 4
    train_and_evaluate(quick, tmp_path)
    rows = read_metrics(tmp_path)
    assert all(np.isfinite(list(row.values())[2:]).all() for row in rows)
    assert {"rhythm", "base"} <= rows[0].keys()


def test_our_own_choices_train_from_the_weights_of_another_run(
    smoke, tmp_path, trained_run, model, capfd
):
    """A start from weights, views of three to six leads, a GRU that reads all beats, terms on all
    tokens."""
    smoke.train.start_from, smoke.optim.learning_rate, smoke.optim.ema_decay = (
        str(trained_run),
        0.0,
        0.9,
    )
    smoke.geometry.most_visible, smoke.model.dynamics_input, smoke.model.structure = (
        6,
        "encoded",
        "mean+std",
    )
    smoke.loss.ecg_source, smoke.loss.lambda_view, smoke.loss.lambda_rhythm = "both", 1.0, 1.0
    smoke.train.steps = 2
    train_and_evaluate(smoke, tmp_path / "run")
    assert f"weights of {model.checkpoint}; new are head/" in capfd.readouterr().err
    rows = read_metrics(tmp_path / "run")
    assert all(np.isfinite(list(row.values())[2:]).all() for row in rows) and rows[0]["view"] > 0
    kept = LVCG.load(tmp_path / "run")
    assert kept.part_sizes == {"structure": 32, "dynamics": 16, "rhythm": 8}
    # the rate is zero, the moving average rounds
    same = partial(np.testing.assert_allclose, rtol=1e-6)
    for name, group in model.variables["params"].items():
        jax.tree.map(same, kept.variables["params"][name], group)


def test_weights_that_fit_nowhere_are_refused(smoke, tmp_path, trained_run):
    smoke.train.start_from = str(trained_run / "nowhere")
    with pytest.raises(InputError, match="nowhere"):
        train_and_evaluate(smoke, tmp_path / "run")
    with pytest.raises(InputError, match="no parameter of that run"):
        take_weights(
            TrainState(0, 0, {"a": np.zeros(3)}, {}, {}, {}), {"params": {"a": np.zeros(4)}}
        )


def test_non_finite_loss_names_the_step_and_the_record(smoke, tmp_path, monkeypatch, shards_dir):
    """Though the host looks at the losses of step 3 only when step 4 is logged."""
    smoke.train.log_every = 4
    shards = ShardSet(shards_dir, "train")
    order = BatchOrder(shards.counts, smoke.data.batch_size, 1, 1, smoke.seed)
    numbers = [order[step] for step in range(3)]
    bad = next(int(i) for i in numbers[2] if i not in numbers[0] and i not in numbers[1])
    read = ShardSet.read

    def poisoned(self, indices):
        indices = list(indices)
        examples = read(self, indices)
        for index, example in zip(indices, examples, strict=True):
            if self.split == "train" and index == bad:
                example["beats"] = np.full_like(example["beats"], np.inf)
        return examples

    monkeypatch.setattr(ShardSet, "read", poisoned)
    with pytest.raises(InputError, match=r"loss of step 3 is not finite") as error:
        train_and_evaluate(smoke, tmp_path)
    assert shards[bad]["record_id"] in str(error.value)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


def test_nothing_is_fetched_from_the_devices_but_one_array_of_each_logged_step(
    quick, tmp_path, monkeypatch
):
    """Before the last step, which is validated and saved."""
    step, fetched, call, value = 0, [], loop.CompiledStep.__call__, ArrayImpl._value.fget

    def count_step(self, *arguments):
        nonlocal step
        step += 1
        return call(self, *arguments)

    def note(array):
        fetched.append((step, array.shape))
        return value(array)

    monkeypatch.setattr(loop.CompiledStep, "__call__", count_step)
    monkeypatch.setattr(ArrayImpl, "_value", property(note))
    quick.train.steps, quick.train.log_every = 9, 4
    quick.train.checkpoint_every = quick.train.validate_every = 1000
    train_and_evaluate(quick, tmp_path)
    # what a row has beside the numbers of the step: step, kind, speed and memory, but not `finite`
    numbers = len(read_metrics(tmp_path)[0]) - 3
    # of steps 1, 4 and 8, each when the next step is under way
    during = [(at, shape) for at, shape in fetched if 1 < at < 9]
    assert during == [(2, (numbers,)), (5, (numbers,))]


def test_run_directory_of_another_config_is_refused(trained_run, smoke):
    smoke.optim.learning_rate = 0.5
    with pytest.raises(
        InputError, match=r"belongs to another config \(optim.learning_rate: 0.001 -> 0.5\)"
    ):
        train_and_evaluate(smoke, trained_run)


def test_a_run_continues_with_its_data_in_another_folder_and_refuses_other_data(
    trained_run, smoke, shards_dir, tmp_path, capfd
):
    shutil.copytree(trained_run, tmp_path / "run")
    shutil.copytree(shards_dir, tmp_path / "moved")
    smoke.data.dir = str(tmp_path / "moved")
    assert train_and_evaluate(smoke, tmp_path / "run") == "finished"
    assert "resuming" in capfd.readouterr().err

    write_corpus(tmp_path / "raw", patients=8, seed=1)
    corpus = open_corpus("synthetic", tmp_path / "raw")
    build(corpus, tmp_path / "other", make_preprocess(smoke), progress=False)
    smoke.data.dir = str(tmp_path / "other")
    with pytest.raises(InputError, match="trained on synthetic .* now holds synthetic") as error:
        train_and_evaluate(smoke, tmp_path / "run")
    assert "or another --workdir" in str(error.value)


@pytest.mark.parametrize("name", POSITIVE_FIELDS)
@pytest.mark.parametrize("value", [0, -1])
def test_zero_or_less_is_refused_where_it_makes_no_sense(smoke, tmp_path, name, value):
    smoke.update_from_flattened_dict({name: value})
    with pytest.raises(InputError, match=f"{name} is {value}: give 1 or more"):
        train_and_evaluate(smoke, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_everything_is_closed_and_the_first_error_is_seen():
    log = []

    def close(name, error=None):
        log.append(name)
        if error:
            raise error

    with pytest.raises(InputError, match="the step failed") as seen, everything_closed() as closers:
        closers += [lambda: close("a"), lambda: close("b", OSError("and b")), lambda: close("c")]
        raise InputError("the step failed")
    assert log == ["c", "b", "a"] and seen.value.__notes__ == ["while closing: OSError: and b"]
    with pytest.raises(OSError, match="of b"), everything_closed() as closers:
        closers += [lambda: close("a", ValueError("of a")), lambda: close("b", OSError("of b"))]
    assert log[3:] == ["b", "a"]
    with everything_closed() as closers:
        closers.append(lambda: close("d"))
    assert log[-1] == "d"


def test_a_run_whose_last_save_fails_closes_the_rest_and_tells_the_first_error(
    smoke, tmp_path, monkeypatch
):
    closed, wait = [], Checkpoints.wait
    close_log = MetricsLog.close
    monkeypatch.setattr(MetricsLog, "close", lambda log: (closed.append("log"), close_log(log)))

    def fail(checkpoints):
        wait(checkpoints)
        raise InputError("a checkpoint could not be written")

    def diverge(*_):
        monkeypatch.setattr(Checkpoints, "wait", fail)
        raise InputError("the loss is not finite")

    monkeypatch.setattr(loop, "check_finite", diverge)
    with pytest.raises(InputError, match="the loss is not finite"):
        train_and_evaluate(smoke, tmp_path / "run")
    assert closed == ["log"]


def test_folder_with_other_files_is_refused(smoke, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="thesis.tex"):
        train_and_evaluate(smoke, tmp_path)


def test_training_on_all_splits_reads_every_record_and_says_so(smoke, tmp_path, capsys):
    smoke.data.splits = "all"
    train, validation = loop.open_data(smoke, tmp_path)
    splits = train.metadata["splits"]
    assert len(train) == sum(s["examples"] for s in splits.values()) == len(train.counts)
    assert len(validation) == splits["validation"]["examples"]
    assert "its validation records are not unseen ones" in capsys.readouterr().err
    smoke.data.splits = "everything"
    with pytest.raises(InputError, match="no split 'everything' in this dataset; it has train"):
        loop.open_data(smoke, tmp_path)


def test_shards_of_another_preprocessing_are_refused(smoke, tmp_path):
    smoke.preprocess.band_high = 35.0
    with pytest.raises(InputError, match="band_high"):
        train_and_evaluate(smoke, tmp_path)


def test_checkpoint_of_another_architecture_is_refused(trained_run, smoke, tmp_path):
    shutil.copytree(trained_run, tmp_path / "run")
    smoke.model.token_dim = 24
    text = (
        (tmp_path / "run" / "config.json").read_text().replace('"token_dim": 16', '"token_dim": 24')
    )
    (tmp_path / "run" / "config.json").write_text(text)
    with pytest.raises(InputError, match="another architecture"):
        train_and_evaluate(smoke, tmp_path / "run")


def test_truncated_shard_is_named(smoke, shards_dir, tmp_path):
    shutil.copytree(shards_dir, tmp_path / "data")
    shard = next((tmp_path / "data").glob("*train*array_record*"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    smoke.data.dir = str(tmp_path / "data")
    with pytest.raises(InputError, match=shard.name):
        train_and_evaluate(smoke, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--config is needed"]),
        ([f"--config={CONFIG}:nonsense", "--workdir=WORKDIR"], ["nonsense", "paper"]),
        (
            [f"--config={CONFIG}:smoke", "--workdir=WORKDIR", "--config.optim.learning_rat=1"],
            ["learning_rat"],
        ),
        (["--config=configs/no_such_file.py", "--workdir=WORKDIR"], ["no_such_file"]),
        ([f"--config={CONFIG}:smoke", "--workdir=WORKDIR", "--no_such_flag=1"], ["no_such_flag"]),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(arguments, words, tmp_path):
    arguments = [argument.replace("WORKDIR", str(tmp_path / "run")) for argument in arguments]
    assert_one_line_error(run("lvcg_jax.train", *arguments), *words)
    assert not (tmp_path / "run").exists()


def test_a_missing_or_empty_data_folder_is_told_in_one_line(tmp_path):
    missing = run("lvcg_jax.train", *train_arguments(tmp_path / "run", tmp_path / "nowhere"))
    assert_one_line_error(missing, "nowhere")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(
        run("lvcg_jax.train", *train_arguments(tmp_path / "run", tmp_path / "empty")), "empty"
    )


def test_without_a_workdir_the_run_is_named_after_its_config():
    assert default_workdir(f"{CONFIG}:demo") == "runs/pretrain-demo"
    assert default_workdir(str(CONFIG)) == "runs/pretrain"


def test_help_is_there():
    done = run("lvcg_jax.train", "--help")
    assert "--workdir" in done.stdout and "Traceback" not in done.stderr
