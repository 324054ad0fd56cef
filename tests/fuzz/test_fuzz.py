"""A few mutated files for every reader: what it returns does not matter, what it raises does.

The long run is `python launch/fuzz.py`; its table is in docs/trust.md.
"""

import random
import time
from pathlib import Path

import pytest

from data_prep.base.errors import InputError
from fuzz.mutation import mutate
from fuzz.readers import DEVICES, READERS

SLOW = {*DEVICES, "shards and ledger", "WFDB, other formats", "run directory", "torch"}
# Files that once did harm, each with its reader; a file that a long run finds joins them.
FAILURES = {
    "segfault.mat": "MATLAB 5",  # one flipped bit each, and scipy's reader ends the process
    "bus_error.mat": "MATLAB 5",
    "no_unicode.npz": "npz",  # a unit that is no character: SystemError
    "memo.pt": "torch",  # 2^31 entries claimed: gigabytes
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("default")  # of numpy, about mutated numbers
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path, name):
    reader, chance = READERS[name], random.Random(name)
    reader.prepare(tmp_path)
    reader.read(tmp_path)  # as it is, it can be read
    originals = {file: (tmp_path / file).read_bytes() for file in reader.files}
    for _ in range(25 if name in SLOW else 100):
        file = chance.choice(reader.files)
        (tmp_path / file).write_bytes(mutate(originals[file], chance))
        try:
            reader.read(tmp_path)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
        (tmp_path / file).write_bytes(originals[file])


def test_files_that_once_did_harm_are_read_or_refused_in_one_line(tmp_path):
    folder = Path(__file__).with_name("failures")
    assert {path.name for path in folder.iterdir()} == FAILURES.keys()
    for name, reader in FAILURES.items():
        (tmp_path / READERS[reader].files[0]).write_bytes((folder / name).read_bytes())
        began = time.process_time()
        try:
            READERS[reader].read(tmp_path)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
        assert time.process_time() - began < 5
