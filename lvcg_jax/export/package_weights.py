"""Puts the best checkpoint of a run into the package, so that LVCG.load(NAME) works wherever it is
installed.

    lvcg package_weights --checkpoint=RUN --name=best --scores=RUN/eval/results-RUN.json

Writes NAME.safetensors, NAME.json and the model card NAME.md beside the code, see runs/weights.py,
and says how much half precision moves the embeddings of a few synthetic records. --scores is what
lvcg results, or lvcg probe --out, wrote for this checkpoint, before or after it was packaged.
"""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from data_prep.base.command import Parser, run_command
from data_prep.base.errors import InputError
from data_prep.base.files import require_local, write_whole
from data_prep.dataset.shards import ShardSet
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.config.fields import FREE_FIELDS, flatten
from lvcg_jax.config.files import PAPER_CONFIG, as_tuples, differences, read_config_file
from lvcg_jax.config.folders import read_folders, trained_folders
from lvcg_jax.config.inputs import as_geometry
from lvcg_jax.data.entries import list_entries
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.export.card import LICENCES, data_words, licence_words, training_words, weights_card
from lvcg_jax.reconstruct.one_record import typical_sizes
from lvcg_jax.reconstruct.views import Windows
from lvcg_jax.runs import weights
from lvcg_jax.runs.history import describe_run, trained_corpora
from lvcg_jax.runs.weights import weights_hash
from lvcg_jax.text.documents import read_probe
from lvcg_jax.text.tables import auroc_row, fractions_of, gain_row, markdown_table, percent

RECORDS = 8  # synthetic ones, of as many patients, for the comparison
PRETRAINING_WORDS = (
    "Pre-trained without labels on {corpora}: where that is the corpus of the scores, most"
    " published models did not have this advantage. What others reach is in docs/results.md."
)
SIZE_RECORDS = 2_000  # training records for the usual size of a lead


def portable_config(config: ConfigDict) -> ConfigDict:
    """The config without places of the training machine: no data folder, of other paths their last
    name, and lead directions as numbers where they came from a file."""
    data = json.loads(config.to_json())
    data["geometry"]["matrix"] = as_geometry(config.geometry.matrix)
    data["data"]["dir"] = ""
    for section in (value for value in data.values() if isinstance(value, dict)):
        section |= {
            name: Path(x).name for name, x in section.items() if isinstance(x, str) and "/" in x
        }
    return ConfigDict(as_tuples(data))


def train_command(config: ConfigDict, name: str, shards: str = "SHARDS") -> str:
    """The command of such a training: the preset of this name, or else the paper's, and the fields
    that differ; `shards` stands for the data."""
    file = PAPER_CONFIG
    try:
        preset, file = read_config_file(f"{file}:{name}"), f"{file}:{name}"
    except ValueError:
        preset = read_config_file(PAPER_CONFIG)
    usual, flags = (
        flatten(preset),
        [f"--config={file}", f"--workdir=runs/{name}", f"--config.data.dir={shards}"],
    )
    for field, value in flatten(config).items():
        if field not in FREE_FIELDS and value != usual.get(field):
            flags.append(shlex.quote(f"--config.{field}={as_tuples(value)}"))
    return " ".join(["lvcg train", *flags])


def difference_words(config: ConfigDict, corpora: Sequence[str]) -> str:
    """In what these weights are not the paper's: data, and every field that differs."""
    changes = ", ".join(
        f"`{change}`" for change in differences(read_config_file(PAPER_CONFIG), config)
    )
    return (
        "Not the weights of the LVCG paper, which were trained on 800,000 records of MIMIC-IV-ECG:"
        f" these were trained on {', '.join(LICENCES[name][0] for name in corpora)}. Differences"
        f" from the paper's table of settings (`{PAPER_CONFIG}`): {changes or 'none'}."
    )


def portable_shards(config: ConfigDict) -> str:
    """data.dir for a command: SHARDS, or of a mixture the last names of the folders, with the
    weights."""
    folders = read_folders(config.data.dir)
    if [folder.weight for folder in folders] in ([], [1]):
        return "SHARDS"
    return ",".join(f"{folder.path.name}:{folder.weight:g}" for folder in folders)


def corpora_of(config: ConfigDict, run: Path, given: str | None) -> list[str]:
    """Names of the corpora that the run was trained on: as given, or as its data sets say."""
    if given is None:
        try:
            given = ",".join(trained_corpora(config, run))
        except InputError:
            raise InputError(
                f"the data set of {run} is not at hand: say what it held, --corpora=ptbxl,csn"
            ) from None
    names = given.split(",")
    for name in names:
        if name not in LICENCES:
            known = f"licences are known of {', '.join(LICENCES)}"
            raise InputError(
                f"no licence is known for the corpus '{name}': give --corpora=...; {known}"
            )
    return names


def lead_sizes(model: LVCG, run: Path) -> dict:
    """Facts on the usual sizes in mV of leads in training records; none without data, or if the
    model needs no such thing."""
    folders = [folder.path for folder in trained_folders(model.config, run)]
    if model.preprocess.normalise != "lead" or not all(path.is_dir() for path in folders):
        return {}
    sets = [ShardSet(path, "train") for path in folders]
    return typical_sizes(Windows(list_entries(sets, SIZE_RECORDS))).facts()


