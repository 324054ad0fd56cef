"""Many requests from several clients to a service on this machine: what was answered, and how much
memory the service takes before and after.

    python launch/serve_load.py [--requests=500] [--clients=8] [--checkpoint=best]

Starts `lvcg serve` on a free port. One request in five asks for the report, one in five sends a
file that has to be refused, and the others ask for numbers. Every answer must be the one that its
file had the first time. Ends the service with SIGTERM.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx2 as httpx  # noqa: E402

from data_prep.base.command import Parser, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402

MOST_SECONDS = 900.0  # for all requests
MOST_GROWTH = 100 * 2**20  # bytes
SETTLING = 40  # requests before the memory is first looked at


def main(argv: list[str] | None = None) -> int:
    parser = Parser("serve_load", __doc__, prog="python launch/serve_load.py")
    add = parser.add_argument
    add("--requests", type=positive_int, default=500, help="in all (default 500)")
    add("--clients", type=positive_int, default=8, help="at once (default 8)")
    add("--checkpoint", default="best", help="weights that answer (default best)")
    args = parser.parse_args(argv)
    command = [sys.executable, "-m", "lvcg_jax", "serve", "--port=0"]
    service = subprocess.Popen(
        [*command, f"--checkpoint={args.checkpoint}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        first = service.stdout.readline()
        if not first.startswith("http://"):
            raise InputError(f"lvcg serve did not start: {first.strip()}")
        good = load(first.split()[0], args.requests, args.clients)
    finally:
        service.send_signal(signal.SIGTERM)
        code = service.wait(60)
    print(f"ended by SIGTERM with exit code {code}")
    return 0 if good and code in (0, -signal.SIGTERM) else 1


def load(address: str, count: int, clients: int) -> bool:
    """Sends the requests; whether all were answered alike, and the service has not grown."""
    files = sample_files()
    kinds = [("json", 200), ("json", 200), ("json", 200), ("report", 200), ("broken", 422)]
    seen: dict[tuple, bytes] = {}
    end = time.monotonic() + MOST_SECONDS

    def ask(number: int) -> str:
        if time.monotonic() > end:
            return "not sent, out of time"
        kind, status = kinds[number % len(kinds)]
        name, content = files[number // len(kinds) % len(files)]
        content = content[: len(content) // 3] if kind == "broken" else content
        answer = "json" if kind == "broken" else kind
        try:
            reply = httpx.post(
                f"{address}/ecg?answer={answer}", files={"file": (name, content)}, timeout=120
            )
        except httpx.HTTPError as error:
            return f"error: {type(error).__name__}"
        if reply.status_code != status:
            return f"error: {kind} of {name} answered with {reply.status_code}"
        if seen.setdefault((kind, name), reply.content) != reply.content:
            return f"error: {kind} of {name} answered differently"
        return f"{kind}, {status} as it should be"

    with ThreadPoolExecutor(clients) as crowd:
        list(crowd.map(ask, range(SETTLING)))
        before = memory(address)
        outcomes: Counter[str] = Counter()
        for begin in range(0, count, 100):
            outcomes += Counter(crowd.map(ask, range(begin, min(begin + 100, count))))
            done = min(begin + 100, count)
            print(f"{done} requests: {memory(address) / 2**20:.0f} MiB", flush=True)
    after = memory(address)
    for words, times in sorted(outcomes.items()):
        print(f"{times:5d} {words}")
    errors = sum(times for words, times in outcomes.items() if "as it should" not in words)
    grown = (after - before) / 2**20
    print(
        f"{count} requests of {clients} clients: {errors} errors; memory {before / 2**20:.0f} MiB"
        f" before, {after / 2**20:.0f} MiB after ({grown:+.0f})"
    )
    return errors == 0 and after - before < MOST_GROWTH


def sample_files() -> list[tuple[str, bytes]]:
    """Ten seconds of ECG in six formats."""
    import numpy as np
    from helpers import device_files

    from data_prep.synthetic_heart.records import make_record

    signal, _ = make_record(0, patient=5, rate=device_files.RATE, seconds=10)
    counts = np.round(signal / device_files.STEP).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        dicom = device_files.dicom(Path(folder) / "r.dcm", counts).read_bytes()
    return [
        ("r.dcm", dicom),
        ("muse.xml", device_files.muse(counts)),
        ("aecg.xml", device_files.aecg(counts)),
        ("r.scp", device_files.scp(counts)),
        ("r.ecg", device_files.ishne(counts)),
        ("r.json", device_files.kardia(counts[:, :6])),
    ]


def memory(address: str) -> int:
    """Bytes that the service uses now."""
    lines = httpx.get(f"{address}/metrics", timeout=60).text.splitlines()
    return int(next(line for line in lines if line.startswith("lvcg_memory_bytes ")).split()[1])


if __name__ == "__main__":
    run_command(main)
