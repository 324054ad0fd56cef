"""The report of one record: leads on ECG paper, derived ones in colour, intervals, loops, quality,
neighbours.

Ten seconds of the record are shown, measured and embedded. What is measured (intervals, axes,
loops) comes from the visible leads alone; derived leads are drawn, never measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.ecg import ecg_paper, morphology, quality, signal
from data_prep.ecg.delineate import delineate
from data_prep.ecg.geometry import describe_view, lead_matrix
from data_prep.ecg.leads import LEADS, canonical, parse_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import Record
from data_prep.formats.any_file import read_any
from lvcg_jax.config.folders import trained_folders
from lvcg_jax.embed.answers import Embedding, prediction_of
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import Table, load_table
from lvcg_jax.reconstruct.lead_sizes import LeadSizes, sizes_of_facts
from lvcg_jax.reconstruct.methods import make_methods
from lvcg_jax.reconstruct.one_record import COMPARED, Derived, derive, hidden_scores, learn
from lvcg_jax.report import vcg
from lvcg_jax.report.heart_vector import BAND, View, make_loop, number_lines, open_view, summary
from lvcg_jax.report.neighbours import check_reference, neighbour_section
from lvcg_jax.report.page import NOT_FOR_DIAGNOSIS, Section, macros, parts, render
from lvcg_jax.runs.heads import Head

SECONDS = 10.0
GEOMETRY = "dower"  # of the loops, as in lvcg_jax.report.vcg
DRAWN_RATE = 250.0  # Hz: ten samples a millimetre of paper
DEFAULT = Preprocess()  # whose band the delineation was validated with
# of adults at rest: recommendations of AHA, ACCF and HRS for the interpretation of the ECG, 2009
USUAL = {
    "heart rate": "60 to 100",
    "PR": "120 to 200",
    "QRS": "up to 110",
    "QTc (Bazett)": "up to 450 (men), 460 (women)",
    "QTc (Fridericia)": "up to 450 (men), 460 (women)",
    "QRS axis": "-30° to 90°",
}
LIKELIEST = 3  # classes of a head that are shown in any case
TYPICAL_RECORDS = 2_000  # training records for the usual size of a lead


@dataclass(frozen=True)
class Options:
    """What the user gave."""

    record: str
    checkpoint: str | Path
    leads: str | None = None
    reference: Path | None = None
    data: Path | None = None
    rate: float | None = None
    unit: str | None = None
    lead_names: str | None = None
    start: float = 0.0
    command: str = ""
    names: Pseudonyms | None = None  # in the place of ids


@dataclass(frozen=True)
class Study:
    """Everything that is known of the ten seconds, in one place for the sections of the page."""

    record: Record  # cut to them
    seconds: float  # of the whole record
    whole: View  # all leads of the file
    view: View  # the visible leads
    loop: dict  # summary of the heart vector
    model: LVCG
    embedding: Embedding
    derived: Derived | None  # None: nothing to derive
    size_words: str
    notes: list[str]


def open_study(options: Options, reference: Table | None, model: LVCG | None = None) -> Study:
    """Reads the record, derives what is not visible, and embeds it; what is wrong with it is told
    before that work. Without a model, that of the options is loaded."""
    wanted = parse_leads(options.leads) if options.leads else None
    if options.start < 0:
        raise InputError(f"--start={options.start:g}: give a second of the record, 0 or later")
    record = read_any(options.record, options.rate, options.unit, options.lead_names)
    seconds = len(record.signal) / record.rate
    if seconds <= options.start:
        raise InputError(
            f"--start={options.start:g}: record {record.record_id} has {seconds:.1f} s only"
        )
    how = (options.rate, options.unit, options.lead_names, options.start, SECONDS)
    view = open_view(options.record, options.leads, *how)
    whole = open_view(options.record, None, *how) if wanted else view
    span = slice(round(options.start * record.rate), round((options.start + SECONDS) * record.rate))
    record = replace(record, signal=record.signal[span])
    if options.names is not None:  # what else the file says is left out with the name
        own = options.names.of(record.record_id)
        record = replace(record, record_id=own, path="", info={}, notes=[])
        view, whole = (replace(one, record_id=own, notes=[]) for one in (view, whole))
    visible = [lead for lead, there in zip(LEADS, view.visible, strict=True) if there]

    matrix = lead_matrix(GEOMETRY)
    loop = summary(view, make_loop(view, matrix), matrix, GEOMETRY)

    model = model or LVCG.load(options.checkpoint)
    if reference is not None:
        made_with = (model.checkpoint, model.preprocess.hash())
        check_reference(reference, *made_with, str(options.reference))
    names = [canonical(name) for name in record.leads]
    columns = [names.index(lead) for lead in visible]
    embedding = model.embed(record.signal[:, columns], record.rate, visible)
    notes = []
    if options.start:
        last = min(options.start + SECONDS, seconds)
        notes.append(f"Seconds {options.start:g} to {last:g} of {seconds:.0f}.")
    elif seconds > SECONDS + 0.5:
        notes.append(f"The first {SECONDS:g} of {seconds:.0f} s.")
    derived, words = None, ""
    if len(visible) < len(LEADS):
        methods = make_methods(("lvcg",), model, model.model.geometry.eps, model.max_beats, 1)
        typical, words = _sizes(options, model, methods)
        derived, more = derive(record, visible, model.preprocess, methods, typical)
        notes += [
            *more,
            *describe_view(
                model.directions, derived.recorded | derived.computed, model.model.geometry.eps
            ),
        ]
    return Study(record, seconds, whole, view, loop, model, embedding, derived, words, notes)


def _sizes(options: Options, model: LVCG, methods: list) -> tuple[LeadSizes | None, str]:
    """Usual sizes of unseen leads, from training records where these are at hand, and words on
    where from."""
    data = str(options.data or trained_folders(model.config, Path(options.checkpoint))[0].path)
    packaged = None if options.data else sizes_of_facts(model.facts)
    try:
        return learn(methods, "lvcg", data, model.preprocess, TYPICAL_RECORDS, packaged)
    except InputError:
        if options.data:
            raise
        words = "not known from this record (give --data=SHARDS); drawn at the median size of the"
        return None, f"{words} visible leads"


def tracing_of(study: Study) -> ecg_paper.Tracing:
    """Recorded leads, derived ones, beats and waves, at one rate for drawing."""
    view, rate = study.whole, study.whole.rate
    recorded = np.where(view.visible[:, None], signal.resample(view.mv, rate, DRAWN_RATE), np.nan)
    over, hidden = None, view.visible & ~study.view.visible
    if study.derived is not None:
        mv, unseen = study.derived.mv["lvcg"], ~study.view.visible
        over = np.full(recorded.shape, np.nan)
        for lead in np.flatnonzero(unseen):
            fine = signal.resample(
                np.nan_to_num(mv[lead : lead + 1]), study.derived.rate, DRAWN_RATE
            )[0]
            known = np.interp(
                np.arange(len(fine)) * study.derived.rate / DRAWN_RATE,
                np.arange(mv.shape[1]),
                mv[lead],
            )
            size = min(len(fine), over.shape[1])
            over[lead, :size] = np.where(np.isfinite(known), fine, np.nan)[:size]
    peaks, waves = beats_of(study.view)
    scale = DRAWN_RATE / rate
    bands = [(kind, first * scale, last * scale) for kind, first, last in waves]
    exact = None if study.derived is None else study.derived.computed
    derived = {} if over is None else {"derived by the model": over}
    return ecg_paper.Tracing(
        recorded, DRAWN_RATE, derived, hidden, exact, [peak * scale for peak in peaks], bands
    )


def measured(view: View) -> np.ndarray:
    """The visible leads [12,T] in the band that the delineation was validated with."""
    return signal.bandpass(
        view.mv, view.rate, DEFAULT.band_low, DEFAULT.band_high, DEFAULT.filter_order
    )


def beats_of(view: View) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """R peaks [n] in samples, and the waves (kind, first sample, last sample) that were found."""
    found = morphology.measure(measured(view), view.rate, view.visible, view.peaks).r_peak
    waves = delineate(measured(view), view.rate, view.visible, found)
    spans = {
        "p": (waves.p_onset, waves.p_offset),
        "qrs": (waves.qrs_onset, waves.qrs_offset),
        "t": (2 * waves.t_peak - waves.t_offset, waves.t_offset),
    }
    return found, [
        (kind, float(a), float(b))
        for kind, (first, last) in spans.items()
        for a, b in zip(first, last, strict=True)
        if np.isfinite(a + b)
    ]


def interval_facts(study: Study) -> list[tuple[str, ...]]:
    """The line that is printed at the top of an ECG, with what is usual."""
    found = morphology.record_intervals(
        measured(study.view), study.view.rate, study.view.visible, study.view.peaks
    )
    numbers = study.loop["numbers"]

    def say(value: float | None, unit: str) -> str:
        if value is None or not np.isfinite(value):
            return "not measurable"
        return f"{value:.0f}{unit}" if unit == "°" else f"{value:.0f}\u00a0{unit}"

    shown = [
        ("heart rate", say(found.heart_rate, "/ min")),
        ("PR", say(found.pr_ms, "ms")),
        ("QRS", say(found.qrs_ms, "ms")),
        ("QT", say(found.qt_ms, "ms")),
        ("QTc (Bazett)", say(found.qtc_bazett_ms, "ms")),
        ("QTc (Fridericia)", say(found.qtc_fridericia_ms, "ms")),
        ("QRS axis", say(numbers["qrs_axis_deg"], "°")),
        ("T axis", say(numbers["t_axis_deg"], "°")),
        ("QRS-T angle", say(numbers["qrs_t_angle_mean_deg"], "°")),
        ("beats", str(found.beats)),
    ]
    return [(*pair, USUAL[pair[0]]) if pair[0] in USUAL else pair for pair in shown]


def leads_section(study: Study, command: str) -> Markup:
    """The ECG, and how well derived leads agree with leads of the file that were hidden."""
    tracing, derived = tracing_of(study), study.derived
    names = np.array(LEADS)
    band = f"{BAND[0]:g}-{min(BAND[1], study.record.rate / 2):g} Hz"
    words = [f"Recorded leads {band}."]
    if derived is not None:
        steps = study.model.preprocess
        band = f"{steps.band_low:g}-{steps.band_high:g} Hz"
        if derived.computed.any():
            computed = ", ".join(names[derived.computed])
            words.append(f"Computed by Einthoven's law: {computed} ({band}).")
        if derived.derived.any():
            some, seen = ", ".join(names[derived.derived]), ", ".join(names[study.view.visible])
            by = study.model.checkpoint
            words.append(f"Derived: {some} from {seen} by {by} ({band}); size: {study.size_words}.")
    words.append(
        "Rhythm strip: T is marked as long before its peak as after it; triangles: R peaks;"
        " numbers: R-R in ms."
    )
    waves = [("var(--p)", "P"), ("var(--qrs)", "QRS"), ("var(--t)", "T")]
    drawings = ecg_paper.draw(
        tracing, f"Twelve leads of record {study.record.record_id} on ECG paper"
    )
    paper = parts.paper(drawings, [*ecg_paper.keys(tracing), *waves])
    text = parts.figure(paper, " ".join(words), command) + parts.notes(study.notes)
    rows = [] if derived is None else hidden_scores(derived, "lvcg")
    if rows:
        text += parts.heading("Derived leads against the hidden leads of the file")
        text += parts.table(COMPARED, rows)
    return text


def loop_section(loop: dict, command: str) -> Markup:
    """The loop to turn, its three planes, and its numbers."""
    lines = number_lines(loop["numbers"], timing=False)  # the rest is on top of the page
    view = macros("loop.html").beside_numbers(vcg.loop_view(loop), lines)
    source = vcg.source_words(loop)
    caption = (
        f"Heart vector, {source}; x to the patient's left, y to the feet, z to the back, in mV;"
        " frontal axes: 0° left, +90° feet."
    )
    text = parts.notes(loop["notes"]) + parts.figure(view, caption, command)
    caption = (
        f"The same loop in three planes, in mV, in the same colours; {source}. Dashed: the largest"
        " vector."
    )
    return text + parts.figure(parts.grid(vcg.planes(loop)), caption, command)


def quality_section(study: Study) -> Markup:
    """What was found wrong, and every lead's size and noise."""
    embedding, hidden = study.embedding, study.whole.visible & ~study.view.visible
    words = [*study.record.defects, *(word for cell in embedding.defects for word in cell)]
    words += quality.record_defects(study.record.signal, study.record.leads)
    # a lead of the file that was only hidden from the model is not absent
    asked = {f"absent:{lead}" for lead, is_hidden in zip(LEADS, hidden, strict=True) if is_hidden}
    found = [word for word in dict.fromkeys(words) if word not in asked]
    rows = [[word, quality.KINDS[quality.kind(word)]] for word in found]
    if rows:
        text = parts.table(["finding", "meaning"], rows)
    else:
        text = parts.paragraph("Nothing was found wrong.")
    text += parts.paragraph(
        f"From {', '.join(embedding.visible[0])}: {int(embedding.rank.min())} of"
        f" {study.model.directions.shape[1]} dimensions are seen; the lift amplifies by up to"
        f" {float(embedding.gain.max()):.1f}."
    )
    columns = ["lead", "state", "span, 1st to 99th percentile (mV)", "noise (µV)"]
    text += parts.table(columns, [_quality_row(study, i) for i in range(len(LEADS))])
    noise = "Noise: root mean square of what differs from the median beat, median over beats."
    return text + parts.paragraph(noise, "soft")


