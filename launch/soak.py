"""Kill and resume, many times over: a small run that is killed with kill -9 at random moments must
end exactly as one that nobody touched. Prints one line per kill, and the verdict.

    python launch/soak.py --out=runs/soak [--kills=20] [--steps=400]
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, natural_int, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from lvcg_jax.runs.metrics_log import read_metrics  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    parser = Parser("soak", __doc__, prog="python launch/soak.py")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for data and both runs")
    add("--kills", type=positive_int, default=20, help="how often it is killed (default 20)")
    add("--steps", type=positive_int, default=400, help="of the runs (default 400)")
    add("--seed", type=natural_int, default=0, help="of the random moments (default 0)")
    args = parser.parse_args(argv)
    if args.out.exists():
        raise InputError(f"{args.out} exists already: give a new folder")
    moments = random.Random(args.seed)

    # a run to compare with
    print("a run that nobody touches")
    whole, broken = args.out / "whole", args.out / "broken"
    code = start(whole, args.steps, args.out / "whole.log").wait()
    if code:
        raise InputError(
            f"the undisturbed run ended with exit code {code}: see {args.out / 'whole.log'}"
        )
    data = whole / "data"  # the synthetic set it made

    # the same run, killed again and again
    for kill in range(1, args.kills + 1):
        last = last_step(broken)
        process = start(broken, args.steps, args.out / "broken.log", data)
        goal = last + moments.randint(1, max(1, 2 * (args.steps - last) // (args.kills - kill + 2)))
        while last_step(broken) < min(goal, args.steps) and process.poll() is None:
            time.sleep(0.02)
        time.sleep(moments.random() * 0.5)  # some of the kills fall into a save
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(f"kill {kill:2d}: started after step {last}, killed after step {last_step(broken)}")

    # its last start, and the comparison
    code = start(broken, args.steps, args.out / "broken.log", data).wait()
    same = losses(whole) == losses(broken)
    print(
        f"last start: exit code {code}, {last_step(broken)} steps; losses equal bit for bit: {same}"
    )
    return 0 if code == 0 and same else 1


def start(workdir: Path, steps: int, log: Path, data: Path | None = None) -> subprocess.Popen:
    """A training process, running; its output is added to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = [f"--config={ROOT / 'configs' / 'pretrain.py'}:smoke", f"--workdir={workdir}"]
    flags += [f"--config.train.steps={steps}", "--config.train.checkpoint_every=5"]
    flags += [f"--config.data.dir={data}"] if data else []
    with log.open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "lvcg_jax.train", *flags], cwd=ROOT, stdout=file, stderr=file
        )


def losses(workdir: Path) -> dict[int, float]:
    """The training loss of each step that was logged."""
    return {row["step"]: row["loss"] for row in read_metrics(workdir) if row["kind"] == "train"}


def last_step(workdir: Path) -> int:
    return max(losses(workdir), default=0)


if __name__ == "__main__":
    run_command(main)
