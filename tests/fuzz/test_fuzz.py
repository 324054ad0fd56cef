"""A few mutated files for every reader: what it returns does not matter, what it raises does.

The long run is `python launch/fuzz.py`; its table is in docs/trust.md.
"""

import random

import pytest

from data_prep.base.errors import InputError
from fuzz.mutation import mutate
from fuzz.readers import DEVICES, READERS

SLOW = {*DEVICES, "shards and ledger", "WFDB, other formats", "run directory", "torch"}


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
