"""Operations and bytes of compiled programs by block, and what they take at least."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import get_config

from data_prep.base.errors import InputError
from lvcg_jax.bench import scaling
from lvcg_jax.bench.hlo import Cost, Program
from lvcg_jax.bench.roofline import ACCELERATORS, REST, block_of, by_block, roofline_table
from lvcg_jax.bench.scaling import abstract_programs, compile_as_for_tpu
from lvcg_jax.model.flops import model_flops
from lvcg_jax.model.ops.conv1d import conv1d
from lvcg_jax.train.sharding import make_mesh

# as the compiler of TPUs writes it: tiles, arrays on the chip, copies without a name, a loop whose
# turns only its condition tells
TPU = """
%fused (param_0: bf16[10,48], param_1: f32[4,48]) -> f32[10,4] {
  %param_0 = bf16[10,48]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = f32[4,48]{1,0:T(8,128)S(1)} parameter(1)
  ROOT %product.1 = f32[10,4]{1,0:T(8,128)} convolution(%param_0, %param_1), dim_labels=bf_oi->bf
}

%taking (param_0.1: f32[5,10,4], param_1.1: s32[]) -> f32[1,10,4] {
  %param_0.1 = f32[5,10,4]{2,1,0:T(8,128)} parameter(0)
  %param_1.1 = s32[] parameter(1)
  ROOT %slice.1 = f32[1,10,4]{2,1,0:T(8,128)} dynamic-slice(%param_0.1, %param_1.1, %param_1.1)
}

%body (state: (s32[], f32[5,10,4])) -> (s32[], f32[5,10,4]) {
  %state = (s32[], f32[5,10,4]{2,1,0:T(8,128)}) parameter(0)
  %number = s32[] get-tuple-element(%state), index=0
  %all = f32[5,10,4]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %one = f32[1,10,4]{2,1,0:T(8,128)} fusion(%all, %number), kind=kLoop, calls=%taking, metadata={op_name="jit(step)/temporal/while/slice"}
  ROOT %next = (s32[], f32[5,10,4]{2,1,0:T(8,128)}) tuple(%number, %all)
}

%condition (state.1: (s32[], f32[5,10,4])) -> pred[] {
  %state.1 = (s32[], f32[5,10,4]{2,1,0:T(8,128)}) parameter(0)
  %number.1 = s32[] get-tuple-element(%state.1), index=0
  %turns = s32[] constant(5)
  ROOT %less = pred[] compare(%number.1, %turns), direction=LT
}

