"""How well data_prep.ecg.delineate finds the waves that cardiologists marked in LUDB.

    lvcg delineation_report --raw=LUDB --out=delineation.md

LUDB is marked in every lead separately, at 500 Hz. The reference of a beat is the median over the
leads that the delineator is given, of those in which the wave is marked (at least three, if that
many are given), so a slip in one lead does not count. The records are prepared as for training
(resampled, band-passed), beats are found by our own detector, and only marked beats are scored:
LUDB leaves the first and last beats unmarked. A mark counts as found if the estimate is within 150
ms; the errors are those of found marks.

Constants were chosen on the development half only. The held-out half has been scored twice: for a
first version, which found 96.3% of its T offsets from twelve leads (with the same medians as now),
and after the search for T had been changed on the development half (on its single leads, and its
records played faster and slower).
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_float, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.lottery import parity
from data_prep.base.progress import progress_bar
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg.delineate import Waves, delineate, match_beats
from data_prep.ecg.leads import LEADS, order_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import Record
from data_prep.ecg.segment import r_peaks_vcg
from data_prep.ecg.signal import bandpass, resample

LEAD_SETS = {"all twelve": LEADS, "II, V2, V5": ("II", "V2", "V5"), "II": ("II",)}
HALVES = ("development", "held-out")
SCORED = ("qrs_onset", "qrs_offset", "p_onset", "t_offset")
TOLERANCE = 0.15  # s
SAME_BEAT = 0.12  # s between QRS peaks in two leads
# largest s from P peak to R, and from R to T peak, within one beat
PR_MAX, RT_MAX = 0.4, 0.7
FEWEST_LEADS = 6  # in which a beat must be marked


@dataclass
class Errors:
    """The errors for one set of leads in one half of the records."""

    records: int = 0
    # NaN if not found
    ms: dict[str, list[float]] = field(default_factory=lambda: {mark: [] for mark in SCORED})
    no_p: int = 0  # beats without a marked P wave in records with other marked beats
    false_p: int = 0  # how many of these had a P wave reported

    def row(self, mark: str) -> tuple[int, float, float, float, float, float]:
        """Reference marks, the share found and, in ms: median, mean and 90th percentile of |error|,
        median error."""
        error = np.array(self.ms[mark])
        found = error[np.abs(error) <= 1000 * TOLERANCE]
        if not len(found):
            return len(error), 0.0, np.nan, np.nan, np.nan, np.nan
        size = np.abs(found)
        figures = np.median(size), size.mean(), np.quantile(size, 0.9), np.median(found)
        return len(error), len(found) / len(error), *map(float, figures)


def half_of(record_id: str) -> str:
    """The half that a record is in, by the parity of the sha256 of its id."""
    return HALVES[parity(record_id)]


def reference_marks(
    annotations: dict, rate: float, leads: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The marked beats of a record: middle of the QRS [n], and boundaries [n,7] in the order of
    Waves, in seconds.

    A P wave belongs to the next beat (of several, the last one), a T wave to the beat before (the
    first one).
    """
    # beats: QRS peaks that several leads mark at the same time
    seconds = {
        lead: {wave: np.where(rows < 0, np.nan, rows / rate) for wave, rows in waves.items()}
        for lead, waves in annotations.items()
    }
    peaks = np.sort(np.concatenate([waves["QRS"][:, 1] for waves in seconds.values()]))
    beats = np.split(peaks, np.flatnonzero(np.diff(peaks) > SAME_BEAT) + 1)
    centre = np.array(
        [np.median(beat) for beat in beats if len(beat) >= min(FEWEST_LEADS, len(seconds))]
    )
    marks = np.full((len(centre), len(Waves._fields), len(leads)), np.nan)  # [n,7,l]
    if not len(centre):
        return centre, marks[:, :, 0]
    # the marks of each lead, and their median
    for column, lead in enumerate(leads):
        waves = seconds.get(lead, {"P": (), "QRS": (), "T": ()})
        for onset, peak, offset in waves["QRS"]:
            beat = np.abs(centre - peak).argmin()
            if abs(centre[beat] - peak) <= SAME_BEAT:
                marks[beat, 3:5, column] = onset, offset
        for row in waves["P"]:
            beat = np.searchsorted(centre, row[1])
            if beat < len(centre) and centre[beat] - row[1] <= PR_MAX:
                marks[beat, :3, column] = row
        for _, peak, offset in waves["T"][::-1]:
            beat = np.searchsorted(centre, peak) - 1
            if beat >= 0 and peak - centre[beat] <= RT_MAX:
                marks[beat, 5:, column] = peak, offset
    enough = np.isfinite(marks).sum(axis=2) >= min(3, len(leads))  # [n,7]
    reference = np.full(enough.shape, np.nan)
    reference[enough] = np.nanmedian(marks[enough], axis=1)
    return centre, reference


