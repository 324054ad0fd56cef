"""Whether this processor gains by factors of bfloat16 or int8: matrix products and convolutions of
the encoder's shapes, and whole embeddings, in turns.

    python launch/narrow_products.py --checkpoint=paper,small

Prints CPU time relative to float32, the median over turns: below 1 is faster. On processors without
instructions for such factors (avx512_bf16, avx512_vnni) all rows should be above.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, positive_int, run_command  # noqa: E402
from lvcg_jax import LVCG  # noqa: E402
from lvcg_jax.bench.records import RandomRecords  # noqa: E402
from lvcg_jax.data.packing import pack  # noqa: E402
from lvcg_jax.embed.devices import embed_packed  # noqa: E402
from lvcg_jax.embed.lvcg import ROWS, SLOTS  # noqa: E402
from lvcg_jax.model.ops.conv1d import conv1d  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402

BEATS, WIDTH = 851, 7
PRODUCTS = ((851, 1024, 1024), (3404, 256, 256), (27232, 96, 96))
CONVOLUTIONS = ((32, 96), (16, 192), (8, 256))  # samples, channels
FLOAT32 = "float32"


def main(argv: list[str] | None = None) -> int:
    parser = Parser("narrow_products", __doc__, prog="python launch/narrow_products.py")
    add = parser.add_argument
    add("--checkpoint", default="paper,small", help="weights to embed with (default %(default)s)")
    add("--repeats", type=positive_int, default=7, help="turns (default 7)")
    args = parser.parse_args(argv)
    rows = []
    for shape in PRODUCTS:
        rows += compare("product {} x {} x {}".format(*shape), products(*shape), args.repeats)
    for samples, channels in CONVOLUTIONS:
        name = f"convolution, {samples} samples, {channels} channels"
        rows += compare(name, convolutions(samples, channels), args.repeats)
    for name in args.checkpoint.split(","):
        rows += compare(f"embedding by {name}", embeddings(name), args.repeats)
    print("\n".join(markdown_table(["", "factors -> sums", "CPU time"], rows)))
    return 0


def compare(name: str, calls: dict[str, Callable], repeats: int) -> list[list[str]]:
    """A row for each call: its CPU time, relative to the one in float32."""
    spent: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(repeats):
        for kind, call in calls.items():
            jax.block_until_ready(call())  # caches and freed memory are its own
            before = time.process_time()
            jax.block_until_ready(call())
            spent[kind].append(time.process_time() - before)
    base = statistics.median(spent[FLOAT32])
    return [[name, kind, f"{statistics.median(x) / base:.2f}"] for kind, x in spent.items()]


def products(m: int, k: int, n: int) -> dict[str, Callable]:
    """A matrix product of each kind."""
    rng = np.random.default_rng(0)
    factors = [rng.integers(-127, 128, size) for size in ((m, k), (k, n))]
    kinds = {
        FLOAT32: (jnp.float32, jnp.float32),
        "bfloat16": (jnp.bfloat16, jnp.bfloat16),
        "bfloat16 -> float32": (jnp.bfloat16, jnp.float32),
        "int8 -> int32": (jnp.int8, jnp.int32),
    }
    return {
        kind: partial(
            jax.jit(partial(jnp.matmul, preferred_element_type=sums)),
            *(jnp.asarray(x, dtype) for x in factors),
        )
        for kind, (dtype, sums) in kinds.items()
    }


def shifted_products(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution of stride 1 as one product for each tap, with factors of bfloat16."""
    length, width = x.shape[1], len(kernel)
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    padded = jnp.pad(x, ((0, 0), (width // 2, width // 2), (0, 0)))
    return sum(
        jnp.einsum(
            "mpi,io->mpo", padded[:, k : k + length], tap, preferred_element_type=jnp.float32
        )
        for k, tap in enumerate(kernel)
    )


def convolutions(samples: int, channels: int) -> dict[str, Callable]:
    """Our form in float32, the library's in bfloat16, and one product for each tap."""
    rng = np.random.default_rng(0)
    sizes = (BEATS, samples, channels), (WIDTH, channels, channels)
    wide = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes]
    narrow = [x.astype(jnp.bfloat16) for x in wide]
    return {
        FLOAT32: partial(jax.jit(conv1d), *wide),
        "bfloat16": partial(jax.jit(conv1d), *narrow),
        "bfloat16 -> float32, a product for each tap": partial(jax.jit(shifted_products), *wide),
    }


def embeddings(checkpoint: str) -> dict[str, Callable]:
    """One full batch, embedded with the convolutions in each type."""
    found = LVCG.load(checkpoint)
    records = RandomRecords(found.preprocess).read(range(ROWS + 1))
    windows = (w | {"visible": w["lead_mask"]} for w in records)
    _, batch = next(pack(windows, SLOTS, ROWS, found.model.signal_samples))
    visible = batch.pop("visible")
    return {
        dtype: partial(
            embed_packed,
            found.model.clone(layers=dataclasses.replace(found.model.layers, dtype=dtype)),
            found.max_beats,
            found.variables,
            batch,
            visible,
        )
        for dtype in (FLOAT32, "bfloat16")
    }


if __name__ == "__main__":
    run_command(main)
