"""Input pipeline: the same batches for any number of devices and processes, from any position."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data.batches import BatchMaker, ordered_batches, train_batches
from lvcg_jax.data.order import BatchOrder


@pytest.fixture(scope="module")
def shards(shards_dir):
    return ShardSet(shards_dir, "train")


def beats_by_record(batch):
    """{uid: beats} of a batch in the packed layout, groups in any arrangement."""
    found = {}
    for a, g in np.ndindex(*batch["num_beats"].shape[:2]):
        stops = np.cumsum(batch["num_beats"][a, g])
        for uid, count, stop in zip(
            batch["uid"][a, g], batch["num_beats"][a, g], stops, strict=True
        ):
            found[int(uid)] = batch["beats"][a, g, stop - count : stop]
    return found


def test_a_batch_holds_every_beat_of_its_records_whole(shards):
    numbers = np.arange(8)
    batch = BatchMaker(shards, 1, 2, [0, 1], True)(numbers)
    found = beats_by_record(batch)
    for number in numbers:
        example = shards[int(number)]
        np.testing.assert_array_equal(found[int(example["uid"])], example["beats"])


def test_processes_read_disjoint_parts_that_make_the_same_batch(shards):
    numbers = BatchOrder(shards.counts, 8, 1, 4, seed=3)[5]
    whole = BatchMaker(shards, 1, 4, [0, 1, 2, 3], True)(numbers)
    parts = [BatchMaker(shards, 1, 4, mine, True)(numbers) for mine in ([0, 1], [2, 3])]
    for name, array in whole.items():
        np.testing.assert_array_equal(array, np.concatenate([part[name] for part in parts], axis=1))


def test_group_count_changes_nothing_but_the_arrangement(shards):
    one, four = (
        beats_by_record(
            BatchMaker(shards, 1, g, range(g), True)(BatchOrder(shards.counts, 8, 1, g, seed=3)[1])
        )
        for g in (1, 4)
    )
    assert one.keys() == four.keys()
    for uid, beats in one.items():
        np.testing.assert_array_equal(beats, four[uid])


def test_stream_is_seeded_and_resumes_at_any_step(shards):
    maker = BatchMaker(shards, 1, 1, [0], True)

    def stream(seed, threads=1):
        return train_batches(maker, maker.order(8, seed), prefetch=2, threads=threads)

    first = stream(0)
    # 12 x 8 records: into the second pass over the data
    batches = [next(first)["uid"].copy() for _ in range(12)]
    later = stream(0)
    later.set_state({"next_index": 7})
    np.testing.assert_array_equal(next(later)["uid"], batches[7])
    assert not np.array_equal(next(stream(1))["uid"], batches[0])
    many = stream(0, threads=4)
    for batch in batches:
        np.testing.assert_array_equal(next(many)["uid"], batch)
    uids = np.concatenate([b.reshape(-1) for b in batches])[: len(shards)]
    assert len(set(uids.tolist())) == len(shards), "one pass over the data shows every record once"


def test_the_order_names_the_records_of_a_step(shards):
    maker = BatchMaker(shards, 2, 1, [0], True)
    order = maker.order(8, 0)
    stream = train_batches(maker, order, prefetch=2)
    for step in range(3):
        batch = next(stream)
        expected = [int(shards[int(i)]["uid"]) for i in order[step]]
        assert batch["uid"].reshape(-1).tolist() == expected


def test_ordered_batches_show_every_record_once_and_fill_the_rest(shards):
    batches = list(ordered_batches(BatchMaker(shards, 1, 1, [0], True), 7))
    valid = np.concatenate([b["num_beats"].reshape(-1) > 0 for b in batches])
    uids = np.concatenate([b["uid"].reshape(-1) for b in batches])[valid]
    assert uids.tolist() == [int(shards[i]["uid"]) for i in range(len(shards))]
    assert len(valid) % 7 == 0


def test_without_packing_every_record_has_all_its_slots(shards):
    batch = BatchMaker(shards, 1, 1, [0], False)(np.arange(4))
    assert batch["beats"].shape[2] == 4 * shards.preprocess.max_beats


def test_a_run_sees_next_to_one_shape_with_little_padding_and_no_beat_lost(shards):
    maker = BatchMaker(shards, 1, 1, [0], True)
    random = np.random.default_rng(0)
    counts = [
        shards.counts[random.integers(0, len(shards), 32)].reshape(1, 1, 32) for _ in range(500)
    ]
    sizes = np.array([maker.capacity(c) for c in counts])
    beats = np.array([c.sum() for c in counts])
    assert (sizes >= beats).all()
    assert (sizes == np.median(sizes)).mean() > 0.97 and len(set(sizes)) <= 2
    assert 1 - beats.sum() / sizes.sum() < 0.2
    crowded = np.full((1, 1, 32), shards.preprocess.max_beats)
    assert maker.capacity(crowded) == 32 * shards.preprocess.max_beats


def test_batch_that_does_not_divide_is_refused(shards):
    with pytest.raises(InputError, match=r"batch_size=6 .* 4 data-parallel"):
        BatchMaker(shards, 1, 4, range(4), True).order(6, 0)
