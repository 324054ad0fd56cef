"""Embeds many records as a folder of parts, and shows what that promises: memory that does not
grow, the same bytes after kill -9, and two processes that are faster than one.

    python launch/bulk_embed.py --out=runs/bulk [--records=100000]
    python launch/bulk_embed.py --out=runs/bulk --data=SHARDS --checkpoint=small

The records are copies of those of --data under names of their own; without --data a tiny model is
trained on synthetic ECG first, and its records are copied. Prints a table of memory over rows and
the verdicts, and writes memory.svg.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also without an installation

from data_prep.base.command import Parser, natural_int, positive_int, run_command  # noqa: E402
from data_prep.base.errors import InputError  # noqa: E402
from data_prep.base.files import write_whole  # noqa: E402
from data_prep.base.progress import progress_bar  # noqa: E402
from data_prep.dataset import shards  # noqa: E402
from data_prep.ecg.svg import write_picture  # noqa: E402
from lvcg_jax.text.charts import Series, line_chart  # noqa: E402
from lvcg_jax.text.tables import markdown_table  # noqa: E402

SHARD_RECORDS = 4096


def main(argv: list[str] | None = None) -> int:
    parser = Parser("bulk_embed", __doc__, prog="python launch/bulk_embed.py")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="new folder for everything")
    add("--records", type=positive_int, default=100_000, help="default 100000")
    add("--part_rows", type=positive_int, default=4096, help="of lvcg embed (default 4096)")
    add("--repeats", type=natural_int, default=2, help="of the timing (default 2; 0: none)")
    add("--data", type=Path, help="shards to copy records of (default: synthetic ones)")
    add("--checkpoint", help="weights for them (default: a tiny model is trained)")
    args = parser.parse_args(argv)
    whole, broken = args.out / "whole", args.out / "broken"
    if whole.exists():
        raise InputError(f"{whole} exists already: give a new folder")
    if (args.data is None) != (args.checkpoint is None):
        raise InputError("give --data and --checkpoint, or neither")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.data is None:
        args.checkpoint, args.data = args.out / "run", args.out / "run" / "data"
        config = f"--config={ROOT / 'configs' / 'pretrain.py'}:smoke"
        finish([start(args.out, "train", "train", config, f"--workdir={args.checkpoint}")])
    data = args.out / "data"
    if not (data / shards.METADATA_FILE).is_file():
        copy_records(args.data, data, args.records)
    parts = f"--part_rows={args.part_rows}"

    def embed(name: str, *flags: str, core: int | None = None) -> subprocess.Popen:
        place = [f"--checkpoint={args.checkpoint}", f"--data={data}", f"--out={args.out / name}"]
        return start(args.out, name, "embed", *place, *flags, core=core)

    # memory over rows
    found = watch(embed("whole", parts), whole, args.part_rows, args.records)
    rows = [[f"{n:,}", f"{mib:,.0f}"] for n, mib in found[:: max(1, len(found) // 12)]]
    print("\n".join(markdown_table(["rows written", "MiB in memory"], rows)), flush=True)
    chart = line_chart(
        [Series(*zip(*found, strict=True), marks=True)], "Memory", "rows written", "MiB", zero=True
    )
    write_picture(args.out / "memory.svg", "Embedding into a folder of parts", [chart], "")

    # kill -9 once half of the parts are there
    process = embed("broken", parts)
    goal = max(1, len(list(whole.glob("*.parquet"))) // 2)
    while len(list(broken.glob("*.parquet"))) < goal and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(list(broken.glob("*.parquet")))
    finish([embed("broken", parts)])
    same = bytes_of(whole) == bytes_of(broken)
    print(f"killed with {kept} parts written, then continued: same bytes: {same}", flush=True)

    # one process on one core, and two on two
    for repeat in range(args.repeats):
        alone, both = args.out / f"alone{repeat}", args.out / f"both{repeat}"
        finish([embed(alone.name, parts, "--part=1/2", core=0)])
        finish([embed(both.name, parts, f"--part={i}/2", core=i - 1) for i in (1, 2)])
        one, two = ([speed(place, i, args) for i in (0, 1)] for place in (alone, both))
        print(
            f"one process {one[0]:,.0f} rows/s, two {two[0]:,.0f} + {two[1]:,.0f}:"
            f" {sum(two) / one[0]:.2f} times; same bytes: {bytes_of(both) == bytes_of(whole)}",
            flush=True,
        )
        same &= bytes_of(both) == bytes_of(whole)

    # for comparison, one table in memory
    peak = peak_while(embed("one.npz"))
    print(f"the same rows as one table in memory: at most {peak:,.0f} MiB")
    return 0 if same else 1


def start(
    out: Path, name: str, command: str, *flags: str, core: int | None = None
) -> subprocess.Popen:
    """A command, running, on one core if that is said; its output is added to OUT/logs/NAME.log."""
    log = out / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    with log.open("a") as file:
        return subprocess.Popen(
            [*pinned, sys.executable, "-m", f"lvcg_jax.{command}", *flags],
            cwd=ROOT,
            env={"JAX_PLATFORMS": "cpu"} | os.environ,
            stdout=file,
            stderr=file,
        )


def finish(processes: Sequence[subprocess.Popen]) -> None:
    """Waits for processes, which must all succeed."""
    codes = [process.wait() for process in processes]
    if any(codes):
        raise InputError(f"a process ended with exit code {max(codes)}: see the folder logs")


def memory_of(process: subprocess.Popen, word: str = "VmRSS") -> float | None:
    """What a process holds (VmRSS) or has held at most (VmHWM), in MiB; None if it is gone."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return None
    found = re.search(rf"{word}:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None


def watch(
    process: subprocess.Popen, folder: Path, part_rows: int, records: int
) -> list[tuple[int, float]]:
    """Rows written and MiB in memory, each time that a part appears."""
    found, before = [], 0
    while process.poll() is None:
        count = len(list(folder.glob("*.parquet")))
        memory = memory_of(process)
        if count > before and memory:
            found.append((min(count * part_rows, records), memory))
            before = count
        time.sleep(0.005)
    finish([process])
    return found


def peak_while(process: subprocess.Popen) -> float:
    """The most that a process holds, in MiB; waits for its end."""
    peak = 0.0
    while process.poll() is None:
        peak = memory_of(process, "VmHWM") or peak
        time.sleep(0.05)
    finish([process])
    return peak


def speed(folder: Path, share: int, args) -> float:
    """Rows a second of one of two shares, after its first part."""
    times = [path.stat().st_mtime for path in sorted(folder.glob("*.parquet"))]
    count = -(-args.records // args.part_rows)
    mine = times[share::2] if len(times) == count else times
    return (len(mine) - 1) * args.part_rows / (max(mine) - min(mine))


def bytes_of(folder: Path) -> dict[str, str]:
    """A checksum of every file."""
    return {p.name: shards.file_sha256(p) for p in sorted(folder.iterdir()) if p.is_file()}


def copy_records(source: Path, out: Path, count: int) -> None:
    """A dataset directory of `count` windows: those of another one over and over, under names of
    their own and without whole signals."""
    metadata = shards.read_metadata(source)
    paths = [
        source / shard["file"]
        for values in metadata["splits"].values()
        for shard in values["shards"]
    ]
    examples, counts, infos = _copies(paths), [], []
    files = -(-count // SHARD_RECORDS)
    out.mkdir(exist_ok=True)
    with progress_bar(total=count, unit="rec", desc="copying records") as bar:
        for number in range(files):
            name = shards.shard_name(metadata["corpus"], "train", number, files)
            size = min(SHARD_RECORDS, count - number * SHARD_RECORDS)
            raw, uids, beats = zip(*itertools.islice(examples, size), strict=True)
            shards.write_shard(out / name, raw)
            counts += beats
            infos.append(
                {
                    "file": name,
                    "examples": size,
                    "bytes": (out / name).stat().st_size,
                    "sha256": shards.file_sha256(out / name),
                    "first_uid": uids[0],
                }
            )
            bar.update(size)
    np.save(out / "beat_counts-train.npy", np.array(counts, np.int32))
    content = metadata | {"splits": {"train": {"examples": count, "shards": infos}}}
    content |= {"signal": False}
    write_whole(out / shards.METADATA_FILE, json.dumps(content, indent=1) + "\n")


def _copies(paths: Sequence[Path]) -> Iterator[tuple[bytes, int, int]]:
    """The examples of these files again and again, without an end, with their uid and beats."""
    from tensorflow_datasets.proto import tf_example_pb2

    for turn in itertools.count():
        for raw in itertools.chain.from_iterable(map(shards.iterate_shard, paths)):
            example = tf_example_pb2.Example.FromString(raw)
            stored = example.features.feature
            name = f"{stored['record_id'].bytes_list.value[0].decode()}/copy{turn}"
            stored["record_id"].bytes_list.value[0] = name.encode()
            uid = shards.uid_of(name, stored["window"].int64_list.value[0])
            stored["uid"].int64_list.value[0] = uid
            stored.pop("signal", None)
            beats = len(stored["complete"].bytes_list.value[0])  # a byte for each
            yield example.SerializeToString(deterministic=True), uid, beats


if __name__ == "__main__":
    run_command(main)
