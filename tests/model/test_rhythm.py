"""The rhythm encoder's numbers, and its edge cases: constant rhythm, one interval, none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.parts import Rhythm
from lvcg_jax.model.rhythm import (
    RhythmEncoder,
    RhythmHead,
    log_rr_ratio,
    rr_difference_statistics,
    rr_statistics,
    sinusoidal_basis,
)

ENCODER = RhythmEncoder(Rhythm(dim=6, hidden=8, basis=8, heads=2))
RR = np.array(
    [
        [0.0, 0.8, 0.9, 0.7, 1.1, 0.0],  # the partial intervals at both ends are masked
        [0.8, 0.8, 0.8, 0.8, 0.0, 0.0],  # constant
        [0.0, 0.75, 0.0, 0.0, 0.0, 0.0],  # one interval
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # none
        [0.3, 2.5, 0.3, 9.0, 0.3, 0.4],  # wild
    ],
    np.float32,
)
MASK = RR > 0


@pytest.fixture(scope="module")
def params():
    return ENCODER.init(jax.random.key(0), RR, MASK)["params"]


@jax.jit
def _encode(params, rr, mask):
    return ENCODER.apply({"params": params}, rr, mask)


def test_statistics_are_numpys():
    found, steps = rr_statistics(RR, MASK), rr_difference_statistics(RR, MASK)
    for row, mask, four, two in zip(RR, MASK, found, steps, strict=True):
        r = row[mask].astype(np.float64)
        expected = [r.mean(), r.std(), np.ptp(r), r.std() / r.mean()] if len(r) else [0, 0, 0, 0]
        np.testing.assert_allclose(four, expected, rtol=1e-5, atol=1e-6)
        change = np.diff(r) if len(r) > 1 else np.zeros(1)
        np.testing.assert_allclose(two, [change.mean(), change.std()], rtol=1e-5, atol=1e-6)


def test_a_difference_never_spans_a_masked_interval():
    rr = np.array([[0.8, 5.0, 1.0, 1.2]], np.float32)
    mask = np.array([[True, False, True, True]])
    # 0.2 s, mean interval 1 s
    np.testing.assert_allclose(rr_difference_statistics(rr, mask), [[0.2, 0.0]], atol=1e-6)


def test_log_ratios_and_their_basis():
    found = np.asarray(log_rr_ratio(RR, MASK, 2.0))
    r = RR[0, 1:5]
    np.testing.assert_allclose(found[0, 1:5], np.log(r / r.mean()), rtol=1e-5)
    assert np.all(found[~MASK] == 0) and np.abs(found).max() <= 2
    basis = np.asarray(sinusoidal_basis(jnp.array([0.1, -0.4]), 8))
    k = np.arange(1, 9)
    np.testing.assert_allclose(
        basis[1], [*np.sin(-0.4 * np.pi * k), *np.cos(-0.4 * np.pi * k)], atol=1e-5
    )


def test_padding_and_masked_values_change_nothing(params):
    plain = _encode(params, RR, MASK)
    for junk in (1e6, np.nan):
        np.testing.assert_array_equal(
            _encode(params, np.where(MASK, RR, junk).astype(np.float32), MASK), plain
        )
    wide = [np.pad(x, [(0, 0), (0, 14)]) for x in (RR, MASK)]
    np.testing.assert_allclose(_encode(params, *wide), plain, atol=1e-5)
    # batch mates
    np.testing.assert_allclose(_encode(params, RR[2:3], MASK[2:3]), plain[2:3], atol=1e-5)


def test_every_valid_interval_counts(params):
    plain = np.asarray(_encode(params, RR, MASK))
    for n in range(1, 5):
        other = RR.copy()
        other[0, n] += 0.05
        moved = np.abs(np.asarray(_encode(params, other, MASK)) - plain).max(1)
        assert moved[0] > 1e-4 and np.all(moved[1:] == 0)


def test_values_and_gradients_are_finite_in_every_case(params):
    def loss(params, rr):
        return (_encode(params, rr, MASK) ** 2).sum()

    assert np.isfinite(_encode(params, RR, MASK)).all()
    for gradient in jax.tree.leaves(jax.grad(loss, (0, 1))(params, RR)):
        assert np.isfinite(gradient).all()
    assert np.all(jax.grad(loss, 1)(params, RR)[~MASK] == 0)


def test_hidden_intervals_stay_out_of_the_sequence_branches(params):
    """With the statistics branch cut off, which hears the whole rhythm, hidden intervals only set
    the mean."""
    blind = {**params, "stats1": jax.tree.map(jnp.zeros_like, params["stats1"])}
    hidden = np.zeros_like(MASK)
    hidden[0, 2], hidden[0, 3] = True, True
    swapped = RR.copy()
    swapped[0, [2, 3]] = RR[0, [3, 2]]  # the same mean

    def run(rr, hidden):
        return np.asarray(ENCODER.apply({"params": blind}, rr, MASK, hidden))

    np.testing.assert_allclose(run(swapped, hidden)[0], run(RR, hidden)[0], atol=1e-6)
    assert np.abs(run(swapped, None)[0] - run(RR, None)[0]).max() > 1e-4


def test_head_reads_back_one_ratio_a_slot_whatever_the_number_of_slots():
    head, rhythm = RhythmHead(8), np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    variables = head.init(jax.random.key(0), rhythm, 20)
    few, statistics = head.apply(variables, rhythm, 20)
    many, _ = head.apply(variables, rhythm, 40)
    assert few.shape == (3, 20) and statistics.shape == (3, 4)
    np.testing.assert_allclose(many[:, :20], few, atol=1e-5)
