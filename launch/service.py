"""A model in a service that runs for long: does its memory grow, does it compile again and again?

    python launch/service.py [--checkpoint=small] [--calls=2000] [--shapes=200] [--threads=2]

Embeds one synthetic record after another. The records have SHAPES different lengths, rates and sets
of leads, and every tenth call is one that must be refused. Prints the memory and the number of
compilations on the way, and compares the last embedding of each shape with the first. Exit code 1
if they differ, if anything was compiled in the second half, or if the memory grew by more than
5% in it.
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also without an installation

import jax.monitoring
import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.memory import used_memory
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.text.tables import markdown_table

COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's name of the event
RATES = (100, 125, 200, 250, 257, 300, 360, 500)
LONGEST = 60.0  # seconds
LINES = 20  # of the table
GROWTH = 1.05  # of the memory in the second half


def main(argv: list[str] | None = None) -> int:
    parser = Parser("service", __doc__, prog="python launch/service.py")
    add = parser.add_argument
    add("--checkpoint", default="small", help="weights (default small)")
    add("--calls", type=positive_int, default=2000, help="of embed (default 2000)")
    add("--shapes", type=positive_int, default=200, help="different records (default 200)")
    add("--threads", type=positive_int, default=1, help="that call it at once (default 1)")
    args = parser.parse_args(argv)
    compilations: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compilations.append(seconds) if name == COMPILED else None
    )
    model = LVCG.load(args.checkpoint)
    records = [make_shape(number) for number in range(args.shapes)]
    first: dict[int, np.ndarray] = {}
    refused = differ = 0

    def call(number: int) -> tuple[int, np.ndarray | None]:
        signal, rate, leads = records[number % args.shapes]
        if number % 10 == 9:
            signal = signal[: int(rate / 2)]  # too short
        try:
            return number % args.shapes, model.embed(signal, rate, leads).embedding
        except InputError:
            return number % args.shapes, None

    rows, half = [], (0, 0.0)
    step = max(1, args.calls // LINES)
    with ThreadPoolExecutor(args.threads) as pool:
        for begin in range(0, args.calls, step):
            for shape, found in pool.map(call, range(begin, min(begin + step, args.calls))):
                refused += found is None
                if found is not None:
                    differ += not np.array_equal(first.setdefault(shape, found), found)
            rows.append([min(begin + step, args.calls), f"{1024 * used_memory():.0f}"])
            rows[-1].append(len(compilations))
            if begin < args.calls / 2:
                half = len(compilations), used_memory()
    print("\n".join(markdown_table(["calls", "memory (MiB)", "compilations"], rows)))
    print(
        f"{args.calls} calls from {args.threads} threads, {args.shapes} shapes, {refused} refused;"
        f" {differ} embeddings differ from the first of their shape"
    )
    steady = len(compilations) == half[0] and used_memory() <= GROWTH * half[1]
    return 0 if steady and not differ else 1


def make_shape(number: int) -> tuple[np.ndarray, int, list[str]]:
    """A record with a length, rate and set of leads of its own."""
    chance = random.Random(number)
    rate, seconds = chance.choice(RATES), chance.uniform(2.0, LONGEST)
    chosen = sorted(chance.sample(range(len(LEADS)), chance.randint(1, len(LEADS))))
    signal, _ = make_record(seed=1, patient=number, seconds=seconds, rate=rate)
    return signal[:, chosen], rate, [LEADS[i] for i in chosen]


if __name__ == "__main__":
    run_command(main)
