"""`lvcg convert`: any file as a WFDB record that others read, with what was lost said."""

import numpy as np
import pytest
from helpers import device_files as files
from helpers.device_files import COUNTS, STEP

from data_prep import convert
from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.formats.any_file import read_any
from data_prep.formats.wfdb_files import quiet_wfdb, write_wfdb


def test_a_converted_file_is_read_alike_by_wfdb_and_by_us(tmp_path, capsys):
    eight = [0, 1, 6, 7, 8, 9, 10, 11]
    source = tmp_path / "m.xml"
    source.write_bytes(files.muse(COUNTS[:, eight], [LEADS[i] for i in eight]))
    assert convert.main([str(source), str(tmp_path / "out" / "m")]) == 0
    said = capsys.readouterr().out
    for words in (
        "read: GE MUSE XML, 2.0 s at 500 Hz, I, II, III",
        "note: III, aVR, aVL and aVF are computed from I and II",
        "resolution: steps of ",
        "not kept: patient data, median beats, statements",
        "m.hea and ",
    ):
        assert words in said
    ours = read_any(tmp_path / "out" / "m")
    assert ours.leads == list(LEADS) and ours.rate == 500 and ours.defects == []
    np.testing.assert_allclose(ours.signal, read_any(source).signal, atol=1e-3)
    with quiet_wfdb() as wfdb:
        other = wfdb.rdrecord(str(tmp_path / "out" / "m"))
    assert other.sig_name == list(LEADS) and other.fs == 500
    np.testing.assert_allclose(other.p_signal, ours.signal, atol=1e-5)
    header = (tmp_path / "out" / "m.hea").read_text()
    assert "4711" not in header and "ller" not in header


def test_nothing_is_overwritten(tmp_path):
    write_wfdb(tmp_path / "a", COUNTS * STEP, 500, LEADS)
    before = (tmp_path / "a.dat").read_bytes()
    for out in ("a", "a.hea"):
        with pytest.raises(InputError, match=r"a.hea exists already: choose another name"):
            convert.main([str(tmp_path / "a.hea"), str(tmp_path / out)])
    assert (tmp_path / "a.dat").read_bytes() == before


@pytest.mark.parametrize("offset", [0.0, 300.0, -5.0])
def test_gaps_offsets_and_flat_leads_survive(tmp_path, offset):
    signal = (COUNTS[:, :3] * STEP + offset).astype(np.float32)
    signal[10:20, 0], signal[:, 1], signal[:, 2] = np.nan, offset, np.nan
    step, error = write_wfdb(tmp_path / "a", signal, 123.4, ["aVR", "V1", "other  name"])
    record = read_any(tmp_path / "a")
    assert record.rate == 123.4 and record.leads == ["aVR", "V1", "other name"]
    np.testing.assert_allclose(record.signal, signal, atol=1.1e-3 * error + 1e-6 * abs(offset))
    assert error <= step / 2 + 1e-9 and step <= 1 and record.defects == []
