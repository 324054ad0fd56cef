"""Masked reductions that nothing masked can reach, and the packed layout of beats."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.masking import (
    beat_mask,
    beat_owner,
    beat_slots,
    masked_mean,
    masked_median,
    masked_sum,
    to_beats,
    to_packed,
    to_records,
)

COUNTS = np.random.default_rng(1).integers(0, 6, (5, 3, 4)).astype(np.int32)
COUNTS[0, 0] = 0  # a group without any beat
COUNTS[1, 1] = [0, 5, 0, 0]
MOST = int(COUNTS.sum(-1).max())  # beats of the fullest group


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_median_is_of_what_the_mask_leaves(poison):
    x = np.random.default_rng(0).integers(0, 6, (7, 5, 9)).astype(np.float32)  # with ties
    mask = np.random.default_rng(1).random((7, 1, 9)) < 0.6
    mask[:, 0, 3] = False
    found = masked_median(np.where(mask, x, poison), mask, 0)
    expected = [[np.median(x[m, i, j]) if (m := mask[:, 0, j]).any() else 0 for j in range(9)]
                for i in range(5)]  # fmt: skip
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_masked_values_cannot_reach_the_mean_or_its_gradient(poison):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    mask = rng.random((4, 6)) < 0.6
    mask[2] = False
    expected = [row[m].mean() if m.any() else 0.0 for row, m in zip(x, mask, strict=True)]
    poisoned = np.where(mask, x, poison).astype(np.float32)
    np.testing.assert_allclose(masked_mean(poisoned, mask, 1), expected, rtol=1e-6)
    np.testing.assert_allclose(
        masked_sum(poisoned, mask, 1), np.where(mask, x, 0).sum(1), rtol=1e-5
    )
    gradient = jax.grad(lambda v: (masked_mean(v, mask, 1) ** 2).sum())(poisoned)
    counts = np.maximum(mask.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(
        gradient, mask * 2 * np.array(expected)[:, None] / counts, rtol=1e-5, atol=1e-7
    )


def test_masked_mean_broadcasts_its_mask():
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    mask = np.array([[True, False, True], [False, False, False]])
    expected = np.stack([x[0, [0, 2]].mean(0), np.zeros(5)])
    np.testing.assert_allclose(masked_mean(x, mask[..., None], 1), expected, rtol=1e-6)


@pytest.mark.parametrize("spare", [0, 7])
def test_beat_owner_counts_through_the_records(spare):
    for num_beats in COUNTS:
        capacity = MOST + spare
        row, position, valid = (np.asarray(x) for x in beat_owner(num_beats, capacity))
        for g, counts in enumerate(num_beats):
            expected = [(r, k) for r, n in enumerate(counts) for k in range(n)]
            assert list(zip(row[g][valid[g]], position[g][valid[g]], strict=True)) == expected
            np.testing.assert_array_equal(valid[g], np.arange(capacity) < len(expected))


@pytest.mark.parametrize("spare", [0, 7])
def test_to_records_and_to_packed_are_inverse(spare):
    for num_beats in COUNTS:
        capacity = MOST + spare
        row, position, valid = beat_owner(num_beats, capacity)
        packed = np.random.default_rng(0).normal(size=(3, capacity, 2)).astype(np.float32)
        packed[~np.asarray(valid)] = np.nan  # padding must not appear in a record
        records = np.asarray(to_records(packed, num_beats, 6))
        assert np.all(records[~np.asarray(beat_mask(num_beats, 6))] == 0)
        for g, counts in enumerate(num_beats):
            start = 0
            for r, n in enumerate(counts):
                np.testing.assert_array_equal(records[g, r, :n], packed[g, start : start + n])
                start += n
        again = np.asarray(to_packed(records, row, position))
        np.testing.assert_array_equal(again[valid], packed[valid])


@pytest.mark.parametrize("spare", [0, 7])
def test_places_keep_the_promise_that_the_compiler_is_given(spare):
    """In bounds and ascending: an accelerator that is told so may return anything otherwise."""
    beats, capacity = 6, MOST + spare
    for num_beats in COUNTS:
        row, position, _ = (np.asarray(x) for x in beat_owner(num_beats, capacity))
        slots = np.asarray(beat_slots(num_beats, beats, capacity)).reshape(len(num_beats), -1)
        for places, bound in (
            (row * beats + position, num_beats.shape[1] * beats),
            (slots, capacity),
        ):
            assert places.min() >= 0 and places.max() < bound
            assert (np.diff(places, axis=1) >= 0).all()
        assert position.max() < beats

    def there_and_back(x):
        row, position, _ = beat_owner(COUNTS[0], capacity)
        return to_packed(to_records(x, COUNTS[0], beats), row, position).sum()

    given = jax.ShapeDtypeStruct((3, capacity, 2), np.float32)
    text = jax.jit(jax.grad(there_and_back)).lower(given).as_text()
    hints = re.findall(r"indices_are_sorted = (\w+)", text)
    assert len(hints) >= 4 and set(hints) == {"true"}  # two gathers for values, two scatters


def test_to_records_keeps_the_type():
    num_beats = np.array([[2, 1]], np.int32)
    for values in (
        np.array([[True, False, True]]),
        np.array([[1, 2, 3]], np.int32),
        np.ones((1, 3), np.float32),
    ):
        assert to_records(jnp.asarray(values), num_beats, 3).dtype == values.dtype


def test_each_beat_gets_its_records_value():
    num_beats = np.array([[2, 0, 3], [1, 1, 1]], np.int32)
    row, _, valid = beat_owner(num_beats, 5)
    value = np.array([[10, 20, 30], [40, 50, 60]], np.int32)
    found = np.asarray(to_beats(value, row))
    np.testing.assert_array_equal(found[np.asarray(valid)], [10, 10, 30, 30, 30, 40, 50, 60])
