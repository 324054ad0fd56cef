"""Packaged weights: they embed as the run did, by name and offline; damage and typing errors are
told in one line."""

import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from helpers.commands import ROOT

from data_prep.base.errors import InputError
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG
from lvcg_jax.config.files import differences
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.embed.table import load_table
from lvcg_jax.export import __main__ as export_door
from lvcg_jax.export import package_weights
from lvcg_jax.reconstruct import __main__ as reconstruct_door
from lvcg_jax.report import __main__ as report_door
from lvcg_jax.runs import weights

FRESH = """
import socket, sys
def refuse(*_): raise OSError("no network here")
socket.socket.connect = socket.getaddrinfo = refuse
from pathlib import Path
from lvcg_jax import LVCG
from lvcg_jax.runs import weights
from data_prep.formats.any_file import read_any
weights.PACKAGED = Path(sys.argv[1])
record = read_any(sys.argv[2])
found = LVCG.load("paper").embed(record.signal, record.rate, record.leads)
late = {"grain", "orbax", "optax", "tensorflow_datasets", "tensorflow", "pandas"}
late |= {"wfdb", "sklearn"}
print(found.mean.tobytes().hex(), sorted(late & sys.modules.keys()))
"""


@pytest.fixture
def here(packaged, monkeypatch):
    """The packaged toy weights, in the place of the real ones."""
    monkeypatch.setattr(weights, "PACKAGED", packaged)
    return packaged


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """An installation without weights."""
    monkeypatch.setattr(weights, "PACKAGED", tmp_path / "absent")


@pytest.fixture(scope="module")
def ecg():
    return make_record(patient=3, rate=500)[0]


def test_a_name_embeds_as_the_run_did_and_the_same_every_time(here, model, ecg):
    one, two = LVCG.load("paper"), LVCG.load("paper")
    assert (
        re.fullmatch(r"paper#[0-9a-f]{8}", one.checkpoint)
        and one.checkpoint == two.checkpoint != model.checkpoint
    )
    assert one.preprocess.hash() == model.preprocess.hash()
    first, second, own = (found.embed(ecg, 500, LEADS).mean for found in (one, two, model))
    np.testing.assert_array_equal(first, second)
    assert 0 < np.abs(first - own).max() < 0.01 * np.abs(own).max()
    assert first @ own / np.linalg.norm(first) / np.linalg.norm(own) > 0.9999
    assert [
        line for line in differences(model.config, one.config) if not line.startswith("data.")
    ] == []


def test_the_weights_that_are_shipped_embed_and_know_their_data(ecg):
    assert weights.names() == ["best", "paper", "small"]
    for name in weights.names():
        found = LVCG.load(name).embed(ecg, 500, LEADS)
        assert np.isfinite(found.mean).all() and found.mean.std() > 0.01
        assert {
            part: values.shape[-1] for part, values in found.parts.items()
        } == weights.read_facts(name)["parts"]
        card = (weights.PACKAGED / f"{name}.md").read_text()
        scored = "LVCG" if name == "paper" else name
        for words in (
            "CC BY 4.0",
            f"| super | {scored} |",
            "| super | median beat |",
            "not for diagnosis",
        ):
            assert words in card, words


def test_files_say_what_the_weights_are_and_nothing_of_the_machine(
    here, model, trained_run, shards_dir
):
    facts, card = json.loads((here / "paper.json").read_text()), (here / "paper.md").read_text()
    data = (here / "paper.safetensors").read_bytes()
    assert facts["sha256"] == hashlib.sha256(data).hexdigest()
    # without its header
    assert len(data) - int.from_bytes(data[:8], "little") < 0.6 * 4 * facts["parameters"]
    assert facts["checkpoint"] == model.checkpoint and f"@{facts['step']}#" in model.checkpoint
    assert (
        facts["preprocess_hash"] == model.preprocess.hash()
        and facts["run"]["validation_best"]["loss"] > 0
    )
    assert set(facts["lead_sizes_mv"]) >= {"II", "V2"} and 0.02 < facts["lead_sizes_mv"]["V2"] < 2
    for words in (
        "not for diagnosis",
        "MIT licence",
        "synthetic ECGs of this program",
        "cosine within",
        "None were",
    ):
        assert words in card, words
    command = re.search(r"lvcg train (.*)", card)[0]
    assert (
        "--config=configs/pretrain.py:paper" in command and "--config.model.token_dim=16" in command
    )
    assert "'--config.model.stage_features=(8, 16)'" in command
    for text in (json.dumps(facts), card):
        assert (
            str(trained_run.parent) not in text
            and str(shards_dir) not in text
            and str(ROOT) not in text
        )


