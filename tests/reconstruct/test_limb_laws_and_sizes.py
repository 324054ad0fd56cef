"""Derived limb leads fit together, and the sizes of visible leads tell those of hidden ones."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, LIMB
from lvcg_jax.reconstruct.lead_sizes import (
    FARTHEST,
    MEDIANS,
    LeadSizes,
    fit_sizes,
    independent,
    sizes_of_facts,
)
from lvcg_jax.reconstruct.limb_laws import obey_limb_laws
from lvcg_jax.reconstruct.methods import FIELD, PACKAGED, open_network


def broken_laws(mv: np.ndarray) -> float:
    """The largest difference in mV between limb leads and what I and II make of them."""
    return float(np.abs(mv[:6] - LIMB @ mv[:2]).max())


@pytest.mark.parametrize("shown", ["V2", "I", "aVR", "aVF,V1", "I,II,III,aVR,aVL,aVF"])
def test_derived_limb_leads_become_the_nearest_that_obey_the_laws(shown):
    rng = np.random.default_rng(0)
    seen = np.isin(LEADS, shown.split(","))
    true = rng.normal(size=(12, 40)).astype(np.float32)
    true[:6] = LIMB @ true[:2]
    np.testing.assert_allclose(obey_limb_laws(true, seen), true, atol=1e-5)
    if seen[:6].all():
        return
    x = true + np.where(seen[:, None], 0.0, 0.3 * rng.normal(size=true.shape))
    found = obey_limb_laws(x, seen)
    assert broken_laws(found) < 1e-5 < broken_laws(x)
    kept = seen | np.array([lead.startswith("V") for lead in LEADS])
    np.testing.assert_array_equal(found[kept], x[kept])
    # no other set of leads that obeys them is nearer, and the truth is not farther than it was
    assert ((found - true) ** 2).sum() < ((x - true) ** 2).sum()
    for share in (-0.01, 0.01):
        other = found + share * (true - found)
        assert broken_laws(other) < 1e-5
        assert ((other - x) ** 2).sum() > ((found - x) ** 2).sum()


def test_the_sizes_of_hidden_leads_given_visible_ones_are_those_of_the_gaussian():
    rng = np.random.default_rng(1)
    mixed = 0.2 * rng.normal(size=(12, 3))
    truth = LeadSizes(np.linspace(0.1, 0.3, 12), mixed @ mixed.T + 0.01 * np.eye(12))
    # a Cholesky factor is unique: the default, an SVD, draws other records on another processor
    normal = rng.standard_normal((4000, 12)) @ np.linalg.cholesky(truth.covariance).T
    logs = np.log(truth.median) + normal
    lacking = np.where(rng.random(logs.shape) < 0.1, np.nan, np.exp(logs))
    sizes = fit_sizes(lacking)
    np.testing.assert_allclose(sizes.median, truth.median, rtol=0.04)
    np.testing.assert_allclose(sizes.covariance, truth.covariance, atol=0.02)
    # by the precision matrix of the true Gaussian, where no size is drawn in
    seen, hidden = np.isin(LEADS, ["I", "V2"]), LEADS.index("V5")
    three = [*np.flatnonzero(seen), hidden]
    precision = np.linalg.inv(truth.covariance[np.ix_(three, three)])
    far = logs - np.log(truth.median)
    expected = np.log(truth.median[hidden]) - far[:, seen] @ precision[2, :2] / precision[2, 2]
    near = np.flatnonzero((np.abs(far) < truth.spread)[:, seen].all(1))[:100]
    found = [np.log(sizes.given(np.exp(logs[row]), seen)[0][hidden]) for row in near]
    np.testing.assert_allclose(found, expected[near], atol=0.15 * truth.spread[hidden])
    given, spread = sizes.given(np.exp(logs[0]), seen)
    np.testing.assert_allclose(given[seen], np.exp(logs[0])[seen])
    assert (spread[seen] == 0).all() and (spread[~seen] < sizes.spread[~seen]).all()
    errors = [x - np.log(sizes.given(np.exp(x), seen)[0]) for x in logs[:500]]
    inside = (np.abs(errors) <= spread)[:, ~seen].mean()
    assert 0.6 < inside < 0.75, inside
    # a size beyond all others says no more than the largest
    huge, larger = (sizes.given(np.where(seen, s, 1.0), seen)[0] for s in (1e3, 1e6))
    np.testing.assert_allclose(huge[~seen], larger[~seen])
    assert np.isfinite(huge).all() and huge[~seen].max() < np.exp(4 * FARTHEST)


def test_sizes_are_stored_with_a_network_and_older_files_have_medians_alone():
    stored = open_network(FIELD, PACKAGED).facts
    sizes = sizes_of_facts(stored)
    assert sizes.covariance.shape == (12, 12) and (sizes.spread > 0.2).all()
    seen = np.isin(LEADS, ["II"])
    larger, spread = sizes.given(2 * sizes.median, seen)
    assert (larger[~seen] > sizes.median[~seen]).sum() >= 9 and (spread < sizes.spread).all()
    again = sizes_of_facts(sizes.facts())
    np.testing.assert_allclose(again.covariance, sizes.covariance, atol=1e-5)
    np.testing.assert_allclose(again.median, sizes.median, atol=1e-5)

    old = sizes_of_facts({MEDIANS: stored[MEDIANS]})
    apart = independent(sizes.median, sizes.spread)
    for these, expected in ((old, 0.0 * sizes.spread), (apart, sizes.spread)):
        median, spread = these.given(2 * sizes.median, seen)
        np.testing.assert_allclose(median[~seen], sizes.median[~seen])
        np.testing.assert_allclose(spread[~seen], expected[~seen])
    assert sizes_of_facts({}) is None
    with pytest.raises(InputError, match="no training record has V6"):
        fit_sizes([[0.1] * 11 + [np.nan]] * 3)