def _quality_row(study: Study, lead: int) -> list[str]:
    if not study.whole.visible[lead]:
        state = "absent" if study.derived is None else "derived"
        if study.derived is not None and study.derived.computed[lead]:
            state = "computed (Einthoven)"
        return [LEADS[lead], state, "-", "-"]
    span, noise = lead_quality(study.whole, lead)
    state = "visible" if study.view.visible[lead] else "hidden from the model"
    shown = "-" if np.isnan(noise) else f"{1000 * noise:.0f}"
    return [LEADS[lead], state, f"{span:.2f}", shown]


def lead_quality(view: View, lead: int) -> tuple[float, float]:
    """Span in mV and noise in mV of one lead."""
    x = view.mv[lead]
    span = float(np.diff(np.percentile(x, (1, 99)))[0])
    before, after = round(0.25 * view.rate), round(0.4 * view.rate)
    beats = np.array(
        [x[r - before : r + after] for r in view.peaks if r >= before and r + after <= len(x)]
    )
    if len(beats) < 3:
        return span, float("nan")
    beats = beats - beats.mean(1, keepdims=True)
    return span, float(np.median(np.sqrt(((beats - np.median(beats, axis=0)) ** 2).mean(1))))


def predictions_section(heads: Sequence[Head], embedding: Embedding) -> Markup:
    """What heads say of the record: of each the classes that it answers with yes, and the
    likeliest."""
    rows, notes = [], []
    for head in heads:
        found = prediction_of(head, embedding)
        if found.value is not None:
            low, high = found.interval
            rows.append([head.task, "", f"{found.value:.4g}", f"{low:.4g} to {high:.4g}", ""])
        ranked = sorted(found.probabilities, key=found.probabilities.get, reverse=True)
        for place, name in enumerate(ranked):
            if place < LIKELIEST or name in found.decisions:
                yes = "yes" if name in found.decisions else "no"
                chance = f"{found.probabilities[name]:.3f}"
                rows.append([head.task, name, chance, f"{found.thresholds[name]:.3f}", yes])
        if found.unlike:
            notes.append(f"This record is unlike those that head '{head.task}' learned from.")
        if found.warning:
            notes.append(f"{found.warning[0].upper()}{found.warning[1:]}.")
    columns = ("task", "class", "probability", "threshold", "answer")
    words = f"Classes that are answered with yes, and the {LIKELIEST} likeliest of each task."
    return parts.notes(notes) + parts.table(columns, rows) + parts.paragraph(words, "soft")