def test_card_names_the_licences_of_real_corpora():
    words = package_weights.licence_words(["ptbxl", "cpsc2018", "csn"])
    assert words.count("CC BY 4.0") == 3 and "PTB-XL" in words and "Zheng" in words


def test_half_precision_only_where_it_keeps_the_size():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 8, 16)).astype(np.float32)
    kernel[0, 0, 0] = 1e-7  # too small for half precision, and of no weight among the others
    assert weights.halve(kernel).dtype == np.float16
    for wide in (1e6, 1e-6, 3e-8):  # overflow, a coarse number, zero
        assert weights.halve(np.array([1.0, wide, 0.0], np.float32)).dtype == np.float32
    assert weights.halve(np.full((4, 4), 1e6, np.float32)).dtype == np.float32
    variables = {
        "params": {"a": {"kernel": kernel}},
        "batch_stats": {"a": {"var": np.array([2e5, 1], np.float32)}},
    }
    again = weights.from_bytes(weights.to_bytes(variables))
    np.testing.assert_array_equal(
        again["batch_stats"]["a"]["var"], variables["batch_stats"]["a"]["var"]
    )
    np.testing.assert_allclose(again["params"]["a"]["kernel"], kernel, rtol=5e-4, atol=1e-7)
    assert again["params"]["a"]["kernel"].dtype == np.float32
    assert (
        weights.from_bytes(weights.to_bytes({"params": {"x": kernel}, "batch_stats": {}}))[
            "batch_stats"
        ]
        == {}
    )


def test_places_of_the_training_machine_do_not_travel(model, tmp_path):
    config = model.config.copy_and_resolve_references()
    rows = np.eye(3)[np.arange(12) % 3].tolist()
    (tmp_path / "rows.json").write_text(json.dumps(dict(zip(LEADS, rows, strict=True))))
    config.geometry.matrix, config.data.dir = str(tmp_path / "rows.json"), str(tmp_path)
    found = package_weights.portable_config(config)
    assert str(tmp_path) not in found.to_json() and np.array_equal(found.geometry.matrix, rows)


@pytest.mark.parametrize(
    "file, damage, words",
    [
        ("paper.safetensors", lambda data: data[:-1], "checksum"),
        (
            "paper.safetensors",
            lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
            "checksum",
        ),
        ("paper.safetensors", None, "No such file"),
        ("paper.json", lambda data: data[:50], "no readable JSON"),
        ("paper.json", lambda data: data.replace(b'"format": 1', b'"format": 99'), "format 99"),
        ("paper.json", lambda data: data.replace(b'"sha256"', b'"sha"'), "no sha256"),
        (
            "paper.json",
            lambda data: data.replace(b'"rr_max": 2.0', b'"rr_max": 2.1'),
            "its checksum",
        ),
        ("paper.json", lambda data: b"[]", "no facts"),
    ],
)
def test_a_damaged_file_is_told_with_the_remedy(
    packaged, tmp_path, monkeypatch, file, damage, words
):
    monkeypatch.setattr(weights, "PACKAGED", tmp_path)
    for name in ("paper.safetensors", "paper.json"):
        data = (packaged / name).read_bytes()
        if name != file:
            (tmp_path / name).write_bytes(data)
        elif damage:
            (tmp_path / name).write_bytes(damage(data))
    with pytest.raises(
        InputError, match=rf"{re.escape(file)} is damaged \(.*{words}.*reinstall"
    ) as error:
        LVCG.load("paper")
    assert "\n" not in str(error.value)


def test_weights_of_another_preprocessing_are_refused(here, monkeypatch):
    monkeypatch.setattr("data_prep.ecg.preprocess.Preprocess.hash", lambda _: "0123")
    with pytest.raises(
        InputError, match="which this version of the code does not do: install the version"
    ):
        LVCG.load("paper")


def test_a_wrong_name_lists_what_there_is(here):
    assert (
        weights.names() == ["paper"]
        and weights.is_packaged("paper")
        and not weights.is_packaged("papers")
    )
    with pytest.raises(
        InputError, match=r"no run directory papers, .*did you mean paper\? packaged are paper"
    ):
        LVCG.load("papers")
    with pytest.raises(InputError, match=r"no run directory runs/nothing, .*packaged are paper"):
        LVCG.load("runs/nothing")
    with pytest.raises(InputError, match="--which=latest is for run directories"):
        LVCG.load("paper", "latest")


