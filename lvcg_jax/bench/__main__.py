"""How fast this machine trains, embeds, reads, prepares and saves: one JSON line per part, all
measured in one run.

    lvcg bench --config=configs/pretrain.py --data=SHARDS --baseline > bench.jsonl

peak        matrix multiplication, the best of some sizes
train       one optimiser step                 embed    the embeddings of one batch
packaged    the embeddings of one batch by each of the weights that the package carries
derive      nine leads from II, V2 and V5, by the network, by the Gaussian model of the beat and, if
            records are prepared as it needs them, by lvcg_field: a record alone and many, and how
            many times as long as embedding them that takes
order       what the order of records costs a process: CPU microseconds a step and a record; and how
            much of its batches is padding, with few records and with many on each device
input       shards -> batches, and packed records (data.cache) -> batches, by one process and by two
prepare     records -> shards (synthetic 100 Hz records)
checkpoint  how long a save keeps the training loop waiting

Train and embed run on one typical batch. 101 batches are drawn from --data, or made up with
PTB-XL's beat counts and random beats: as training draws them or, to embed, at random. The one with
the median share of padding is measured. What the fields of a line mean:

share_of_peak        of the matrix product that takes turns with the part (peak_gflop_per_second),
                     so that a slow spell of the machine hits both; FLOPs are those of valid beats
                     by direct convolution (lvcg_jax/model/flops.py), of which some forms
                     (lvcg_jax/model/ops/conv1d.py) need fewer; of a peer (configs/peers.py), all
                     operations of its program as XLA counts them
seconds              median over the turns of a call that follows a call of the same kind
compile_seconds      of compiling; little if a compilation cache has the program
process_memory_gib   high-water mark of the process from compiling to the end of the first call
program_memory_gib   what the compiled program itself asks for

With --baseline another form of the same network takes turns with ours, and `ratio` is how many
times as many records a second ours does:

--baseline               plain JAX modules (lvcg_jax/bench/plain_model.py), padded to the largest
                         number of beats
--baseline=torch         plain PyTorch (lvcg_jax/bench/torch_model.py), padded like that
--baseline=torch_packed  the same, but encoder and decoder see valid beats only
"""

import importlib.util
import json
import os
import re
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from absl import logging

from data_prep import benchmark
from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.bench.host import measure_input, measure_order, measure_padding
from lvcg_jax.bench.plain_model import pad_batch, unknown_fields
from lvcg_jax.bench.programs import (
    BASELINES,
    TORCH_BASELINES,
    Bench,
    Drawn,
    embed_call,
    embed_program,
    train_program,
)
from lvcg_jax.bench.records import RandomRecords
from lvcg_jax.bench.timing import Measured, Program, take_turns
from lvcg_jax.config.files import read_config_file
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.data.entries import list_entries
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.model.flops import model_flops
from lvcg_jax.reconstruct import gaussian_beat
from lvcg_jax.reconstruct.lead_method import signal_of
from lvcg_jax.reconstruct.methods import FIELD, choose_eps, field_fits, make_methods
from lvcg_jax.reconstruct.views import Windows
from lvcg_jax.runs import weights
from lvcg_jax.runs.checkpoint import Checkpoints

ORDER_RECORDS = 200_000  # of the order part
SHOWN = ("II", "V2", "V5")  # of the derive part


def bench_peak(bench: Bench) -> dict:
    return {"gflop_per_second": max(bench.peak.values()), "by_size": bench.peak}


def bench_train(bench: Bench) -> dict:
    accumulate = bench.config.optim.accumulate
    drawn = bench.drawn("train")
    arrays = {"ours": drawn.typical()}
    if bench.baseline:
        micro = [{name: x[k] for name, x in arrays["ours"].items()} for k in range(accumulate)]
        padded = [pad_batch(batch, bench.max_beats) for batch in micro]
        arrays["baseline"] = jax.tree.map(lambda *x: np.stack(x), *padded)
    programs = {name: train_program(bench, batch, name) for name, batch in arrays.items()}
    return compare(bench, "train", drawn, programs, arrays)


