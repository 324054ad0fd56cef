"""The laboratory: candidates at an equal budget, judged by halves of the validation patients, test
split unseen."""

import json
import shutil

import numpy as np
import pytest
from helpers.commands import QUICK, ROOT, get_config

from data_prep.base.errors import InputError
from data_prep.dataset.shards import read_metadata
from lvcg_jax.config.build import make_model
from lvcg_jax.config.fields import flatten
from lvcg_jax.config.files import read_config_file
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.embed.table import Table, load_table
from lvcg_jax.model.flops import flops_per_beat, model_flops
from lvcg_jax.probe.choosing import half_of, judged_by, judged_by_fold, score_table
from lvcg_jax.studies import changes, embeddings, search
from lvcg_jax.studies.kept import MEDIAN, RANDOM
from lvcg_jax.studies.search import to_text

FILE = ROOT / "configs" / "search.py"
SPACE = f"""
from lvcg_jax.config.files import read_config_file

def get_config():
    c = read_config_file("{ROOT / "configs" / "pretrain.py"}:smoke")
    c.model.norm = "layer"
    c.update_from_flattened_dict({QUICK!r})
    return c

def light_vcg(c):
    c.loss.lambda_vcg = 0.3

def no_fit(c):
    c.optim.accumulate = 3

def broken(c):
    raise RuntimeError("it broke")

CANDIDATES = {{f.__name__: f for f in (light_vcg, no_fit, broken)}}
"""


@pytest.fixture(scope="module")
def done(quick_shards, tmp_path_factory):
    """The command once, on a data set whose test records are gone: a candidate that ends and two
    that fail."""
    folder = tmp_path_factory.mktemp("search")
    data = shutil.copytree(quick_shards, folder / "data")
    for shard in read_metadata(data)["splits"]["test"]["shards"]:
        (data / shard["file"]).unlink()
    (data / "beat_counts-test.npy").unlink()
    (folder / "space.py").write_text(SPACE)
    flags = [
        f"--space={folder / 'space.py'}",
        f"--data={data}",
        "--budget=2",
        f"--out={folder / 'out'}",
    ]
    flags += ["--finalists=0", "--fractions=0.5,1", "--probe_seeds=1", "--resamples=20"]
    flags += [f"--page={folder / 'page.md'}"]
    assert search.main(flags) == 0
    return folder, flags


def read_rows(folder) -> dict[str, dict]:
    """The last row of each name."""
    return {
        row["name"]: row
        for row in map(json.loads, (folder / "out" / "rows.jsonl").read_text().splitlines())
    }


def test_rows_of_candidates_controls_and_failures(done):
    folder, _ = done
    rows = read_rows(folder)
    assert list(rows) == ["base", RANDOM, MEDIAN, "light_vcg", "no_fit", "broken"]
    for name in ("base", "light_vcg"):
        row = rows[name]
        assert (
            row["seeds"] == [0]
            and row["minutes"] > 0
            and {"loss", "ecg", "vcg"} <= row["terms"].keys()
        )
        assert row["mean"] == pytest.approx(np.mean([cell["auroc"] for cell in row["cells"]]))
        assert {(cell["task"], cell["fraction"]) for cell in row["cells"]} == {
            ("diagnosis", 0.5),
            ("diagnosis", 1.0),
        }
        assert all(cell["low"] <= cell["auroc"] <= cell["high"] for cell in row["cells"])
        # one rhythm only in a half
        assert any(note.startswith("rhythm: not scored") for note in row["notes"])
    candidate, base = rows["light_vcg"], rows["base"]
    assert candidate["differences"] == pytest.approx(np.subtract(candidate["means"], base["means"]))
    assert candidate["change"] == "loss.lambda_vcg: 1.0 -> 0.3"
    assert (
        "model.stage_features" in candidate["paper"]
        and "loss.lambda_vcg: 1.0 -> 0.3" in candidate["paper"]
    )
    assert (base["steps"], candidate["steps"]) == (2, 2) and base["tflop"] == candidate["tflop"] > 0
    assert rows["no_fit"]["reason"].startswith(
        "seed 0: data.batch_size=8 cannot be divided by optim.accumulate=3"
    )
    assert "mean" not in rows["no_fit"] and rows["no_fit"]["steps"] == 2
    assert rows["broken"]["reason"] == "RuntimeError: it broke"


