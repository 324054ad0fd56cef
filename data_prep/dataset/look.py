"""What shards hold of one record: its ledger row, signal, beats and loops."""

import difflib
import json
import os
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import file_name
from data_prep.dataset.checks import read_ledger
from data_prep.ecg.ecg_paper import Tracing, write_ecg
from data_prep.ecg.geometry import lead_matrix, lift_matrix, subset_facts
from data_prep.ecg.leads import LEADS, mask_leads
from data_prep.ecg.loops import write_loops
from data_prep.ecg.segment import stitch_beats

LIFT_EPS = 1e-4


def find_record(directory: str | os.PathLike, record_id: str) -> tuple[dict[str, str], int]:
    """The record's ledger row, and the index of its first example in its split (the ledger is in
    shard order)."""
    position: dict[str, int] = {}
    names = []
    for row in read_ledger(directory):
        if row["record_id"] == record_id:
            return row, position.get(row["split"], 0)
        position[row["split"]] = position.get(row["split"], 0) + int(row["windows"])
        names.append(row["record_id"])
    near = (
        difflib.get_close_matches(record_id, names, n=3, cutoff=0.5) if len(names) < 50_000 else []
    )
    near = near or [name for name in names if record_id and record_id in name][:3]
    hint = (
        f"did you mean {', '.join(near)}?" if near else f"the ledger has {names[0]} to {names[-1]}"
    )
    raise InputError(f"no record {record_id!r} in {directory}: {hint}")


def signal_mv(example: dict) -> np.ndarray:
    """The filtered signal [12,T] in mV of a stored example; NaN in missing leads."""
    if "signal" in example:
        z = example["signal"].astype(np.float32)
    else:
        beats = example["beats"].astype(np.float32)
        z = stitch_beats(beats, example["start"], example["length"], example["num_samples"])
    mv = z * example["scale"][:, None] + example["offset"][:, None]
    return np.where(mask_leads(example["lead_mask"])[:, None], mv, np.nan)


def r_peaks(example: dict) -> np.ndarray:
    """R peaks [m] of a stored example, in samples."""
    return example["start"] if example["complete"][0] else example["start"][1:]


def median_beat(example: dict, rate: float) -> tuple[np.ndarray, float]:
    """The median [12,P] of the complete beats in mV (0 in missing leads), R peak at a third, and
    its samples a second.

    A record without two complete beats gives its whole signal instead.
    """
    complete = example["complete"]
    if complete.sum() < 2:
        return np.nan_to_num(signal_mv(example)), rate
    z = np.median(example["beats"][complete].astype(np.float32), axis=0)
    z = np.roll(z, z.shape[1] // 3, axis=1)  # stored beats run from R to R
    mv = np.where(mask_leads(example["lead_mask"])[:, None], z * example["scale"][:, None], 0.0)
    return mv, z.shape[1] / (np.median(example["length"][complete]) / rate)


def lifted(mv: np.ndarray, lead_mask: int, geometry: str) -> tuple[np.ndarray, int]:
    """The heart vector [3,T] lifted from the leads of [12,T] that exist, and how many dimensions
    those span."""
    present, matrix = mask_leads(lead_mask), lead_matrix(geometry)
    return lift_matrix(matrix, present, LIFT_EPS) @ mv, int(
        subset_facts(matrix, present, LIFT_EPS)["rank"]
    )


def describe(row: dict[str, str], examples: list[dict], metadata: dict) -> str:
    """The record's provenance, one fact a line."""
    rate = metadata["preprocess"]["rate"]
    lines = [
        ("record", row["record_id"]),
        ("patient", row["patient_id"]),
        ("corpus", metadata["corpus"]),
        ("split", f"{row['split']} ({metadata['split_rule']})"),
        (
            "kept",
            f"{row['windows']} windows, {row['beats']} beats"
            if row["kept"] == "yes"
            else f"no: {row['reason']}",
        ),
        ("defects", row["defects"].replace(";", ", ") or "none found"),
        ("missing", row["missing_leads"] or "no lead"),
        ("signal hash", row["signal_hash"] or "never read"),
        ("preprocess", metadata["preprocess_hash"]),
    ]
    if examples:
        labels = json.loads(examples[0]["labels"])
        named = "; ".join(
            f"{task}: {', '.join(names) or 'none of its classes'}" for task, names in labels.items()
        )
        lines.append(("labels", named or "not labelled"))
    for example in examples:
        rr = example["length"][example["complete"]] / rate
        pulse = f", {60 / np.median(rr):.0f} beats a minute" if len(rr) else ""
        present = mask_leads(example["lead_mask"])
        leads = (
            "all leads"
            if present.all()
            else " ".join(n for n, p in zip(LEADS, present, strict=True) if p)
        )
        text = (
            f"{example['num_samples'] / rate:g} s, {len(r_peaks(example))} R peaks{pulse}, {leads}"
        )
        lines.append((f"window {example['window']}", f"{text}, uid {example['uid']}"))
    return "\n".join(f"{name:<13} {value}" for name, value in lines)


def draw(row: dict[str, str], example: dict, metadata: dict, out: Path) -> list[Path]:
    """Two SVG files of one stored window: ECG paper, and VCG loops of the beats that are
    complete."""
    rate, geometry = metadata["preprocess"]["rate"], metadata["preprocess"]["geometry"]
    safe = f"{file_name(row['record_id'])}-w{example['window']}"
    title = f"{metadata['corpus']} {row['record_id']}, window {example['window']}"
    words = [word for word in example["defects"].split(";") if word]
    caption = f"defects: {', '.join(words[:4])}{' ...' if len(words) > 4 else ''}" if words else ""
    tracing = Tracing(signal_mv(example), rate, r_peaks=r_peaks(example))
    ecg = write_ecg(out / f"{safe}-ecg.svg", tracing, title, caption)

    beat, beat_rate = median_beat(example, rate)
    vcg, rank = lifted(beat, example["lead_mask"], geometry)
    complete = int(example["complete"].sum())
    caption = f"Median of {complete} beats" if complete > 1 else "Whole window"
    caption += f", {geometry} geometry."
    caption += "" if rank == 3 else f" The leads span {rank} of 3 dimensions."
    place, z_front = out / f"{safe}-vcg.svg", geometry != "dower"
    return [ecg, write_loops(place, vcg, beat_rate, title, caption, z_front)]
