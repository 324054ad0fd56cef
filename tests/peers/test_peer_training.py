"""Every method trains, resumes and embeds through the doors that LVCG uses."""

import shutil
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.packed_batch import random_variables
from helpers.tiny_peers import SLOTS, peer_batch, peer_config, random_windows, tiny_peer

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.data.packing import pack, silent_batch
from lvcg_jax.data.windows import dataset_windows
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.peers import METHODS
from lvcg_jax.peers.heartlang import cut_words
from lvcg_jax.runs.checkpoint import Checkpoints
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.runs.state import create_state, make_optimizer
from lvcg_jax.train.loop import check_data, train_and_evaluate
from lvcg_jax.train.sharding import make_mesh, state_sharding
from lvcg_jax.train.steps import Watch, make_train_step

QUICK = {"xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time
COUNTS = (4, 2, 5, 3, 6)
LEAD_MASKS = (4095, 0b101111111011, 4095, 0b000000000010, 4095)
WINDOWS = random_windows(COUNTS, lead_masks=LEAD_MASKS)
BATCH = peer_batch([*WINDOWS, None])  # the last row only fills up


def with_garbage(batch):
    """The batch with other numbers in missing leads, rows without a record and slots without a
    beat."""
    changed = {name: x.copy() for name, x in batch.items()}
    for row, mask in enumerate(LEAD_MASKS):
        missing = [lead for lead in range(12) if not mask >> lead & 1]
        changed["signal"][0, row, missing] = 50.0
    changed["signal"][0, -1], changed["patient"][0, -1], changed["uid"][0, -1] = 20.0, 7, 7
    changed["beats"][0, sum(COUNTS) :] = 9.0
    return changed


def random_state(config, model, tx):
    """A train state that is quickly made: without compiling the initialisers."""
    abstract = jax.eval_shape(partial(create_state, config, model, tx, BATCH, SLOTS), 0)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)
    return zeros.replace(**random_variables(model, BATCH, SLOTS))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_step_that_only_its_records_change_and_resumes(method, tmp_path):
    config = tiny_peer(method)
    config.data.batch_size = 6
    model, tx, mesh = make_model(config), make_optimizer(config), make_mesh(config)
    start = random_state(config, model, tx)
    shardings = state_sharding(mesh, start, config)
    step = make_train_step(model, tx, config, make_subsets(config), SLOTS, mesh, shardings)
    batch, changed = ({n: x[None] for n, x in b.items()} for b in (BATCH, with_garbage(BATCH)))
    watch = jax.device_get(Watch.new((1, 1, 6)))
    step = step.lower((start, watch), batch).compile(compiler_options=QUICK)

    def after(state, batch):
        return jax.device_get(step((state, watch), batch))

    (state, of_batch), numbers = after(start, batch)
    (other, of_changed), _ = after(start, changed)
    np.testing.assert_array_equal(of_batch.losses[0, 0, :5], of_changed.losses[0, 0, :5])
    jax.tree.map(np.testing.assert_array_equal, state.params, other.params)

    # a run that is stopped here and resumed goes on bit for bit
    checkpoints = Checkpoints(tmp_path, config)
    checkpoints.save(1, state)
    checkpoints.wait()
    placed = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), start, shardings
    )
    stored, _ = checkpoints.restore_latest(placed)
    checkpoints.close()
    then, resumed = (after(x, batch)[0][0] for x in (state, stored))
    jax.tree.map(np.testing.assert_array_equal, then, resumed)

    # everything is finite, and the encoder has learnt
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, numbers)))
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), state.params["encoder"], start.params["encoder"]
    )
    assert np.mean([x > 0 for x in jax.tree.leaves(moved)]) > 0.6
    assert 0.0 < numbers.fetch()["embedding_std"] <= 1.0

    # one vector for each record and one for each beat
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    embed = partial(model.apply, max_beats=SLOTS, method="embed")
    parts = jax.eval_shape(embed, variables, BATCH, BATCH["lead_mask"])
    (size,) = model.part_sizes.values()
    assert parts["structure"].shape == (1, 6, size)
    assert parts["tokens"].shape == (1, 6, SLOTS, model.feature_dim)