def test_the_page_is_made_of_the_rows_and_names_no_folder(done):
    folder, _ = done
    rows, page = read_rows(folder), (folder / "page.md").read_text()
    assert "lvcg search --space=space.py --data=data --budget=2" in page
    assert (folder / "out" / "experiments.md").read_text().strip() in page and str(
        folder
    ) not in page
    scored = sorted((row for row in rows.values() if "mean" in row), key=lambda row: -row["mean"])
    names = [
        f"{row['name']} (control)" if row["name"] in (RANDOM, MEDIAN) else row["name"]
        for row in scored
    ]
    places = [page.index(f"| {name} | ") for name in [*names, "no_fit", "broken"]]
    assert places == sorted(places)  # best first, failures last
    assert f"| {100 * rows['light_vcg']['difference']:+.2f} | 1 | " in page
    assert "| broken | failed: RuntimeError: it broke |" in page


def test_a_run_that_was_scored_keeps_its_numbers_only(done):
    runs = (done[0] / "out" / "runs").iterdir()
    runs = {run.name.split("-")[0]: sorted(path.name for path in run.iterdir()) for run in runs}
    assert runs["base"] == runs["light_vcg"] == ["config.json", "metrics.jsonl"]
    assert "versions.json" in runs["no_fit"]  # may be tried again


def test_the_same_command_again_does_nothing_new(done, monkeypatch):
    folder, flags = done
    before = {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr(changes, "train_and_evaluate", None)
    monkeypatch.setattr(changes, "embed_dataset", None)
    for name in ("embed_dataset", "median_beat_table"):
        monkeypatch.setattr(embeddings, name, None)
    monkeypatch.setattr(search, "score_table", None)
    assert search.main(flags) == 0
    assert {
        path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()
    } == before


def test_the_best_and_the_base_get_more_seeds(done, monkeypatch, tmp_path):
    folder, flags = done
    shutil.copytree(folder / "out", tmp_path / "out")
    known = next((folder / "out" / "embeddings").glob("base-seed0-*.npz"))

    def pretend(config, data, run, splits):
        assert splits == ("train", "validation") and config.seed == 1
        shutil.copytree(next((folder / "out" / "runs").glob("base-seed0-*")), run)
        table = load_table(known)
        table.embedding += (
            np.random.default_rng(0).normal(size=table.embedding.shape).astype(np.float32)
        )
        return table

    monkeypatch.setattr(changes, "train_and_embed", pretend)
    flags = [
        *flags[:3],
        f"--out={tmp_path / 'out'}",
        *flags[5:-1],
        "--finalists=1",
        "--finalist_seeds=2",
    ]
    assert search.main(flags) == 0
    before, after = read_rows(folder), read_rows(tmp_path)
    assert {name: row["seeds"] for name, row in after.items() if len(row["seeds"]) != 1} == {
        "base": [0, 1], "light_vcg": [0, 1], "no_fit": [], "broken": [],
    }  # fmt: skip
    row, base = after["light_vcg"], after["base"]
    assert (
        row["means"][0] == before["light_vcg"]["means"][0]
        and row["key"] == before["light_vcg"]["key"]
    )
    assert row["difference"] == pytest.approx(np.mean(np.subtract(row["means"], base["means"])))


def test_a_validation_that_is_not_finite_is_a_failure(done, tmp_path):
    run = shutil.copytree(next((done[0] / "out" / "runs").glob("base-seed0-*")), tmp_path / "run")
    assert search.facts_of(run)["terms"]["loss"] > 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "kind": "validation", "loss": float("nan")}) + "\n")
    with pytest.raises(InputError, match="validation loss is not finite"):
        search.facts_of(run)