def bench_embed(bench: Bench) -> dict:
    drawn = bench.drawn("embed")
    arrays = {"ours": {name: x[0] for name, x in drawn.typical().items()}}
    if bench.baseline:
        arrays["baseline"] = pad_batch(arrays["ours"], bench.max_beats)
    programs = {name: embed_program(bench, batch, name) for name, batch in arrays.items()}
    line = compare(bench, "embed", drawn, programs, arrays)
    if bench.baseline:
        line["several_batches"] = several_batches(bench, drawn)
    return line


def several_batches(bench: Bench, drawn: Drawn) -> dict:
    """Different batches one after another, each new shape compiled.

    The baseline's batches are padded to their longest record, as a short script would do it.
    """
    # time all batches with both models
    programs, seconds = {name: {} for name in bench.names}, dict.fromkeys(bench.names, 0.0)
    for numbers in progress_bar(
        drawn.numbers[: bench.repeats], desc="several batches", leave=False
    ):
        packed = {name: x[0] for name, x in drawn.maker(numbers).items()}
        for name, known in programs.items():
            batch = packed if name == "ours" else pad_batch(packed, int(packed["num_beats"].max()))
            shape = batch["beats"].shape
            if shape not in known or bench.runs_torch(name):  # where nothing is compiled
                known[shape] = embed_program(bench, batch, name)
            seconds[name] += take_turns({name: known[shape]}, 1)[name][0]

    # speeds, and how often one is the other
    records, line = bench.repeats * bench.batch_size, {"batches": bench.repeats}
    for name, known in programs.items():
        compiling = sum(program.compile_seconds for program in known.values())
        line[name] = {
            "shapes": len(known),
            "records_per_second": records / seconds[name],
            "records_per_second_with_compiling": records / (seconds[name] + compiling),
        }
    for field in ("records_per_second", "records_per_second_with_compiling"):
        line[f"ratio_{field}"] = line["ours"][field] / line["baseline"][field]
    return line


def bench_packaged(bench: Bench) -> dict:
    """The embedding of made-up records by each of the weights that the package carries, in
    turns."""
    programs = {}
    for name in weights.names():
        found = LVCG.load(name)
        make = BatchMaker(
            RandomRecords(found.preprocess),
            1,
            bench.groups,
            range(bench.groups),
            True,
            devices=bench.devices,
        )
        batch = {field: x[0] for field, x in make(np.arange(bench.batch_size)).items()}
        programs[name] = Program(*embed_call(bench, found.model, found.variables, batch))
    seconds = take_turns(programs, bench.repeats, "packaged")
    speed = {name: bench.batch_size / statistics.median(times) for name, times in seconds.items()}
    slowest = min(speed.values())
    return {
        "records_per_second": speed,
        "times_the_slowest": {name: x / slowest for name, x in speed.items()},
    }


def bench_derive(bench: Bench) -> dict:
    """From windows in memory to leads or embeddings, of one record and of a batch of records."""
    shards = ShardSet(bench.data or bench.synthetic_shards, "train")
    model = LVCG(bench.config, jax.device_get(bench.variables), "bench")
    every = list(Windows(list_entries([shards], bench.batch_size)))
    shown = lead_mask(np.isin(LEADS, SHOWN))
    few = [w | {"visible": shown, "signal": signal_of(w)} for w in every]
    line = {"source": shards.metadata["corpus"], "records": len(every)}
    names = ["lvcg", gaussian_beat.NAME, *([FIELD] if field_fits(shards.preprocess) else [])]
    for kind, count in (("one_record", 1), ("bulk", len(every))):
        sizes = (model.max_beats, 1) if count == 1 else ()
        calls = {
            "embed": lambda count=count, sizes=sizes: model.embed_windows(every[:count], *sizes)
        }
        for name in names:
            (method,) = make_methods([name], model, choose_eps(None, model), *sizes)
            method.fit(every)
            calls[name] = lambda method=method, count=count: method.predict(few[:count])
        seconds = {
            name: statistics.median(times)
            for name, times in take_turns(calls, bench.repeats, f"derive {kind}").items()
        }
        line[kind] = {
            name: {
                "seconds": time_of,
                "records_per_second": count / time_of,
                "times_embedding": time_of / seconds["embed"],
            }
            for name, time_of in seconds.items()
        }
    return line


