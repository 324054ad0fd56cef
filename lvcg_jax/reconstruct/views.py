"""Views of stored records, some leads visible and some hidden, and the hidden ones derived by every
method.

Axis letters: k row (one view of one record), l lead, T sample.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.lottery import ticket
from data_prep.base.words import list_some
from data_prep.ecg.geometry import SPACE, describe_view, lead_matrix, training_subsets
from data_prep.ecg.leads import LEADS, lead_mask, mask_leads
from data_prep.ecg.signal import recover_limb_leads
from lvcg_jax.data.entries import Entry
from lvcg_jax.model.views import draw_views
from lvcg_jax.reconstruct.gaussian_beat import calibration_of, can_calibrate
from lvcg_jax.reconstruct.lead_method import (
    LeadMethod,
    LeadMethodWithBars,
    signal_of,
    to_mv,
)
from lvcg_jax.reconstruct.scores import score_leads

CHUNK = 256  # rows read and derived at a time


@dataclass(frozen=True)
class Row:
    """One view of one record: bit masks of the leads that are shown and of those to be derived."""

    entry: Entry
    visible: int
    hidden: int
    first: Entry | None = None  # the patient's window that calibrates

    def failure(self, reason: str) -> dict[str, str]:
        return {
            "record_id": self.entry.record_id,
            "window": str(self.entry.window),
            "reason": reason,
        }


@dataclass
class View:
    """A choice of visible leads for every record: fixed ones, or some drawn for each."""

    name: str  # for files: 'II_V2_V5' or 'k3'
    title: str
    rows: list[Row]
    notes: list[str]
    failures: list[dict[str, str]]


@dataclass(frozen=True)
class Source:
    """Methods that read one data set; with `entries`, another one than the rows come from, in other
    units."""

    methods: Sequence[LeadMethod]
    entries: dict[tuple[str, int], Entry] | None = None

    @property
    def units(self) -> dict[str, str]:
        return {name: unit for method in self.methods for name, unit in method.units.items()}


@dataclass(frozen=True)
class Windows:
    """Entries as windows (see data/windows.py), read from disk each time they are iterated over."""

    entries: Sequence[Entry]
    done: Callable[[], object] = field(default=lambda: None)

    def __iter__(self) -> Iterator[dict]:
        for first in range(0, len(self.entries), 64):
            for window in read_windows(self.entries[first : first + 64]):
                yield window
                self.done()


def read_windows(entries: Sequence[Entry]) -> list[dict]:
    """The windows of a few entries, all their leads visible."""
    found: list[dict] = [{}] * len(entries)
    for shards in {id(entry.shards): entry.shards for entry in entries}.values():
        places = [i for i, entry in enumerate(entries) if entry.shards is shards]
        for i, example in zip(places, shards.read(entries[i].index for i in places), strict=True):
            found[i] = example | {"visible": example["lead_mask"]}
    return found


def check_visible(leads: list[str]) -> list[str]:
    """The leads, if they leave some to derive."""
    if len(leads) == len(LEADS):
        raise InputError(
            "all twelve leads are visible, so there is nothing to reconstruct: leave some out"
        )
    return leads


def fixed_view(entries: Sequence[Entry], leads: Sequence[str], a: np.ndarray, eps: float) -> View:
    """The same visible leads in every record."""
    asked = lead_mask(np.isin(LEADS, leads))
    rows = [Row(e, asked & e.lead_mask, e.lead_mask & ~asked) for e in entries]
    view = View("_".join(leads), f"visible: {', '.join(leads)}", *_usable(rows))
    view.notes += describe_view(a, mask_leads(asked), eps)
    fewer = [row.entry.record_id for row in view.rows if row.visible != asked]
    if fewer:
        view.notes.append(
            f"{len(fewer)} records lack a visible lead and are used with the others:"
            f" {list_some(fewer)}."
        )
    return view


def drawn_view(
    entries: Sequence[Entry], k: int, draws: int, seed: int, a: np.ndarray, eps: float
) -> View:
    """K visible leads for each record and draw, from its uid and the seed; with three or more,
    leads that span space. A field (see data_prep.ecg.geometry) has no say in that: the paper's
    directions decide, so that its views are those of other models."""
    if a.shape[1] > SPACE:
        a = lead_matrix("paper")
    subsets = training_subsets(a, k, eps, k >= 3, None)
    uid = np.array([e.uid for e in entries], np.uint32)
    present = np.array([e.lead_mask for e in entries], np.int32)
    keys = [jax.random.fold_in(jax.random.key(seed), draw) for draw in range(draws)]
    # [entries,draws]
    masks = np.array([draw_views(key, uid, present, subsets, k) for key in keys]).T
    rows = [
        Row(e, int(m), e.lead_mask & ~int(m))
        for e, some in zip(entries, masks, strict=True)
        for m in some
    ]
    kind = (
        "that span three dimensions"
        if k >= 3
        else "(fewer than three leads cannot span three dimensions)"
    )
    times = f", {draws} times a record" if draws > 1 else ""
    view = View(
        f"k{k}", f"({k},12): {k} of 12 leads visible, drawn for each record{times}", *_usable(rows)
    )
    view.notes.append(
        f"Visible leads drawn by record uid, seed {seed}, from {len(subsets)} subsets {kind}."
    )
    return view


def calibrated(view: View) -> None:
    """Of each patient the first window with all leads calibrates, and the later ones are judged;
    all others are left out."""
    first: dict[str, Entry] = {}
    kept = []
    for row in view.rows:
        patient = row.entry.patient_id
        if patient in first and first[patient].key != row.entry.key:
            kept.append(replace(row, first=first[patient]))
        elif patient not in first and can_calibrate(*read_windows([row.entry])):
            first[patient] = row.entry
    if not kept:
        raise InputError("--calibrate: no patient of this split has two windows")
    view.notes.append(
        f"The first window of each patient, with all leads, calibrates: {len(kept)} later ones of"
        f" {len({row.entry.patient_id for row in kept})} patients are judged."
    )
    view.rows = kept


def _usable(rows: Sequence[Row]) -> tuple[list[Row], list[str], list[dict[str, str]]]:
    """Rows with something to see and something to compare with, no notes yet, and the others as
    failures."""
    blind = [row.failure("it has none of the visible leads") for row in rows if not row.visible]
    done = [
        row.failure("it has no hidden lead to compare with")
        for row in rows
        if row.visible and not row.hidden
    ]
    kept = [row for row in rows if row.visible and row.hidden]
    if not kept:
        why = [f"; record {f['record_id']}: {f['reason']}" for f in (*blind, *done)[:1]]
        raise InputError(f"no record can be used{''.join(why)}")
    return kept, [], blind + done


def derive_rows(
    sources: Sequence[Source], rows: Sequence[Row], chunk: int = CHUNK
) -> Iterator[tuple[Row, np.ndarray, dict[str, np.ndarray]]]:
    """For each row in order: the row, its true leads [12,T] in mV, and all leads as each method
    derives them, in mV.

    A method that predicts in normalised units is given the record's own scale of each lead.
    """
    for first in range(0, len(rows), chunk):
        some = rows[first : first + chunk]
        windows = _with_signal([row.entry for row in some], some)
        derived: list[dict[str, np.ndarray]] = [{} for _ in some]
        for source in sources:
            mine = _as_source_reads(source, some, windows)
            for method in source.methods:
                for name, signals in method.predict(mine).items():
                    for i, (window, x) in enumerate(zip(mine, signals, strict=True)):
                        if x.shape != windows[i]["signal"].shape:
                            raise InputError(
                                f"{name}: record {window['record_id']} has another length in"
                                " its shards"
                            )
                        derived[i][name] = to_mv(x, window) if method.units[name] == "z" else x
        for row, window, leads in zip(some, windows, derived, strict=True):
            yield row, to_mv(window["signal"], window), leads


def derive_bands(
    sources: Sequence[Source],
    rows: Sequence[Row],
    chunk: int = CHUNK,
    change: Callable[[dict], dict] = lambda window: window,
) -> Iterator[tuple[Row, dict, dict[str, tuple[np.ndarray, np.ndarray]]]]:
    """For each row in order: the row, its window, and all leads with their standard deviations, in
    mV, by each method that knows them; methods see the window after a `change`."""
    for first in range(0, len(rows), chunk):
        some = rows[first : first + chunk]
        windows = _with_signal([row.entry for row in some], some)
        found: list[dict[str, tuple[np.ndarray, np.ndarray]]] = [{} for _ in some]
        for source in sources:
            mine = [change(window) for window in _as_source_reads(source, some, windows)]
            for method in source.methods:
                if not isinstance(method, LeadMethodWithBars):
                    continue
                for name, pairs in method.predict_with_bars(mine).items():
                    for i, (window, pair) in enumerate(zip(mine, pairs, strict=True)):
                        found[i][name] = bars_in_mv(*pair, window, method.units[name])
        yield from zip(some, windows, found, strict=True)


def bars_in_mv(
    x: np.ndarray, deviation: np.ndarray, window: dict, unit: str
) -> tuple[np.ndarray, np.ndarray]:
    """Leads and their standard deviations [12,T] in mV, from a method's unit."""
    if unit == "mV":
        return x, deviation
    return to_mv(x, window), deviation * window["scale"][:, None]