def score_record(record: Record, leads: tuple[str, ...], chain: Preprocess, errors: Errors) -> None:
    """Adds the errors of one record."""
    # our marks, from these leads alone
    x, _ = order_leads(record.signal, record.leads)
    present = np.isin(LEADS, leads) & np.isfinite(x).all(axis=1)
    x = np.where(present[:, None], x, 0.0)
    x = bandpass(
        resample(x, record.rate, chain.rate),
        chain.rate,
        chain.band_low,
        chain.band_high,
        chain.filter_order,
    )
    peaks = r_peaks_vcg(x, present, chain.rate)
    found = np.stack(delineate(x, chain.rate, present, peaks), axis=1) / chain.rate  # [m,7] s
    # their marks, beat by beat
    centre, reference = reference_marks(record.annotations, record.rate, leads)
    match = match_beats(centre, peaks / chain.rate, TOLERANCE)
    estimate = np.full(reference.shape, np.nan)
    estimate[match >= 0] = found[match[match >= 0]]
    error = 1000 * (estimate - reference)
    for mark in SCORED:
        column = Waves._fields.index(mark)
        errors.ms[mark] += error[np.isfinite(reference[:, column]), column].tolist()
    without = np.isnan(reference[1:, 0])  # the P wave of the first beat may exist without a mark
    errors.records += 1
    errors.no_p += int(without.sum())
    errors.false_p += int(np.isfinite(estimate[1:, 0][without]).sum())


def evaluate(
    raw: str | Path, chain: Preprocess, halves: tuple[str, ...] = HALVES, progress: bool = True
) -> dict[tuple[str, str], Errors]:
    """The errors for each (half, set of leads)."""
    corpus = open_corpus("ludb", raw)
    table = {(half, name): Errors() for half in halves for name in LEAD_SETS}
    for ref in progress_bar(corpus.refs, desc="records", disable=not progress):
        half = half_of(ref.record_id)
        if half not in halves:
            continue
        record = corpus.load(ref)
        if not record.annotations:
            raise InputError(
                f"record {ref.record_id}: no marks (files .i, .ii, ... .v6) beside {ref.path}.hea"
            )
        for name, leads in LEAD_SETS.items():
            score_record(record, leads, chain, table[half, name])
    return table


def report(table: dict[tuple[str, str], Errors], rate: float) -> str:
    """The errors as a Markdown page."""
    lines = [
        f"# Delineation against the cardiologists' marks of LUDB, {rate:g} Hz",
        "",
        "`lvcg delineation_report --raw=LUDB`",
        "",
        "Reference: median over the given leads of a beat's marks. Found: within 150 ms. Errors of"
        " found marks in ms: estimate minus reference. Constants were chosen on the development"
        " half only; the held-out half was scored twice, first for a version that found 96.3% of"
        " its T offsets from twelve leads.",
    ]
    for half in dict.fromkeys(half for half, _ in table):
        records = next(errors.records for (h, _), errors in table.items() if h == half)
        lines += [
            "",
            f"## {half} half, {records} records",
            "",
            "| leads | mark | reference marks | found"
            " | median abs error | mean abs | 90th percentile | median error |",
            "|---|---|---|---|---|---|---|---|",
        ]
        notes = []
        for (h, name), errors in table.items():
            if h != half:
                continue
            for mark in SCORED:
                count, found, *ms = errors.row(mark)
                cells = " | ".join(f"{value:.1f}" for value in ms)
                what = f"{name} | {mark.replace('_', ' ')} | {count}"
                lines.append(f"| {what} | {100 * found:.1f}% | {cells} |")
            notes.append(f"{errors.false_p} of {errors.no_p} ({name})")
        lines += ["", f"Beats with a P wave reported where none is marked: {'; '.join(notes)}."]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = Parser("delineation_report", __doc__)
    parser.add_argument("--raw", required=True, help="folder of LUDB (ludb.csv, data/1.hea, ...)")
    parser.add_argument(
        "--rate", type=positive_float, default=100.0, help="Hz to resample to first (default 100)"
    )
    parser.add_argument(
        "--half", choices=HALVES, help="only this half of the records (default: both)"
    )
    parser.add_argument("--out", help="Markdown file to write as well")
    args = parser.parse_args(argv)
    table = evaluate(args.raw, Preprocess(rate=args.rate), (args.half,) if args.half else HALVES)
    text = report(table, args.rate)
    print(text, end="")
    if args.out:
        write_whole(args.out, text)
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
