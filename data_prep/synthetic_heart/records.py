"""A seeded corpus of schematic 12-lead ECG, written as ordinary WFDB records.

Hearts, torsos and noise come from data_prep.synthetic_heart.dipole. Here the lasting conditions of
a patient become the labels of a record: the severity of the day, the rhythm, and changes too slight
to be labelled. Every record has a key of its own (seed, patient, record), so a larger corpus
contains the smaller one unchanged.
"""

import csv
import json
import math
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import whole_file
from data_prep.base.progress import progress_bar
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.dipole import (
    BEATS_PER_MINUTE,
    ELECTRODES,
    beat_times,
    diseased_beat,
    draw_severity,
    electrode_noise,
    heart_dipole,
    keyed_rng,
    make_patient,
    true_peaks,
    twelve_leads,
)

VERSION = 1
MARKER = "synthetic.json"
# ADC units per mV. I and II are stored as even numbers, so that Einthoven's and Goldberger's
# relations are exact in the files.
GAIN = 2000
TASKS = {
    "diagnosis": ("LBBB", "LVH", "NORM", "RBBB", "STD", "STE", "TINV"),
    "rhythm": ("AFIB", "PVC", "SBRAD", "SR", "STACH"),
}
# of every ten patients
SPLIT_CYCLE = ("train", "test", "validation", *["train"] * 3, "test", *["train"] * 3)


def make_record(
    seed=0,
    *,
    patient=0,
    record=0,
    seconds=10.0,
    rate=250,
    geometry="dower",
    conditions=None,
    severity=None,
    noise=1.0,
):
    """One record: (signal float32 [T,12] in mV, info).

    `info` holds labels {task: [names]}, r_peaks (sample indices), ectopic (a bool per peak),
    heart_rate, rate, leads, record_id, patient_id, split, vcg (the true dipole [T,3]) and matrix
    [12,3]; with noise=0, signal = vcg @ matrix.T. `conditions` (names of either task) and
    `severity` (0 to 1) replace the drawn ones; `noise` scales every disturbance.
    """
    # conditions: drawn for this record, or as asked for
    owner = make_patient(seed, patient, geometry)
    rng = keyed_rng(seed, 2, patient, record)
    drawn, rhythm, ectopy = _draw_conditions(rng, owner)
    if conditions is not None:
        drawn, rhythm, ectopy = _asked_conditions(rng, conditions)
    if severity is not None:
        drawn = {name: float(severity) for name in drawn}
    hidden = {} if conditions is not None else _hidden_conditions(rng, drawn)
    # the beats, and the leads that they cause
    beat = diseased_beat(owner.beat, owner.injury, {**hidden, **drawn})
    times, ectopic, early = beat_times(rng, owner, rhythm, ectopy, seconds)
    samples = round(seconds * rate)
    vcg = heart_dipole(rng, owner, beat, times, ectopic, early, rhythm == "AFIB", samples, rate)
    matrix = twelve_leads(owner.torso)
    eight = owner.torso @ vcg.T
    if noise:
        eight += noise * (ELECTRODES @ electrode_noise(rng, owner, samples, rate))
    peaks, ectopic = true_peaks(vcg, times, ectopic, rate)
    labels = {
        "diagnosis": sorted(drawn) or ["NORM"],
        "rhythm": sorted([rhythm, *(["PVC"] if ectopic.any() else [])]),
    }
    info = {
        "record_id": f"records/{patient // 100:03d}/{patient:05d}_{record:02d}",
        "patient_id": f"p{patient:05d}",
        "split": SPLIT_CYCLE[patient % len(SPLIT_CYCLE)],
        "labels": labels,
        "r_peaks": peaks,
        "ectopic": ectopic,
        "heart_rate": 60 * rate / float(np.median(np.diff(peaks))) if len(peaks) > 1 else math.nan,
        "rate": rate,
        "leads": list(LEADS),
        "vcg": vcg.astype(np.float32),
        "matrix": matrix,
    }
    return twelve_leads(eight).T.astype(np.float32), info


def _draw_conditions(rng, owner):
    """(condition -> severity, rhythm, whether there are PVC) of one record; lasting conditions vary
    a little."""
    drawn = {}
    for name, typical in owner.lasting.items():
        level = float(np.clip(typical + 0.08 * rng.standard_normal(), 0.2, 1.0))
        if rng.random() < 0.92:
            drawn[name] = level
    shift, low, inverted = rng.random(3)
    if shift < (0.28 if owner.ischaemic else 0.03):
        drawn["STE"] = draw_severity(rng)
    elif low < (0.38 if owner.ischaemic else 0.03):
        drawn["STD"] = draw_severity(rng)
    if inverted < (0.35 if owner.ischaemic else 0.03):
        drawn["TINV"] = draw_severity(rng)
    rhythm = (
        "AFIB"
        if rng.random() < owner.atrial_fibrillation
        else str(rng.choice(["SR", "STACH", "SBRAD"], p=[0.66, 0.17, 0.17]))
    )
    return drawn, rhythm, bool(rng.random() < owner.ectopy)


