"""The numbers of a run as JSON lines and TensorBoard events, and their curves."""

import contextlib
import json
import math
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from data_prep.base.errors import InputError
from data_prep.base.files import is_remote, run_place, write_whole


class MetricsLog:
    """Appends to RUN/metrics.jsonl and RUN/tensorboard; after a resume, steps that run again are
    dropped.

    Both are written at once, in the caller's thread, so that a full disk is noticed. tensorboardX's
    SummaryWriter is not used for that reason: its thread dies of a full disk with a trace, and ten
    events later the run waits for it for ever. Object storage cannot append: there both are written
    to a scratch folder, and `upload` copies them whole.
    """

    def __init__(self, workdir: Path, resume_step: int):
        self.workdir, self._scratch = workdir, None
        if is_remote(workdir):
            self._scratch = tempfile.TemporaryDirectory(prefix="lvcg_metrics_")
        folder = Path(self._scratch.name) if self._scratch else workdir
        self.path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a", buffering=1)
        (folder / "tensorboard").mkdir(exist_ok=True)
        # TensorBoard knows an event file by its name and by its first event
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._events = RecordWriter(str(folder / "tensorboard" / name))
        self._write_event(file_version="brain.Event:2")
        if resume_step:  # TensorBoard hides what an earlier event file has from this step on
            start = SessionLog(status=SessionLog.START)
            self._write_event(step=resume_step + 1, session_log=start)

    def _write_event(self, **fields) -> None:
        self._events.write(Event(wall_time=time.time(), **fields).SerializeToString())

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """Writes one row: the step, 'train' or 'validation', and the numbers."""
        values = {name: float(value) for name, value in values.items()}
        points = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in values.items()
        ]
        try:
            self._file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._write_event(step=step, summary=Summary(value=points))
            self._events.flush()
        except OSError as error:
            raise InputError(
                f"the numbers of step {step} could not be written to {self.path}"
                f" ({error.strerror}): is the disk full? The last checkpoint is intact: make room"
                " and start the same command again"
            ) from None

    def upload(self) -> None:
        """Copies the files to object storage; an ordinary run directory has them already."""
        if self._scratch:
            folder = Path(self._scratch.name)
            for file in sorted(p for p in folder.rglob("*") if p.is_file()):
                write_whole(self.workdir / file.relative_to(folder).as_posix(), file.read_bytes())

    def close(self) -> None:
        """Closes the files. What could not be written was told by `write` and `upload`."""
        with contextlib.suppress(OSError):
            self._file.close()
            self._events.close()
        with contextlib.suppress(InputError):
            self.upload()
        if self._scratch:
            self._scratch.cleanup()


def read_metrics(workdir: Path) -> list[dict]:
    """The rows of RUN/metrics.jsonl; lines that are cut off or damaged are left out."""
    path = run_place(workdir) / "metrics.jsonl"
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int and type(row.get("kind")) is str:
            rows.append(row)
    return rows


def curves_of(records: Sequence[dict]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The curves of the rows of a metrics file: {name: {'train' or 'validation': points}}, with
    points (step, value) in the order of the rows.

    A row holds `step` and numbers. A name that starts with 'train', 'val', 'valid' or 'validation'
    and one of '/', '_' and '.' belongs to that split, any other to the row's `kind` or `split`, or
    else to training.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in records:
        for key, value in record.items():
            if (
                key in ("step", "split")
                or isinstance(value, bool)
                or not isinstance(value, (int, float))
            ):
                continue
            split, term = _split_of(key, str(record.get("kind", record.get("split", "train"))))
            curves.setdefault(term, {}).setdefault(split, []).append(
                (record.get("step", math.nan), value)
            )
    return curves


def _split_of(key: str, split: str) -> tuple[str, str]:
    for prefix, name in (
        ("validation", "validation"),
        ("valid", "validation"),
        ("val", "validation"),
        ("train", "train"),
    ):
        if key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] in tuple("/_."):
            return name, key[len(prefix) + 1 :]
    return "validation" if split.startswith("val") else "train", key
