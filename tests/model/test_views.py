"""Training views: uniform over the allowed subsets, and a matter of the record and the step
only."""

import jax
import numpy as np
import pytest

from data_prep.ecg.geometry import lead_matrix, training_subsets
from data_prep.ecg.leads import LEADS, mask_leads
from lvcg_jax.model.randomness import record_keys
from lvcg_jax.model.views import draw_views, visible_leads

SUBSETS = training_subsets(lead_matrix("paper"), 3, 1e-4, True, None)
ALL = 4095


def _bits(*leads):
    return sum(1 << LEADS.index(lead) for lead in leads)


@jax.jit
def _draw(step, uid, available):
    return draw_views(jax.random.fold_in(jax.random.key(0), step), uid, available, SUBSETS, 3)


def _chi_square(draws, options):
    values, counts = np.unique(draws, return_counts=True)
    assert set(values) <= set(options)
    expected = len(draws) / len(options)
    full = np.zeros(len(options))
    full[np.searchsorted(np.sort(options), values)] = counts
    freedom = len(options) - 1
    return ((full - expected) ** 2 / expected).sum(), freedom + 5 * np.sqrt(2 * freedom)


def test_bit_masks_become_booleans_in_the_order_of_leads():
    np.testing.assert_array_equal(visible_leads(np.arange(4096)), mask_leads(np.arange(4096)))


def test_views_are_uniform_over_the_subsets_between_records_and_between_steps():
    uid = np.random.default_rng(0).integers(2**32, size=20_000, dtype=np.uint32)
    statistic, bound = _chi_square(
        np.asarray(_draw(0, uid, np.full(20_000, ALL, np.int32))), SUBSETS
    )
    assert statistic < bound
    steps = jax.vmap(lambda step: _draw(step, uid[:1], np.array([ALL], np.int32))[0])(
        np.arange(20_000)
    )
    statistic, bound = _chi_square(np.asarray(steps), SUBSETS)
    assert statistic < bound


def test_views_are_uniform_over_what_a_record_allows():
    available = ALL & ~_bits("V3", "V4", "V5", "V6", "aVR")
    allowed = SUBSETS[(SUBSETS & ~available) == 0]
    assert 10 < len(allowed) < 40
    uid = np.arange(8_000, dtype=np.uint32)  # neighbouring uids
    statistic, bound = _chi_square(
        np.asarray(_draw(1, uid, np.full(8_000, available, np.int32))), allowed
    )
    assert statistic < bound


def test_a_view_depends_on_uid_and_step_only():
    rng = np.random.default_rng(0)
    uid = rng.integers(2**32, size=64, dtype=np.uint32)
    available = np.full(64, ALL, np.int32)
    together = np.asarray(_draw(7, uid, available))
    order = rng.permutation(64)
    np.testing.assert_array_equal(_draw(7, uid[order], available), together[order])
    np.testing.assert_array_equal(_draw(7, uid[5:6], available[:1]), together[5:6])
    np.testing.assert_array_equal(
        _draw(7, uid.reshape(4, 16), available.reshape(4, 16)), together.reshape(4, 16)
    )
    assert (np.asarray(_draw(8, uid, available)) != together).mean() > 0.9
    assert len(np.unique(jax.random.key_data(record_keys(jax.random.key(0), uid)), axis=0)) == 64


@pytest.mark.parametrize(
    "leads, shown",
    [
        (("I", "II", "V2"), 3),  # just enough: the one subset
        (("I", "II", "III", "aVF"), 3),  # spans a plane only: three random ones of them
        (("II", "V5"), 2),  # fewer than three: all
        (("V1",), 1),
        ((), 0),
    ],
)
def test_records_with_few_leads_show_what_they_have(leads, shown):
    available = np.full(200, _bits(*leads), np.int32)
    views = np.asarray(_draw(3, np.arange(200, dtype=np.uint32), available))
    assert np.all(views & ~available == 0)
    assert np.all(mask_leads(views).sum(1) == shown)
    if len(leads) == 4:
        assert len(np.unique(views)) == 4  # every three of the four occur


def test_views_never_show_a_missing_lead():
    rng = np.random.default_rng(0)
    available = rng.integers(0, 4096, 3000).astype(np.int32)
    views = np.asarray(_draw(4, np.arange(3000, dtype=np.uint32), available))
    assert np.all(views & ~available == 0)
    np.testing.assert_array_equal(
        mask_leads(views).sum(1), np.minimum(mask_leads(available).sum(1), 3)
    )