def _asked_conditions(rng, conditions):
    """The same for conditions that are given by name."""
    known = {name for names in TASKS.values() for name in names}
    for name in conditions:
        if name not in known:
            raise InputError(
                f"unknown synthetic condition {name!r}; choose from {', '.join(sorted(known))}"
            )
    drawn = {
        name: draw_severity(rng)
        for name in conditions
        if name in TASKS["diagnosis"] and name != "NORM"
    }
    rhythms = [name for name in conditions if name in BEATS_PER_MINUTE] or ["SR"]
    return drawn, rhythms[0], "PVC" in conditions


def _hidden_conditions(rng, drawn):
    """Changes too slight to be labelled, which keep the classes from being trivially separable."""
    slight = rng.uniform(0, 0.45, 6) * (rng.random(6) < 0.40)
    return {
        name: v
        for name, v in zip(("LBBB", "RBBB", "LVH", "STE", "STD", "TINV"), slight, strict=True)
        if v > 0 and name not in drawn
    }


def write_corpus(
    out_dir,
    patients=200,
    records_per_patient=5,
    seconds=10.0,
    rate=250,
    seed=0,
    geometry="dower",
    progress=False,
):
    """Writes WFDB records with R peaks (.atr), and labels.csv; returns {task: {class: records}}.

    A folder that holds anything else is refused; the same corpus may be written again or made
    larger in place.
    """
    if min(patients, records_per_patient) < 1 or seed < 0:
        raise InputError(
            "a synthetic corpus needs patients >= 1, records_per_patient >= 1 and seed >= 0"
        )
    if not (50 <= rate <= 2000 and rate == int(rate) and 2 <= seconds <= 3600):
        raise InputError(
            "synthetic records need a whole rate of 50-2000 Hz and 2-3600 s,"
            f" not {rate} Hz and {seconds} s"
        )
    out = Path(out_dir)
    settings = dict(
        version=VERSION, seed=seed, rate=int(rate), seconds=float(seconds), geometry=geometry
    )
    sizes = dict(patients=patients, records_per_patient=records_per_patient)
    _claim(out, settings, sizes)
    rows, counts = [], {task: dict.fromkeys(names, 0) for task, names in TASKS.items()}
    for patient in progress_bar(
        range(patients), desc="patients", unit="patient", disable=not progress
    ):
        (out / "records" / f"{patient // 100:03d}").mkdir(parents=True, exist_ok=True)
        for record in range(records_per_patient):
            signal, info = make_record(
                seed,
                patient=patient,
                record=record,
                seconds=seconds,
                rate=int(rate),
                geometry=geometry,
            )
            write_record(out / info["record_id"], signal, info)
            labels = {task: ";".join(names) for task, names in info["labels"].items()}
            rows.append({key: info[key] for key in ("record_id", "patient_id", "split")} | labels)
            for task, names in info["labels"].items():
                for name in names:
                    counts[task][name] += 1
    with (
        whole_file(out / "labels.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(
            file, ["record_id", "patient_id", "split", *TASKS], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    return counts


def _claim(out, settings, sizes):
    """Refuses a folder with other content, or writes the marker that makes it this corpus."""
    marker = out / MARKER
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder for the synthetic corpus")
    if marker.exists():
        try:
            old = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            old = {}
        if any(old.get(key) != value for key, value in settings.items()):
            raise InputError(
                f"{out} holds a synthetic corpus made with other settings;"
                " choose another folder or delete it"
            )
        if any(old.get(key, 0) > value for key, value in sizes.items()):
            raise InputError(
                f"{out} holds a larger synthetic corpus of this seed;"
                " choose another folder or delete it"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise InputError(
            f"{out} is not empty and holds no synthetic corpus; choose an empty folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(
        json.dumps({**settings, **sizes, "tasks": TASKS}, indent=1) + "\n", encoding="utf-8"
    )


def write_record(stem, signal, info):
    """One record as STEM.hea, STEM.dat (format 16) and STEM.atr (beat annotations, N or V at each R
    peak).

    wfdb.wrsamp and wfdb.wrann write the same samples and marks, but take 46 times as long: twenty
    times as long as making the record.
    """
    eight = np.round(signal.T[[0, 1, 6, 7, 8, 9, 10, 11]].astype(np.float64) * GAIN)
    eight[:2] = 2 * np.round(eight[:2] / 2)
    adc = np.clip(twelve_leads(eight), -32767, 32767).astype("<i2")  # [12,T]
    sums = adc.sum(axis=1, dtype=np.int64).astype(np.uint16).astype(np.int16)
    lines = [f"{stem.name} {len(adc)} {info['rate']} {adc.shape[1]}"]
    for name, lead, checksum in zip(info["leads"], adc, sums, strict=True):
        lines.append(f"{stem.name}.dat 16 {GAIN}(0)/mV 16 0 {lead[0]} {checksum} 0 {name}")
    Path(f"{stem}.hea").write_bytes(("\n".join(lines) + "\n").encode("ascii"))
    Path(f"{stem}.dat").write_bytes(np.ascontiguousarray(adc.T).tobytes())
    words = []
    for step, ectopic in zip(
        np.diff(info["r_peaks"], prepend=0).tolist(), info["ectopic"], strict=True
    ):
        if step > 1023:  # long steps follow WFDB's SKIP code, high word first
            words += [59 << 10, step >> 16, step & 0xFFFF]
            step = 0
        words.append(((5 if ectopic else 1) << 10) | step)
    Path(f"{stem}.atr").write_bytes(np.array([*words, 0], "<u2").tobytes())
