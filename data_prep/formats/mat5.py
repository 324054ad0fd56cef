"""One variable of a MATLAB 5 file (`save -v6` or `-v7`): numbers, text, and structs of them.

The files come from strangers, and scipy's reader, which is C code, crashes on some damaged ones.
This one is made of slices whose bounds are checked, unpacks no more than LARGEST_BYTES, and knows
only what ECG files hold: real numbers, lines of text, and structs of one element. Whatever is
wrong with a file is a ValueError. Cells, objects, sparse and complex arrays are None.
"""

import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from data_prep.base.files import ordinary

LARGEST_BYTES = 2**28  # of a file, unpacked: 12 leads of an hour and a half at 500 Hz, as doubles
DEEPEST = 4  # structs within structs
MOST_DIMENSIONS = 8

INT8, INT32, UINT32, MATRIX, PACKED = 1, 5, 6, 14, 15  # types of an element
NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
TEXTS = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
STRUCT, CHAR, NUMERIC, COMPLEX = 2, 4, range(6, 16), 0x800  # classes of a matrix, and a flag

Value = np.ndarray | str | dict | None


def read_mat5(path: str | Path, name: str) -> Value:
    """The variable of this name: numbers as an array of its dimensions, text as str, a struct as a
    dictionary of its fields."""
    with open(ordinary(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
            raise ValueError(f"it is larger than {LARGEST_BYTES >> 20} MiB")
        data = memoryview(file.read())
    if len(data) < 128 or bytes(data[126:128]) not in (b"IM", b"MI"):
        raise ValueError("it is no MATLAB 5 file")
    if bytes(data[:20]) == b"MATLAB 7.3 MAT-file ":
        raise ValueError("it is a MATLAB 7.3 file: save it with -v7")
    order, at, left = "<" if data[126] == ord("I") else ">", 128, LARGEST_BYTES
    while at < len(data):
        kind, content, at = _element(data, at, order)
        if kind == PACKED:
            unpacked = _unpack(content, left)
            left -= len(unpacked)
            kind, content, _ = _element(unpacked, 0, order)
        if kind == MATRIX and content:
            found, value = _matrix(content, order, name, DEEPEST)
            if found == name:
                return value
    raise ValueError(f"it has no variable {name}")


def _unpack(content: memoryview, most: int) -> memoryview:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(unpacked) > most:
        raise ValueError(f"it unpacks to more than {LARGEST_BYTES >> 20} MiB")
    if not unpacker.eof:
        raise ValueError("a compressed variable is cut short")
    return memoryview(unpacked)


def _element(data: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Type and content of the element that starts at `at`, and where the next one starts."""
    if at + 8 > len(data):
        raise ValueError("it is cut short")
    kind, size = struct.unpack_from(f"{order}II", data, at)
    start, following = at + 8, at + 8 + size + (-size % 8 if kind != PACKED else 0)
    if kind >> 16:  # up to four bytes, within the head of the element
        kind, size, start, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if size > 4:
            raise ValueError("a small element is too large")
    if start + size > len(data):
        raise ValueError("it is cut short")
    return kind, data[start : start + size], following


def _matrix(data: memoryview, order: str, wanted: str | None, depth: int) -> tuple[str, Value]:
    """Name and value of a matrix; of one that is not wanted by its name, the name alone."""
    # flags, dimensions and name
    kind, flags, at = _element(data, 0, order)
    if kind != UINT32 or len(flags) != 8:
        raise ValueError("an array has no flags")
    (flags,) = struct.unpack_from(f"{order}I", flags)
    kind, sizes, at = _element(data, at, order)
    if kind != INT32 or not 2 <= len(sizes) // 4 <= MOST_DIMENSIONS or len(sizes) % 4:
        raise ValueError("an array has no dimensions")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    if min(shape) < 0:
        raise ValueError("an array has a negative size")
    kind, letters, at = _element(data, at, order)
    name = bytes(letters).decode("latin-1")
    if wanted is not None and name != wanted:
        return name, None

    # what it holds, by its class
    of_class = flags & 0xFF
    if of_class in NUMERIC and not flags & COMPLEX:
        return name, _numbers(data, at, order, shape)
    if of_class == CHAR and shape[0] <= 1:
        kind, content, _ = _element(data, at, order)
        if kind not in TEXTS:
            raise ValueError("a text is of an unknown type")
        wide = {"<": "-le", ">": "-be"}[order] if TEXTS[kind] != "utf-8" else ""
        return name, bytes(content).decode(TEXTS[kind] + wide, "replace").rstrip("\0")
    if of_class == STRUCT and math.prod(shape) == 1:
        return name, _struct(data, at, order, depth)
    return name, None


def _numbers(data: memoryview, at: int, order: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, content, _ = _element(data, at, order)
    if kind not in NUMBERS:
        raise ValueError("an array is of an unknown type")
    dtype = np.dtype(order + NUMBERS[kind])
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"an array of {' x '.join(map(str, shape))} has {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F")


def _struct(data: memoryview, at: int, order: str, depth: int) -> dict[str, Value]:
    if depth == 0:
        raise ValueError("its structs are nested too deeply")
    # the names of the fields, each in the same number of bytes
    kind, content, at = _element(data, at, order)
    if kind != INT32 or len(content) != 4:
        raise ValueError("a struct has no field names")
    (width,) = struct.unpack(f"{order}i", content)
    kind, letters, at = _element(data, at, order)
    if kind != INT8 or width < 1 or len(letters) % width:
        raise ValueError("a struct has no field names")
    names = [
        bytes(letters[i : i + width]).partition(b"\0")[0].decode("latin-1")
        for i in range(0, len(letters), width)
    ]
    # a matrix for each
    fields: dict[str, Value] = {}
    for name in names:
        kind, content, at = _element(data, at, order)
        if kind != MATRIX:
            raise ValueError(f"the field {name[:20]} is no array")
        fields[name] = _matrix(content, order, None, depth - 1)[1] if content else None
    return fields
