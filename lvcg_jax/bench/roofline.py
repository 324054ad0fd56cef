"""What bounds each block of a compiled program on a chip: its matrix units or its memory.

A block takes at least the time of its operations at the chip's peak, and at least the time of its
bytes at the bandwidth of its memory. Which of the two is longer follows from its intensity,
operations per byte, against the ratio of the chip. Nothing here is measured.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lvcg_jax.bench.hlo import Cost
from lvcg_jax.text.tables import markdown_table


@dataclass(frozen=True)
class Accelerator:
    """Published peaks of one chip."""

    name: str
    tflops: dict[str, float]  # of products of arrays of this type, as JAX computes them by default
    gbytes: float  # GB/s of its memory
    memory: float  # GB

    def ridge(self, dtype: str) -> float:
        """Operations per byte from which on the matrix units are the bound."""
        return 1e3 * self.tflops[dtype] / self.gbytes


# TPUs: Google Cloud's pages "TPU v5e" and "TPU v6e"; they round the factors of float32 products to
# bfloat16. H100: NVIDIA's data sheet of the SXM version, without sparsity; float32 products are
# rounded to TF32.
ACCELERATORS = {
    "v5e": Accelerator("TPU v5e", {"bfloat16": 197.0, "float32": 197.0}, 819.0, 16.0),
    "v6e": Accelerator("TPU v6e", {"bfloat16": 918.0, "float32": 918.0}, 1638.0, 32.0),
    "h100": Accelerator("H100", {"bfloat16": 989.0, "float32": 495.0}, 3350.0, 80.0),
}

REST = "losses, update, rest"
# the first that is found in the origin of an instruction
BLOCKS = (
    (r"opt_state", REST),
    (r"encoder\b.*stem_", "stem"),
    (r"encoder\b.*stage(\d)", "stage {}"),
    (r"encoder\b.*\btoken\b", "token"),
    (r"decoder\b", "decoder"),
    (r"\btemporal\b", "GRU"),
    (r"Network\.(?:lift|project|leads)\b", "geometry"),
    (r"\bpatterns\b", "patterns"),
    (r"\bshape\b", "shape of beats"),
    (r"\b(?:rhythm|head)\b", "rhythm"),
)


def block_of(origin: str) -> str:
    """The part of the network that an instruction belongs to."""
    for pattern, name in BLOCKS:
        if found := re.search(pattern, origin):
            return name.format(*(int(n) + 1 for n in found.groups()))
    return REST


def by_block(costs: Iterable[Cost]) -> dict[str, Cost]:
    """Sums over the instructions of each block, in alphabetical order."""
    sums: dict[str, list[float]] = {}
    for cost in costs:
        total = sums.setdefault(block_of(cost.origin), [0.0, 0.0, 0.0])
        for k, value in enumerate((cost.flops, cost.bytes, cost.cycles)):
            total[k] += value
    return {name: Cost(name, *sums[name]) for name in sorted(sums)}


def roofline_table(blocks: dict[str, Cost], chips: Iterable[Accelerator], dtype: str) -> list[str]:
    """A Markdown table: the least milliseconds of each block on each chip, and what bounds it."""
    chips, total = list(chips), Cost("", 0.0, 0.0, 0.0)
    estimated = any(cost.cycles for cost in blocks.values())
    columns = ["block", "GFLOP", "MB of memory", "FLOP per byte"]
    columns += [f"{chip.name}: ms" for chip in chips]
    columns += ["million cycles, estimated"] if estimated else []
    rows, times = [], [0.0] * len(chips)
    for cost in blocks.values():
        row = [cost.origin, f"{cost.flops / 1e9:.2f}", f"{cost.bytes / 1e6:.1f}"]
        row.append(f"{cost.flops / cost.bytes:,.0f}" if cost.bytes else "-")
        for k, chip in enumerate(chips):
            compute = cost.flops / chip.tflops[dtype] / 1e9
            memory = cost.bytes / chip.gbytes / 1e6
            times[k] += max(compute, memory)
            bound = "compute" if compute > memory else "memory"
            row.append(f"{max(compute, memory):.3f} {bound}")
        rows.append(row + ([f"{cost.cycles / 1e6:.2f}"] if estimated else []))
        total = Cost(
            "", total.flops + cost.flops, total.bytes + cost.bytes, total.cycles + cost.cycles
        )
    row = ["all", f"{total.flops / 1e9:.2f}", f"{total.bytes / 1e6:.1f}"]
    row.append(f"{total.flops / total.bytes:,.0f}")
    row += [f"{time:.3f}" for time in times]
    rows.append(row + ([f"{total.cycles / 1e6:.2f}"] if estimated else []))
    return markdown_table(columns, rows)