def scores_words(path: Path | None, hashes: Sequence[str]) -> str:
    """The tables of a scores file; weights with one of these hashes must be among what was
    scored."""
    if path is None:
        return "None were given when these weights were packaged."
    document = read_probe(path)
    data, results = document.get("data"), document["results"]
    fractions, first = fractions_of(results), results[0]["models"][0]
    made = (document.get("run") or document.get("metadata") or {}).get(
        "checkpoint", "an unnamed model"
    )
    scored = document.get("checkpoints") or {first: made}
    mine = [name for name, checkpoint in scored.items() if checkpoint.rpartition("#")[2] in hashes]
    if not mine:
        raise InputError(
            f"{path} holds scores of {made}, not of these weights ({' or '.join(hashes)})"
        )
    held = f" Corpus `{data['corpus']}`, splits by patient ({data['split_rule']})." if data else ""
    others = [
        name
        for name in results[0]["models"]
        if name != mine[0] and not name.startswith(f"{first}: ")
    ]
    # differences are of the first model; parts of it are left out
    controls = others if mine == [first] else []
    head = [percent(f) for f in fractions]
    scores = [
        [r["task"], name, *auroc_row(r, name, fractions)]
        for r in results
        for name in (mine[0], *others)
    ]
    gains = [
        [r["task"], f"{first} - {name}", *gain_row(r, name, fractions)]
        for r in results
        for name in controls
    ]
    lines = [
        f"Linear probe, protocol {results[0]['protocol']}: test macro AUROC x 100, mean of"
        f" {results[0]['seeds']} label subsets (draw {results[0].get('draw', 'guaranteed')})"
        f" [95% bootstrap over patients], by share of the training labels.{held}",
        "",
        *markdown_table(["task", "features", *head], scores),
    ]
    if controls:
        lines += ["Gain over each control (paired bootstrap):", ""]
        lines += markdown_table(["task", "difference", *head], gains)
    return "\n".join(lines).strip()


def compare(one: LVCG, two: LVCG) -> str:
    """How far apart the embeddings of synthetic records are that two models give."""
    signals, infos = zip(*(make_record(patient=patient) for patient in range(RECORDS)), strict=True)
    rate, leads = infos[0]["rate"], infos[0]["leads"]
    a, b = (
        np.stack([e.mean for e in model.embed(signals, rate, leads)]).astype(float)
        for model in (one, two)
    )  # [r,d]
    cosine = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    spread = float(np.abs(a - b).max() / a.std(0).mean())
    return (
        f"Half precision against the run's own weights, on embeddings of {RECORDS} synthetic"
        f" records: cosine within {1 - cosine.min():.1g} of 1, largest difference {spread:.2g} of"
        " the mean spread of a number over them."
    )


def package(run: Path, name: str, corpora: str | None, scores: Path | None) -> str:
    """Makes the three files; returns a report of them."""
    # the weights in half precision, compared with the run's own
    trained = LVCG.load(run)
    trained.require_heart_vector("lvcg package_weights")
    known = corpora_of(trained.config, run, corpora)
    config = portable_config(trained.config)
    data = weights.to_bytes(trained.variables)
    held = weights.from_bytes(data)
    half = LVCG(config, jax.device_put(held), name)
    difference = compare(trained, half)
    score_text = scores_words(
        scores, [weights_hash(trained.variables), weights_hash(half.variables)]
    )
    if scores:
        score_text += f"\n\n{PRETRAINING_WORDS.format(corpora=', '.join(known))}"
    # what NAME.json and the card say
    facts = {
        "format": weights.FORMAT,
        "name": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "parameters": sum(math.prod(x.shape) for x in jax.tree.leaves(held["params"])),
        "parts": trained.part_sizes,
        "corpora": known,
        **lead_sizes(trained, run),
        "preprocess": trained.preprocess.to_dict(),
        "preprocess_hash": trained.preprocess.hash(),
        "run": {
            k: v for k, v in describe_run(run, trained.checkpoint).items() if k != "differences"
        },
        "config": json.loads(config.to_json()),
    }
    command = train_command(config, name, portable_shards(trained.config))
    facts["card"] = {
        "Data": f"{data_words(trained.config, run)}\n\n{licence_words(known)}",
        "Training": training_words(facts, config, run)
        + f"\n\n{difference_words(config, known)}"
        + (f"\n\n```bash\n{command}\n```" if command else ""),
    }
    facts[weights.FACTS_HASH] = weights.facts_hash(json.loads(json.dumps(facts)))
    # written, and read back as a user will
    weights.PACKAGED.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=1) + "\n"
    files = {
        ".safetensors": data,
        ".json": text.encode(),
        ".md": weights_card(facts, score_text, difference).encode(),
    }
    for ending, content in files.items():
        write_whole(weights.PACKAGED / f"{name}{ending}", content)
    again = LVCG.load(name)
    if again.checkpoint != half.checkpoint:
        raise InputError(
            f"{weights.PACKAGED / name}.safetensors reads as {again.checkpoint}, not as"
            f" {half.checkpoint}"
        )
    sizes = f"{len(data) / 1e6:.2f} MB, {facts['parameters']:,} parameters"
    return (
        f"{trained.checkpoint} -> {again.checkpoint}: {sizes}, in {weights.PACKAGED}\n{difference}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = Parser("package_weights", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="RUN",
        help="run directory of lvcg train",
    )
    add("--name", required=True, help="what the weights are called, e.g. best")
    add(
        "--scores",
        type=Path,
        metavar="FILE",
        help="JSON of lvcg results, or of lvcg probe --out, for the card",
    )
    add(
        "--corpora",
        metavar="ptbxl,csn",
        help="what it was trained on (default: as the run's data set says)",
    )
    args = parser.parse_args(argv)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", args.name):
        raise InputError(f"--name={args.name}: use small letters, digits and '_'")
    require_local(args.checkpoint)
    if not args.checkpoint.is_dir():
        raise InputError(
            f"no run directory {args.checkpoint}: give the --workdir of a training run"
        )
    print(package(args.checkpoint, args.name, args.corpora, args.scores))
    return 0


if __name__ == "__main__":
    run_command(main)
