"""Timing of compiled programs: calls that take turns, seconds of compiling, memory."""

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax

from data_prep.base.memory import peak_memory
from data_prep.base.progress import progress_bar
from lvcg_jax.train.compiled import compile_program


def take_turns(
    calls: dict[str, Callable[[], object]], repeats: int, name: str = ""
) -> dict[str, list[float]]:
    """Wall seconds of each call. They take turns, so that a slow spell hits all.

    In its turn each is called twice and timed the second time, when caches and freed memory are its
    own, as when one step follows another in training.
    """
    seconds = {key: [] for key in calls}
    for _ in progress_bar(range(repeats), desc=name, leave=False, disable=not name):
        for key, call in calls.items():
            jax.block_until_ready(call())
            before = time.perf_counter()
            jax.block_until_ready(call())
            seconds[key].append(time.perf_counter() - before)
    return seconds


def reset_peak_memory() -> None:
    """Starts a new high-water mark of this process's memory, where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def count_flops(function, *arguments) -> int:
    """Operations of a jitted function as it was written, counted by XLA; shapes will do as
    arguments."""
    return int(function.lower(*arguments).cost_analysis()["flops"])


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """What a compiled program asks for: arguments, results and what it needs between."""
    memory = compiled.memory_analysis()
    parts = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return sum(parts) - memory.alias_size_in_bytes


class Measured:
    """A call to be timed, and what its line says of it."""

    compile_seconds = 0.0
    process_memory: float  # GiB, high-water mark up to the end of the first call

    def report(
        self, batch: dict, flops: int, seconds: list[float], peak: float
    ) -> dict[str, float]:
        """The fields of a line; batch arrays are [g,...] or [a,g,...]."""
        beats, slots = int(batch["num_beats"].sum()), batch["length"].size
        median = statistics.median(seconds)
        return {
            "records_per_second": batch["num_beats"].size / median,
            "seconds": median,
            "seconds_min": min(seconds),
            "beats": beats,
            "slots": slots,
            "padding_share": 1.0 - beats / slots,
            "gflop": flops / 1e9,
            "share_of_peak": flops / 1e9 / median / peak,
            "compile_seconds": self.compile_seconds,
            "process_memory_gib": self.process_memory,
        }


class Program(Measured):
    """A jitted function compiled for its arguments, with the seconds that compiling took."""

    def __init__(self, function, *arguments):
        reset_peak_memory()
        before = time.perf_counter()
        self.compiled = compile_program(function, *arguments)
        self.compile_seconds = time.perf_counter() - before
        self.function, self.arguments = function, arguments
        jax.block_until_ready(self())
        self.process_memory = peak_memory()

    def __call__(self):
        return self.compiled(*self.arguments)

    def counted_flops(self) -> int:
        """Operations of the program as it was written."""
        return count_flops(self.function, *self.arguments)

    def program_memory(self) -> float:
        """GiB that the compiled program asks for: arguments, results and what it needs between."""
        return program_bytes(self.compiled) / 2**30

    def report(
        self, batch: dict, flops: int, seconds: list[float], peak: float
    ) -> dict[str, float]:
        line = super().report(batch, flops, seconds, peak)
        return line | {"program_memory_gib": self.program_memory()}


class TrainProgram(Program):
    """A training step that continues from its own state."""

    def __call__(self):
        carried, batch = self.arguments
        carried, numbers = self.compiled(carried, batch)
        self.arguments = carried, batch
        return carried, numbers
