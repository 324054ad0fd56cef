"""The embedding command: the same numbers however a record reaches the model, and a word on every
one left out."""

import csv
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import ROOT, assert_one_line_error, run

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from lvcg_jax.data.packing import pack
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.embed import dataset, lvcg
from lvcg_jax.embed.dataset import embed_corpus, embed_dataset
from lvcg_jax.embed.lvcg import LVCG
from lvcg_jax.embed.table import load_table


@pytest.fixture(scope="module")
def model(trained_run):
    return LVCG.load(trained_run)


@pytest.fixture(scope="module")
def table(model, shards_dir):
    return embed_dataset(model, shards_dir, progress=False)


@pytest.fixture(scope="module")
def few(raw_corpus, tmp_path_factory):
    """A folder of three WFDB records without labels."""
    folder = tmp_path_factory.mktemp("few")
    for header in sorted(raw_corpus.rglob("*.hea"))[:3]:
        for suffix in (".hea", ".dat"):
            shutil.copy(header.with_suffix(suffix), folder)
    return folder


def rows_of(table, ids):
    position = {name: i for i, name in enumerate(table.record_id.tolist())}
    return np.array([position[name] for name in ids])


def test_table_names_every_record_once_with_all_that_is_known_of_it(table, shards_dir, model):
    shards = ShardSet(shards_dir, "test")
    rows = table.split == "test"
    assert table.record_id[rows].tolist() == [shards[i]["record_id"] for i in range(len(shards))]
    assert table.extra["num_beats"][rows].tolist() == shards.counts.tolist()
    assert table.extra["defects"][rows].tolist() == [
        shards[i]["defects"] for i in range(len(shards))
    ]
    assert table.embedding.shape == (120, sum(table.parts.values()))
    assert table.labels[0].keys() == {"diagnosis", "rhythm"}
    assert set(table.extra["leads"]) == {";".join(LEADS)} and set(table.extra["rank"]) == {3}
    assert table.metadata["preprocess_hash"] == model.preprocess.hash()
    assert (
        table.metadata["checkpoint"].startswith("smoke@")
        and table.metadata["package"] == "lvcg-jax 0.1.0"
    )


@pytest.mark.parametrize("slots, rows", [(20, 1), (64, 3), (200, 50)])
def test_no_beat_is_dropped_moved_or_doubled_by_packing(shards_dir, slots, rows):
    windows = list(shard_windows(ShardSet(shards_dir, "validation")))
    names, beats = [], []
    for some, batch in pack(iter(windows), slots, rows):
        assert batch["beats"].shape[:2] == (1, slots) and batch["num_beats"].shape == (1, rows)
        counts = batch["num_beats"][0]
        assert (
            counts[: len(some)].tolist() == [len(w["length"]) for w in some]
            and not counts[len(some) :].any()
        )
        beats.append(batch["beats"][0, : counts.sum()])
        assert not batch["beats"][0, counts.sum() :].any()
        names += [w["record_id"] for w in some]
    assert names == [w["record_id"] for w in windows]
    np.testing.assert_array_equal(
        np.concatenate(beats), np.concatenate([w["beats"] for w in windows])
    )


def test_batch_mates_and_batch_shape_change_nothing(model, shards_dir, table):
    shards = ShardSet(shards_dir, "validation")
    rows, parts = model.embed_windows(shard_windows(shards), slots=60, rows=5)
    places = rows_of(table, [row["record_id"] for row in rows])
    np.testing.assert_allclose(lvcg.join_parts(parts), table.embedding[places], atol=1e-5)
    assert lvcg.join_parts(parts).shape == (len(shards), 40)


def test_two_models_of_one_config_and_any_number_of_records_share_one_compilation(
    model, trained_run, few, table
):
    again, corpus = LVCG.load(trained_run), open_corpus("wfdb", few)
    embed_corpus(model, corpus, progress=False)  # few records: a small batch
    before = lvcg.embed_packed._cache_size()
    corpus.refs.pop()
    embed_corpus(again, corpus, progress=False)
    assert lvcg.embed_packed._cache_size() == before
    assert again.checkpoint == model.checkpoint


