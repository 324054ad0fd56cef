"""An exported model embeds like the one it came from, with JAX alone; and the programs lower for
accelerators."""

import hashlib
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers.commands import assert_one_line_error, get_config, run
from jax.sharding import AbstractMesh, AxisType

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.bench.scaling import abstract_programs
from lvcg_jax.data import packing
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.export import __main__ as export_door
from lvcg_jax.model.network import PARTS

INPUTS = ("beats", "length", "complete", "num_beats", "lead_mask", "scale")
WITH_JAX_ALONE = """
import sys
import numpy as np
from jax import export
embed = export.deserialize(open(sys.argv[1], "rb").read()).call
inputs = np.load(sys.argv[2])
names = ("beats", "length", "complete", "num_beats", "lead_mask", "scale")
results = {}
for b in (1, 5):
    for part, x in embed(*(inputs[name][:b] for name in names)).items():
        results[f"{part}{b}"] = x
np.savez(sys.argv[3], **results)
assert not {"lvcg_jax", "data_prep", "flax"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def embedder(trained_run):
    return LVCG.load(trained_run)


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    """The files of one export, by the command."""
    out = tmp_path_factory.mktemp("export") / "new" / "model.stablehlo"
    done = run("lvcg_jax.export", f"--checkpoint={trained_run}", f"--out={out}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "model.stablehlo" in done.stdout and "model card" in done.stdout
    return out


def _embed_test_split(embedder, shards_dir):
    return embedder.embed_windows(shard_windows(ShardSet(shards_dir, "test")))[1]


def _inputs(shards_dir, records):
    """Arrays of the first test records; what no beat fills holds rubbish, which must not matter."""
    batch = packing.empty((records,), slots=20, rows=1, beat_samples=128)
    batch["beats"][:], batch["length"][:], batch["complete"][:] = np.nan, -7, True
    for i in range(records):
        packing.fill(batch, [ShardSet(shards_dir, "test")[i]], (i,))
    batch["beats"] = batch["beats"].astype(np.float32)
    return {
        name: batch[name] if packing.BATCH[name].per == "beat" else batch[name][:, 0]
        for name in INPUTS
    }


def test_a_fresh_process_with_jax_alone_gives_the_same_embeddings(
    exported, embedder, shards_dir, tmp_path
):
    np.savez(tmp_path / "inputs.npz", **_inputs(shards_dir, 5))
    files = [exported, tmp_path / "inputs.npz", tmp_path / "parts.npz"]
    subprocess.run(
        [sys.executable, "-c", WITH_JAX_ALONE, *map(str, files)],
        check=True,
        cwd=tmp_path,
        timeout=200,
    )
    results, expected = (
        np.load(tmp_path / "parts.npz"),
        _embed_test_split(embedder, shards_dir),
    )
    for part in PARTS:
        for b in (1, 5):
            assert results[f"{part}{b}"].dtype == np.float32
            np.testing.assert_allclose(results[f"{part}{b}"], expected[part][:b], atol=1e-5)
    assert np.abs(expected["structure"][:5]).max() > 1e-2


def test_parts_fitted_to_records_are_exported_for_any_number_of_records(with_shape, shards_dir):
    inputs = _inputs(shards_dir, 9)
    call = export_door.export_embedder(with_shape, ["cpu"]).call
    expected = _embed_test_split(with_shape, shards_dir)
    for b in (1, 9):
        found = call(*(inputs[name][:b] for name in INPUTS))
        for part in PARTS:
            np.testing.assert_allclose(found[part], expected[part][:b], atol=1e-4)


def test_the_lead_mask_says_what_is_seen(embedder, shards_dir):
    inputs = _inputs(shards_dir, 2)
    few = inputs | {"lead_mask": np.array([0b10000010, 0b111], np.int32)}
    embed = jax.jit(export_door.embed_function(embedder))
    shown = embed(*(few[name] for name in INPUTS))
    batch = {name: x if x.ndim > 1 else x[:, None] for name, x in inputs.items()}
    batch["beats"], batch["scale"] = batch["beats"].astype(np.float16), batch["scale"][:, None]
    expected = embedder.embed_batch(batch, visible=few["lead_mask"][:, None])
    for part in PARTS:
        np.testing.assert_allclose(shown[part], expected[part][:, 0], atol=1e-5)
    hidden = few["beats"].copy()
    hidden[0, :, [0, 2]] = 9.0  # leads I and III are not in the mask of the first record
    other = embed(hidden, *(few[name] for name in INPUTS[1:]))
    np.testing.assert_array_equal(other["structure"], shown["structure"])


def test_the_json_file_says_what_goes_in_and_out(exported, embedder):
    facts = json.loads(exported.with_suffix(".json").read_text())
    assert facts["sha256"] == hashlib.sha256(exported.read_bytes()).hexdigest()
    assert facts["checkpoint"] == embedder.checkpoint and facts["platforms"] == [
        "cpu",
        "cuda",
        "tpu",
    ]
    assert facts["leads"] == list(LEADS) and list(facts["parts"]) == list(PARTS)
    assert (
        Preprocess.from_dict(facts["preprocess"]).hash()
        == facts["preprocess_hash"]
        == embedder.preprocess.hash()
    )
    loaded = jax.export.deserialize(bytearray(exported.read_bytes()))
    for (name, array), aval in zip(facts["inputs"].items(), loaded.in_avals, strict=True):
        assert [str(size) for size in array["shape"]] == [str(size) for size in aval.shape], name
        assert array["dtype"] == aval.dtype.name
    assert tuple(facts["inputs"]) == INPUTS
    outputs = jax.tree.unflatten(loaded.out_tree, loaded.out_avals)
    for name, size in facts["parts"].items():
        assert facts["outputs"][name]["shape"] == ["b", size] and outputs[name].shape[1] == size


def test_the_call_in_the_model_card_works_as_it_stands(
    exported, embedder, raw_corpus, shards_dir, monkeypatch
):
    card = exported.with_suffix(".md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(code.splitlines()) <= 15
    corpus, example = open_corpus("synthetic", raw_corpus), ShardSet(shards_dir, "test")[0]
    record = corpus.load(next(ref for ref in corpus.refs if ref.record_id == example["record_id"]))
    monkeypatch.chdir(exported.parent)
    names = {
        "signal_mv": np.tile(record.signal, (2, 1)),
        "rate": record.rate,
        "leads": record.leads,
    }
    exec(code, names)
    assert names["embedding"].shape == (2, sum(names["facts"]["parts"].values()))
    names["signal_mv"] = record.signal
    exec(code, names)
    row = _embed_test_split(embedder, shards_dir)
    expected = np.concatenate([row[part][0] for part in PARTS])
    np.testing.assert_allclose(names["embedding"][0], expected, atol=1e-5)


def test_the_model_card_tells_data_numbers_and_limits(exported, trained_run, shards_dir):
    card = exported.with_suffix(".md").read_text()
    preprocessing, data = (
        ("0.67-40 Hz of order 3", "100 Hz", "at most 20"),
        ("Corpus `synthetic`", "not recorded from"),
    )
    training, rest = (
        ("learning rate 0.001", "8 records", "Best validation at step"),
        ("not for diagnosis", "MIT"),
    )
    for words in preprocessing + data + training + rest:
        assert words in card, words
    shards = ShardSet(shards_dir, "train")
    assert f"train: {len(shards)} windows" in card and f"{shards.counts.sum():,} intervals" in card
    assert str(trained_run.parent) not in card and str(shards_dir) not in card  # nobody's folders


def test_a_card_without_its_data_says_so(embedder, tmp_path):
    from lvcg_jax.export.card import data_words

    config = embedder.config.copy_and_resolve_references()
    config.data.dir = str(tmp_path / "gone")
    assert "not at hand" in data_words(config, tmp_path)


def test_mistakes_are_told(trained_run, tmp_path, monkeypatch):
    done = run(
        "lvcg_jax.export",
        f"--checkpoint={tmp_path / 'nowhere'}",
        f"--out={tmp_path / 'model.stablehlo'}",
    )
    assert_one_line_error(done, "nowhere")
    with pytest.raises(InputError, match="unknown platform 'gpu', choose from cpu, cuda"):
        export_door.main(
            [f"--checkpoint={trained_run}", "--out=model.stablehlo", "--platforms=cpu,gpu"]
        )
    with pytest.raises(InputError, match="must end in .stablehlo"):
        export_door.main([f"--checkpoint={trained_run}", "--out=model.onnx"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install flatbuffers"):
        export_door.main([f"--checkpoint={trained_run}", "--out=model.stablehlo"])


@pytest.mark.parametrize(
    "preset, place", [("paper", "none"), ("accelerator", "data"), ("best", "model")]
)
def test_train_step_and_embedder_lower_for_256_accelerators(preset, place):
    """Without one at hand: StableHLO for tpu and cuda, sharded, with static shapes and no call back
    to Python."""
    config = get_config(preset)
    config.model.remat, config.mesh.shard_parameters = place == "data", place
    config.mesh.model = 4 if place == "model" else 1
    mesh = AbstractMesh(
        (256 // config.mesh.model, config.mesh.model), ("data", "model"), (AxisType.Auto,) * 2
    )
    for name, (program, arguments) in abstract_programs(config, mesh, rows=4, slots=64).items():
        for platform in ("tpu", "cuda"):
            lowered = jax.export.export(program, platforms=[platform])(*arguments)
            text = lowered.mlir_module()
            assert lowered.nr_devices == 256 and lowered.platforms == (platform,), name
            called = set(re.findall(r"custom_call @(\w+)", text))
            assert not [target for target in called if "callback" in target.lower()], called
            assert not lowered.ordered_effects and not lowered.unordered_effects
            assert not re.search(r"tensor<[^>]*\?", text) and "stablehlo.convolution" in text
            assert ("xbf16>" in text) == (preset == "accelerator")
            kernel = re.search(
                r"tensor<7x256x256xf32> {[^}]*sharding<@mesh, \[(.*?)\]>", text
            ).group(1)
            assert (place in kernel) == (name == "train" and place != "none"), kernel


def test_blocks_computed_again_stand_twice_in_what_an_accelerator_is_given():
    """Each block's convolutions and products: forward, two gradients and, with remat, forward
    again."""
    config, counts = get_config("smoke"), {}
    mesh = AbstractMesh((8, 1), ("data", "model"), (AxisType.Auto,) * 2)
    for config.model.remat in (False, True):
        program, arguments = abstract_programs(config, mesh, rows=4, slots=64)["train"]
        text = jax.export.export(program, platforms=["tpu"])(*arguments).mlir_module()
        counts[config.model.remat] = len(
            re.findall(r"stablehlo\.(?:convolution|dot_general)", text)
        )
    assert 1.2 < counts[True] / counts[False] < 4 / 3
