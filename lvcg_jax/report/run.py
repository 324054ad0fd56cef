"""The report of a training run: curves, scores, derived leads on ECG paper, maps, configuration,
model card.

A part whose files are not there is left out. Everything is read from the run directory and from the
files of other commands; only derived leads (and nothing else) run the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from data_prep.base.errors import InputError
from data_prep.base.files import require_local
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg import ecg_paper, loops
from data_prep.ecg.geometry import dipole_matrix, subset_facts
from data_prep.ecg.leads import LEADS, mask_leads
from lvcg_jax.config.fields import FREE_FIELDS, flatten
from lvcg_jax.config.files import PAPER_CONFIG, load_config, read_config_file
from lvcg_jax.config.folders import read_folders, times, trained_folders
from lvcg_jax.config.inputs import make_preprocess, make_subsets
from lvcg_jax.data.entries import Entry
from lvcg_jax.embed.table import load_table
from lvcg_jax.export import card
from lvcg_jax.probe.figures import CURVES, LEAST_R2, training_charts
from lvcg_jax.reconstruct.scores import record_values, score_leads
from lvcg_jax.reconstruct.views import Source, derive_rows, fixed_view
from lvcg_jax.report import embedding_map
from lvcg_jax.report.page import Section, join, markdown, parts, render
from lvcg_jax.report.scores import READERS
from lvcg_jax.runs.history import read_versions, trained_sets
from lvcg_jax.runs.metrics_log import curves_of, read_metrics
from lvcg_jax.text.pages import shown

VISIBLE = ("II", "V2", "V5")  # leads that the overlays start from
LONG_TSNE = 3_000  # rows from which it takes long enough to say so
# what lies in a run directory or in a folder of it, and is found without a flag
USUAL_NAMES = {
    "embeddings": ("embeddings.npz", "embeddings.parquet", "trained-*.npz"),
    "probe": ("probe.json", "results-*.json"),
    "reconstruction": ("metrics.json",),
    "robustness": ("robustness.json",),
    "geometry": ("geometry.md",),
}


@dataclass(frozen=True)
class Options:
    """What the user gave; None: look in the run directory."""

    run: Path
    inputs: dict[str, Path | None]  # by the names of USUAL_NAMES
    data: Path | None = None
    records: int = 3
    map_rows: int = embedding_map.MOST_ROWS
    tsne: bool = True
    command: str = ""
    names: Pseudonyms | None = None  # in the place of ids


def find_input(run: Path, name: str) -> Path | None:
    """The newest file of a usual name in the run directory or one folder below."""
    for pattern in USUAL_NAMES[name]:
        found = [*run.glob(pattern), *run.glob(f"*/{pattern}")]
        if found:
            return max(found, key=lambda path: (path.stat().st_mtime, path.name))
    return None


def run_page(options: Options, say: Callable[[str], None]) -> str:
    """The whole page; `say` hears which parts were left out and why."""
    run = options.run
    require_local(run)
    if not run.is_dir():
        raise InputError(f"no run directory {run}: give the --workdir of a training run")
    config = load_config(run / "config.json")
    rows, sets = read_metrics(run), _data_sets(options, config)
    sections: list[Section] = []

    def add(name: str, title: str, make: Callable[[], Markup], given: bool = False) -> None:
        """A part that was asked for by a flag must work; what was only found may be left out."""
        try:
            content = make()
        except InputError as error:
            if given:
                raise
            say(f"left out: {title.lower()} ({error})")
            return
        if content:
            sections.append(Section(name, title, content))

    add("training", "Training", lambda: training_section(rows, config, run))
    for name, (title, make) in READERS.items():
        given = options.inputs.get(name)
        if path := given or find_input(run, name):
            add(name, title, lambda make=make, path=path: make(path), given is not None)
    ours = "peer" not in config  # another method derives no leads and has no geometry
    if sets and options.records and ours:
        title, given = "Derived leads on ECG paper", options.data is not None
        add("overlays", title, lambda: overlay_section(options, config), given)
    given = options.inputs.get("embeddings")
    if path := given or find_input(run, "embeddings"):
        title = "Maps of the embedding"
        add("maps", title, lambda: map_section(path, options, say), given is not None)
    if ours:
        add("directions", "Lead directions", lambda: directions_section(config, options))
    add("configuration", "Configuration", lambda: config_section(config, run))
    if ours:
        add("card", "Model card", lambda: card_section(config, run))

    preprocess = make_preprocess(config)
    return render(
        "report.html",
        title=f"Training run {run.resolve().name}",
        subtitle="ECG representations learned in the latent vectorcardiogram space (LVCG)",
        numbers=_headline(rows, config, sets, preprocess.hash()),
        remark="",
        sections=sections,
        origin=f"Preprocessing {preprocess.hash()}.",
        command=options.command,
    )


def _data_sets(options: Options, config) -> list[tuple[dict, float]]:
    """dataset.json and weight of the data set that was given, or of those of the run if they are
    still there."""
    if options.data:
        return [(read_metadata(options.data), 1.0)]
    try:
        return trained_sets(config, options.run)
    except InputError:
        return []


def data_of(options: Options, config) -> Path:
    """The data set that was given, or the run's first, which is the one it was validated on."""
    return options.data or trained_folders(config, options.run)[0].path


