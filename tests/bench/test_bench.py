"""The bench: its counts are right, its lines say what they claim, and the baseline is measured
beside."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import assert_one_line_error, get_config, run
from ml_collections import FrozenConfigDict

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.bench import __main__ as bench_door
from lvcg_jax.bench import plain_model
from lvcg_jax.bench.records import MEAN_BEATS, RandomRecords
from lvcg_jax.bench.timing import Program, take_turns
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.model.flops import (
    conv_flops,
    decoder_flops,
    encoder_flops,
    flops_per_beat,
    model_flops,
)
from lvcg_jax.runs import weights

TINY = "from helpers.packed_batch import tiny_config as get_config\n"
SPEED = {
    "records_per_second", "seconds", "seconds_min", "beats", "slots", "padding_share", "gflop",
    "share_of_peak", "compile_seconds", "process_memory_gib", "program_memory_gib",
}  # fmt: skip


def _lines(*flags):
    """The command in this process: its JSON lines by part."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert bench_door.main([*flags, "--repeats=2", "--records=40", "--sizes=64,128"]) == 0
    return {line["part"]: line for line in map(json.loads, out.getvalue().splitlines())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def lines(folder, packaged):
    """Every part on a tiny model, with the baseline and a trace. Of the packaged weights `small` is
    the real one, `paper` a tiny run."""
    some = shutil.copytree(packaged, folder / "packaged")
    for file in weights.PACKAGED.glob("small.*"):
        shutil.copy(file, some)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "PACKAGED", some)
        return _lines(
            f"--config={folder / 'tiny.py'}", "--baseline", f"--profile={folder / 'trace'}"
        )


def test_flops_of_one_convolution_by_hand():
    # Four samples, kernel 7: every output sees all four samples, so 16 taps, 3 x 5 products each.
    assert conv_flops(4, 7, 3, 5) == 2 * 16 * 3 * 5
    # Eight samples, kernel 5, stride 2: outputs at 0, 2, 4, 6 see 3, 5, 5, 4 samples.
    assert conv_flops(8, 5, 2, 3, stride=2) == 2 * 17 * 2 * 3
    assert conv_flops(8, 1, 2, 3, stride=2) == 2 * 4 * 2 * 3


