"""Features in time become those of beats."""

import numpy as np

from lvcg_jax.model.pooling import steps_to_beats


def test_features_of_steps_become_those_of_beats_by_the_time_they_share():
    features = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)
    mask = np.ones((1, 4), bool)  # steps of 10 samples
    found = steps_to_beats(features, mask, np.array([[5, 20, 10]]), 40)[0]
    np.testing.assert_allclose(found[0], features[0, 0], rtol=1e-5)
    mixed = (5 * features[0, 0] + 10 * features[0, 1] + 5 * features[0, 2]) / 20
    np.testing.assert_allclose(found[1], mixed, rtol=1e-5)
    np.testing.assert_allclose(found[2], (features[0, 2] + features[0, 3]) / 2, rtol=1e-5)


def test_steps_after_the_end_of_a_record_reach_no_beat():
    features = np.full((1, 4, 6), 7.0, np.float32)
    features[:, :2] = 1.0
    mask = np.array([[True, True, False, False]])
    found = steps_to_beats(features, mask, np.array([[8, 9, 0]]), 40)
    np.testing.assert_allclose(found[0, :2], 1.0, rtol=1e-6)
    np.testing.assert_array_equal(found[0, 2], 0.0)
