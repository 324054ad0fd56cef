"""The numbers of the geometry, and that the lift undoes the projection wherever the leads allow
it."""

from itertools import combinations

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import (
    NUM_SUBSETS,
    describe_view,
    dipole_matrix,
    lead_matrix,
    lift_matrix,
    lift_table,
    save_matrix,
    subset_facts,
    training_subsets,
)
from data_prep.ecg.leads import LEADS, mask_leads

PAPER_TABLE = {
    "I": (1.00000, 0.00000, 0.00000),
    "II": (0.50000, 0.86603, 0.00000),
    "III": (-0.50000, 0.86603, 0.00000),
    "aVR": (-0.86603, -0.50000, 0.00000),
    "aVL": (0.86603, -0.50000, 0.00000),
    "aVF": (0.00000, 1.00000, 0.00000),
    "V1": (-0.33682, 0.17365, 0.92542),
    "V2": (0.33682, 0.17365, 0.92542),
    "V3": (0.75441, 0.17365, 0.63302),
    "V4": (0.96985, 0.17365, 0.17101),
    "V5": (0.92542, 0.17365, -0.33682),
    "V6": (0.63302, 0.17365, -0.75441),
}
DOWER_TABLE = {
    "I": (0.632, -0.235, 0.059),
    "II": (0.235, 1.066, -0.132),
    "V1": (-0.515, 0.157, -0.917),
    "V2": (0.044, 0.164, -1.387),
    "V3": (0.882, 0.098, -1.277),
    "V4": (1.213, 0.127, -0.601),
    "V5": (1.125, 0.127, -0.086),
    "V6": (0.831, 0.076, 0.230),
}
EVERY_SUBSET = mask_leads(np.arange(NUM_SUBSETS))
TRIPLES = np.flatnonzero(EVERY_SUBSET.sum(1) == 3)
FIELD = np.random.default_rng(8).normal(size=(12, 8)) * 0.7 ** np.arange(8)  # eight modes


def _names(mask):
    return {lead for lead, shown in zip(LEADS, mask_leads(mask), strict=True) if shown}


@pytest.mark.parametrize("name, table", [("paper", PAPER_TABLE), ("dower", DOWER_TABLE)])
def test_matrix_has_the_published_rows(name, table):
    rows = dict(zip(LEADS, lead_matrix(name), strict=True))
    for lead, row in table.items():
        np.testing.assert_allclose(rows[lead], row, atol=5e-6, err_msg=lead)


def test_dower_limb_leads_obey_einthoven_and_goldberger():
    row = dict(zip(LEADS, lead_matrix("dower"), strict=True))
    np.testing.assert_allclose(row["III"], row["II"] - row["I"], atol=1e-12)
    np.testing.assert_allclose(row["aVR"], -(row["I"] + row["II"]) / 2, atol=1e-12)
    np.testing.assert_allclose(row["aVL"], (row["I"] - row["III"]) / 2, atol=1e-12)
    np.testing.assert_allclose(row["aVF"], (row["II"] + row["III"]) / 2, atol=1e-12)


def test_bit_i_of_a_mask_is_lead_i():
    for i in range(len(LEADS)):
        np.testing.assert_array_equal(np.flatnonzero(mask_leads(1 << i)), [i])


@pytest.mark.parametrize("name", ["paper", "dower"])
def test_lift_undoes_projection_on_every_identifiable_subset(name):
    a = lead_matrix(name)
    identifiable = np.flatnonzero(subset_facts(a, EVERY_SUBSET)["rank"] == 3)
    assert len(identifiable) > 3900
    vcg = np.random.default_rng(0).normal(size=(3, 5))
    lifted = lift_table(a, 1e-13)[identifiable] @ (a @ vcg)
    np.testing.assert_allclose(lifted, np.broadcast_to(vcg, lifted.shape), atol=1e-6)


@pytest.mark.parametrize("name", ["paper", "dower"])
@pytest.mark.parametrize("eps", [1e-4, 1e-2])
def test_lift_is_the_closed_tikhonov_form(name, eps):
    a = lead_matrix(name)
    full_rank = np.flatnonzero(subset_facts(a, EVERY_SUBSET)["rank"] == 3)
    rows = EVERY_SUBSET[full_rank, :, None] * a
    transposed = rows.swapaxes(1, 2)
    closed = np.linalg.inv(transposed @ rows + eps * np.eye(3)) @ transposed
    np.testing.assert_allclose(lift_table(a, eps)[full_rank], closed, atol=1e-9)


def test_table_holds_the_lift_of_each_subset_and_hidden_leads_have_no_weight():
    a = lead_matrix("paper")
    table = lift_table(a, 1e-4)
    for mask in [0, 1, 0b111, 0b100000100010, 4094, 4095, *TRIPLES[::20]]:
        np.testing.assert_allclose(table[mask], lift_matrix(a, mask_leads(mask), 1e-4), atol=1e-12)
    assert np.all(table[~np.broadcast_to(EVERY_SUBSET[:, None], table.shape)] == 0)
    assert np.isfinite(table).all()


def test_eps_zero_is_the_pseudo_inverse_without_warnings():
    a = lead_matrix("paper")
    table = lift_table(a, 0.0)
    for mask in [0, 0b111, 0b11, 4095]:  # none, three frontal leads (rank 2), two leads, all
        rows = mask_leads(mask)[:, None] * a
        np.testing.assert_allclose(table[mask], np.linalg.pinv(rows, rcond=1e-6), atol=1e-12)
    assert subset_facts(a, mask_leads(0), 0.0)["gain"] == 0


