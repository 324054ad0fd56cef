"""All twelve leads of one raw record from the leads that it has (or from some of them, to see how
well that goes).

Only the visible leads enter: beats are found with them alone, and limb leads that follow from two
others by Einthoven's law are computed, exactly. What is left is derived by a method of methods.py;
derived limb leads are then made to obey the same law (limb_laws.py).
Where every lead is normalised by itself, a model knows the shape of a lead that it never saw, not
its size: derived leads then get the size that the visible ones suggest, as they go together in
training records (lead_sizes.py), and the output says so. A method that knows how sure it is gives a
90% band around derived leads; where their size is not known, the band allows for how much it may
differ.

An earlier record of the same patient with all leads (--calibration) gives the sizes, and the mean
beat from which the calibrated Gaussian model starts.
"""

import argparse
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.base.errors import InputError, NotSaid
from data_prep.dataset.shards import ShardSet, read_metadata, uid_of
from data_prep.ecg.ecg_paper import Tracing, write_ecg
from data_prep.ecg.geometry import describe_view, lead_matrix
from data_prep.ecg.leads import LEADS, canonical, mask_leads, parse_leads
from data_prep.ecg.preprocess import Preprocess, Window
from data_prep.ecg.record import Record
from data_prep.formats.any_file import read_any
from data_prep.formats.wfdb_files import quiet_wfdb
from lvcg_jax.config.folders import read_folders
from lvcg_jax.data.entries import list_entries
from lvcg_jax.reconstruct.bands import FEWEST, LEVEL, REACH
from lvcg_jax.reconstruct.gaussian_beat import (
    CALIBRATED,
    GaussianBeat,
    calibration_of,
    can_calibrate,
)
from lvcg_jax.reconstruct.lead_method import LeadMethod, LeadMethodWithBars, to_mv
from lvcg_jax.reconstruct.lead_sizes import (
    LeadSizes,
    fit_sizes,
    independent,
    log_spread,
    sizes_of_facts,
)
from lvcg_jax.reconstruct.learned.trained import open_network
from lvcg_jax.reconstruct.limb_laws import obey_limb_laws
from lvcg_jax.reconstruct.linear import FittedLeads
from lvcg_jax.reconstruct.methods import (
    FIELD,
    PACKAGED,
    SOURCES,
    NetworkLeads,
    check_methods,
    choose_eps,
    load_learned,
    load_network,
    make_methods,
    without_next_beat,
)
from lvcg_jax.reconstruct.scores import score_leads
from lvcg_jax.reconstruct.views import Windows, bars_in_mv
from lvcg_jax.text.tables import markdown_table

SMALLEST_MV = 0.005  # from peak to peak; an ECG is a hundred times larger


@dataclass(frozen=True)
class Derived:
    """Twelve leads of a record; samples that belong to no usable window are NaN."""

    mv: dict[str, np.ndarray]  # method -> [12,T] mV
    truth: np.ndarray  # [12,T] mV, NaN where the file has no such lead
    recorded: np.ndarray  # bool [12]: visible in the file
    computed: np.ndarray  # bool [12]: by Einthoven's law
    rate: float
    # method -> standard deviation of its leads [12,T] in mV, of methods that know it
    deviation: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def derived(self) -> np.ndarray:
        return ~(self.recorded | self.computed)


class Calibration(NamedTuple):
    """An earlier record of a patient, with all leads."""

    record_id: str
    beat: np.ndarray  # [12,p] its mean beat, normalised as beats are
    sizes: np.ndarray  # [12] standard deviations of its leads in mV