def test_raw_wfdb_records_equal_their_rows_from_shards(model, raw_corpus, table):
    raw = embed_corpus(model, open_corpus("wfdb", raw_corpus), progress=False)
    rows = rows_of(raw, table.record_id)
    assert len(raw.record_id) == len(table.record_id)
    np.testing.assert_allclose(raw.embedding[rows], table.embedding, atol=1e-5)
    for name in ("patient_id", "split", "window"):
        assert getattr(raw, name)[rows].tolist() == getattr(table, name).tolist()
    assert [raw.labels[i] for i in rows] == table.labels and raw.tasks == table.tasks
    for name, values in table.extra.items():
        assert raw.extra[name][rows].tolist() == values.tolist(), name


def test_chosen_leads_give_the_same_from_shards_from_wfdb_and_from_python(
    model, few, shards_dir, table
):
    chosen = ["I", "II", "V2"]
    sharded = embed_dataset(model, shards_dir, leads=chosen, progress=False)
    corpus = open_corpus("wfdb", few)
    raw = embed_corpus(model, corpus, leads=chosen, progress=False)
    places = rows_of(
        sharded, [name for s in raw.record_id for name in sharded.record_id if name.endswith(s)]
    )
    np.testing.assert_allclose(raw.embedding, sharded.embedding[places], atol=1e-5)
    assert set(raw.extra["leads"]) == set(sharded.extra["leads"]) == {"I;II;V2"}
    record = corpus.load(corpus.refs[0])
    alone = model.embed(record.signal, record.rate, record.leads, visible=chosen)
    np.testing.assert_allclose(alone.embedding[0], raw.embedding[0], atol=1e-5)
    assert alone.gain[0] == raw.extra["gain"][0] and alone.condition[0] == raw.extra["condition"][0]
    assert np.abs(sharded.embedding - table.embedding).max() > 1e-3
    structure = slice(0, table.parts["structure"] + table.parts["dynamics"])
    np.testing.assert_allclose(
        sharded.embedding[:, structure.stop :], table.embedding[:, structure.stop :], atol=1e-5
    )


def test_lead_order_of_the_file_changes_nothing(model, few, tmp_path):
    """As in MIMIC-IV-ECG, which stores aVF before aVL; and any other order."""
    for name, order in {
        "mimic": [0, 1, 2, 3, 5, 4, *range(6, 12)],
        "reverse": range(11, -1, -1),
    }.items():
        (tmp_path / name).mkdir()
        for header in few.glob("*.hea"):
            first, *lines = header.read_text().splitlines()
            (tmp_path / name / header.name).write_text(
                "\n".join([first, *(lines[i] for i in order)]) + "\n"
            )
            samples = np.fromfile(header.with_suffix(".dat"), "<i2").reshape(-1, 12)
            samples[:, list(order)].tofile(tmp_path / name / f"{header.stem}.dat")
    tables = [
        embed_corpus(model, open_corpus("wfdb", f), progress=False)
        for f in (few, *tmp_path.iterdir())
    ]
    for other in tables[1:]:
        np.testing.assert_array_equal(other.embedding, tables[0].embedding)
        assert not any("checksum" in cell for cell in other.extra["defects"])


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_the_same_command_writes_the_same_bytes(trained_run, shards_dir, tmp_path, ending):
    one, two = tmp_path / "deep" / f"one.{ending}", tmp_path / f"two.{ending}"
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}"]
    done = run("lvcg_jax.embed", *flags, f"--out={one}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        "120 rows of 120 records, 40 numbers each (structure 16 + dynamics 16 + rhythm 8)"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1] == (
        "120 rows, 0 records with failures, 0 rows of rank below 3, 0 rows with unknown leads"
    )
    assert embed_door.main([*flags, f"--out={two}"]) == 0
    assert one.read_bytes() == two.read_bytes()
    assert [p.name for p in one.parent.iterdir()] == [one.name]


def test_chosen_splits_are_embedded_alone(trained_run, shards_dir, tmp_path, table):
    flags = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path / 'e.npz'}"]
    embed_door.main([*flags, "--splits=test"])
    found = load_table(tmp_path / "e.npz")
    assert found.record_id.tolist() == table.record_id[table.split == "test"].tolist()
    with pytest.raises(InputError, match="no split tests; there are"):
        embed_door.main([*flags, "--splits=tests"])