def _as_source_reads(source: Source, rows: Sequence[Row], windows: list[dict]) -> list[dict]:
    """The rows' windows from the source's own shards, or these if it has none."""
    if source.entries is None:
        return windows
    return _with_signal([source.entries[row.entry.key] for row in rows], rows)


def draw_rows(rows: Sequence[Row], limit: int) -> set[int]:
    """The ids of at most `limit` rows, drawn by record and window: for what is too slow for all."""
    ordered = sorted(rows, key=lambda row: ticket(f"{row.entry.record_id} {row.entry.window}"))
    return {id(row) for row in ordered[:limit]}


def _with_signal(entries: Sequence[Entry], rows: Sequence[Row]) -> list[dict]:
    """The rows' windows in these entries, read once each, with their signal and what is visible."""
    distinct = {entry.key: entry for entry in entries}
    read = dict(zip(distinct, read_windows(list(distinct.values())), strict=True))
    for window in read.values():
        window["signal"] = signal_of(window)
    windows = [
        with_limb_leads(read[e.key] | {"visible": row.visible & e.lead_mask})
        for e, row in zip(entries, rows, strict=True)
    ]
    first = {row.first.key: row.first for row in rows if row.first}
    beats = {
        key: calibration_of([window])
        for key, window in zip(first, read_windows(list(first.values())), strict=True)
    }
    return [
        window | {"calibration": beats[row.first.key]} if row.first else window
        for window, row in zip(windows, rows, strict=True)
    ]