def _headline(
    rows: list[dict], config, sets: list[tuple[dict, float]], preprocess_hash: str
) -> list[tuple[str, str]]:
    last = max((row["step"] for row in rows), default=0)
    found = [("steps", f"{last:,}\u00a0of {config.train.steps:,}")]
    shown = ("loss", "ecg_r2", "vcg_r2")
    validation = [
        row
        for row in rows
        if row["kind"] == "validation" and all(type(row.get(name)) is float for name in shown)
    ]
    if validation:
        lowest = min(validation, key=lambda row: row["loss"])
        loss, step = lowest["loss"], lowest["step"]
        found.append(("lowest validation loss", f"{loss:.4g}\u00a0at step {step:,}"))
        for name, words in (("ecg_r2", "hidden leads"), ("vcg_r2", "the heart vector")):
            if name in lowest:
                found.append((f"R2 of {words}", f"{lowest[name]:.3f}"))
    speed = [row["records_per_second"] for row in rows if "records_per_second" in row]
    if speed:
        found.append(("throughput (median)", f"{np.median(speed):.0f}\u00a0records / s"))
    for metadata, weight in sets:
        patients = metadata["splits"].get("train", {}).get("patients", 0)
        corpus = f"{metadata['corpus']}\u00a0{patients:,} patients"
        found.append(("trained on", corpus + times(weight)))
    return [*found, ("preprocessing", preprocess_hash)]


def training_section(rows: list[dict], config, run: Path) -> Markup:
    """A chart for every logged number: each logged step, its running median, and validation."""
    curves = curves_of(rows)
    names = [name for name in CURVES if name in curves]
    names += [name for name in curves if name not in CURVES]
    ours = "peer" not in config
    unit = f"{config.loss.reduction} over elements" if ours else "loss"
    charts = training_charts(curves, names, unit)
    if not charts:
        return Markup()
    terms = (
        f", each a {config.loss.reduction} over its elements in normalised units" if ours else ""
    )
    caption = (
        "Thin: each logged step; thick: running median; marks: validation. Loss terms are means"
        f" over records{terms}; R2 under {LEAST_R2:g} is not drawn."
    )
    command = f"lvcg train --config=CONFIG --workdir={shown(run)}"
    return parts.figure(parts.grid(charts), caption, command)


def overlay_section(options: Options, config) -> Markup:
    """A few validation records: what was recorded, and the leads that the model derives from three
    of them."""
    from lvcg_jax.embed.lvcg import LVCG
    from lvcg_jax.reconstruct.methods import make_methods

    model, data = LVCG.load(options.run), data_of(options, config)
    splits = read_metadata(data)["splits"]
    split = "validation" if "validation" in splits else next(iter(splits))
    shards = ShardSet(data, split)
    shards.require_preprocess(model.preprocess)
    entries = spread_entries(shards, options.records)
    view = fixed_view(entries, VISIBLE, model.directions, model.model.geometry.eps)
    size = (model.max_beats * len(entries), len(entries))
    source = Source(make_methods(("lvcg",), model, model.model.geometry.eps, *size))
    steps = model.preprocess
    drawn = []
    for row, truth, derived in derive_rows([source], view.rows):
        hidden, present = mask_leads(row.hidden), mask_leads(row.entry.lead_mask)
        mv = np.where(present[:, None], truth, np.nan)
        over = np.where(hidden[:, None], derived["lvcg"], np.nan)
        tracing = ecg_paper.Tracing(mv, steps.rate, {"derived by the model": over}, hidden)
        name, seen = row.entry.record_id, ", ".join(np.array(LEADS)[mask_leads(row.visible)])
        if options.names is not None:
            name = options.names.of(name)
        if split == "train":  # no page names a training record
            name = f"number {row.entry.index}"
        scores = score_leads(truth, derived["lvcg"], hidden)
        r2 = record_values({part: values[None] for part, values in scores.items()})["r2_mv"][0]
        caption = (
            f"Record {name} ({split}), leads derived from {seen}; R2 of the hidden leads in mV"
            f" {r2:.2f}. {steps.band_low:g}-{steps.band_high:g} Hz at {steps.rate:g} Hz; each"
            " derived lead at the true lead's scale."
        )
        words = f"Twelve leads of record {name}, derived ones over them"
        paper = parts.paper(ecg_paper.draw(tracing, words), ecg_paper.keys(tracing))
        drawn.append(parts.figure(paper, caption, options.command))
    return join(drawn) + parts.notes(view.notes)