def test_parquet_and_npz_hold_the_same(trained_run, shards_dir, tmp_path, table):
    for ending in ("npz", "parquet"):
        embed_door.main(
            [
                f"--checkpoint={trained_run}",
                f"--data={shards_dir}",
                f"--out={tmp_path / f'e.{ending}'}",
            ]
        )
    tables = [load_table(tmp_path / f"e.{ending}") for ending in ("npz", "parquet")]
    for field in dataclasses.fields(table):
        values = [getattr(t, field.name) for t in (table, *tables)]
        if field.name == "extra":
            assert all(list(v) == list(values[0]) for v in values)
            for name in values[0]:
                assert all(v[name].tolist() == values[0][name].tolist() for v in values), name
        else:
            assert all(np.array_equal(v, values[0]) for v in values), field.name


def test_long_record_gives_a_row_a_window_or_one_for_all(model, trained_run, few, tmp_path):
    corpus = open_corpus("wfdb", few)
    records = [corpus.load(ref) for ref in corpus.refs]
    signal = np.concatenate([record.signal for record in records])
    signal[5000:5600, 7] = np.nan  # V2 is lost in the third window only
    np.save(tmp_path / "long.npy", (signal * 1000).T)
    flags = [
        f"--checkpoint={trained_run}",
        f"--record={tmp_path / 'long.npy'}",
        "--rate=250",
        "--unit=uV",
    ]
    flags.append(f"--lead_names={','.join(LEADS)}")
    for rows in ("window", "record"):
        embed_door.main([*flags, f"--rows={rows}", "--tokens", f"--out={tmp_path / rows}.npz"])
    windows, record = load_table(tmp_path / "window.npz"), load_table(tmp_path / "record.npz")
    assert windows.keys == ["long#0", "long#1", "long#2"] and record.keys == ["long#-1"]
    assert windows.extra["start_seconds"].tolist() == [0, 10, 20]
    python = model.embed(signal, fs=250, leads=LEADS)
    # mV and uV round differently
    np.testing.assert_allclose(windows.embedding, python.embedding, atol=1e-4)
    np.testing.assert_allclose(record.embedding[0], python.mean, atol=1e-4)
    weights = windows.extra["num_beats"] / windows.extra["num_beats"].sum()
    np.testing.assert_allclose(record.embedding[0], weights @ windows.embedding, atol=1e-6)
    assert record.extra["num_beats"].tolist() == [windows.extra["num_beats"].sum()]
    assert record.extra["leads"][0] == ";".join(lead for lead in LEADS if lead != "V2")
    assert "w2:gap:V2:600" in record.extra["defects"][0]
    tokens = [beats.tokens for beats in model.tokens(signal, 250, LEADS)]
    np.testing.assert_allclose(windows.tokens, np.concatenate(tokens), atol=1e-4)
    np.testing.assert_array_equal(windows.tokens, record.tokens)
    with np.load(tmp_path / "window.npz") as file:
        np.testing.assert_array_equal(np.diff(file["token_offsets"]), [len(t) for t in tokens])


