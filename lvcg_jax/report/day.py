"""A long record over time: heart rate, drift of the embedding, predictions. One HTML file, no
network.

    lvcg day --record=holter.edf --out=day.html
    lvcg day --record=holter.edf --head=rhythm --head=super --table=day.parquet --out=day.html

The record is read, prepared and embedded in chunks, in constant memory; what
`lvcg embed` would write can be kept with --table. Every point of a curve is a stretch of the
record: the median of its windows of ten seconds, with a bar from the 10th to the 90th percentile.
Drift is how far a window's embedding is from the median embedding of the record, in standard
deviations over the record: 1 is usual, more is unlike the rest of it. Not for diagnosis.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.ecg import quality
from data_prep.ecg.leads import parse_leads
from lvcg_jax.data.windows import Failure, corpus_windows, defect_words, lead_names, show_only
from lvcg_jax.embed.dataset import check_place, file_corpus, make_table
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import check_ending, save_table
from lvcg_jax.report.page import Section, join, parts, render
from lvcg_jax.runs import heads, weights
from lvcg_jax.runs.heads import Head
from lvcg_jax.stats.scaling import mean_and_scale
from lvcg_jax.text.charts import COLOURS, Series, line_chart
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import command_line

MOST_STRETCHES = 144  # of a curve: ten minutes each in a day
WIDE = 900  # units of a chart


@dataclass(frozen=True)
class Day:
    """The windows of a record that were embedded, in order."""

    record_id: str
    seconds: np.ndarray  # [m] where each window starts
    window_seconds: float
    heart_rate: np.ndarray  # [m] beats a minute, NaN where no interval is whole
    embedding: np.ndarray  # [m,d]
    defects: list[list[str]]  # of each window
    leads: list[list[str]]  # that the model saw in each window

    @property
    def drift(self) -> np.ndarray:
        """[m] distances from the median embedding, in standard deviations over the record."""
        _, scale = mean_and_scale(self.embedding)
        apart = (self.embedding - np.median(self.embedding, axis=0)) / scale
        return np.sqrt((apart**2).mean(1))


def day_of(rows: Sequence[dict], embedding: np.ndarray, rate: float, seconds: float) -> Day:
    """The day from the windows that a model embedded, `rate` samples a second, so long each."""
    beats = [row["length"][row["complete"]] for row in rows]
    heart_rate = [60 * rate / np.median(some) if len(some) else np.nan for some in beats]
    return Day(
        rows[0]["record_id"],
        np.array([row["start_seconds"] for row in rows]),
        seconds,
        np.array(heart_rate),
        embedding,
        [[word for word in defect_words(row).split(";") if word] for row in rows],
        [lead_names(row) for row in rows],
    )


def stretches(day: Day) -> np.ndarray:
    """The number of the stretch that each window [m] belongs to."""
    last = day.seconds[-1] + day.window_seconds
    length = max(day.window_seconds, last / MOST_STRETCHES)
    return np.floor(day.seconds / length).astype(int)


def curve(day: Day, values: np.ndarray, name: str = "", colour: int = 0, bars=True) -> list[Series]:
    """Values [m] of windows over the hours of the record, broken where a stretch has none."""
    number = stretches(day)
    known = np.isfinite(values)
    there = np.unique(number[known])
    points = [
        (day.seconds[here].mean() / 3600, *np.percentile(values[here], (10, 50, 90)))
        for here in ((number == one) & known for one in there)
    ]
    pieces = np.split(np.array(points).reshape(-1, 4), np.flatnonzero(np.diff(there) > 1) + 1)
    bars = bars and len(there) < known.sum()
    return [
        Series(
            *(piece[:, 0], piece[:, 2]),
            name if i == 0 else "",
            colour,
            low=piece[:, 1] if bars else None,
            high=piece[:, 3] if bars else None,
        )
        for i, piece in enumerate(pieces)
    ]


def chart(series: Sequence[Series], title: str, y_label: str, **options):
    """Curves over the hours of the record."""
    return line_chart(series, title, "hours from the start", y_label, width=WIDE, **options)


def prediction_charts(day: Day, head: Head) -> list:
    """Curves of what a head says: probabilities of its likeliest classes, or its number."""
    each = np.arange(len(day.embedding))
    values = head.answer(day.embedding, each, leads=day.leads).values  # [m,c]
    if head.is_number:
        return [chart(curve(day, values[:, 0]), head.task, head.task)]
    likely = np.argsort(-values.mean(0), kind="stable")[:COLOURS]
    curves = [
        piece
        for place, c in enumerate(likely)
        for piece in curve(day, values[:, c], head.classes[c], place, bars=False)
    ]
    more = len(head.classes) - len(likely)
    rest = f", the {len(likely)} likeliest of {len(head.classes)} classes" if more else ""
    return [chart(curves, f"{head.task}{rest}", "probability", zero=True)]


def day_page(
    day: Day, answers: Sequence[Head], left_out: int, checkpoint: str, command: str
) -> str:
    """The whole page."""
    hours = (day.seconds[-1] + day.window_seconds) / 3600
    rate = day.heart_rate[np.isfinite(day.heart_rate)]
    low, middle, high = np.percentile(rate, (5, 50, 95)) if len(rate) else [np.nan] * 3
    drift, per_minute = day.drift, "\u00a0/ min"
    facts = [
        ("recorded", f"{hours:.1f}\u00a0h"),
        ("windows embedded", str(len(day.seconds))),
        ("windows left out", str(left_out)),
        ("heart rate, median", f"{middle:.0f}{per_minute}"),
        ("5% of windows are below", f"{low:.0f}{per_minute}"),
        ("5% of windows are above", f"{high:.0f}{per_minute}"),
        ("farthest from the median", clock(day.seconds[int(drift.argmax())])),
    ]
    minutes = max(day.window_seconds, 3600 * hours / MOST_STRETCHES) / 60
    words = f"A point is the median of {minutes:.2g} minutes, its bar reaches from the 10th to the"
    words += " 90th percentile of their windows."
    rate_chart = chart(curve(day, day.heart_rate), "Heart rate", "beats a minute")
    drift_chart = chart(curve(day, drift), "Drift of the embedding", "standard deviations")
    far = (
        "Distance of the embedding from its median over the record: 1 is usual, more is unlike it."
    )
    sections = [
        Section("rate", "Heart rate", parts.figure(rate_chart, words, command)),
        Section("drift", "Drift", parts.figure(drift_chart, far, command)),
    ]
    if answers:
        drawn = join(
            parts.figure(one, "Median of each stretch; windows are answered one by one.", command)
            for head in answers
            for one in prediction_charts(day, head)
        )
        sections.append(Section("predictions", "Predictions", drawn))
    sections.append(Section("quality", "Signal quality", quality_table(day)))
    return render(
        "report.html",
        title=f"ECG record {day.record_id} over time",
        subtitle=f"{hours:.1f} h in windows of {day.window_seconds:g} s",
        numbers=facts,
        remark="Heart rate: from the median R-R interval of each window.",
        sections=sections,
        origin=f"Model {checkpoint}.",
        command=command,
    )


def clock(seconds: float) -> str:
    """'13:05:20' hours, minutes and seconds from the start."""
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"


def quality_table(day: Day) -> Markup:
    """How many windows have each kind of defect."""
    counts = Counter(kind for words in day.defects for kind in {quality.kind(w) for w in words})
    if not counts:
        return parts.paragraph("Nothing was found wrong.")
    rows = [
        [kind, quality.KINDS.get(kind, ""), str(count), f"{100 * count / len(day.defects):.1f}%"]
        for kind, count in counts.most_common()
    ]
    return parts.table(["finding", "meaning", "windows", "share"], rows)


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("day", __doc__)
    add = parser.add_argument
    add("--record", required=True, metavar="FILE", help="a long record (docs/formats.md)")
    add("--out", type=Path, metavar="HTML", help="page to write (default NAME-day.html)")
    add("--head", action="append", default=[], metavar="HEAD", help=heads.HEAD_HELP)
    add("--checkpoint", metavar="RUN", help=weights.CHECKPOINT_HELP)
    add("--leads", metavar="I,II,V2", help="leads that the model may see (default: all)")
    add("--table", metavar="FILE", help="also keep the embeddings: .parquet or .npz")
    add_shared(parser, "rate", "unit", "lead_names")
    args = parser.parse_args(argv)
    if args.table is not None:
        check_ending(args.table)
    args.leads = parse_leads(args.leads) if args.leads is not None else None
    args.out = args.out or Path(f"{Path(args.record).stem}-day.html")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(argv)
    corpus = file_corpus(args.record, args.rate, args.unit, args.lead_names)
    for place in (args.out, *([Path(args.table)] if args.table else [])):
        check_place(place)

    # the heads and their model
    paths = [heads.find_head(name) for name in args.head]
    answers = [heads.load_head(path) for path in paths]
    if args.checkpoint is None and answers:
        model = LVCG.load(heads.weights_of(paths[0], answers[0]))
    else:
        model = LVCG.load(weights.choose(args.checkpoint))
    for head in answers:
        head.require(model.checkpoint, model.preprocess.hash())

    # windows, embeddings, page
    failures: list[Failure] = []
    windows = corpus_windows(corpus, model.preprocess, failures, progress=True)
    if args.leads:
        windows = show_only(windows, args.leads, failures)
    rows, outputs = model.embed_windows(*model.few_or_many(windows))
    print("".join(f"note: {note}\n" for note in corpus.all_notes()), end="")
    if len(rows) < 2:
        reason = failures[0].reason if failures else "it has a single window of ten seconds"
        raise InputError(f"record {corpus.refs[0].record_id} has no course over time: {reason}")
    preprocess = model.preprocess
    day = day_of(rows, join_parts(outputs), preprocess.rate, preprocess.seconds)
    left_out = 1 + rows[-1]["window"] - len(rows)
    command = command_line("day", argv)
    write_whole(args.out, day_page(day, answers, left_out, model.checkpoint, command))
    if args.table:
        save_table(args.table, make_table(model, rows, outputs, {}))
        print(f"{len(rows)} rows: {args.table}")
    for failure in failures:
        print(f"warning: {failure.reason}")
    print(f"{len(rows)} windows, {left_out} left out: {args.out}: open it in a browser")
    return 0


if __name__ == "__main__":
    run_command(main)