def derive(
    record: Record,
    visible: list[str],
    preprocess: Preprocess,
    methods: list[LeadMethod],
    typical: LeadSizes | None,
    calibration: Calibration | None = None,
) -> tuple[Derived, list[str]]:
    """Derives the leads that a record [T,c] does not show; `typical` are the sizes of unseen leads.
    Also notes."""
    # windows of the visible leads alone, and of all leads of the file, to compare with
    preprocess = preprocess.for_use()
    names = [canonical(name) for name in record.leads]
    columns = [names.index(lead) for lead in visible]
    shown = preprocess.prepare(record.signal[:, columns], record.rate, visible)
    whole = {}
    if any(name and name not in visible for name in names):
        whole = {w.window: w for w in preprocess.prepare(record.signal, record.rate, record.leads)}
    end = max(round(w.start_seconds * w.rate) + w.signal.shape[1] for w in shown)
    found = {
        name: np.full((len(LEADS), end), np.nan) for method in methods for name in method.units
    }
    deviations: dict[str, np.ndarray] = {}
    truth = np.full((len(LEADS), end), np.nan)
    there = np.zeros(len(LEADS), bool)
    notes = []
    # window by window: leads that are seen as they are, the others as each method derives them
    for w in shown:
        present = mask_leads(w.lead_mask)[:, None]
        # where all leads share a scale, it is that of the record
        sizes, spread = np.where(present[:, 0], w.scale, np.median(w.scale[present[:, 0]])), None
        if typical is not None:
            sizes, spread = typical.given(w.scale, present[:, 0])
        window = _as_window(w, record.record_id, sizes)
        if calibration:
            window["calibration"] = calibration.beat
        place = slice(
            round(w.start_seconds * w.rate), round(w.start_seconds * w.rate) + w.signal.shape[1]
        )
        there |= present[:, 0]
        seen = to_mv(w.signal, window)
        for method in methods:
            if isinstance(method, LeadMethodWithBars):
                for name, (pair,) in method.predict_with_bars([window]).items():
                    x, deviation = bars_in_mv(*pair, window, method.units[name])
                    if method.units[name] == "z" and spread is not None:
                        # an error of the size multiplies the true lead, x and what is unsure of it
                        unsure = spread[:, None] * np.hypot(x, deviation)
                        deviation = np.hypot(deviation, unsure)
                    x = np.where(present, seen, x)
                    found[name][:, place] = obey_limb_laws(x, present[:, 0])
                    whole_length = deviations.setdefault(name, np.full_like(truth, np.nan))
                    whole_length[:, place] = np.where(present, 0.0, deviation)
                continue
            for name, (x,) in method.predict([window]).items():
                if isinstance(method, NetworkLeads):
                    x = without_next_beat(x, window)
                x = np.where(present, seen, to_mv(x, window) if method.units[name] == "z" else x)
                found[name][:, place] = obey_limb_laws(x, present[:, 0])
        truth[:, place] = np.where(present, seen, np.nan)
        if w.window in whole:
            full = whole[w.window]
            mv = full.millivolts()
            truth[:, place] = np.where(mask_leads(full.lead_mask)[:, None], mv, truth[:, place])
        lost = [lead for lead in visible if not mask_leads(w.lead_mask)[LEADS.index(lead)]]
        if lost:
            notes.append(
                f"window {w.window}: {', '.join(lost)} is flat, railed or without values;"
                " the others are used."
            )
    recorded = np.isin(LEADS, visible) & there
    computed = there & ~recorded
    return Derived(found, truth, recorded, computed, preprocess.rate, deviations), notes


def _as_window(w: Window, record_id: str, sizes: np.ndarray) -> dict:
    """A prepared window as methods take it, with these sizes [12] of its leads."""
    names = ("beats", "start", "length", "complete", "lead_mask", "signal", "offset", "window")
    return {name: getattr(w, name) for name in names} | {
        "scale": sizes.astype(np.float32),
        "visible": w.lead_mask,
        "num_samples": w.signal.shape[1],
        "uid": uid_of(record_id, w.window),
        "record_id": record_id,
    }


def typical_sizes(windows: Windows) -> LeadSizes:
    """Of training records, those that have a lead."""
    rows, changes = [], []
    last: dict[str, np.ndarray] = {}  # by patient
    for w in windows:
        rows.append(np.where(mask_leads(w["lead_mask"]), w["scale"], np.nan))
        patient = w["patient_id"]
        if patient and patient in last:
            changes.append(rows[-1] / last[patient])
        last[patient] = rows[-1]
    revisit = log_spread(np.log(changes)) if len(changes) >= FEWEST else None
    return fit_sizes(rows)._replace(revisit=revisit)


