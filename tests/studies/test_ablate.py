"""Ablations: each is a small change that runs, and one command trains, probes and tabulates them
all."""

import json

import jax
import numpy as np
import pytest
from helpers.commands import CONFIG, QUICK, ROOT, get_config
from helpers.packed_batch import pack, random_records, tiny_config

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.builder import build
from data_prep.ecg.geometry import lead_matrix
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import write_corpus
from lvcg_jax.config.build import make_model
from lvcg_jax.config.fields import flatten
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_preprocess, make_subsets
from lvcg_jax.model.losses import loss_terms
from lvcg_jax.studies import ablate, changes, embeddings
from lvcg_jax.studies.kept import MEDIAN, RANDOM

FILE = ROOT / "configs" / "ablations.py"
NAMES = (
    "ecg_space", "learnable_geometry", "shuffled_geometry", "no_bottleneck", "no_temporal",
    "no_vcg_loss", "vcg_peaks", "dower", "record_norm", "all_subsets",
)  # fmt: skip
BATCH = pack(random_records((4, 2, 5), 16), groups=1, capacity=12)


@pytest.mark.parametrize("name", NAMES)
def test_each_ablation_is_a_small_change_that_trains(name):
    config = read_config_file(f"{FILE}:{name}")
    paper = flatten(get_config("paper"))
    assert 1 <= sum(value != paper[field] for field, value in flatten(config).items()) <= 3
    make_preprocess(config)
    small = tiny_config()
    changes.read_changes(FILE, "ABLATIONS")[name](small)
    model = make_model(small)
    assert len(make_subsets(small)) >= (220 if name == "all_subsets" else 1)

    def loss(key):  # traced, not computed
        variables = model.init(key, BATCH, BATCH["lead_mask"], None, 20)
        outputs, _ = model.apply(
            variables, BATCH, BATCH["lead_mask"] & 7, key, 20, mutable=["batch_stats"]
        )
        return loss_terms(outputs, BATCH, BATCH["lead_mask"] & 7, small.loss)["loss"]

    assert jax.eval_shape(loss, jax.random.key(0)).shape == (1, 3)


def test_the_file_has_exactly_these_and_shuffling_moves_rows_only():
    assert tuple(changes.read_changes(FILE, "ABLATIONS")) == NAMES
    rows, paper = (
        np.array(read_config_file(f"{FILE}:shuffled_geometry").geometry.matrix),
        lead_matrix("paper"),
    )
    assert sorted(map(tuple, rows)) == sorted(map(tuple, paper))
    assert (np.abs(rows - paper).max(1) > 0.1).sum() >= 9
    with pytest.raises(ValueError, match="unknown ablation 'nothing'"):
        read_config_file(f"{FILE}:nothing")


OWN = f"""
import runpy
ABLATIONS = dict(runpy.run_path({str(FILE)!r})["ABLATIONS"])
def broken(c):
    raise RuntimeError("it broke")
def as_it_is(c):
    pass
def no_fit(c):
    c.optim.accumulate = 3
ABLATIONS |= {{f.__name__: f for f in (broken, as_it_is, no_fit)}}
"""


SMALL = f"""
from lvcg_jax.config.files import read_config_file
def get_config():
    c = read_config_file("{CONFIG}:smoke")
    c.model.norm = "layer"
    c.update_from_flattened_dict({QUICK!r})
    return c
"""


@pytest.fixture(scope="module")
def done(quick_shards, tmp_path_factory):
    """The command once: the base and one ablation trained, five that cannot be."""
    folder = tmp_path_factory.mktemp("ablations")
    other_shards = folder / "other"
    write_corpus(folder / "raw", patients=12, seed=5)
    preprocess = Preprocess(beat_samples=QUICK["preprocess.beat_samples"])
    build(open_corpus("synthetic", folder / "raw"), other_shards, preprocess, progress=False)
    (folder / "own.py").write_text(OWN)
    (folder / "small.py").write_text(SMALL)
    flags = [f"--base={folder / 'small.py'}", f"--data={quick_shards}", "--steps=2", "--seeds=2"]
    flags += [f"--out={folder / 'out'}"]
    flags += [
        f"--ablations={folder / 'own.py'}",
        "--only=no_temporal,record_norm,vcg_peaks,broken,as_it_is,no_fit",
    ]
    flags += [
        "--fractions=1",
        "--task=rhythm",
        "--probe_seeds=1",
        f"--page={folder / 'page.md'}",
        "--drop_checkpoints",
    ]
    flags += [f"--data=vcg_peaks:{quick_shards}", f"--probe=elsewhere={other_shards}"]
    assert ablate.main(flags) == 0
    return folder, flags, json.loads((folder / "out" / "ablations.json").read_text())


