"""How much a trained model loses when electrodes are not where it believes, and when there are
fewer leads.

    lvcg robustness --checkpoint=RUN --data=SHARDS --out=DIR [--page=PAGE.md]

Moved electrodes: the model believes in other lead directions A [12,3] than it was trained with. A
model whose geometry is a field of more modes has no directions to move, and is refused.
    noise      every entry of A plus a normal number times the level; a seed gives one direction
    rotation   every lead direction turned by an angle about one axis, which the seed draws
The probe is trained on undisturbed embeddings of the training records and tested on test embeddings
lifted with the changed A, at 1% and 100% of the labels, by AUROC and F1. Leads are derived from II,
V2 and V5: lifted and projected with the changed A ('lift_and_project'), or lifted with it and
projected with the true one ('lift_only'). All is the mean over --seeds draws, and as many label
subsets.

Fewer leads: nested sets from twelve leads to one, and those of common devices. AUROC of the probe
trained with all leads and tested with few ('frozen'; at 1, 10 and 100% of the labels), and of one
trained and tested with the same few leads, on a part of the training records ('retrained'); R2 of
the hidden leads.

Writes robustness.json, table.md, perturbation.svg, sparsity.svg, and embeddings.npz, which the next
run reads instead of embedding again.

Axis letters: t test row, d feature, T sample.
"""

import copy
import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, positive_int, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import write_whole
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import SPACE, lift_table, subset_facts
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.data.entries import Entry, draw_patients, list_entries
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import Table, keep_test_rows, load_table, save_table, take_rows
from lvcg_jax.model.network import Network
from lvcg_jax.probe.frozen import ALL, frozen_probe
from lvcg_jax.probe.labels import choose_tasks
from lvcg_jax.probe.study import probe_task
from lvcg_jax.reconstruct.methods import NetworkLeads, make_methods
from lvcg_jax.reconstruct.scores import record_values
from lvcg_jax.reconstruct.views import Source, Windows, fixed_view, score_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.studies.moved_leads import add_noise, rotate
from lvcg_jax.studies.robustness_report import draw_perturbation, draw_sparsity
from lvcg_jax.text.documents import to_json
from lvcg_jax.text.flags import add_shared
from lvcg_jax.text.pages import put_on_page
from lvcg_jax.text.tables import (
    auroc_row,
    cells_of,
    markdown_table,
    percent,
    points,
    with_interval,
)

NOISE, DEGREES = (0.01, 0.05, 0.1, 0.2), (5.0, 10.0, 30.0, 150.0)
FRACTIONS = (0.01, 1.0)  # with moved electrodes
FEWER_FRACTIONS = (0.01, 0.1, 1.0)
VISIBLE = ("II", "V2", "V5")  # of the leads that are derived with moved electrodes
# The eight independent leads first, each adding a direction that is seen little; what only combines
# I and II last.
ORDER = ("I", "II", "V2", "V5", "V1", "V4", "V3", "V6", "III", "aVF", "aVL", "aVR")
DEVICES = {
    "II alone": ("II",),
    "limb six": ("I", "II", "III", "aVR", "aVL", "aVF"),
    "Holter 3": ("V1", "V5", "aVF"),  # the nearest to its bipolar CM1, CM5 and inferior channels
}
ABOUT_DEVICES = (
    "1, 2 and 3 leads are also devices (I; I, II; I, II, V2); Holter 3 stands for CM1, CM5 and an"
    " inferior lead. EASI is not among the devices: its electrodes lie elsewhere, so standard leads"
    " do not combine to it."
)


def lead_sets() -> dict[str, tuple[str, ...]]:
    """Every set by name, from twelve leads down to one, then devices; the nested ones are prefixes
    of ORDER."""
    nested = {f"{k} {'leads' if k > 1 else 'lead'}": ORDER[:k] for k in range(len(ORDER), 0, -1)}
    return nested | DEVICES


@cache
def movable(kind: type[Network]) -> type[Network]:
    """This kind of network with its lift and its projection as variables, so that one compilation
    serves every geometry."""

    class MovedElectrodes(kind):
        def setup(self):
            super().setup()
            self.table = self.get_variable("geometry", "table")
            self.directions = self.get_variable("geometry", "directions")

    return MovedElectrodes


