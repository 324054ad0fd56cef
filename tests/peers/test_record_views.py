"""The record token: what it reads, how it learns, and how it joins trained weights."""

import shutil
from functools import partial

import jax
import numpy as np
import pytest
from helpers.commands import ROOT
from helpers.packed_batch import random_variables
from helpers.tiny_peers import BEAT, SLOTS, peer_batch, random_windows

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax import LVCG
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import read_config_file
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.export import add_parts
from lvcg_jax.model.record_token import LARGEST, UNIT, as_input
from lvcg_jax.model.signal import record_signal
from lvcg_jax.peers.record_views import draw_view
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.runs.trained import save_trained
from lvcg_jax.train.loop import train_and_evaluate

SIZE = 16
SMOKE = f"{ROOT / 'configs' / 'record_token.py'}:smoke"
QUICK = {"xla_cpu_use_fusion_emitters": False}


@pytest.fixture(scope="module")
def token_run(shards_dir, tmp_path_factory):
    """A finished run of the record token's own training."""
    workdir = tmp_path_factory.mktemp("token") / "run"
    assert train_and_evaluate(smoke_config(shards_dir), workdir) == "finished"
    return workdir


@pytest.fixture(scope="module")
def joined(trained_run, token_run, shards_dir, tmp_path_factory):
    """The smoke weights with the record token."""
    out = tmp_path_factory.mktemp("joined") / "run"
    flags = [f"--checkpoint={trained_run}", f"--record_token={token_run}", f"--out={out}"]
    assert add_parts.main([*flags, f"--data={shards_dir}"]) == 0
    return LVCG.load(out)


def smoke_config(data):
    config = read_config_file(SMOKE)
    config.data.dir = str(data)
    config.train.update({"steps": 6, "checkpoint_every": 3, "validate_every": 6})
    return config


def tiny_model():
    config = read_config_file(SMOKE)
    config.preprocess.update({"seconds": 2.0, "beat_samples": BEAT, "max_beats": SLOTS})
    return make_model(config)


def test_a_view_lies_within_its_record_and_shows_leads_that_the_record_has():
    leads = np.isin(LEADS, ["I", "II", "V2", "V5"])
    keys = jax.random.split(jax.random.key(0), 400)
    first, seen, gain = jax.vmap(lambda key: draw_view(key, 300, leads, 256))(keys)
    assert first.min() == 0 and first.max() == 300 - 256
    assert not seen[:, ~leads].any() and set(np.asarray(seen.sum(1)).tolist()) == {1, 2, 3, 4}
    every = np.asarray(seen.sum(1) == 4).mean()
    assert 0.5 < every < 0.85  # half of all, and those of the others that drew four or more
    assert 0.09 < np.asarray(seen.sum(1) == 1).mean() < 0.19  # log 2 / log 12 of the other half
    assert 0.03 < np.log(gain).std() < 0.07
    first, _, _ = jax.vmap(lambda key: draw_view(key, 100, leads, 256))(keys)
    assert not first.any()  # a record that is shorter than a view


def test_what_the_encoder_reads_is_the_seen_leads_in_mv_and_nothing_of_the_others(shards_dir):
    window = next(iter(ShardSet(shards_dir, "train").read([0])))
    beats, length, scale = (np.asarray(window[name]) for name in ("beats", "length", "scale"))
    signal, _ = record_signal(beats, length, scale, 1000)
    seen = np.isin(LEADS, ["II", "V2", "V5"])
    covariance = np.cov(np.asarray(signal)).astype(np.float32)
    found = np.asarray(as_input(signal, seen, covariance))
    expected = np.clip(np.asarray(signal).T / UNIT, -LARGEST, LARGEST)
    np.testing.assert_allclose(found[:, seen], expected[:, seen], rtol=1e-6)
    other = np.where(seen[:, None], signal, np.nan)
    np.testing.assert_array_equal(as_input(other, seen, covariance), found)


def test_losses_and_tokens_depend_on_the_records_alone():
    """Neither empty rows, nor what stands in missing leads and empty slots, nor groups change
    them."""
    model, masks = tiny_model(), (4095, 0b101111111011, 4095, 0b10)
    windows = random_windows((4, 2, 5, 3), lead_masks=masks)
    plain = peer_batch(windows)
    variables = random_variables(model, plain, SLOTS)
    apply = jax.jit(partial(model.apply, mutable=["batch_stats"]), static_argnums=4)
    embed = jax.jit(partial(model.apply, method="embed"), static_argnums=3)
    key, losses, tokens = jax.random.key(5), [], []
    padded, grouped = peer_batch([*windows, None]), peer_batch(windows, groups=2)
    start = 0
    for count, mask in zip((4, 2, 5, 3), masks, strict=True):
        missing = [lead for lead in range(12) if not mask >> lead & 1]
        padded["beats"][0, start : start + count, missing] = np.nan
        start += count
    padded["beats"][0, start:] = 9.0
    for batch in (plain, padded, grouped):
        arguments = variables, batch, batch["lead_mask"]
        program = apply.lower(*arguments, key, SLOTS).compile(compiler_options=QUICK)
        losses.append(np.asarray(program(*arguments, key)[0]["loss"]).reshape(-1)[:4])
        found = embed(*arguments, SLOTS)["structure"]
        tokens.append(np.asarray(found).reshape(-1, found.shape[-1])[:4])
    assert np.isfinite(losses).all() and np.min(losses) > 0
    for loss, token in zip(losses[1:], tokens[1:], strict=True):
        np.testing.assert_allclose(loss, losses[0], rtol=1e-4)
        np.testing.assert_allclose(token, tokens[0], rtol=1e-4, atol=1e-5)


