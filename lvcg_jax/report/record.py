"""The report of one record: leads on ECG paper, derived ones in colour, intervals, loops, quality,
neighbours.

Ten seconds of the record are shown, measured and embedded. What is measured (intervals, axes,
loops) comes from the visible leads alone; derived leads are drawn, never measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.ecg import ecg_paper, morphology, quality, signal
from data_prep.ecg.delineate import delineate
from data_prep.ecg.geometry import describe_view, lead_matrix
from data_prep.ecg.leads import LEADS, canonical, parse_leads
from data_prep.ecg.preprocess import Preprocess
from data_prep.ecg.record import Record
from data_prep.formats.any_file import read_any
from lvcg_jax.embed.lvcg import LVCG, Embedding
from lvcg_jax.embed.table import Table, load_table
from lvcg_jax.reconstruct.methods import make_methods
from lvcg_jax.reconstruct.one_record import Derived, compare, derive, learn, packaged_sizes
from lvcg_jax.report import embedding_map, neighbours, vcg, vcg_page
from lvcg_jax.report.page import (
    NOT_FOR_DIAGNOSIS,
    contents,
    document,
    facts,
    figure,
    grid,
    keys,
    markdown,
    note,
)
from lvcg_jax.report.page import section as page_section
from lvcg_jax.report.page import table as html_table

SECONDS = 10.0
GEOMETRY = "dower"  # of the loops, as in lvcg_jax.report.vcg
DRAWN_RATE = 250.0  # Hz: ten samples a millimetre of paper
DEFAULT = Preprocess()  # whose band the delineation was validated with
STYLE = """
.view canvas { touch-action: pan-y; }
@media print { #leads h2 { display: none; } #leads figure { margin: .2rem 0; break-inside: auto; }
  #leads figcaption { break-before: auto; } }
# a finger scrolls the page and turns the loop sideways; the first printed sheet holds the whole ECG
"""
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


@dataclass(frozen=True)
class Study:
    """Everything that is known of the ten seconds, in one place for the sections of the page."""

    record: Record  # cut to them
    seconds: float  # of the whole record
    whole: vcg.View  # all leads of the file
    view: vcg.View  # the visible leads
    loop: dict  # summary of lvcg_jax.report.vcg
    model: LVCG
    embedding: Embedding
    derived: Derived | None  # None: nothing to derive
    size_words: str
    notes: list[str]


def open_study(options: Options, reference: Table | None) -> Study:
    """Reads the record, derives what is not visible, and embeds it; what is wrong with it is told
    before that work."""
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
    view = vcg.open_view(options.record, options.leads, *how)
    whole = vcg.open_view(options.record, None, *how) if wanted else view
    span = slice(round(options.start * record.rate), round((options.start + SECONDS) * record.rate))
    record = replace(record, signal=record.signal[span])
    visible = [lead for lead, there in zip(LEADS, view.visible, strict=True) if there]

    matrix = lead_matrix(GEOMETRY)
    loop = vcg.summary(view, vcg.make_loop(view, matrix), matrix, GEOMETRY)

    model = LVCG.load(options.checkpoint)
    if reference is not None:
        neighbours.check_reference(
            reference, model.checkpoint, model.preprocess.hash(), str(options.reference)
        )
    names = [canonical(name) for name in record.leads]
    columns = [names.index(lead) for lead in visible]
    embedding = model.embed(record.signal[:, columns], record.rate, visible)
    notes = (
        [f"The first {SECONDS:g} of {seconds:.0f} s."]
        if not options.start and seconds > SECONDS + 0.5
        else []
    )
    if options.start:
        notes = [
            f"Seconds {options.start:g} to {min(options.start + SECONDS, seconds):g} of {seconds:.0f}."
        ]
    derived, words = None, ""
    if len(visible) < len(LEADS):
        methods = make_methods(("lvcg",), model, model.model.eps, model.max_beats, 1)
        typical, words = _sizes(options, model, methods)
        derived, more = derive(record, visible, model.preprocess, methods, typical)
        notes += [
            *more,
            *describe_view(model.directions, derived.recorded | derived.computed, model.model.eps),
        ]
    return Study(record, seconds, whole, view, loop, model, embedding, derived, words, notes)


def _sizes(options: Options, model: LVCG, methods: list) -> tuple[np.ndarray | None, str]:
    """Usual sizes of unseen leads [12], from training records where these are at hand, and words on
    where from."""
    data = str(options.data or model.config.data.dir or Path(options.checkpoint) / "data")
    packaged = None if options.data else packaged_sizes(model)
    try:
        return learn(methods, "lvcg", data, model.preprocess, TYPICAL_RECORDS, packaged)
    except InputError:
        if options.data:
            raise
        return (
            None,
            "not known from this record (give --data=SHARDS); drawn at the median size of the visible leads",
        )


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


def measured(view: vcg.View) -> np.ndarray:
    """The visible leads [12,T] in the band that the delineation was validated with."""
    return signal.bandpass(
        view.mv, view.rate, DEFAULT.band_low, DEFAULT.band_high, DEFAULT.filter_order
    )


def beats_of(view: vcg.View) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
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


def interval_facts(study: Study, loop: dict) -> list[tuple[str, str]]:
    """The line that is printed at the top of an ECG."""
    found = morphology.record_intervals(
        measured(study.view), study.view.rate, study.view.visible, study.view.peaks
    )
    numbers = loop["numbers"]

    def say(value: float | None, unit: str) -> str:
        if value is None or not np.isfinite(value):
            return "not measurable"
        return f"{value:.0f}{unit}" if unit == "°" else f"{value:.0f}\u00a0{unit}"

    return [
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


def leads_section(study: Study, command: str) -> str:
    """The ECG."""
    tracing = tracing_of(study)
    names = np.array(LEADS)
    seen = ", ".join(names[study.view.visible])
    parts = [f"Recorded leads {vcg.BAND[0]:g}-{min(vcg.BAND[1], study.record.rate / 2):g} Hz."]
    if study.derived is not None:
        p = study.model.preprocess
        band = f"{p.band_low:g}-{p.band_high:g} Hz"
        if study.derived.computed.any():
            parts.append(
                f"Computed by Einthoven's law: {', '.join(names[study.derived.computed])} ({band})."
            )
        if study.derived.derived.any():
            by = (
                f"{', '.join(names[study.derived.derived])} from {seen} by {study.model.checkpoint}"
            )
            parts.append(f"Derived: {by} ({band}); size: {study.size_words}.")
    parts.append(
        "Rhythm strip: T is marked as long before its peak as after it; triangles: R peaks; numbers: R-R in ms."
    )
    marked = [("var(--p)", "P"), ("var(--qrs)", "QRS"), ("var(--t)", "T")]
    words = f"Twelve leads of record {study.record.record_id} on ECG paper"
    text = figure(
        "".join(drawing.__html__() for drawing in ecg_paper.draw(tracing, words))
        + keys([*ecg_paper.keys(tracing), *marked]),
        " ".join(parts),
        command,
        "ecg",
    )
    text += "".join(map(note, study.notes))
    if study.derived is not None:
        table = compare(study.derived, "lvcg")
        if table:
            text += "<h3>Derived leads against the hidden leads of the file</h3>\n" + markdown(
                "\n".join(table[3:])
            )
    return text


def loop_section(study: Study, loop: dict, command: str) -> str:
    """The loop to turn, its three planes, and its numbers."""
    view = vcg_page.loop_view(loop)
    lines = [
        line
        for line in vcg.number_lines(loop["numbers"])
        if line[0] not in ("QRS window", "heart rate")
    ]  # on top
    numbers = f'<div class="numbers">\n{html_table(("", ""), lines)}</div>'
    where = "x to the patient's left, y to the feet, z to the back, in mV; frontal axes: 0° left, +90° feet."
    text = figure(
        f'<div class="loop">\n{view}\n{numbers}\n</div>',
        f"Heart vector, {vcg_page.source_words(loop)}; {where}",
        command,
    )
    caption = (
        f"The same loop in three planes, in mV, in the same colours; {vcg_page.source_words(loop)}."
        " Dashed: the largest vector."
    )
    return (
        "".join(map(note, loop["notes"])) + text + figure(grid(vcg.planes(loop)), caption, command)
    )


def quality_section(study: Study) -> str:
    """What was found wrong, and every lead's size and noise."""
    words = [
        *study.record.defects,
        *dict.fromkeys(word for cell in study.embedding.defects for word in cell),
    ]
    words += [
        word
        for word in quality.record_defects(study.record.signal, study.record.leads)
        if word not in words
    ]
    hidden = {
        lead
        for lead, here, shown_ in zip(LEADS, study.whole.visible, study.view.visible, strict=True)
        if here and not shown_
    }
    words = [
        word for word in words if not (word.startswith("absent:") and word.split(":")[1] in hidden)
    ]
    rows = [[word, quality.KINDS.get(quality.kind(word), "of the file")] for word in words]
    text = html_table(["finding", "meaning"], rows) if rows else "<p>Nothing was found wrong.</p>\n"
    e = study.embedding
    seen = f"{int(e.rank.min())} of 3 dimensions are seen; the lift amplifies by up to {float(e.gain.max()):.1f}."
    text += f"<p>From {escape(', '.join(e.visible[0]))}: {seen}</p>\n"
    rows = []
    for i, lead in enumerate(LEADS):
        if study.whole.visible[i]:
            span, noise = lead_quality(study.whole, i)
            state = "visible" if study.view.visible[i] else "hidden from the model"
            rows.append(
                [lead, state, f"{span:.2f}", "-" if np.isnan(noise) else f"{1000 * noise:.0f}"]
            )
        else:
            state = "derived" if study.derived is not None else "absent"
            if study.derived is not None and study.derived.computed[i]:
                state = "computed (Einthoven)"
            rows.append([lead, state, "-", "-"])
    text += html_table(["lead", "state", "span, 1st to 99th percentile (mV)", "noise (µV)"], rows)
    noise = "Noise: root mean square of what differs from the median beat, median over beats."
    return f'{text}<p class="soft">{noise}</p>\n'


def lead_quality(view: vcg.View, lead: int) -> tuple[float, float]:
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


def neighbour_section(study: Study, table: Table, path: Path, command: str) -> str:
    """The nearest records of a reference set, their labels, and where this record lies among
    them."""
    found = neighbours.nearest(table, study.embedding.mean, study.record.record_id)
    if not len(found.rows):
        raise InputError(
            f"{path} holds no other record than {study.record.record_id}: give a larger --reference"
        )
    rows = []
    for i, value in zip(found.rows, found.similarity, strict=True):
        labels = "; ".join(
            f"{task}: {', '.join(names) or 'none'}"
            for task, names in sorted(table.labels[i].items())
        )
        rows.append(
            [
                str(table.record_id[i]),
                f"{value:.2f}",
                labels or "not labelled",
                str(table.split[i]) or "-",
            ]
        )
    text = html_table(["record", "similarity", "labels", "split"], rows)
    shares = neighbours.label_shares(table, found)
    if shares:
        lines = [
            [task, name, f"{count} of {near}", f"{100 * share:.1f}%"]
            for task, name, count, near, share in shares
        ]
        text += "<h3>Labels among the neighbours</h3>\n"
        text += html_table(
            ["task", "class", "neighbours", "share in the whole reference set"], lines
        )
    own = f" {found.left_out} row(s) of the record itself were left out." if found.left_out else ""
    text += (
        '<p class="soft">Similarity: cosine of the embeddings after scaling by the reference set, 1 is the same. The'
        f" labels are those of other people's records, not a finding in this one.{own}</p>\n"
    )
    return text + _map(study, table, found, path, command)


def _map(study: Study, table: Table, found: neighbours.Neighbours, path: Path, command: str) -> str:
    """PCA of the reference set with the record and its neighbours ringed."""
    rows = np.union1d(
        embedding_map.choose_rows(table, embedding_map.MOST_ROWS - len(found.rows)), found.rows
    )
    drawn = embedding_map.pca_map(
        table.embedding[rows], "PCA of the reference set", study.embedding.mean[None]
    )
    if drawn is None:
        return ""
    tasks = [task | {"rows": task["rows"] + ";-"} for task in embedding_map.label_rows(table, rows)]
    names = [*embedding_map.map_names(table, rows), f"this record ({study.record.record_id})"]
    marks = [(int(np.searchsorted(rows, i)), "") for i in found.rows] + [(len(rows), "this record")]
    caption = f"{len(rows):,} records of {path.name}; rings: the {len(found.rows)} nearest, and this record."
    return embedding_map.maps_figure(drawn[:1], names, tasks, caption, command, marks)


def record_page(options: Options) -> str:
    """The whole page."""
    reference = load_table(options.reference) if options.reference else None
    study = open_study(options, reference)
    loop = study.loop
    parts = [
        ("leads", "Twelve leads", leads_section(study, options.command)),
        ("loops", "Heart vector", loop_section(study, loop, options.command)),
        ("quality", "Signal quality", quality_section(study)),
    ]
    styles = [vcg_page.STYLE, STYLE]
    scripts = [vcg_page.SCRIPT]
    if reference is not None:
        text = neighbour_section(study, reference, options.reference, options.command)
        parts.append(("neighbours", "Nearest neighbours", text))
        styles.append(embedding_map.STYLE)
        scripts += [embedding_map.SCRIPT] * ('id="map-data"' in text)
    info = "; ".join(f"{name}: {value}" for name, value in study.record.info.items())
    length = f"{study.seconds:.1f} s at {study.record.rate:g} Hz"
    source = (
        f"{length}, leads {', '.join(_listed(study.record.leads))}{f'; {info}' if info else ''}"
    )
    body = facts(interval_facts(study, loop))
    body += f'<p class="soft">Medians over beats, from {", ".join(loop["leads"])}. {NOT_FOR_DIAGNOSIS}</p>\n'
    body += contents([(name, title) for name, title, _ in parts]) + "".join(
        page_section(*part) for part in parts
    )
    body += f"<footer><p>{NOT_FOR_DIAGNOSIS} Model {escape(study.model.checkpoint)}, preprocessing"
    body += f" {study.model.preprocess.hash()}.</p><p><code>{escape(options.command)}</code></p></footer>"
    return document(f"ECG record {study.record.record_id}", body, styles, scripts, source)


def _listed(leads: Sequence[str]) -> list[str]:
    return [canonical(name) or name for name in leads]
