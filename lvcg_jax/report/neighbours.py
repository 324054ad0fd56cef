"""The records of a reference set whose embeddings are most like that of one record, and what labels
they carry.

Alike: the cosine of two embeddings after every feature was centred and scaled by the reference's
own spread, from 1 (the same direction) through 0 (nothing in common) to -1.
"""

from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table
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
            f"{path} holds embeddings of {made}, not of {checkpoint}: write them anew with lvcg embed"
        )
    if table.metadata.get("preprocess_hash", preprocess_hash) != preprocess_hash:
        raise InputError(
            f"{path} was made with another preprocessing ({table.metadata['preprocess_hash']})"
        )


def nearest(table: Table, embedding: np.ndarray, record_id: str, k: int = 10) -> Neighbours:
    """The k records of a table that are most like an embedding [d]; the record itself, by name or
    path, is left out."""
    spread = mean_and_scale(table.embedding.astype(np.float64))
    similarity = unit_rows(table.embedding, *spread) @ unit_rows(embedding, *spread)
    own = np.array(
        [name == record_id or name.endswith(f"/{record_id}") for name in table.record_id.tolist()]
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
                shares.append(
                    (
                        task,
                        name,
                        count,
                        len(near),
                        sum(name in names for names in every) / len(every),
                    )
                )
    return sorted(shares, key=lambda row: (-row[2] / row[3], row[4], row[:2]))