ENTRY %main (x: bf16[10,48], w: f32[4,48], all.1: f32[5,10,4]) -> f32[10,4] {
  %x = bf16[10,48]{1,0:T(8,128)(2,1)} parameter(0)
  %w = f32[4,48]{1,0:T(8,128)} parameter(1), metadata={op_name="params['encoder']['stage2_block0']"}
  %copy-start = (f32[4,48]{1,0:T(8,128)S(1)}, f32[4,48]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w)
  %copy-done = f32[4,48]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %all.1 = f32[5,10,4]{2,1,0:T(8,128)} parameter(2)
  %zero = s32[] constant(0)
  %start = (s32[], f32[5,10,4]{2,1,0:T(8,128)}) tuple(%zero, %all.1)
  %loop = (s32[], f32[5,10,4]{2,1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[10,4]{1,0:T(8,128)} fusion(%x, %copy-done), kind=kOutput, calls=%fused, metadata={op_name="jit(step)/encoder/stem_conv/dot"}, backend_config={"estimated_cycles":"7"}
}
"""  # noqa: E501


def test_a_program_of_a_tpu_by_hand():
    """[10,48] is stored as 16 x 128 numbers, [4,48] as 8 x 128. The loop reads one of five [10,4]
    at each of its five turns, its number too, and writes it."""
    blocks = by_block(Program(TPU).costs())
    assert blocks == {
        "GRU": Cost("GRU", 0, 5 * (2 * 16 * 128 * 4 + 4), 0),
        "stage 3": Cost("stage 3", 0, 8 * 128 * 4, 0),  # brought to the chip
        "stem": Cost("stem", 2 * 10 * 4 * 48, 16 * 128 * (2 + 4), 7),
    }


def compiled_flops(function, *arguments) -> tuple[float, float]:
    """As counted here, and by XLA."""
    compiled = jax.jit(function).lower(*arguments).compile()
    ours = sum(cost.flops for cost in Program(compiled.as_text()).costs())
    return ours, compiled.cost_analysis()["flops"]


@pytest.mark.parametrize("length, stride", [(32, 1), (32, 2), (8, 1), (4, 1)])
def test_convolutions_and_their_gradients_are_counted_as_xla_counts_them(length, stride):
    x, kernel = jnp.ones((6, length, 16)), jnp.ones((7, 16, 24))
    ours, theirs = compiled_flops(lambda x, k: conv1d(x, k, stride), x, kernel)
    assert ours == pytest.approx(theirs, rel=0.01)
    both = jax.grad(lambda x, k: (conv1d(x, k, stride) ** 2).sum(), argnums=(0, 1))
    ours, theirs = compiled_flops(both, x, kernel)
    assert ours == pytest.approx(theirs, rel=0.03)  # XLA also counts the squares


def test_a_loop_counts_as_often_as_it_turns():
    def seven(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=7)[0]

    ours, theirs = compiled_flops(seven, jnp.ones((32, 64)), jnp.ones((64, 64)))
    assert ours == 7 * 2 * 32 * 64 * 64 > 4 * theirs


def test_blocks_are_told_by_the_names_of_modules():
    step = "jit(step)/transpose(jvp(Network))/"
    for origin, name in {
        step + "Network.encode/Network.tokens_of/encoder/stem_conv.without_bias/conv": "stem",
        step + "Network.encode/Network.tokens_of/encoder/stage3_block1/pair/norm2/mul": "stage 4",
        step + "Network.encode/Network.tokens_of/encoder/token/dot_general": "token",
        step + "Network.decode_all/Network.decode/decoder/up0/pair/conv1/dot": "decoder",
        step + "Network.encode/Network.predict/temporal/while/body/step/gru/hn/dot": "GRU",
        step + "Network.encode/Network.lift/gmkl,gmlp->gmpk/dot_general": "geometry",
        "jit(embed)/Network.embed/Network.embedding_parts/patterns/while/body/add": "patterns",
        "carried[0].params['encoder']['stage0_block2']['pair']['conv1']['kernel']": "stage 1",
        "carried[0].opt_state[1].mu['encoder']['stage0_block2']['pair']": REST,
        "jit(step)/add": REST,
    }.items():
        assert block_of(origin) == name, origin


def test_the_least_time_by_hand():
    """197 GFLOP take a v5e 1 ms, and 819 MB as well; 918 and 1,638 are a v6e's."""
    blocks = {
        "stem": Cost("stem", 197e9, 81.9e6, 0),
        "GRU": Cost("GRU", 0.197e9, 819e6, 0),
    }
    chips = [ACCELERATORS["v5e"], ACCELERATORS["v6e"]]
    lines = roofline_table(blocks, chips, "bfloat16")
    assert lines[2] == "| stem | 197.00 | 81.9 | 2,405 | 1.000 compute | 0.215 compute |"
    assert lines[3] == "| GRU | 0.20 | 819.0 | 0 | 1.000 memory | 0.500 memory |"
    assert lines[4] == "| all | 197.20 | 900.9 | 219 | 2.000 | 0.715 |"


@pytest.mark.parametrize("name", ["train", "embed"])
def test_blocks_of_the_network_add_up_to_the_whole(name):
    """To what XLA counts, without its products of single numbers, and to what is counted by
    hand."""
    config = get_config("tenth")
    config.data.batch_size, slots = 8, 104
    mesh = make_mesh(config, jax.devices()[:1])
    program, arguments = abstract_programs(config, mesh, 8, slots)[name]
    compiled = compile_as_for_tpu(program, arguments, mesh)
    blocks = by_block(Program(compiled.as_text()).costs())
    assert {"stem", "stage 1", "stage 2", "stage 3", "stage 4", "GRU", "geometry"} < set(blocks)
    assert ("decoder" in blocks) == (name == "train")
    total = sum(cost.flops for cost in blocks.values())
    assert blocks[REST].flops < 0.02 * total
    gru = blocks["GRU"].flops  # which XLA counts for one beat
    assert total - gru < compiled.cost_analysis()["flops"] < 1.15 * total
    assert total == pytest.approx(model_flops(config, np.full(8, 13))[name], rel=0.25)


def test_the_command_lists_blocks_and_memory(capsys):
    scaling.main(["--roofline", "--config=configs/pretrain.py:smoke", "--records=8"])
    printed = capsys.readouterr().out
    assert printed.startswith("Calculated: 8 records of 106 beats, float32, the compiler of CPUs.")
    assert "- H100: 495 TFLOP/s, 3,350 GB/s: the memory bounds below 148 FLOP per byte" in printed
    assert len(re.findall(r"^\| decoder \| .* memory \|$", printed, re.MULTILINE)) == 1
    assert re.search(r"^train: 0\.\d\d GB of memory$", printed, re.MULTILINE)


def test_mistakes_are_told(monkeypatch):
    for flags, words in (
        (["--topology=v5e"], "--topology=v5e: write v5e:2x4"),
        (["--topology=a100:2x2"], "--topology=a100:2x2: write v5e:2x4"),
        (["--roofline", "--devices=2"], "--roofline is of one"),
        (["--topology=v5e:2x2", "--devices=4"], "--topology says how many"),
        (
            ["--roofline", "--config=configs/pretrain.py:accelerator"],
            "model.dtype=bfloat16: the compiler of CPUs widens it; give --topology",
        ),
    ):
        with pytest.raises(InputError, match=words):
            scaling.main(flags)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install lvcg-jax\[tpu\]"):
        scaling.main(["--topology=v5e:2x2"])
