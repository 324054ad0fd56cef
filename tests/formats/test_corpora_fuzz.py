"""Mutated files: an InputError of one line or a valid record, never another exception, a hang or a
silent change."""

import os
import re
from pathlib import Path

import edfio
import numpy as np
import pytest
from helpers.mutations import KINDS, NASTY, check, mutate
from helpers.raw_files import write_edf, write_mat
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from data_prep.corpora.challenge import read_challenge
from data_prep.corpora.ludb import read_waves
from data_prep.ecg.leads import LEADS, canonical
from data_prep.ecg.record import RecordRef
from data_prep.formats.any_file import read_any
from data_prep.formats.tables import read_labels
from data_prep.formats.wfdb_files import read_wfdb_record

GENERATOR = np.random.default_rng(0)
SIGNAL = np.cumsum(GENERATOR.normal(0, 0.02, (100, 12)), axis=0)


def fuzz(examples):
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=quiet,
    )


@st.composite
def mutations(draw):
    """A few changes of a file: bytes, words, lines, or its end."""
    kinds = st.sampled_from(KINDS)
    places, small = st.integers(0, 10**6), st.integers(0, 255)
    return [
        (draw(kinds), draw(places), draw(small), draw(st.sampled_from(NASTY)))
        for _ in range(draw(st.integers(1, 3)))
    ]


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """Header and signal of a Challenge file, 12 leads."""
    folder = tmp_path_factory.mktemp("seed")
    write_mat(folder / "r1", SIGNAL, "426177001,164889003", end="\n")
    return folder, (folder / "r1.hea").read_bytes(), (folder / "r1.mat").read_bytes()


def put(folder, header, data, name="r1.mat"):
    (folder / "r1.hea").write_bytes(header)
    (folder / name).write_bytes(data)
    return RecordRef("r1", "r1", None, {}, str(folder / "r1"))


@fuzz(500)
@given(changes=mutations())
@example(changes=[("join", 0, 0, "")])
def test_mutated_headers(seed, changes):
    folder, header, data = seed
    ref = put(folder, mutate(header, changes), data)
    record = check(lambda: read_challenge(ref))
    if record is not None and "header_repaired" in record.defects:
        np.testing.assert_allclose(record.signal, SIGNAL, atol=6e-4)


@fuzz(150)
@given(changes=mutations(), form=st.sampled_from(["212", "80", "61", "24", "310", "32"]))
def test_mutated_headers_of_other_formats(seed, changes, form):
    folder, header, data = seed
    header = header.replace(b" 16+24 ", f" {form} ".encode()).replace(b" 12 500 100", b" 12 500 20")
    ref = put(folder, mutate(header, changes), data)
    check(lambda: read_wfdb_record(ref.path, ref.record_id))


@fuzz(150)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_of_the_signal_never_goes_unseen(seed, place, value):
    folder, header, data = seed
    at = 24 + place % (len(data) - 24)
    ref = put(folder, header, data[:at] + bytes([value]) + data[at + 1 :])
    record = check(lambda: read_challenge(ref))
    changed = data[at] != value
    assert record is None or record.defects == (
        [f"checksum:{LEADS[(at - 24) // 2 % 12]}"] if changed else []
    )


@fuzz(60)
@given(length=st.integers(0, 3000))
def test_a_signal_file_of_any_length(seed, length):
    folder, header, data = seed
    ref = put(folder, header, (data + b"x" * 3000)[:length])
    record = check(lambda: read_challenge(ref))
    assert (record is None) == (length < len(data))
    if record is not None:
        np.testing.assert_allclose(record.signal, SIGNAL, atol=6e-4)


KEEPING = {  # changes of a header that keep its meaning
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "cr": lambda text: text.replace("\n", "\r"),
    "blank lines": lambda text: text.replace("\n", "\n\n \n"),
    "spaces": lambda text: text.replace(" ", "   ").replace("\n", "  \n"),
    "tabs": lambda text: text.replace(" ", "\t"),
    "comments": lambda text: text.replace("\n", "\n# 5 signals at 100 Hz\n"),
    "bom": lambda text: "\ufeff" + text.removeprefix("\ufeff"),
    "lower case": lambda text: re.sub(
        r"[ \t](a?V\w|I+)(?=\s)", lambda found: found[0].lower(), text
    ),
    "zero": lambda text: text.replace("1000/mV", "1000(0)/mV"),
    "exponent": lambda text: text.replace("1000/mV", "1.0e3/mV").replace("1000(", "1e+3("),
    "rate": lambda text: re.sub(r"(r1\s+12\s+)500", r"\g<1>500.0/500(0)", text, count=1),
    "no length": lambda text: re.sub(r"(r1\s+12\s+\S+)\s+100(?=\s)", r"\1", text, count=1),
}


