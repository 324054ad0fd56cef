"""Numbers of a run as JSON lines and TensorBoard events."""

import json
from pathlib import Path

from tensorboardX import SummaryWriter


class MetricsLog:
    """Appends to RUN/metrics.jsonl and RUN/tensorboard; after a resume, steps that run again are dropped."""

    def __init__(self, workdir: Path, resume_step: int):
        self.path = workdir / "metrics.jsonl"
        kept = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.replace(self.path)
        self._file = self.path.open("a", buffering=1)
        purge = resume_step + 1 if resume_step else None
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=purge)

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, "kind": kind, **{k: float(v) for k, v in values.items()}}) + "\n")
        for name, value in values.items():
            self._events.add_scalar(f"{kind}/{name}", float(value), step)

    def close(self) -> None:
        self._file.close()
        self._events.close()


def read_metrics(workdir: Path) -> list[dict]:
    """The rows of RUN/metrics.jsonl; a last line cut off by a kill is left out."""
    path = Path(workdir) / "metrics.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