def move(model: LVCG, lift: np.ndarray, project: np.ndarray) -> LVCG:
    """The same weights with lead directions [12,3] to lift with and [12,3] to project with."""
    names = [f.name for f in dataclasses.fields(model.model) if f.name not in ("parent", "name")]
    fields = {name: getattr(model.model, name) for name in names}
    fields["geometry"] = dataclasses.replace(model.model.geometry, learnable=False)
    geometry = {
        "table": lift_table(lift, model.model.geometry.eps).astype(np.float32),
        "directions": project.astype(np.float32),
    }
    moved = copy.copy(model)
    moved.model = movable(type(model.model))(**fields)
    moved.variables = {**model.variables, "geometry": geometry}
    return moved


class ProjectedLeads:
    """A LeadMethod: the heart vector that a model decodes, lifted with one geometry and projected
    with several."""

    def __init__(self, model: LVCG, lift: np.ndarray, projections: dict[str, np.ndarray]):
        self.projections, self.units = projections, {name: "z" for name in projections}
        axes = np.eye(*lift.shape)  # its first three leads are then the heart vector itself
        self._network = NetworkLeads(move(model, lift, axes), {"vcg": "both"})

    def fit(self, windows: Iterable[dict]) -> None:
        """Nothing to learn: it was trained."""

    def predict(self, windows: Sequence[dict]) -> dict[str, list[np.ndarray]]:
        vectors = [x[:3] for x in self._network.predict(windows)["vcg"]]  # [3,T] each
        return {
            name: [a.astype(np.float32) @ v for v in vectors]
            for name, a in self.projections.items()
        }


@dataclass
class Bench:
    """A model, its undisturbed embeddings of train, validation and test rows, and the test windows
    to embed again."""

    model: LVCG
    table: Table
    entries: list[Entry]  # of the test rows, in the order of test_rows
    windows: list[dict]  # the same, read
    test_rows: np.ndarray  # [t] rows of the table

    def embed(
        self, model: LVCG, leads: Sequence[str] = LEADS, windows: Sequence[dict] | None = None
    ) -> np.ndarray:
        """Embeddings [t,d] of the test windows (or others) by a model that sees these leads."""
        mask = lead_mask(np.isin(LEADS, leads))
        shown = (
            {**w, "visible": w["lead_mask"] & mask}
            for w in (self.windows if windows is None else windows)
        )
        return join_parts(model.embed_windows(shown)[1])


def draw_entries(entries: Sequence[Entry], limit: int | None) -> list[Entry]:
    """At most `limit` windows, from as many patients as there can be."""
    return [entries[i] for i in draw_patients([entry.patient_id for entry in entries], limit)]


def open_bench(
    model: LVCG, data: str, embeddings: Path, limit: int | None
) -> tuple[Bench, list[str]]:
    """Undisturbed embeddings, read from the file or made and stored there, and the test windows;
    also notes."""
    notes = []
    if embeddings.exists():
        table = load_table(embeddings)
        made = table.metadata.get("checkpoint")
        if made != model.checkpoint:
            raise InputError(
                f"{embeddings} is of {made}, not of {model.checkpoint}:"
                " delete it or give --embeddings"
            )
    else:
        table = embed_dataset(model, data)
        embeddings.parent.mkdir(parents=True, exist_ok=True)
        save_table(embeddings, table)
    # test windows that have a lead of every set, and of those at most `limit`
    masks = [lead_mask(np.isin(LEADS, leads)) for leads in lead_sets().values()]
    every = list_entries([ShardSet(data, "test")])
    usable = [entry for entry in every if all(entry.lead_mask & mask for mask in masks)]
    if len(usable) < len(every):
        lost = len(every) - len(usable)
        notes.append(f"{lost} test records have no lead of one of the sets and are left out.")
    entries = draw_entries(usable, limit)
    if len(entries) < len(usable):
        notes.append(
            f"{len(entries)} of {len(every)} test records, from as many patients as can be."
        )
    try:
        table, test = keep_test_rows(table, [entry.row for entry in entries])
    except KeyError as key:
        raise InputError(
            f"{embeddings} has no row for record {key.args[0]}: was it made from {data}?"
        ) from None
    return Bench(model, table, entries, list(Windows(entries)), test), notes


def perturbations(seeds: int) -> dict[str, list]:
    """{name: a function A -> A' for each seed}."""
    noise = {
        f"noise {level:g}": [(add_noise, level, seed) for seed in range(seeds)] for level in NOISE
    }
    turns = {
        f"rotation {angle:g} degrees": [(rotate, angle, seed) for seed in range(seeds)]
        for angle in DEGREES
    }
    return noise | turns


