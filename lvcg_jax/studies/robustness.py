"""How much a trained model loses when electrodes are not where it believes, and when there are
fewer leads.

    lvcg robustness --checkpoint=RUN --data=SHARDS --out=DIR [--page=docs/results.md]

Moved electrodes (perturb.py): the probe is trained on undisturbed embeddings of the training
records and tested on test embeddings lifted with changed lead directions, at 1% and 100% of the
labels; leads are derived from II, V2 and V5. All is the mean over --seeds draws of the change, and
as many subsets of the labels. Fewer leads: nested sets from twelve leads to one, and those of
common devices. AUROC of the probe trained with all leads and tested with few ('frozen'), and of one
trained and tested with the same few leads, on a part of the training records ('retrained'); R2 of
the hidden leads. Writes robustness.json, table.md, perturbation.svg, sparsity.svg, and
embeddings.npz, which the next run takes up again.

Axis letters: m row, t test row, d feature, c class.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.lottery import ticket
from data_prep.base.progress import progress_bar
from data_prep.dataset.shards import ShardSet, read_metadata
from data_prep.ecg.geometry import subset_facts
from data_prep.ecg.leads import LEADS, lead_mask
from lvcg_jax.data.entries import Entry, list_entries
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG, join_parts
from lvcg_jax.embed.table import Table, keep_test_rows, load_table, save_table, take_rows
from lvcg_jax.probe.labels import choose_tasks, task_of
from lvcg_jax.probe.linear import STRENGTHS, fit_ridge
from lvcg_jax.probe.study import LinearFit, evaluate
from lvcg_jax.reconstruct.methods import make_methods
from lvcg_jax.reconstruct.scores import record_values, to_json
from lvcg_jax.reconstruct.views import Source, Windows, fixed_view, score_rows
from lvcg_jax.stats.bootstrap import PatientBootstrap
from lvcg_jax.studies.perturb import ProjectedLeads, add_noise, move, rotate
from lvcg_jax.studies.robustness_report import draw_perturbation, draw_sparsity, to_text
from lvcg_jax.text.pages import put_on_page

NOISE, DEGREES = (0.01, 0.05, 0.1, 0.2), (5.0, 10.0, 30.0, 150.0)
FRACTIONS = (0.01, 1.0)
VISIBLE = ("II", "V2", "V5")  # of the leads that are derived with moved electrodes
# The eight independent leads first, each adding a direction that is seen little; what only combines
# I and II last.
ORDER = ("I", "II", "V2", "V5", "V1", "V4", "V3", "V6", "III", "aVF", "aVL", "aVR")
DEVICES = {
    "II alone": ("II",),
    "limb six": ("I", "II", "III", "aVR", "aVL", "aVF"),
    "Holter 3": ("V1", "V5", "aVF"),  # the nearest to its bipolar CM1, CM5 and inferior channels
}
ALL = "12 leads"


def lead_sets() -> dict[str, tuple[str, ...]]:
    """Every set by name, from twelve leads down to one, then devices; the nested ones are prefixes
    of ORDER."""
    nested = {f"{k} {'leads' if k > 1 else 'lead'}": ORDER[:k] for k in range(len(ORDER), 0, -1)}
    return nested | DEVICES


@dataclass
class Bench:
    """A model, its undisturbed embeddings of train, validation and test rows, and the test windows
    to embed again."""

    model: LVCG
    table: Table
    windows: list[dict]  # of the test rows, in the order of test_rows
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


class FrozenFit:
    """A fit (see evaluate.py) on undisturbed rows that is tested on other embeddings of the test
    rows.

    `fitted` is shared by all that test one probe, which is then fitted once for each subset of the
    labels.
    """

    seeded, limit = False, None

    def __init__(
        self,
        features: np.ndarray,
        parts,
        fitted: dict,
        tested: np.ndarray | None = None,
        place=None,
    ):
        self.features, self.parts, self.fitted, self.tested, self.place = (
            features,
            parts,
            fitted,
            tested,
            place,
        )

    def __call__(self, rows, y, val, y_val, test, seed):
        key = (rows.tobytes(), y.shape[1])
        x = self.features
        if key not in self.fitted:
            self.fitted[key] = fit_ridge(x[rows], y, x[val], y_val, seed, STRENGTHS, self.parts)
        linear, setting = self.fitted[key]
        return (
            linear(x[val]),
            linear(x[test] if self.tested is None else self.tested[self.place[test]]),
            setting,
        )


def frozen_probe(
    table: Table,
    test_rows: np.ndarray,
    tested: dict[str, list[np.ndarray]],
    task: str,
    fractions: Sequence[float],
    seeds: int,
    resamples: int,
) -> dict:
    """evaluate() of a table's embedding against others of its test rows [t], {name: [test
    embeddings [t,d], ...]}."""
    found = task_of(table, task)
    x, parts, fitted = table.embedding[found.rows], table.part_sizes, {}
    place = np.full(len(table.record_id), -1)
    place[test_rows] = np.arange(len(test_rows))
    fits = {ALL: [FrozenFit(x, parts, fitted)]}
    for name, several in tested.items():
        fits[name] = [FrozenFit(x, parts, fitted, e, place[found.rows]) for e in several]
    options = {"class_names": found.classes, "records": found.records, "resamples": resamples}
    columns = (found.labels, found.patients, found.splits)
    return {"task": task} | evaluate(fits, *columns, fractions, seeds, "ridge", **options)


def open_bench(
    model: LVCG, data: str, embeddings: Path, limit: int | None
) -> tuple[Bench, list[str]]:
    """Undisturbed embeddings, from the file if it holds this model's, and the test windows; also
    notes."""
    notes = []
    if embeddings.is_file():
        table = load_table(embeddings)
        made = table.metadata.get("checkpoint")
        if made != model.checkpoint:
            raise InputError(
                f"{embeddings} is of {made}, not of {model.checkpoint}: delete it or give --embeddings"
            )
    else:
        table = embed_dataset(model, data)
        embeddings.parent.mkdir(parents=True, exist_ok=True)
        save_table(embeddings, table)
    smallest = [lead_mask(np.isin(LEADS, leads)) for leads in lead_sets().values()]
    windows = list(shard_windows(ShardSet(data, "test")))
    usable = [w for w in windows if all(w["lead_mask"] & mask for mask in smallest)]
    if len(usable) < len(windows):
        notes.append(
            f"{len(windows) - len(usable)} test records lack all leads of one of the sets and are left out."
        )
    if limit and limit < len(usable):
        usable = sorted(usable, key=lambda w: ticket(w["patient_id"]))[:limit]
        notes.append(f"{limit} of {len(windows)} test records, drawn by patient.")
    try:
        table, test = keep_test_rows(table, [f"{w['record_id']}#{w['window']}" for w in usable])
    except KeyError as key:
        raise InputError(
            f"{embeddings} has no row for record {key.args[0]}: was it made from {data}?"
        ) from None
    return Bench(model, table, usable, test), notes


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
    view = fixed_view(entries, VISIBLE, a, bench.model.model.eps)
    patients = [row.entry.patient_id for row in view.rows]
    bootstrap = PatientBootstrap(patients, resamples)

    def derive(matrix):
        methods = [
            ProjectedLeads(bench.model, matrix, {"lift_and_project": matrix, "lift_only": a})
        ]
        scores = score_rows([Source(methods)], view.rows)
        return {name: record_values(parts) for name, parts in scores.items()}

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
    resamples: int,
) -> dict:
    """AUROC, frozen and retrained, and R2 of the hidden leads for every set of leads."""
    a, eps, sets = bench.model.directions, bench.model.model.eps, lead_sets()
    train, val = (
        _some(data, split, n)
        for split, n in (("train", train_records), ("validation", train_records // 3))
    )
    fit_on = Windows(list_entries([ShardSet(data, "train")], train_records))
    methods = make_methods(("lvcg", "regression"), bench.model, eps)
    for method in methods:
        method.fit(fit_on)
    keys = [f"{w['record_id']}#{w['window']}" for w in (*train, *val, *bench.windows)]
    row_of = {key: i for i, key in enumerate(bench.table.keys)}
    part = take_rows(bench.table, np.array([row_of[key] for key in keys]))
    frozen, retrained, result = {}, {ALL: part.embedding}, {"sets": {}}
    with progress_bar(total=len(sets), unit="set", desc="fewer leads") as bar:
        for name, leads in sets.items():
            mask = np.isin(LEADS, leads)
            facts = {key: float(value) for key, value in subset_facts(a, mask, eps).items()}
            found = {
                "leads": [lead for lead in ORDER if lead in leads],
                "rank": int(facts["rank"]),
                "gain": facts["gain"],
            }
            if name != ALL:
                frozen[name] = [bench.embed(bench.model, leads)]
                learned = bench.embed(bench.model, leads, [*train, *val])
                retrained[name] = np.concatenate([learned, frozen[name][0]])
                view = fixed_view(entries, leads, a, eps)
                bootstrap = PatientBootstrap([row.entry.patient_id for row in view.rows], resamples)
                scores = score_rows([Source(methods)], view.rows)
                found["r2"] = {
                    method: bootstrap.summary(record_values(parts)["r2"])
                    for method, parts in scores.items()
                }
            result["sets"][name] = found
            bar.update()
    rows = (bench.table, bench.test_rows)
    result["frozen"] = [frozen_probe(*rows, frozen, task, (1.0,), 1, resamples) for task in tasks]
    result["retrained"] = []
    for task in tasks:
        found = task_of(part, task)
        fits = {name: [LinearFit(x[found.rows], "ridge")] for name, x in retrained.items()}
        options = {"class_names": found.classes, "records": found.records, "resamples": resamples}
        columns = (found.labels, found.patients, found.splits)
        result["retrained"].append(
            {"task": task} | evaluate(fits, *columns, (1.0,), 1, "ridge", **options)
        )
    sizes = {
        "train_records": len(train),
        "validation_records": len(val),
        "derived_records": len(entries),
    }
    return result | sizes | {"order": list(ORDER)}


def _some(data: str, split: str, limit: int) -> list[dict]:
    """At most `limit` windows of a split, drawn by patient."""
    windows = sorted(shard_windows(ShardSet(data, split)), key=lambda w: ticket(w["patient_id"]))
    return windows[: max(limit, 1)]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("robustness", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        metavar="RUN",
        help="run directory, or packaged weights by name",
    )
    add(
        "--data",
        required=True,
        metavar="SHARDS",
        help="labelled shards with train, validation and test splits",
    )
    add("--out", required=True, metavar="DIR", help="folder for everything that is written")
    add("--task", default="all", help="label tasks, comma-separated, or all (default)")
    add("--seeds", type=int, default=3, help="draws of each perturbation (default 3)")
    add(
        "--embeddings",
        metavar="FILE",
        help="embeddings of all splits (default OUT/embeddings.npz; made if not there)",
    )
    add("--limit", type=int, help="at most so many test records, drawn by patient (default all)")
    add(
        "--derive_records",
        type=int,
        default=256,
        help="test records whose leads are derived (default 256)",
    )
    add(
        "--train_records",
        type=int,
        default=1000,
        help="training records of retrained probes (default 1000)",
    )
    add("--resamples", type=int, default=300, help="bootstrap resamples (default 300)")
    add("--page", metavar="FILE", help="also write the tables into a section of this page")
    add(
        "--section",
        metavar="NAME",
        default="robustness",
        help="name of that section (default robustness)",
    )
    args = parser.parse_args(argv)
    for name in ("seeds", "derive_records", "train_records", "resamples"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name} must be 1 or more")
    tasks = choose_tasks(args.task, list(read_metadata(args.data)["tasks"]), args.data)
    model, out = LVCG.load(args.checkpoint), Path(args.out)
    embeddings = Path(args.embeddings) if args.embeddings else out / "embeddings.npz"
    if args.embeddings and not embeddings.is_file():
        raise InputError(
            f"{embeddings}: no such embeddings file; write it with lvcg embed, or leave it out"
        )
    bench, notes = open_bench(model, args.data, embeddings, args.limit)
    used = {f"{w['record_id']}#{w['window']}" for w in bench.windows}
    entries = [
        e
        for e in list_entries([ShardSet(args.data, "test")])
        if f"{e.record_id}#{e.window}" in used
    ]
    entries = sorted(entries, key=lambda e: ticket(e.patient_id))[: args.derive_records]

    moved = moved_electrodes(bench, entries, tasks, args.seeds, args.resamples)
    fewer = fewer_leads(bench, args.data, entries, tasks, args.train_records, args.resamples)
    notes += [
        f"Model {model.checkpoint}, {len(bench.windows)} test records; beats were found with all leads."
    ]
    text = to_text(moved, fewer, notes)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "format": "lvcg-robustness-1",
        "notes": notes,
        "moved_electrodes": moved,
        "fewer_leads": fewer,
    }
    (out / "robustness.json").write_text(to_json(document))
    (out / "table.md").write_text(text)
    draw_perturbation(out / "perturbation.svg", moved)
    draw_sparsity(out / "sparsity.svg", fewer)
    if args.page:
        there = os.path.relpath(out, Path(args.page).parent)
        pictures = f"![Moved electrodes]({there}/perturbation.svg)\n\n![Fewer leads]({there}/sparsity.svg)\n"
        title = "Moved electrodes and fewer leads"
        put_on_page(args.page, args.section, title, "robustness", argv, f"{text}\n{pictures}")
    print(text)
    print(f"robustness.json, table.md, perturbation.svg, sparsity.svg: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
