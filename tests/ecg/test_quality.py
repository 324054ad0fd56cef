"""The ledger's judgement of records: each defect is named when it is there, and not when it is
not."""

import collections
import csv
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.builds import ecg, files_of, ledger_of, quiet_build, write_wfdb
from helpers.commands import run, start

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import shards
from data_prep.dataset.shards import ShardSet
from data_prep.ecg import quality, segment
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess, Unusable
from data_prep.synthetic_heart.records import make_record


def clean(seconds=10.0, patient=1):
    signal, _ = make_record(0, patient=patient, seconds=seconds, rate=100, conditions=["SR"])
    return signal  # [T,12] mV


def test_einthoven_residual_is_the_disturbance_that_was_added():
    signal = clean().astype(np.float64)
    limb = signal[:, :2]
    weights = np.array([[1, 0], [0, 1], [-1, 1], [-0.5, -0.5], [1, -0.5], [-0.5, 1]])
    signal[:, :6] = limb @ weights.T
    assert quality.einthoven_residual(signal, LEADS) < 1e-6
    order = np.random.default_rng(0).permutation(12)
    for column, expected in ((0, 0.4), (2, 0.4), (3, 0.4), (5, 0.4)):
        broken = signal.copy()
        broken[:, column] += 0.4
        found = quality.einthoven_residual(broken[:, order], [LEADS[i].lower() for i in order])
        assert found == pytest.approx(expected, abs=1e-5), LEADS[column]
        assert quality.record_defects(broken, LEADS) == ["limb_inconsistent:0.40mV"]
    assert quality.record_defects(signal, LEADS) == []
    one_spike = signal.copy()
    one_spike[500, 2] += 5
    assert quality.record_defects(one_spike, LEADS) == []  # a spike is not an inconsistent lead


def test_einthoven_residual_with_missing_leads_and_values():
    signal = clean()
    signal[:, 2] = signal[:, 1] - signal[:, 0] + 0.3
    signal[100:200, 0] = np.nan
    some = [LEADS.index(lead) for lead in ("I", "II", "III", "V1")]
    assert quality.einthoven_residual(signal[:, some], ["I", "II", "III", "V1"]) == pytest.approx(
        0.3, abs=1e-5
    )
    assert quality.einthoven_residual(signal[:, [1, 6]], ["II", "V1"]) == 0.0
    signal[:, 2] = np.nan
    assert quality.einthoven_residual(signal, LEADS) < 0.05  # without III, the others still agree


def test_signal_hash_is_of_values_rate_and_leads():
    signal = clean()
    digest = quality.signal_hash(signal, 100, LEADS)
    assert digest == quality.signal_hash(
        np.asfortranarray(signal), 100.0, [lead.upper() for lead in LEADS]
    )
    changed = signal.copy()
    changed[7, 3] = np.nextafter(changed[7, 3], np.float32(9))
    others = (
        quality.signal_hash(changed, 100, LEADS),
        quality.signal_hash(signal, 500, LEADS),
        quality.signal_hash(signal, 100, LEADS[::-1]),
    )
    assert digest not in others and len(digest) == 16


def test_disagreement_counts_lonely_beats_on_both_sides():
    beats = np.arange(60, 1000, 90)
    assert quality.disagreement(beats, beats + 10, 1000, 100) == 0
    assert quality.disagreement(beats, beats + 40, 1000, 100) == 1
    assert quality.disagreement(
        beats, np.sort(np.r_[beats, beats + 45]), 1000, 100
    ) == pytest.approx(1 / 3, abs=0.03)
    assert quality.disagreement(beats, beats[:0], 1000, 100) == 1
    assert quality.disagreement(beats, beats[:1], 1000, 100) == pytest.approx(10 / 12)
    # cut off by the window's edge
    assert quality.disagreement(np.r_[2, beats], np.r_[beats, 995], 1000, 100) == 0
    assert quality.disagreement(beats[:0], beats[:0], 1000, 100) == 0


def test_quick_detector_finds_the_beats_of_the_thorough_one():
    for patient in range(8):
        (window,) = Preprocess().prepare(clean(patient=patient), 100, LEADS)
        mv = window.signal * window.scale[:, None] + window.offset[:, None]
        present = np.ones(12, bool)
        thorough = segment.r_peaks_vcg(mv, present, 100, refine=False)
        assert (
            quality.disagreement(segment.r_peaks_quick(mv, present, 100), thorough, 1000, 100) < 0.1
        )
        assert quality.window_defects(window, mv, Preprocess()) == []
    assert len(segment.r_peaks_quick(mv, np.zeros(12, bool), 100)) == 0
    assert len(segment.r_peaks_quick(mv[:, :3], present, 100)) == 0


def defects_of(signal, preprocess=None, **options):
    preprocess = preprocess or Preprocess()
    (window,) = preprocess.prepare(signal, 100, LEADS)
    mv = window.signal * window.scale[:, None] + window.offset[:, None]
    return [quality.kind(d) for d in quality.window_defects(window, mv, preprocess, **options)]