def moved_electrodes(
    bench: Bench, entries: Sequence[Entry], tasks: Sequence[str], seeds: int, resamples: int
) -> dict:
    """Changes of AUROC and of derived leads for every perturbation."""
    a, plans = bench.model.directions, perturbations(seeds)
    tested: dict[str, list[np.ndarray]] = {name: [] for name in plans}
    view = fixed_view(entries, VISIBLE, a, bench.model.model.geometry.eps)
    patients = [row.entry.patient_id for row in view.rows]
    bootstrap = PatientBootstrap(patients, resamples)

    def derive(matrix):
        methods = [
            ProjectedLeads(bench.model, matrix, {"lift_and_project": matrix, "lift_only": a})
        ]
        scores = score_rows([Source(methods)], view.rows)
        return {name: record_values(parts) for name, parts in scores.items()}

    # what the undisturbed model gives, then every draw of every perturbation
    base = derive(a)
    result = {
        "baseline": {m: bootstrap.summary(base["lift_only"][m]) for m in ("mse", "r2")},
        "perturbations": {},
    }
    spread = np.sqrt(bench.table.embedding[bench.test_rows].var(0).sum())
    with progress_bar(total=len(plans) * seeds, unit="pass", desc="moved electrodes") as bar:
        for name, several in plans.items():
            changed = []
            for move_leads, level, seed in several:
                matrix = move_leads(a, level, seed)
                tested[name].append(bench.embed(move(bench.model, matrix, matrix)))
                changed.append(derive(matrix))
                bar.update()
            found = {"derived": {}}
            for kind in base:
                gaps = {
                    m: np.mean([c[kind][m] - base[kind][m] for c in changed], axis=0)
                    for m in ("mse", "r2")
                }
                found["derived"][kind] = {m: bootstrap.summary(gap) for m, gap in gaps.items()}
            steps = [e - bench.table.embedding[bench.test_rows] for e in tested[name]]
            found["embedding_shift"] = float(
                np.mean([np.sqrt((s**2).sum(1).mean()) / spread for s in steps])
            )
            result["perturbations"][name] = found
    rows = (bench.table, bench.test_rows)
    result["probe"] = [
        frozen_probe(*rows, tested, task, FRACTIONS, seeds, resamples) for task in tasks
    ]
    sizes = {"derived_from": list(VISIBLE), "derived_records": len(view.rows), "seeds": seeds}
    return result | sizes | {"fractions": list(FRACTIONS)}