def spread_entries(shards: ShardSet, count: int) -> list[Entry]:
    """A few records from all over a split, those with most leads of four times as many."""
    numbers = np.unique(np.linspace(0, len(shards) - 1, 4 * count).round().astype(int))
    names = ("record_id", "window", "patient_id", "uid", "lead_mask")
    found = zip(numbers.tolist(), shards.read(numbers.tolist()), strict=True)
    entries = [Entry(shards, i, *(example[name] for name in names)) for i, example in found]
    return sorted(entries, key=lambda entry: -int(mask_leads(entry.lead_mask).sum()))[:count]


def map_section(path: Path, options: Options, say: Callable[[str], None]) -> Markup:
    """PCA and t-SNE of an embeddings file."""
    table = load_table(path)
    rows = embedding_map.choose_rows(table, options.map_rows)
    if options.tsne and len(rows) > LONG_TSNE:
        say(f"t-SNE of {len(rows):,} rows may take a minute or two; --tsne=no leaves it out")
    maps = embedding_map.make_maps(table.embedding[rows], options.tsne)
    if not maps:
        raise InputError(f"{path}: {len(rows)} rows are too few or too alike for a map")
    count, whole = len(rows), len(table.record_id)
    some = "" if count == whole else f" (drawn from {whole:,})"
    caption = (
        f"{count:,} rows{some} of {table.metadata.get('checkpoint', 'an unnamed model')}, every"
        " feature scaled to unit variance. A record with several classes has the colour of the"
        " first."
    )
    if len(maps) > 1:
        caption += " In t-SNE only neighbourhoods mean something, not distances or sizes of groups."
    command = f"lvcg embed --checkpoint={shown(options.run)} --data=SHARDS --out={path.name}"
    names = embedding_map.map_names(table, rows, options.names)
    tasks = embedding_map.label_rows(table, rows)
    return embedding_map.maps_figure(maps, names, tasks, caption, command)


def directions_section(config, options: Options) -> Markup:
    """Where each lead looks from, and how the training views condition the lift."""
    geometry = config.geometry
    matrix, masks = dipole_matrix(geometry.matrix), make_subsets(config)
    gains = subset_facts(matrix, mask_leads(masks), geometry.eps)["gain"]
    name = geometry.matrix if isinstance(geometry.matrix, str) else "the run's own"
    caption = (
        f"Lead directions of the geometry ({name}"
        f"{', learnable: as it started' if geometry.learnable else ''})."
        f" Training draws {geometry.num_visible} visible leads from {len(masks)} subsets; their"
        f" lift amplifies by {gains.min():.1f} to {gains.max():.1f} (median"
        f" {np.median(gains):.1f}, eps {geometry.eps:g})."
    )
    return parts.figure(parts.grid(loops.directions(matrix)), caption, options.command)


def config_section(config, run: Path) -> Markup:
    """What differs from the paper first, then every field, then versions."""
    paper, own = flatten(read_config_file(PAPER_CONFIG)), flatten(config)
    changed = [
        [name, str(paper.get(name, "absent")), str(own.get(name, "absent"))]
        for name in sorted(paper.keys() | own.keys())
        if paper.get(name) != own.get(name) and name not in FREE_FIELDS
    ]
    text = parts.heading("What differs from the paper's table")
    if changed:
        text += parts.table(["field", "paper", "this run"], changed)
    else:
        text += parts.paragraph("Nothing.")
    folders = read_folders(config.data.dir)
    own["data.dir"] = ", ".join(shown(each.path) + times(each.weight) for each in folders)
    fields = [[name, str(value)] for name, value in own.items()]
    text += parts.folded("Every field", parts.table(["field", "value"], fields))
    versions = read_versions(run)
    if versions:
        rows = [[name, str(value)] for name, value in versions.items()]
        text += parts.heading("Versions") + parts.table((), rows)
    return text


def card_section(config, run: Path) -> Markup:
    """Data, preprocessing, training, use, limits and licence, in the words of the model card of
    lvcg_jax.export."""
    preprocess = make_preprocess(config)
    held = {
        "preprocess": preprocess.to_dict(),
        "preprocess_hash": preprocess.hash(),
        "checkpoint": run.resolve().name,
    }
    chapters = {
        "Data": card.data_words(config, run),
        "Preprocessing": card.preprocessing_words(held),
        "Training": card.training_words(held, config, run),
        "Intended use": card.INTENDED_USE,
        "Limits": card.LIMITS.format(max_beats=preprocess.max_beats),
        "Licence": card.LICENCE,
    }
    return join(parts.heading(title) + markdown(text) for title, text in chapters.items())
