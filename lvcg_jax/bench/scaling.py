"""What a training step sends between devices, read off the compiled program, and what that means
for many chips.

    lvcg scaling --devices=8 --chips=256 --config=configs/pretrain.py
    lvcg scaling --roofline
    lvcg scaling --roofline --topology=v5e:2x2 --config=configs/pretrain.py:accelerator

Compiles the step as lowered for TPU, but for --devices virtual CPU devices (nothing runs), and
lists its collectives. The second table is CALCULATED, not measured: weak scaling with the same
number of records on every chip, from the FLOPs of the model, the bytes of the collectives, and the
chip's speed, link speed and latency as given by flags.

--roofline lists instead what each block of the network computes and moves on one chip, in a
training step and in an embedding, and what that takes at least on some accelerators (CALCULATED
from their published peaks); and the memory that the programs ask for.

--topology=v5e:2x4 compiles with the compiler of TPUs for such a slice, which needs no TPU but
libtpu (`pip install lvcg-jax[tpu]`): its fusions, its collectives, its memory.
"""

import argparse
import importlib.util
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.export
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from data_prep.base.command import Parser, positive_float, positive_int, run_command
from data_prep.base.errors import InputError
from lvcg_jax.bench.hlo import BITS, Program
from lvcg_jax.bench.records import MEAN_BEATS
from lvcg_jax.bench.roofline import ACCELERATORS, by_block, roofline_table
from lvcg_jax.bench.timing import program_bytes
from lvcg_jax.config.build import make_model
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.data.packing import shapes
from lvcg_jax.model.flops import model_flops
from lvcg_jax.runs.state import create_state, make_optimizer
from lvcg_jax.train.sharding import (
    batch_sharding,
    group_devices,
    make_mesh,
    replicated,
    state_sharding,
)
from lvcg_jax.train.steps import Watch, make_train_step

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
SMALL_BYTES = 65536  # collectives below are bound by latency, not by the link


def abstract_programs(config, mesh: Mesh | AbstractMesh, rows: int, slots: int) -> dict[str, tuple]:
    """The train step and the embedder for a mesh: {name: (program, shapes of its arguments)}.

    A device of the data axis holds `rows` records in `slots` packed beats, or its share of them.
    """
    groups, beats = mesh.shape["data"], config.preprocess.max_beats
    devices = group_devices(mesh)
    sizes = (devices * slots, devices * rows, config.preprocess.beat_samples)
    batch, micro_batches = shapes((groups,), *sizes), shapes((1, groups), *sizes)
    model, tx = make_model(config), make_optimizer(config)
    state = jax.eval_shape(lambda b: create_state(config, model, tx, b, beats, 0), batch)
    shardings = state_sharding(mesh, state, config)
    step = make_train_step(model, tx, config, make_subsets(config), beats, mesh, shardings)
    watch = jax.eval_shape(lambda: Watch.new(micro_batches["num_beats"].shape))
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    embed = jax.jit(
        lambda variables, batch: model.apply(
            variables, batch, batch["lead_mask"], beats, method="embed"
        ),
        in_shardings=(replicated(mesh), batch_sharding(mesh, leading=0)),
    )
    carried = (state, watch)
    return {"train": (step, (carried, micro_batches)), "embed": (embed, (variables, batch))}


def compile_as_for_tpu(step, arguments: tuple, mesh: Mesh) -> jax.stages.Compiled:
    """Compiles for the mesh's devices. CPUs are given what a TPU would be, without the forms that
    suit only a CPU."""
    if mesh.devices.flat[0].platform == "tpu":
        return step.lower(*arguments).compile()
    checks = (jax.export.DisabledSafetyCheck.platform(),)
    exported = jax.export.export(step, platforms=("tpu",), disabled_checks=checks)(*arguments)
    leaves, tree = jax.tree.flatten(arguments)
    placed = [
        jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharding or NamedSharding(mesh, PartitionSpec())
        )
        for x, sharding in zip(leaves, exported.in_shardings_jax(mesh), strict=True)
    ]
    lowered = jax.jit(exported.call).lower(*jax.tree.unflatten(tree, placed))
    return lowered.compile({"xla_backend_optimization_level": 0})  # it will not run


def topology_devices(name: str) -> Sequence[jax.Device]:
    """Devices of a TPU slice such as v5e:2x4 that programs can be compiled for, and no more."""
    kind = name.partition(":")[0]
    if not re.fullmatch(r"v[56]e:\d+x\d+", name):
        raise InputError(f"--topology={name}: write v5e:2x4 or v6e:2x4, say")
    if importlib.util.find_spec("libtpu") is None:
        raise InputError("--topology needs the compiler of TPUs: pip install lvcg-jax[tpu]")
    jax.config.update("jax_enable_compilation_cache", False)  # nothing can be read from it
    # what it would otherwise look for in the network, at length
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-8" if kind == "v5e" else "v6e-8"
    try:
        return topologies.get_topology_desc(name, "tpu").devices
    except jax.errors.JaxRuntimeError as error:
        raise InputError(f"--topology={name}: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class Collective:
    """One collective operation of a compiled program."""

    kind: str
    bytes: int  # of the whole array: what is reduced, or what everybody has in the end
    devices: int  # that take part together

    @property
    def sent(self) -> float:
        """Bytes that each device sends on a ring."""
        share = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * share, "collective-permute": 1.0}.get(
            self.kind, share
        )


