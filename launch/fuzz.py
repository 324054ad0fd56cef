"""Mutated files for every reader, as many as there is time for: the table of docs/trust.md.

    python launch/fuzz.py --inputs=10000 [--reader=EDF] [--seed=0]

Readers and mutations are those of tests/fuzz. Each reader runs in a process of its own, so that a
crash or a hang is counted and the rest goes on. An input is known by its number: --first=N
--inputs=1 makes it again.
"""

import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from data_prep.base.command import Parser, natural_int, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.base.memory import peak_memory  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402

HANG_SECONDS, WAIT_SECONDS = 5.0, 60.0  # of computing on one input, and of waiting
COLUMNS = ("reader", "inputs", "read", "refused", "uncaught", "crashes", "hangs", "memory (MiB)")


def main(argv: list[str] | None = None) -> int:
    parser = Parser("fuzz", __doc__, prog="python launch/fuzz.py")
    add = parser.add_argument
    add("--inputs", type=positive_int, default=1000, help="of each reader (default 1000)")
    add("--first", type=natural_int, default=0, help="number of the first input (default 0)")
    add("--seed", type=natural_int, default=0, help="of all mutations (default 0)")
    add("--reader", action="append", help="only this one; repeatable")
    args = parser.parse_args(argv)
    from fuzz.readers import READERS

    for name in args.reader or ():
        if name not in READERS:
            raise InputError(f"--reader={name}: choose from {', '.join(READERS)}")
    rows = [watch(name, args.first, args.inputs, args.seed) for name in args.reader or READERS]
    print("\n".join(markdown_table(COLUMNS, rows)))
    return 1 if any(sum(row[4:7]) for row in rows) else 0


def watch(name: str, first: int, inputs: int, seed: int) -> list:
    """Runs the inputs of a reader in a process of its own, and starts another one after each crash
    or hang; the row of the table."""
    context = multiprocessing.get_context("spawn")
    # the input under way; read, refused, uncaught; memory in MiB
    number, counts = context.RawValue("q", first), context.RawArray("q", 4)
    crashes = hangs = 0
    while number.value < first + inputs:
        begun = context.RawValue("b", 0)
        work = (name, first + inputs, seed, number, counts, begun)
        process = context.Process(target=run, args=work, daemon=True)
        process.start()
        before, since = number.value, clocks(process.pid)
        while process.is_alive():
            process.join(0.2)
            spent = [now - then for now, then in zip(clocks(process.pid), since, strict=True)]
            if number.value != before or not begun.value or number.value >= first + inputs:
                before, since = number.value, clocks(process.pid)
            elif spent[0] > HANG_SECONDS or spent[1] > WAIT_SECONDS:
                process.kill()
                process.join()
                hangs += 1
                print(f"{name}: input {number.value} hangs", file=sys.stderr)
                break
        else:
            if number.value >= first + inputs:
                break
            crashes += 1
            print(f"{name}: input {number.value}: exit code {process.exitcode}", file=sys.stderr)
        number.value += 1
    read, refused, uncaught, memory = counts
    print(f"{name}: {inputs} inputs", file=sys.stderr, flush=True)
    return [name, inputs, read, refused, uncaught, crashes, hangs, memory]


def clocks(process: int) -> tuple[float, float]:
    """Seconds of computing of a process, and of the day: other work on the machine is no hang."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK"), time.monotonic()
    except OSError:  # it has ended, or this is no Linux
        return 0.0, time.monotonic()


def run(name: str, end: int, seed: int, number, counts, begun) -> None:
    """In its own process: input after input, from `number` on."""
    from fuzz.mutation import mutate
    from fuzz.readers import READERS

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder, reader = Path(scratch), READERS[name]
        reader.prepare(folder)
        reader.read(folder)
        originals = {file: (folder / file).read_bytes() for file in reader.files}
        usual, begun.value = peak_memory(), 1
        while number.value < end:
            chance = random.Random(f"{name} {seed} {number.value}")
            file = chance.choice(reader.files)
            (folder / file).write_bytes(mutate(originals[file], chance))
            try:
                reader.read(folder)
                counts[0] += 1
            except InputError:
                counts[1] += 1
            except Exception as error:
                counts[2] += 1
                words = f"{name}: input {number.value}: {type(error).__name__}: {error}"
                print(words[:300], file=sys.stderr, flush=True)
            (folder / file).write_bytes(originals[file])
            counts[3] = max(counts[3], round(1024 * (peak_memory() - usual)))
            number.value += 1


if __name__ == "__main__":
    run_command(main)