@fuzz(120)
@given(
    chosen=st.lists(st.sampled_from(sorted(KEEPING)), min_size=1, max_size=5),
    wide=st.sampled_from(["utf-8", "utf-16"]),
)
def test_changes_that_keep_the_meaning_keep_the_signal(seed, chosen, wide):
    folder, header, data = seed
    text = header.decode()
    for name in chosen:
        text = KEEPING[name](text)
    ref = put(
        folder,
        text.removeprefix("\ufeff").encode(wide) if wide == "utf-16" else text.encode(),
        data,
    )
    record = check(lambda: read_challenge(ref))
    assert record is not None, text
    assert (
        [canonical(name) for name in record.leads] == list(LEADS)
        and record.rate == 500
        and record.defects == []
    )
    np.testing.assert_allclose(record.signal, SIGNAL, atol=6e-4)


@fuzz(60)
@given(order=st.permutations(range(12)))
def test_leads_stored_in_any_order_come_out_under_their_names(seed, order):
    folder, header, data = seed
    lines = header.split(b"\n")
    adc = np.frombuffer(data[24:], "<i2").reshape(-1, 12)
    ref = put(
        folder,
        b"\n".join([lines[0], *(lines[1 + i] for i in order), *lines[13:]]),
        data[:24] + adc[:, order].tobytes(),
    )
    record = check(lambda: read_challenge(ref))
    assert record.leads == [LEADS[i] for i in order] and record.defects == []
    np.testing.assert_allclose(record.signal, SIGNAL[:, order], atol=6e-4)
    (folder / "r1.mat").write_bytes(data)  # now the header names the wrong columns
    moved = [f"checksum:{LEADS[lead]}" for place, lead in enumerate(order) if lead != place]
    assert check(lambda: read_challenge(ref)).defects == moved


@fuzz(150)
@given(changes=mutations(), kind=st.sampled_from(["edf", "bdf", "npy", "npz", "csv"]))
def test_mutated_users_files(tmp_path, changes, kind):
    path = tmp_path / f"r1.{kind}"
    if kind == "edf":
        write_edf(path, SIGNAL)
    elif kind == "bdf":
        leads = [
            edfio.BdfSignal(column, 25, label=lead, physical_dimension="mV")
            for lead, column in zip(LEADS, SIGNAL.T, strict=True)
        ]
        edfio.Bdf(leads).write(path)
    elif kind == "npy":
        np.save(path, SIGNAL)
    elif kind == "npz":
        np.savez(path, signal=SIGNAL, rate=500)
    else:
        path.write_text(
            "\n".join([",".join(LEADS), *(",".join(map(str, row)) for row in SIGNAL.tolist())])
        )
    path.write_bytes(mutate(path.read_bytes(), changes))
    more = {} if kind in ("edf", "bdf") else {"rate": 500, "unit": "mV", "leads": list(LEADS)}
    check(lambda: read_any(path, record_id="r1", **more))


@fuzz(150)
@given(data=st.binary(max_size=200), ending=st.booleans())
def test_any_bytes_as_annotations(tmp_path, data, ending):
    path = tmp_path / "r1.ii"
    path.write_bytes(data + b"\0\0" * ending)
    try:
        waves = read_waves(path, "r1", 5000)
    except InputError as error:
        assert str(error).startswith("record r1: ")
        return
    assert set(waves) == {"P", "QRS", "T"} and all(rows.shape[1] == 3 for rows in waves.values())


@fuzz(150)
@given(changes=mutations())
def test_mutated_label_tables(tmp_path, changes):
    path = tmp_path / "labels.csv"
    path.write_bytes(
        mutate(
            b'record_id,patient_id,split,finding\na,p1,train,x;y\nb,p2,test,\nc,p3,,"z, z"\n',
            changes,
        )
    )
    try:
        rows, tasks = read_labels(path)
    except InputError as error:
        assert len(str(error).splitlines()) == 1 and "labels.csv" in str(error)
        return
    for _, split, labels in rows.values():
        assert split in (None, "train", "validation", "test")
        assert all(set(names) <= set(tasks[task]) for task, names in labels.items())


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ptbxl, ptb, csn"
)
@pytest.mark.parametrize("name", ["ptbxl", "ptb", "csn", "cpsc2018", "ludb"])
def test_mutated_real_records(tmp_path_factory, name):
    path = min(Path(os.environ["LVCG_REAL_DATA"], name).rglob("*.hea"))
    folder = tmp_path_factory.mktemp(name)
    header, files = (
        path.read_bytes(),
        set(re.findall(rf"^({path.stem}\.\w+) 16", path.read_text(), re.MULTILINE)),
    )
    for file in files:
        (folder / file).write_bytes((path.parent / file).read_bytes())
    ref = RecordRef("r1", "r1", None, {}, str(folder / path.stem))

    @fuzz(100)
    @given(changes=mutations())
    def run(changes):
        (folder / path.name).write_bytes(mutate(header, changes))
        check(lambda: read_challenge(ref))

    run()