def write_wfdb(path: Path, result: Derived, name: str, comments: list[str]) -> None:
    """Twelve leads as a WFDB record, as the method `name` derived them; leads that were not
    recorded are called '... (derived)'. Their standard deviations follow as '... (derived) sd'."""
    names = [
        lead if seen else f"{lead} (derived)"
        for lead, seen in zip(LEADS, result.recorded, strict=True)
    ]
    mv = result.mv[name]
    if name in result.deviation:
        names += [f"{names[i]} sd" for i in np.flatnonzero(result.derived)]
        mv = np.concatenate([mv, result.deviation[name][result.derived]])
    count, rate = len(names), result.rate
    with quiet_wfdb() as wfdb:
        wfdb.wrsamp(
            path.name,
            fs=int(rate) if rate == int(rate) else rate,
            units=["mV"] * count,
            sig_name=names,
            p_signal=np.clip(mv.T, -32.0, 32.0),
            fmt=["16"] * count,
            adc_gain=[1000.0] * count,
            baseline=[0] * count,
            comments=comments,
            write_dir=str(path.parent),
        )


def describe(result: Derived, name: str, size: str, preprocess: Preprocess, by: str) -> list[str]:
    """What was done, a line each, for the screen and for the header of the WFDB record."""
    listed = {
        "recorded": result.recorded,
        "computed from recorded limb leads (Einthoven)": result.computed,
        f"derived by {name}{by}, not recorded": result.derived,
    }
    lines = [
        f"leads {kind}: {', '.join(np.array(LEADS)[mask])}"
        for kind, mask in listed.items()
        if mask.any()
    ]
    if result.derived.any():
        lines.append(f"size of derived leads: {size}")
    if result.derived.any() and name in result.deviation:
        lines.append(band_words(result, name))
    return [
        *lines,
        f"all leads filtered {preprocess.band_low:g}-{preprocess.band_high:g} Hz at"
        f" {preprocess.rate:g} Hz",
    ]


def band_words(result: Derived, name: str) -> str:
    """What the band is, and how wide it is in this record."""
    width = 2 * REACH * np.nanmean(result.deviation[name][result.derived])
    return (
        f"band of derived leads: expected to hold {100 * LEVEL:.0f}% of the true samples"
        f" ({REACH:.3f} standard deviations to either side), {width:.2f} mV wide on average"
    )


COMPARED = ("lead", "r", "MAE mV")  # columns of hidden_scores


def hidden_scores(result: Derived, name: str) -> list[list[str]]:
    """Each derived lead that the file also holds, against it: rows of the columns COMPARED."""
    hidden = result.derived & np.isfinite(result.truth).any(1)
    if not hidden.any():
        return []
    known = np.isfinite(result.truth[hidden]).all(0) & np.isfinite(result.mv[name]).all(0)
    scores = score_leads(result.truth[:, known], result.mv[name][:, known], hidden)
    rows = []
    for i in np.flatnonzero(hidden):
        values = (scores[part][i] for part in ("r", "mae_mv"))
        rows.append([LEADS[i], *(f"{v:.3f}" if math.isfinite(v) else "-" for v in values)])
    return rows


def compare(result: Derived, name: str) -> list[str]:
    """The lines of a table of hidden_scores; none if the file holds nothing to compare with."""
    rows = hidden_scores(result, name)
    if not rows:
        return []
    title = f"{name} against the hidden leads of the file:"
    lines = ["", title, "", *markdown_table(COMPARED, rows)]
    if name in result.deviation:
        error = np.abs(result.mv[name] - result.truth)[result.derived]
        known = np.isfinite(error)
        inside = (error <= REACH * result.deviation[name][result.derived])[known].mean()
        lines.append(f"samples of these leads inside the band: {100 * inside:.1f}%")
    return lines


def check_amplitude(record: Record) -> None:
    """An InputError if a record's leads are about a thousand times too small: mV called uV. Readers
    refuse what is too large."""
    values = np.where(np.isfinite(record.signal), record.signal, 0.0)
    low, high = np.quantile(values, [0.002, 0.998], axis=0)
    size = np.median(high - low)
    if 0 < size < SMALLEST_MV:
        raise InputError(
            f"record {record.record_id}: its leads span {1000 * size:.2g} uV from peak to peak,"
            " about a thousand times too little: is the unit another one than the file or --unit"
            " says?"
        )


