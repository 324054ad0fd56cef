"""Small dataset directories: records to build them from, the build itself, and what it wrote."""

import csv
import os
import signal
from pathlib import Path

import numpy as np

from data_prep.corpora.corpus import read_plain
from data_prep.dataset import shards
from data_prep.dataset.builder import build
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import make_record


def write_wfdb(folder, name, adc, rate=100):
    """adc [T,12] int16 at 1000 units per mV; -32768 is 'no value'."""
    lines = [f"{name} 12 {rate} {len(adc)}"] + [
        f"{name}.dat 16 1000(0)/mV 16 0 0 0 0 {lead}" for lead in LEADS
    ]
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.dat").write_bytes(np.asarray(adc, "<i2").tobytes())


def ecg(patient, seconds=10.0, rate=100):
    signal, _ = make_record(0, patient=patient, seconds=seconds, rate=rate, conditions=["SR"])
    return np.round(np.clip(signal, -30, 30) * 1000).astype(np.int16)


def files_of(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(Path(folder).rglob("*"))
        if p.is_file()
    }


def ledger_of(folder):
    with open(folder / shards.LEDGER_FILE, newline="") as file:
        return {row["record_id"]: row for row in csv.DictReader(file)}


def quiet_build(corpus, out, preprocess=None, **options):
    return build(corpus, out, preprocess or Preprocess(), progress=False, **options)


def read_or_die(ref):
    """A reader of WFDB records that ends its process, as a fault in C code does, for records whose
    name says so."""
    if ref.record_id.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return read_plain(ref)
