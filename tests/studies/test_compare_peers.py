"""One command trains every method at one budget and writes the page: rates are chosen by
validation, rows that do not beat random weights are marked, and electrodes move in mV."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.commands import QUICK, get_config
from helpers.tiny_peers import random_windows, tiny_peer

from data_prep.base.errors import InputError
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.leads import LEADS
from lvcg_jax.embed.table import Table, take_rows
from lvcg_jax.probe.study import LinearFit
from lvcg_jax.studies.data_sets import DataSet, describe_data
from lvcg_jax.studies.kept import Features
from lvcg_jax.studies.moved_leads import mix, moves, seen_from
from lvcg_jax.studies.peers import probes, runs
from lvcg_jax.studies.peers.__main__ import main
from lvcg_jax.studies.peers.page import (
    BELOW,
    PICTURES,
    UNCLEAR,
    difference,
    draw_pictures,
    mark_rows,
    section_text,
    why_not,
)
from lvcg_jax.studies.peers.probes import without_shape
from lvcg_jax.studies.peers.rows import FEW_LEADS, OWN, Row
from lvcg_jax.studies.peers.runs import choose_rate
from lvcg_jax.text.tables import cells_of, points

# ---- Choosing and marking


def trial(rate, score, reason=""):
    return {"rate": rate, "score": score, "reason": reason}


def test_the_rate_with_the_higher_validation_score_is_chosen_and_a_failed_one_never():
    assert choose_rate([trial(1e-3, 0.7), trial(3e-4, 0.8)]) == 3e-4
    assert choose_rate([trial(1e-3, 0.7), trial(3e-4, 0.7)]) == 1e-3
    assert choose_rate([trial(1e-3, None, "diverged"), trial(3e-4, 0.5)]) == 3e-4
    assert choose_rate([trial(1e-3, None, "diverged"), trial(3e-4, None, "too")]) is None


def gap(model, control, value, low, high):
    names = {"model": model, "control": control, "fraction": 1.0}
    return names | {"difference": value, "low": low, "high": high}


USED = {"numbers": 128}


def test_rows_that_do_not_clearly_beat_random_weights_are_marked_with_what_is_known_of_them():
    rows = [
        {"title": title, "kind": kind, "encoder": "ResNet", "facts": facts}
        for title, kind, facts in (
            ("SimCLR", "method", {}),
            ("BYOL", "method", USED | {"rank": 1.26, "first_loss": 2.0, "last_loss": 1.0}),
            ("SimSiam", "method", {"collapsed": True}),
            ("random ResNet", "control", USED | {"rank": 1.9}),
        )
    ]
    random = [
        gap("random ResNet", "SimCLR", -0.05, -0.06, -0.04),  # clearly behind SimCLR
        gap("random ResNet", "BYOL", -0.01, -0.03, 0.01),
        gap("random ResNet", "SimSiam", 0.2, 0.1, 0.3),
        gap("LVCG", "SimSiam", 0.3, 0.2, 0.4),
    ]
    result = {"differences": random}
    marks = mark_rows(result, rows)
    assert {title: found["mark"] for title, found in marks.items()} == {
        "BYOL": UNCLEAR,
        "SimSiam": BELOW,
    }
    words = why_not(rows[1], marks["BYOL"], rows[3])
    assert "+1.0 [-1.0, +3.0] over random ResNet; its 128 numbers use 1.3 dim" in words
    assert "those of random weights 1.9; its loss fell, from 2 to 1" in words
    assert "-20.0 [-30.0, -10.0] over random ResNet; it has collapsed" in why_not(
        rows[2], marks["SimSiam"], rows[3]
    )
    assert difference(result, "SimSiam", "LVCG")["difference"] == -0.3
    assert difference(result, "SimSiam", "BYOL") is None


def test_the_shape_of_beats_is_the_end_of_the_structure_part():
    names = np.array(["a", "b"])
    embedding = np.arange(14, dtype=np.float32).reshape(2, 7)
    parts = {"structure": 4, "dynamics": 2, "rhythm": 1}
    cut = without_shape(Table(names, names, names, [{}, {}], embedding, parts, {}), 3)
    assert cut.embedding.tolist() == [[0, 4, 5, 6], [7, 11, 12, 13]]
    assert cut.parts == parts | {"structure": 1}


# ---- Probes and page, of made-up embeddings

CLASSES = ("A", "B")
DATA = {"ptbxl": ("super", "rhythm"), "cpsc2018": ("diagnosis",)}


def made_up(data, signal, seed, test_only=False, rows=120):
    """Embeddings whose first numbers follow the labels as closely as `signal` says."""
    rng = np.random.default_rng(1)
    tasks = DATA[data]
    labels = [
        {task: [c for c in CLASSES if rng.random() < 0.4] for task in tasks} for _ in range(rows)
    ]
    truth = np.array([[c in row[tasks[0]] for c in CLASSES] for row in labels])
    noise = np.random.default_rng(seed).normal(size=(rows, 4))
    x = np.float32(signal * np.pad(truth, ((0, 0), (0, 2))) + noise)
    split = np.array([("train", "train", "validation", "test")[i % 4] for i in range(rows)])
    ids = np.array([f"r{i:03d}" for i in range(rows)])
    table = Table(ids, ids, split, labels, x, {"structure": 3, "rhythm": 1})
    return take_rows(table, split == "test") if test_only else table


def made_up_rows():
    """Two methods, a longer training of one, a failed one, and controls."""
    rows, seeds = [], itertools.count()
    for title, kind, encoder, signal in (
        ("LVCG", "method", "LVCG", 3.0),
        ("ST-MEM", "method", "transformer", 0.3),
        ("LVCG, 4 x longer", "method", "LVCG", 4.0),
        ("random LVCG", "control", "LVCG", 0.5),
        ("random transformer", "control", "transformer", 1.5),
        ("median beat", "control", "", 1.0),
    ):

        def features(what, data="ptbxl", test_only=False, title=title, signal=signal):
            table = made_up(data, signal, next(seeds), test_only)
            return Features(f"{title} {what}", [title, data, what], lambda: table)

        row = Row(title, kind, encoder, steps=8)
        row.full = {data: features(data, data) for data in DATA}
        if title in ("LVCG", "ST-MEM"):
            row.few = {name: features(name) for name in FEW_LEADS}
            row.moved = {name: [features(name, test_only=True)] for name in moves(1)}
            trials = [trial(1e-3, 0.7), trial(3e-4, None, "diverged")]
            row.facts = {"rates": trials, "rate": 1e-3, "validation": 0.7}
            row.facts |= {"numbers": 4, "rank": 2.5}
        elif kind == "method":
            row.facts = {"short": "LVCG"}
        rows.append(row)
    return [*rows, Row("BYOL", "method", "ResNet", reason="it diverged")]


def test_the_page_shows_every_number_and_every_reason(tmp_path, monkeypatch):
    class Head(LinearFit):
        def __init__(self, embedding, rows):
            super().__init__(embedding[rows], "ridge")

    monkeypatch.setattr(probes, "read_facts", lambda data, table: None)
    monkeypatch.setattr(probes, "join_inputs", lambda facts, x, table, keys: x)
    monkeypatch.setattr(probes, "AttentionFit", Head)
    size = {"examples": 30, "records": 30, "patients": 30}
    metadata = {"splits": {"test": size}, "split_rule": "", "windows": "", "preprocess_hash": ""}
    sets = [
        DataSet(name, Path(name), metadata | {"corpus": name}, list(tasks))
        for name, tasks in DATA.items()
    ]
    args = SimpleNamespace(out=tmp_path, fractions=[0.1, 1.0], seeds=1, resamples=30)
    args.draw, args.attention = "plain", ["super"]
    (tmp_path / "embeddings").mkdir()
    rows = made_up_rows()
    made = probes.Probes(rows, sets, args, lambda path, make, words: make(), modes=2)
    cost = {"gflop": 0.5}
    document = {
        "command": "lvcg compare_peers", "steps": 8, "rate_steps": 1, "rates": [1e-3, 3e-4],
        "batch_size": 4, "limit": 40, "draws": 1, "draw": "plain",
        "data_sets": [describe_data(data) for data in sets],
        "rows": [row.to_dict() for row in rows], "results": made.linear(),
        "attention": made.attention(), "few_leads": made.few_leads(), "moved": made.moved(),
        "costs": {
            "lvcg": {"parameters": 10**6, "train": cost, "embed": cost},
            "byol": {"reason": "out of memory"},
        },
    }  # fmt: skip
    document = json.loads(json.dumps(document))
    text = section_text(document)
    result = document["results"][0]
    for title in ("LVCG", "ST-MEM", "random LVCG", "LVCG, no beat shapes"):
        cell = cells_of(result, title)[1.0]
        assert points(cell["macro_auroc"], cell["low"], cell["high"]) in text
    longer = difference(result, "LVCG, 4 x longer", "LVCG")
    assert points(longer["difference"], longer["low"], longer["high"], "+") in text
    assert f"| ST-MEM {BELOW} |" in text and "- ST-MEM: -" in text  # random weights are better
    assert "- BYOL: no scores, it diverged" in text and "out of memory" in text
    assert "| LVCG | 70.0 | diverged | 0.001 | 70.0 |" in text
    assert "| ST-MEM | 4 | 2.5 |" in text
    assert "| ptbxl super | LVCG |" in text.split("### Attention heads")[1]
    assert "| HeartLang (linear) |" in text  # published
    assert text.count("<details>") == text.count("</details>") == 2
    pictures = draw_pictures(document, tmp_path / "figures")
    assert [path.name for path in pictures] == list(PICTURES)
    assert all(f"(figures/{name})" in text for name in PICTURES)


# ---- Electrodes elsewhere


def normalised_window(seed=0):
    """A record as shards hold it: each lead with mean 0 and deviation 1, one beat of its own
    samples."""
    window = random_windows((2,), seed)[0]
    signal = window["signal"].astype(np.float64)
    signal = (signal - signal.mean(1, keepdims=True)) / signal.std(1, keepdims=True)
    return window | {"signal": signal, "beats": signal[None, :, :16]}


def in_mv(window, name="signal"):
    return np.asarray(window[name]) * window["scale"][:, None]


def test_electrodes_that_are_mixed_up_move_leads_with_their_sizes():
    window = normalised_window()
    same = mix(np.eye(12))(window)
    for name in ("signal", "beats", "scale"):
        np.testing.assert_allclose(same[name], window[name], rtol=1e-4, atol=1e-5)
    (swap,) = moves(1)["arm electrodes swapped"]
    found, true = in_mv(swap(window)), dict(zip(LEADS, in_mv(window), strict=True))
    expected = true | {"I": -true["I"], "II": true["III"], "III": true["II"]}
    expected |= {"aVR": true["aVL"], "aVL": true["aVR"]}
    for lead, values in zip(LEADS, found, strict=True):
        np.testing.assert_allclose(values, expected[lead], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(swap(window)["beats"][0], swap(window)["signal"][:, :16], atol=1e-4)


def test_other_directions_see_the_same_heart_vector_and_leave_what_no_vector_explains():
    a, rng = lead_matrix("paper"), np.random.default_rng(0)
    moved = a + 0.1 * rng.normal(size=a.shape)
    vector = rng.normal(size=(3, 50))
    rest = rng.normal(size=(12, 50))
    rest -= a @ np.linalg.pinv(a) @ rest
    mixture = seen_from(moved)
    np.testing.assert_allclose(mixture @ (a @ vector + rest), moved @ vector + rest, atol=1e-9)
    np.testing.assert_allclose(seen_from(a), np.eye(12), atol=1e-12)


# ---- The command


def tiny(method, size, data):
    """Configs that compile in a moment; BYOL's is refused."""
    config = tiny_peer(method) if method != OWN else get_config("smoke")
    if method == OWN:
        config.update_from_flattened_dict(QUICK)
        config.preprocess.update(tiny_peer("simclr").preprocess.to_dict())
        config.model.beat_modes = (2, 1)
    config.data.batch_size = 1 if method == "byol" else 4
    config.train.validate_records = 4
    return config


