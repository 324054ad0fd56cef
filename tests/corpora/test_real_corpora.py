"""All five public corpora, built, verified, and their ledgers held against facts computed from the
raw files alone."""

import ast
import collections
import csv
import hashlib
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.builds import ledger_of, quiet_build
from scipy import signal as sps

from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.checks import verify
from data_prep.ecg import quality
from data_prep.ecg.leads import LEADS

pytestmark = pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ,
    reason="needs LVCG_REAL_DATA: a folder with ptbxl, ptb, cpsc2018, csn and ludb in it",
)
REAL = Path(os.environ.get("LVCG_REAL_DATA", "."))
PTBXL_RECORDS = 1500


def built_and_verified(name, out, **options):
    """dataset.json and ledger of a corpus, after verify has accepted it."""
    metadata = quiet_build(open_corpus(name, REAL / name), out, **options)
    _, failed = verify(out)
    assert failed == []
    ledger = ledger_of(out)
    kinds = {record: collections.Counter() for record in ledger}
    for record, row in ledger.items():
        kinds[record].update(quality.kind(word) for word in row["defects"].split(";") if word)
    assert set().union(*kinds.values()) <= quality.KINDS.keys()
    assert metadata["records"]["listed"] == len(ledger)
    return metadata, ledger, kinds


def read_raw(stem):
    """Converter values int16 [T,c], lead names, gains and rate of a 16-bit WFDB record, read by
    hand."""
    lines = [
        line.split()
        for line in stem.with_suffix(".hea").read_text().splitlines()
        if line[:1] not in ("#", "")
    ]
    channels = [line for line in lines[1:] if line[0] == lines[1][0]]
    skip = int(re.search(r"\+(\d+)", channels[0][1])[1]) if "+" in channels[0][1] else 0
    adc = np.fromfile(stem.with_name(channels[0][0]), "<i2", offset=skip).reshape(-1, len(channels))
    gains = np.array([float(re.match(r"[0-9.]+", line[2])[0]) for line in channels])
    return adc, [line[-1] for line in channels], gains, float(lines[0][2])


def test_csn_ledger_names_exactly_the_constant_leads(tmp_path):
    metadata, ledger, kinds = built_and_verified("csn", tmp_path, workers=2)
    constant = {}
    for path in (REAL / "csn").glob("WFDBRecords/*/*/*.mat"):
        adc, names, _, _ = read_raw(path.with_suffix(""))
        constant[path.stem] = {
            name for name, column in zip(names, adc.T, strict=True) if np.ptp(column) == 0
        }
    assert ledger.keys() == constant.keys() and len(constant) == 600
    flat = {name: set(re.findall(r"flat:(\w+)", row["defects"])) for name, row in ledger.items()}
    assert all(leads <= flat[name] for name, leads in constant.items())
    extra = {name: flat[name] - leads for name, leads in constant.items() if flat[name] - leads}
    assert len(extra) <= 6, extra  # leads that do move, but by less than a loose electrode's noise
    assert sum(map(len, constant.values())) > 100 and metadata["records"]["kept"] == 600
    for name, leads in constant.items():
        assert leads & set(LEADS[6:]) <= set(ledger[name]["missing_leads"].split())
    assert not any(kind["limb_inconsistent"] or kind["duplicate_of"] for kind in kinds.values())


