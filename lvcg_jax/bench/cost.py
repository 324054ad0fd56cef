"""What training and embedding a record costs by several methods, beside one of them.

Operations are those that XLA counts in the program as it is written, for all methods alike. Seconds
are only ever compared: the programs of two methods take turns, and what is kept is how many times
as many records a second the one does. Memory is what a compiled program itself asks for.
"""

import statistics
import tempfile
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from lvcg_jax.bench.programs import Bench, embed_call, embed_program, train_call, train_program
from lvcg_jax.bench.timing import Program, count_flops, take_turns


class Cost:
    """A config on made-up records: what a step of it and an embedding cost."""

    def __init__(self, config: ConfigDict):
        self.records = config.data.batch_size
        with tempfile.TemporaryDirectory() as folder:  # made-up records need none
            self._bench = Bench(config.copy_and_resolve_references(), Path(folder))
        embedded = self._bench.drawn("embed").typical()
        self._batches = self._bench.drawn("train").typical(), {n: x[0] for n, x in embedded.items()}

    def count(self) -> dict:
        """`parameters`, and the `gflop` of a record in training and in embedding. Nothing is
        compiled."""
        bench, state, (train, embed) = self._bench, self._bench.abstract, self._batches
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        calls = {
            "train": train_call(bench, train, state),
            "embed": embed_call(bench, bench.models["ours"], variables, embed),
        }
        sizes = [np.prod(x.shape) for x in jax.tree.leaves(state.params)]
        found = {"parameters": int(sum(sizes)), "batch_size": self.records}
        return found | {
            part: {"gflop": count_flops(*call) / 1e9 / self.records} for part, call in calls.items()
        }

    def programs(self) -> dict[str, Program]:
        """Both, compiled."""
        bench, (train, embed) = self._bench, self._batches
        return {
            "train": train_program(bench, train),
            "embed": embed_program(bench, embed),
        }


def compare_speed(
    cost: Cost, other: Cost, beside: dict[str, Program], repeats: int
) -> dict[str, dict[str, float]]:
    """Of training and embedding: records a second relative to the programs of `other`, and the
    memory of the program."""
    found = {}
    for part, program in cost.programs().items():
        seconds = take_turns({"it": program, "other": beside[part]}, repeats)
        it, than = (statistics.median(seconds[name]) for name in ("it", "other"))
        found[part] = {
            "times_the_speed": than / it * cost.records / other.records,
            "program_memory_gib": program.program_memory(),
        }
    return found