def read_calibration(args: argparse.Namespace, preprocess: Preprocess) -> Calibration:
    """--calibration=FILE. Its own file says what it is; where it does not, --rate and --unit do."""
    try:
        record = read_any(args.calibration)
    except NotSaid:
        record = read_any(args.calibration, args.rate, args.unit)
    check_amplitude(record)
    windows = preprocess.for_use().prepare(record.signal, record.rate, record.leads)
    whole = [
        w for w in windows if can_calibrate({"lead_mask": w.lead_mask, "complete": w.complete})
    ]
    if not whole:
        lost = ~np.any([mask_leads(w.lead_mask) for w in windows], axis=0)
        why = (
            f"it lacks {', '.join(np.array(LEADS)[lost])} (absent, flat or without values)"
            if lost.any()
            else "no window of it has a complete beat in all twelve leads"
        )
        raise InputError(
            f"--calibration: record {record.record_id} cannot calibrate, {why}: give an earlier"
            " record of the patient with all twelve leads"
        )
    beat = calibration_of([_as_window(w, record.record_id, w.scale) for w in whole])
    return Calibration(record.record_id, beat, np.median([w.scale for w in whole], axis=0))


def read_visible(args: argparse.Namespace) -> tuple[Record, list[str], list[str]]:
    """The record, the leads of it that are visible, and a note on visible leads that it does not
    have."""
    record = read_any(args.record, args.rate, args.unit, args.lead_names)
    check_amplitude(record)
    there = [name for name in map(canonical, record.leads) if name]
    asked = parse_leads(args.visible[0]) if args.visible else there
    visible = [lead for lead in asked if lead in there]
    if not visible:
        raise InputError(
            f"record {record.record_id} has none of {', '.join(asked)}; it has {', '.join(there)}"
        )
    if len(visible) == len(LEADS):
        shows = f"record {record.record_id} shows all twelve leads"
        raise InputError(f"{shows}, so there is nothing to derive: hide some with --visible")
    gone = [lead for lead in asked if lead not in there]
    return (
        record,
        visible,
        record.notes
        + ([f"the record has no lead {', '.join(gone)}; the others are used."] if gone else []),
    )


def learn(
    methods: list[LeadMethod],
    first: str,
    data: str,
    preprocess: Preprocess,
    records: int,
    packaged: LeadSizes | None = None,
) -> tuple[LeadSizes | None, str]:
    """Fits methods that learn. Returns the usual size of each lead, if a method needs it, and words
    on where the method `first` has its sizes from.

    `packaged` sizes come with packaged weights; they are used if nothing else needs training
    records.
    """
    units = {name: unit for method in methods for name, unit in method.units.items()}
    needs_size = "z" in units.values() and preprocess.normalise == "lead"
    words, typical = "as the method gives it, in mV", None
    if units[first] == "z":
        words = "that of the record, one scale for all leads"
    fitted = any(isinstance(method, (FittedLeads, GaussianBeat)) for method in methods)
    if needs_size and not fitted and packaged is not None:
        if units[first] == "z":
            words = _size_words(packaged, "the model's training records")
        return packaged, words
    if needs_size or fitted:
        if not data or not Path(data).is_dir():
            raise InputError(
                "give --data=SHARDS: the size of unseen leads (or a fit) is learned from"
                " training records"
            )
        train = Windows(list_entries([ShardSet(data, "train")], records))
        for method in methods:
            method.fit(train)
        if needs_size:
            typical = typical_sizes(train)
        if needs_size and units[first] == "z":
            words = _size_words(typical, f"{len(train.entries)} training records")
    return typical, words


def _size_words(sizes: LeadSizes, records: str) -> str:
    words = f"not known from this record; the median of {records} was taken"
    return f"{words}, given the sizes of the visible leads" if sizes.covariance.any() else words


