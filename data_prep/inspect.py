"""Shows what the shards hold of one record: where it comes from, what was found wrong, its leads, beats and loops.

    python -m data_prep.inspect --data=shards/ptbxl --record=4711 --out=look

Prints the record's row of the ledger and what is stored of it, and draws the twelve leads on ECG paper with the
detected beats, and the loop of its lifted heart vector in three planes. The signal is the filtered one, back in mV; if
the shards do not hold it whole, it is stitched from the stored beats.
"""

import argparse
import difflib
import json
import os
import sys
from pathlib import Path

import numpy as np

from data_prep import shards
from data_prep.errors import InputError, run_command
from data_prep.leads import LEADS, mask_leads
from data_prep.segment import stitch_beats
from data_prep.shards import ShardSet
from data_prep.verify import read_ledger
from lvcg_jax.geometry import lead_matrix, lift_matrix, subset_facts

LIFT_EPS = 1e-4


def find_record(directory: str | os.PathLike, record_id: str) -> tuple[dict[str, str], int]:
    """The record's ledger row, and the index of its first example in its split (the ledger is in shard order)."""
    position: dict[str, int] = {}
    names = []
    for row in read_ledger(directory):
        if row["record_id"] == record_id:
            return row, position.get(row["split"], 0)
        position[row["split"]] = position.get(row["split"], 0) + int(row["windows"])
        names.append(row["record_id"])
    near = difflib.get_close_matches(record_id, names, n=3, cutoff=0.5) if len(names) < 50_000 else []
    near = near or [name for name in names if record_id and record_id in name][:3]
    hint = f"did you mean {', '.join(near)}?" if near else f"the ledger has {names[0]} to {names[-1]}"
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
    """The median [12,P] of the complete beats in mV (0 in missing leads), R peak at a third, and its samples a second.

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
    """The heart vector [3,T] lifted from the leads of [12,T] that exist, and how many dimensions those span."""
    present, matrix = mask_leads(lead_mask), lead_matrix(geometry)
    return lift_matrix(matrix, present, LIFT_EPS) @ mv, int(subset_facts(matrix, present, LIFT_EPS)["rank"])


def describe(row: dict[str, str], examples: list[dict], metadata: dict) -> str:
    """The record's provenance, one fact a line."""
    rate = metadata["preprocess"]["rate"]
    lines = [
        ("record", row["record_id"]),
        ("patient", row["patient_id"]),
        ("corpus", metadata["corpus"]),
        ("split", f"{row['split']} ({metadata['split_rule']})"),
        ("kept", f"{row['windows']} windows, {row['beats']} beats" if row["kept"] == "yes" else f"no: {row['reason']}"),
        ("defects", row["defects"].replace(";", ", ") or "none found"),
        ("missing", row["missing_leads"] or "no lead"),
        ("signal hash", row["signal_hash"] or "never read"),
        ("preprocess", metadata["preprocess_hash"]),
    ]
    if examples:
        labels = json.loads(examples[0]["labels"])
        named = "; ".join(f"{task}: {', '.join(names) or 'none of its classes'}" for task, names in labels.items())
        lines.append(("labels", named or "not labelled"))
    for example in examples:
        rr = example["length"][example["complete"]] / rate
        pulse = f", {60 / np.median(rr):.0f} beats a minute" if len(rr) else ""
        present = mask_leads(example["lead_mask"])
        leads = "all leads" if present.all() else " ".join(n for n, p in zip(LEADS, present, strict=True) if p)
        text = f"{example['num_samples'] / rate:g} s, {len(r_peaks(example))} R peaks{pulse}, {leads}"
        lines.append((f"window {example['window']}", f"{text}, uid {example['uid']}"))
    return "\n".join(f"{name:<13} {value}" for name, value in lines)


def draw(row: dict[str, str], example: dict, metadata: dict, out: Path) -> list[Path]:
    """Two PNG files of one stored window: ECG paper, and VCG loops of the beats that are complete."""
    from lvcg_jax.figures import draw_ecg, draw_vcg_loops  # matplotlib only when something is drawn

    rate, geometry = metadata["preprocess"]["rate"], metadata["preprocess"]["geometry"]
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in row["record_id"]) + f"-w{example['window']}"
    title = f"{metadata['corpus']} {row['record_id']}, window {example['window']}"
    words = [word for word in example["defects"].split(";") if word]
    caption = f"defects: {', '.join(words[:4])}{' ...' if len(words) > 4 else ''}" if words else ""
    ecg = draw_ecg(out / f"{safe}-ecg.png", signal_mv(example), rate, title, r_peaks=r_peaks(example), caption=caption)
    beat, beat_rate = median_beat(example, rate)
    vcg, rank = lifted(beat, example["lead_mask"], geometry)
    complete = int(example["complete"].sum())
    caption = f"{f'Median of {complete} beats' if complete > 1 else 'Whole window'}, {geometry} geometry."
    caption += "" if rank == 3 else f" The leads span {rank} of 3 dimensions."
    z_front = geometry != "dower"
    loops = draw_vcg_loops(out / f"{safe}-vcg.png", vcg, beat_rate, title, z_front=z_front, caption=caption)
    return [ecg, loops]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.inspect", description="Show what a dataset directory holds of one record."
    )
    parser.add_argument("--data", required=True, help="dataset directory of data_prep.build")
    parser.add_argument("--record", required=True, help="record id, as in ledger.csv")
    parser.add_argument("--out", default=".", help="folder for the two figures (default: here)")
    parser.add_argument("--window", type=int, help="window to draw (default: the first that is stored)")
    args = parser.parse_args(argv)
    metadata = shards.read_metadata(args.data)
    row, position = find_record(args.data, args.record)
    examples = []
    if row["kept"] == "yes":
        stored = ShardSet(args.data, row["split"])
        examples = stored.read(range(position, position + int(row["windows"])))
        if any(example["record_id"] != args.record for example in examples):
            raise InputError(
                f"{args.data}: ledger and shards do not match; run the build command of this dataset again"
            )
    print(describe(row, examples, metadata))
    if not examples:
        print("nothing of it is stored, so there is nothing to draw")
        return 0
    windows = [example["window"] for example in examples]
    wanted = windows[0] if args.window is None else args.window
    if wanted not in windows:
        raise InputError(f"record {args.record} has no window {wanted}; stored: {', '.join(map(str, windows))}")
    for path in draw(row, examples[windows.index(wanted)], metadata, Path(args.out)):
        print(f"{'figure':<13} {path}")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
