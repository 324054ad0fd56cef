"""Small files as the commands write them, for the tests of reports: a known record, robustness,
geometry."""

import json

import numpy as np

from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.studies import geometry_report
from lvcg_jax.studies.robustness import perturbations

RATE = 250


def dipole_record(path, seconds=10.0):
    """A CSV of twelve leads: 75 beats a minute, QRS axis 55 degrees, T axis 20 degrees, no P
    wave."""
    times, beats = np.arange(round(seconds * RATE)) / RATE, np.arange(0.4, seconds, 0.8)[:, None]

    def wave(after, width, degrees, back, size):
        vector = size * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees)), back])
        return np.outer(np.exp(-0.5 * ((times - beats - after) / width) ** 2).sum(0), vector)

    dipole = wave(0.0, 0.018, 55, 0.3, 1.0) + wave(0.27, 0.045, 20, -0.2, 0.3)
    leads = dipole @ lead_matrix("dower").T
    np.savetxt(path, leads, delimiter=",", header=",".join(LEADS), comments="", fmt="%.6f")
    return path


def write_robustness(folder):
    """robustness.json with two tasks, four lead sets and every perturbation."""
    value = {
        "mean": 0.5,
        "low": 0.4,
        "high": 0.6,
        "median": 0.5,
        "median_low": 0.4,
        "median_high": 0.6,
    }
    sets = {"12 leads": LEADS, "3 leads": ("I", "II", "V2"), "1 lead": ("I",), "II alone": ("II",)}
    score = {"fraction": 1.0, "macro_auroc": 0.8, "low": 0.7, "high": 0.9}
    cells = [{"model": name, **score} for name in sets]
    probes = [{"task": task, "cells": cells} for task in ("diagnosis", "rhythm")]
    found = {name: {"leads": list(leads), "rank": 3, "gain": 1.0} for name, leads in sets.items()}
    for name in list(found)[1:]:
        found[name]["r2"] = {"lvcg": value, "regression": value}
    fewer = {
        "sets": found,
        "frozen": probes,
        "retrained": probes,
        "train_records": 40,
        "order": list(LEADS),
    }
    names = list(perturbations(1))
    gaps = [
        {"control": n, "fraction": 1.0, "difference": 0.02, "low": 0.01, "high": 0.03}
        for n in names
    ]
    derived = {
        "derived": {way: {"mse": value, "r2": value} for way in ("lift_and_project", "lift_only")}
    }
    moved = {
        "perturbations": dict.fromkeys(names, derived),
        "probe": [{"task": task, "differences": gaps} for task in ("diagnosis", "rhythm")],
        "seeds": 2,
        "fractions": [0.01, 1.0],
        "derived_from": ["II", "V2", "V5"],
        "derived_records": 25,
    }
    document = {
        "format": "lvcg-robustness-1",
        "notes": [],
        "moved_electrodes": moved,
        "fewer_leads": fewer,
    }
    folder.mkdir()
    (folder / "robustness.json").write_text(json.dumps(document))


def write_geometry(path):
    """The page of lvcg_jax.studies.geometry_report for twelve made-up patients."""
    rng = np.random.default_rng(0)
    frank = rng.normal(size=(12, 3, 200))
    leads = lead_matrix("dower") @ frank + 0.1 * rng.normal(size=(12, 12, 200))
    hearts = geometry_report.Hearts(tuple(f"patient{i}" for i in range(12)), leads, frank)
    visible = np.isin(LEADS, ("II", "V2", "V5"))
    path.write_text(
        geometry_report.report(geometry_report.evaluate(hearts, visible, (), 3), hearts, visible, 3)
    )
