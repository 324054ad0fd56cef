"""The synthetic corpus: physically consistent, reproducible, growing without changing, and labelled
as it says."""

import csv
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg.leads import LEADS
from data_prep.formats.wfdb_files import quiet_wfdb, read_wfdb_record
from data_prep.synthetic_heart import records
from data_prep.synthetic_heart.dipole import BEATS_PER_MINUTE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic") / "corpus"
    counts = records.write_corpus(out, patients=12, records_per_patient=2, seed=3)
    return out, counts


@pytest.fixture(scope="module")
def drawn():
    """Labels and R peaks of 400 drawn records."""
    return [records.make_record(5, patient=k // 2, record=k % 2, rate=100)[1] for k in range(400)]


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def annotations(stem):
    with quiet_wfdb() as wfdb:
        return wfdb.rdann(str(stem), "atr")


def lead(signal, name):
    return signal[:, LEADS.index(name)]


def beat_of(conditions, patient, **options):
    """The noiseless 12-lead beats of a record, as a function lead -> [beats, samples] around R."""
    signal, info = records.make_record(
        1, patient=patient, conditions=conditions, severity=0.9, noise=0, rate=500, **options
    )
    peaks = info["r_peaks"][(info["r_peaks"] > 150) & (info["r_peaks"] < len(signal) - 250)]
    window = peaks[:, None] + np.arange(-150, 250)
    return lambda name: lead(signal, name)[window].mean(axis=0), info


def qrs_width(conditions, patient):
    _, info = beat_of(conditions, patient)
    speed = np.linalg.norm(np.diff(info["vcg"], axis=0), axis=1)
    peak = info["r_peaks"][len(info["r_peaks"]) // 2]
    around = speed[peak - 75 : peak + 75]
    active = np.flatnonzero(around > 0.08 * around.max())
    return (active[-1] - active[0]) / 500


@pytest.mark.parametrize("geometry", ["dower", "paper"])
def test_limb_leads_obey_einthoven_and_goldberger(geometry):
    signal, info = records.make_record(2, patient=4, geometry=geometry)
    i, ii = lead(signal, "I"), lead(signal, "II")
    assert (
        signal.shape == (2500, 12) and signal.dtype == np.float32 and info["leads"] == list(LEADS)
    )
    for name, expected in {
        "III": ii - i,
        "aVR": -(i + ii) / 2,
        "aVL": i - ii / 2,
        "aVF": ii - i / 2,
    }.items():
        np.testing.assert_allclose(lead(signal, name), expected, atol=1e-6, err_msg=name)


def test_limb_leads_are_exact_in_the_files(corpus):
    stem = next(corpus[0].rglob("*.hea")).with_suffix("")
    with quiet_wfdb() as wfdb:
        adc = wfdb.rdrecord(str(stem), physical=False).d_signal.astype(int)
    i, ii = lead(adc, "I"), lead(adc, "II")
    assert (lead(adc, "III") == ii - i).all() and (2 * lead(adc, "aVR") == -i - ii).all()
    assert (2 * lead(adc, "aVL") == 2 * i - ii).all() and (2 * lead(adc, "aVF") == 2 * ii - i).all()


def test_a_noiseless_record_is_the_projected_dipole_and_noise_is_not_nothing():
    clean, info = records.make_record(2, patient=1, noise=0)
    np.testing.assert_allclose(clean, info["vcg"] @ info["matrix"].T, atol=1e-5)
    noisy, same = records.make_record(2, patient=1)
    assert 0.003 < np.std(noisy - clean) < 0.5 and (same["r_peaks"] == info["r_peaks"]).all()


def test_amplitudes_are_those_of_an_ecg():
    reach = [
        np.abs(records.make_record(4, patient=k, conditions=["NORM"], noise=0)[0]).max()
        for k in range(40)
    ]
    assert np.min(reach) > 0.5 and 0.8 < np.median(reach) < 2.5 and np.max(reach) < 5


def test_the_torso_and_beat_stay_with_the_patient():
    (_, a), (_, b), (_, c) = (
        records.make_record(0, patient=p, record=r) for p, r in [(7, 0), (7, 1), (8, 0)]
    )
    np.testing.assert_array_equal(a["matrix"], b["matrix"])
    assert np.abs(a["matrix"] - c["matrix"]).max() > 0.02
    assert len(a["vcg"]) == len(b["vcg"]) and np.abs(a["vcg"] - b["vcg"]).max() > 0.05


def test_same_seed_writes_the_same_bytes_and_another_seed_does_not(corpus, tmp_path):
    records.write_corpus(tmp_path / "again", patients=12, records_per_patient=2, seed=3)
    assert digests(tmp_path / "again") == digests(corpus[0])
    records.write_corpus(tmp_path / "other", patients=1, records_per_patient=1, seed=4)
    one = "records/000/00000_00.dat"
    assert digests(tmp_path / "other")[one] != digests(corpus[0])[one]


def test_a_bigger_corpus_contains_the_smaller_one(corpus, tmp_path):
    out = tmp_path / "grown"
    records.write_corpus(out, patients=4, records_per_patient=1, seed=3)
    small = {k: v for k, v in digests(out).items() if k.startswith("records/")}
    labels = (out / "labels.csv").read_text().splitlines()
    assert len(small) == 12 and small.items() <= digests(corpus[0]).items()
    assert set(labels) <= set((corpus[0] / "labels.csv").read_text().splitlines())
    records.write_corpus(out, patients=12, records_per_patient=2, seed=3)  # in place
    assert digests(out) == digests(corpus[0])


def test_split_is_by_patient_in_the_promised_shares(drawn):
    splits = {}
    for info in drawn:
        splits.setdefault(info["patient_id"], set()).add(info["split"])
    assert all(len(found) == 1 for found in splits.values())
    names = [next(iter(found)) for found in splits.values()]
    assert {name: names.count(name) / len(names) for name in set(names)} == {
        "train": 0.7,
        "validation": 0.1,
        "test": 0.2,
    }


def test_every_class_is_frequent_and_labels_are_consistent(drawn):
    for task, classes in records.TASKS.items():
        assert list(classes) == sorted(classes)
        for name in classes:
            share = np.mean([name in info["labels"][task] for info in drawn])
            assert 0.05 < share < 0.75, (task, name, share)
    for info in drawn:
        diagnosis, rhythm = info["labels"]["diagnosis"], info["labels"]["rhythm"]
        assert diagnosis == ["NORM"] or "NORM" not in diagnosis
        assert sum(name in rhythm for name in BEATS_PER_MINUTE) == 1
        assert ("PVC" in rhythm) == bool(info["ectopic"].any())
    assert any({"AFIB", "PVC"} <= set(info["labels"]["rhythm"]) for info in drawn)
    assert any(len(info["labels"]["diagnosis"]) > 1 for info in drawn)


def test_true_peaks_lie_in_the_record_on_large_dipoles(drawn):
    for info in drawn[:60]:
        peaks, size = info["r_peaks"], np.linalg.norm(info["vcg"], axis=1)
        assert (
            len(peaks) > 4
            and peaks[0] >= 0
            and peaks[-1] < len(size)
            and (np.diff(peaks) > 20).all()
        )
        assert (size[peaks] > 3 * np.median(size)).all()


def test_rates_and_irregularity_follow_the_rhythm(drawn):
    rate, spread = {}, {}
    for info in drawn:
        if "PVC" not in info["labels"]["rhythm"]:
            (name,) = info["labels"]["rhythm"]
            rr = np.diff(info["r_peaks"])
            rate.setdefault(name, []).append(info["heart_rate"])
            spread.setdefault(name, []).append(rr.std() / rr.mean())
    assert max(rate["SBRAD"]) < 72 and min(rate["STACH"]) > 80 and 60 < np.median(rate["SR"]) < 100
    assert np.median(spread["AFIB"]) > 2 * np.median(spread["SR"])
    assert np.percentile(spread["SR"], 95) > min(spread["AFIB"])  # the classes overlap


def test_pvc_come_early_and_with_a_pause():
    early, pause = [], []
    for patient in range(12):
        _, info = records.make_record(6, patient=patient, conditions=["SR", "PVC"], rate=100)
        rr, normal = np.diff(info["r_peaks"]), np.median(np.diff(info["r_peaks"]))
        for k in np.flatnonzero(info["ectopic"]):
            if 0 < k < len(rr) and not info["ectopic"][k + 1]:
                early.append(rr[k - 1] / normal)
                pause.append(rr[k] / normal)
    assert np.median(early) < 0.85 and np.median(pause) > 1.1


def test_bundle_branch_block_is_wide_and_points_the_right_way():
    patients = range(8)
    normal = np.median([qrs_width(["NORM"], p) for p in patients])
    assert 0.06 < normal < 0.12
    for name in ("LBBB", "RBBB"):
        assert np.median([qrs_width([name], p) for p in patients]) > max(0.12, 1.25 * normal), name
    for patient in patients:
        left, _ = beat_of(["LBBB"], patient)
        assert -left("V1").min() > 2 * left("V1").max() and left("V6").max() > -2 * left("V6").min()
    late = slice(150 + 20, 150 + 50)  # 40-100 ms after R
    terminal = [
        beat_of(["RBBB"], p)[0]("V1")[late].max() - beat_of(["NORM"], p)[0]("V1")[late].max()
        for p in patients
    ]
    assert np.median(terminal) > 0.3


def test_other_conditions_change_what_they_are_named_for():
    st = slice(150 + 45, 150 + 60)
    for patient in range(6):
        normal, _ = beat_of(["NORM"], patient)
        shift = {
            c: {k: (beat_of([c], patient)[0](k) - normal(k))[st].mean() for k in LEADS}
            for c in ("STE", "STD")
        }
        assert max(shift["STE"].values()) > 0.1 and shift["STD"]["V5"] < -0.08
    spans = {
        c: [np.ptp(beat_of([c], p)[0]("V5")) + np.ptp(beat_of([c], p)[0]("V1")) for p in range(8)]
        for c in ("NORM", "LVH")
    }
    assert np.median(spans["LVH"]) > 1.3 * np.median(spans["NORM"])
    wave = slice(150 + 90, 150 + 180)
    inverted = [
        beat_of(["TINV"], p)[0]("V5")[wave].mean()
        < 0.2 * beat_of(["NORM"], p)[0]("V5")[wave].mean()
        for p in range(8)
    ]
    assert np.mean(inverted) > 0.8


def test_afib_has_no_p_wave():
    """Averaged over beats, the 200 ms before the QRS holds a P wave in sinus rhythm and nothing in
    fibrillation."""
    before = slice(150 - 110, 150 - 40)

    def p_wave(rhythm):
        return np.median(
            [np.ptp(beat_of([rhythm], p, seconds=60)[0]("II")[before]) for p in range(5)]
        )

    assert p_wave("SR") > 0.07 > p_wave("AFIB")


def test_t_wave_follows_the_square_root_of_rr():
    def t_time(rhythm, patient):
        shown, info = beat_of([rhythm], patient)
        size = np.abs(shown("V3"))[150 + 60 : 150 + 220]
        return (60 + np.argmax(size)) / 500, 60 / info["heart_rate"]

    for patient in range(4):
        (fast, rr_fast), (slow, rr_slow) = t_time("STACH", patient), t_time("SBRAD", patient)
        assert slow / fast == pytest.approx(np.sqrt(rr_slow / rr_fast), rel=0.15)


def test_files_hold_what_make_record_returns(corpus):
    out, counts = corpus
    signal, info = records.make_record(3, patient=11, record=1)
    read = read_wfdb_record(out / info["record_id"])
    assert read.rate == 250 and read.names == list(LEADS)
    np.testing.assert_allclose(read.signal, signal, atol=1.5e-3)
    with quiet_wfdb() as wfdb:
        record = wfdb.rdrecord(str(out / info["record_id"]), physical=False)
    assert [value % 65536 for value in record.checksum] == [
        value % 65536 for value in record.calc_checksum()
    ]
    notes = annotations(out / info["record_id"])
    assert notes.sample.tolist() == info["r_peaks"].tolist()
    assert [symbol == "V" for symbol in notes.symbol] == info["ectopic"].tolist()
    with open(out / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (
        list(rows[0]) == ["record_id", "patient_id", "split", "diagnosis", "rhythm"]
        and len(rows) == 24
    )
    assert rows[-1]["record_id"] == info["record_id"] and rows[-1]["rhythm"] == ";".join(
        info["labels"]["rhythm"]
    )
    assert sum("SR" in row["rhythm"].split(";") for row in rows) == counts["rhythm"]["SR"]
    assert open_corpus("synthetic", out).tasks == records.TASKS


def test_long_steps_between_annotations_survive(tmp_path):
    signal, info = records.make_record(0, conditions=["SBRAD"], rate=1000)
    info["r_peaks"] = np.array([1500, 1600, 9000])
    info["ectopic"] = np.array([False, True, False])
    records.write_record(tmp_path / "slow", signal, info)
    notes = annotations(tmp_path / "slow")
    assert notes.sample.tolist() == [1500, 1600, 9000] and notes.symbol == ["N", "V", "N"]


def test_foreign_and_different_folders_are_refused(corpus, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        records.write_corpus(tmp_path, patients=1, records_per_patient=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match="other settings"):
        records.write_corpus(corpus[0], patients=12, records_per_patient=2, seed=9)
    with pytest.raises(InputError, match="larger"):
        records.write_corpus(corpus[0], patients=2, records_per_patient=2, seed=3)
    with pytest.raises(InputError, match="is a file"):
        records.write_corpus(tmp_path / "thesis.txt", patients=1)
    with pytest.raises(InputError, match="patients >= 1"):
        records.write_corpus(tmp_path / "new", patients=0)
    with pytest.raises(InputError, match="unknown synthetic condition 'LBB'"):
        records.make_record(0, conditions=["LBB"])


def test_command_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "data_prep.synthetic",
        f"--out={tmp_path / 'made'}",
        "--patients=2",
    ]
    done = subprocess.run(
        [*command, "--records_per_patient=1"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("wrote 2 records of 2 patients"), (
        done.stderr
    )
    assert len(list((tmp_path / "made").rglob("*.dat"))) == 2
    done = subprocess.run([*command, "--seed=1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.strip().splitlines()[-1].startswith("error:")
    assert "Traceback" not in done.stderr