def test_21_triples_are_deficient_the_20_of_limb_leads_and_one_more():
    facts = subset_facts(lead_matrix("paper"), EVERY_SUBSET[TRIPLES])
    deficient = [_names(mask) for mask in TRIPLES[facts["rank"] < 3]]
    expected = [set(limb) for limb in combinations(LEADS[:6], 3)] + [{"I", "V1", "V2"}]
    assert len(TRIPLES) == 220 and len(deficient) == 21
    assert all(subset in deficient for subset in expected)
    assert np.all(np.isinf(facts["condition"]) == (facts["rank"] < 3))


def test_condition_numbers_of_the_199_other_triples():
    facts = subset_facts(lead_matrix("paper"), EVERY_SUBSET[TRIPLES], 1e-4)
    condition = facts["condition"][facts["rank"] == 3]
    assert len(condition) == 199
    np.testing.assert_allclose(
        [condition.min(), np.median(condition), condition.max()], [1.28, 4.39, 77.6], rtol=5e-3
    )


def test_24_triples_amplify_more_than_tenfold_up_to_39():
    a = lead_matrix("paper")
    gain = subset_facts(a, EVERY_SUBSET[TRIPLES], 1e-4)["gain"]
    assert (gain > 10).sum() == 24
    assert 38 < gain.max() < 40
    np.testing.assert_allclose(
        gain, np.linalg.norm(lift_table(a, 1e-4)[TRIPLES], ord=2, axis=(1, 2)), rtol=1e-9
    )


def test_training_subsets_follow_the_switches():
    a = lead_matrix("paper")
    everything = training_subsets(a, 3, 1e-4, False, None)
    np.testing.assert_array_equal(everything, TRIPLES)
    spanning = training_subsets(a, 3, 1e-4, True, None)
    assert len(spanning) == 199
    bounded = training_subsets(a, 3, 1e-4, True, 10.0)
    assert len(bounded) == 175 and set(bounded) < set(spanning)
    assert subset_facts(a, mask_leads(bounded), 1e-4)["gain"].max() <= 10
    with pytest.raises(InputError, match="max_gain"):
        training_subsets(a, 3, 1e-4, True, 0.1)


def test_a_geometry_can_be_given_as_rows_and_mistakes_are_named():
    rows = tuple(map(tuple, lead_matrix("dower").tolist()))
    np.testing.assert_array_equal(lead_matrix(rows), lead_matrix("dower"))
    with pytest.raises(InputError, match="frank"):
        lead_matrix("frank")
    with pytest.raises(InputError, match="12 rows"):
        lead_matrix(rows[:11])
    with pytest.raises(InputError, match="finite"):
        lead_matrix((*rows[:11], (0.0, float("nan"), 0.0)))
    with pytest.raises(InputError, match="different lengths"):
        lead_matrix((*rows[:11], (0.0, 1.0)))


# ---- a field of more modes than three


def test_the_lift_of_a_field_is_the_mean_of_its_gaussian_given_the_visible_leads():
    """Coordinates of variance 1 and noise of variance eps: leads have the covariance A A' + eps."""
    eps, x = 0.05, np.random.default_rng(0).normal(size=12)
    for mask in (0b1, 0b111, 0b100010000010, 0b111111111110, 4095):
        visible = mask_leads(mask)
        rows = FIELD[visible]
        expected = rows.T @ np.linalg.solve(rows @ rows.T + eps * np.eye(len(rows)), x[visible])
        np.testing.assert_allclose(lift_matrix(FIELD, visible, eps) @ x, expected, atol=1e-9)


def test_all_subsets_of_a_field_are_drawn_unless_their_gain_is_bounded():
    np.testing.assert_array_equal(training_subsets(FIELD, 3, 0.05, True, None), TRIPLES)
    bounded = training_subsets(FIELD, 3, 0.05, True, 1.0)
    assert 0 < len(bounded) < len(TRIPLES)
    assert subset_facts(FIELD, mask_leads(bounded), 0.05)["gain"].max() <= 1


def test_facts_and_words_of_a_field():
    facts = subset_facts(FIELD, mask_leads([0b111, 4095]), 0.05)
    assert facts["rank"].tolist() == [3, 8]
    assert np.isinf(facts["condition"][0]) and np.isfinite(facts["condition"][1])
    words = describe_view(FIELD, mask_leads(0b111), 0.05)
    assert "From leads I, II, III, 3 of 8 dimensions are seen" in words[0]
    assert describe_view(FIELD, mask_leads(4095), 0.05) == []


def test_a_field_is_read_from_its_file_and_has_3_to_12_modes(tmp_path):
    path = tmp_path / "modes.json"
    save_matrix(path, FIELD)
    np.testing.assert_allclose(lead_matrix(str(path)), FIELD, atol=1e-6)
    for columns in (2, 13):
        with pytest.raises(InputError, match="12 rows of 3 finite numbers, or up to 12"):
            lead_matrix(np.ones((12, columns)).tolist())
        save_matrix(path, np.ones((12, columns)))
        with pytest.raises(InputError, match="lead I needs three numbers"):
            lead_matrix(str(path))
    path.write_text('{"I": [1, 0, 0, 0], "II": [0, 1, 0]}')
    with pytest.raises(InputError, match="lead II needs .* the same number of modes"):
        lead_matrix(str(path))


def test_a_field_is_refused_where_a_vector_in_space_is_needed():
    np.testing.assert_array_equal(dipole_matrix("paper"), lead_matrix("paper"))
    with pytest.raises(InputError, match="8 modes, which are no directions .* paper or dower"):
        dipole_matrix(FIELD.tolist())