def default_method(data: str | None) -> str:
    """The packaged network for leads, unless training records are given that it does not fit."""
    if not PACKAGED.is_file():
        return "lvcg"
    if data is None:
        return FIELD
    preprocess = Preprocess.from_dict(read_metadata(data)["preprocess"])
    return FIELD if open_network(FIELD, PACKAGED).fits(preprocess) else "lvcg"


def derive_record(args: argparse.Namespace) -> int:
    """The command: reads, derives, draws, and writes WFDB if asked."""
    if args.k or len(args.visible) > 1 or args.also:
        raise InputError("--record takes one --visible=LEADS, and neither --k nor --also")
    if args.calibrate:
        raise InputError("--calibrate is for shards: with --record give --calibration=FILE")
    names = [] if args.methods == "all" else check_methods(args.methods.split(","))
    if args.calibration:
        names.insert(0, CALIBRATED)
    if not names and not args.learned:
        names = ["lvcg" if args.checkpoint else default_method(args.fit_data or args.data)]
    learned = load_learned(args.learned)
    if FIELD in names:
        learned.insert(0, open_network(FIELD, PACKAGED))
        names.remove(FIELD)
    record, visible, notes = read_visible(args)
    model = load_network(args.checkpoint, names)
    own = read_folders(model.config.data.dir) if model else []
    data = args.fit_data or args.data or (str(own[0].path) if own else "")
    if not model and not data and not learned:
        raise InputError(
            "give --checkpoint=RUN, or --data=SHARDS to fit a method without a network"
        )
    if model:
        preprocess = model.preprocess
    else:
        facts = read_metadata(data) if data else learned[0].facts
        preprocess = Preprocess.from_dict(facts["preprocess"])
    for method in learned:
        method.require(preprocess)
    calibration = read_calibration(args, preprocess) if args.calibration else None
    eps = choose_eps(args.eps, model)
    methods = make_methods(names, model, eps, *((model.max_beats, 1) if model else ()))
    methods += learned
    names += [method.name for method in learned]
    first = names[0]
    owner = model or next(iter(learned), None)
    packaged = sizes_of_facts(owner.facts) if owner and not data else None
    typical, size = learn(methods, first, data, preprocess, args.fit_records, packaged)

    if calibration:
        notes.append(
            f"record {calibration.record_id} calibrates: it is taken for an earlier one of the same"
            " patient, which cannot be checked."
        )
    if calibration and typical is not None:
        spread = typical.spread if typical.revisit is None else typical.revisit
        typical = independent(calibration.sizes, spread)
        size = f"that of the calibration record {calibration.record_id}"

    # derive, and say how
    result, found = derive(record, visible, preprocess, methods, typical, calibration)
    network = model if first in SOURCES else None
    matrix = (
        network.directions
        if network
        else lead_matrix("dower" if first == "geometry:dower" else "paper")
    )
    notes += [*found, *describe_view(matrix, result.recorded | result.computed, eps)]
    facts = describe(
        result, first, size, preprocess, f" of {network.checkpoint}" if network else ""
    )
    print("\n".join([*facts, *notes, *compare(result, first)]))

    out = Path(args.out)
    safe = re.sub(r"[^0-9A-Za-z_-]+", "_", record.record_id)
    hidden = ~result.recorded
    overlays = {name: np.where(hidden[:, None], result.mv[name], np.nan) for name in names}
    title, caption = (
        f"record {record.record_id}: from {', '.join(visible)}",
        f"size of derived leads: {size}",
    )
    band = None
    if first in result.deviation:
        band = np.where(result.derived[:, None], REACH * result.deviation[first], np.nan)
        caption += f"; {band_words(result, first)}"
    tracing = Tracing(result.truth, result.rate, overlays, hidden, band=band)
    print(f"figure: {write_ecg(out / f'{safe}-derived.svg', tracing, title, caption)}")
    if args.write_wfdb:
        write_wfdb(
            out / f"{safe}_derived",
            result,
            first,
            [f"source: {record.record_id}", *facts, *notes],
        )
        print(f"WFDB record: {out / f'{safe}_derived'}.hea")
    return 0
