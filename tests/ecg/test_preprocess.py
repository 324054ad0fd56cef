"""The whole chain: the same record gives the same beats however it is stored, and bad records say
what is wrong."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.gaussian_ecg import dense_tachycardia

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.preprocess import Preprocess, left_out_words
from data_prep.ecg.segment import stitch_beats
from data_prep.formats.any_file import read_any
from data_prep.formats.wfdb_files import quiet_wfdb


def _record(seconds=10.0, rate=500.0, rr=0.8, peaks=None, seed=0, noise=0.01):
    """A record [T,12] in mV in the order of LEADS: QRS and T waves of a moving dipole, limb leads
    by Einthoven."""
    t = np.arange(round(seconds * rate)) / rate
    vcg = np.zeros((3, len(t)))
    for r in np.arange(0.4, seconds, rr) if peaks is None else peaks:
        for delay, width, height, axis in [
            (0, 0.012, 1.5, (0.7, 0.6, -0.3)),
            (0.03, 0.012, 0.5, (-0.4, 0.3, -0.8)),
            (0.25, 0.05, 0.3, (0.6, 0.6, 0.4)),
        ]:
            near = slice(*np.searchsorted(t, [r + delay - 0.6, r + delay + 0.6]))
            vcg[:, near] += (
                height
                * np.array(axis)[:, None]
                * np.exp(-0.5 * ((t[near] - r - delay) / width) ** 2)
            )
    x = lead_matrix("paper") @ vcg + np.random.default_rng(seed).normal(0, noise, (12, len(t)))
    one, two = x[0], x[1]
    x[:6] = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    return x.T.astype(np.float32)


def _equal(a, b):
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)
    )


NAMES = list(LEADS)


def test_a_clean_record_end_to_end():
    (window,) = Preprocess().prepare(_record(), 500, NAMES)
    assert window.beats.shape == (13, 12, 128) and window.beats.dtype == np.float32
    assert window.start.dtype == window.length.dtype == np.int32
    assert window.lead_mask == 4095 and window.defects == [] and window.signal.shape == (12, 1000)
    np.testing.assert_allclose(window.length[window.complete] / 100, 0.8, atol=0.021)
    assert window.complete.sum() == 11
    np.testing.assert_allclose(window.signal.std(axis=1), 1, atol=1e-4)
    back = stitch_beats(window.beats, window.start, window.length, 1000)
    assert 1 - ((back - window.signal) ** 2).mean() > 0.99


def test_order_case_and_swapped_columns_change_nothing_at_all():
    x = _record()
    (window,) = Preprocess().prepare(x, 500, NAMES)
    shuffled = np.random.default_rng(1).permutation(12)
    mimic = [0, 1, 2, 3, 5, 4, *range(6, 12)]  # aVF stored before aVL
    for order in (shuffled, mimic):
        for spell in (str, str.upper, str.lower):
            (other,) = Preprocess().prepare(x[:, order], 500, [spell(NAMES[i]) for i in order])
            assert _equal(window, other)


def test_the_rate_of_the_file_hardly_matters():
    reference = Preprocess().prepare(_record(rate=1000, noise=0), 1000, NAMES)[0].signal
    for rate in (100, 125, 257, 360, 500, 977.5):
        signal = Preprocess().prepare(_record(rate=rate, noise=0), rate, NAMES)[0].signal[:, :999]
        assert np.corrcoef(signal.ravel(), reference[:, : signal.shape[1]].ravel())[0, 1] > 0.995, (
            rate
        )


def test_beats_go_back_to_millivolts():
    x = _record(rate=100, noise=0)
    for how in ("lead", "record"):
        (window,) = Preprocess(normalise=how).prepare(x, 100, NAMES)
        mv = window.signal * window.scale[:, None] + window.offset[:, None]
        # Einthoven holds in mV for both
        np.testing.assert_allclose(mv[2], mv[1] - mv[0], atol=1e-5)
        assert 0.7 < mv.max() / x.max() < 1.2
    assert len(set(window.scale.tolist())) == 1


def test_missing_limb_leads_are_recovered_from_two():
    x = _record()
    (whole,) = Preprocess().prepare(x, 500, NAMES)
    keep = [LEADS.index(lead) for lead in ("I", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")]
    (window,) = Preprocess().prepare(x[:, keep], 500, [NAMES[i] for i in keep])
    assert window.lead_mask == 4095
    assert "recovered:II" in window.defects and "recovered:aVR" in window.defects
    np.testing.assert_allclose(window.signal, whole.signal, atol=1e-4)
    (off,) = Preprocess(recover_limb_leads=False).prepare(x[:, keep], 500, [NAMES[i] for i in keep])
    assert np.flatnonzero(mask_leads(off.lead_mask)).tolist() == sorted(keep)
    assert "peaks_fallback_vcg" in off.defects


def test_defects_cost_only_the_lead_they_are_in():
    x = _record()
    clean = Preprocess().prepare(x, 500, NAMES)[0]
    x[1000:1040, 6] = np.nan  # 0.08 s: repaired
    x[1000:2000, 7] = np.nan  # 2 s: missing
    x[:, 8] = 0.0
    x[:, 9] = np.where(x[:, 9] > -0.2, 32.767, x[:, 9])  # at the converter's limit nearly always
    x[[700, 1500, 2200], 10] = 32.767  # three bad samples
    x[500:600, 11] = np.inf
    (window,) = Preprocess().prepare(x, 500, NAMES)
    expected = ["nan:V1:40", "gap:V2:1000", "flat:V3", "railed:V4", "spikes:V5:3", "gap:V6:100"]
    assert window.defects == expected
    missing = [7, 8, 9, 11]
    assert np.flatnonzero(~mask_leads(window.lead_mask)).tolist() == missing
    assert not window.signal[missing].any() and not window.beats[:, missing].any()
    assert (window.scale[missing] == 1).all() and (window.offset[missing] == 0).all()
    np.testing.assert_array_equal(window.signal[:6], clean.signal[:6])
    assert np.corrcoef(window.signal[10], clean.signal[10])[0, 1] > 0.99
    assert np.isfinite(window.beats).all()


def test_a_lead_lost_for_a_while_is_missing_only_there():
    x = _record(seconds=30)
    x[7000:8000, 8] = np.nan
    x[10000:, 9] = 0.1
    windows = Preprocess().prepare(x, 500, NAMES)
    assert [np.flatnonzero(~mask_leads(w.lead_mask)).tolist() for w in windows] == [[], [8], [9]]
    assert [w.window for w in windows] == [0, 1, 2] and [w.start_seconds for w in windows] == [
        0,
        10,
        20,
    ]


def test_low_voltage_is_not_flat():
    (window,) = Preprocess().prepare(_record(noise=0.003) * 0.3, 500, NAMES)
    assert window.lead_mask == 4095


@pytest.mark.parametrize(
    ("seconds", "lengths", "tail"),
    [
        (2, [200], False),
        (9.9, [990], False),
        (14, [1000], True),
        (16, [1000, 600], False),
        (300, [1000] * 30, False),
    ],
)
def test_windows_of_short_and_long_records(seconds, lengths, tail):
    windows = Preprocess().prepare(_record(seconds=seconds, rate=250), 250, NAMES)
    assert [w.signal.shape[1] for w in windows] == lengths
    assert all(w.length.sum() == n for w, n in zip(windows, lengths, strict=True))
    assert any(d.startswith("tail_left_out:4.00") for d in windows[-1].defects) == tail


@pytest.mark.parametrize(
    ("signal", "names", "message"),
    [
        (np.full((5000, 12), np.nan), NAMES, "all leads are missing"),
        (np.zeros((5000, 12)), NAMES, "all leads are missing"),
        (np.full((5000, 12), 1.5), NAMES, "all leads are missing"),
        (_record(seconds=0.8), NAMES, "too short"),
        (np.zeros((0, 12)), NAMES, "too short"),
        (_record(), [f"ch{i}" for i in range(12)], "none of the leads"),
        (_record(), NAMES[:11], "11 lead names"),
        (_record(), ["I", "i", *NAMES[2:]], "lead I is there twice"),
    ],
    ids=[
        "all NaN",
        "all zero",
        "all flat",
        "0.8 s",
        "empty",
        "unknown names",
        "name count",
        "double",
    ],
)
@pytest.mark.parametrize("peaks", ["lead_ii", "vcg"])
def test_bad_records_end_in_one_clear_line(signal, names, message, peaks):
    with pytest.raises(InputError, match=message) as error:
        Preprocess(peaks=peaks).prepare(signal, 500, names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rate", [0, -1, np.nan])
def test_a_nonsense_rate_is_refused(rate):
    with pytest.raises(InputError, match="sampling rate"):
        Preprocess().prepare(_record(), rate, NAMES)


def test_a_record_without_a_beat_is_refused_and_a_silent_window_left_out():
    with pytest.raises(InputError, match="no R peak found"):
        Preprocess(peaks="vcg").prepare(_record(peaks=[], noise=0.1), 500, NAMES)
    beats = np.concatenate([np.arange(0.4, 9.5, 0.8), np.arange(20.5, 29.5, 0.8)])
    x = _record(seconds=30, peaks=beats, noise=0.05)
    windows = Preprocess(peaks="vcg").prepare(x, 500, NAMES)
    assert [w.window for w in windows] == [0, 2]
    assert all("window_left_out:1:no_beat" in w.defects for w in windows)


def test_one_beat_and_forty_beats():
    (one,) = Preprocess().prepare(_record(peaks=[4.0]), 500, NAMES)
    assert len(one.start) >= 2 and one.length.sum() == 1000 and "long_interval" in one.defects
    (one,) = Preprocess(peaks="vcg").prepare(_record(peaks=[4.0]), 500, NAMES)
    assert (
        len(one.start) == 2
        and {"one_beat", "long_interval"} <= set(one.defects)
        and not one.complete.any()
    )
    forty = _record(peaks=np.arange(0.125, 10, 0.25))
    (fast,) = Preprocess(peaks="vcg", peak_distance=0.2, rr_min=0.2, max_beats=41).prepare(
        forty, 500, NAMES
    )
    assert len(fast.start) == 41
    assert np.allclose(fast.length[fast.complete] / 100, 0.25, atol=0.021)
    (capped,) = Preprocess(peaks="vcg", peak_distance=0.2, rr_min=0.2).prepare(forty, 500, NAMES)
    assert (
        len(capped.start) == 20 and "merged_tail" in capped.defects and capped.length.sum() == 1000
    )


@pytest.mark.parametrize("rate", [100, 250, 500])
def test_a_fast_regular_rhythm_of_a_user_is_not_lost(rate):
    fast = dense_tachycardia(rate).T
    steps = Preprocess(peaks="vcg", max_beats=40)
    with pytest.raises(InputError, match="no R peak"):
        steps.prepare(fast, rate, NAMES)
    (window,) = steps.for_use().prepare(fast, rate, NAMES)
    assert window.defects == ["fast_rhythm"] and 29 <= len(window.start) <= 32
    np.testing.assert_allclose(window.length[window.complete] / 100, 0.33, atol=0.011)


def test_windows_that_have_beats_stay_as_they_are_in_use():
    steps = Preprocess(peaks="vcg")
    record = np.concatenate([_record(), dense_tachycardia(500).T, _record(seed=1)])
    before, after = (s.prepare(record, 500, NAMES) for s in (steps, steps.for_use()))
    assert [w.window for w in before] == [0, 2] and [w.window for w in after] == [0, 1, 2]
    assert after[1].defects == ["fast_rhythm", "long_interval", "merged_tail"]
    assert len(after[1].start) == 20
    for one, other in zip(before, after[::2], strict=True):
        assert one.defects == ["window_left_out:1:no_beat"] and other.defects == []
        assert _equal(dataclasses.replace(one, defects=[]), other)
    for quiet in (_record(peaks=[], noise=0.1), _record(peaks=[], noise=0.02)):
        with pytest.raises(InputError, match="no R peak"):  # noise is no rhythm
            steps.for_use().prepare(quiet, 500, NAMES)


def test_three_leads_are_enough():
    keep = [1, 7, 10]
    (window,) = Preprocess().prepare(_record()[:, keep], 500, [NAMES[i] for i in keep])
    assert np.flatnonzero(mask_leads(window.lead_mask)).tolist() == keep
    assert {"absent:I", "absent:V1"} <= set(window.defects) and len(window.start) == 13
    (window,) = Preprocess().prepare(_record()[:, [7]], 500, ["v2"])
    assert "peaks_fallback_vcg" in window.defects and len(window.start) == 13


def test_extra_channels_are_ignored_and_named():
    x = np.concatenate([_record(), np.ones((5000, 1), np.float32)], axis=1)
    (window,) = Preprocess().prepare(x, 500, [*NAMES, "vx;1"])
    assert window.defects == ["unknown_lead:vx_1"] and window.lead_mask == 4095


def test_hash_changes_with_every_field_and_is_stable():
    other = {
        "filter_order": 4,
        "band_high": 45,
        "normalise": "record",
        "peaks": "vcg",
        "geometry": "dower",
        "recover_limb_leads": False,
        "fast_rhythm": True,
    }
    hashes = {Preprocess().hash()}
    for field in dataclasses.fields(Preprocess):
        changed = other[field.name] if field.name in other else field.type(field.default * 1.25)
        hashes.add(dataclasses.replace(Preprocess(), **{field.name: changed}).hash())
    assert len(hashes) == 1 + len(dataclasses.fields(Preprocess))
    assert Preprocess(rate=100).hash() == Preprocess(rate="100.0").hash()
    code = "from data_prep.ecg.preprocess import Preprocess; print(Preprocess().hash())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert printed.stdout.strip() == Preprocess().hash() and len(Preprocess().hash()) == 12


def test_description_round_trip_and_mistakes():
    changed = Preprocess(peaks="vcg", seconds=5, recover_limb_leads="false")
    assert (
        Preprocess.from_dict(changed.to_dict()) == changed and changed.recover_limb_leads is False
    )
    with pytest.raises(InputError, match="did you mean 'max_beats'"):
        Preprocess.from_dict({"max_beat": 3})
    for wrong in (
        {"rate": "fast"},
        {"band_high": 60},
        {"peaks": "ii"},
        {"max_beats": 2.5},
        {"geometry": "flat"},
    ):
        with pytest.raises(InputError):
            Preprocess.from_dict(wrong)


JS10607 = Path(os.environ.get("LVCG_REAL_DATA", "")) / "csn_100hz" / "records" / "JS10607.hea"


@pytest.mark.skipif(not JS10607.exists(), reason="needs LVCG_REAL_DATA with csn_100hz")
def test_a_real_tachycardia_of_182_a_minute_keeps_its_beats():
    record, steps = read_any(JS10607), Preprocess(peaks="vcg", max_beats=40)
    with pytest.raises(InputError, match="no R peak"):
        steps.prepare(record.signal, record.rate, record.leads)
    (window,) = steps.for_use().prepare(record.signal, record.rate, record.leads)
    assert "fast_rhythm" in window.defects and 29 <= len(window.start) <= 32
    assert 60 / np.median(window.length[window.complete] / 100) == pytest.approx(182, abs=3)


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ,
    reason="needs LVCG_REAL_DATA: a folder with csn and cpsc2018",
)
def test_real_flat_and_railed_leads_are_found_and_no_others():
    root = Path(os.environ["LVCG_REAL_DATA"])

    def prepare(header):
        with quiet_wfdb() as wfdb:
            record = wfdb.rdrecord(str(header.with_suffix("")))
        return record, Preprocess().prepare(record.p_signal, record.fs, record.sig_name)

    chosen = sorted((root / "csn").rglob("JS1[01]*.hea"))[::2]
    flat = 0
    for header in chosen:
        record, (window,) = prepare(header)
        constant = {
            name
            for name, v in zip(record.sig_name, record.p_signal.T, strict=True)
            if np.ptp(v) == 0
        }
        found = {d.split(":")[1] for d in window.defects if d.startswith("flat:")}
        assert constant <= found
        assert len(found - constant) <= 1
        flat += len(found)
    assert flat > 10
    (railed,) = prepare(next((root / "cpsc2018").rglob("A3851.hea")))[1]
    assert "railed:V1" in railed.defects
    # single samples at 32.72 mV in every lead
    spiked = prepare(next((root / "cpsc2018").rglob("A5930.hea")))[1]
    assert all(w.lead_mask == 4095 for w in spiked) and any(
        "spikes:" in d for w in spiked for d in w.defects
    )
    assert max(np.abs(w.signal).max() for w in spiked) < 20


def test_a_small_file_that_would_make_gigabytes_is_refused():
    """A megasample at 1 Hz took over 6 GiB."""
    with pytest.raises(
        InputError, match="record of 278 h at 1 Hz is too long to prepare at 100 Hz"
    ):
        Preprocess().prepare(np.zeros((1_000_000, 1), np.float32), 1.0, ["II"])
    for wrong in ({"rate": 1e9}, {"max_beats": 10**6}, {"seconds": 1e7}):
        with pytest.raises(InputError, match="must be at most"):
            Preprocess(**wrong)


def test_windows_that_were_left_out_are_named_in_a_few_words():
    few = [(3, "no_beat"), (4, "no_beat")]
    assert left_out_words(few) == ["window_left_out:3:no_beat", "window_left_out:4:no_beat"]
    day = [(i, "no_lead") for i in range(10, 5000)]
    assert left_out_words(day) == ["window_left_out:10-4999:no_lead"]
    every_other = [(2 * i, "no_beat") for i in range(4000)]
    words = left_out_words(every_other)
    assert len(words) == 21 and words[1] == "window_left_out:2:no_beat"
    assert words[-1] == "window_left_out:3980_more"


def test_a_day_with_electrodes_off_for_hours_has_short_words():
    steps, seconds = Preprocess(seconds=1.0), 400
    x = np.zeros((seconds * 100, 12), np.float32)
    x[: 100 * 100] = _record(100, 100.0)
    windows = steps.prepare(x, 100.0, NAMES)
    assert 50 < len(windows) <= 101
    assert all(sum(d.startswith("window_left_out") for d in w.defects) <= 21 for w in windows)
