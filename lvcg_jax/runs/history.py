"""What became of a training run, read from its directory."""

from pathlib import Path

from lvcg_jax.config.files import PAPER_CONFIG, differences, load_config, read_config_file
from lvcg_jax.runs.metrics_log import read_metrics


def validations(run: Path) -> list[dict]:
    """The validations of a run, in their order: step, loss and the other numbers of each."""
    return [row for row in read_metrics(run) if row["kind"] == "validation"]


def lowest_validation(run: Path) -> dict | None:
    """The validation of lowest loss, None if there was none."""
    return min(validations(run), key=lambda row: row["loss"], default=None)


def last_validation(run: Path) -> dict | None:
    """The last validation, None if there was none."""
    return next(reversed(validations(run)), None)


def describe_run(run: Path, checkpoint: str) -> dict:
    """What was trained, how it differs from the paper's table, for how long, and its validation
    numbers."""
    config = load_config(run / "config.json")
    return {
        "name": run.name,
        "checkpoint": checkpoint,
        "differences": differences(read_config_file(PAPER_CONFIG), config),
        "steps": max((row["step"] for row in read_metrics(run)), default=0),
        "batch_size": config.data.batch_size,
        "validation_best": lowest_validation(run),
        "validation_last": last_validation(run),
    }
