"""Uploads that a stranger might send: mutated files of every format, archives, bombs, names that
look like paths, claims of huge sizes."""

import gzip
import io
import random
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers import device_files
from helpers.raw_files import wfdb_text, write_edf

from data_prep.ecg.leads import LEADS
from fuzz.mutation import mutate

MUTANTS = 9  # of each format
NAMES = (
    "../../etc/passwd", "/etc/passwd", "..", ".", "", "~/.bashrc", "a\\..\\b.edf", "%2e%2e%2fx.csv",
    "con.edf", "x" * 3000 + ".dcm", "a\x00.edf", "a\nb.csv", "$(id).csv", "'; rm -rf ~.txt",
    "<script>alert(1)</script>.xml", "=1+1.csv", "файл.scp", "a.csv/../../b.csv", "-rf", "file:///x",
)  # fmt: skip
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;">'
    '<!ENTITY e "&d;&d;&d;&d;&d;&d;&d;&d;">]>'
)
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


class Upload(NamedTuple):
    """The files of one request, and whether there is anything in them to answer for."""

    what: str
    files: list[tuple[str, bytes]]
    refused: bool = True


def uploads(folder: Path) -> Iterator[Upload]:
    """All of them, the same on every run."""
    good = good_files(folder)
    for name, content in good.items():
        chance = random.Random(name)
        for i in range(MUTANTS):  # some of them still hold an ECG
            yield Upload(f"{name}, mutant {i}", [(name, mutate(content, chance))], False)
        yield Upload(f"{name}, first half", [(name, content[: len(content) // 2])], False)
        yield Upload(f"{name}, empty", [(name, b"")])
        yield Upload(f"{name}, zeros", [(name, bytes(5000))])
    header, signal = wfdb()
    chance = random.Random("wfdb")
    for i in range(MUTANTS):
        changed = mutate(header, chance)
        yield Upload(f"header, mutant {i}", [("r.hea", changed), ("r.dat", signal)], False)
    for name in NAMES:
        yield Upload(f"name {name[:30]!r}", [(name, b"nothing of an ECG")])
        files = [("r.hea", header), (name, signal)]
        yield Upload(f"name {name[:30]!r} beside a header", files)
    yield from archives(good)
    yield from claims(header, signal)


def good_files(folder: Path) -> dict[str, bytes]:
    """Two seconds of ECG in every format that is one file."""
    counts = device_files.COUNTS
    millivolts = counts * device_files.STEP
    write_edf(folder / "r.edf", millivolts)
    device_files.dicom(folder / "r.dcm")
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, millivolts)
    np.savez(npz, signal=millivolts, rate=500, unit="mV", leads=LEADS)
    head = "time," + ",".join(f"{lead} (mV)" for lead in LEADS)
    rows = (",".join(f"{x:.4f}" for x in (i / 500, *row)) for i, row in enumerate(millivolts))
    return {
        "r.edf": (folder / "r.edf").read_bytes(),
        "r.dcm": (folder / "r.dcm").read_bytes(),
        "r.npz": npz.getvalue(),
        "r.npy": npy.getvalue(),
        "r.csv": "\n".join([head, *rows]).encode(),
        "muse.xml": device_files.muse(),
        "philips.xml": device_files.philips(),
        "aecg.xml": device_files.aecg(),
        "r.scp": device_files.scp(),
        "r.ecg": device_files.ishne(),
        "r.json": device_files.kardia(),
        "apple.csv": device_files.apple(),
    }


def wfdb() -> tuple[bytes, bytes]:
    """A header and its signal."""
    text, adc = wfdb_text("r", device_files.COUNTS * device_files.STEP, LEADS, "r.dat")
    return text.encode(), adc.tobytes()


def archives(good: dict[str, bytes]) -> Iterator[Upload]:
    """Packed files, under their own names and under others."""
    for inside in ("r.dcm", "../../evil.csv"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(inside, good["r.dcm"])
        for name in ("r.zip", "r", "r.dcm", "r.npz", "r.edf", "r.csv", "r.mat", "r.hea"):
            yield Upload(f"zip of {inside} as {name}", [(name, packed.getvalue())])
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f4", "fortran_order": False, "shape": (2_000_000, 12)}
        )
        archive.writestr("signal.npy", head.getvalue() + bytes(96_000_000), compresslevel=1)
    yield Upload("npz of 96 MB in 100 kB", [("r.npz", bomb.getvalue())])
    yield Upload("gzip", [("r.csv.gz", gzip.compress(good["r.csv"]))])
    for start in (b"%PDF-1.7", b"\x89PNG", b"Rar!", b"7z\xbc\xaf", b"\x7fELF", b"MZ", b"\x89HDF"):
        yield Upload(f"{start!r}", [("r.bin", start + bytes(2000))])


def claims(header: bytes, signal: bytes) -> Iterator[Upload]:
    """Files that point elsewhere, or state more than they hold."""
    for text in (LAUGHS, OUTSIDE):
        for root in ("RestingECG", "restingecgdata", "AnnotatedECG"):
            entity = "&e;" if text is LAUGHS else "&a;"
            xml = f'<?xml version="1.0"?>{text}<{root}>{entity}</{root}>'.encode()
            yield Upload(f"entities in {root}", [("r.xml", xml)])
    yield Upload("deep XML", [("r.xml", b"<RestingECG>" + b"<a>" * 200_000)])
    yield Upload("deep JSON", [("r.json", b'{"data":' + b"[" * 200_000)])
    yield Upload("long JSON number", [("r.json", b'{"data": ' + b"9" * 100_000 + b"}")])
    for target in ("/etc/passwd", "../r.dat", "/dev/zero", "-", "s3://x/r.dat", "http://x/r.dat"):
        other = header.replace(b"r.dat", target.encode())
        yield Upload(f"header of {target}", [("r.hea", other), ("r.dat", signal)])
        segments = f"r/2 12 500 2000\n{target} 1000\n{target} 1000\n".encode()
        yield Upload(f"segments {target}", [("r.hea", segments), ("r.dat", signal)])
    for line in (b"r 12 500 99999999999", b"r 999999 500 1000", b"r 12 1e300 1000", b"r/9999 12 5"):
        files = [("r.hea", header.replace(header.splitlines()[0], line)), ("r.dat", signal)]
        yield Upload(f"header claims {line!r}", files)
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        array, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 12)}
    )
    yield Upload("npy claims 100 TB", [("r.npy", array.getvalue())])
    edf = b"0       " + b" " * 176 + b"99999999" + b" " * 44 + b"99999999" + b"1       " + b"9999"
    yield Upload("edf claims everything", [("r.edf", edf.ljust(5000))])
    ishne = b"ISHNE1.0" + bytes(2) + struct.pack("<iiii", 2**30, 2**31 - 1, 522, 2**31 - 1)
    yield Upload("ishne claims 2 GB", [("r.ecg", ishne.ljust(5000, b"\x01"))])
    yield Upload("two headers", [("a.hea", header), ("b.hea", header)])
    yield Upload("the same name twice", [("r.hea", header), ("r.hea", header)])
    yield Upload("files without a header", [("a.dat", signal), ("b.dat", signal)])
    yield Upload("a header alone", [("r.hea", header)])
    yield Upload("a signal alone", [("r.dat", signal)])
    yield Upload("seventeen files", [(f"{i}.dat", signal[:100]) for i in range(17)])
