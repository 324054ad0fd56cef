"""Embeddings as a folder of parts: the rows of one file, in little memory, by any number of
processes, and the same bytes after a kill."""

import dataclasses
import json
import shutil
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers.builds import ecg, files_of, quiet_build, write_wfdb
from helpers.commands import start

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.ecg.leads import LEADS
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.embed.dataset import embed_corpus, embed_dataset, write_failures
from lvcg_jax.embed.parts import Source, Written, corpus_source, shard_source, write_parts
from lvcg_jax.embed.table import Table, load_table
from lvcg_jax.predict.__main__ import main as predict
from lvcg_jax.probe.__main__ import main as probe
from lvcg_jax.stats import blocks

LAST = "120 rows, 0 records with failures, 0 rows of rank below 3, 0 rows with unknown leads"


@pytest.fixture(scope="module")
def flags(trained_run, shards_dir):
    """The command, but for its --out: 120 records in twelve parts."""
    return [f"--checkpoint={trained_run}", f"--data={shards_dir}", "--part_rows=12"]


@pytest.fixture(scope="module")
def folder(flags, tmp_path_factory):
    """A folder that one process wrote undisturbed."""
    out = tmp_path_factory.mktemp("parts") / "whole"
    assert embed_door.main([*flags, f"--out={out}"]) == 0
    return out


def assert_same_rows(one: Table, two: Table) -> None:
    for field in dataclasses.fields(Table):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if field.name == "extra":
            assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}
        elif field.name == "embedding":
            np.testing.assert_allclose(a, b, atol=1e-5)
        else:
            assert np.array_equal(a, b), field.name


def test_a_folder_of_parts_holds_the_rows_of_one_file(folder, model, shards_dir):
    table = embed_dataset(model, shards_dir, progress=False)
    names = {f"part-{i:05d}-of-00012.parquet" for i in range(12)}
    assert set(files_of(folder)) == names | {"plan.json", "table.json"}
    assert_same_rows(load_table(folder), table)


def test_a_killed_process_on_two_devices_is_continued_to_the_same_bytes_on_one(
    flags, folder, tmp_path, capsys
):
    out = tmp_path / "killed"
    process = start("lvcg_jax.embed", *flags, f"--out={out}", devices=2)
    while not list(out.glob("*.parquet")):
        assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.001)
    process.kill()
    process.communicate()
    there = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert 0 < len(there) < 12, "not killed in the middle"
    with pytest.raises(InputError, match="no finished folder of embeddings; run the lvcg embed"):
        load_table(out)
    assert embed_door.main([*flags, f"--out={out}"]) == 0
    assert files_of(out) == files_of(folder)
    assert {name: (out / name).stat().st_mtime_ns for name in there} == there, "done again"
    assert capsys.readouterr().out.splitlines()[-1] == LAST


