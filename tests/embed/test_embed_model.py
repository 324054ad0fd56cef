"""The Python interface: any ECG in, embedding, tokens and heart vector out, and flags that say what
they are worth."""

import dataclasses
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers.commands import assert_one_line_error, run
from helpers.gaussian_ecg import dense_tachycardia

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from data_prep.ecg.leads import LEADS
from data_prep.ecg.segment import cut_beats
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import embed_packed
from lvcg_jax.embed.table import load_table


@pytest.fixture(scope="module")
def records(raw_corpus):
    corpus = open_corpus("synthetic", raw_corpus)
    return [corpus.load(ref) for ref in corpus.refs[:10]]


@pytest.fixture(scope="module")
def record(records):
    return records[0]


def test_a_record_alone_and_in_a_list_equals_its_row_from_shards(model, records, shards_dir):
    table = embed_dataset(model, shards_dir, progress=False)
    rows = [table.record_id.tolist().index(r.record_id) for r in records]
    together = model.embed([r.signal for r in records], 250, records[0].leads)
    for one, r, row in zip(together, records, rows, strict=True):
        alone = model.embed(r.signal, fs=r.rate, leads=r.leads)
        for found in (alone, one):
            np.testing.assert_allclose(found.embedding[0], table.embedding[row], atol=1e-5)
            np.testing.assert_array_equal(found.mean, found.embedding[0])
            assert ";".join(found.visible[0]) == table.extra["leads"][row]
            assert ";".join(found.defects[0]) == table.extra["defects"][row]
            for name in ("num_beats", "rank", "condition", "gain", "start_seconds"):
                assert getattr(found, name).tolist() == [table.extra[name][row]]
    sizes = {name: part.shape[1] for name, part in alone.parts.items()}
    assert sizes == table.parts == {"structure": 16, "dynamics": 16, "rhythm": 8}


def test_a_list_may_mix_rates_and_leads(model, records):
    one, two = records[:2]
    mixed = model.embed(
        [one.signal, two.signal[::2, :3]], fs=[250, 125], leads=[one.leads, two.leads[:3]]
    )
    np.testing.assert_allclose(
        mixed[0].embedding, model.embed(one.signal, 250, one.leads).embedding, atol=1e-5
    )
    np.testing.assert_allclose(
        mixed[1].embedding,
        model.embed(two.signal[::2, :3], 125, two.leads[:3]).embedding,
        atol=1e-5,
    )


def test_lead_order_case_and_unit_change_nothing(model, record):
    shuffled = np.random.default_rng(0).permutation(len(LEADS))
    one = model.embed(record.signal, record.rate, record.leads).embedding
    two = model.embed(
        record.signal[:, shuffled], record.rate, [record.leads[i].upper() for i in shuffled]
    )
    np.testing.assert_array_equal(one, two.embedding)
    swapped = [0, 1, 2, 3, 5, 4, *range(6, 12)]  # aVF before aVL
    three = model.embed(record.signal[:, swapped], record.rate, ",".join(LEADS[i] for i in swapped))
    np.testing.assert_array_equal(one, three.embedding)
    for unit, factor in {"uV": 1e3, "V": 1e-3}.items():
        found = model.embed(record.signal * factor, record.rate, record.leads, unit=unit).embedding
        np.testing.assert_allclose(found, one, atol=1e-4)


@pytest.mark.parametrize(
    "leads, rank, fallback",
    [
        (["I"], 1, True),
        (["II"], 1, False),
        (["I", "II"], 2, False),
        (["V1", "V2", "I"], 2, True),
        (["I", "II", "III", "aVR", "aVL", "aVF"], 2, False),
        (["V1", "V3", "V6"], 3, True),
        (["II", "V2", "V5"], 3, False),
    ],
)
def test_few_leads_work_and_are_flagged(model, record, leads, rank, fallback):
    columns = [record.leads.index(lead) for lead in leads]
    found = model.embed(record.signal[:, columns], record.rate, leads)
    assert np.isfinite(found.embedding).all() and found.embedding.any()
    assert (
        found.rank.tolist() == [rank]
        and np.isinf(found.condition[0]) == (rank < 3)
        and found.gain[0] > 0
    )
    assert ("peaks_fallback_vcg" in found.defects[0]) == fallback
    assert set(leads) <= set(found.visible[0]) and len(found.visible[0]) == len(leads) + 4 * (
        leads == ["I", "II"]
    )


def test_a_single_lead_may_be_a_plain_row_of_samples(model, record):
    one = model.embed(record.signal[:, 1], record.rate, "II").embedding
    np.testing.assert_array_equal(
        one, model.embed(record.signal[:, 1:2], record.rate, ["II"]).embedding
    )