def test_cpsc2018_windows_and_duplicates(tmp_path):
    metadata, ledger, kinds = built_and_verified("cpsc2018", tmp_path / "all", windows="all")
    files = collections.Counter()
    for path in (REAL / "cpsc2018").glob("*.mat"):
        adc, _, gains, rate = read_raw(path.with_suffix(""))
        samples = round(len(adc) / rate * 100)
        windows = max(1, samples // 1000 + (samples >= 1000 and samples % 1000 >= 500))
        left_out = kinds[path.stem]["window_left_out"]
        assert int(ledger[path.stem]["windows"]) == windows - left_out, path.stem
        assert bool(kinds[path.stem]["short"]) == (samples % 1000 >= 500 or samples < 1000), (
            path.stem
        )
        files[hashlib.sha256(path.read_bytes()).digest()] += 1
        impossible = (np.abs(adc / gains - np.median(adc / gains, axis=0)) > 20).any()
        assert bool(kinds[path.stem]["spikes"]) <= impossible, path.stem
        assert impossible <= bool(kinds[path.stem]["spikes"] or kinds[path.stem]["railed"]), (
            path.stem
        )
        stuck = max(
            (adc == adc.max(axis=0)).mean(axis=0).max(), (adc == adc.min(axis=0)).mean(axis=0).max()
        )
        # at an extreme for long
        assert not kinds[path.stem]["railed"] or impossible or stuck > 0.01, path.stem
    repeats = sum(n - 1 for n in files.values())
    assert (
        metadata["duplicates"]["records"]
        == repeats
        == sum(bool(k["duplicate_of"]) for k in kinds.values())
    )


def test_cpsc2018_copies_stay_together_and_are_named(tmp_path):
    raw = tmp_path / "cpsc2018"
    raw.mkdir()
    some = sorted((REAL / "cpsc2018").glob("A*.hea"))[:24]
    for header in some:
        for path in (header, header.with_suffix(".mat")):
            shutil.copy(path, raw)
    for i, header in enumerate(some[:8]):
        shutil.copy(header.with_suffix(".mat"), raw / f"A900{i}.mat")
        (raw / f"A900{i}.hea").write_text(header.read_text().replace(header.stem, f"A900{i}"))
    corpus = open_corpus("cpsc2018", raw)
    metadata = quiet_build(corpus, tmp_path / "out")
    assert verify(tmp_path / "out")[1] == [] and metadata["duplicates"]["dropped"] == []
    ledger = ledger_of(tmp_path / "out")
    for i, header in enumerate(some[:8]):
        assert f"duplicate_of:{header.stem}" in ledger[f"A900{i}"]["defects"]
        assert ledger[f"A900{i}"]["split"] == ledger[header.stem]["split"]
    assert metadata["duplicates"]["records"] == 8 and metadata["records"]["kept"] == 32


def test_ludb_limb_leads_are_known_to_be_inconsistent(tmp_path):
    metadata, ledger, kinds = built_and_verified("ludb", tmp_path)
    peaks, large = [], set()
    for path in (REAL / "ludb" / "data").glob("*.dat"):
        adc, names, gains, _ = read_raw(path.with_suffix(""))
        mv = dict(zip([name.lower() for name in names], (adc / gains).T, strict=True))
        residual = np.abs(mv["ii"] - mv["i"] - mv["iii"])
        peaks.append(residual.max())
        if np.percentile(residual, 99) > 0.1:
            large.add(path.stem)
    assert 0.2 < np.median(peaks) < 0.6 and len(large) > 60
    assert all(kinds[name]["limb_inconsistent"] for name in large)
    assert metadata["records"]["kept"] == 120 == len(ledger)
    # see test_quality
    assert sum(bool(kind["detector_disagreement"]) for kind in kinds.values()) == 20


def test_ptb_drops_the_one_dead_record(tmp_path):
    metadata, ledger, kinds = built_and_verified("ptb", tmp_path)
    sos = sps.butter(2, [0.67, 40], "bandpass", fs=1000, output="sos")
    quiet = set()
    for path in (REAL / "ptb").glob("*/*.dat"):
        adc, _, gains, rate = read_raw(path.with_suffix(""))
        mv = sps.sosfiltfilt(sos, adc[: int(10 * rate), :12] / gains[:12], axis=0)
        spans = np.ptp(mv.reshape(5, -1, 12), axis=1).max(axis=1)
        if np.median(spans) < 0.4:
            quiet.add(path.stem)
    dropped = {name: row["reason"] for name, row in ledger.items() if row["kept"] == "no"}
    assert dropped.keys() == quiet and len(quiet) == 1
    assert (
        "dead record" in next(iter(dropped.values()))
        and metadata["records"]["kept"] == len(ledger) - 1 == 57
    )
    assert sum(bool(kind["unknown_lead"]) for kind in kinds.values()) == 57  # the Frank leads


def test_ptbxl_labels_and_folds(tmp_path):
    metadata, ledger, _ = built_and_verified("ptbxl", tmp_path, limit=PTBXL_RECORDS, workers=2)
    with open(REAL / "ptbxl" / "scp_statements.csv", newline="") as file:
        superclass = {
            row[""]: row["diagnostic_class"]
            for row in csv.DictReader(file)
            if row["diagnostic"] == "1.0"
        }
    expected, patients = collections.Counter(), collections.defaultdict(set)
    with open(REAL / "ptbxl" / "ptbxl_database.csv", newline="") as file:
        for row in csv.DictReader(file):
            name = row["ecg_id"]
            if name in ledger:
                fold = int(row["strat_fold"])
                last = 9 if metadata["split_rule"].startswith("folds 1-8") else 8
                split = "train" if fold < last else "validation" if fold == last else "test"
                assert ledger[name]["split"] == split
                if ledger[name]["kept"] == "yes":
                    patients[split].add(str(int(float(row["patient_id"]))))
                    classes = {
                        superclass[code]
                        for code in ast.literal_eval(row["scp_codes"])
                        if code in superclass
                    }
                    expected.update((split, label) for label in classes)
    for split, values in metadata["splits"].items():
        counts = values["label_counts"]["super"]
        assert counts == {label: expected[split, label] for label in counts}
        assert values["patients"] == len(patients[split])
    assert (
        metadata["records"]["kept"] >= PTBXL_RECORDS - 5
        and metadata["patients_in_several_splits"] == 0
    )
