"""Packed records and copies of data sets on object storage: the same records, whole or not at
all."""

import json
import os
import shutil

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset import fetch, packed
from data_prep.dataset.fetch import fetch_dataset
from data_prep.dataset.packed import open_packed
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.data.packed_source import PackedSource
from lvcg_jax.train.loop import check_places, open_data


@pytest.fixture(scope="module")
def shards(shards_dir):
    return ShardSet(shards_dir, "train")


def test_a_batch_of_packed_records_is_that_of_the_shards_and_packing_is_done_once(
    shards, tmp_path, monkeypatch
):
    source = PackedSource([open_packed(shards, tmp_path)])
    numbers = np.array([5, 0, -1, len(shards) - 1])
    one, two = (BatchMaker(shards, 1, 2, [0, 1], True, source=s)(numbers) for s in (None, source))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
        assert array.dtype == two[name].dtype
    monkeypatch.setattr(packed, "_pack", None)
    open_packed(shards, tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


def test_packed_records_that_were_changed_are_refused_and_copied_ones_taken(shards, tmp_path):
    folder = open_packed(shards, tmp_path / "a").folder
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    open_packed(shards, tmp_path / "b")
    with open(folder / "beats.npy", "r+b") as file:
        file.seek(5000)
        file.write(b"\1\2\3")
    os.utime(folder / "beats.npy", ns=(0, 0))
    with pytest.raises(InputError, match=r"the checksum of beats.npy .* delete it, it is made"):
        open_packed(shards, tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        open_packed(shards, tmp_path / "file")


def test_packing_that_fails_leaves_nothing(shards, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed.np, "save", full)
    with pytest.raises(InputError, match="No space left on device.*make room"):
        open_packed(shards, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


# ---- From a bucket --------------------------------------------------------------------------


@pytest.fixture
def remote(bucket_in_memory, shards_dir):
    """The synthetic shards at gs://bucket/data/set."""
    from etils import epath

    place = epath.Path("gs://bucket/data/set")
    for path in shards_dir.iterdir():
        if path.is_file():
            (place / path.name).write_bytes(path.read_bytes())
    return place


def test_a_data_set_in_a_bucket_is_copied_once_and_goes_on_after_an_interruption(
    remote, shards_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 100_000)
    read, chunks = [], fetch._chunks

    def counted(source, start, stop_after=None):
        for chunk in chunks(source, start):
            read.append(len(chunk))
            yield chunk
            if len(read) == stop_after:
                raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_chunks", lambda *a: counted(*a, stop_after=3))
    with pytest.raises(KeyboardInterrupt):
        fetch_dataset(remote, tmp_path)
    monkeypatch.setattr(fetch, "_chunks", counted)
    folder = fetch_dataset(remote, tmp_path)
    expected = ShardSet(shards_dir, "train")
    copied = ShardSet(folder, "train")
    copied.verify()
    np.testing.assert_array_equal(copied[3]["beats"], expected[3]["beats"])
    files = [p for p in folder.iterdir() if p.name not in ("dataset.json", ".lock")]
    assert sum(read) == sum(p.stat().st_size for p in files), "no byte was read twice"
    read.clear()
    assert fetch_dataset(remote, tmp_path) == folder and not read


def test_what_is_wrong_with_a_copy_is_told_in_one_line(remote, tmp_path):
    facts = json.loads((remote / "dataset.json").read_text())
    name = facts["splits"]["train"]["shards"][0]["file"]
    whole = (remote / name).read_bytes()
    (remote / name).write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    with pytest.raises(InputError, match=rf"{name}: its checksum .* copy the data set there again"):
        fetch_dataset(remote, tmp_path)
    # a part of an earlier version is thrown away, and the file copied whole
    (remote / name).write_bytes(whole)
    folder = next(tmp_path.iterdir())
    (folder / f"{name}.part").write_bytes(b"something else")
    assert ShardSet(fetch_dataset(remote, tmp_path), "train")[0]["uid"] >= 0
    (remote / name).unlink()
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=rf"{name}: the file is missing"):
        fetch_dataset(remote, tmp_path)
    with pytest.raises(InputError, match=r"gs://bucket/data: no data set there"):
        fetch_dataset(remote.parent, tmp_path)


def test_training_takes_a_bucket_with_a_folder_to_copy_it_to(remote, smoke, tmp_path):
    smoke.data.dir, smoke.data.cache = f"{remote}:0.5", str(tmp_path / "cache")
    check_places(smoke)
    train, validation = open_data(smoke, tmp_path / "run")
    assert train.weights == [0.5] and validation.directory == train.sets[0].directory
    assert validation.directory.parent == tmp_path / "cache"
    smoke.data.cache = ""
    with pytest.raises(InputError, match="gs://bucket/data/set: .* name a folder .* in data.cache"):
        check_places(smoke)