def test_an_edited_candidate_is_a_new_row_and_a_stop_is_told(done, monkeypatch, capsys):
    folder, flags = done
    (folder / "edited.py").write_text(SPACE.replace("lambda_vcg = 0.3", "lambda_vcg = 0.2"))
    stopped = []
    monkeypatch.setattr(
        changes, "train_and_evaluate", lambda config, run: stopped.append(config) or "preempted"
    )
    assert search.main([f"--space={folder / 'edited.py'}", *flags[1:-1], "--only=light_vcg"]) == 0
    assert [(c.loss.lambda_vcg, c.train.steps, c.seed) for c in stopped] == [(0.2, 2, 0)]
    assert "the same command continues from here" in capsys.readouterr().out


def test_a_budget_of_minutes_is_timed_once(done, monkeypatch, tmp_path):
    base = changes.Variant("base", "", get_config("smoke"), done[0] / "data")
    monkeypatch.setattr(search, "seconds_per_step", lambda base, out: 0.5)
    assert search.base_steps("2min", base, tmp_path) == 240
    monkeypatch.setattr(search, "seconds_per_step", None)  # asked for again it would fail
    assert search.base_steps("2min", base, tmp_path) == 240
    base.config.train.log_every += 1  # changes nothing that is computed
    assert search.base_steps("2min", base, tmp_path) == 240
    for wrong in ("0", "0min", "2h", "-3", "many"):
        with pytest.raises(InputError, match=f"--budget={wrong}: give steps"):
            search.base_steps(wrong, base, tmp_path)


def test_every_candidate_has_the_flops_of_the_base(done):
    base, wide = get_config("smoke"), get_config("smoke")
    wide.model.stage_features = (16, 32)
    variants = [
        changes.Variant(name, "", c, done[0] / "data")
        for name, c in (("base", base), ("wide", wide))
    ]
    search.set_budget(variants, 1000)
    spent = [v.config.train.steps * search.step_flops(v.config, v.data) for v in variants]
    assert variants[1].config.train.steps < 800 and spent[1] == pytest.approx(spent[0], rel=2e-3)
    assert [v.config.optim.warmup_steps for v in variants] == [5, 5]


def made_up(patients: int = 60) -> Table:
    """Two records of each patient, a third of them in the validation split, with a feature that
    tells the class."""
    rng, number = np.random.default_rng(0), np.repeat(np.arange(patients), 2)
    label = rng.random(len(number)) < 0.5
    embedding = (label[:, None] + 0.3 * rng.normal(size=(len(number), 3))).astype(np.float32)
    return Table(
        np.array([f"r{i}" for i in range(len(number))]),
        np.array([f"p{n}" for n in number]),
        np.where(number % 3 == 0, "validation", "train"),
        [{"task": ["yes"] if yes else []} for yes in label],
        embedding,
        metadata={"tasks": json.dumps({"task": ["yes"]})},
    )


def test_halves_are_by_patient_and_cover_the_validation_split():
    table = made_up()
    splits = [judged_by(table, half).split for half in (0, 1)]
    validation, train = table.split == "validation", table.split == "train"
    assert all((split[train] == "train").all() for split in splits)
    assert ((splits[0] == "test") ^ (splits[1] == "test"))[validation].all()
    for split in splits:
        assert not set(table.patient_id[split == "test"]) & set(
            table.patient_id[split == "validation"]
        )
    shares = [half_of(f"patient {i}") for i in range(2000)]
    assert 0.45 < np.mean(shares) < 0.55


def test_every_patient_judges_in_one_of_five_folds():
    table = made_up()
    splits = np.array([judged_by_fold(table, fold).split for fold in range(5)])
    assert ((splits == "test").sum(0) == 1).all() and ((splits == "validation").sum(0) == 1).all()
    for split in splits:
        mine = [set(table.patient_id[split == name]) for name in ("train", "validation", "test")]
        assert not mine[0] & mine[1] and not mine[0] & mine[2] and not mine[1] & mine[2]