def compare(
    bench: Bench, part: str, drawn: Drawn, programs: dict[str, Measured], arrays: dict[str, dict]
) -> dict:
    """Runs the programs in turns. The line has our fields, the mean padding of all drawn batches,
    and the fields of the baseline."""
    best = int(max(bench.peak, key=bench.peak.get))
    seconds = take_turns({"peak": bench.product(best), **programs}, bench.repeats, part)
    peak = bench.product_gflop(best) / statistics.median(seconds["peak"])
    if bench.profile:
        with jax.profiler.trace(str(Path(bench.profile) / part)):
            jax.block_until_ready(programs["ours"]())
    if "peer" in bench.config:
        flops = programs["ours"].counted_flops()
    else:
        flops = model_flops(bench.config, arrays["ours"]["num_beats"])[part]
    lines = {
        name: programs[name].report(arrays[name], flops, seconds[name], peak) for name in programs
    }
    padding = statistics.mean(float(drawn.padding(numbers)) for numbers in drawn.numbers)
    line = (
        lines.pop("ours") | {"padding_share_mean": padding, "peak_gflop_per_second": peak} | lines
    )
    if lines:
        line["baseline"] = {"name": bench.baseline} | line["baseline"]
        line["ratio"] = line["records_per_second"] / line["baseline"]["records_per_second"]
    return line


def bench_order(bench: Bench) -> dict:
    """Working out which records a process reads, for global batches and numbers of processes
    ("batch/processes"), and how full the slots of its batches are."""
    return {
        "cost": measure_order(np.resize(bench.shards.counts, ORDER_RECORDS), bench.repeats),
        "padding": measure_padding(bench.shards, bench.config.mesh.group_records),
    }


def bench_input(bench: Bench) -> dict:
    """Reading, decoding and packing shuffled batches, as training does it; per second, and per
    second of one core."""
    shards = ShardSet(bench.data or bench.synthetic_shards, "train")
    sizes = (bench.batch_size, bench.signal, bench.cache, bench.config.data.threads)
    return {"source": shards.metadata["corpus"]} | measure_input(shards, *sizes, bench.repeats)


def bench_prepare(bench: Bench) -> dict:
    """From records of the synthetic corpus to one shard, beside a straightforward loop; see
    data_prep/benchmark.py."""
    corpus = bench.synthetic_corpus
    speed = benchmark.measure(corpus, corpus.refs[: bench.records], bench.folder, bench.repeats)
    line = {"source": corpus.name, "records_per_cpu_second": speed["ours"]}
    if bench.baseline:
        line |= {
            "baseline": {"records_per_cpu_second": speed["naive"]},
            "ratio": speed["ours"] / speed["naive"],
        }
    return line


def bench_checkpoint(bench: Bench) -> dict:
    """How long a save keeps the loop waiting (`stall_seconds`; the first one sets things up), and
    how long it takes until all is on disk."""
    checkpoints = Checkpoints(bench.folder / "run", bench.config, keep=1)
    stalls, writes = [], []
    for step in progress_bar(range(bench.repeats + 1), desc="checkpoint", leave=False):
        before = time.perf_counter()
        checkpoints.save(step, bench.state)
        stalls.append(time.perf_counter() - before)
        checkpoints.wait()
        writes.append(time.perf_counter() - before)
    checkpoints.close()
    return {
        "state_mib": sum(x.nbytes for x in jax.tree.leaves(bench.state)) / 2**20,
        "first_stall_seconds": stalls[0],
        "stall_seconds": statistics.median(stalls[1:]),
        "write_seconds": statistics.median(writes[1:]),
    }


