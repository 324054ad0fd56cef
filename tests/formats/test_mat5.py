"""Our reader of MATLAB 5 files: the values of scipy's, and never a crash, whatever is in a file."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from helpers.mutations import check

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.ecg.record import RecordRef
from data_prep.formats.any_file import read_any
from data_prep.formats.mat5 import read_mat5
from data_prep.formats.mat_files import read_mat4, read_struct

SIGNAL = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (100, 12)), axis=0)
ECG = {"sex": "Male", "age": np.array([[74.0]]), "data": SIGNAL.T}


def saved(packed, **more) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, {"before": np.arange(5), "ECG": ECG, **more}, do_compression=packed)
    return file.getvalue()


def put(folder, data) -> RecordRef:
    (folder / "r1.mat").write_bytes(data)
    return RecordRef("r1", "r1", None, {}, str(folder / "r1"))


def big_endian(values) -> bytes:
    """A file as a machine of the other byte order writes it: one matrix of doubles."""

    def element(kind, content):
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    inner = element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">ii", *values.shape))
    inner += element(1, b"val") + element(9, values.astype(">f8").tobytes(order="F"))
    return b" " * 124 + b"\x01\x00MI" + element(14, inner)


@pytest.mark.parametrize("packed", [False, True])
def test_values_are_those_of_scipy(tmp_path, packed):
    kinds = {f"x{i}": (SIGNAL * 1000).astype(t) for i, t in enumerate("bBhHiIqQfd")}
    more = {
        "text": "naïve ünïcode",
        "empty": np.zeros((0, 3)),
        "one": 7,
        "deep": np.ones((2, 3, 4)),
    }
    path = tmp_path / "a.mat"
    path.write_bytes(saved(packed, **kinds, **more))
    theirs = scipy.io.loadmat(path)
    for name in (*kinds, "empty", "one", "deep"):
        ours = read_mat5(path, name)
        assert ours.dtype == theirs[name].dtype and np.array_equal(ours, theirs[name]), name
    assert read_mat5(path, "text") == theirs["text"][0]
    ours = read_mat5(path, "ECG")
    assert ours["sex"] == "Male" and ours["age"] == [[74.0]]
    assert np.array_equal(ours["data"], theirs["ECG"][0, 0]["data"])


def test_the_other_byte_order(tmp_path):
    put(tmp_path, big_endian(SIGNAL))
    assert np.array_equal(read_mat5(tmp_path / "r1.mat", "val"), SIGNAL)


@pytest.mark.parametrize("packed", [False, True])
def test_flipped_bits_give_a_record_or_one_line(tmp_path, packed):
    """Scipy's reader crashed on 49 of 2,496 flips in the head of such a file, and hung on 4."""
    data, generator = saved(packed), np.random.default_rng(0)
    places = [*range(128 * 8, 700 * 8), *generator.integers(0, 8 * len(data), 500)]
    refused = 0
    for place in generator.permutation(places)[:600].tolist():
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        ref = put(tmp_path, flipped)
        refused += check(lambda ref=ref: read_struct(ref)) is None
    assert refused > 100


def test_every_length_of_a_file_gives_one_line(tmp_path):
    data = saved(False)
    for length in range(0, len(data) - 1, 37):
        ref = put(tmp_path, data[:length])
        assert check(lambda ref=ref: read_struct(ref)) is None


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path):
    packer = zlib.compressobj(1)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(300)) + packer.flush()
    ref = put(tmp_path, saved(True)[:128] + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(InputError, match="unpacks to more than 256 MiB"):
        read_struct(ref)


def test_a_file_that_is_something_else_says_so(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"val": SIGNAL})
    with pytest.raises(InputError, match=r"record a: a.mat .*no variable ECG"):
        read_any(tmp_path / "a.mat")
    scipy.io.savemat(tmp_path / "b.mat", {"ECG": {"data": SIGNAL * 1j}})
    with pytest.raises(InputError, match=r"no readable struct ECG.data"):
        read_any(tmp_path / "b.mat")
    put(tmp_path, b"MATLAB 7.3 MAT-file ".ljust(124) + b"\0\2IM" + bytes(600))
    with pytest.raises(InputError, match="save it with -v7"):
        read_any(tmp_path / "r1.mat")


@pytest.mark.skipif("LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: cpsc2018")
def test_real_records_as_structs_are_read_as_scipy_reads_them(tmp_path):
    """The files of the Challenge are MATLAB 4; the original set has the same signals as structs."""
    for path in sorted(Path(os.environ["LVCG_REAL_DATA"], "cpsc2018").glob("*.mat"))[:20]:
        data = read_mat4(str(path), path.stem)[: len(LEADS)] / 1000
        struct = {"sex": "Female", "age": np.uint8(60), "data": data}
        scipy.io.savemat(tmp_path / "r1.mat", {"ECG": struct}, do_compression=True)
        theirs = scipy.io.loadmat(tmp_path / "r1.mat")["ECG"][0, 0]
        wave = read_struct(RecordRef("r1", "r1", None, {}, str(tmp_path / "r1")))
        assert np.array_equal(wave.signal, theirs["data"].T.astype(np.float32))
        assert wave.info == {"sex": theirs["sex"][0], "age": str(theirs["age"][0, 0])}
