"""Disturbs training, building, embedding and predicting at random moments, again and again, and
starts the same command anew each time: what comes out must be, byte for byte, what comes out of
commands that nobody touched. Prints the page docs/soak.md.

    python launch/soak.py --out=runs/soak [--kills=50] [--only=build] [--log=docs/soak.md]

A process gets kill -9, SIGTERM, Ctrl-C (SIGINT), or is stopped for a while (SIGSTOP) and goes on;
of a run of two processes, one gets it. Moments are shares of the time that the untouched command
took. After some disturbances a command is left alone until it ends, and its files are compared;
then the next round begins in a new folder. Exit code 1 if anything differs.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, natural_int, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.base.files import write_whole  # noqa: E402

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
PER_ROUND = 4  # disturbances before a command is left alone
ENDING = 120.0  # seconds to end after a signal; then it counts as hanging
OWN = ("records_per_second", "memory_gib")  # what differs between two runs of the same command


@dataclass(frozen=True)
class Job:
    """A command, and what it makes."""

    name: str
    words: Callable[[Path], list[str]]  # the command that writes to a place
    made: Callable[[Path], dict[str, str]]  # name of a result -> hash of its bytes
    needs: tuple[str, ...] = ()  # commands that must have been run before
    pair: bool = False  # two processes, of which one is disturbed


def main(argv: list[str] | None = None) -> int:
    parser = Parser("soak", __doc__, prog="python launch/soak.py")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="new folder for everything")
    add("--kills", type=positive_int, default=50, help="disturbances in all (default 50)")
    add("--steps", type=positive_int, default=120, help="of a training (default 120)")
    add("--patients", type=positive_int, default=60, help="of the synthetic corpus (default 60)")
    add("--pause", type=natural_int, default=60, help="seconds of a SIGSTOP at most (default 60)")
    add("--seed", type=natural_int, default=0, help="of all moments and signals (default 0)")
    add("--only", action="append", metavar="JOB", help="train, pair, build, embed or predict")
    add("--log", type=Path, metavar="PAGE", help="also write what is printed into this page")
    args = parser.parse_args(argv)
    if args.out.exists():
        raise InputError(f"{args.out} exists already: give a new folder")
    args.out.mkdir(parents=True)
    jobs = make_jobs(args.out.resolve(), args.steps)
    for name in args.only or ():
        if name not in jobs:
            raise InputError(f"--only={name}: choose from {', '.join(jobs)}")
    chosen = args.only or list(jobs)
    needed = {name for one in chosen for name in (one, *jobs[one].needs)}
    chance, lines = random.Random(args.seed), []
    # a shell that starts this in the background has all that it starts ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    # everything once, untouched, in the order in which one needs the other
    prepare(args.out.resolve(), args.patients)
    usual, expected = {}, {}
    for name, job in jobs.items():
        if name not in needed:
            continue
        began = time.monotonic()
        place = args.out.resolve() / "whole" / name
        finish(job, place, args.out / "whole.log")
        usual[name], expected[name] = time.monotonic() - began, job.made(place)
        if name == "embed":
            save_head(args.out.resolve())
        say(f"untouched: {name}, {len(expected[name])} results")

    # the disturbances, job after job
    count, rounds, same, ends = 0, 0, 0, Counter()
    log = args.out / "disturbed.log"
    while count < args.kills:
        job = jobs[chosen[rounds % len(chosen)]]
        place = args.out.resolve() / f"round-{rounds}" / job.name
        for what in disturb(job, place, log, usual[job.name], chance, args.pause):
            count += 1
            ends[what.split(" ")[0]] += 1
            say(f"{count:3d} {job.name}: {what}")
            if count == args.kills:
                break
        finish(job, place, log)
        found = job.made(place)
        differ = sorted(
            n
            for n in found.keys() | expected[job.name].keys()
            if found.get(n) != expected[job.name].get(n)
        )
        same += not differ
        rounds += 1
        say(f"    {job.name}: {f'DIFFERENT: {differ[:5]}' if differ else 'identical'}")
    kinds = ", ".join(f"{name} {n}" for name, n in sorted(ends.items()))
    say(f"{count} disturbances ({kinds}); {same} of {rounds} results identical")
    if args.log:
        write_log(args.log, argv, lines)
    return 0 if same == rounds else 1


# ---- The commands --------------------------------------------------------------------------------


def make_jobs(out: Path, steps: int) -> dict[str, Job]:
    """The commands by name; the later ones read what the earlier ones made untouched."""
    whole = out / "whole"
    settings = [f"--config={ROOT / 'configs' / 'pretrain.py'}:smoke"]
    settings += [f"--config.train.steps={steps}", "--config.train.checkpoint_every=5"]
    settings += [f"--config.data.dir={whole / 'build'}"]
    shards = ["--shard_records=16", "--workers=2"]
    lvcg = [sys.executable, "-m", "lvcg_jax"]

    def build(place: Path) -> list[str]:
        return [
            *lvcg,
            "build",
            "--corpus=synthetic",
            f"--raw={out / 'raw'}",
            f"--out={place}",
            *shards,
        ]

    def embed(place: Path) -> list[str]:
        run = [f"--checkpoint={whole / 'train'}", f"--wfdb={out / 'raw'}"]
        return [*lvcg, "embed", *run, f"--out={place / 'embeddings.npz'}"]

    def predict(place: Path) -> list[str]:
        head = [f"--head={out / 'head.safetensors'}", f"--checkpoint={whole / 'train'}"]
        source = [f"--folder={out / 'raw'}", f"--out={place / 'answers.csv'}"]
        return [*lvcg, "predict", *head, *source]

    def train(place: Path) -> list[str]:
        return [*lvcg, "train", *settings, f"--workdir={place}"]

    def pair(place: Path) -> list[str]:
        return ["bash", str(ROOT / "launch/local_multihost.sh"), *settings, f"--workdir={place}"]

    jobs = [
        Job("build", build, files_in),
        Job("train", train, of_run, ("build",)),
        Job("pair", pair, of_run, ("build",), pair=True),
        Job("embed", embed, files_in, ("build", "train")),
        Job("predict", predict, files_in, ("build", "train", "embed")),
    ]
    return {job.name: job for job in jobs}


def prepare(out: Path, patients: int) -> None:
    """The records that everything is made of."""
    from data_prep.synthetic_heart.records import write_corpus

    write_corpus(out / "raw", patients=patients, seed=0)


def save_head(out: Path) -> None:
    """A head for predict, from the untouched embeddings."""
    flags = [f"--embeddings={out / 'whole' / 'embed' / 'embeddings.npz'}", "--task=rhythm"]
    flags += ["--fractions=1", "--seeds=1", "--resamples=20", f"--save={out / 'head.safetensors'}"]
    words = [sys.executable, "-m", "lvcg_jax", "probe", *flags, f"--out={out / 'probe.json'}"]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def files_in(place: Path) -> dict[str, str]:
    """Hashes of all files of a folder."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def of_run(place: Path) -> dict[str, str]:
    """Hashes of the config, of every logged number and of the weights of a run; the files of
    checkpoints hold times and random names. Of their list the newest counts: a run that was asked
    to end has saved one more, in the place of an older one."""
    import jax
    import numpy as np

    from lvcg_jax import LVCG
    from lvcg_jax.runs.metrics_log import read_metrics

    rows = [{k: v for k, v in row.items() if k not in OWN} for row in read_metrics(place)]
    arrays = map(np.asarray, jax.tree.leaves(LVCG.load(place, "latest").variables))
    newest = max(int(path.name) for path in (place / "checkpoints").iterdir())
    content = {
        "metrics.jsonl": json.dumps(rows, sort_keys=True).encode(),
        "weights": b"".join(x.tobytes() for x in arrays),
        "config.json": (place / "config.json").read_bytes(),
        "newest checkpoint": str(newest).encode(),
    }
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


