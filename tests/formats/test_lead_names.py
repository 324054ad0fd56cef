"""Columns by other names: spellings of devices, names that the user gives, and times that say the
rate."""

import edfio
import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.formats.any_file import read_any
from data_prep.formats.lead_names import Naming, spelled

SIGNAL = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (500, 2)), axis=0).astype(np.float32)


def write_csv(path, names, columns, rate=250, time=None):
    times = [] if time is None else [time * np.arange(len(SIGNAL)) / rate]
    rows = np.column_stack([*times, *columns]).tolist()
    lines = [",".join(names), *(",".join(f"{value:.4f}" for value in row) for row in rows)]
    path.write_text("\n".join(lines))
    return path


def write_wfdb(folder, *names):
    lines = [f"r {len(names)} 250 {len(SIGNAL)}"]
    lines += [f"r.dat 16 1000/mV 16 0 0 0 0 {name}" for name in names]
    (folder / "r.hea").write_text("\n".join(lines) + "\n")
    (folder / "r.dat").write_bytes(np.round(SIGNAL * 1000).astype("<i2").tobytes())
    return folder / "r"


def write_edf(path, *names):
    signals = [
        edfio.EdfSignal(column, 250, label=name, physical_dimension="mV", physical_range=(-5, 5))
        for name, column in zip(names, SIGNAL.T.astype(float), strict=True)
    ]
    edfio.Edf(signals).write(path)
    return path


@pytest.mark.parametrize(
    "name, lead",
    [
        ("ECG I", "I"),
        ("EKG aVR", "aVR"),
        ("MDC_ECG_LEAD_AVF", "aVF"),
        ("MDC_ECG_ELEC_POTL_V6", "V6"),
        ("Lead I (Einthoven)", "I"),
        ("V1 [uV]", "V1"),
        ("DIII", "III"),
        ("III (derived)", None),
        ("V1 (derived) sd", None),
        ("MLII", None),
        ("V7", None),
        ("ECG", None),
    ],
)
def test_spellings_of_devices(name, lead):
    assert spelled(name) == lead


def test_columns_are_renamed_by_name_in_every_kind_of_file(tmp_path):
    text = {"rate": 250, "unit": "mV"}
    cases = [
        (write_csv(tmp_path / "a.csv", ["CH1", "CH2"], SIGNAL.T), text),
        (write_edf(tmp_path / "a.edf", "CH1", "CH2"), {}),
        (write_wfdb(tmp_path, "CH1", "CH2"), {}),
    ]
    for path, said in cases:
        for names in ("ch1=II,CH2=V5", "II,V5"):
            record = read_any(path, leads=names, **said)
            assert record.leads == ["II", "V5"], (path, names)
            np.testing.assert_allclose(record.signal, SIGNAL, atol=1e-3)
        with pytest.raises(InputError, match=r"none of its \w+ is a standard lead.*--lead_names"):
            read_any(path, **said)
        with pytest.raises(InputError, match=r"no column 'ch9' to rename .found: CH1, CH2"):
            read_any(path, leads="CH9=I", **said)
        with pytest.raises(InputError, match="unknown lead 'IX'"):
            read_any(path, leads="CH1=IX", **said)
        with pytest.raises(InputError, match="write all of them as NAME=LEAD"):
            read_any(path, leads="CH1=I,II", **said)
        with pytest.raises(InputError, match="lead I occurs twice"):
            read_any(path, leads="CH1=I,CH2=I", **said)


def test_leads_that_a_file_names_are_chosen_and_never_renamed_by_place(tmp_path):
    path = write_wfdb(tmp_path, "I", "V2")
    assert read_any(path, leads="V2").leads == ["V2"]
    with pytest.raises(InputError, match="it has no lead 'II'"):
        read_any(path, leads="II,V5")
    assert read_any(path, leads="V2=V5").leads == ["I", "V5"]


def test_arrays_have_no_names_to_rename(tmp_path):
    np.save(tmp_path / "a.npy", SIGNAL)
    with pytest.raises(InputError, match="have no names to rename"):
        read_any(tmp_path / "a.npy", 250, "mV", "CH1=I")


def test_a_modified_lead_stands_in_with_a_note(tmp_path):
    record = read_any(write_wfdb(tmp_path, "MLII", "V5"))
    assert record.leads == ["II", "V5"]
    assert record.notes == [
        "MLII is read as lead II: a modified lead, with electrodes on the trunk"
    ]
    record = read_any(write_wfdb(tmp_path, "II", "MLII"))
    assert record.leads == ["II", "MLII"] and record.notes == []


def test_an_inverted_lead_is_not_its_opposite(tmp_path):
    record = read_any(write_wfdb(tmp_path, "I", "-aVR"))
    assert record.leads == ["I", "inverted aVR"]
    assert record.notes == ["-aVR is upside down and not used"]


def test_names_are_left_alone_where_nothing_is_known():
    naming = Naming(None, "r")
    assert naming.rename(["ECG I", "avr", "ABP", "CH 3"]) == ["I", "avr", "ABP", "CH 3"]


@pytest.mark.parametrize(
    "name, factor, rate",
    [
        ("time", 1, 250),
        ("Time (s)", 1, 360),
        ("time_ms", 1000, 250),
        ("t [ms]", 1000, 360),
        ("elapsed time (ms)", 1000, 128),
    ],
)
def test_a_column_of_times_says_the_rate(tmp_path, name, factor, rate):
    path = write_csv(tmp_path / "a.csv", [name, "I", "II"], SIGNAL.T, rate, factor)
    record = read_any(path, unit="mV")
    assert record.rate == rate and record.leads == ["I", "II"] and record.notes == []
    record = read_any(path, rate=100, unit="mV")
    assert record.rate == 100
    assert record.notes == [f"its column {name} shows {rate} Hz; 100 Hz were given and are used"]


def test_times_that_say_nothing_are_not_believed(tmp_path):
    for factor in (250, 0):  # numbers of samples; nothing at all
        path = write_csv(tmp_path / "a.csv", ["time", "I", "II"], SIGNAL.T, 250, factor)
        with pytest.raises(InputError, match="its rate is not known"):
            read_any(path, unit="mV")
    times = np.arange(500) / 250
    times[300:] += 2  # a pause
    path = write_csv(tmp_path / "a.csv", ["time", "I", "II"], [times, *SIGNAL.T])
    with pytest.raises(InputError, match="its rate is not known"):
        read_any(path, unit="mV")
    assert read_any(path, 250, "mV").rate == 250


def test_units_in_the_names_of_columns_count(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["I (uV)", "II [mV]"], SIGNAL.T * [[1000], [1]])
    np.testing.assert_allclose(read_any(path, 250).signal, SIGNAL, atol=1e-4)


@pytest.mark.parametrize("key", ["rate", "fs", "sampling_rate"])
def test_keys_of_npz_that_say_the_rate(tmp_path, key):
    np.savez(tmp_path / "a.npz", signal=SIGNAL, leads=["ECG I", "II"], unit="mV", **{key: 250})
    record = read_any(tmp_path / "a.npz")
    assert record.rate == 250 and record.leads == ["I", "II"]
