"""A part of a long file is what the whole file holds there."""

import edfio
import numpy as np
import pytest
from helpers import device_files

from data_prep.formats.any_file import IN_PARTS, read_file
from data_prep.formats.wfdb_files import SUM_ROWS, quiet_wfdb, read_wfdb_record, write_wfdb
from data_prep.synthetic_heart.records import make_record

LEADS = ["I", "II", "V2"]


def write(kind, folder):
    """A file of that kind, and what its reader must be told."""
    signal = make_record(patient=6, seconds=40, rate=250)[0][:, [0, 1, 7]]
    signal[777, 1] = np.nan if kind == "wfdb" else 0.5
    path, said = folder / f"long.{kind}", {}
    if kind == "edf":
        signals = [
            edfio.EdfSignal(x.astype(np.float64), 250, label=lead, physical_dimension="mV")
            for lead, x in zip(LEADS, signal.T, strict=True)
        ]
        edfio.Edf(signals).write(path)
    elif kind == "npy":
        np.save(path, signal.T)
        said = {"rate": 250.0, "unit": "mV", "leads": LEADS}
    elif kind == "ishne":
        path.write_bytes(device_files.ishne())
    elif kind == "wfdb":
        path = folder / "long.hea"
        write_wfdb(folder / "long", signal, 250, LEADS)
    else:  # samples of 12 bits, which the wfdb package reads
        path = folder / "packed.hea"
        with quiet_wfdb() as wfdb:
            how = {"units": ["mV"] * 3, "sig_name": LEADS, "fmt": ["212"] * 3}
            how |= {"adc_gain": [200.0] * 3, "baseline": [0] * 3, "write_dir": str(folder)}
            wfdb.wrsamp("packed", 250, p_signal=signal.astype(np.float64), **how)
    return str(path), said


@pytest.mark.parametrize("kind", [*IN_PARTS, "wfdb212"])
def test_a_part_is_read_as_in_the_whole_file(kind, tmp_path):
    path, said = write(kind, tmp_path)
    whole = read_file(path, "long", **said)
    total = len(whole.signal)
    for first, end in ((0, 100), (501, 777), (700, 803), (total - 7, total + 50)):
        part = read_file(path, "long", **said, span=(first, end))
        assert (part.total, part.rate, part.leads) == (total, whole.rate, whole.leads)
        np.testing.assert_array_equal(part.signal, whole.signal[first : min(end, total)])


def test_the_first_part_tells_of_a_wrong_checksum_anywhere(tmp_path):
    signal = np.zeros((SUM_ROWS + 1000, 1))
    signal[:, 0] = np.sin(np.arange(len(signal)) / 9)
    write_wfdb(tmp_path / "r", signal, 250, ["II"])
    with open(tmp_path / "r.dat", "r+b") as file:
        file.seek(-10, 2)
        file.write(b"\x01\x01")
    assert read_wfdb_record(tmp_path / "r").defects == ["checksum:II"]
    assert read_wfdb_record(tmp_path / "r", span=(0, 100)).defects == ["checksum:II"]
    assert read_wfdb_record(tmp_path / "r", span=(100, 200)).defects == []
