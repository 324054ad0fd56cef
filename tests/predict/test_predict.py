"""A head answers for new records exactly as the probe that made it, and refuses what it was not
made for."""

import csv
import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.commands import assert_one_line_error, run
from helpers.gaussian_ecg import dense_tachycardia

from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.formats.any_file import read_any
from lvcg_jax import LVCG
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.table import load_table, save_table
from lvcg_jax.predict import __main__ as door
from lvcg_jax.predict.table import predict_table
from lvcg_jax.probe import __main__ as probe_door
from lvcg_jax.runs import heads, weights

QUICK = ["--fractions=1", "--seeds=1", "--resamples=20"]


@pytest.fixture(scope="module")
def saved(model, shards_dir, tmp_path_factory):
    """A folder with embeddings, a head of the task rhythm, and what the probe predicted."""
    folder = tmp_path_factory.mktemp("head")
    save_table(folder / "emb.npz", embed_dataset(model, shards_dir, progress=False))
    few = embed_dataset(model, shards_dir, leads=["I", "II"], progress=False)
    save_table(folder / "few.npz", few)
    ids = load_table(folder / "emb.npz").record_id
    rows = [f"{r},{('female', 'male')[i % 2]},{20 + 40 * (i % 3)}" for i, r in enumerate(ids)]
    (folder / "groups.csv").write_text("\n".join(["record_id,sex,age", *rows]) + "\n")
    flags = [f"--embeddings={folder / 'emb.npz'}", "--task=rhythm", *QUICK]
    flags += [f"--save={folder / 'rhythm.safetensors'}", f"--view={folder / 'few.npz'}"]
    flags += [f"--groups={folder / 'groups.csv'}", "--about=Synthetic ECGs."]
    more = [f"--predictions={folder / 'probe.csv'}", f"--out={folder / 'probe.json'}"]
    probe_door.main([*flags, *more])
    return folder


@pytest.fixture(scope="module")
def head(saved):
    return heads.load_head(saved / "rhythm.safetensors")


def read(path):
    with open(path, newline="") as file:
        return {row["record_id"]: row for row in csv.DictReader(file)}


def test_predictions_are_those_of_the_probe_that_made_the_head(
    saved, head, shards_dir, trained_run, capsys
):
    name = f"--head={saved / 'rhythm.safetensors'}"
    answers = {}
    for source in (f"--embeddings={saved / 'emb.npz'}", f"--data={shards_dir}"):
        out = saved / "answers.csv"
        flags = [] if "emb" in source else [f"--checkpoint={trained_run}"]
        assert door.main([name, source, f"--out={out}", *flags]) == 0
        said = capsys.readouterr().out.splitlines()[-1]
        assert said == (
            "120 rows, 0 records with failures, 0 rows of rank below 3, 0 rows with unknown"
            f" leads: {out}"
        )
        answers[source] = read(out)
    probe = read(saved / "probe.csv")
    columns = [f"rhythm:{c}" for c in head.classes if f"rhythm:{c}" in next(iter(probe.values()))]
    assert len(columns) >= 2 and len(probe) > 5
    for found in answers.values():
        for record, row in probe.items():
            for column in columns:
                assert float(found[record][column]) == pytest.approx(float(row[column]), abs=1e-6)


def test_a_head_says_what_it_is_and_how_well_it_does(saved, head):
    facts = head.facts
    table = load_table(saved / "emb.npz")
    assert facts["checkpoint"] == table.metadata["checkpoint"] and len(facts["leads"]) == 12
    assert facts["training"]["splits"]["train"]["rows"] == (table.split == "train").sum()
    document = json.loads((saved / "probe.json").read_text())
    cell = document["results"][0]["cells"][0]
    assert facts["scores"]["macro_auroc"] == pytest.approx(cell["macro_auroc"], abs=1e-4)
    assert cell["low"] <= cell["macro_auroc"] <= cell["high"]
    found = cell["calibration"]
    assert 0 <= found["ece"] < 1 and 0 < found["brier"] < 1
    used = len(cell["per_class"])
    tested = len(np.unique(table.record_id[table.split == "test"]))
    assert sum(b["count"] for b in found["reliability"]) == used * tested
    card = (saved / "rhythm.md").read_text()
    for words in ("Not a medical device", "| sex female |", "| age 0 to 39 |", "| I, II |"):
        assert words in card, words
    assert all(f"| {name} |" in card for name in head.classes)
    groups = {g["group"]: g["records"] for g in facts["groups"]}
    assert groups["female"] + groups["male"] == groups[""] == tested