def test_a_lead_ii_that_misleads_is_named():
    signal = clean()
    time = np.arange(1000) / 100
    noise = np.random.default_rng(0).normal(size=1000)
    # only wide waves between the beats on lead II: peaks are found, but not of the heart
    waves = signal.copy()
    waves[:, 1] = 0.5 * np.sin(2 * np.pi * 1.7 * time) + 0.02 * noise
    assert defects_of(waves) == ["low_quality_lead_ii", "detector_disagreement"]
    assert defects_of(waves, detectors=False) == ["low_quality_lead_ii"]
    assert "detector_disagreement" in defects_of(waves, Preprocess(peaks="vcg"))
    small = signal.copy()
    small[:, 1] *= 0.12 / np.ptp(small[:, 1])
    assert "low_quality_lead_ii" in defects_of(small)
    assert defects_of(signal[:700]) == ["short"]


def test_dead_records_are_known_and_small_single_leads_are_not():
    noise = np.random.default_rng(0).normal(size=(12, 1000)) * 0.03
    assert quality.is_dead(noise, 100, LEADS)
    assert not quality.is_dead(noise, 100, ["II"])
    beats = noise.copy()
    beats[7, ::90] += 0.5
    assert not quality.is_dead(beats, 100, LEADS)


def test_reason_of_an_unusable_record_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(Unusable("too_short", "record of 0.2 s")))
    assert (error.kind, str(error)) == ("too_short", "record of 0.2 s")


@pytest.fixture(scope="module")
def bad_folder(tmp_path_factory):
    """Records with one defect each, and three signals that occur twice."""
    folder = tmp_path_factory.mktemp("bad") / "raw"
    folder.mkdir()
    for i in range(12):
        write_wfdb(folder, f"good{i:02d}", ecg(i))
    write_wfdb(folder, "copy_same_split", ecg(0))
    write_wfdb(folder, "copy_in_train", ecg(1))
    write_wfdb(folder, "copy_in_test", ecg(2))
    dead = np.random.default_rng(0).normal(size=(1000, 12)) * 15
    write_wfdb(folder, "dead", dead)
    write_wfdb(folder, "dead_copy", dead)
    write_wfdb(folder, "short", ecg(20)[:50])
    write_wfdb(folder, "seven_seconds", ecg(21)[:700])
    (folder / "unreadable.hea").write_text("nonsense\n")
    gaps = ecg(22)
    gaps[50:55, 3] = -32768
    gaps[:, 6] = -32768
    gaps[:, 7] = 5
    write_wfdb(folder, "gaps", gaps)
    silent = np.full((1000, 12), -32768)
    silent[:, 0] = 3
    write_wfdb(folder, "silent", silent)
    limb = ecg(23)
    limb[:, 2] += 300
    write_wfdb(folder, "limb", limb)
    split = {"good01": "test", "copy_in_test": "test", "good02": "train", "copy_in_train": "train"}
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["record_id", "patient_id", "split", "rhythm"])
        for name in sorted(path.stem for path in folder.glob("*.hea")):
            writer.writerow([name, name, split.get(name, "train"), "SR"])
    return folder


def test_every_defect_is_in_the_ledger(bad_folder, tmp_path):
    metadata = quiet_build(open_corpus("wfdb", bad_folder), tmp_path / "out", shard_records=3)
    ledger = ledger_of(tmp_path / "out")
    kinds = {name: quality.kinds(row["defects"]) for name, row in ledger.items()}
    assert len(ledger) == len(open_corpus("wfdb", bad_folder).refs)
    assert set().union(*kinds.values()) <= quality.KINDS.keys()
    assert kinds["good05"] == set() and ledger["good05"]["kept"] == "yes"
    expected = {
        "dead": ("no", {"dead_record"}),
        "short": ("no", {"too_short"}),
        "seven_seconds": ("yes", {"short"}),
        "unreadable": ("no", {"unreadable"}),
        "gaps": ("yes", {"nan", "gap", "flat"}),
        "silent": ("no", {"no_lead", "nan", "flat"}),
        "limb": ("yes", {"limb_inconsistent"}),
        "dead_copy": ("no", {"dead_record", "duplicate_of"}),
    }
    for name, (kept, words) in expected.items():
        assert ledger[name]["kept"] == kept and words <= kinds[name], (name, ledger[name])
        assert bool(ledger[name]["reason"]) == (kept == "no")
    assert "nan:aVR:5" in ledger["gaps"]["defects"] and "flat:V2" in ledger["gaps"]["defects"]
    assert ledger["unreadable"]["signal_hash"] == "" and len(ledger["dead"]["signal_hash"]) == 16
    assert metadata["defects"] == collections.Counter(
        name for row in ledger.values() for name in quality.kinds(row["defects"])
    )
    stored = {e["record_id"]: e for e in ShardSet(tmp_path / "out", "train")}
    assert "limb_inconsistent" in stored["limb"]["defects"] and stored["good05"]["defects"] == ""


