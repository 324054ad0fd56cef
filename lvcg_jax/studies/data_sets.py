"""The data sets of --data, by the names that a page gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.dataset.shards import read_metadata
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.text.flags import named_path


@dataclass(frozen=True)
class DataSet:
    """A data set to probe on, and what it is called on the page."""

    name: str
    path: Path
    metadata: dict
    tasks: list[str]


def find_data(flags: Sequence[str], tasks: str) -> list[DataSet]:
    """The data sets of --data ('NAME=SHARDS' or 'SHARDS', with commas or repeated), each with its
    tasks among those asked for."""
    words = [w for flag in flags for w in ([flag] if Path(flag).exists() else flag.split(","))]
    named = [named_path("--data", word, "") for word in words]
    found = {}
    for name, path in named:
        metadata = read_metadata(path)
        name = name or metadata["corpus"]
        if name in found:
            raise InputError(f"two data sets are called '{name}': write --data=NAME=SHARDS")
        there = metadata["tasks"]
        # a task that only another data set has is no mistake
        mine = (
            tasks
            if len(named) == 1 or tasks == "all"
            else ",".join(task for task in tasks.split(",") if task in there)
        )
        chosen = choose_tasks(mine, path) if mine else []
        found[name] = DataSet(name, Path(path), metadata, chosen)
    known = {task for data in found.values() for task in data.tasks}
    wrong = [task for task in tasks.split(",") if tasks != "all" and task not in known]
    if wrong:
        raise InputError(f"no task {', '.join(wrong)} in any of {', '.join(found)}")
    return [data for data in found.values() if data.tasks]


def describe_data(data: DataSet) -> dict:
    """What the page and the card say of a data set."""
    names = ("examples", "records", "patients")
    splits = {
        split: {name: values[name] for name in names}
        for split, values in data.metadata["splits"].items()
    }
    kept = ("corpus", "split_rule", "windows", "preprocess_hash")
    return {"name": data.name, "splits": splits} | {name: data.metadata[name] for name in kept}
