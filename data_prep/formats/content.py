"""What kind of file it is, by its content; and the content of files that are read whole."""

import os
import re
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.formats.wfdb_files import decode

LOOK = 2**16  # bytes
LARGEST = 2**26  # bytes; as XML, ten seconds of twelve leads take about 1 MB
ROOTS = {"restingecg": "muse", "restingecgdata": "philips", "annotatedecg": "aecg"}
STARTS = {
    b"\x93NUMPY": "npy",
    b"0       ": "edf",
    b"\xffBIOSEMI": "edf",
    b"ISHNE1.0": "ishne",
}
_PICTURE = "it holds a picture of the ECG: export the signal from the device's software"
_UNPACK = "unpack it and give the file that is in it"
_ARRAY = "save one record as .npz or .csv"
REFUSED = {  # first bytes -> what it is, what to do
    b"%PDF": ("a PDF", _PICTURE),
    b"\x89PNG": ("a PNG picture", _PICTURE),
    b"\xff\xd8\xff": ("a JPEG picture", _PICTURE),
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"PK\x05\x06": ("an empty zip archive", _UNPACK),
    b"\x1f\x8b": ("a gzip archive", _UNPACK),
    b"BZh": ("a bzip2 archive", _UNPACK),
    b"\xfd7zXZ": ("an xz archive", _UNPACK),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"Rar!": ("a rar archive", _UNPACK),
    b"\x89HDF": ("an HDF5 file", _ARRAY),
    b"PAR1": ("a parquet file", _ARRAY),
    b"ANN  1.0": ("an ISHNE file of annotations", "give the file of the signal (ISHNE1.0)"),
    b"ALIVE\0": ("an AliveCor ATC file", "export it as EDF, or as JSON from the Kardia API"),
    b"@ MFR": ("an MFER file", "convert it to EDF with BioSig (save2gdf)"),
}
AGAIN = "copy or export it again"
READ_HERE = (
    "WFDB, EDF, BDF, .npy, .npz, .csv, DICOM, SCP-ECG, ISHNE, XML of GE MUSE, Philips or HL7 aECG,"
    " Kardia JSON and Apple Health CSV are read"
)
_EXPORT = "export it as one of them, or save the signal as .npz or .csv"


def kind_of(path: str, record_id: str) -> str:
    """The kind of a file whose ending says nothing: a key of FORMATS in any_file.py. An InputError
    that names what it is, where it is something else."""
    with open(path, "rb") as file:
        head, size = file.read(LOOK), os.fstat(file.fileno()).st_size
    name = Path(path).name
    for start, (what, remedy) in REFUSED.items():
        if head.startswith(start):
            raise InputError(f"record {record_id}: {name} is {what}: {remedy}")
    for start, kind in STARTS.items():
        if head.startswith(start):
            return kind
    if head[128:132] == b"DICM":
        return "dicom"
    if _is_scp(head, size):
        return "scp"
    text = decode(head).lstrip("\ufeff \t\r\n")
    if text.startswith("{"):
        return "kardia"
    if text.startswith("<"):
        root = _root(text)
        if root.lower() in ROOTS:
            return ROOTS[root.lower()]
        raise InputError(
            f"record {record_id}: {name} is XML with the root <{root[:40]}>; GE MUSE (RestingECG),"
            f" Philips (restingecgdata) and HL7 aECG (AnnotatedECG) are read: {_EXPORT}"
        )
    if not size:
        raise InputError(f"record {record_id}: {name} is empty: {AGAIN}")
    raise InputError(
        f"record {record_id}: {name} is in no format that is known here; {READ_HERE}: {_EXPORT}"
    )


def read_whole(path: str, record_id: str) -> bytes:
    """The bytes of a file; an InputError if there are too many for a format of short records."""
    size = os.path.getsize(path)
    if size > LARGEST:
        raise InputError(
            f"record {record_id}: {Path(path).name} has {size / 2**20:.0f} MiB, more than"
            f" {LARGEST / 2**20:.0f}: export it as EDF"
        )
    return Path(path).read_bytes()


def _is_scp(head: bytes, size: int) -> bool:
    """By the name in section 0, which old files lack, or else by the lengths there."""
    if head[16:22] == b"SCPECG" and head[8:10] == b"\0\0":
        return True
    length, section = int.from_bytes(head[2:6], "little"), int.from_bytes(head[10:14], "little")
    return head[8:10] == b"\0\0" and length == size and 16 + 120 <= section < size


def _root(text: str) -> str:
    """The name of the root element, without its namespace."""
    text = re.sub(
        r"^(\s*(<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(\[.*?\]\s*)?>))+", "", text, flags=re.S
    )
    found = re.match(r"\s*<(?:[\w.\-]+:)?([\w.\-]+)", text)
    return found[1] if found else "?"
