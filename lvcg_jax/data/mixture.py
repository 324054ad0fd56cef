"""Several data sets as one: their records, numbered one after another, and which of them make an
epoch.

A data set of n records and weight w gives round(w n) records to every epoch. Of weight 2, each
record is there twice. Of weight 0.5, one half is there, in the next epoch the other half, and then
the records are halved anew (see epochs.py).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import ticket
from data_prep.dataset.shards import ALL_SPLITS, LEDGER_FILE, ShardSet
from data_prep.formats.tables import read_csv
from lvcg_jax.config.folders import times


class Mixture:
    """The training records of several data sets, with the part of a ShardSet that a BatchMaker
    uses.

    Args:
      sets: the data sets, all prepared alike.
      weights: how often an epoch shows each record of a set.
    """

    def __init__(self, sets: Sequence[ShardSet], weights: Sequence[float]):
        self.sets, self.weights = list(sets), list(weights)
        self.names = set_names(sets)
        self.preprocess = sets[0].preprocess
        self.counts = np.concatenate([shards.counts for shards in sets])
        self._ends = np.cumsum([len(shards) for shards in sets])
        # the nearest whole number; a half is rounded down, so that two halves fit into the set
        self.shares = [math.ceil(w * len(s) - 0.5) for w, s in zip(weights, sets, strict=True)]
        for shards, weight, share in zip(sets, weights, self.shares, strict=True):
            if share < 1:
                raise InputError(
                    f"{shards.directory}: weight {weight:g} of {len(shards)} records is not one"
                    " record an epoch: give a higher weight"
                )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: Iterable[int]) -> list[dict]:
        """The examples with these numbers, in this order. Data sets may use the same ids of records
        and patients: here the name of the set stands before an id, and the uid is another one in
        each set."""
        numbers = np.fromiter(numbers, np.int64)
        owners = np.searchsorted(self._ends, numbers, side="right")
        examples: list = [None] * len(numbers)
        for k in np.unique(owners):
            where = np.flatnonzero(owners == k)
            first = self._ends[k] - len(self.sets[k])
            for i, example in zip(where, self.sets[k].read(numbers[where] - first), strict=True):
                examples[i] = example | {
                    "record_id": f"{self.names[k]}/{example['record_id']}",
                    "patient_id": f"{self.names[k]}/{example['patient_id']}",
                    "uid": example["uid"] ^ ticket(str(k)),
                }
        return examples

    @property
    def sizes_and_shares(self) -> list[tuple[int, int]]:
        """Of each data set the records, and how many of them an epoch has: see epochs.py."""
        return [(len(s), share) for s, share in zip(self.sets, self.shares, strict=True)]


def set_names(sets: Sequence[ShardSet]) -> list[str]:
    """The corpus of each data set; where several are of one corpus, with the name of the folder."""
    corpora = [shards.metadata["corpus"] for shards in sets]
    return [
        corpus if corpora.count(corpus) == 1 else f"{corpus} ({shards.directory.name})"
        for corpus, shards in zip(corpora, sets, strict=True)
    ]


def describe_sets(sets: Sequence[ShardSet], weights: Sequence[float]) -> str:
    """The data sets with their records and weights: 'ptbxl (17,418 records), csn (3,503 records x
    0.5)'."""
    return ", ".join(
        f"{name} ({len(shards):,} records{times(weight)})"
        for name, shards, weight in zip(set_names(sets), sets, weights, strict=True)
    )


def shared_signals(sets: Sequence[ShardSet]) -> list[str]:
    """A line for every two data sets with the same signals: in the training records of both, or in
    those of one and in a split of the other that is not trained on.

    Signals are compared by the hashes in the ledgers, which cover every sample, the rate and the
    leads: the same ECG at another rate is not found. A data set without a ledger is passed over.
    """
    trained, unseen = [], []
    for shards in sets:
        splits: dict[bool, set[str]] = {True: set(), False: set()}
        path = shards.directory / LEDGER_FILE
        for row in read_csv(path) if path.is_file() else ():
            if row["kept"] == "yes" and row["signal_hash"]:
                splits[shards.split in (row["split"], ALL_SPLITS)].add(row["signal_hash"])
        trained.append(splits[True])
        unseen.append(splits[False])

    lines, names = [], set_names(sets)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            if i < j and (both := trained[i] & trained[j]):
                lines.append(
                    f"{len(both):,} signals are in the training records of {one} and of {other}"
                )
            if i != j and (leaked := trained[i] & unseen[j]):
                lines.append(
                    f"{len(leaked):,} training signals of {one} are validation or test records of"
                    f" {other}: its scores are not all of unseen records"
                )
    return lines
