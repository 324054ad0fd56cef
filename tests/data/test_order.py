"""The order of training: every record once an epoch, batches and groups with nearly as many beats,
and worked out by each process for its own records, once."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.commands import get_config

from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.bench.records import BEAT_COUNT_SHARES
from lvcg_jax.data.batches import BatchMaker
from lvcg_jax.data.order import BatchOrder, OwnOrder, share_out
from lvcg_jax.data.shuffle import random_bits, shuffled
from lvcg_jax.train.sharding import sharing_devices

PTBXL = np.repeat(np.arange(6, 21), np.array(BEAT_COUNT_SHARES) * 15)  # 15,000 records


def all_columns(order: BatchOrder, steps: range) -> np.ndarray:
    """Record numbers [steps,batch] of whole batches."""
    return order.records(np.array(steps), order.columns.reshape(-1))


# ---- Random orders --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 3001])
def test_a_shuffle_holds_everything_once_and_another_key_gives_another(size):
    keys = np.repeat(random_bits(np.arange(20)), size)
    orders = shuffled(np.tile(np.arange(size), 20), np.full(20 * size, size), keys)
    orders = orders.reshape(20, size)
    assert (np.sort(orders) == np.arange(size)).all()
    assert len({tuple(order) for order in orders.tolist()}) >= min(15, math.factorial(size))


def test_no_order_and_no_neighbour_is_preferred():
    keys = random_bits(5, np.arange(24_000))
    four = [shuffled(np.full(24_000, i), np.full(24_000, 4), keys) for i in range(4)]
    seen = Counter(zip(*(x.tolist() for x in four), strict=True))
    assert all(abs(seen[order] - 1000) < 150 for order in permutations(range(4)))
    one, next_one = (shuffled(np.full(24_000, i), np.full(24_000, 999), keys) for i in (3, 4))
    for values in (one, (next_one - one) % 999):
        found = np.bincount(values * 20 // 999, minlength=20)
        assert np.abs(found - 1200).max() < 5 * np.sqrt(1200)


# ---- Epochs and batches ---------------------------------------------------------------------


@pytest.mark.parametrize("records, size", [(96, 8), (101, 8), (1000, 64), (5, 8), (64, 64)])
def test_every_record_is_once_in_an_epoch_and_no_batch_is_far_from_the_others(records, size):
    counts = np.random.default_rng(1).integers(2, 21, records)
    order = BatchOrder(counts, size, 1, 1, seed=0)
    steps = np.arange(-(-4 * records // size) + 1)
    numbers = all_columns(order, range(len(steps))).reshape(-1)
    epoch, _ = order._places(steps[:, None], order.columns.reshape(-1))
    epoch = epoch.reshape(-1)
    for k in range(4):
        assert sorted(numbers[epoch == k]) == list(range(records))
    first, second = numbers[epoch == 0], numbers[epoch == 1]
    assert records < 10 or first.tolist() != second.tolist()
    # an epoch begins and ends in the same batch for all columns, or in the next
    begins = [np.flatnonzero((epoch.reshape(-1, size) == 2).any(1))[i] for i in (0, -1)]
    assert abs(begins[0] - 2 * records / size) <= 1 and abs(begins[1] - 3 * records / size) <= 1


def test_records_meet_others_in_every_epoch():
    order = BatchOrder(PTBXL, 64, 1, 1, seed=0)
    per_epoch = len(PTBXL) // 64
    mates = set()
    for epoch in range(8):
        batches = all_columns(order, range(epoch * per_epoch, (epoch + 1) * per_epoch))
        mates |= set(batches[(batches == 7000).any(1)].reshape(-1).tolist())
    assert len(mates) > 0.9 * 8 * 64


def test_sharing_out_gives_every_hand_as_many_records_and_nearly_as_many_beats():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 21, 5000)
    numbers = rng.permutation(5000)[:640]
    shared = share_out(numbers, counts, 10)
    assert shared.shape == (10, 64) and sorted(shared.reshape(-1)) == sorted(numbers)
    beats = counts[shared].sum(1)
    assert beats.max() - beats.min() <= 20, "no more than one record's beats apart"
    np.testing.assert_array_equal(share_out(numbers, counts, 1).sum(), numbers.sum())


@pytest.mark.parametrize("accumulate, groups", [(1, 1), (2, 1), (1, 8)])
def test_training_batches_hold_nearly_as_many_beats_as_slots(accumulate, groups):
    counts = np.random.default_rng(0).integers(6, 21, 3000)
    order = BatchOrder(counts, 64, accumulate, groups, seed=0)
    beats = counts[all_columns(order, range(300))].reshape(-1, 64 // accumulate // groups).sum(1)
    assert 1 - beats.mean() / order.most_beats() < 0.03


def test_no_group_of_any_batch_has_more_beats_than_there_are_slots_for():
    rng = np.random.default_rng(0)
    for _ in range(200):
        size, groups = int(rng.choice([4, 8, 32])), int(rng.choice([1, 2, 4]))
        sets = [(int(n), int(share)) for n, share in rng.integers(5, 200, (rng.integers(1, 3), 2))]
        counts = rng.integers(2, 21, sum(n for n, _ in sets))
        order = BatchOrder(counts, size, 1, groups, 0, sets)
        first = int(rng.integers(0, 100_000))
        beats = counts[all_columns(order, range(first, first + 200))].reshape(200, groups, -1)
        assert beats.sum(2).max() <= order.most_beats(), (sets, size, groups)


def test_who_is_in_a_batch_and_a_micro_batch_does_not_depend_on_the_groups():
    for accumulate in (1, 2):
        orders = [BatchOrder(PTBXL, 16, accumulate, groups, 0) for groups in (1, 2, 8)]
        for step in (0, 3, 2000):
            members = [
                [sorted(some) for some in order[step].reshape(accumulate, -1).tolist()]
                for order in orders
            ]
            assert members[0] == members[1] == members[2]


@pytest.mark.parametrize("devices", [8, 16, 32, 256, 1024])
def test_two_records_a_device_pad_three_percent_at_most(devices):
    sharing = sharing_devices(2, devices, get_config("paper").mesh.group_records)
    assert 2 * sharing == 16, "no more devices than it takes"
    shards = SimpleNamespace(counts=PTBXL, preprocess=Preprocess())
    maker = BatchMaker(shards, 1, devices // sharing, [0], True, devices=sharing)
    order = maker.order(2 * devices, 0)
    slots = maker.training_slots(order)
    assert slots % sharing == 0
    beats = PTBXL[all_columns(order, range(100))].sum() / 100
    assert 1 - beats / (slots * devices // sharing) <= 0.03


# ---- Processes and threads ------------------------------------------------------------------


def test_processes_work_out_their_own_parts_of_the_same_batches():
    order = BatchOrder(PTBXL, 64, 2, 4, seed=3)
    parts = [OwnOrder(order, groups) for groups in ([0, 3], [1], [2])]
    for step in (0, 1, 5000):
        whole = order[step].reshape(2, 4, 8)
        for part, groups in zip(parts, ([0, 3], [1], [2]), strict=True):
            np.testing.assert_array_equal(part[step], whole[:, groups])


def test_eight_threads_work_out_each_window_once(monkeypatch):
    worked_out = []
    work_out = OwnOrder._work_out
    monkeypatch.setattr(
        OwnOrder, "_work_out", lambda self, k: worked_out.append((self, k)) or work_out(self, k)
    )
    order = BatchOrder(PTBXL, 512, 1, 1, seed=0)
    own = OwnOrder(order, [0])
    found = []
    with ThreadPoolExecutor(8) as threads:
        # As in training no reader is further behind than what is read ahead: at most a window here.
        for window in range(10):
            steps = range(window * own.steps, (window + 1) * own.steps)
            found += threads.map(own.__getitem__, steps)
    own.wait()
    mine = [k for order, k in worked_out if order is own]
    assert mine == list(range(11)), "in order, the one after the last ahead of need"
    np.testing.assert_array_equal(found[9 * own.steps].reshape(-1), order[9 * own.steps])