def test_a_run_resumes_bit_for_bit(token_run, shards_dir, tmp_path):
    again = tmp_path / token_run.name
    shutil.copytree(token_run, again)
    shutil.rmtree(again / "checkpoints" / "6")
    assert train_and_evaluate(smoke_config(shards_dir), again) == "finished"
    found, expected = LVCG.load(again), LVCG.load(token_run)
    jax.tree.map(np.testing.assert_array_equal, found.variables, expected.variables)
    rows = [
        [r["loss"] for r in read_metrics(x) if r["kind"] == "train"] for x in (token_run, again)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 6


def test_the_joined_token_is_the_one_that_was_trained(joined, trained_run, token_run, shards_dir):
    plain, token = LVCG.load(trained_run), LVCG.load(token_run)
    size = plain.part_sizes["structure"]
    assert joined.part_sizes == plain.part_sizes | {"structure": size + SIZE}
    tables = [
        embed_dataset(model, shards_dir, splits=["test"], tokens=True, progress=False)
        for model in (joined, plain, token)
    ]
    whole, before, own = (table.embedding for table in tables)
    np.testing.assert_allclose(whole[:, :size], before[:, :size], atol=1e-4)
    np.testing.assert_allclose(whole[:, size : size + SIZE], own, rtol=1e-3, atol=1e-3)
    assert own.std(0).min() > 0
    # and so are the tokens of the beats, which attention heads read
    whole, before, own = (table.tokens for table in tables)
    np.testing.assert_allclose(whole, np.concatenate([before, own], 1), rtol=1e-3, atol=1e-3)
    # leads that are not seen cannot reach it
    window = next(iter(ShardSet(shards_dir, "test").read([0])))
    few = lead_mask(np.isin(LEADS, ["I", "V2"]))
    hidden = ~np.isin(LEADS, ["I", "V2"])[None, :, None]
    changed = np.where(hidden, np.float16(7), window["beats"])
    found = [
        joined.embed_windows([window | {"beats": beats, "visible": few}])[1]["structure"]
        for beats in (window["beats"], changed)
    ]
    np.testing.assert_array_equal(*found)


def test_parts_that_weights_have_can_be_taken_from_them(joined, trained_run, shards_dir):
    again = LVCG.load(trained_run).with_parts(ShardSet(shards_dir, "train"), record_token=joined)
    for kind in ("params", "batch_stats"):
        jax.tree.map(
            np.testing.assert_array_equal,
            again.variables[kind]["record_token"],
            joined.variables[kind]["record_token"],
        )
    without = joined.with_parts(ShardSet(shards_dir, "train"), patterns=3)
    assert without.config.model.record_token == 0
    assert "record_token" not in without.variables["params"]


def test_training_the_beats_leaves_the_record_token_alone(
    joined, trained_run, shards_dir, tmp_path, smoke
):
    smoke.model.update({n: x for n, x in joined.config.model.items() if n.startswith("record_")})
    smoke.train.update({"steps": 2, "checkpoint_every": 2, "validate_every": 100})
    for run in ("", str(trained_run)):  # neither has one
        smoke.train.start_from = run
        with pytest.raises(InputError, match="add_parts"):
            train_and_evaluate(smoke, tmp_path / f"none{len(run)}")
    save_trained(tmp_path / "given", joined.config, joined.variables, 1)
    smoke.train.start_from = str(tmp_path / "given")
    assert train_and_evaluate(smoke, tmp_path / "more") == "finished"
    after = LVCG.load(tmp_path / "more", "latest").variables
    for kind in ("params", "batch_stats"):
        jax.tree.map(
            np.testing.assert_array_equal,
            after[kind]["record_token"],
            joined.variables[kind]["record_token"],
        )


def test_random_weights_have_measured_norm_statistics(joined, shards_dir):
    control = LVCG.random(joined.config, 0, ShardSet(shards_dir, "train"))
    measured = jax.tree.leaves(control.variables["batch_stats"]["record_token"])
    assert all(np.isfinite(x).all() and np.ptp(x) > 0 for x in measured)


@pytest.mark.parametrize("given, words", [("plain", "no record token"), ("other", "preprocessing")])
def test_what_cannot_be_joined_is_refused(given, words, joined, trained_run, shards_dir, token_run):
    model, shards = LVCG.load(trained_run), ShardSet(shards_dir, "train")
    token = model
    if given == "other":
        token = LVCG.load(token_run)
        token.config.preprocess.peaks = "vcg"
    with pytest.raises(InputError, match=words):
        model.with_parts(shards, record_token=token)
