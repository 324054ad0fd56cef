"""Measures how fast a build is, from WFDB file to shard, beside the straightforward loop that it
replaces.

    lvcg benchmark --raw=ptbxl:/data/ptbxl --raw=csn:/data/csn

Without --raw, synthetic records at 100 Hz and 500 Hz are written and built. Each figure is the best
of several repeats, in records per second of CPU time in one process (other work on the machine
matters little), with the files in the cache.

The straightforward loop reads with wfdb.rdrecord and calls scipy record by record. It has the same
filter, resampling, peaks, beats and shard format, but no checks, no ledger and no duplicates. The
two take turns in each repeat.

`two workers` is records per WALL second of two processes against one, each with the same work, in
turns, the best of each: CPU time cannot show it, as it stops while a process waits for a core. It
needs two idle cores. The share of a core that each of the two workers got is printed beside it; if
that is well below 1, the ratio says nothing.
"""

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import signal as sps

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.memory import peak_memory
from data_prep.corpora.corpus import Corpus, open_corpus
from data_prep.dataset import shards
from data_prep.dataset.one_shard import PARTS, Job, Shard, build_shard
from data_prep.dataset.pool import one_blas_thread
from data_prep.ecg.leads import LEADS, canonical
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import RecordRef
from data_prep.formats.wfdb_files import quiet_wfdb
from data_prep.synthetic_heart.records import write_corpus

TARGETS = {100: 300, 500: 120}  # records/s on one core at this sampling rate
WORKER_REPEATS = 3
NAIVE_RATIO, WORKERS_RATIO, MEMORY_GIB = 2.0, 1.7, 1.0


def straightforward(refs: list[RecordRef], preprocess: Preprocess, path: Path) -> int:
    """The obvious way to write it: rdrecord, scipy, a loop over beats and leads. Returns the
    records written."""
    p = preprocess
    spec = shards.features(p.beat_samples, False)
    grid, written = np.linspace(0, 1, p.beat_samples), []
    for ref in refs:
        with quiet_wfdb() as wfdb:
            record = wfdb.rdrecord(ref.path)
        # the twelve leads, resampled, filtered, cut and normalised
        order = [[canonical(name) for name in record.sig_name].index(lead) for lead in LEADS]
        x = np.nan_to_num(record.p_signal[:, order].T)
        if record.fs != p.rate:
            x = sps.resample_poly(x, round(p.rate), round(record.fs), axis=1)
        sos = sps.butter(
            p.filter_order, [p.band_low, p.band_high], "bandpass", fs=p.rate, output="sos"
        )
        x = sps.sosfiltfilt(sos, x, axis=1)[:, : round(p.seconds * p.rate)]
        offset, scale = x.mean(axis=1), np.maximum(x.std(axis=1), 1e-6)
        z = (x - offset[:, None]) / scale[:, None]
        # beats between the R peaks of lead II
        distance = round(p.peak_distance * p.rate)
        peaks, _ = sps.find_peaks(z[1], height=p.peak_height, distance=distance)
        if len(peaks) < 3:
            peaks, _ = sps.find_peaks(z[1], height=p.peak_retry_height, distance=distance)
        bounds = np.unique([0, *peaks[: p.max_beats - 1], z.shape[1]])
        beats = np.zeros((len(bounds) - 1, len(LEADS), p.beat_samples), np.float16)
        for n, (first, end) in enumerate(itertools.pairwise(bounds)):
            for lead in range(len(LEADS)):
                beats[n, lead] = np.interp(
                    grid * (end - first - 1), np.arange(end - first), z[lead, first:end]
                )
        example = {
            "beats": beats,
            "start": bounds[:-1].astype(np.int32),
            "length": np.diff(bounds).astype(np.int32),
            "complete": np.r_[False, np.ones(len(bounds) - 2, bool)],
            "offset": offset.astype(np.float32),
            "scale": scale.astype(np.float32),
            "lead_mask": 4095,
            "uid": shards.uid_of(ref.record_id, 0),
            "window": 0,
            "num_samples": z.shape[1],
            "record_id": ref.record_id,
            "patient_id": ref.patient_id,
            "labels": json.dumps(ref.labels),
            "defects": "",
        }
        written.append(spec.serialize_example(example))
    shards.write_shard(path, written)
    return len(written)


def build_once(corpus: Corpus, folder: Path, number: int, shard: Shard) -> float:
    """CPU seconds to build one shard in this process."""
    job = Job(folder / str(number), Preprocess(), "first", False)
    (job.out / PARTS).mkdir(parents=True, exist_ok=True)
    before = time.process_time()
    build_shard(corpus, job, shard, lambda: None)
    return time.process_time() - before


def measure(corpus: Corpus, refs: list[RecordRef], folder: Path, repeats: int) -> dict[str, float]:
    """Records per CPU second of the build and of the straightforward loop, in turns; the best of
    each."""
    shard = Shard("shard", "train", refs)
    ours, naive = [], []
    for repeat in range(repeats + 1):  # the first one fills caches and is not counted
        ours.append(build_once(corpus, folder, 0, shard))
        before = time.process_time()
        straightforward(refs, Preprocess(), folder / "naive")
        naive.append(time.process_time() - before)
        if repeat == 0:
            ours, naive = [], []
    return {"ours": len(refs) / min(ours), "naive": len(refs) / min(naive)}