def with_limb_leads(window: dict) -> dict:
    """The window with the limb leads that follow from two visible ones, as preprocessing would have
    added them to a record without them; what was recorded of these leads is replaced."""
    seen = mask_leads(window["visible"])
    scale, offset = window["scale"][:, None], window["offset"][:, None]

    def recover(x: np.ndarray) -> np.ndarray:
        """Normalised leads [12,s] -> the same with limb leads added."""
        return (recover_limb_leads(x * scale + offset, seen)[0] - offset) / scale

    _, visible = recover_limb_leads(np.zeros((len(LEADS), 0)), seen)
    if (visible == seen).all():
        return window
    beats = np.moveaxis(np.asarray(window["beats"], np.float32), 1, 0)  # [l,n,p]
    added = recover(beats.reshape(len(LEADS), -1)).reshape(beats.shape)
    return window | {
        "visible": lead_mask(visible),
        "signal": recover(np.asarray(window["signal"], np.float32)),
        "beats": np.moveaxis(added, 0, 1),
    }


def score_rows(
    sources: Sequence[Source],
    rows: Sequence[Row],
    done: Callable[[], object] = lambda: None,
    also: Callable[[Row, np.ndarray, dict[str, np.ndarray]], None] = lambda row, truth, derived: (
        None
    ),
) -> dict[str, dict[str, np.ndarray]]:
    """{method: {part: [k,l]}}, see score_leads; `also` sees what derive_rows gives."""
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for row, truth, derived in derive_rows(sources, rows):
        for name, leads in derived.items():
            found.setdefault(name, []).append(score_leads(truth, leads, mask_leads(row.hidden)))
        also(row, truth, derived)
        done()
    return {
        name: {part: np.stack([s[part] for s in scores]) for part in scores[0]}
        for name, scores in found.items()
    }