def fewer_leads(
    bench: Bench,
    data: str,
    entries: Sequence[Entry],
    tasks: Sequence[str],
    train_records: int,
    seeds: int,
    resamples: int,
) -> dict:
    """AUROC, frozen and retrained, and R2 of the hidden leads for every set of leads."""
    a, eps, sets = bench.model.directions, bench.model.model.geometry.eps, lead_sets()
    train = list_entries([ShardSet(data, "train")], train_records)
    val = list_entries([ShardSet(data, "validation")], max(train_records // 3, 1))
    methods = make_methods(("lvcg", "regression"), bench.model, eps)
    for method in methods:
        method.fit(Windows(train))
    to_learn = list(Windows([*train, *val]))
    row_of = {key: i for i, key in enumerate(bench.table.keys)}
    rows = [row_of[entry.row] for entry in (*train, *val, *bench.entries)]
    part = take_rows(bench.table, np.array(rows))
    frozen, retrained, found = {}, {ALL: part.embedding}, {}
    for name, leads in progress_bar(sets.items(), unit="set", desc="fewer leads"):
        facts = subset_facts(a, np.isin(LEADS, leads), eps)
        found[name] = {
            "leads": [lead for lead in ORDER if lead in leads],
            "rank": int(facts["rank"]),
            "gain": float(facts["gain"]),
        }
        if name == ALL:
            continue
        # test rows and rows to learn from, seen through these leads; then the hidden leads
        frozen[name] = [bench.embed(bench.model, leads)]
        learned = bench.embed(bench.model, leads, to_learn)
        retrained[name] = np.concatenate([learned, frozen[name][0]])
        view = fixed_view(entries, leads, a, eps)
        bootstrap = PatientBootstrap([row.entry.patient_id for row in view.rows], resamples)
        found[name]["r2"] = {
            method: bootstrap.summary(record_values(parts)["r2"])
            for method, parts in score_rows([Source(methods)], view.rows).items()
        }
    tested = (bench.table, bench.test_rows, frozen)
    return {
        "sets": found,
        "frozen": [
            frozen_probe(*tested, task, FEWER_FRACTIONS, seeds, resamples) for task in tasks
        ],
        "retrained": [retrained_probe(part, retrained, task, resamples) for task in tasks],
        "train_records": len(train),
        "validation_records": len(val),
        "derived_records": len(entries),
        "order": list(ORDER),
    }


def retrained_probe(
    table: Table, features: dict[str, np.ndarray], task: str, resamples: int
) -> dict:
    """Probes of several embeddings of a table's rows, the parts weighted as in frozen_probe."""
    parts = dict.fromkeys(features, table.part_sizes)
    options = {"fractions": (1.0,), "seeds": 1, "resamples": resamples}
    return probe_task(features, table, task, parts=parts, **options)


def perturbation_table(result: dict) -> list[str]:
    """Change of AUROC x 100 and of the derived leads, a row for each perturbation."""
    tasks = [probe["task"] for probe in result["probe"]]
    header = [f"{task} {100 * f:g}%" for task in tasks for f in result["fractions"]]
    rows = []
    for name, found in result["perturbations"].items():
        cells = []
        for probe in result["probe"]:
            gaps = {d["fraction"]: d for d in probe["differences"] if d["control"] == name}
            for f in result["fractions"]:
                gap = gaps.get(f)
                cells.append(
                    points(-gap["difference"], -gap["high"], -gap["low"], "+") if gap else "-"
                )
        both, lift = (found["derived"][kind] for kind in ("lift_and_project", "lift_only"))
        derived = [(both["mse"], 3), (both["r2"], 3), (lift["r2"], 3)]
        rows.append([name, *cells, *(with_interval(s, digits=n, sign="+") for s, n in derived)])
        rows[-1].append(f"{found['embedding_shift']:.2f}")
    columns = ["perturbation", *header, "MSE", "R2", "R2, lift only", "shift of the embedding"]
    return markdown_table(columns, rows)


def sparsity_table(result: dict) -> list[str]:
    """AUROC x 100 and R2, a row for each set of leads."""
    tasks = [probe["task"] for probe in result["frozen"]]
    header = [f"{task} {kind}" for task in tasks for kind in ("frozen", "retrained")]
    rows = []
    for name, found in result["sets"].items():
        cells = []
        for pair in zip(result["frozen"], result["retrained"], strict=True):
            for probe in pair:
                cells += auroc_row(probe, name, (1.0,))
        r2 = [
            with_interval(found["r2"][m]) if "r2" in found else "-" for m in ("lvcg", "regression")
        ]
        facts = [name, ", ".join(found["leads"]), str(found["rank"]), f"{found['gain']:.1f}"]
        rows.append([*facts, *cells, *r2])
    return markdown_table(
        ["set", "leads", "rank", "gain", *header, "R2 hidden leads", "R2 regression"], rows
    )


def f1_table(result: dict) -> list[str]:
    """Change of F1 x 100 by task, and of AUROC and F1 on average over tasks, a row for each
    perturbation."""
    probes, fractions = result["probe"], result["fractions"]

    def changes(name: str, key: str, fraction: float) -> list[float | None]:
        """Of each task, None where there is no score."""
        pairs = [[cells_of(p, n).get(fraction, {}).get(key) for n in (name, ALL)] for p in probes]
        return [None if None in pair else pair[0] - pair[1] for pair in pairs]

    rows = []
    for name in result["perturbations"]:
        f1 = {f: changes(name, "macro_f1", f) for f in fractions}
        by_task = [points(f1[f][i], sign="+") for i in range(len(probes)) for f in fractions]
        auroc = [points(mean_of(changes(name, "macro_auroc", f)), sign="+") for f in fractions]
        average = [points(mean_of(f1[f]), sign="+") for f in fractions]
        rows.append([name, *by_task, *auroc, *average])
    head = [f"{what} {percent(f)}" for what in [p["task"] for p in probes] for f in fractions]
    head += [f"average {what} {percent(f)}" for what in ("AUROC", "F1") for f in fractions]
    return markdown_table(["perturbation", *head], rows)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean over tasks, None unless every task has a value."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def shares_table(result: dict) -> list[str]:
    """AUROC x 100 of the frozen probe at every share of the labels, by task and on average."""
    rows = []
    for name in result["sets"]:
        scores = [
            [cells_of(p, name).get(f, {}).get("macro_auroc") for f in FEWER_FRACTIONS]
            for p in result["frozen"]
        ]
        scores.append([mean_of(column) for column in zip(*scores, strict=True)])
        rows.append([name, *(" / ".join(map(points, row)) for row in scores)])
    return markdown_table(["set", *(p["task"] for p in result["frozen"]), "average"], rows)


def to_text(moved: dict, fewer: dict, notes: Sequence[str]) -> str:
    """All tables as Markdown."""
    base = " and ".join(f"{m.upper()} {moved['baseline'][m]['mean']:.3f}" for m in ("mse", "r2"))
    lines = [
        "**Moved electrodes**: change of test macro AUROC x 100 by task and share of the labels,"
        f" and of derived leads (from {', '.join(moved['derived_from'])},"
        f" {moved['derived_records']} records, undisturbed {base}); mean of {moved['seeds']} draws"
        " [95% bootstrap over patients]. MSE and R2: lifted and projected with the changed"
        " directions.",
        "",
        *perturbation_table(moved),
        "Change of test macro F1 x 100 by task and share of the labels, thresholds chosen with"
        " electrodes in place; and of AUROC and F1 on average over tasks.",
        "",
        *f1_table(moved),
        "**Fewer leads**: test macro AUROC x 100 of the probe trained with all leads (frozen), and"
        f" of one trained with the same few leads on {fewer['train_records']} training records"
        f" (retrained); R2 of the hidden leads ({fewer['derived_records']} records).",
        "",
        *sparsity_table(fewer),
        "The frozen probe with "
        + " / ".join(f"{100 * f:g}" for f in FEWER_FRACTIONS)
        + "% of the labels, test macro AUROC x 100.",
        "",
        *shares_table(fewer),
        f"- Nested sets take the first leads of {', '.join(fewer['order'])}. {ABOUT_DEVICES}",
    ]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def main(argv: list[str] | None = None) -> int:
    parser = Parser("robustness", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        metavar="RUN",
        help="run directory, or packaged weights by name",
    )
    add_shared(parser, "data", "out")
    add("--seeds", type=positive_int, default=3, help="draws of each perturbation (default 3)")
    add(
        "--embeddings",
        metavar="FILE",
        help="embeddings of all splits (default OUT/embeddings.npz; made if not there)",
    )
    add("--limit", type=positive_int, help="test records at most, from as many patients as can be")
    add(
        "--derive_records",
        type=positive_int,
        default=256,
        help="test records whose leads are derived, at most (default 256)",
    )
    add(
        "--train_records",
        type=positive_int,
        default=1000,
        help="training records of retrained probes, at most (default 1000)",
    )
    add_shared(parser, "task", "page", resamples=300, section="robustness")
    args = parser.parse_args(argv)
    tasks = choose_tasks(args.task, args.data)
    model, out = LVCG.load(args.checkpoint), Path(args.out)
    model.require_heart_vector("lvcg robustness")
    if model.directions.shape[1] != SPACE:
        raise InputError(
            f"{args.checkpoint} has a geometry of {model.directions.shape[1]} modes, which are no"
            " directions in space that electrodes could move in: give a run with three, or measure"
            " fewer leads with lvcg view_agreement"
        )
    embeddings = Path(args.embeddings) if args.embeddings else out / "embeddings.npz"
    if args.embeddings and not embeddings.exists():
        raise InputError(
            f"{embeddings}: no such embeddings file; write it with lvcg embed, or leave it out"
        )
    bench, notes = open_bench(model, args.data, embeddings, args.limit)
    entries = draw_entries(bench.entries, args.derive_records)
    moved = moved_electrodes(bench, entries, tasks, args.seeds, args.resamples)
    draws = (args.seeds, args.resamples)
    fewer = fewer_leads(bench, args.data, entries, tasks, args.train_records, *draws)
    size = f"{len(bench.windows)} test records"
    notes.append(f"Model {model.checkpoint}, {size}; beats were found with all leads.")
    text = to_text(moved, fewer, notes)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "format": "lvcg-robustness-1",
        "notes": notes,
        "moved_electrodes": moved,
        "fewer_leads": fewer,
    }
    write_whole(out / "robustness.json", to_json(document))
    write_whole(out / "table.md", text)
    draw_perturbation(out / "perturbation.svg", moved)
    draw_sparsity(out / "sparsity.svg", fewer)
    if args.page:
        there = os.path.relpath(out, Path(args.page).parent)
        text_and_pictures = (
            f"{text}\n![Moved electrodes]({there}/perturbation.svg)\n\n"
            f"![Fewer leads]({there}/sparsity.svg)\n"
        )
        title = "Moved electrodes and fewer leads"
        put_on_page(args.page, args.section, title, "robustness", argv, text_and_pictures)
    print(text)
    print(f"robustness.json, table.md, perturbation.svg, sparsity.svg: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