@pytest.fixture
def flags(signal_shards, tmp_path):
    return [
        f"--data=toy={signal_shards}", f"--out={tmp_path / 'out'}", "--methods=lvcg,simclr,byol",
        f"--page={tmp_path / 'docs' / 'peers.md'}", "--steps=2", "--long=1", "--packaged=",
        "--attention=", "--limit=40", "--draws=1", "--seeds=1", "--resamples=20", "--no_timing",
        "--fractions=1", "--task=rhythm",
    ]  # fmt: skip


def test_one_command_trains_compares_and_continues(flags, tmp_path, monkeypatch, capsys):
    trained = []

    def note(config, run):
        trained.append(run.name.split("-")[0])
        return train(config, run)

    def judge(table, **options):  # the corpus is too small for halves of its validation patients
        assert set(table.split) == {"train", "validation"}
        return {"mean": float(table.embedding.std())}

    train = runs.train_and_evaluate
    monkeypatch.setattr(runs, "score_table", judge)
    monkeypatch.setattr(runs, "train_and_evaluate", note)
    monkeypatch.setattr(runs, "method_config", tiny)
    # one training does for the trial of a rate, the short and the longer row
    monkeypatch.setattr(runs, "RATE_SHARE", 1)
    monkeypatch.setattr(runs, "LONGER", 1)
    monkeypatch.setattr(runs, "learning_rates", lambda: [1e-3])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "peers.md").write_text("# Peers\n\nWords that stay.\n")
    assert main(flags) == 0
    assert trained[:3] == ["lvcg", "simclr", "byol"]
    document = json.loads((tmp_path / "out" / "compare.json").read_text())
    text = (tmp_path / "docs" / "peers.md").read_text()
    rows = {row["title"]: row for row in document["rows"]}
    assert list(rows)[:3] == ["LVCG", "SimCLR", "BYOL"]

    # everything that has embeddings is scored, and what failed says why
    assert "there would be 1" in rows["BYOL"]["reason"] and "- BYOL: no scores, " in text
    (long,) = (title for title in rows if title.endswith(", 1 x longer"))
    (result,) = document["results"]
    random = ["random LVCG", "random ResNet", "median beat"]
    assert result["models"] == ["LVCG", "SimCLR", long, *random, "LVCG, no beat shapes"]
    assert all(cell["low"] <= cell["macro_auroc"] <= cell["high"] for cell in result["cells"])
    for title in ("LVCG", "SimCLR"):
        assert difference(result, title, f"random {rows[title]['encoder']}") is not None
    assert [x["leads"] for x in document["few_leads"]] == ["12 leads", "3 leads", "1 lead"]
    assert [x["row"] for x in document["moved"]] == ["LVCG", "SimCLR"]
    assert set(moves(1)) < set(document["moved"][0]["models"])
    assert document["costs"]["simclr"]["train"]["gflop"] > 0
    assert "reason" in document["costs"]["byol"]
    assert text.startswith("# Peers\n\nWords that stay.\n") and "### Fewer leads" in text
    assert len(list((tmp_path / "docs" / "figures").glob("peers-*.svg"))) == 3
    assert "TFLOP of training" in capsys.readouterr().out

    # the same command again only tries what failed
    trained.clear()
    assert main(flags) == 0
    assert set(trained) == {"byol"}
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == document


def test_mistakes_are_told_before_anything_is_trained(flags, shards_dir, tmp_path):
    for words, flag in (
        ("unknown 'dino', choose from lvcg, simclr", "--methods=lvcg,dino"),
        ("all are compared with lvcg", "--methods=simclr"),
        ("no weights 'huge'", "--packaged=huge"),
    ):
        with pytest.raises(InputError, match=words):
            main([*flags, flag])
    with pytest.raises(InputError, match="--store_signal"):
        main([f"--data={shards_dir}", *flags[1:]])