def test_one_file_a_folder_and_python_agree(saved, head, trained_run, raw_corpus, capsys, tmp_path):
    name = f"--head={saved / 'rhythm.safetensors'}"
    model_flag = f"--checkpoint={trained_run}"
    path = sorted(raw_corpus.rglob("*.hea"))[0]
    assert door.main([name, model_flag, f"--record={path}", f"--out={tmp_path / 'one.csv'}"]) == 0
    said = capsys.readouterr().out
    assert "| rhythm | probability | threshold | answer |" in said
    assert f"| {head.classes[0]} |" in said and said.splitlines()[-1].startswith("1 row, 0 rec")
    (one,) = read(tmp_path / "one.csv").values()
    out = tmp_path / "all.parquet"
    assert door.main([name, model_flag, f"--folder={raw_corpus}", f"--out={out}"]) == 0
    rows = {row["record_id"].split("/")[-1]: row for row in pq.read_table(out).to_pylist()}
    record = read_any(path)
    found = LVCG.load(trained_run).predict(record.signal, record.rate, record.leads, head=head)
    for c in head.classes:
        column = f"rhythm:{c}"
        assert found.probabilities[c] == pytest.approx(float(one[column]), abs=1e-5)
        assert found.probabilities[c] == pytest.approx(rows[path.stem][column], abs=1e-5)
    assert ";".join(found.decisions) == one["rhythm"] == rows[path.stem]["rhythm"]
    assert found.warning is None and found.quantile == pytest.approx(
        float(one["rhythm:quantile"]), abs=1e-3
    )
    few = LVCG.load(trained_run).predict(
        [record.signal] * 2, record.rate, record.leads, head, visible=["I", "II"]
    )
    assert few[0].probabilities == pytest.approx(few[1].probabilities, abs=1e-6)
    assert "here are I, II: its test macro AUROC is" in few[1].warning


def test_a_record_without_a_beat_that_stands_out_gets_an_answer_that_says_so(
    saved, head, trained_run, tmp_path
):
    chest = [f"V{i}" for i in range(1, 7)]  # this model looks for beats in lead II, if there is one
    fast = dense_tachycardia(500)[6:].T
    np.savez(tmp_path / "fast.npz", signal=fast, fs=500, leads=chest, unit="mV")
    out = tmp_path / "answer.csv"
    flags = [f"--record={tmp_path / 'fast.npz'}", f"--checkpoint={trained_run}", f"--out={out}"]
    assert door.main([f"--head={saved / 'rhythm.safetensors'}", *flags]) == 0
    (row,) = read(out).values()
    assert "fast_rhythm" in row["defects"].split(";")
    assert np.isfinite([float(row[f"rhythm:{name}"]) for name in head.classes]).all()


def test_windows_of_a_record_are_averaged_or_shown_one_by_one(saved, head):
    table = load_table(saved / "emb.npz")
    ids = np.repeat(table.record_id[::2], 2)  # neighbours become windows of one record
    table = dataclasses.replace(table, record_id=ids, window=np.tile([0, 1], 60))
    each, whole = (predict_table([head], table, rows) for rows in ("window", "record"))
    assert len(each["record_id"]) == 120 and len(whole["record_id"]) == 60
    scores = head.layer(table.embedding).reshape(60, 2, -1).mean(1)
    expected = 1 / (1 + np.exp(-(head.platt[0] * scores + head.platt[1])))
    np.testing.assert_allclose(whole[f"rhythm:{head.classes[0]}"], expected[:, 0], atol=1e-6)


def test_records_unlike_the_training_records_are_flagged(saved, head):
    table = load_table(saved / "emb.npz")
    train = predict_table([head], table)["rhythm:unlike"][table.split == "train"]
    assert 0.02 <= train.mean() <= 0.08
    rng = np.random.default_rng(0)
    odd = table.embedding + 8 * table.embedding.std(0) * rng.normal(size=table.embedding.shape)
    far = predict_table([head], dataclasses.replace(table, embedding=odd.astype(np.float32)))
    assert far["rhythm:unlike"].all() and far["rhythm:quantile"].min() > 0.99


def test_fewer_leads_are_warned_about_with_the_measured_loss(
    saved, trained_run, raw_corpus, capsys
):
    path = sorted(raw_corpus.rglob("*.hea"))[0]
    flags = [f"--head={saved / 'rhythm.safetensors'}", f"--checkpoint={trained_run}"]
    door.main([*flags, f"--record={path}", "--leads=I,II"])
    said = capsys.readouterr().out
    assert "warning: 1 rows: head 'rhythm' was trained with 12 leads, here are I, II: its" in said
    assert "1 row of rank below 3" in said.splitlines()[-1]
    door.main([*flags, f"--record={path}", "--leads=I,V2"])
    assert "here are I, V2: what that costs was not measured" in capsys.readouterr().out