def record_page(options: Options, model: LVCG | None = None, heads: Sequence[Head] = ()) -> str:
    """The whole page; a model that is loaded already need not be loaded again, and its heads may
    answer."""
    reference = load_table(options.reference) if options.reference else None
    study = open_study(options, reference, model)
    command, record_id = options.command, study.record.record_id
    sections = [
        Section("leads", "Twelve leads", leads_section(study, command)),
        Section("loops", "Heart vector", loop_section(study.loop, command)),
        Section("quality", "Signal quality", quality_section(study)),
    ]
    if heads:
        said = predictions_section(heads, study.embedding)
        sections.insert(1, Section("predictions", "Predictions", said))
    if reference is not None:
        where = (reference, str(options.reference))
        own = Path(options.record).stem
        near = neighbour_section(*where, study.embedding.mean, own, command, options.names)
        sections.append(Section("neighbours", "Nearest neighbours", near))
    info = "".join(f"; {name}: {value}" for name, value in study.record.info.items())
    length = f"{study.seconds:.1f} s at {study.record.rate:g} Hz"
    leads = ", ".join(canonical(name) or name for name in study.record.leads)
    seen, steps = ", ".join(study.loop["leads"]), study.model.preprocess.hash()
    return render(
        "report.html",
        title=f"ECG record {record_id}",
        subtitle=f"{length}, leads {leads}{info}",
        numbers=interval_facts(study),
        remark=f"Medians over beats, from {seen}. Usual: of adults at rest (AHA/ACCF/HRS 2009)."
        f" {NOT_FOR_DIAGNOSIS}",
        sections=sections,
        origin=f"Model {study.model.checkpoint}, preprocessing {steps}.",
        command=command,
    )