def test_bad_records_are_listed_with_their_reasons_and_the_others_embedded(
    trained_run, few, tmp_path, capsys
):
    folder, out = tmp_path / "mixed", tmp_path / "emb.parquet"
    shutil.copytree(few, folder)
    names = sorted(p.stem for p in folder.glob("*.hea"))
    header = (folder / f"{names[0]}.hea").read_text()
    for bad in ("cut", "flat", "gone"):
        (folder / f"{bad}.hea").write_text(header.replace(names[0], bad))
    samples = (folder / f"{names[0]}.dat").read_bytes()
    (folder / "cut.dat").write_bytes(samples[:600])
    (folder / "flat.dat").write_bytes(bytes(len(samples)))
    embed_door.main([f"--checkpoint={trained_run}", f"--wfdb={folder}", f"--out={out}"])
    assert (
        f"3 records failed in whole or in part: see {out}.failures.csv" in capsys.readouterr().out
    )
    assert load_table(out).record_id.tolist() == names
    with open(f"{out}.failures.csv", newline="") as file:
        reasons = {row["record_id"]: row["reason"] for row in csv.DictReader(file)}
    assert reasons.keys() == {"cut", "flat", "gone"}
    assert (
        "truncated" in reasons["cut"]
        and "leads are missing" in reasons["flat"]
        and "gone.dat" in reasons["gone"]
    )
    embed_door.main([f"--checkpoint={trained_run}", f"--wfdb={few}", f"--out={out}"])
    assert not Path(f"{out}.failures.csv").exists(), (
        "the list of an earlier run is not about this table"
    )
    for name in names:
        (folder / f"{name}.hea").unlink()
    with pytest.raises(
        InputError, match="no embedding for any of 3 records; cut: cut.dat is truncated"
    ):
        embed_door.main([f"--checkpoint={trained_run}", f"--wfdb={folder}", f"--out={out}"])
    assert Path(f"{out}.failures.csv").exists()


def test_record_without_any_chosen_lead_is_a_failure_not_a_row_of_zeros(model, shards_dir):
    windows = list(shard_windows(ShardSet(shards_dir, "test")))
    windows[3]["visible"] = 0b111  # I, II, III
    failures = []
    table = dataset.embed_table(model, iter(windows), {}, failures, leads=["V1", "V2"])
    assert (
        len(table.record_id) == len(windows) - 1 and windows[3]["record_id"] not in table.record_id
    )
    assert [f.record_id for f in failures] == [windows[3]["record_id"]]
    assert failures[0].reason == "it has none of the leads V1, V2: usable are I, II, III"
    assert set(table.extra["rank"]) == {2} and np.isinf(table.extra["condition"]).all()


def test_random_weights_are_another_model_with_measured_norm_statistics(
    model, shards_dir, table, monkeypatch
):
    monkeypatch.setattr(lvcg, "CALIBRATION_BATCHES", 5)
    control = LVCG.random(model.config, 1, ShardSet(shards_dir, "train"))
    other = embed_dataset(control, shards_dir, progress=False)
    assert np.isfinite(other.embedding).all()
    assert np.abs(other.embedding - table.embedding).max() > 0.1
    assert not np.allclose(control.variables["batch_stats"]["encoder"]["stem_norm"]["mean"], 0.0)
    compiled = lvcg._calibrate._cache_size(), lvcg._initialise._cache_size()
    third = LVCG.random(model.config, 2, ShardSet(shards_dir, "train"))
    assert (lvcg._calibrate._cache_size(), lvcg._initialise._cache_size()) == compiled
    ids = {model.checkpoint, control.checkpoint, third.checkpoint}
    assert len({name.split("#")[1] for name in ids}) == 3, "two different weights share an id"


