"""Hidden leads of a data set derived by every method: fit, score by view, tables and pictures."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.lottery import fold_of
from data_prep.base.progress import progress_bar
from data_prep.base.words import list_some
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.ecg_paper import Tracing, write_ecg
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS, mask_leads, parse_leads
from data_prep.ecg.preprocess import Preprocess
from lvcg_jax.config.folders import read_folders
from lvcg_jax.data.entries import Entry, list_entries
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.reconstruct import gaussian_beat
from lvcg_jax.reconstruct.bands import REACH
from lvcg_jax.reconstruct.beats import BeatErrors, beat_error_table
from lvcg_jax.reconstruct.coverage import BandCoverage, coverage_tables
from lvcg_jax.reconstruct.figures import draw_lead_errors
from lvcg_jax.reconstruct.learned.trained import TrainedLeads
from lvcg_jax.reconstruct.methods import (
    NetworkLeads,
    choose_eps,
    choose_names,
    load_learned,
    load_network,
    make_methods,
)
from lvcg_jax.reconstruct.scores import lead_table, overall_table, record_values, summarise
from lvcg_jax.reconstruct.views import (
    Source,
    View,
    Windows,
    calibrated,
    check_visible,
    derive_bands,
    derive_rows,
    drawn_view,
    fixed_view,
    score_rows,
)
from lvcg_jax.text.documents import to_json
from lvcg_jax.text.pages import put_on_page

FOLDS = 5  # of patients, when all splits are evaluated


def fit_all(sources: Sequence[Source], windows: Windows) -> None:
    """Fits every method that has something to learn."""
    for source in sources:
        for method in source.methods:
            method.fit(windows)


def fit_without(sources: Sequence[Source], train: Sequence[Entry], fold: int) -> None:
    """Fits on all patients that are not of this fold."""
    fit_all(
        sources, Windows([entry for entry in train if fold_of(entry.patient_id, FOLDS) != fold])
    )


def evaluate(
    sources: Sequence[Source],
    view: View,
    train: Sequence[Entry] | None,
    done: Callable[[], object],
    beats: BeatErrors,
    bands: BandCoverage,
) -> dict[str, dict[str, np.ndarray]]:
    """Scores of the view's rows; with `train`, what is fitted is fitted on those of other folds
    than the row's."""
    if train is None:
        bands.measure(sources, view.rows)
        return score_rows(sources, view.rows, done, beats.add)
    folds = np.array([fold_of(row.entry.patient_id, FOLDS) for row in view.rows])
    scores: dict[str, dict[str, np.ndarray]] = {}
    for fold in np.unique(folds):
        fit_without(sources, train, fold)
        chosen = np.flatnonzero(folds == fold)
        bands.measure(sources, [view.rows[i] for i in chosen])
        for name, parts in score_rows(
            sources, [view.rows[i] for i in chosen], done, beats.add
        ).items():
            for part, values in parts.items():
                whole = scores.setdefault(name, {}).setdefault(
                    part, np.empty((len(folds), len(LEADS)))
                )
                whole[chosen] = values
    return scores


def report(
    view: View,
    scores: dict,
    units: dict[str, str],
    beats: BeatErrors,
    bands: BandCoverage,
    resamples: int,
) -> dict:
    """The results of one view as plain data; the first method is what the others are compared
    with."""
    first = next(iter(scores))
    patients = [row.entry.patient_id for row in view.rows]
    methods = summarise(scores, patients, resamples, first)
    for name, found in beats.summary(resamples).items() if beats.patients else ():
        methods[name]["beats"] = found
    for name, found in bands.summary(resamples).items():
        methods[name]["bands"] = found
    return {
        "view": view.title,
        "records": len({row.entry.key for row in view.rows}),
        "rows": len(view.rows),
        "patients": len(set(patients)),
        "first": first,
        "beat_rows": len(beats.patients),
        "methods": {name: {"unit": units[name]} | found for name, found in methods.items()},
        "notes": view.notes,
        "failures": view.failures,
    }


