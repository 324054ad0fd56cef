"""Leads go by name: a file's order, case and extra channels must never change what the model
sees."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS, canonical, lead_mask, mask_leads, order_leads, parse_leads


@pytest.mark.parametrize(
    ("name", "lead"),
    [
        ("AVR", "aVR"),
        ("avr", "aVR"),
        (" aVR ", "aVR"),
        ("i", "I"),
        ("Lead II", "II"),
        ("v6", "V6"),
        ("aV-F", "aVF"),
    ],
)
def test_spellings_of_the_same_lead(name, lead):
    assert canonical(name) == lead


@pytest.mark.parametrize("name", ["MLII", "vx", "vz", "V7", "", "ECG", "IV", "resp"])
def test_other_channels_are_not_taken_for_a_lead(name):
    assert canonical(name) is None


def test_columns_go_where_their_names_say():
    names = ["v6", "AVF", "AVL", "ii", "vx"]
    signal = np.arange(20.0).reshape(4, 5)
    ordered, unknown = order_leads(signal, names)
    assert ordered.shape == (12, 4) and ordered.dtype == np.float32
    assert unknown == ["vx"]
    for column, lead in [(0, "V6"), (1, "aVF"), (2, "aVL"), (3, "II")]:
        np.testing.assert_array_equal(ordered[LEADS.index(lead)], signal[:, column])
    assert np.isnan(ordered[LEADS.index("I")]).all()


def test_a_doubled_lead_is_refused_by_name():
    with pytest.raises(InputError, match="aVR is there twice"):
        order_leads(np.zeros((5, 2)), ["AVR", "avr"])


def test_unknown_names_only_and_wrong_counts_are_refused():
    with pytest.raises(InputError, match="none of the leads vx, vy"):
        order_leads(np.zeros((5, 2)), ["vx", "vy"])
    with pytest.raises(InputError, match="3 lead names"):
        order_leads(np.zeros((5, 2)), ["I", "II", "III"])


def test_masks_round_trip_and_bit_order():
    assert lead_mask(np.array([lead in ("II", "V2") for lead in LEADS])) == (1 << 1) + (1 << 7)
    for mask in range(0, 4096, 37):
        assert lead_mask(mask_leads(mask)) == mask
    masks = np.array([[0, 1], [130, 4095]])
    assert (
        mask_leads(masks).shape == (2, 2, 12) and (mask_leads(masks)[1, 0] == mask_leads(130)).all()
    )
    for wrong in (4096, -1, np.array([3, 5000])):
        with pytest.raises(InputError, match=r"lead mask (4096|-1|5000) is not between 0 and 4095"):
            mask_leads(wrong)


def test_parse_leads_and_its_hint():
    assert parse_leads("ii, V2 ,v5,II") == ["II", "V2", "V5"]
    with pytest.raises(InputError, match="'avx': did you mean aV"):
        parse_leads("I,avx")
    with pytest.raises(InputError, match="no lead given"):
        parse_leads(" , ")
