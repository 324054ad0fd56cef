"""A data set on Google Cloud Storage, copied to a disk of this machine before it is read.

Every file is compared with its checksum in dataset.json. A copy that was interrupted goes on where
it ended. `dataset.json` comes last: a folder that has it is whole.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from data_prep.base.errors import InputError
from data_prep.base.files import cannot_write, run_place, unreachable, write_whole
from data_prep.base.lock import in_turn
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import (
    LEDGER_FILE,
    METADATA_FILE,
    counts_file,
    file_sha256,
    parse_metadata,
)

CHUNK_BYTES = 2**23
AGAIN = "copy the data set there again"


class Wanted(NamedTuple):
    """A file of a data set; without a checksum it need not be there."""

    name: str
    sha256: str | None
    size: int = 0


def fetch_dataset(address: str | Path, cache: str | Path) -> Path:
    """The folder with a copy of the data set at gs://BUCKET/FOLDER, made in `cache` if it is not
    there yet. Other processes of this machine wait meanwhile."""
    place = run_place(address)
    try:
        content = (place / METADATA_FILE).read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{place}: no data set there (no {METADATA_FILE}): name the folder that `lvcg build`"
            " made"
        ) from None
    except Exception as error:  # gcsfs, aiohttp and google.auth have errors of their own
        raise unreachable(place, error) from None
    metadata = parse_metadata(content, f"{place}/{METADATA_FILE}")
    key = hashlib.sha256(str(place).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]", "_", place.name)
    folder = Path(cache) / f"{name}-{key}"
    note = folder / METADATA_FILE
    try:
        if note.is_file() and note.read_bytes() == content:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        with in_turn(folder / ".lock"):
            if note.is_file() and note.read_bytes() == content:  # another process was here
                return folder
            note.unlink(missing_ok=True)
            wanted = list(_files(metadata))
            bar = progress_bar(
                total=sum(file.size for file in wanted), unit="B", unit_scale=True,
                desc=f"copying {place}",
            )  # fmt: skip
            with bar:
                for file in wanted:
                    _fetch(place / file.name, folder / file.name, file, bar)
            write_whole(note, content)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return folder


def _files(metadata: dict) -> Iterator[Wanted]:
    for split, values in metadata["splits"].items():
        for shard in values["shards"]:
            yield Wanted(shard["file"], shard["sha256"], shard["bytes"])
        yield Wanted(counts_file(split), values.get("beat_counts_sha256"))
    yield Wanted(LEDGER_FILE, None)


def _fetch(source, target: Path, file: Wanted, bar: tqdm) -> None:
    """Copies one file, from where an earlier copy of it ended."""
    if target.is_file() and (file.sha256 is None or file_sha256(target) == file.sha256):
        bar.update(file.size)
        return
    part = target.with_name(f"{target.name}.part")
    with open(part, "ab") as writer:
        start = writer.tell()
        bar.update(min(start, file.size))
        try:
            for chunk in _chunks(source, start):
                writer.write(chunk)
                bar.update(min(len(chunk), file.size))
        except FileNotFoundError:
            part.unlink()
            if file.sha256 is None:
                return
            raise InputError(f"{source}: the file is missing: {AGAIN}") from None
        writer.flush()
        os.fsync(writer.fileno())
    if file.sha256 is not None and file_sha256(part) != file.sha256:
        part.unlink()
        if start:  # what was there may have been of another version
            return _fetch(source, target, file, bar)
        raise InputError(f"{source}: its checksum is not the one in {METADATA_FILE}: {AGAIN}")
    os.replace(part, target)


def _chunks(source, start: int) -> Iterator[bytes]:
    """What an object has from this byte on."""
    try:
        with source.open("rb") as reader:
            reader.seek(start)
            while chunk := reader.read(CHUNK_BYTES):
                yield chunk
    except FileNotFoundError:
        raise
    except Exception as error:
        raise unreachable(source, error) from None
