"""The temporal module is the printed recurrence, and knows nothing of padding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.model.dynamics import TemporalModule
from lvcg_jax.model.masking import beat_mask
from lvcg_jax.model.parts import Dynamics

COUNTS = np.array([4, 1, 6, 3], np.int32)
MODULE = TemporalModule(Dynamics(state_dim=7), token_dim=5)


def _tokens(slots=6, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(4, 6, 5)).astype(np.float32)
    return np.concatenate([tokens, np.zeros((4, slots - 6, 5), np.float32)], axis=1)


@pytest.fixture(scope="module")
def params():
    return MODULE.init(jax.random.key(0), _tokens(), beat_mask(COUNTS, 6))["params"]


@jax.jit
def _run(params, tokens, mask):
    return MODULE.apply({"params": params}, tokens, mask)


def test_states_are_those_of_a_plain_loop(params):
    tokens = _tokens()
    predicted, last = _run(params, tokens, beat_mask(COUNTS, 6))
    cell, step = nn.GRUCell(7), params["step"]
    for b, count in enumerate(COUNTS):
        state = tokens[b, 0] @ params["start"]["kernel"] + params["start"]["bias"]
        for n in range(count):
            token = state @ step["readout"]["kernel"] + step["readout"]["bias"]
            np.testing.assert_allclose(predicted[b, n], token, atol=1e-5)
            np.testing.assert_allclose(last[b], state, atol=1e-5) if n == count - 1 else None
            state, _ = cell.apply({"params": step["gru"]}, state, token)


def test_reading_the_encoders_tokens_is_a_plain_loop_over_all_of_them(params):
    """Predictions know the beats before, the last state knows every beat and nothing of padding."""
    tokens = _tokens(slots=8)
    module = TemporalModule(Dynamics(state_dim=7, reads="encoded"), token_dim=5)
    predicted, last = module.apply({"params": params}, tokens, beat_mask(COUNTS, 8))
    cell, step = nn.GRUCell(7), params["step"]
    for b, count in enumerate(COUNTS):
        state = tokens[b, 0] @ params["start"]["kernel"] + params["start"]["bias"]
        for n in range(count):
            token = state @ step["readout"]["kernel"] + step["readout"]["bias"]
            np.testing.assert_allclose(predicted[b, n], token, atol=1e-5)
            state, _ = cell.apply({"params": step["gru"]}, state, tokens[b, n])
        np.testing.assert_allclose(last[b], state, atol=1e-5)


def test_padding_changes_nothing_bit_for_bit(params):
    mask = np.asarray(beat_mask(COUNTS, 6))
    predicted, last = _run(params, _tokens(), mask)
    dirty = np.where(mask[..., None], _tokens(), 1e6).astype(np.float32)
    jax.tree.map(np.testing.assert_array_equal, _run(params, dirty, mask), (predicted, last))
    more_predicted, more_last = _run(params, _tokens(9), beat_mask(COUNTS, 9))
    np.testing.assert_array_equal(more_last, last)
    np.testing.assert_array_equal(
        np.asarray(more_predicted)[:, :6][mask], np.asarray(predicted)[mask]
    )


@pytest.mark.parametrize("reads", ["predicted", "encoded"])
def test_it_starts_at_the_first_beat_of_the_mask(params, reads):
    """Slots before it change nothing: the same numbers as with these slots cut off."""
    module = TemporalModule(Dynamics(state_dim=7, reads=reads), token_dim=5)
    skip, mask = 2, np.asarray(beat_mask(COUNTS, 6))
    later = np.concatenate([np.full((4, skip, 5), 1e6, np.float32), _tokens()], axis=1)
    shifted = np.concatenate([np.zeros((4, skip), bool), mask], axis=1)
    predicted, last = module.apply({"params": params}, later, shifted)
    expected, expected_last = module.apply({"params": params}, _tokens(), mask)
    np.testing.assert_array_equal(last, expected_last)
    np.testing.assert_array_equal(np.asarray(predicted)[:, skip:][mask], expected[mask])


def test_the_state_stands_still_after_the_last_beat(params):
    predicted, last = _run(params, _tokens(9), beat_mask(COUNTS, 9))
    readout = params["step"]["readout"]
    for b, count in enumerate(COUNTS):
        np.testing.assert_array_equal(
            predicted[b, count:], np.broadcast_to(predicted[b, count - 1], (9 - count, 5))
        )
        np.testing.assert_allclose(
            predicted[b, -1], last[b] @ readout["kernel"] + readout["bias"], atol=1e-5
        )
    assert np.abs(np.diff(predicted[2, :6], axis=0)).max(1).min() > 1e-4  # and it does move before


def test_gradient_reaches_the_first_token_from_every_beat(params):
    mask = beat_mask(COUNTS, 6)
    for beat in (0, 3, 5):

        def loss(tokens, beat=beat):
            return jnp.where(mask[:, beat, None], _run(params, tokens, mask)[0][:, beat], 0).sum()

        gradient = np.asarray(jax.grad(loss)(_tokens()))
        assert np.isfinite(gradient).all()
        reached = np.abs(gradient[:, 0]).max(-1) > 0
        np.testing.assert_array_equal(reached, beat < COUNTS)
        # it is fed its own predictions, not the encoder's tokens
        assert np.all(gradient[:, 1:] == 0)


def test_two_layers_are_a_plain_loop_and_dropout_is_between_them():
    module = TemporalModule(Dynamics(state_dim=7, layers=2), token_dim=5, dropout=0.5)
    tokens, mask = _tokens(), beat_mask(COUNTS, 6)
    params = module.init(jax.random.key(0), tokens, mask)["params"]
    predicted, last = module.apply({"params": params}, tokens, mask)
    cell, step = nn.GRUCell(7), params["step"]
    states = np.split(tokens[2, 0] @ params["start"]["kernel"] + params["start"]["bias"], 2)
    for n in range(6):
        token = states[1] @ step["readout"]["kernel"] + step["readout"]["bias"]
        np.testing.assert_allclose(predicted[2, n], token, atol=1e-5)
        if n == 5:
            np.testing.assert_allclose(last[2], states[1], atol=1e-5)
        states[0], _ = cell.apply({"params": step["gru"]}, states[0], token)
        states[1], _ = cell.apply({"params": step["gru1"]}, states[1], states[0])
    seeds = np.arange(24, dtype=np.uint32).reshape(4, 6)
    dropped = module.apply({"params": params}, tokens, mask, seeds)[1]
    np.testing.assert_array_equal(dropped[1], last[1])  # one beat: the state never moves
    assert np.all(np.abs(dropped - last)[[0, 2, 3]].max(1) > 1e-3)