PARTS = {
    "peak": bench_peak,
    "train": bench_train,
    "embed": bench_embed,
    "packaged": bench_packaged,
    "derive": bench_derive,
    "order": bench_order,
    "input": bench_input,
    "prepare": bench_prepare,
    "checkpoint": bench_checkpoint,
}


def machine(bench: Bench) -> dict:
    """Where this was measured."""
    device = jax.devices()[0]
    torch = {"torch": version("torch")} if bench.baseline in TORCH_BASELINES else {}
    return torch | {
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
        "dtype": bench.config.model.dtype,
        "batch_size": bench.batch_size,
        "parameters": sum(x.size for x in jax.tree.leaves(bench.state.params)),
    }


def require_torch(flag: str, dtype: str) -> None:
    """An InputError where the PyTorch baseline is missing, or could not be compared."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{flag} needs `pip install lvcg-jax[torch]`")
    if jax.default_backend() != "cpu" or dtype != "float32":
        raise InputError(
            f"{flag} computes in float32 on a CPU: set JAX_PLATFORMS=cpu, and choose a config with"
            " model.dtype=float32"
        )


def rounded(value):
    """Floats with five significant digits."""
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main(argv: list[str] | None = None) -> int:
    parser = Parser("bench", __doc__)
    parser.add_argument(
        "--config", default="configs/pretrain.py", help="config file, or a variant: FILE:smoke"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="some of them, in this order (default: all)"
    )
    parser.add_argument(
        "--data",
        help="shards of data_prep.build, for train, embed, derive and input (default: made up)",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder for packed records, as data.cache, for input (default: a temporary one)",
    )
    parser.add_argument(
        "--baseline",
        nargs="?",
        const="jax",
        choices=BASELINES,
        help="measure the plain JAX modules too (or plain PyTorch), and the ratio",
    )
    parser.add_argument(
        "--batch_size", type=positive_int, help="records per batch (default: the config's, 64)"
    )
    parser.add_argument(
        "--repeats", type=positive_int, default=5, help="timed calls of each kind (default 5)"
    )
    parser.add_argument(
        "--records",
        type=positive_int,
        default=400,
        help="synthetic records of input and prepare (default 400)",
    )
    parser.add_argument("--sizes", default="1024,2048,3072", help="matrix sizes of the peak")
    parser.add_argument(
        "--profile", metavar="DIR", help="write a trace of one step and one embedding there"
    )
    args = parser.parse_args(argv)

    # mistakes are told before anything is computed
    parts = args.parts.split(",")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--parts: unknown part '{part}', choose from {', '.join(PARTS)}")
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", args.sizes):
        raise InputError(
            f"--sizes={args.sizes}: write whole numbers, for example --sizes=1024,2048"
        )
    if args.records < 5:
        raise InputError(f"--records={args.records}: give 5 or more")
    logging.set_verbosity(logging.WARNING)  # below that Orbax reports every stage of a save
    config = read_config_file(args.config)
    if args.baseline and config.geometry.learnable:
        raise InputError(
            "--baseline has no learnable geometry: choose a config with geometry.learnable=False"
        )
    if args.baseline and "peer" in config:
        raise InputError("--baseline is the paper's model, not one of another method: leave it out")
    if args.baseline and unknown_fields(config):
        fields = ", ".join(unknown_fields(config))
        raise InputError(f"--baseline is the paper's model, it has no {fields}: leave it out")
    if args.baseline in TORCH_BASELINES:
        require_torch(f"--baseline={args.baseline}", config.model.dtype)
    if args.batch_size is not None:
        config.data.batch_size = args.batch_size

    with tempfile.TemporaryDirectory() as folder:
        names = ("data", "repeats", "records", "baseline", "profile", "cache")
        sizes = [int(size) for size in args.sizes.split(",")]
        options = {name: getattr(args, name) for name in names} | {"sizes": sizes}
        bench = Bench(config, Path(folder), **options)
        for part in ("machine", *parts):
            line = machine(bench) if part == "machine" else PARTS[part](bench)
            print(json.dumps({"part": part} | rounded(line)), flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