def test_duplicates_are_named_and_never_in_two_splits(bad_folder, tmp_path):
    corpus = open_corpus("wfdb", bad_folder)
    metadata = quiet_build(corpus, tmp_path / "out", shard_records=3)
    ledger = ledger_of(tmp_path / "out")
    assert (
        ledger["good00"]["defects"] == "duplicate_of:copy_same_split"
        and ledger["good00"]["kept"] == "yes"
    )
    assert ledger["copy_in_train"]["kept"] == "no" and ledger["good01"]["kept"] == "yes"
    assert ledger["copy_in_train"]["reason"] == "the same signal as record good01 in split test"
    assert ledger["good02"]["kept"] == "no" and ledger["copy_in_test"]["kept"] == "yes"
    assert metadata["duplicates"]["records"] == 4 and metadata["duplicates"]["dropped"] == [
        "copy_in_train",
        "good02",
    ]
    assert metadata["duplicates"]["in_several_splits"] == [
        ["copy_in_train", "good01"],
        ["good02", "copy_in_test"],
    ]
    stored = {
        e["record_id"] for split in metadata["splits"] for e in ShardSet(tmp_path / "out", split)
    }
    assert stored == {name for name, row in ledger.items() if row["kept"] == "yes"}
    assert metadata["records"]["kept"] == len(stored) and sum(metadata["dropped"].values()) == len(
        ledger
    ) - len(stored)
    assert "2 records dropped for that" in " ".join(shards.describe(metadata).split())
    whole = files_of(tmp_path / "out")
    quiet_build(corpus, tmp_path / "two", shard_records=3, workers=2)
    assert files_of(tmp_path / "two") == whole
    lost = sorted((tmp_path / "out").glob("wfdb-train.array_record*"))
    for path in lost[:3]:
        path.unlink()
    quiet_build(corpus, tmp_path / "out", shard_records=3)
    assert files_of(tmp_path / "out") == whole  # a repaired shard leaves the same records out


@pytest.mark.parametrize("after", ["first shard", "ledger"])
def test_killed_build_goes_on_to_the_same_ledger(bad_folder, tmp_path, after):
    quiet_build(open_corpus("wfdb", bad_folder), tmp_path / "whole", shard_records=2)
    for attempt in range(5):  # on a busy machine the build may be over before the kill arrives
        out = tmp_path / str(attempt)
        flags = ["--corpus=wfdb", f"--raw={bad_folder}", f"--out={out}", "--shard_records=2"]
        process = start("data_prep.build", *flags)
        seen = {"first shard": "parts/*.json", "ledger": "ledger.csv"}[after]
        while process.poll() is None and not list(out.glob(seen)):
            time.sleep(0.0005)
        process.kill()
        process.communicate()
        if not (out / shards.METADATA_FILE).exists():
            break
    assert run("data_prep.build", *flags).returncode == 0
    assert files_of(out) == files_of(tmp_path / "whole")


def test_duplicates_can_be_kept_and_are_warned_of(bad_folder, tmp_path):
    metadata = quiet_build(open_corpus("wfdb", bad_folder), tmp_path, duplicates="keep")
    assert (
        metadata["duplicates"]["dropped"] == []
        and len(metadata["duplicates"]["in_several_splits"]) == 2
    )
    assert ledger_of(tmp_path)["copy_in_train"]["kept"] == "yes"
    assert "WARNING       2 identical signals are in more than one split" in shards.describe(
        metadata
    )
    with pytest.raises(InputError, match="duplicates is 'some'"):
        quiet_build(open_corpus("wfdb", bad_folder), tmp_path / "x", duplicates="some")


def test_lost_or_changed_ledger_is_restored(bad_folder, tmp_path):
    corpus = open_corpus("wfdb", bad_folder)
    quiet_build(corpus, tmp_path, shard_records=8)
    whole = files_of(tmp_path)
    for harm in (Path.unlink, lambda path: path.write_text("record_id\n")):
        harm(tmp_path / shards.LEDGER_FILE)
        quiet_build(corpus, tmp_path, shard_records=8)
        assert files_of(tmp_path) == whole


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ludb in it"
)
def test_disagreement_finds_the_records_where_lead_ii_fails():
    """Against the cardiologists' QRS marks of LUDB: every record with a wrong detector is named, no
    other."""
    corpus = open_corpus("ludb", Path(os.environ["LVCG_REAL_DATA"]) / "ludb")
    bad = good = 0
    for ref in corpus.refs:
        record = corpus.load(ref)
        qrs = record.annotations["II"]["QRS"][:, 1] / record.rate * 100
        window = Preprocess().prepare(record.signal, record.rate, record.leads)[0]
        peaks = quality.window_peaks(window)
        peaks = peaks[(peaks > qrs.min() - 20) & (peaks < qrs.max() + 20)]
        hits = sum(np.abs(qrs - peak).min() <= 15 for peak in peaks)
        f1 = 2 * hits / (len(peaks) + len(qrs))
        mv = window.signal * window.scale[:, None] + window.offset[:, None]
        named = any(
            d.startswith("detector_disagreement")
            for d in quality.window_defects(window, mv, Preprocess())
        )
        if f1 < 0.9:
            bad += 1
            assert named, ref.record_id
        elif f1 > 0.95:
            good += 1
            assert not named, ref.record_id
    assert bad == 20 and good == 98