# ---- Disturbances --------------------------------------------------------------------------------


def begin(job: Job, place: Path, log: Path) -> subprocess.Popen:
    """The command, running in a group of its own."""
    place.parent.mkdir(parents=True, exist_ok=True)
    more = {"PROCESSES": "2", "LVCG_PYTHON": sys.executable} if job.pair else {}
    with log.open("a") as file:
        return subprocess.Popen(
            job.words(place),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **more},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def finish(job: Job, place: Path, log: Path) -> None:
    """Runs the command until it ends, which must be well."""
    code = begin(job, place, log).wait()
    if code:
        raise InputError(f"{job.name} ended with exit code {code}: see {log}")


def disturb(
    job: Job, place: Path, log: Path, usual: float, chance: random.Random, pause: int
) -> Iterator[str]:
    """Disturbs a command a few times, and starts it again if it has ended; yields what was done.
    Nothing of it runs when this generator goes on or ends."""
    for _ in range(chance.randint(1, PER_ROUND)):
        process = begin(job, place, log)
        try:
            share = chance.uniform(0.05, 0.95)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(share * usual)
                return  # it was faster than usual, and has ended
            number = chance.choice(SIGNALS)
            target = process.pid
            if job.pair:
                target = chance.choice(children_of(process.pid) or [process.pid])
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)
            words = f"{number.name} at {100 * share:.0f}% of its usual time"
            if number == signal.SIGSTOP:
                still = chance.uniform(0, pause)
                time.sleep(still)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGCONT)
                words += f", for {still:.0f} s; ended with {process.wait()}"
            else:
                words += f"; ended with {ending(process)}"
        finally:  # also what its workers are still doing
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        yield words


def ending(process: subprocess.Popen) -> str:
    try:
        return str(process.wait(ENDING))
    except subprocess.TimeoutExpired:
        return "nothing: it had to be killed"


def children_of(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    return []


def write_log(page: Path, argv: list[str] | None, lines: list[str]) -> None:
    """Puts the command and its output into the last block of the page."""
    words = " ".join(sys.argv[1:] if argv is None else argv)
    text = page.read_text() if page.exists() else "# Soak test\n"
    head = text.split("\n```\n$ python launch/soak.py")[0].rstrip()
    write_whole(
        page, "\n".join([head, "", "```", f"$ python launch/soak.py {words}", *lines, "```", ""])
    )


if __name__ == "__main__":
    run_command(main)