@pytest.mark.parametrize("method", ["simclr"])
def test_records_of_all_devices_are_compared_with_each_other(method):
    """A group is what one device holds: however the records are grouped, the losses are the
    same."""
    model = make_model(tiny_peer(method))
    windows = random_windows((3, 4, 2, 5), seed=3)
    variables = random_variables(model, BATCH, SLOTS)
    apply = jax.jit(partial(model.apply, mutable=["batch_stats"]), static_argnums=4)
    key, losses = jax.random.key(5), []
    for groups in (1, 4):
        batch = peer_batch(windows, groups)
        arguments = variables, batch, batch["lead_mask"], key
        program = apply.lower(*arguments, SLOTS).compile(compiler_options=QUICK)
        losses.append(np.asarray(program(*arguments)[0]["loss"]).reshape(-1))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_blank_word_tells_its_lead_and_its_time_and_nothing_else():
    model = make_model(tiny_peer("heartlang"))
    variables = random_variables(model, BATCH, SLOTS)
    records = model.records(BATCH, BATCH["lead_mask"], SLOTS)
    words, there = cut_words(records, model.width)
    hidden = np.broadcast_to(np.arange(SLOTS) % 2 == 0, there.shape)
    told = partial(model.apply, variables, method="tokens")
    tokens, other = told(records, words, hidden), told(records, words + 1.0, hidden)
    np.testing.assert_array_equal(tokens[:, :, ::2], other[:, :, ::2])
    assert np.abs(tokens - other)[:, :, 1::2].min(-1).max() > 0
    assert np.abs(tokens[0, 0, 0] - tokens[0, 1, 0]).max() > 0.01  # another lead
    assert np.abs(tokens[0, 0, 0] - tokens[0, 0, 2]).max() > 0.01  # another time


# ---- Through the doors


def short_run(method, data):
    """Three steps, each with its checkpoint."""
    config = tiny_peer(method)
    config.data.update({"dir": str(data), "batch_size": 4})
    config.train.update({"steps": 3, "checkpoint_every": 1, "validate_every": 3})
    config.train.validate_records = 4
    return config


@pytest.fixture(scope="module", params=["byol", "heartlang"])
def run(request, signal_shards, tmp_path_factory):
    """A finished run: of a method with a teacher and norm statistics, and of one with masks and a
    vocabulary."""
    workdir = tmp_path_factory.mktemp("runs") / request.param
    assert train_and_evaluate(short_run(request.param, signal_shards), workdir) == "finished"
    return workdir


def test_a_run_resumes_bit_for_bit_and_tells_a_collapse(
    run, signal_shards, tmp_path, monkeypatch, capsys
):
    again = tmp_path / run.name
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "3")
    shutil.rmtree(again / "checkpoints" / "2")
    monkeypatch.setattr("lvcg_jax.train.loop.COLLAPSED", 2.0)
    config = short_run(run.name, signal_shards)
    config.data.cache = str(tmp_path / "cache")  # packed signals are the same signals
    assert train_and_evaluate(config, again) == "finished"
    assert capsys.readouterr().err.count("the model has collapsed") == 1  # in two steps
    found, expected = LVCG.load(again), LVCG.load(run)
    assert found.checkpoint == expected.checkpoint  # with a hash of all weights
    assert found.checkpoint.startswith(f"{run.name}@3#")
    rows = [[r["loss"] for r in read_metrics(x) if r["kind"] == "train"] for x in (run, again)]
    assert rows[0] == rows[1] and len(rows[0]) == 3