@pytest.fixture(scope="module")
def parted(saved, tmp_path_factory):
    """A folder with a head that has a part for the leads I and II, and that part by itself."""
    folder = tmp_path_factory.mktemp("parted")
    flags = ["--task=rhythm", *QUICK, f"--save={folder / 'rhythm.safetensors'}"]
    flags += [f"--embeddings={saved / 'emb.npz'}", f"--few_leads={saved / 'few.npz'}"]
    probe_door.main(flags)
    alone = ["--task=rhythm", *QUICK, f"--save={folder / 'alone.safetensors'}"]
    probe_door.main([*alone, f"--embeddings={saved / 'few.npz'}"])
    return folder


def test_records_with_few_leads_are_answered_by_the_part_that_learnt_from_such(
    saved, parted, head, trained_run, raw_corpus, capsys
):
    both, alone = (heads.load_head(parted / f"{n}.safetensors") for n in ("rhythm", "alone"))
    assert [one.facts["leads"] for one in both.few] == [["I", "II"]]
    all_leads, few = (load_table(saved / f"{name}.npz") for name in ("emb", "few"))
    # rows of both kinds, in turns; those with all leads are answered as before
    odd = np.arange(len(few.keys)) % 2 == 1
    mixed = dataclasses.replace(
        all_leads,
        embedding=np.where(odd[:, None], few.embedding, all_leads.embedding),
        extra={name: np.where(odd, few.extra[name], x) for name, x in all_leads.extra.items()},
    )
    found = predict_table([both], mixed, "window")
    expected = [predict_table([head], all_leads, "window"), predict_table([alone], few, "window")]
    for name, x in found.items():
        if name.startswith("rhythm"):
            for turn, one in enumerate(expected):
                pair = x[turn::2], one[name][turn::2]
                if x.dtype.kind == "f":  # single precision, other rows beside them
                    np.testing.assert_allclose(*pair, atol=2e-5)
                else:
                    np.testing.assert_array_equal(*pair)
    # the leads that are most like those there, and what is known of them
    assert both.of_leads(["I"]) is both.of_leads(["I", "II", "V1"]) is both.few[0]
    assert both.of_leads(both.facts["leads"][1:]) is both.of_leads(["II", "V2", "V5"]) is both
    assert both.of_leads(["V1"]) is both.of_leads([]) is both
    auroc = 100 * alone.facts["scores"]["macro_auroc"]
    path = sorted(raw_corpus.rglob("*.hea"))[0]
    flags = [f"--head={parted / 'rhythm.safetensors'}", f"--checkpoint={trained_run}"]
    door.main([*flags, f"--record={path}", "--leads=I,II"])
    said = f"here are I, II: its part for these answers, with a test macro AUROC of {auroc:.1f}"
    printed = capsys.readouterr().out
    assert said in printed
    # the thresholds that are shown are those that decided
    limits = dict(zip(alone.classes, alone.thresholds.tolist(), strict=True))
    for name, limit in limits.items():
        row = next(line for line in printed.splitlines() if line.startswith(f"| {name} |"))
        assert row.split("|")[3].strip() == f"{limit:.3f}"
    record = read_any(path)
    asked = (record.signal, record.rate, record.leads, both, "mV", ["I", "II"])
    assert LVCG.load(trained_run).predict(*asked).thresholds == pytest.approx(limits, nan_ok=True)
    door.main([*flags, f"--record={path}", "--leads=I,V2"])
    assert "here are I, V2: its part for I, II answers" in capsys.readouterr().out
    card = (parted / "rhythm.md").read_text()
    assert "Layers of their own" in card and f"| I, II | {auroc:.1f} [" in card
    # windows of a record with different leads: those that all of them show
    numbers, x = np.zeros(2, int), np.stack([all_leads.embedding[0], few.embedding[0]])
    leads = [both.facts["leads"], ["I", "II"]]
    one, other = both.answer(x, numbers, leads=leads), alone.answer(x, numbers)
    np.testing.assert_array_equal(one.values, other.values)


def test_a_part_for_few_leads_of_other_weights_is_refused(saved, tmp_path):
    few = load_table(saved / "few.npz")
    metadata = few.metadata | {"checkpoint": "other#0123456789abcdef"}
    save_table(tmp_path / "other.npz", dataclasses.replace(few, metadata=metadata))
    flags = [f"--embeddings={saved / 'emb.npz'}", f"--few_leads={tmp_path / 'other.npz'}"]
    with pytest.raises(InputError, match="not of other#0123456789abcdef"):
        probe_door.main([*flags, "--task=rhythm", *QUICK, f"--save={tmp_path / 'h.safetensors'}"])