def test_a_shard_damaged_in_the_middle_is_told_and_nothing_is_written(
    trained_run, shards_dir, tmp_path
):
    shutil.copytree(shards_dir, tmp_path / "data")
    file = next((tmp_path / "data").glob("*-train.array_record*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2 - 4096) + content[-4096:]
    file.write_bytes(content)
    with pytest.raises(
        InputError, match=r"array_record.*run the build command of this dataset again"
    ):
        embed_door.main(
            [
                f"--checkpoint={trained_run}",
                f"--data={tmp_path / 'data'}",
                f"--out={tmp_path / 'e.npz'}",
            ]
        )
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_wrong_checkpoint_is_one_line(shards_dir, tmp_path):
    flags = [f"--data={shards_dir}", f"--out={tmp_path / 'e.npz'}"]
    assert_one_line_error(
        run("lvcg_jax.embed", f"--checkpoint={tmp_path / 'nowhere'}", *flags), "nowhere"
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--out=e.npz"], "give one of --data, --wfdb, --folder and --record, not none"),
        (["--out=e.npz", "--data=a", "--wfdb=b"], "not --data and --wfdb"),
        (["--out=e.csv", "--data=a"], "e.csv: an embeddings file ends in .npz or .parquet"),
        (["--out=e.npz", "--data=a", "--leads=I,AVX"], "unknown lead 'AVX': did you mean aV"),
        (["--out=e.parquet", "--data=a", "--tokens"], "--tokens needs an --out that ends in .npz"),
        (["--out=e.npz", "--wfdb=a", "--random_weights=1"], "--random_weights needs --data"),
        (["--out=e.npz", "--wfdb=a", "--rate=500"], "--rate is for --record"),
        (["--out=e.npz", "--wfdb=a", "--labels=l.csv"], "--labels is for --folder"),
        (["--out=e.npz", "--wfdb=/nowhere"], "no folder /nowhere"),
        (["--out=e.npz", "--folder=/nowhere"], "no folder /nowhere"),
        (["--out=e.npz", "--record=/nowhere.npy"], "no record file /nowhere.npy"),
        (
            ["--out=/dev/null/e.npz", "--record=pyproject.toml"],
            "--out=/dev/null/e.npz: cannot write there",
        ),
        (["--out=e.npz", "--data=/nowhere"], "no such dataset directory"),
    ],
)
def test_mistaken_flags_say_what_to_do(flags, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match=words):
        embed_door.main(["--checkpoint=run", *flags])


def test_a_folder_of_mixed_files_gives_the_rows_of_its_records(
    trained_run, few, tmp_path, monkeypatch, capsys
):
    """A WFDB record, the same as EDF with other names, and something that is no ECG."""
    import edfio

    monkeypatch.chdir(tmp_path)
    corpus = open_corpus("wfdb", few)
    first, second = corpus.refs[:2]
    for suffix in (".hea", ".dat"):
        Path("mixed", "ward").mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{first.path}{suffix}", "mixed/ward")
    record = corpus.load(second)
    leads = [
        edfio.EdfSignal(column.astype(float), record.rate, label=f"CH {i}", physical_dimension="mV")
        for i, column in enumerate(record.signal.T)
    ]
    edfio.Edf(leads).write("mixed/two.edf")
    Path("mixed/letter.pdf").write_bytes(b"%PDF-1.7")
    Path("labels.csv").write_text(f"record_id,patient_id,x\n{first.record_id},p,yes\ntwo.edf,q,\n")
    flags = [f"--checkpoint={trained_run}", "--rows=record", "--out=e.npz", "--labels=labels.csv"]
    embed_door.main([*flags, "--folder=mixed", f"--lead_names={','.join(LEADS)}"])
    assert "note: 1 files are no ECG and left out: letter.pdf" in capsys.readouterr().out
    table = load_table("e.npz")
    assert table.record_id.tolist() == ["two", f"ward/{first.record_id}"]
    assert table.labels == [{"x": []}, {"x": ["yes"]}] and table.patient_id.tolist() == ["q", "p"]
    embed_door.main([*flags[:2], f"--wfdb={few}", "--out=w.npz"])
    whole = load_table("w.npz")
    rows = rows_of(whole, [second.record_id, first.record_id])
    np.testing.assert_allclose(table.embedding, whole.embedding[rows], atol=2e-2)


def test_a_plain_array_without_its_rate_is_told_the_flag(trained_run, tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((5000, 2)))
    flags = [
        f"--checkpoint={trained_run}",
        f"--record={tmp_path / 'r.npy'}",
        f"--out={tmp_path / 'e.npz'}",
    ]
    with pytest.raises(InputError, match=r"rate is not known.*--rate, --unit, --lead_names"):
        embed_door.main(flags)
    with pytest.raises(InputError, match="all leads are missing"):
        embed_door.main([*flags, "--rate=500", "--unit=mV", "--lead_names=I,II"])


def test_shards_of_other_preprocessing_are_refused(trained_run, raw_corpus, tmp_path):
    from data_prep.dataset.builder import build
    from data_prep.ecg.preprocess import Preprocess

    build(
        open_corpus("synthetic", raw_corpus),
        tmp_path / "d",
        Preprocess(max_beats=10),
        limit=3,
        progress=False,
    )
    with pytest.raises(InputError, match="max_beats=10 here, 20 expected"):
        embed_door.main(
            [
                f"--checkpoint={trained_run}",
                f"--data={tmp_path / 'd'}",
                f"--out={tmp_path / 'e.npz'}",
            ]
        )
