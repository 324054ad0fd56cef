"""The records of a reference set whose embeddings are most like that of one record, and what labels
they carry.

Alike: the cosine of two embeddings after every feature was centred and scaled by the reference's
own spread, from 1 (the same direction) through 0 (nothing in common) to -1.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import Pseudonyms
from lvcg_jax.embed.table import Table
from lvcg_jax.report import embedding_map
from lvcg_jax.report.page import parts
from lvcg_jax.stats.scaling import mean_and_scale, unit_rows


@dataclass(frozen=True)
class Neighbours:
    """The nearest reference rows, one a record, nearest first."""

    rows: np.ndarray  # [k] of the table
    similarity: np.ndarray  # [k]
    left_out: int  # reference rows that carry the record's own name


def check_reference(table: Table, checkpoint: str, preprocess_hash: str, path: str) -> None:
    """Only embeddings of the same weights and the same preprocessing can be compared."""
    made = table.metadata.get("checkpoint", "an unnamed model")
    if made.rpartition("#")[2] != checkpoint.rpartition("#")[2]:
        raise InputError(
            f"{path} holds embeddings of {made}, not of {checkpoint}: write them anew with lvcg"
            " embed"
        )
    if table.metadata.get("preprocess_hash", preprocess_hash) != preprocess_hash:
        raise InputError(
            f"{path} was made with another preprocessing ({table.metadata['preprocess_hash']})"
        )


def nearest(
    table: Table,
    embedding: np.ndarray,
    record_id: str,
    k: int = 10,
    names: Pseudonyms | None = None,
) -> Neighbours:
    """The k records of a table that are most like an embedding [d]; the record itself, by name,
    path or pseudonym, is left out."""
    spread = mean_and_scale(table.embedding.astype(np.float64))
    similarity = unit_rows(table.embedding, *spread) @ unit_rows(embedding, *spread)
    known = {record_id} if names is None else {record_id, names.of(record_id)}
    own = np.array(
        [name in known or name.endswith(f"/{record_id}") for name in table.record_id.tolist()]
    )
    order = np.argsort(-np.where(own, -np.inf, similarity), kind="stable")
    seen, kept = set(), []
    for i in order:
        name = str(table.record_id[i])
        if own[i] or name in seen:
            continue
        seen.add(name)
        kept.append(int(i))
        if len(kept) == k:
            break
    return Neighbours(np.array(kept, int), similarity[kept], int(own.sum()))


def label_shares(table: Table, found: Neighbours) -> list[tuple[str, str, int, int, float]]:
    """(task, class, neighbours that have it, neighbours that are labelled, share in the whole set),
    commonest first."""
    shares = []
    for task, classes in table.tasks.items():
        near = [table.labels[i][task] for i in found.rows if task in table.labels[i]]
        every = [row[task] for row in table.labels if task in row]
        for name in classes:
            count = sum(name in names for names in near)
            if count:
                share = sum(name in names for names in every) / len(every)
                shares.append((task, name, count, len(near), share))
    return sorted(shares, key=lambda row: (-row[2] / row[3], row[4], row[:2]))


def neighbour_section(
    table: Table,
    path: str,
    embedding: np.ndarray,
    record_id: str,
    command: str,
    names: Pseudonyms | None = None,
) -> Markup:
    """The records of a table nearest to an embedding [d], their labels, and where it lies among
    them."""
    found = nearest(table, embedding, record_id, names=names)
    if not len(found.rows):
        raise InputError(
            f"{path} holds no other record than {record_id}: give a larger --reference"
        )
    rows = []
    for i, value in zip(found.rows, found.similarity, strict=True):
        labels = "; ".join(
            f"{task}: {', '.join(names) or 'none'}"
            for task, names in sorted(table.labels[i].items())
        )
        name, split = embedding_map.shown_name(table, i, names), str(table.split[i]) or "-"
        rows.append([name, f"{value:.2f}", labels or "not labelled", split])
    text = parts.table(["record", "similarity", "labels", "split"], rows)
    rows = [
        [task, name, f"{count} of {near}", f"{100 * share:.1f}%"]
        for task, name, count, near, share in label_shares(table, found)
    ]
    if rows:
        text += parts.heading("Labels among the neighbours")
        columns = ["task", "class", "neighbours", "share in the whole reference set"]
        text += parts.table(columns, rows)
    own = f" {found.left_out} row(s) of the record itself were left out." if found.left_out else ""
    words = (
        "Similarity: cosine of the embeddings after scaling by the reference set, 1 is the same."
        f" The labels are those of other people's records, not a finding in this one.{own}"
    )
    text += parts.paragraph(words, "soft")
    own = record_id if names is None else names.of(record_id)
    return text + _map(table, path, found, embedding, own, command, names)


def _map(
    table: Table,
    path: str,
    found: Neighbours,
    embedding: np.ndarray,
    record_id: str,
    command: str,
    names: Pseudonyms | None,
) -> Markup:
    """PCA of the reference set with the record and its neighbours ringed."""
    some = embedding_map.choose_rows(table, embedding_map.MOST_ROWS - len(found.rows))
    rows = np.union1d(some, found.rows)
    drawn = embedding_map.pca_map(
        table.embedding[rows], "PCA of the reference set", embedding[None]
    )
    if drawn is None:
        return Markup()
    tasks = [task | {"rows": task["rows"] + ";-"} for task in embedding_map.label_rows(table, rows)]
    shown = [*embedding_map.map_names(table, rows, names), f"this record ({record_id})"]
    marks = [(int(np.searchsorted(rows, i)), "") for i in found.rows] + [(len(rows), "this record")]
    caption = (
        f"{len(rows):,} records of {Path(path).name}; rings: the {len(found.rows)} nearest, and"
        " this record."
    )
    return embedding_map.maps_figure(drawn[:1], shown, tasks, caption, command, marks)
