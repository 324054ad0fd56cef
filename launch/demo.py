"""The whole project once on synthetic ECG: data, pre-training, embeddings, probe with controls,
pictures, summary."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from absl import logging

from data_prep.base.command import run_command
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.ecg_paper import Tracing, write_ecg
from data_prep.ecg.geometry import lead_matrix, lift_matrix
from data_prep.ecg.leads import LEADS, lead_mask
from data_prep.ecg.loops import write_loops
from data_prep.synthetic_heart.records import write_corpus
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_preprocess
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import align_features, save_table
from lvcg_jax.probe import figures
from lvcg_jax.probe.median_beat import median_beat_table
from lvcg_jax.probe.study import probe_task
from lvcg_jax.reconstruct.lead_method import to_mv
from lvcg_jax.reconstruct.methods import NetworkLeads
from lvcg_jax.runs.metrics_log import read_metrics
from lvcg_jax.text.tables import format_results
from lvcg_jax.train.loop import train_and_evaluate

ROOT = Path(__file__).resolve().parents[1]
VISIBLE = ("II", "V2", "V5")  # leads that the reconstruction picture starts from
PACKAGED = "small"  # trained on real ECG; in that picture beside what was trained here
COMMAND = "bash launch/demo.sh"
CORPUS_SEED = 1  # the settings of configs/pretrain.py:demo were chosen on the corpus of seed 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "demo", help="where everything goes"
    )
    parser.add_argument(
        "--config", default=f"{ROOT}/configs/pretrain.py:demo", help="config file and variant"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="trainings, each with its own random weights as control",
    )
    args = parser.parse_args(argv)
    logging.set_verbosity(logging.WARNING)
    began = time.monotonic()
    out, config = args.out, read_config_file(args.config)

    patients = config.data.synthetic_patients
    print(f"1/5  synthetic ECG of {patients} patients, as WFDB records and as shards")
    data = out / "data"
    if not (data / "dataset.json").exists():
        write_corpus(out / "raw", patients=patients, seed=CORPUS_SEED, progress=True)
        build(
            open_corpus("synthetic", out / "raw"), data, make_preprocess(config), store_signal=True
        )

    print(f"2/5  pre-training, {args.seeds} seeds of {config.train.steps} steps")
    runs = []
    for seed in range(args.seeds):
        run_config = config.copy_and_resolve_references()
        run_config.data.dir, run_config.seed = str(data), seed
        runs.append(out / f"run-seed{seed}")
        if train_and_evaluate(run_config, runs[-1]) != "finished":
            return 0

    print("3/5  embeddings of the trained models, of random weights, and the median beat")
    tables = {}
    for seed, run in enumerate(runs):
        trained = LVCG.load(run)
        control = LVCG.random(trained.config, seed, ShardSet(data, "train"))
        tables[f"LVCG seed {seed}"] = embed_dataset(trained, data, progress=False)
        tables[f"random seed {seed}"] = embed_dataset(control, data, progress=False)
        save_table(run / "embeddings.npz", tables[f"LVCG seed {seed}"])  # for lvcg report
    tables["median beat"] = median_beat_table(data)
    for name, table in tables.items():
        save_table(out / f"{name.replace(' ', '_')}.npz", table)

    print("4/5  linear probes on the test patients")
    first = next(iter(tables.values()))
    features = {name: align_features(first, table, name) for name, table in tables.items()}
    parts = {name: list(table.parts.values()) for name, table in tables.items()}
    options = {"fractions": (0.01, 0.1, 1.0), "seeds": 3, "parts": parts}
    results = [probe_task(features, first, task, **options) for task in first.tasks]
    for folder in (out, *runs):  # lvcg report finds it in the run directory
        (folder / "probe.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "probe.md").write_text(format_results(results, per_class=True))

    print("5/5  pictures")
    draw(out, data, runs[0], first, results)
    print(summary(out, results, args.seeds, time.monotonic() - began))
    return 0


def scores(result: dict, kind: str, fraction: float) -> np.ndarray:
    """Test macro AUROC in points of every model whose name begins with `kind`."""
    cells = [
        c for c in result["cells"] if c["model"].startswith(kind) and c["fraction"] == fraction
    ]
    return np.array([100 * c["macro_auroc"] for c in cells])


def summary(out: Path, results: list[dict], seeds: int, seconds: float) -> str:
    """What came out, in a dozen lines."""
    lines = [
        "",
        f"Test macro AUROC on patients never seen (mean of {seeds} trainings, smallest to largest)",
        "",
    ]
    kinds = ("LVCG", "random", "median beat")
    lines.append(f"{'task':<12}{'labels':>8}" + "".join(f"{kind:>22}" for kind in kinds))
    for result in results:
        for fraction in (0.01, 0.1, 1.0):
            row = f"{result['task']:<12}{f'{fraction:.0%}':>8}"
            for kind in kinds:
                s = scores(result, kind, fraction)
                spread = f" ({s.min():.1f}-{s.max():.1f})" if len(s) > 1 else ""
                row += f"{f'{s.mean():.1f}{spread}':>22}"
            lines.append(row)
    lines += ["", "LVCG minus random weights at 100% of the labels, by seed:"]
    for result in results:
        gains = scores(result, "LVCG", 1.0) - scores(result, "random", 1.0)
        lines.append(
            f"  {result['task']:<12}" + ", ".join(f"{gain:+.1f}" for gain in gains) + " points"
        )
    lines += [
        "",
        f"Took {seconds / 60:.1f} minutes. Everything is in {out}:",
        "  run-seed*/   config, metrics, checkpoints       *.npz      embeddings by record",
        "  probe.md     all scores, also by class          *.svg      pictures",
        "  data/        shards, ledger.csv                 raw/       WFDB records and labels.csv",
    ]
    return "\n".join(lines)


def draw(out: Path, data: Path, run: Path, table, results: list[dict]) -> None:
    """One record, its heart vector, a reconstruction, the training curves, the probe and a map of
    the embedding."""
    shards = ShardSet(data, "test")
    example = shards[0]
    rate = shards.preprocess.rate
    signal = to_mv(example["signal"].astype(np.float32), example)
    title = f"record {example['record_id']}"
    peaks = example["start"][1:]
    write_ecg(out / "record.svg", Tracing(signal, rate, r_peaks=peaks), title, COMMAND)

    lift = lift_matrix(lead_matrix("paper"), np.ones(len(LEADS), bool))
    vcg = lift @ (signal - example["offset"][:, None])
    write_loops(out / "vcg.svg", vcg, rate, title, COMMAND)

    view = example | {"visible": lead_mask(np.isin(LEADS, VISIBLE))}
    hidden = np.array([lead not in VISIBLE for lead in LEADS])[:, None]
    overlays = {}
    for name, checkpoint in (("trained here", run), ("packaged", PACKAGED)):
        (stitched,) = NetworkLeads(LVCG.load(checkpoint), {"lvcg": "both"}, rows=1).predict([view])[
            "lvcg"
        ]
        overlays[name] = np.where(hidden, to_mv(stitched, example), np.nan)
    tracing = Tracing(signal, rate, overlays, hidden[:, 0])
    words = f"{title}: nine leads from {', '.join(VISIBLE)}"
    write_ecg(out / "reconstruction.svg", tracing, words, COMMAND)

    figures.draw_training(
        out / "training.svg",
        read_metrics(run),
        terms=("loss", "ecg", "vcg", "temp"),
        caption=COMMAND,
    )
    figures.draw_probe(out / "probe.svg", results, caption=COMMAND)
    rows = table.split == "test"
    names = [
        next(iter(labels["diagnosis"]), "none")
        for labels, keep in zip(table.labels, rows, strict=True)
        if keep
    ]
    figures.draw_embedding(out / "embedding.svg", table.embedding[rows], names, caption=COMMAND)


if __name__ == "__main__":
    run_command(main)