def test_table_has_every_variant_with_its_seeds_and_the_controls(done, quick_shards):
    folder, _, document = done
    result, *others = document["results"]
    assert result["models"] == ["base", "no_temporal", RANDOM, MEDIAN]
    text = (folder / "out" / "ablations.md").read_text()
    assert {other["task"] for other in others} == {"diagnosis", "rhythm"}
    assert all(other["models"] == result["models"] for other in others)
    assert "**diagnosis of elsewhere**" in text
    for cell in result["cells"]:
        assert cell["low"] <= cell["macro_auroc"] <= cell["high"]
        assert len(cell.get("per_fit", [0])) == (1 if cell["model"] == MEDIAN else 2)
        assert f"| {cell['model']} | {100 * cell['macro_auroc']:.1f} [" in text
    trained = {v["name"]: v for v in document["variants"] if not v["reason"]}
    assert list(trained) == ["base", "no_temporal"]
    assert all(row["step"] == 2 for v in trained.values() for row in v["validation"])
    assert "model.dynamics: learned -> none" in trained["no_temporal"]["change"]
    assert "`base` is `small.py`" in text and "2 steps of 8 records, 2 trainings of each" in text
    page = (folder / "page.md").read_text()
    assert "lvcg ablate" in page and text.strip() in page
    assert str(folder) not in page and str(quick_shards.parent) not in page
    assert not list((folder / "out" / "runs").glob("*/checkpoints"))


def test_a_variant_that_cannot_be_run_is_a_row_with_its_reason(done):
    reasons = {v["name"]: v["reason"] for v in done[2]["variants"]}
    command = (
        "lvcg build --corpus=synthetic --raw=RAW --out=SHARDS"
        " --preprocess=normalise=record --preprocess=beat_samples=16"
    )
    assert f"{command}, then --data=record_norm:SHARDS" in reasons["record_norm"]
    # shards were given, but the wrong ones
    assert "peaks='lead_ii' here, 'vcg' expected" in reasons["vcg_peaks"]
    assert reasons["broken"] == "RuntimeError: it broke"
    assert reasons["as_it_is"] == "the base has this already"
    # found only when it is trained
    assert "cannot be divided by optim.accumulate=3" in reasons["no_fit"]
    assert f"not run: {reasons['broken']}" in (done[0] / "out" / "ablations.md").read_text()


def test_the_same_command_again_trains_nothing(done, monkeypatch):
    folder, flags, _ = done
    before = (folder / "out" / "ablations.md").read_text()
    monkeypatch.setattr(changes, "train_and_evaluate", None)
    for module in (changes, embeddings):
        monkeypatch.setattr(module, "embed_dataset", None)
    assert ablate.main([flag.replace(",no_fit", "") for flag in flags]) == 0
    after = (folder / "out" / "ablations.md").read_text().splitlines()
    assert after == [line for line in before.splitlines() if "no_fit" not in line]


def test_a_stop_is_told_and_a_mistake_is_one_line(done, shards_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(changes, "train_and_evaluate", lambda config, run: "preempted")
    flags = [
        f"--base={CONFIG}:smoke",
        f"--data={shards_dir}",
        "--steps=3",
        "--seeds=1",
        f"--out={tmp_path / 'a'}",
    ]
    assert ablate.main([*flags, "--only=dower"]) == 0
    assert "stopped in 'base'" in capsys.readouterr().out
    for more, words in (
        (["--only=dowr"], "has no 'dowr', choose from ecg_space"),
        (["--steps=0"], "1 or more"),
        (["--fractions=many"], "give numbers"),
        ([f"--data={tmp_path}"], "shards for 'base' already"),
        (["--ablations=none.py"], "no config file none.py"),
    ):
        with pytest.raises(InputError, match=words):
            ablate.main([*flags, *more])
    wrong = [flag.replace(":smoke", "") for flag in flags]
    config = tmp_path / "other.py"
    config.write_text(
        f"from lvcg_jax.config.files import read_config_file\n"
        f"def get_config():\n    c = read_config_file({str(CONFIG) + ':smoke'!r})\n"
        f"    c.preprocess.peaks = 'vcg'\n    return c\n"
    )
    with pytest.raises(InputError, match="peaks"):
        ablate.main([f"--base={config}", *wrong[1:]])
