"""Files of which a few things are changed at random, and what a reader may answer."""

import re

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg.leads import canonical
from data_prep.formats.wfdb_files import LARGEST_MILLIVOLTS

KINDS = ("byte", "cut", "insert", "word", "line", "drop", "join", "swap")
NASTY = [
    "-1",
    "0",
    "1e309",
    "nan",
    "9" * 30,
    "16x4",
    "212",
    "16:9",
    "16+99999999",
    "508",
    "0/mV",
    "1e-40",
    "\u00b5V",
]
NASTY += [
    "-",
    ".",
    "/dev/zero",
    "..",
    "~",
    "12345678",
    "I",
    "(",
    "100/0(",
    "",
    "\0",
    "\ufeff",
    "r/2",
    "61",
    "80",
    "311",
]


def mutate(data, changes):
    for kind, place, small, word in changes:
        at = place % max(1, len(data))
        if kind == "byte":
            data = data[:at] + bytes([small]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + word.encode() + data[at:]
        elif kind == "word":
            parts = re.split(rb"([ \n])", data)
            parts[place % len(parts)] = word.encode()
            data = b"".join(parts)
        else:
            lines = data.split(b"\n")
            i, j = place % len(lines), small % len(lines)
            if kind == "line":
                lines.insert(j, lines[i])
            elif kind == "drop":
                del lines[i]
            elif kind == "swap":
                lines[i], lines[j] = lines[j], lines[i]
            data = b"\n".join(lines)
            if kind == "join" and data.count(b"\n"):
                breaks = [found.start() for found in re.finditer(b"\n", data)]
                at = breaks[place % len(breaks)]
                data = data[:at] + data[at + 1 :]
    return data


def check(read, record_id="r1"):
    """The record if the file is readable, None if it is refused in one line."""
    try:
        record = read()
    except InputError as error:
        assert (
            str(error).startswith(f"record {record_id}: ") and len(str(error).splitlines()) == 1
        ), str(error)
        return None
    names = getattr(record, "leads", None) or record.names
    leads = [canonical(name) for name in names if canonical(name)]
    assert record.signal.dtype == np.float32 and record.signal.ndim == 2 and len(record.signal)
    assert record.signal.shape[1] == len(names) and leads and len(set(leads)) == len(leads)
    assert not np.isinf(record.signal).any() and 1 <= record.rate <= 1e5
    assert np.nanmax(np.abs(record.signal), initial=0) <= LARGEST_MILLIVOLTS
    return record