def test_tokens_are_those_of_the_embedding_and_beats_tile_the_window(model, record):
    signal = np.tile(record.signal, (2, 1))[:3750]  # fifteen seconds: a whole window and a half
    windows = model.tokens(signal, record.rate, record.leads)
    embedding = model.embed(signal, record.rate, record.leads)
    assert [w.start_seconds for w in windows] == [0.0, 10.0]
    for w, beats in enumerate(windows):
        assert beats.tokens.shape == (embedding.num_beats[w], 16)
        np.testing.assert_allclose(beats.tokens.mean(0), embedding.parts["structure"][w], atol=1e-5)
        assert (
            beats.start[0] == 0 and (beats.start[1:] == beats.start[:-1] + beats.length[:-1]).all()
        )
        assert beats.start[-1] + beats.length[-1] == (1000, 500)[w] and beats.complete[1:-1].all()
        assert beats.rate == 100.0


def test_heart_vector_is_what_the_encoder_gets(model, record):
    (found,) = model.vcg(record.signal, record.rate, record.leads)
    (beats,) = model.tokens(record.signal, record.rate, record.leads)
    (window,) = model.preprocess.prepare(record.signal, record.rate, record.leads)
    assert found.vcg.shape == (3, 1000) and found.rank == 3
    assert set(found.r_peaks) <= set(beats.start.tolist())
    lift = np.asarray(model.model.bind(model.variables).table)[4095]
    expected = np.einsum("kl,nlp->nkp", lift, window.beats)
    cut = cut_beats(found.vcg, beats.start, beats.length, model.preprocess.beat_samples)
    np.testing.assert_allclose(cut, expected, atol=1e-4)
    (flat,) = model.vcg(record.signal[:, :6], record.rate, record.leads[:6])
    assert flat.rank == 2 and np.abs(flat.vcg[2]).max() < 1e-6 < np.abs(flat.vcg[1]).max()


def test_a_window_in_which_the_visible_lead_is_lost_is_left_out_and_said(model, record):
    signal = np.tile(record.signal, (2, 1))
    signal[:1000, 7] = np.nan
    found = model.embed(signal, record.rate, record.leads, visible=["V2"])
    assert found.start_seconds.tolist() == [10.0] and found.visible == [["V2"]]
    assert "window_left_out:0:hidden" in found.defects[0]


def test_any_signal_of_a_few_windows_uses_compiled_shapes(model, record):
    for seconds in (10, 7, 30):
        model.embed(np.tile(record.signal, (3, 1))[: 250 * seconds], record.rate, record.leads)
    before = embed_packed._cache_size()
    for seconds in (4, 12, 25):
        model.embed(np.tile(record.signal, (3, 1))[: 250 * seconds], record.rate, record.leads)
    assert embed_packed._cache_size() == before


NOISE = np.random.default_rng(0).normal(size=(5000, 12)).astype(np.float32)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            dict(signal=NOISE.T),
            r"shape \(12, 5000\) and 12 leads are named: signal must be \[samples, leads\]"
            r".*signal.T",
        ),
        (dict(leads=["I", "II"]), r"signal must be \[samples, leads\]"),
        (dict(leads=[*LEADS[:-1], "V9"]), "unknown lead 'V9': did you mean V"),
        (dict(leads=[*LEADS[:-1], "v5"]), "lead V5 occurs twice"),
        (dict(visible=["V7"]), "unknown lead 'V7'"),
        (
            dict(signal=NOISE[:, :2], leads=["I", "II"], visible="V1,V2"),
            "none of the leads V1, V2: usable are I, II",
        ),
        (dict(signal=NOISE * np.nan), "no lead has a finite value"),
        (dict(signal=NOISE[:400]), "0.80 s is too short"),
        (dict(signal=NOISE * 1000), "mV: the header's gain or unit is wrong"),
        (dict(fs=0), "fs=0 is no sampling rate"),
        (dict(fs="fast"), "fs='fast' is no sampling rate"),
        (dict(unit="mmHg"), "unit='mmHg' is no voltage"),
        (dict(signal=[NOISE, NOISE * np.nan]), "signal 1: all leads are missing"),
        (dict(signal=[NOISE, NOISE], fs=[500]), "2 signals, but fs for 1"),
        (dict(signal=np.array([["a"] * 12] * 5)), "numbers"),
    ],
)
def test_unusable_input_says_why(model, arguments, words):
    with pytest.raises(InputError, match=words):
        model.embed(**(dict(signal=NOISE, fs=500, leads=LEADS) | arguments))


def test_a_run_without_config_or_checkpoint_is_told(trained_run, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(InputError, match="no run directory"):
        LVCG.load(folder)
    folder.mkdir()
    with pytest.raises(InputError, match="no config.json"):
        LVCG.load(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="not the config of a model of this version"):
        LVCG.load(folder)
    (folder / "config.json").write_text((trained_run / "config.json").read_text())
    with pytest.raises(InputError, match="no checkpoint yet"):
        LVCG.load(folder)


def test_a_damaged_checkpoint_is_told(trained_run, shards_dir, tmp_path):
    shutil.copytree(trained_run, tmp_path / "run")
    for file in (tmp_path / "run" / "lowest").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:10])
    out = tmp_path / "embeddings.npz"
    done = run(
        "lvcg_jax.embed", f"--checkpoint={tmp_path / 'run'}", f"--data={shards_dir}", f"--out={out}"
    )
    assert_one_line_error(done, "the lowest checkpoint of", "cannot be read")


