"""What the PhysioNet Challenge files of CPSC 2018 and CSN share: a WFDB header with '#Dx: codes',
and a .mat.

The .mat is a MATLAB 4 file with one int16 matrix 'val' [12,T]. It states its own size, so a header
with merged lines can be repaired from it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.words import list_some
from data_prep.corpora.corpus import Corpus, list_headers
from data_prep.corpora.duplicates import keep_together
from data_prep.ecg.leads import LEADS, canonical
from data_prep.ecg.record import RecordRef, Waveform
from data_prep.formats.mat_files import RATE, read_mat4
from data_prep.formats.wfdb_files import checksums, header_text, read_wfdb_record, to_millivolts

_SIGNAL_LINE = re.compile(  # groups: gain, checksum, name
    r"\.mat[ \t]+16(?:\+24)?[ \t]+(\S+)(?:[ \t]+-?\d+){3}[ \t]+(-?\d{1,9})[ \t]+-?\d+[ \t]*(\S*)"
)


def read_codes(text: str) -> list[str] | None:
    """The SNOMED codes of a header's '#Dx' line, in order and without repeats; None if there is no
    such line."""
    line = re.search(r"^#[ \t]*Dx[ \t]*:?([^\r\n]*)", text, re.MULTILINE | re.IGNORECASE)
    if line is None:
        return None
    return list(dict.fromkeys(code for code in re.split(r"[,;\s]+", line[1]) if code))


def list_coded(
    name: str,
    raw: Path,
    classes: Mapping[str, str],
    rhythms: Mapping[str, str] | None = None,
    wanted: Callable[[str], bool] = lambda record_id: True,
) -> Corpus:
    """The corpus of the headers below `raw` whose record is wanted; task 'diagnosis' by exact match
    of SNOMED codes with `classes`.

    With `rhythms` (code -> class) there is a task 'rhythm' too, for records that have one of them.
    A code that is no class of a task is counted in unknown_codes; a record without a '#Dx' line is
    not labelled.
    """
    rhythms = rhythms or {}
    refs, unknown, unlabelled = [], Counter(), []
    for record_id, stem in list_headers(raw).items():
        if not wanted(record_id):
            continue
        codes = read_codes(header_text(stem, record_id))
        labels = {}
        if codes is None:
            unlabelled.append(record_id)
        else:
            labels = {"diagnosis": sorted({classes[code] for code in codes if code in classes})}
            found = sorted({rhythms[code] for code in codes if code in rhythms})
            labels |= {"rhythm": found} if found else {}
            unknown.update(code for code in codes if code not in classes and code not in rhythms)
        refs.append(RecordRef(record_id, record_id, None, labels, str(stem)))
    refs, duplicates = keep_together(refs, (".mat", ".dat"))
    tasks = {"diagnosis": tuple(dict.fromkeys(classes.values()))}
    tasks |= {"rhythm": tuple(rhythms.values())} if rhythms else {}
    notes = (
        [f"{len(unlabelled)} headers have no #Dx line: {list_some(unlabelled)}"]
        if unlabelled
        else []
    )
    return Corpus(
        name,
        str(raw),
        tasks,
        refs,
        "80/10/10 by sha256 of the record id, records with the same signal together",
        read=read_challenge,
        duplicates=duplicates,
        unknown_codes=dict(sorted(unknown.items())),
        notes=notes,
    )


def read_challenge(ref: RecordRef) -> Waveform:
    """One record; if its header is broken, it is read from the .mat (defect 'header_repaired')."""
    try:
        record = read_wfdb_record(ref.path, ref.record_id)
    except InputError as error:
        text = header_text(ref.path, ref.record_id)
        if not _merged(text):
            raise error from None
        rate = re.match(r"\S+[ \t]+12[ \t]+(\d{2,5})[ \t]", text)
        signal = _repair(ref, text)
        info = _info(text.splitlines())
        return Waveform(
            signal, float(rate[1]) if rate else RATE, list(LEADS), ["header_repaired"], info
        )
    return Waveform(
        record.signal, record.rate, record.names, record.defects, _info(record.comments)
    )


def _info(comments: list[str]) -> dict[str, str]:
    """Age, sex and codes from the comments of a header."""
    fields = (line.lstrip("# ").partition(":") for line in comments)
    return {
        key.strip().lower(): value.strip()
        for key, _, value in fields
        if key.strip().lower() in ("age", "sex", "dx")
    }


def _merged(text: str) -> bool:
    """Whether two lines of a header are merged into one, so that a signal line is missing."""
    first, *rest = [
        line for line in re.split(r"[\r\n]+", text) if line.strip() and line[0] != "#"
    ] or [""]
    words = first.split()
    claims = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,3}", words[1]) else len(LEADS)
    return claims == len(LEADS) and len(rest) < claims and ".mat" in text


def _repair(ref: RecordRef, text: str) -> np.ndarray:
    """The signal [T,12] in mV of a record with a broken header, if the rest of the header agrees
    with the .mat."""
    lines = [line for line in _SIGNAL_LINE.findall(text) if canonical(line[2])]
    places = [LEADS.index(canonical(name)) for _, _, name in lines]
    gains = {gain for gain, _, _ in lines}
    if (
        gains - {"1000/mV", "1000(0)/mV", "1000.0(0)/mV"}
        or len(lines) < 10
        or places != sorted(set(places))
    ):
        raise InputError(
            f"record {ref.record_id}:"
            " its header is broken, and what is left does not name its leads"
        )
    val = read_mat4(f"{ref.path}.mat", ref.record_id)
    if val.shape[0] != len(LEADS):
        raise InputError(
            f"record {ref.record_id}: its header is broken, and its .mat has {val.shape[0]} leads"
        )
    sums = checksums(val.T)
    wrong = next(
        (i for i, line in zip(places, lines, strict=True) if (int(line[1]) - sums[i]) % 65536), None
    )
    if wrong is not None:
        raise InputError(
            f"record {ref.record_id}:"
            f" its header is broken, and the checksum of {LEADS[wrong]} is wrong"
        )
    signal = val.T.astype(np.float32) / np.float32(1000)
    signal[val.T == -32768] = np.nan
    return to_millivolts(signal, list(LEADS), ["mV"] * len(LEADS), ref.record_id)[0]