def test_a_run_directory_goes_before_weights_of_its_name(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper").mkdir()
    assert not weights.is_packaged("paper")
    with pytest.raises(InputError, match="no config.json in paper"):
        LVCG.load("paper")


COMMANDS = {
    "embed": (embed_door.main, ["--record=ECG", "--out=OUT/e.npz"]),
    "export": (export_door.main, ["--out=OUT/model.stablehlo"]),
    "reconstruct": (
        reconstruct_door.main,
        ["--record=ECG", "--visible=I,II,V2", "--methods=lvcg", "--out=OUT"],
    ),
    "report": (report_door.main, ["--record=ECG", "--out=OUT/page.html"]),
}


def run_command(name, raw_corpus, out, *more):
    main, flags = COMMANDS[name]
    header = next(raw_corpus.rglob("*.hea"))
    return main(
        [*(flag.replace("ECG", str(header)).replace("OUT", str(out)) for flag in flags), *more]
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_without_weights_a_command_asks_for_a_checkpoint(nothing, raw_corpus, tmp_path, name):
    with pytest.raises(InputError, match="no weights 'best' are packaged: give --checkpoint=RUN"):
        run_command(name, raw_corpus, tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_take_packaged_weights_and_say_so(here, raw_corpus, tmp_path, capsys, name):
    assert (
        run_command(name, raw_corpus, tmp_path, *(["--platforms=cpu"] if name == "export" else []))
        == 0
    )
    said, checkpoint = capsys.readouterr().out, LVCG.load("paper").checkpoint
    assert "no --checkpoint given: the packaged weights 'paper'\n" in said
    if name == "embed":
        assert (
            checkpoint in said
            and load_table(tmp_path / "e.npz").metadata["checkpoint"] == checkpoint
        )
    elif name == "export":
        card = (tmp_path / "model.md").read_text()
        assert (
            checkpoint in card
            and "Corpus `synthetic`" in card
            and "Best validation at step" in card
        )
    elif name == "reconstruct":
        assert (
            "the median of the model's training records was taken" in said
            and f"lvcg of {checkpoint}" in said
        )
    else:
        assert checkpoint in (tmp_path / "page.html").read_text()


def test_scores_of_these_weights_are_on_the_card_and_others_refused(tmp_path):
    cells = [
        {"model": name, "fraction": 0.1, "macro_auroc": score}
        for name, score in (("LVCG", 0.9), ("median", 0.7))
    ]
    result = {
        "task": "super",
        "models": ["LVCG", "median"],
        "cells": cells,
        "differences": [],
        "classes": [],
    }
    result |= {"notes": [], "protocol": "ridge", "seeds": 5}
    path = tmp_path / "probe.json"
    document = {
        "format": "lvcg-probe-2",
        "metadata": {"checkpoint": "paper#12345678"},
        "results": [result],
    }
    path.write_text(json.dumps(document))
    # of the run, and once packaged
    card = package_weights.scores_words(path, ["00000000", "12345678"])
    assert "| super | LVCG | 90.0 |" in card and "| super | median | 70.0 |" in card
    with pytest.raises(InputError, match="holds scores of paper#12345678, not of these weights"):
        package_weights.scores_words(path, ["00000000"])
    path.write_text(
        json.dumps(
            document | {"checkpoints": {"LVCG": "paper#12345678", "median": "other@9#87654321"}}
        )
    )
    card = package_weights.scores_words(path, ["87654321"])  # scored beside the first
    assert (
        card.index("| super | median | 70.0 |") < card.index("| super | LVCG | 90.0 |")
        and "Gain" not in card
    )


def test_mistakes_when_packaging(model, trained_run, tmp_path):
    with pytest.raises(InputError, match="--name=../x"):
        package_weights.main([f"--checkpoint={tmp_path}", "--name=../x"])
    with pytest.raises(InputError, match="no run directory nobody"):
        package_weights.main(["--checkpoint=nobody", "--name=paper"])
    with pytest.raises(InputError, match="no licence is known for the corpus 'mine'"):
        package_weights.corpora_of(model.config, trained_run, "ptbxl,mine")
    config = model.config.copy_and_resolve_references()
    config.data.dir = str(tmp_path / "gone")
    with pytest.raises(InputError, match="is not at hand: say what it held, --corpora="):
        package_weights.corpora_of(config, trained_run, None)


def test_the_installation_carries_the_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["lvcg_jax.runs"]
    folder = weights.PACKAGED.relative_to(ROOT / "lvcg_jax" / "runs").as_posix()
    for ending in ("safetensors", "json", "md"):
        assert any(fnmatch.fnmatch(f"{folder}/paper.{ending}", pattern) for pattern in patterns), (
            ending
        )
    assert any(line.startswith("safetensors") for line in project["project"]["dependencies"])


def test_a_fresh_process_without_network_needs_little_more_than_jax(here, raw_corpus, model):
    header = next(raw_corpus.rglob("*.hea"))
    command = [sys.executable, "-c", FRESH, str(here), str(header)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers, _, imported = done.stdout.strip().partition(" ")
    assert imported == "[]"
    assert len(bytes.fromhex(numbers)) == 4 * sum(model.part_sizes.values())