def read_collectives(hlo: str) -> list[Collective]:
    """The collectives in the text of a compiled program.

    One that a TPU sends in pieces, while it computes, stands in each of these computations, with
    one channel.
    """
    found, channels = [], set()
    for line in hlo.splitlines():
        match = re.search(rf"= (.+?) ({'|'.join(KINDS)})(?:-start)?\(", line)
        channel = re.search(r"channel_id=(\d+)", line)
        if not match or (channel and channel[1] in channels):
            continue
        if channel:
            channels.add(channel[1])
        shapes, kind = match.groups()
        size = sum(
            BITS[dtype] // 8 * math.prod(int(n) for n in dims.split(",") if n)
            for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        )
        devices = _group_size(line)
        if kind == "reduce-scatter":  # the text has the part that each device keeps
            size *= devices
        found.append(Collective(kind, size, devices))
    return found


def _group_size(line: str) -> int:
    """How many devices take part, from {{0,1},{2,3}}, [2,2]<=[4] or mesh['x'=4,'y'=2] {'x'} after
    replica_groups=."""
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return match.group(1).count(",") + 1
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(match.group(1))
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        axes = dict(axis.split("=") for axis in match.group(1).split(","))
        return math.prod(int(axes[name]) for name in match.group(2).split(","))
    if "source_target_pairs" in line:
        return 2
    raise ValueError(f"which devices take part? {line.strip()[:200]}")


def collective_table(found: Iterable[Collective]) -> list[str]:
    """A Markdown table of the collectives by kind and size."""
    lines = [
        "| collective | size | number | MB in all | MB that each device sends |",
        "|---|---|---|---|---|",
    ]
    found = list(found)
    for kind in KINDS:
        for words, small in (("large", False), (f"under {SMALL_BYTES // 1024} kB", True)):
            some = [c for c in found if c.kind == kind and (c.bytes < SMALL_BYTES) == small]
            if some:
                total, sent = sum(c.bytes for c in some) / 1e6, sum(c.sent for c in some) / 1e6
                lines.append(f"| {kind} | {words} | {len(some)} | {total:.3f} | {sent:.3f} |")
    return lines


@dataclass(frozen=True)
class Chip:
    """What the calculation needs to know of one chip."""

    tflops: float  # peak of its matrix units, 10^12 FLOP/s
    share: float  # of the peak that the model reaches
    link_gbytes: float  # bytes/s a device can send, 10^9
    latency_us: float  # of one small collective over all chips