def test_diverged_weights_are_an_error_not_a_table_of_nan(model, record):
    spoiled = LVCG(model.config, jax.tree.map(lambda x: x * np.nan, model.variables), "bad@1")
    with pytest.raises(InputError, match="bad@1#.* has diverged"):
        spoiled.embed(record.signal, record.rate, record.leads)


def test_importing_the_package_is_light():
    code = (
        "import sys, lvcg_jax; lvcg_jax.__version__;"
        " assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    code = "import lvcg_jax; lvcg_jax.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no attribute 'nothing'" in done.stderr


@pytest.fixture(scope="module")
def tachycardia():
    """A record [T,12] of which 10 s at 400 Hz have more than 20 beats."""
    signal, info = make_record(3, seconds=16, rate=250, conditions=["STACH"])
    assert len(info["r_peaks"]) > 22
    return signal  # 16 s at 250 Hz, taken for 10 s at 400 Hz


def test_more_beats_than_in_training_are_kept_if_asked_for(model, record, tachycardia):
    more = model.with_max_beats(40)
    assert more.preprocess.hash() == model.preprocess.hash() and more.checkpoint == model.checkpoint
    merged, whole = (m.embed(tachycardia, 400, LEADS) for m in (model, more))
    assert merged.num_beats[0] == 20 and "merged_tail" in merged.defects[0]
    assert whole.num_beats[0] > 22 and "merged_tail" not in whole.defects[0]
    assert np.abs(whole.embedding - merged.embedding).max() > 1e-3
    usual = (m.embed(record.signal, record.rate, record.leads).embedding for m in (model, more))
    np.testing.assert_allclose(*usual, atol=1e-5)
    with pytest.raises(InputError, match="trained with 20, or more"):
        model.with_max_beats(19)
    config = model.config.copy_and_resolve_references()
    config.model.rhythm_positions = 20
    with pytest.raises(InputError, match="has weights for 20 beats"):
        LVCG(config, model.variables, "other").with_max_beats(21)


def test_a_tachycardia_in_which_no_beat_stands_out_is_embedded_and_says_so():
    model = LVCG.load("small")
    fast = dense_tachycardia(500).T  # 182 a minute
    merged = model.embed(fast, 500, LEADS)
    assert {"fast_rhythm", "merged_tail"} <= set(merged.defects[0]) and merged.num_beats[0] == 20
    whole = model.with_max_beats(40).embed(fast, 500, LEADS)
    assert "merged_tail" not in whole.defects[0] and 29 <= whole.num_beats[0] <= 32
    assert np.isfinite(whole.embedding).all() and np.isfinite(merged.embedding).all()


def test_shards_cut_with_more_beats_are_embedded_alike(model, raw_corpus, shards_dir, tmp_path):
    corpus = open_corpus("synthetic", raw_corpus)
    corpus = dataclasses.replace(corpus, refs=corpus.refs[:3])
    how = dataclasses.replace(model.preprocess, max_beats=40)
    build(corpus, tmp_path / "more", how, progress=False)
    found = embed_dataset(model, tmp_path / "more", progress=False)
    assert found.metadata["max_beats"] == "40"
    assert found.metadata["preprocess_hash"] == model.preprocess.hash()
    usual = embed_dataset(model, shards_dir, progress=False)
    assert "max_beats" not in usual.metadata
    rows = [usual.record_id.tolist().index(name) for name in found.record_id]
    merged = np.array(["merged_tail" in usual.extra["defects"][row] for row in rows])
    np.testing.assert_array_equal(merged, found.extra["num_beats"] > 20)
    far = np.abs(found.embedding - usual.embedding[rows]).max(1)
    assert (~merged).sum() >= 2 and (far[~merged] < 1e-5).all() and (far[merged] > 1e-3).all()


def test_commands_name_a_record_with_more_beats_than_are_kept(
    trained_run, tachycardia, tmp_path, capsys
):
    np.save(tmp_path / "fast.npy", tachycardia)
    flags = [f"--checkpoint={trained_run}", f"--record={tmp_path / 'fast.npy'}", "--rate=400"]
    flags += ["--unit=mV", f"--lead_names={','.join(LEADS)}", f"--out={tmp_path / 'one.npz'}"]
    assert embed_door.main(flags) == 0
    said = capsys.readouterr().out
    assert "warning: 1 rows have more beats than are kept" in said
    assert "first: record fast): --max_beats=40 keeps them" in said
    assert embed_door.main([*flags, "--max_beats=40"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert load_table(tmp_path / "one.npz").extra["num_beats"][0] > 22
    with pytest.raises(InputError, match="--max_beats is for files"):
        embed_door.main(["--data=shards", "--max_beats=40", f"--out={tmp_path / 'one.npz'}"])
