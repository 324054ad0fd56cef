"""Records whose signal files are identical: they must never be in two splits.

In a corpus without patient ids, such records share the id of the first of them. The cost is one
stat and one read of 4 KiB per record (25 microseconds with a warm cache), and a full read only of
files that agree in length and start. Nothing is cached.
"""

import dataclasses
import hashlib
import os
from collections import defaultdict
from pathlib import Path

from data_prep.base.files import ordinary
from data_prep.ecg.record import RecordRef

START = 4096
MAT5_TEXT = 128  # bytes of text, with the date of writing, at the start of a MATLAB 5 file


def find_duplicates(files: dict[str, str]) -> dict[str, str]:
    """{record_id: signal file} -> {record_id: first record_id, in that order, with the same
    content}."""
    groups: dict[tuple, list[str]] = defaultdict(list)
    for record_id, path in files.items():
        try:
            with open(ordinary(path), "rb") as file:
                size, start = os.fstat(file.fileno()).st_size, file.read(START)
        except OSError:
            continue  # reported when the record is read
        if size:
            groups[size, hashlib.blake2b(_content(start), digest_size=16).digest()].append(
                record_id
            )
    # files of the same length and start, compared in full
    same: dict[str, str] = {}
    for size_and_start, ids in groups.items():
        if len(ids) < 2:
            continue
        first: dict[bytes, str] = {}
        for record_id in ids:
            content = (
                _content(Path(files[record_id]).read_bytes()) if size_and_start[0] > START else b""
            )
            digest = hashlib.blake2b(content, digest_size=16).digest()
            if digest in first:
                same[record_id] = first[digest]
            else:
                first[digest] = record_id
    return same


def _content(data: bytes) -> bytes:
    """The bytes of a file without its date of writing."""
    return data[MAT5_TEXT:] if data.startswith(b"MATLAB 5.0") else data


def keep_together(
    refs: list[RecordRef], suffixes: tuple[str, ...]
) -> tuple[list[RecordRef], dict[str, str]]:
    """Refs of a corpus without patient ids, with one patient_id for the same signal; and the
    repeated records.

    The latter is a dictionary from each repeating record to the first one.
    """
    files = {}
    for ref in refs:
        names = (ref.path + suffix for suffix in suffixes)
        files[ref.record_id] = next(
            (name for name in names if os.path.exists(name)), ref.path + suffixes[0]
        )
    same = find_duplicates(files)
    patients = {ref.record_id: ref.patient_id for ref in refs}
    refs = [
        dataclasses.replace(r, patient_id=patients[same.get(r.record_id, r.record_id)])
        for r in refs
    ]
    return refs, same