def test_other_weights_and_other_preprocessing_are_refused(saved, head, model, tmp_path):
    table = load_table(saved / "emb.npz")
    for key, value, words in (
        ("checkpoint", "other@1#00000000", "reads embeddings of smoke@.*not of other@1#00000000"),
        ("preprocess_hash", "abc", "needs the preprocessing .*, not abc"),
    ):
        wrong = dataclasses.replace(table, metadata=table.metadata | {key: value})
        with pytest.raises(InputError, match=words):
            predict_table([head], wrong)
    with pytest.raises(InputError, match="two heads answer task 'rhythm'"):
        predict_table([head, head], table)
    with pytest.raises(InputError, match="give --checkpoint=RUN"):
        heads.weights_of(tmp_path / "rhythm.safetensors", head)
    random = LVCG.random(model.config, 0, None)
    with pytest.raises(InputError, match="not of random@seed0#"):
        random.predict(np.zeros((500, 1)), 100, ["II"], head)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:200],
        lambda data: data[:-8],
        lambda data: data[:-8] + b"\0\1\2\3" + data[-4:],
        lambda data: b"\xff" * 64,
        lambda data: data.replace(b'\\"format\\":1', b'\\"format\\":9', 1),
        lambda data: data.replace(b'\\"classes\\"', b'\\"klasses\\"', 1),
    ],
)
def test_a_damaged_head_is_refused_in_one_line(saved, tmp_path, damage):
    data = (saved / "rhythm.safetensors").read_bytes()
    assert damage(data) != data
    path = tmp_path / "h.safetensors"
    path.write_bytes(damage(data))
    with pytest.raises(InputError, match=r"h\.safetensors is damaged or not a head"):
        heads.load_head(path)


def test_mistakes_on_the_command_line_are_one_line(saved, tmp_path):
    emb = f"--embeddings={saved / 'emb.npz'}"
    for flags, words in (
        ([], "give one of --record, --folder, --data, --embeddings, not none"),
        ([emb], "--embeddings needs --out=FILE"),
        ([emb, "--out=a.npz"], "ends in .parquet or .csv"),
        ([emb, "--out=a.csv", "--leads=I"], "--leads does not go with --embeddings"),
        ([emb, "--out=a.csv", "--head=nothing"], "no file of a head nothing"),
    ):
        with pytest.raises(InputError, match=words):
            door.main(flags)
    save = f"--save={tmp_path / 'h.safetensors'}"
    for flags, words in (
        ([save], "--save keeps the classifier of one task"),
        ([save, "--task=rhythm", "--fractions=0.1"], "let --fractions contain 1"),
        ([f"--save={tmp_path / 'h.bin'}", "--task=rhythm"], "ends in .safetensors"),
        (["--about=x"], "--about is for the card of a head: give --save=FILE"),
    ):
        with pytest.raises(InputError, match=words):
            probe_door.main([emb, *flags])
    done = run("lvcg_jax.predict", "--record=nothing.npy", f"--head={saved / 'rhythm.safetensors'}")
    assert_one_line_error(done, "no record file nothing.npy")


def test_packaged_heads_belong_to_packaged_weights():
    assert heads.names() == [f"best-{task}" for task in ("all71", "form", "rhythm", "sub", "super")]
    facts = weights.read_facts("best")
    mark = weights.weights_hash(weights.load("best").variables)
    for name in heads.names():
        head, path = heads.load_head(name), heads.find_head(name)
        limb = ["I", "II", "III", "aVR", "aVL", "aVF"]
        assert [few.facts["leads"] for few in head.few] == [[*limb, "V2"], limb, ["II"], ["I"]]
        assert path.stat().st_size < 350_000 * (1 + len(head.few))
        assert path.with_suffix(".md").is_file()
        assert head.facts["checkpoint"] == f"best#{mark}"
        assert head.facts["preprocess_hash"] == facts["preprocess_hash"]
        assert head.facts["parts"] == facts["parts"] and heads.weights_of(path, head) == "best"
        assert head.facts["scores"]["calibration"]["ece"] <= 0.03


def test_answers_leave_the_house_under_pseudonyms(saved, tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 16)
    names, table = Pseudonyms(b"k" * 16), load_table(saved / "emb.npz")
    flags = [f"--head={saved / 'rhythm.safetensors'}", f"--embeddings={saved / 'emb.npz'}"]
    out = tmp_path / "answers.csv"
    assert door.main([*flags, f"--out={out}", f"--pseudonyms={tmp_path / 'key'}"]) == 0
    assert read(out).keys() == {names.of(name) for name in table.record_id.tolist()}
    text = out.read_text()
    assert not [name for name in {*table.record_id, *table.patient_id} if name in text]