def weak_scaling(
    chip: Chip, gflop: float, found: Iterable[Collective], chips: Iterable[int], rows: int
) -> list[str]:
    """A Markdown table of the time of a step and the efficiency by the number of chips, if nothing
    overlaps."""
    found, compute = list(found), gflop / 1e3 / (chip.tflops * chip.share)
    large = sum(
        c.bytes for c in found if c.bytes >= SMALL_BYTES and c.kind == "all-reduce"
    ) * 2 + sum(c.bytes for c in found if c.bytes >= SMALL_BYTES and c.kind != "all-reduce")
    small = sum(c.bytes < SMALL_BYTES for c in found)
    names = ["chips", "records a step", "compute ms", "links ms", "small collectives ms"]
    names += ["efficiency", "records/s needed"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for n in chips:
        link = large * (n - 1) / n / (chip.link_gbytes * 1e9) if n > 1 else 0.0
        waiting = small * chip.latency_us * 1e-6 if n > 1 else 0.0
        total = compute + link + waiting
        times = " | ".join(f"{1e3 * t:.2f}" for t in (compute, link, waiting))
        lines.append(
            f"| {n} | {n * rows:,} | {times} | {compute / total:.0%} | {n * rows / total:,.0f} |"
        )
    return lines


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("scaling", __doc__)
    parser.add_argument(
        "--config", default="configs/pretrain.py", help="config file, or a variant: FILE:smoke"
    )
    parser.add_argument(
        "--devices",
        type=positive_int,
        help="virtual devices of the compiled step (default 8)",
    )
    parser.add_argument(
        "--topology",
        metavar="v5e:2x4",
        help="compile with the compiler of TPUs, for such a slice (default: that of CPUs)",
    )
    parser.add_argument(
        "--roofline", action="store_true", help="what bounds each block on one chip"
    )
    parser.add_argument(
        "--chips", type=positive_int, default=256, help="calculate up to this many (default 256)"
    )
    parser.add_argument(
        "--records", type=positive_int, default=64, help="records on each chip (default 64)"
    )
    parser.add_argument(
        "--shard_parameters", choices=("none", "data"), default="none", help="mesh.shard_parameters"
    )
    parser.add_argument(
        "--tflops",
        type=positive_float,
        default=275.0,
        help="peak of a chip, 1e12 FLOP/s (default 275)",
    )
    parser.add_argument(
        "--share",
        type=positive_float,
        default=0.3,
        help="share of it that the model reaches (default 0.3)",
    )
    parser.add_argument(
        "--link_gbytes", type=positive_float, default=50.0, help="GB/s a chip can send (default 50)"
    )
    parser.add_argument(
        "--latency_us", type=float, default=20.0, help="of a small collective (default 20)"
    )
    args = parser.parse_args(argv)
    if args.latency_us < 0:
        raise InputError(f"--latency_us={args.latency_us:g}: give 0 or more")
    if args.devices and (args.topology or args.roofline):
        raise InputError("--devices: --topology says how many there are, and --roofline is of one")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    config = read_config_file(args.config)
    config.mesh.shard_parameters = args.shard_parameters
    jax.config.update("jax_platforms", "cpu")
    if not args.topology and not args.roofline:
        jax.config.update("jax_num_cpu_devices", args.devices or 8)
    devices = topology_devices(args.topology) if args.topology else jax.devices()
    (print_roofline if args.roofline else print_scaling)(args, config, devices)
    return 0


def print_roofline(args: argparse.Namespace, config, devices: Sequence[jax.Device]) -> None:
    """Tables of the blocks of a training step and of an embedding on one device."""
    dtype, kind = config.model.dtype, (args.topology or "").partition(":")[0]
    if dtype != "float32" and not kind:
        raise InputError(
            f"model.dtype={dtype}: the compiler of CPUs widens it; give --topology, or a config"
            " with float32"
        )
    config.data.batch_size = args.records
    mesh = make_mesh(config, devices[:1])
    slots = round(args.records * MEAN_BEATS)
    chips = [chip for chip in ACCELERATORS.values() if not kind or chip.name.startswith("TPU")]
    compiler = f"the compiler of {args.topology}" if kind else "the compiler of CPUs"
    print(f"Calculated: {args.records} records of {slots} beats, {dtype}, {compiler}.\n")
    for chip in chips:
        print(
            f"- {chip.name}: {chip.tflops[dtype]:g} TFLOP/s, {chip.gbytes:,g} GB/s: the memory"
            f" bounds below {chip.ridge(dtype):.0f} FLOP per byte"
        )
    programs = abstract_programs(config, mesh, args.records, slots)
    for name, (program, arguments) in programs.items():
        compiled = compile_as_for_tpu(program, arguments, mesh)
        blocks = by_block(Program(compiled.as_text()).costs())
        print(f"\n{name}: {program_bytes(compiled) / 1e9:.2f} GB of memory\n")
        print("\n".join(roofline_table(blocks, chips, dtype)), end="")


def print_scaling(args: argparse.Namespace, config, devices: Sequence[jax.Device]) -> None:
    """Collectives of the compiled step, and what they mean for many chips."""
    # the compiled step
    config.data.batch_size = args.records * len(devices)
    slots = round(args.records * MEAN_BEATS)
    mesh = make_mesh(config, devices)
    step, arguments = abstract_programs(config, mesh, args.records, slots)["train"]
    found = read_collectives(compile_as_for_tpu(step, arguments, mesh).as_text())
    parameters = sum(x.size for x in jax.tree.leaves(arguments[0][0].params))

    # the calculation
    counts = np.full(args.records, slots / args.records)
    gflop = model_flops(config, counts)["train"] / 1e9
    chip = Chip(args.tflops, args.share, args.link_gbytes, args.latency_us)
    print(
        f"{parameters:,} parameters, {args.records} records a device,"
        f" shard_parameters={args.shard_parameters}\n"
    )
    print(f"Collectives of one compiled step on {len(devices)} devices:\n")
    print("\n".join(collective_table(found)))
    reached = f"{chip.share:.0%} of {chip.tflops:g} TFLOP/s reached"
    print(f"\nCalculated: {gflop:,.0f} GFLOP a step and chip, {reached},")
    latency = f"{chip.latency_us:g} us for a small collective"
    print(f"{chip.link_gbytes:g} GB/s a link, {latency}, nothing overlapped:\n")
    sizes = [n for n in (1, 4, 16, 64, 256, 1024, 4096) if n < args.chips] + [args.chips]
    print("\n".join(weak_scaling(chip, gflop, found, sizes, args.records)))


if __name__ == "__main__":
    run_command(main)