@pytest.mark.parametrize("length, width, stride", [(128, 7, 2), (4, 7, 1), (16, 5, 1), (16, 1, 2)])
def test_flops_of_one_convolution_are_the_compilers(length, width, stride):
    x, kernel = (
        jax.ShapeDtypeStruct((1, length, 6), jnp.float32),
        jax.ShapeDtypeStruct((width, 6, 10), jnp.float32),
    )

    def convolve(x, kernel):
        pad = (width // 2, width // 2)
        return jax.lax.conv_general_dilated(
            x, kernel, (stride,), [pad], dimension_numbers=("NWC", "WIO", "NWC")
        )

    counted = jax.jit(convolve).lower(x, kernel).cost_analysis()["flops"]
    assert conv_flops(length, width, 6, 10, stride) == counted


@pytest.mark.parametrize("variant", ["paper", "demo"])
def test_flops_of_encoder_and_decoder_are_the_compilers(variant):
    """The compiler also counts norms and activations, and the plain decoder up-samples before its
    shortcuts."""
    config = get_config(variant)
    sizes, beats = FrozenConfigDict(config).model, 4
    modules = {
        encoder_flops: (plain_model._Encoder(sizes), (beats, 128, 3)),
        decoder_flops: (plain_model._Decoder(sizes), (beats, config.model.token_dim)),
    }
    for count, (module, shape) in modules.items():
        x, valid = (
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct((beats,), jnp.bool_),
        )
        variables = jax.eval_shape(
            lambda x, v, m=module: m.init(jax.random.key(0), x, v, None), x, valid
        )
        lowered = jax.jit(lambda v, x, ok, m=module: m.apply(v, x, ok, None)).lower(
            variables, x, valid
        )
        ratio = lowered.cost_analysis()["flops"] / beats / count(config)
        assert 1.0 < ratio < (1.15 if variant == "paper" else 1.4), (count.__name__, ratio)


def test_flops_of_a_batch():
    config = get_config("paper")
    per_beat = flops_per_beat(config)
    assert 0.10e9 < per_beat["encoder"] < 0.12e9 and 0.013e9 < per_beat["decoder"] < 0.015e9
    cell, x = nn.GRUCell(256), jax.ShapeDtypeStruct((1, 256), jnp.float32)
    variables = jax.eval_shape(lambda s, x: cell.init(jax.random.key(0), s, x), x, x)
    step = jax.jit(cell.apply).lower(variables, x, x).cost_analysis()["flops"]
    assert per_beat["temporal"] == pytest.approx(step + 2 * 256 * 256, rel=0.01)
    one, two = (model_flops(config, np.array(counts)) for counts in ([[5, 0]], [[5, 5], [0, 0]]))
    assert two["train"] == 2 * one["train"] and two["embed"] == 2 * one["embed"]
    assert one["embed"] == 5 * per_beat["encoder"] + 5 * 2 * 256**2 + 4 * 12 * 256**2 + 2 * 256**2
    assert one["train"] == 3 * (one["embed"] + 10 * per_beat["decoder"])


def test_every_part_has_its_line(lines):
    assert list(lines) == ["machine", *bench_door.PARTS]
    assert lines["machine"]["batch_size"] == 8 and lines["machine"]["devices"] == jax.device_count()
    assert lines["peak"]["gflop_per_second"] == max(lines["peak"]["by_size"].values()) > 0
    assert set(lines["peak"]["by_size"]) == {"64", "128"}
    assert lines["input"]["source"] == "synthetic" and lines["input"]["records_per_cpu_second"] > 10
    assert lines["input"]["packed"]["records_per_cpu_second"] > 10 and lines["input"]["ratio"] > 1
    assert lines["input"]["processes"]["two"] > 10
    costs = [cost["us_per_own_record"] for cost in lines["order"]["cost"].values()]
    assert len(costs) == 12 and max(costs) < 10 * min(costs), "all records cost nearly as much"
    padding = lines["order"]["padding"]
    assert padding["2x256"]["shared"] < 0.03 < padding["2x256"]["alone"]
    assert lines["prepare"]["records_per_cpu_second"] > 10 and lines["prepare"]["ratio"] > 0
    checkpoint = lines["checkpoint"]
    assert (
        0 < checkpoint["stall_seconds"] <= checkpoint["write_seconds"]
        and checkpoint["state_mib"] > 0
    )


@pytest.mark.parametrize("part", ["train", "embed"])
def test_what_a_line_says_fits_together(lines, part):
    line = lines[part]
    peak = line["peak_gflop_per_second"]
    for fields in (line, line["baseline"]):
        assert fields.keys() >= SPEED
        assert fields["padding_share"] == pytest.approx(
            1 - fields["beats"] / fields["slots"], abs=1e-4
        )
        assert fields["share_of_peak"] == pytest.approx(
            fields["gflop"] / fields["seconds"] / peak, rel=1e-3
        )
        assert fields["records_per_second"] == pytest.approx(8 / fields["seconds"], rel=1e-3)
        assert fields["seconds_min"] <= fields["seconds"] and fields["compile_seconds"] > 0
        assert 0 < fields["program_memory_gib"] < fields["process_memory_gib"] < 8
    assert line["baseline"]["name"] == "jax"
    assert line["beats"] == line["baseline"]["beats"] and line["gflop"] == line["baseline"]["gflop"]
    assert line["baseline"]["slots"] == 8 * 20 and line["slots"] < 8 * 20
    assert line["ratio"] == pytest.approx(
        line["records_per_second"] / line["baseline"]["records_per_second"], rel=1e-3
    )


def test_embedding_batch_after_batch_is_told_with_and_without_compiling(lines):
    several = lines["embed"]["several_batches"]
    for name in ("ours", "baseline"):
        fields = several[name]
        assert 1 <= fields["shapes"] <= several["batches"] == 2
        assert fields["records_per_second_with_compiling"] < fields["records_per_second"]
    ratio = several["ours"]["records_per_second"] / several["baseline"]["records_per_second"]
    assert several["ratio_records_per_second"] == pytest.approx(ratio, rel=1e-3)


def test_deriving_leads_is_timed_beside_embedding(lines):
    line = lines["derive"]
    for kind, count in (("one_record", 1), ("bulk", line["records"])):
        assert set(line[kind]) == {"embed", "lvcg", "gaussian beat"}
        assert line[kind]["embed"]["times_embedding"] == 1
        for found in line[kind].values():
            assert found["records_per_second"] == pytest.approx(count / found["seconds"], rel=1e-3)


def test_packaged_weights_are_timed_side_by_side(lines):
    speed, times = lines["packaged"]["records_per_second"], lines["packaged"]["times_the_slowest"]
    assert list(speed) == ["paper", "small"] and min(times.values()) == 1.0
    assert all(
        times[name] == pytest.approx(x / min(speed.values()), rel=1e-3) for name, x in speed.items()
    )


def test_the_trace_is_written(lines, folder):
    for part in ("train", "embed"):
        assert list((folder / "trace" / part).rglob("*.xplane.pb"))


def test_real_shards_are_measured_when_given(shards_dir):
    config = Path(__file__).parents[2] / "configs" / "pretrain.py"
    lines = _lines(
        f"--config={config}:smoke", f"--data={shards_dir}", "--parts=embed,input", "--batch_size=16"
    )
    assert list(lines) == ["machine", "embed", "input"]
    counts = ShardSet(shards_dir, "train").counts
    assert lines["embed"]["beats"] / 16 == pytest.approx(counts.mean(), rel=0.2)
    assert "baseline" not in lines["embed"] and lines["embed"]["records_per_second"] > 0


def test_made_up_records_have_ptbxl_beat_counts_and_pack_with_little_padding():
    config = get_config("paper")
    records = RandomRecords(make_preprocess(config))
    assert records.counts.min() >= 6 and records.counts.max() == 20
    assert records.counts.mean() == pytest.approx(MEAN_BEATS, abs=0.15)
    batch = BatchMaker(records, 1, 1, [0], True)(np.arange(64))
    assert batch["num_beats"].sum() == records.counts[:64].sum()
    assert 1 - batch["num_beats"].sum() / batch["length"].size < 0.1


def test_calls_take_turns_and_are_timed_the_second_time():
    order = []
    seconds = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "a", "b", "b"] * 3 and len(seconds["a"]) == len(seconds["b"]) == 3


