"""What a training run was trained on and what became of it, read from its directory."""

import json
import re
from pathlib import Path

from ml_collections import ConfigDict

from data_prep.dataset.shards import read_metadata
from lvcg_jax.config.files import PAPER_CONFIG, differences, load_config, read_config_file
from lvcg_jax.config.folders import trained_folders
from lvcg_jax.runs.metrics_log import read_metrics


def trained_sets(config: ConfigDict, run: Path) -> list[tuple[dict, float]]:
    """dataset.json and weight of every data set that a run was trained on; an InputError if one is
    not where the run found it."""
    folders = trained_folders(config, run)
    return [(read_metadata(folder.path), folder.weight) for folder in folders]


def trained_corpora(config: ConfigDict, run: Path) -> list[str]:
    """The names of the corpora that a run was trained on, each once."""
    names = " ".join(data["corpus"] for data, _ in trained_sets(config, run))
    return list(dict.fromkeys(re.findall(r"\w+", names)))


def read_versions(run: Path) -> dict:
    """The content of a run's versions.json; empty if there is none, or if it is damaged."""
    path = run / "versions.json"
    try:
        versions = json.loads(path.read_text()) if path.exists() else {}
    except (ValueError, RecursionError):
        return {}
    return versions if isinstance(versions, dict) else {}


def noted_data(run: Path) -> str:
    """What versions.json says of the data of a run, which may be gone; empty if nothing."""
    return str(read_versions(run).get("data", ""))


def validations(run: Path) -> list[dict]:
    """The validations of a run, in their order: step, loss and the other numbers of each."""
    rows = [row for row in read_metrics(run) if row["kind"] == "validation"]
    return [row for row in rows if isinstance(row.get("loss"), int | float)]


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