def test_a_run_is_embedded_like_any_other(run, signal_shards):
    model = LVCG.load(run)
    table = embed_dataset(model, signal_shards, splits=["test"], tokens=True, progress=False)
    (size,) = model.part_sizes.values()
    assert table.parts == {"structure": size} and table.embedding.shape[1] == size
    assert table.tokens.shape == (table.extra["num_beats"].sum(), model.model.feature_dim)
    assert np.isfinite(table.embedding).all() and table.embedding.std(0).max() > 0
    # a record in memory has its signal anyway; here windows of two seconds and of one
    few = model.embed(make_record(seconds=3.0)[0][:, :2], fs=250, leads=["I", "II"])
    assert few.parts["structure"].shape == (2, size)
    with pytest.raises(InputError, match="which only embeds"):
        model.vcg(np.zeros((900, 1)), 300, ["I"])


def test_batches_of_a_peer_are_full_whatever_beats_its_records_have(
    run, signal_shards, monkeypatch
):
    monkeypatch.setattr("lvcg_jax.embed.lvcg.PEER_ROWS", 4)
    full = []

    def spy(windows, slots, rows, *more):
        for some, batch in pack(windows, slots, rows, *more):
            full.append(len(some) == rows)
            yield some, batch

    monkeypatch.setattr("lvcg_jax.embed.devices.pack", spy)
    model, windows = LVCG.load(run), list(dataset_windows(signal_shards, ["train"]))[:12]
    _, together = model.embed_windows(windows)
    assert full == [True] * 3
    _, alone = model.embed_windows(windows, model.max_beats, 1)
    np.testing.assert_allclose(together["structure"], alone["structure"], atol=1e-5)


# ---- Mistakes


def test_shards_without_signals_say_how_to_build_them(shards_dir, tmp_path):
    config = peer_config("simclr-smoke")
    config.preprocess = read_config_file("pretrain:smoke").preprocess
    config.data.dir = str(shards_dir)
    with pytest.raises(InputError, match="holds beats only.*lvcg build --store_signal"):
        train_and_evaluate(config, tmp_path / "run")


def test_a_batch_without_negatives_is_refused():
    config = tiny_peer("simclr")
    config.data.batch_size, config.optim.accumulate = 4, 4
    with pytest.raises(InputError, match="there would be 1: data.batch_size / optim.accumulate"):
        make_model(config)
    config.peer.method = "st_mem"  # needs no others
    make_model(config)


def test_clocs_refuses_a_single_patient(signal_shards):
    shards = ShardSet(signal_shards, "train")
    alone = SimpleNamespace(
        directory=shards.directory,
        split="train",
        metadata={"splits": {"train": {"patients": 1}}},
        require_signal=lambda: None,
    )
    with pytest.raises(InputError, match="records of 1 patient only: CLOCS"):
        check_data(make_model(tiny_peer("clocs")), [alone])
    check_data(make_model(tiny_peer("simclr")), [alone])
    check_data(make_model(tiny_peer("clocs")), [shards])


def test_sizes_that_do_not_go_together_are_refused():
    for fields, words in (
        ({"method": "dino"}, "peer.method is 'dino': choose from simclr"),
        ({"patch": 30}, "peer.patch=30 does not divide the 200 samples"),
        ({"vit_heads": 3}, "peer.vit_dim=16 cannot be divided by peer.vit_heads=3"),
    ):
        config = tiny_peer("st_mem")
        config.peer.update(fields)
        with pytest.raises(InputError, match=words):
            make_model(config)
    for variant in ("dino", "simclr-huge"):
        with pytest.raises(ValueError, match="choose"):
            peer_config(variant)


def test_sizes_match_those_of_lvcg():
    """Parameters of the encoders, in millions."""

    def size(config):
        model = make_model(config)
        batch = silent_batch(config.preprocess.beat_samples, model.signal_samples)
        init = partial(model.init, visible=batch["lead_mask"], key=None, max_beats=20)
        shapes = jax.eval_shape(lambda key: init(key, batch), jax.random.key(0))
        return sum(np.prod(x.shape) for x in jax.tree.leaves(shapes["params"]["encoder"])) / 1e6

    small = size(read_config_file("pretrain:small"))
    assert size(peer_config("simclr")) == pytest.approx(small, rel=0.02)
    assert size(peer_config("st_mem")) == pytest.approx(small, rel=0.25)
    assert 3.0 < size(peer_config("ecg_jepa-best")) < 4.0