def test_a_program_is_compiled_once_and_called_with_its_arguments():
    program = Program(jax.jit(lambda x: x + 1), jnp.ones(3))
    np.testing.assert_array_equal(program(), [2, 2, 2])
    assert program.compile_seconds > 0 and program.process_memory > 0.01


def test_mistakes_are_told(folder, tmp_path, shards_dir):
    assert_one_line_error(
        run("lvcg_jax.bench", "--parts=peak,trane"), "unknown part 'trane'", "checkpoint"
    )
    tiny = f"--config={folder / 'tiny.py'}"
    for flags, words in (
        ([tiny, "--repeats=0"], "--repeats: '0' is not a whole number of 1 or more"),
        ([tiny, "--records=4"], "--records=4: give 5 or more"),
        ([tiny, "--sizes=big"], "whole numbers"),
        ([f"--config={tmp_path / 'none.py'}"], "no config file"),
        ([tiny, f"--data={tmp_path}"], str(tmp_path)),
        ([tiny, f"--data={shards_dir}"], "beats of 128 samples, the config wants 16"),
    ):
        with pytest.raises(InputError, match=words):
            bench_door.main(flags)
    (tmp_path / "learnable.py").write_text(
        f"{TINY}make = get_config\ndef get_config():\n    c = make()\n"
        "    c.geometry.learnable = True\n    return c\n"
    )
    with pytest.raises(InputError, match="learnable"):
        bench_door.main([f"--config={tmp_path / 'learnable.py'}", "--baseline"])


def test_a_missing_pytorch_is_told_before_anything_is_computed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # import torch fails
    with pytest.raises(InputError, match=r"--baseline=torch needs `pip install lvcg-jax\[torch\]`"):
        bench_door.main([f"--config={folder / 'tiny.py'}", "--baseline=torch"])
    with pytest.raises(InputError, match="invalid choice: 'tensorflow'"):
        bench_door.main([f"--config={folder / 'tiny.py'}", "--baseline=tensorflow"])
