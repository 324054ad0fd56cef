"""The batch: one description, which everything that makes or declares a batch keeps to."""

import jax
import numpy as np
import pytest
from helpers.packed_batch import random_records, tiny_config
from jax.sharding import AbstractMesh, AxisType

from data_prep.dataset.shards import ShardSet
from lvcg_jax.bench.plain_model import pad_batch
from lvcg_jax.bench.scaling import abstract_programs
from lvcg_jax.data import packing
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.data.packing import BATCH, EMBED_BATCH
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.export.__main__ import INPUTS, input_shapes


def kinds(arrays):
    """Name, type and number of axes of each array, in order."""
    return [(name, np.dtype(x.dtype), len(x.shape)) for name, x in arrays.items()]


def described(fields, leading):
    return [
        (name, np.dtype(field.dtype), leading + 1 + len(field.axes))
        for name, field in fields.items()
    ]


def test_the_layout_itself():
    found = packing.shapes((2,), 5, 3, 7, EMBED_BATCH)
    assert [f"{name} {x.dtype} {x.shape}" for name, x in found.items()] == [
        "beats float16 (2, 5, 12, 7)",
        "length int32 (2, 5)",
        "complete bool (2, 5)",
        "num_beats int32 (2, 3)",
        "lead_mask int32 (2, 3)",
        "scale float32 (2, 3, 12)",
        "uid uint32 (2, 3)",
        "visible int32 (2, 3)",
    ]


def test_batches_for_training_embedding_and_the_bench_are_as_described(shards_dir):
    shards = ShardSet(shards_dir, "train")
    batch = BatchMaker(shards, 2, 1, [0], True)(np.arange(8))
    assert kinds(batch) == described(BATCH, 2)
    _, embed_batch = next(packing.pack(shard_windows(shards), 200, 16))
    assert kinds(embed_batch) == described(EMBED_BATCH, 1)
    one_group = {name: x[0] for name, x in batch.items()}
    assert kinds(pad_batch(one_group, 20)) == described(BATCH, 1)
    assert kinds(packing.silent_batch(128)) == described(BATCH, 1)


def test_programs_are_lowered_and_exported_for_the_same_batch(model):
    mesh = AbstractMesh((8, 1), ("data", "model"), (AxisType.Auto,) * 2)
    programs = abstract_programs(tiny_config(), mesh, rows=4, slots=64)
    for name, leading in (("train", 2), ("embed", 1)):
        assert kinds(programs[name][1][1]) == described(BATCH, leading)
    inputs = input_shapes(model, 3)
    assert tuple(inputs) == INPUTS == tuple(name for name in BATCH if name != "uid")
    # one record a group, without an axis for it; beats come unrounded
    expected = packing.shapes((3,), 20, None, 128)
    expected["beats"] = jax.ShapeDtypeStruct(expected["beats"].shape, np.float32)
    assert inputs == {name: expected[name] for name in INPUTS}


def test_windows_stand_one_after_another_and_come_out_as_they_went_in():
    records = random_records((3, 0, 2), 16)
    batch = packing.fill(packing.empty((2, 2), 7, 4, 16), [records[0], None, *records[1:]], (1, 0))
    assert batch["num_beats"][1, 0].tolist() == [3, 0, 0, 2]
    np.testing.assert_array_equal(batch["beats"][1, 0, 3:5], records[2]["beats"])
    assert not batch["beats"][1, 0, 5:].any() and not batch["beats"][0].any()
    assert (batch["scale"][1, 0, 1] == 1).all() and batch["uid"][1, 0, 1] == 0
    out = list(packing.unpack({name: x[1] for name, x in batch.items()}))
    for record, row in ((records[0], 0), (records[1], 2), (records[2], 3)):
        for name, value in record.items():
            np.testing.assert_array_equal(out[row][name], value)
        assert out[row]["num_beats"] == len(record["length"])


def test_a_window_without_a_field_of_the_batch_is_refused():
    (record,) = random_records((3,), 16)
    del record["scale"]
    with pytest.raises(KeyError, match="scale"):
        packing.fill(packing.empty((1,), 4, 1, 16), [record])