def test_a_score_is_the_mean_of_both_ways_and_refuses_test_rows():
    table = made_up()
    score = score_table(table, ["task"], [0.5, 1.0], seeds=1, resamples=20)
    assert [cell["fraction"] for cell in score["cells"]] == [0.5, 1.0] and score["mean"] > 0.9
    table.embedding[0, 0] = np.nan
    with pytest.raises(InputError, match="1 embeddings are not finite"):
        score_table(table, ["task"], [1.0], seeds=1, resamples=20)
    table.split[0] = "test"
    with pytest.raises(InputError, match="rows of test"):
        score_table(table, ["task"], [1.0], seeds=1, resamples=20)


def test_a_key_follows_from_what_is_computed():
    config = get_config("smoke")
    before = changes.fingerprint(config)
    config.train.log_every += 1
    assert changes.fingerprint(config) == before
    config.loss.lambda_vcg *= 2
    assert changes.fingerprint(config) != before


def test_the_space_is_a_tenth_of_the_paper_and_each_candidate_a_small_change():
    paper, base = get_config("paper"), read_config_file(FILE)
    beats = np.full(10, 13)
    assert 0.08 < model_flops(base, beats)["train"] / model_flops(paper, beats)["train"] < 0.12
    assert flops_per_beat(base)["encoder"] < 0.1 * flops_per_beat(paper)["encoder"]
    for name, change in changes.read_changes(FILE, "CANDIDATES").items():
        config = read_config_file(f"{FILE}:{name}")
        assert (
            change.__doc__ and sum(v != flatten(base)[k] for k, v in flatten(config).items()) == 1
        ), name
        make_model(config)
        assert len(make_subsets(config))
    with pytest.raises(ValueError, match="unknown candidate 'nothing'"):
        read_config_file(f"{FILE}:nothing")


def test_a_row_without_config_gives_way_to_one_with(done):
    row = {
        "key": "x",
        "name": "light_vcg",
        "kind": "candidate",
        "change": "",
        "reason": "no shards",
        "seeds": [],
    }
    rows = list(read_rows(done[0]).values())
    assert to_text([*rows, row | {"base": rows[0]["base"]}]) == to_text(rows)


def test_rows_are_ranked_by_the_seeds_that_all_have(done):
    rows = list(read_rows(done[0]).values())
    base = rows[0] | {"means": [0.70, 0.90], "seeds": [0, 1], "mean": 0.80}
    one = rows[3] | {"means": [0.75], "seeds": [0], "mean": 0.75, "differences": [0.05]}
    final = rows[3] | {"name": "finalist", "means": [0.72, 0.94], "seeds": [0, 1], "mean": 0.83}
    final |= {"differences": [0.02, 0.04]}
    text = to_text([base, one, final])
    places = [text.index(f"| {name} | ") for name in ("light_vcg", "finalist", "base")]
    assert places == sorted(places)  # by seed 0: 75, 72, 70; by all seeds it would be 75, 83, 80
    assert "Both are of seed 0, which all have; `all seeds` is the gain over all" in text
    assert "| 72.00 | +2.00 | 2 | +2.00 +4.00 | +3.00 |" in text
    assert "| 75.00 | +5.00 | 1 | +5.00 | - |" in text


def test_a_mistake_is_one_line(done, tmp_path):
    _, flags = done
    (tmp_path / "empty.py").write_text("")
    for more, words in (
        (["--only=tiny_batch"], "has no 'tiny_batch', choose from light_vcg"),
        (["--task=form"], "no task form in"),
        (["--seeds=0"], "1 or more"),
        (["--space=none.py"], "no config file none.py"),
        ([f"--space={ROOT / 'configs' / 'pretrain.py'}"], "has no CANDIDATES"),
        ([f"--base={tmp_path / 'empty.py'}"], "it has no get_config"),
    ):
        with pytest.raises(InputError, match=words):
            search.main([*flags, *more])
