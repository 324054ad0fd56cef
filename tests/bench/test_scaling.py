"""What is read off a compiled program, and the arithmetic on it."""

import re

import pytest
from helpers.commands import assert_one_line_error, run

from data_prep.base.errors import InputError
from lvcg_jax.bench import scaling
from lvcg_jax.bench.scaling import Chip, Collective, read_collectives, weak_scaling

HLO = "\n".join(
    (
        "  %fusion.1 = f32[3,4]{1,0} fusion(f32[3,4]{1,0} %p), kind=kLoop",
        "  %all-reduce.1 = (f32[100]{0}, bf16[2,50]{1,0}) all-reduce(%a, %b),"
        " replica_groups=[2,4]<=[8], to_apply=%add",
        "  %all-reduce-start.2 = f32[] all-reduce-start(%c),"
        " replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add",
        "  %all-gather.3 = f32[8,10]{1,0} all-gather(f32[1,10]{1,0} %d),"
        " channel_id=7, replica_groups={{0,1},{2,3}}, dimensions={0}",
        "  %all-gather.3.clone = f32[8,10]{1,0} all-gather(f32[1,10]{1,0} %d),"
        " channel_id=7, replica_groups={{0,1},{2,3}}, dimensions={0}",  # another piece of it
        "  %reduce-scatter.4 = f32[5]{0} reduce-scatter(f32[20]{0} %e),"
        " replica_groups=mesh['a'=4,'b'=2] {'a'}, dimensions={0}",
    )
)


def test_collectives_are_read_with_their_bytes_and_devices():
    assert read_collectives(HLO) == [
        Collective("all-reduce", 400 + 200, 4),
        Collective("all-reduce", 4, 8),
        Collective("all-gather", 320, 2),
        Collective("reduce-scatter", 80, 4),
    ]


def test_bytes_on_a_ring():
    """Each of four devices sends every quarter but one twice to reduce and share an array, once to
    share it only."""
    assert Collective("all-reduce", 400, 4).sent == 600
    assert Collective("all-gather", 400, 4).sent == Collective("reduce-scatter", 400, 4).sent == 300


def test_weak_scaling_by_hand():
    """1,000 GFLOP at 50 TFLOP/s: 20 ms; 50 MB reduced by two at 1 GB/s: 50 ms; 100 small ones of 10
    us: 1 ms."""
    found = [Collective("all-reduce", 50_000_000, 8)] + [Collective("all-reduce", 100, 8)] * 100
    lines = weak_scaling(Chip(100.0, 0.5, 1.0, 10.0), 1000.0, found, [1, 2], rows=8)
    assert lines[2] == "| 1 | 8 | 20.00 | 0.00 | 0.00 | 100% | 400 |"
    assert lines[3] == "| 2 | 16 | 20.00 | 50.00 | 1.00 | 28% | 225 |"


def test_the_gradient_is_reduced_once():
    """Data parallel: parameters, norm statistics and metrics are summed; only the loss of each
    record is shared."""
    done = run(
        "lvcg_jax.bench.scaling",
        "--config=configs/pretrain.py:smoke",
        "--devices=4",
        "--chips=256",
        "--records=8",  # fewer would share groups between devices
        quick=True,
    )
    assert done.returncode == 0, done.stderr
    parameters = int(re.match(r"([\d,]+) parameters", done.stdout).group(1).replace(",", ""))
    reduced = (
        sum(float(x) for x in re.findall(r"\| all-reduce \| [^|]+ \| \d+ \| ([\d.]+)", done.stdout))
        * 1e6
    )
    assert 0.8 * 4 * parameters < reduced < 1.5 * 4 * parameters
    assert not re.search(r"\| (all-gather|all-to-all|collective-permute) \| large", done.stdout)
    assert re.search(r"\| 256 \| 2,?048 \|", done.stdout) and "Calculated" in done.stdout


def test_mistakes_are_told():
    assert_one_line_error(
        run("lvcg_jax.bench.scaling", "--devices=0"), "--devices: '0' is not a whole number"
    )
    for flag, words in (("--tflops=0", "--tflops: '0' is not"), ("--latency_us=-1", "0 or more")):
        with pytest.raises(InputError, match=words):
            scaling.main([flag])
    with pytest.raises(InputError, match="invalid choice: 'everywhere'"):
        scaling.main(["--shard_parameters=everywhere"])
