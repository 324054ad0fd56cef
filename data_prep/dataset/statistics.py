"""Tables of data sets as papers print them, from dataset directories: their sizes, and the records
of every class."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from data_prep.base.words import markdown_cell
from data_prep.dataset.checks import read_ledger
from data_prep.dataset.shards import read_metadata
from data_prep.ecg.leads import LEADS

COLUMNS = (
    "data set",
    "records",
    "patients",
    "by split",
    "classes",
    "recorded at (Hz)",
    "seconds",
    "beats per record",
    "records lacking a lead",
)


def statistics(directories: Sequence[str | os.PathLike]) -> str:
    """Markdown: one table with a row for each data set, then the classes of each."""
    parts = [to_markdown(COLUMNS, [overview(directory) for directory in directories])]
    parts.append(
        "Ranges are minimum / median / maximum. Beats are those of the windows that were kept."
    )
    for directory in directories:
        parts += class_tables(read_metadata(directory))
    return "\n\n".join(parts) + "\n"


def overview(directory: str | os.PathLike) -> tuple[str, ...]:
    """The values of COLUMNS for one data set."""
    # what only the ledger tells
    beats, patients, lacking, leads = [], set(), 0, Counter()
    for row in read_ledger(directory):
        if row["kept"] == "yes":
            beats.append(int(row["beats"]))
            patients.add(row["patient_id"])
            lacking += bool(row["missing_leads"])
            leads.update(row["missing_leads"].split())
    # data sets that were built before rates and lengths were noted have neither
    metadata = read_metadata(directory)
    recorded = metadata.get("recorded", {"rates": {}, "seconds": []})
    rates = recorded["rates"]
    named = [rate if len(rates) == 1 else f"{rate} ({n:,})" for rate, n in rates.items()]
    by_lead = ", ".join(f"{lead} {leads[lead]:,}" for lead in LEADS if leads[lead])
    return (
        metadata["corpus"],
        f"{len(beats):,}",
        f"{len(patients):,}",
        ", ".join(f"{split} {values['records']:,}" for split, values in metadata["splits"].items()),
        ", ".join(f"{task} {len(names)}" for task, names in metadata["tasks"].items()) or "none",
        ", ".join(named) or "not noted",
        _range(recorded["seconds"]) or "not noted",
        _range([min(beats), float(np.median(beats)), max(beats)]),
        f"{lacking:,} ({by_lead})" if lacking else "0",
    )


def class_tables(metadata: dict) -> list[str]:
    """For each task of a data set: a title, and the records of every class by split."""
    parts, splits = [], metadata["splits"]
    for task, names in metadata["tasks"].items():
        labelled = [values["labelled"][task] for values in splits.values()]
        rows = [("labelled", *_with_sum(labelled))]
        for name in names:
            rows.append(
                (name, *_with_sum([v["label_counts"][task][name] for v in splits.values()]))
            )
        title = markdown_cell(f"{metadata['corpus']}, {task}")
        parts.append(f"**{title}** ({len(names)} classes)")
        parts.append(to_markdown(("class", *splits, "all"), rows))
    return parts


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; whatever is in a cell stays in it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(markdown_cell, row)) + " |" for row in lines)


def _with_sum(counts: list[int]) -> list[str]:
    return [f"{n:,}" for n in (*counts, sum(counts))]


def _range(values: Sequence[float]) -> str:
    """'6 / 12 / 144', or one number if all are the same."""
    words = [f"{value:g}" for value in values]
    return words[0] if len(set(words)) == 1 else " / ".join(words)
