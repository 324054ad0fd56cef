"""The folder that `lvcg synthetic` writes."""

import json
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.corpora import wfdb_folder
from data_prep.corpora.corpus import Corpus


def open(raw: Path) -> Corpus:
    """A WFDB folder with labels.csv, and synthetic.json with the tasks."""
    remedy = "write it with `lvcg synthetic`"
    if not (raw / "synthetic.json").exists():
        raise InputError(f"{raw} is no synthetic corpus: {remedy}")
    if not (raw / "labels.csv").exists():
        raise InputError(
            f"the synthetic corpus in {raw} is unfinished (no labels.csv): {remedy} again"
        )
    corpus = wfdb_folder.open(raw)
    tasks = json.loads((raw / "synthetic.json").read_text(encoding="utf-8"))["tasks"]
    corpus.name, corpus.tasks = "synthetic", {task: tuple(names) for task, names in tasks.items()}
    return corpus