def test_two_shares_write_the_bytes_of_one_process_and_the_last_finishes(
    flags, folder, tmp_path, capsys
):
    out = tmp_path / "shared"
    assert embed_door.main([*flags, f"--out={out}", "--part=2/2"]) == 0
    printed = capsys.readouterr().out
    assert "share 2 of 2 is done; 6 parts of other shares are not there yet" in printed
    assert printed.splitlines()[-1].startswith("61 rows, 0 records with failures")
    assert embed_door.main([*flags, f"--out={out}", "--part=1/2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == LAST
    assert files_of(out) == files_of(folder)


def test_what_is_damaged_is_named_and_the_same_call_makes_it_anew(
    model, shards_dir, folder, tmp_path
):
    out, source = tmp_path / "out", shard_source(model, shards_dir)
    shutil.copytree(folder, out)
    parts = sorted(out.glob("*.parquet"))
    parts[3].write_bytes(parts[4].read_bytes())  # whole in itself, but not this part
    parts[7].unlink()
    with pytest.raises(InputError, match="part-00003-of-00012.parquet is missing or damaged"):
        load_table(out)
    write_parts(model, source, out, part_rows=12, progress=False)
    assert files_of(out) == files_of(folder)
    for changed in ({"leads": ["I"]}, {"rows": "record"}, {"part_rows": 13}):
        with pytest.raises(InputError, match=r"holds other embeddings \(different: "):
            write_parts(model, source, out, **({"part_rows": 12} | changed))


def test_records_of_several_windows_are_not_cut_and_failures_are_kept(model, tmp_path):
    """Records of one to five windows in parts of three; one of them lacks the chosen leads."""
    raw, data = tmp_path / "raw", tmp_path / "data"
    raw.mkdir()
    for patient, seconds in enumerate((50, 10, 30, 20, 40)):
        signal = ecg(patient, seconds)
        if patient == 3:
            signal[:, LEADS.index("V1") :] = 0
        write_wfdb(raw, f"r{patient}", signal)
    corpus = open_corpus("wfdb", raw)
    quiet_build(corpus, data, windows="all", detectors=False)
    options = {"leads": ["V1", "V2"], "rows": "record", "progress": False}
    for name, source, whole in (
        ("shards", shard_source(model, data), lambda **o: embed_dataset(model, data, **o)),
        ("files", corpus_source(model, corpus), lambda **o: embed_corpus(model, corpus, **o)),
    ):
        failures = []
        table = whole(failures=failures, **options)
        written = write_parts(model, source, tmp_path / name, part_rows=3, **options)
        assert_same_rows(load_table(tmp_path / name), table)
        expected = write_failures(str(tmp_path / f"{name}.npz"), failures)
        assert (tmp_path / name / "table.failures.csv").read_bytes() == (
            Path(expected).read_bytes()
        )
        assert {f.record_id for f in failures} == {"r3"}
        counts = {"rows": 4, "records": 4, "failed": 1, "weak": 4, "unknown": 0}
        assert written == Written(counts, 0, str(tmp_path / name / "table.failures.csv"))


class Constant:
    """A model that costs nothing."""

    checkpoint, part_sizes = "constant#0", {"structure": 512}
    max_beats = 20
    preprocess = dataclasses.make_dataclass("Chain", [("max_beats", int)])(20)
    preprocess.hash = lambda: "none"

    def embed_pieces(self, pieces):
        for windows in map(list, pieces):
            yield windows, {"structure": np.ones((len(windows), 512), np.float32)}

    def lead_facts(self, windows):
        return {"rank": np.full(len(windows), 3)}


def test_memory_of_the_writer_does_not_grow_with_the_rows(tmp_path):
    window = {"patient_id": "p", "split": "", "labels": {}, "window": 0, "start_seconds": 0.0}
    window |= {"length": np.ones(9), "visible": 7, "defects": ""}

    def read(piece, first, stop, failures, done):
        return (window | {"record_id": str(number)} for number in range(first, stop))

    peaks = []
    for count in (256, 2048):
        source = Source("", {}, {"": count}, read)
        options = {"part_rows": 128, "progress": False}
        write_parts(Constant(), source, tmp_path / "warm", **options) if not peaks else None
        tracemalloc.start()
        written = write_parts(Constant(), source, tmp_path / str(count), **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert written.counts["rows"] == count and not written.missing
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_a_probe_of_parts_on_disk_scores_as_one_of_the_file_in_memory(
    folder, tmp_path, monkeypatch
):
    """The probe reads seventeen rows at a time, the control and the parts alone too."""
    table = load_table(folder)
    assert not isinstance(table.embedding, np.memmap)
    again = dataclasses.replace(table, embedding=table.embedding.copy())
    flags = ["--fractions=0.5,1", "--seeds=2", "--resamples=20", "--task=rhythm", "--parts"]

    def scores(name: str, save: str) -> dict:
        out = tmp_path / f"{name}.json"
        probe([f"--embeddings={folder}", f"--control=c={folder}", f"--out={out}", *flags])
        probe([f"--embeddings={folder}", *flags[:-1], f"--save={tmp_path / save}"])
        return json.loads(out.read_text())

    expected = scores("memory", "one.safetensors")
    monkeypatch.setattr(blocks, "BLOCK", 17)
    assert isinstance(load_table(folder).embedding, np.memmap)
    assert_same_rows(load_table(folder), again)
    found = scores("disk", "two.safetensors")
    for one, two in zip(expected["results"][0]["cells"], found["results"][0]["cells"], strict=True):
        assert (one["model"], one["fraction"], one["setting"]) == (
            two["model"],
            two["fraction"],
            two["setting"],
        )
        assert abs(one["macro_auroc"] - two["macro_auroc"]) < 1e-3
    head = f"--head={tmp_path / 'two.safetensors'}"
    assert predict([head, f"--embeddings={folder}", f"--out={tmp_path / 'a.csv'}"]) == 0


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--out=e.npz", "--part=1/2"], "--part is for a folder of parts: give an --out without"),
        (["--out=e.npz", "--part_rows=9"], "--part_rows is for a folder of parts"),
        (["--out=e", "--part=3/2"], "'3/2' is not a share such as 2/8"),
        (["--out=gs://bucket/e"], "gs://bucket/e: only ordinary files will do here"),
        (["--out=e", "--tokens"], "--tokens needs an --out that ends in .npz"),
    ],
)
def test_mistaken_flags_say_what_to_do(flags, words):
    with pytest.raises(InputError, match=words):
        embed_door.main(["--data=a", *flags])


def test_a_folder_of_something_else_is_left_alone(model, shards_dir, tmp_path):
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(InputError, match="not empty, and no folder of embeddings"):
        write_parts(model, shard_source(model, shards_dir), tmp_path)
    with pytest.raises(InputError, match="no finished folder of embeddings"):
        load_table(tmp_path)
    assert files_of(tmp_path) == {"thesis.txt": b"chapter 1"}