def _worker(
    corpus: Corpus, refs: list[RecordRef], folder: Path, number: int, barrier, queue
) -> None:
    """Builds a shard twice; the second time starts together with the other workers and is
    reported."""
    shard = Shard("shard", "train", refs)
    build_once(corpus, folder, number, shard)  # imports, filters, file cache
    barrier.wait()
    before = time.perf_counter()
    cpu = build_once(corpus, folder, number, shard)
    queue.put((time.perf_counter() - before, cpu, peak_memory()))


def measure_workers(
    corpus: Corpus, refs: list[RecordRef], folder: Path, workers: int
) -> tuple[float, float, float]:
    """Records per wall second of processes that start together, the share of a core that each got,
    and its memory in GiB."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=_worker, args=(corpus, refs, folder, n, barrier, queue))
        for n in range(workers)
    ]
    with one_blas_thread():
        for process in processes:
            process.start()
    walls, cpus, memory = zip(*(queue.get(timeout=600) for _ in processes), strict=True)
    for process in processes:
        process.join()
    return workers * len(refs) / max(walls), sum(cpus) / sum(walls), max(memory)


def benchmark(
    name: str, corpus: Corpus, records: int, repeats: int, folder: Path
) -> list[tuple[str, str, bool]]:
    """Measures one corpus; rows of (what, value, whether the target is met)."""
    # records that the straightforward loop can build as well
    plain = []
    for ref in corpus.refs:
        record = corpus.load(ref)
        if np.isfinite(record.signal).all() and {canonical(n) for n in record.leads} >= set(LEADS):
            plain.append(ref)
        if len(plain) == records:
            break
    if not plain:
        raise InputError(f"{name}: no record with twelve whole leads to measure with")
    # the measurements
    rate = record.rate
    slim = Corpus(
        corpus.name, corpus.raw_dir, corpus.tasks, [], corpus.split_rule, read=corpus.read
    )
    speed = measure(slim, plain, folder, repeats)
    runs = [
        [measure_workers(slim, plain, folder, workers) for workers in (1, 2)]
        for _ in range(WORKER_REPEATS)
    ]
    (one, _, memory), (two, share, _) = (max(column) for column in zip(*runs, strict=True))
    # the report
    target = next((value for hz, value in TARGETS.items() if rate <= hz), 0)
    ratio = speed["ours"] / speed["naive"]
    return [
        (
            f"{name}, {len(plain)} records at {rate:g} Hz",
            f"{speed['ours']:.0f} records/s (target {target})",
            speed["ours"] >= target,
        ),
        (
            "  straightforward loop",
            f"{speed['naive']:.0f} records/s: {ratio:.1f}x (target {NAIVE_RATIO:g}x)",
            ratio >= NAIVE_RATIO,
        ),
        (
            "  two workers",
            f"{two / one:.2f}x of one in wall time (target {WORKERS_RATIO:g}x),"
            f" each had {share:.2f} of a core",
            two / one >= WORKERS_RATIO,
        ),
        (
            "  peak memory",
            f"{memory:.2f} GiB a process (target {MEMORY_GIB:g})",
            memory < MEMORY_GIB,
        ),
    ]


def open_corpora(raw: list[str], records: int, folder: Path) -> Iterator[tuple[str, Corpus]]:
    """The corpora that are given as CORPUS:DIR, or else two synthetic ones in `folder`; by name."""
    for pair in raw:
        name, colon, place = pair.partition(":")
        if not colon:
            raise InputError(f"--raw={pair}: write CORPUS:DIR, for example --raw=ptbxl:/data/ptbxl")
        yield name, open_corpus(name, place)
    for rate in () if raw else (100, 500):
        place = folder / f"synthetic{rate}"
        write_corpus(place, patients=-(-records // 4), records_per_patient=4, rate=rate)
        yield f"synthetic {rate} Hz", open_corpus("synthetic", place)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("benchmark", "Measure the speed of the build, beside a straightforward loop.")
    add = parser.add_argument
    add(
        "--raw",
        action="append",
        default=[],
        metavar="CORPUS:DIR",
        help="raw data, for example ptbxl:/data/ptbxl; repeatable (default: synthetic records)",
    )
    add("--records", type=positive_int, default=400, help="records of each corpus (default 400)")
    add(
        "--repeats",
        type=positive_int,
        default=5,
        help="repeats, of which the best counts (default 5)",
    )
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, corpus in list(open_corpora(args.raw, args.records, Path(folder))):
            rows += benchmark(name, corpus, args.records, args.repeats, Path(folder))
    for what, value, good in rows:
        print(f"{what:<36} {value}{'' if good else '   MISSED'}")
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.1f};"
        " records/s are of CPU time on one core, warm cache"
    )
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
