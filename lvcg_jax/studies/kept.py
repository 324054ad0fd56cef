"""Tables of embeddings that are made once and then kept in a folder, in a file named after all that
they depend on; and what studies call the usual ones."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.dataset.shards import METADATA_FILE, file_sha256
from lvcg_jax.embed.table import Table, load_table, save_table

MODEL, RANDOM, RAW, MEDIAN = "LVCG", "random weights", "random weights, raw", "median beat"
CONTROLS = (RANDOM, RAW, MEDIAN)


@dataclass(frozen=True)
class Features:
    """Embeddings of a data set: their name, all that they depend on, and how to make them."""

    name: str
    key: list[str]
    make: Callable[[], Table]

    def path(self, folder: Path) -> Path:
        """Where they are kept in a folder."""
        return folder / f"{self.name}-{digest_of(self.key)}.npz"

    def table(self, folder: Path) -> Table:
        """Read from the folder, or made and stored there."""
        path = self.path(folder)
        if path.exists():
            return load_table(path)
        print(f"embedding: {self.name}")
        table = self.make()
        save_table(path, table)
        return table


def digest_of(key: Sequence[str]) -> str:
    """A short name for a key."""
    return hashlib.sha256("|".join(key).encode()).hexdigest()[:12]


def data_key(data: Path) -> str:
    """Names a data set: its metadata hold the checksums of its shards, and the preprocessing."""
    return file_sha256(data / METADATA_FILE)
