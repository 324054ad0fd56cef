"""Every method's loss, computed once more with plain loops, and what the method depends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lvcg_jax.peers import (
    astcl,
    augment,
    barlow_twins,
    byol,
    clocs,
    crt,
    ecg_jepa,
    heartlang,
    moco_v3,
    peer,
    simclr,
    simsiam,
    st_mem,
    ts_tcc,
    vit,
)
from lvcg_jax.peers.heads import Teacher

RNG = np.random.default_rng(0)
B, D = 5, 7
VALID = np.array([True, True, True, False, True])
KEYS = jax.random.split(jax.random.key(0), B)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def cos(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def surprise(query, own, keys, temperature):
    """-log softmax of the key `own` among keys."""
    scores = np.array([cos(query, key) / temperature for key in keys])
    return np.log(np.exp(scores).sum()) - cos(query, own) / temperature


def assert_valid(found, expected):
    """Equal for the valid records; of the others nothing is asked but that they are finite."""
    assert np.isfinite(np.asarray(found)).all()
    rows = np.flatnonzero(VALID)
    np.testing.assert_allclose(np.asarray(found)[rows], [expected[i] for i in rows], rtol=2e-5)


def test_simclr_is_a_cross_entropy_over_all_other_views_and_symmetric():
    one, other = list(normal(B, D)), list(normal(B, D))
    views = [x[i] for x in (one, other) for i in np.flatnonzero(VALID)]

    def loss(query, own):
        return surprise(query, own, [view for view in views if view is not query], 0.3)

    expected = {
        i: 0.5 * (loss(one[i], other[i]) + loss(other[i], one[i])) for i in np.flatnonzero(VALID)
    }
    found = simclr.nt_xent(jnp.stack(one + other), VALID, 0.3)
    assert_valid(found, expected)
    np.testing.assert_allclose(simclr.nt_xent(jnp.stack(other + one), VALID, 0.3), found, rtol=1e-5)


def test_byol_regresses_on_the_other_view_and_no_gradient_reaches_the_teacher():
    p, t = normal(2 * B, D), normal(2 * B, D)
    expected = [2 - cos(p[i], t[B + i]) - cos(p[B + i], t[i]) for i in range(B)]
    np.testing.assert_allclose(byol.regression(p, t), expected, rtol=1e-5)
    student, teacher = jax.grad(lambda *a: byol.regression(*a).sum(), (0, 1))(p, t)
    assert np.abs(student).max() > 0 and not np.any(teacher)


def test_simsiam_is_minus_a_cosine_and_stops_the_gradient_of_the_predicted_side():
    p, z = normal(2 * B, D), normal(2 * B, D)
    expected = [-0.5 * (cos(p[i], z[B + i]) + cos(p[B + i], z[i])) for i in range(B)]
    np.testing.assert_allclose(simsiam.mutual_prediction(p, z), expected, rtol=1e-5)
    predicting, predicted = jax.grad(lambda *a: simsiam.mutual_prediction(*a).sum(), (0, 1))(p, z)
    assert np.abs(predicting).max() > 0 and not np.any(predicted)


def test_barlow_twins_wants_the_identity_among_valid_records():
    a, b = normal(B, 3), normal(B, 3)
    correlation = np.corrcoef(a[VALID].T, b[VALID].T)[:3, 3:]
    found = barlow_twins.cross_correlation(a, b, VALID)
    np.testing.assert_allclose(found, correlation, atol=1e-4)
    same, others = barlow_twins.off_identity(jnp.asarray(correlation))
    off = correlation[~np.eye(3, dtype=bool)]
    assert float(same) == pytest.approx(((1 - np.diagonal(correlation)) ** 2).sum(), rel=1e-5)
    assert float(others) == pytest.approx(barlow_twins.REDUNDANCY * (off**2).sum(), rel=1e-5)
    features = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)  # each alone, and unlike
    perfect = barlow_twins.cross_correlation(features, features, np.ones(4, bool))
    assert sum(map(float, barlow_twins.off_identity(perfect))) < 1e-8


def test_moco_finds_its_own_key_and_keys_have_no_gradient():
    q, k = normal(2 * B, D), normal(2 * B, D)
    rows = np.flatnonzero(VALID)
    expected = {
        i: 2 * 0.2 * (
            surprise(q[i], k[B + i], [k[B + j] for j in rows], 0.2)
            + surprise(q[B + i], k[i], [k[j] for j in rows], 0.2)
        )
        for i in rows
    }  # fmt: skip
    assert_valid(moco_v3.momentum_contrast(q, k, VALID, 0.2), expected)
    gradient = jax.grad(lambda k: moco_v3.momentum_contrast(q, k, VALID, 0.2).sum())(k)
    assert not np.any(gradient)


def test_a_teacher_starts_as_the_student_and_follows_it_in_training_only():
    first, later = {"w": normal(3)}, {"w": normal(3)}
    teacher = Teacher(0.9)
    kept = teacher.init(KEYS[0], first, True)
    np.testing.assert_array_equal(kept["batch_stats"]["weights"]["w"], first["w"])
    moved, state = teacher.apply(kept, later, True, mutable=["batch_stats"])
    np.testing.assert_allclose(moved["w"], 0.9 * first["w"] + 0.1 * later["w"], rtol=1e-6)
    np.testing.assert_array_equal(state["batch_stats"]["weights"]["w"], moved["w"])
    np.testing.assert_array_equal(teacher.apply(kept, later, False)["w"], first["w"])


def test_ts_tcc_foresees_each_step_among_the_futures_of_all_records():
    predicted, future = normal(B, 2, D), normal(B, 2, D)
    rows = np.flatnonzero(VALID)

    def loss(i, k):
        scores = np.array([predicted[i, k] @ future[j, k] / np.sqrt(D) for j in rows])
        return np.log(np.exp(scores).sum()) - predicted[i, k] @ future[i, k] / np.sqrt(D)

    expected = {i: np.mean([loss(i, k) for k in range(2)]) for i in rows}
    assert_valid(ts_tcc.temporal_contrast(predicted, future, VALID), expected)


def test_the_context_of_ts_tcc_does_not_see_the_future():
    choices = peer.Choices(decoder_dim=8, vit_heads=2)
    context, steps, now = ts_tcc.Context(choices), normal(B, 6, D), np.array([2, 2, 3, 3, 2])
    variables = context.init(KEYS[0], steps, now)
    known = context.apply(variables, steps, now)
    changed = np.where(np.arange(6)[:, None] > now[:, None, None], 9.0, steps)
    np.testing.assert_allclose(context.apply(variables, changed, now), known, atol=1e-5)
    assert np.abs(context.apply(variables, steps + 1.0, now) - known).max() > 1e-3


def test_clocs_takes_all_records_of_a_patient_as_positives():
    a, b = normal(B, D), normal(B, D)
    patient = np.array([1, 1, 2, 2, 3])
    rows = np.flatnonzero(VALID)

    def half(queries, keys, i):
        mates = [j for j in rows if patient[j] == patient[i]]
        every = [keys[j] for j in rows]
        return np.mean([surprise(queries[i], keys[j], every, 0.1) for j in mates])

    expected = {i: 0.5 * (half(a, b, i) + half(b, a, i)) for i in rows}
    assert_valid(clocs.patient_contrast(a, b, patient, VALID, 0.1), expected)


def test_the_two_pieces_of_clocs_share_no_lead_unless_there_is_only_one():
    leads = RNG.random((B, 12)) < 0.7
    leads[0], leads[1] = np.arange(12) == 4, True
    one, other = map(np.asarray, clocs.share_leads(KEYS, leads))
    np.testing.assert_array_equal(one | other, leads)
    np.testing.assert_array_equal(one[0] & other[0], leads[0])
    assert not np.any(one[1:] & other[1:])
    assert one[1].sum() == other[1].sum() == 6


def test_the_discriminator_of_astcl_guesses_at_log_2_and_its_gradient_is_turned():
    np.testing.assert_allclose(astcl.told_apart(jnp.zeros((2 * B, 1))), np.log(2.0), rtol=1e-6)
    scores = normal(2 * B, 1)
    right = 1 / (1 + np.exp(-np.concatenate([scores[:B], -scores[B:]])[:, 0]))
    expected = -0.5 * (np.log(right[:B]) + np.log(right[B:]))
    np.testing.assert_allclose(astcl.told_apart(scores), expected, rtol=1e-5)
    x = normal(D)
    np.testing.assert_allclose(astcl.reverse(x), x, rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: astcl.reverse(x).sum())(x), -np.ones(D))


def test_the_domains_of_crt_hold_the_whole_signal():
    signal = normal(1, 40, 12)
    signal -= signal.mean(1, keepdims=True)
    time, size, phase = (np.asarray(x[0]) for x in crt.domains(signal, 4))
    np.testing.assert_array_equal(time.transpose(0, 2, 1).reshape(40, 12), signal[0])
    size = size.transpose(0, 2, 1).reshape(20, 12)
    turn = phase.reshape(4, 12, 5, 2).transpose(0, 2, 1, 3).reshape(20, 12, 2)
    spectrum = np.concatenate([np.zeros((1, 12)), size * (turn @ [1, 1j])]) * np.sqrt(40 / 2)
    np.testing.assert_allclose(np.fft.irfft(spectrum, 40, axis=0), signal[0], atol=1e-4)


def test_crt_counts_hidden_patches_of_leads_that_there_are_and_keeps_records_apart():
    truth = [normal(B, 3, 12, w) for w in (4, 2, 4)]
    predicted = [normal(*x.shape) for x in truth]
    hidden, leads = RNG.random((B, 9)) < 0.6, RNG.random((B, 12)) < 0.8
    for k, found in enumerate(crt.drop_error(predicted, truth, hidden, leads)):
        for i in range(B):
            counted = [
                (predicted[k][i, s, lead] - truth[k][i, s, lead]) ** 2
                for s in range(3)
                for lead in range(12)
                if hidden[i, 3 * k + s] and leads[i, lead]
            ]
            assert float(found[i]) == pytest.approx(np.mean(counted) if counted else 0, rel=1e-5)
    x = normal(B, D)
    rows = np.flatnonzero(VALID)
    alike = {i: [np.exp(cos(x[i], x[j]) / 0.2) for j in rows if j != i] for i in rows}
    expected = {i: 0.2 * np.log(np.mean(values)) for i, values in alike.items()}
    assert_valid(crt.apart(x, VALID, 0.2), expected)


def test_st_mem_is_judged_on_hidden_patches_alone():
    predicted, patches = normal(B, 12, 3, 4), normal(B, 12, 3, 4)
    hidden = RNG.random((B, 12, 3)) < 0.5
    error, power = st_mem.patch_error(predicted, patches, hidden)
    for i in range(B):
        wrong = (predicted[i] - patches[i])[hidden[i]]
        assert float(error[i]) == pytest.approx((wrong**2).mean(), rel=1e-5)
        assert float(power[i]) == pytest.approx((patches[i][hidden[i]] ** 2).mean(), rel=1e-5)


def test_chosen_tokens_exist_where_enough_do_and_go_back_to_their_places():
    there = RNG.random((B, 20)) < 0.5
    there[0] = np.arange(20) < 3
    number, real = map(np.asarray, vit.choose(KEYS, there, 6))
    assert real[0].sum() == 3 and all(len(set(row)) == 6 for row in number.tolist())
    for i in range(1, B):
        assert real[i].sum() == min(6, there[i].sum())
    x = normal(B, 6, D)
    whole, filled = map(np.asarray, vit.put_back(x, number, real, 20))
    assert filled.sum() == real.sum() and not np.any(filled & ~there)
    np.testing.assert_array_equal(whole[filled], x[real])
    assert not np.any(whole[~filled])


def test_words_of_heartlang_are_centred_on_r_peaks():
    signal = np.broadcast_to(np.arange(100.0)[:, None], (1, 100, 12))
    beats = peer.Records(
        signal=signal,
        leads=np.arange(12)[None] != 3,
        samples=np.array([100]),
        valid=np.ones(1, bool),
        uid=np.zeros(1, np.uint32),
        patient=np.zeros(1, np.uint32),
        start=np.array([[0, 20, 95, 0]]),
        length=np.array([[20, 75, 5, 0]]),
        beats=np.array([[True, True, True, False]]),
    )
    words, there = map(np.asarray, heartlang.cut_words(beats, 10))
    np.testing.assert_array_equal(words[0, 5, 1], np.arange(15, 25))
    np.testing.assert_array_equal(words[0, 5, 2], [*range(90, 100)])
    np.testing.assert_array_equal(there[0, 0], [False, True, True, False])
    assert not np.any(there[0, 3])


def test_heartlang_guesses_the_codes_of_hidden_words():
    scores, code = normal(B, 2, 3, 6), RNG.integers(0, 6, (B, 2, 3))
    hidden = RNG.random((B, 2, 3)) < 0.7
    found = heartlang.guess_error(scores, code, hidden)
    for i in range(B):
        wrong = [
            np.log(np.exp(scores[i, a, n]).sum()) - scores[i, a, n, code[i, a, n]]
            for a in range(2)
            for n in range(3)
            if hidden[i, a, n]
        ]
        assert float(found[i]) == pytest.approx(np.mean(wrong) if wrong else 0, rel=1e-5)
    codes = np.eye(6, D, dtype=np.float32)
    np.testing.assert_array_equal(heartlang.nearest_code(codes[[4, 1]] + 0.1, codes), [4, 1])


def test_ecg_jepa_predicts_normalised_tokens_and_their_teacher_has_no_gradient():
    predicted, target = normal(B, 2, 3, D), 5 + 3 * normal(B, 2, 3, D)
    hidden = RNG.random((B, 2, 3)) < 0.6
    found = ecg_jepa.latent_error(predicted, target, hidden)
    unit = (target - target.mean(-1, keepdims=True)) / target.std(-1, keepdims=True)
    away = np.abs(predicted - unit)
    huber = np.where(away <= 1, 0.5 * away**2, away - 0.5)
    for i in range(B):
        assert float(found[i]) == pytest.approx(huber[i][hidden[i]].mean(), rel=1e-4)
    gradient = jax.grad(lambda t: ecg_jepa.latent_error(predicted, t, hidden).sum())(target)
    assert not np.any(gradient)


def test_ecg_jepa_hides_blocks_and_tokens_see_their_lead_and_their_time():
    hidden = np.asarray(ecg_jepa.hide_blocks(jax.random.split(jax.random.key(1), 50), 20, 12))
    assert (hidden.sum(1) == 12).all()
    changes = np.abs(np.diff(hidden.astype(int), axis=1)).sum(1)
    assert changes.mean() < 6  # 9.1 if every place were drawn for itself
    number = np.array([[0, 2, 4, 5]])  # of three places: leads 0 0 1 1, times 0 2 1 2
    seen = ecg_jepa.cross_pattern(number, np.array([[True, True, True, False]]), 3)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    np.testing.assert_array_equal(seen[0], np.array(expected, bool))


# ---- What they share


def test_the_spread_of_embeddings_is_zero_if_all_are_alike_and_one_if_they_point_everywhere():
    alike = np.ones((B, D)) * np.arange(1, B + 1)[:, None]
    assert float(peer.spread(jnp.asarray(alike, jnp.float32), VALID)) < 1e-3
    around = np.concatenate([np.eye(D), -np.eye(D)]).astype(np.float32)
    assert float(peer.spread(around, np.ones(2 * D, bool))) == pytest.approx(1.0, rel=1e-5)


CHANGES = {
    "add_noise": (0.1,),
    "scale_leads": (0.1,),
    "crop_resize": (0.5,),
    "cut_out": (0.3,),
    "drop_leads": (0.3,),
    "wander": (0.5,),
    "permute": (5,),
    "smooth": (7,),
    "ecg_view": (),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_happens_to_a_record_depends_on_its_own_key_alone(name):
    x, change = normal(B, 60, 12), getattr(augment, name)
    found = np.asarray(change(KEYS, x, *CHANGES[name]))
    assert found.shape == x.shape and np.isfinite(found).all() and np.abs(found - x).max() > 1e-3
    np.testing.assert_allclose(change(KEYS[2:3], x[2:3], *CHANGES[name])[0], found[2], atol=1e-5)


@pytest.mark.parametrize("name", CHANGES)
def test_missing_leads_stay_zero_and_the_only_lead_is_never_dropped(name):
    x = np.zeros((20, 60, 12), np.float32)
    x[:, :, 3] = normal(20, 60)
    keys = jax.random.split(jax.random.key(1), 20)
    found = np.asarray(getattr(augment, name)(keys, x, *CHANGES[name]))
    assert not np.delete(found, 3, axis=2).any()
    assert found[:, :, 3].any(1).all()


def test_a_transformer_ignores_tokens_that_are_not_there():
    trunk, x = vit.Transformer(8, 1, 2), normal(2, 5, 8)
    there = np.array([[True] * 3 + [False] * 2, [True] * 5])
    variables = trunk.init(KEYS[0], x, there)
    changed = np.where(there[..., None], x, 7.0)
    found, other = trunk.apply(variables, x, there), trunk.apply(variables, changed, there)
    np.testing.assert_allclose(np.asarray(found)[there], np.asarray(other)[there], atol=1e-5)