def to_text(results: Sequence[dict], notes: Sequence[str]) -> str:
    """Markdown of all views."""
    lines = [
        "Hidden leads, 95% bootstrap intervals over patients. MSE, MAE and R2 in standard"
        " deviations of the true lead"
        " (mean over hidden leads, then over records; median: over patients). PSNR against the span"
        " of all leads of the record, without limb leads that are computed.",
        "",
    ]
    for result in results:
        lines += [
            f"**{result['view']}** ({result['records']} records, {result['patients']} patients)",
            "",
        ]
        lines += overall_table(result["methods"], result["first"])
        lines += ["MSE by hidden lead, mean over records:", "", *lead_table(result["methods"])]
        if result["beat_rows"]:
            lines += [
                f"Mean absolute error of each beat's measurements, {result['beat_rows']} rows:",
                "",
            ]
            lines += beat_error_table(
                {name: found["beats"] for name, found in result["methods"].items()}
            )
        lines += coverage_tables(result["methods"])
        lines += [f"- {note}" for note in result["notes"]]
        if result["failures"]:
            names = list_some(f"{f['record_id']} ({f['reason']})" for f in result["failures"])
            lines.append(f"- {len(result['failures'])} records left out: {names}")
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def draw_examples(
    out: Path, view: View, scores: dict, sources: Sequence[Source], train: Sequence[Entry] | None
) -> list[Path]:
    """The best, the median and the worst row by R2 of the first method, on ECG paper: hidden leads
    in grey, derived ones in colour over them, with their bands if the method knows them."""
    first = next(iter(scores))
    r2 = record_values(scores[first])["r2"]
    order = np.argsort(-r2, kind="stable")
    places = dict.fromkeys((int(order[0]), int(order[len(order) // 2]), int(order[-1])))
    paths = []
    for word, place in zip(("best", "median", "worst"), places, strict=False):
        row = view.rows[place]
        if train is not None:
            fit_without(sources, train, fold_of(row.entry.patient_id, FOLDS))
        ((_, truth, derived),) = derive_rows(sources, [row])
        ((_, _, bars),) = derive_bands(sources, [row])
        present, hidden = mask_leads(row.entry.lead_mask), mask_leads(row.hidden)
        shown = ", ".join(np.array(LEADS)[mask_leads(row.visible)])
        over = {first: np.where(hidden[:, None], derived[first], np.nan)}
        mv = np.where(present[:, None], truth, np.nan)
        band = REACH * bars[first][1] if first in bars else None
        tracing = Tracing(mv, row.entry.shards.preprocess.rate, over, hidden, band=band)
        title = f"record {row.entry.record_id}: from {shown}"
        caption = (
            f"{word} of {len(order)}: R2 {r2[place]:.2f};"
            " each derived lead at the true lead's scale"
        )
        paths.append(write_ecg(out / f"{view.name}-{word}.svg", tracing, title, caption))
    return paths


def other_run(text: str, splits: Sequence[str], entries: Sequence[Entry]) -> tuple[Source, str]:
    """--also=RUN:SHARDS as a source that reads its own shards, and a note on it."""
    run, _, data = text.rpartition(":")
    model = LVCG.load(run)
    sets = open_splits(data, splits, model)
    if model.preprocess.rate != entries[0].shards.preprocess.rate:
        raise InputError(
            f"--also={text}: its shards have {model.preprocess.rate:g} Hz, those of --data"
            " another rate"
        )
    name = f"lvcg ({Path(run).name})"
    matrix = model.model.geometry.matrix
    geometry = matrix if isinstance(matrix, str) else "its own"
    sizes = (
        "; one scale for all leads, so it predicts their sizes too"
        if model.preprocess.normalise == "record"
        else ""
    )
    kind = (
        f"normalise='{model.preprocess.normalise}', {geometry} geometry, on its own shards{sizes}"
    )
    note = f"{name}: {model.checkpoint}, {kind}."
    return Source(
        [NetworkLeads(model, {name: "both"})], {e.key: e for e in list_entries(sets)}
    ), note


def drop_absent(view: View, sources: Sequence[Source]) -> None:
    """Leaves out rows that a source with its own shards cannot see, so that all methods have the
    same rows."""
    for source in sources:
        if source.entries is None:
            continue
        there = {key: entry.lead_mask for key, entry in source.entries.items()}
        lost = [row for row in view.rows if not there.get(row.entry.key, 0) & row.visible]
        view.failures += [row.failure("it is not in the shards of --also") for row in lost]
        view.rows = [row for row in view.rows if there.get(row.entry.key, 0) & row.visible]
    if not view.rows:
        raise InputError(
            "no record of --data is in the shards of --also: were both built from the same corpus?"
        )


def open_splits(data: str | Path, splits: Sequence[str], model: LVCG | None) -> list[ShardSet]:
    """Splits of a data set, which must be prepared as the model was."""
    sets = [ShardSet(data, split) for split in splits]
    for shards in sets if model else ():
        shards.require_preprocess(model.preprocess)
    return sets


def check_alike(fit: ShardSet, data: ShardSet) -> None:
    """What is fitted on one set holds for another only if both are filtered and normalised
    alike."""
    for name in ("rate", "band_low", "band_high", "filter_order", "normalise"):
        one, two = getattr(fit.preprocess, name), getattr(data.preprocess, name)
        if one != two:
            raise InputError(
                f"{fit.directory} has {name}={one}, but {data.directory} {two}: build both alike"
            )


def was_trained_on(model: LVCG, data: str) -> bool:
    """Whether these shards are those of the model's training, or of a corpus that packaged weights
    were trained on."""
    if model.facts:
        return read_metadata(data)["corpus"] in model.facts["corpora"]
    return Path(data).resolve() in {
        folder.path.resolve() for folder in read_folders(model.config.data.dir)
    }


def settings(
    data: str, split: str, fitted: str, entries: Sequence[Entry], models: Sequence[str]
) -> list[str]:
    """What a reader of the table must know."""
    preprocess = entries[0].shards.preprocess
    stored = "signal" in entries[0].shards[entries[0].index]
    notes = [f"Model: {', '.join(models)}."] if models else []
    notes.append(
        f"Data: {read_metadata(data)['corpus']}, split {split}, preprocessing"
        f" {preprocess.hash()}; {fitted}."
    )
    notes.append(
        "Truth: the filtered signal,"
        f" {'as stored' if stored else 'stitched from the stored beats'}."
    )
    if preprocess.normalise == "lead":
        notes.append(
            "Normalised lead by lead: every method but those in mV (geometry:dower, kim:fitted,"
            " regression:mV) predicts a lead's shape, and is given the true lead's scale for errors"
            " in mV."
        )
    return [
        *notes,
        "Limb leads that follow from two visible ones are computed (Einthoven), and every method"
        " sees them. Otherwise each lead is as the method derives it: to make limb leads fit"
        " together, as for one record, would read hidden shapes from the true scales.",
        "Beats of the shards were found with all leads; the models see only the visible ones.",
    ]


def check_numbers(text: str | None) -> list[int]:
    """'3,5' -> [3, 5]: numbers of visible leads that leave some to derive."""
    try:
        numbers = [int(word) for word in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"--k={text}: give numbers of visible leads such as 3 or 3,5") from None
    if any(not 1 <= k < len(LEADS) for k in numbers):
        raise InputError(
            f"--k={text}: give 1 to 11; with all twelve leads visible there is nothing to"
            " reconstruct"
        )
    return numbers


def evaluate_shards(args: argparse.Namespace) -> int:
    """The whole table for a data set."""
    # what is asked for, checked before anything slow
    out = Path(args.out)
    names = choose_names(args.methods, Preprocess.from_dict(read_metadata(args.data)["preprocess"]))
    shown, numbers = (
        [check_visible(parse_leads(text)) for text in args.visible],
        check_numbers(args.k),
    )
    there = list(read_metadata(args.data)["splits"])
    splits = there if args.split == "all" else [args.split]
    open_splits(args.data, splits, None)
    if args.calibrate:
        names.append(gaussian_beat.CALIBRATED)
    model = load_network(args.checkpoint, names)
    eps = choose_eps(args.eps, model)
    matrix = model.directions if model else lead_matrix("paper")
    learned = load_learned(args.learned)
    sources = [Source([*make_methods(names, model, eps), *learned])]
    trained = [method for method in sources[0].methods if isinstance(method, TrainedLeads)]
    for method in trained:
        method.require(ShardSet(args.data, splits[0]).preprocess)
    entries = list_entries(open_splits(args.data, splits, model), args.limit)
    models = [model.checkpoint] if model else []
    also_notes = []
    for text in args.also:
        source, note = other_run(text, splits, entries)
        if any(source.units.keys() & other.units.keys() for other in sources):
            raise InputError(
                f"--also={text}: a run of that name is there already; rename the run directory"
            )
        sources.append(source)
        also_notes.append(note)
    views = [fixed_view(entries, leads, matrix, eps) for leads in shown]
    views += [drawn_view(entries, k, args.draws, args.seed, matrix, eps) for k in numbers]

    # fit once on training records, or later on other patients than those judged
    train = None
    if args.split == "all" and not args.fit_data:
        train = entries
        fitted = f"fitted methods are fitted on the other patients, {FOLDS} folds"
    else:
        fit_on = list_entries([ShardSet(args.fit_data or args.data, "train")], args.fit_records)
        check_alike(fit_on[0].shards, entries[0].shards)
        where = f" of {read_metadata(args.fit_data)['corpus']}" if args.fit_data else ""
        fitted = f"fitted methods are fitted on {len(fit_on)} training records{where}"
        with progress_bar(total=len(fit_on), unit="rec", desc="fit", leave=False) as bar:
            fit_all(sources, Windows(fit_on, bar.update))

    # derive and score every view
    units = {name: unit for source in sources for name, unit in source.units.items()}
    results, pictures = [], []
    for view in views:
        drop_absent(view, sources)
        if args.calibrate:
            calibrated(view)
        beats = BeatErrors(view.rows, args.morphology)
        bands = BandCoverage(view.rows, args.bands)
        with progress_bar(total=len(view.rows), unit="rec", desc=view.name) as bar:
            scores = evaluate(sources, view, train, bar.update, beats, bands)
        # as asked, others last
        scores = {name: scores[name] for name in dict.fromkeys((*names, *scores))}
        results.append(report(view, scores, units, beats, bands, args.resamples))
        if args.pictures:
            pictures.append(draw_lead_errors(out / f"{view.name}-leads.svg", results[-1]))
            pictures += draw_examples(out, view, scores, sources, train)
    # tables and files
    notes = settings(args.data, args.split, fitted, entries, models) + also_notes
    notes += [method.describe() for method in trained]
    corpus = read_metadata(args.data)["corpus"]
    if args.split in ("all", "train"):
        notes += [
            f"{method.name} was trained on records of {corpus}, some of which are counted here."
            for method in trained
            if method.facts["corpus"] == corpus
        ]
    seen = model and (
        "all" in (args.split, model.config.data.get("splits")) or args.split == "train"
    )
    if seen and was_trained_on(model, args.data):
        notes.append("The model was trained on records of this data set that are counted here.")
    text = to_text(results, notes)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "format": "lvcg-reconstruct-1",
        "methods": list(units),
        "eps": eps,
        "notes": notes,
        "views": results,
    }
    write_whole(out / "metrics.json", to_json(document))
    write_whole(out / "table.md", text)
    if args.page:
        section, title = (
            args.section or f"reconstruct-{corpus}",
            f"Leads derived from leads: {corpus}",
        )
        put_on_page(args.page, section, title, "reconstruct", args.argv, text)
    print(text)
    print(f"metrics.json, table.md and {len(pictures)} pictures: {out}")
    return 0
