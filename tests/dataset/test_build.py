"""Building a dataset directory: resumable, the same bytes always, and honest about what it
dropped."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from helpers.builds import ecg, files_of, ledger_of, quiet_build, read_or_die, write_wfdb

from data_prep import build as build_door
from data_prep import delineation_report, synthetic
from data_prep.base.errors import InputError
from data_prep.base.lottery import split_of_patient
from data_prep.build import main, parse_overrides
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import finish, shards
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.leads import LEADS
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import write_corpus

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "synthetic"
    write_corpus(folder, patients=10, records_per_patient=3, rate=100)
    return folder


@pytest.fixture(scope="module")
def corpus(raw):
    return open_corpus("synthetic", raw)


@pytest.fixture(scope="module")
def reference(corpus, tmp_path_factory):
    """The uninterrupted build in one process, 4 records a shard."""
    out = tmp_path_factory.mktemp("reference") / "out"
    quiet_build(corpus, out, shard_records=4)
    return files_of(out)


def test_two_workers_write_the_same_bytes(corpus, reference, tmp_path):
    environment = dict(os.environ)
    quiet_build(corpus, tmp_path / "out", shard_records=4, workers=2)
    assert files_of(tmp_path / "out") == reference
    assert dict(os.environ) == environment  # threads are limited for the workers only


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_build_goes_on_to_the_same_bytes(raw, reference, tmp_path, workers):
    for attempt in range(5):  # on a busy machine the build may be over before the kill arrives
        out = tmp_path / str(attempt)
        flags = [
            f"--raw={raw}",
            f"--out={out}",
            f"--workers={workers}",
            "--corpus=synthetic",
            "--shard_records=4",
        ]
        command = [sys.executable, "-m", "data_prep.build", *flags]
        process = subprocess.Popen(
            command, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not list(out.glob("parts/*.json")):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not (out / shards.METADATA_FILE).exists():
            break
    with pytest.raises(InputError, match="did not finish; run the same build command again"):
        ShardSet(out, "train")
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    assert "30 kept of 30" in done.stdout and str(out / "ledger.csv") in done.stdout
    assert files_of(out) == reference


def test_crash_at_any_rename_is_repaired_by_the_same_command(
    corpus, reference, tmp_path, monkeypatch
):
    class Crash(BaseException):
        pass

    real, calls = os.replace, []

    def count_or_crash(*args):
        calls.append(args)
        if len(calls) == crash_at:
            raise Crash
        return real(*args)

    monkeypatch.setattr(finish.os, "replace", count_or_crash)
    crash_at = None
    few = {"shard_records": 8}
    quiet_build(corpus, tmp_path / "whole", **few)
    whole, renames = files_of(tmp_path / "whole"), len(calls)
    assert renames > 15
    for crash_at in range(1, renames + 1):
        calls.clear()
        with pytest.raises(Crash):
            quiet_build(corpus, tmp_path / str(crash_at), **few)
        calls.clear()
        crash_at_before, crash_at = crash_at, None
        quiet_build(corpus, tmp_path / str(crash_at_before), **few)
        assert files_of(tmp_path / str(crash_at_before)) == whole, (
            f"crash at rename {crash_at_before}"
        )


def test_finished_shards_are_not_built_again(corpus, tmp_path, monkeypatch):
    quiet_build(corpus, tmp_path, shard_records=4)
    monkeypatch.setattr(
        type(corpus), "load", lambda *_: pytest.fail("a finished record was read again")
    )
    quiet_build(corpus, tmp_path, shard_records=4)


@pytest.mark.parametrize("harm", ["lost", "cut", "flipped"])
def test_damaged_directory_is_repaired(corpus, reference, tmp_path, harm):
    quiet_build(corpus, tmp_path, shard_records=4)
    for name in (
        "synthetic-train.array_record-00001-of-00006",
        "beat_counts-test.npy",
        "features.json",
    ):
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 255
        path.write_bytes({"lost": b"", "cut": data[: len(data) // 2], "flipped": data}[harm])
        if harm == "lost":
            path.unlink()
    quiet_build(corpus, tmp_path, shard_records=4)
    assert files_of(tmp_path) == reference


def test_another_build_in_the_folder_is_refused(corpus, tmp_path):
    quiet_build(corpus, tmp_path, limit=4)
    for options, told in [
        ({"windows": "all"}, "windows was 'first', now 'all'"),
        ({"store_signal": True}, "store_signal was False, now True"),
        ({"limit": 5}, "records was 4, now 5"),
        ({"preprocess": Preprocess(peaks="vcg")}, "preprocessing peaks was 'lead_ii', now 'vcg'"),
    ]:
        with pytest.raises(InputError, match=told):
            quiet_build(corpus, tmp_path, **({"limit": 4} | options))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and not a build of ours"):
        quiet_build(corpus, tmp_path / "foreign")


def test_changed_labels_are_another_build(raw, tmp_path):
    corpus = open_corpus("synthetic", raw)
    quiet_build(corpus, tmp_path, limit=4)
    corpus.refs[0].labels["diagnosis"][:] = (
        ["LVH"] if corpus.refs[0].labels["diagnosis"] != ["LVH"] else ["NORM"]
    )
    with pytest.raises(InputError, match="the list of records, their patients, splits or labels"):
        quiet_build(corpus, tmp_path, limit=4)


def test_bad_records_are_in_the_ledger_and_the_rest_is_built(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(4):
        write_wfdb(folder, f"good{i}", ecg(i))
    write_wfdb(folder, "nothing", np.full((1000, 12), -32768))
    write_wfdb(folder, "still", np.full((1000, 12), 7))
    write_wfdb(folder, "short", ecg(5)[:50])
    hum = np.full((1000, 12), -32768)
    hum[:, 6:] = 200 * np.sin(2 * np.pi * 10 * np.arange(1000) / 100)[:, None]
    write_wfdb(folder, "no_beats", hum)
    write_wfdb(folder, "cut_off", ecg(6))
    (folder / "cut_off.dat").write_bytes((folder / "cut_off.dat").read_bytes()[:1001])
    write_wfdb(folder, "garbled", ecg(7))
    (folder / "garbled.hea").write_bytes(b"\x00\xff nonsense")
    lacking = ecg(8)
    lacking[:, LEADS.index("V3")] = -32768
    write_wfdb(folder, "lacks_v3", lacking)
    out = tmp_path / "out"
    metadata = quiet_build(open_corpus("wfdb", folder), out, shard_records=2)
    ledger = ledger_of(out)
    assert {name for name, row in ledger.items() if row["kept"] == "yes"} == {
        *(f"good{i}" for i in range(4)),
        "lacks_v3",
    }
    words = {
        "nothing": "missing",
        "still": "flat",
        "short": "too short",
        "no_beats": "no R peak",
        "cut_off": "truncated",
    }
    for name in (*words, "garbled"):
        reason = ledger[name]["reason"]
        assert reason and words.get(name, "header") in reason and f"record {name}" not in reason, (
            name,
            reason,
        )
    assert ledger["lacks_v3"]["missing_leads"] == "V3" and "V3" in ledger["lacks_v3"]["defects"]
    assert (
        metadata["records"] == {"listed": 11, "kept": 5} and sum(metadata["dropped"].values()) == 6
    )
    assert metadata["missing_leads"] == {"V3": 1}
    stored = {e["record_id"] for s in metadata["splits"] for e in ShardSet(out, s)}
    assert stored == {*(f"good{i}" for i in range(4)), "lacks_v3"}
    text = shards.describe(metadata)
    assert "5 kept of 11, 6 dropped" in text and "lead V3" in text and "too short" in text


def test_a_record_that_ends_its_worker_is_in_the_ledger_and_the_others_are_built(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(5):
        write_wfdb(folder, f"good{i}", ecg(i))
    write_wfdb(folder, "deadly", ecg(5))
    corpus = dataclasses.replace(open_corpus("wfdb", folder), read=read_or_die)
    monkeypatch.setattr(build_door, "open_corpus", lambda *_: corpus)
    flags = ["--corpus=wfdb", f"--raw={folder}", f"--out={tmp_path / 'out'}", "--workers=2"]
    assert main(flags) == build_door.CRASHED
    assert "1 records ended their worker process" in capsys.readouterr().out
    ledger = ledger_of(tmp_path / "out")
    assert [name for name, row in ledger.items() if row["kept"] == "no"] == ["deadly"]
    assert ledger["deadly"]["reason"].startswith("its worker process died twice (SIGKILL")
    assert ledger["deadly"]["defects"] == "crashed"
    metadata = shards.read_metadata(tmp_path / "out")
    stored = {e["record_id"] for s in metadata["splits"] for e in ShardSet(tmp_path / "out", s)}
    assert stored == {f"good{i}" for i in range(5)}


def test_a_file_that_ends_scipys_reader_is_a_line_of_the_ledger_and_the_others_are_built(
    tmp_path,
):
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(4):
        scipy.io.savemat(folder / f"A{i}.mat", {"ECG": {"sex": "Male", "data": ecg(i).T / 1000}})
    deadly = REPO / "tests" / "fuzz" / "failures" / "bus_error.mat"
    (folder / "A4.mat").write_bytes(deadly.read_bytes())
    assert main(["--corpus=files", f"--raw={folder}", f"--out={tmp_path / 'out'}"]) == 0
    ledger = ledger_of(tmp_path / "out")
    kept = {name for name, row in ledger.items() if row["kept"] == "yes"}
    assert kept == {f"A{i}" for i in range(4)} and ledger.keys() == kept | {"A4"}
    assert "A4.mat" in ledger["A4"]["reason"] and "\n" not in ledger["A4"]["reason"]


def test_shard_and_split_without_a_kept_record(corpus, tmp_path, monkeypatch):
    load = type(corpus).load
    refs = [r for r in corpus.refs if r.split == "train"][4:8] + [
        r for r in corpus.refs if r.split == "test"
    ]
    lost = {r.record_id for r in refs}

    def fails(self, ref):
        return load(self, ref) if ref.record_id not in lost else 1 / 0

    monkeypatch.setattr(type(corpus), "load", fails)
    metadata = quiet_build(corpus, tmp_path, shard_records=4)
    assert (
        set(metadata["splits"]) == {"train", "validation"}
        and metadata["splits"]["train"]["shard_lengths"][1] == 0
    )
    assert not list(tmp_path.glob("*-test.*"))
    train = ShardSet(tmp_path, "train")
    assert [e["record_id"] for e in train] == [
        r.record_id for r in corpus.refs if r.split == "train" and r.record_id not in lost
    ]
    assert {row["reason"] for row in ledger_of(tmp_path).values() if row["kept"] == "no"} == {
        "ZeroDivisionError: division by zero"
    }
    # and a second run finds nothing to do
    assert quiet_build(corpus, tmp_path, shard_records=4) == metadata


def test_all_dropped_points_at_the_ledger(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(type(corpus), "load", lambda *_: 1 / 0)
    with pytest.raises(
        InputError, match=r"all 30 records were dropped, most often: ZeroDivisionError.*ledger\.csv"
    ):
        quiet_build(corpus, tmp_path)
    assert len(ledger_of(tmp_path)) == 30


def test_long_record_gives_all_its_windows(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    write_wfdb(folder, "long", ecg(1, seconds=300))
    corpus = open_corpus("wfdb", folder)
    first = quiet_build(corpus, tmp_path / "first")
    whole = quiet_build(corpus, tmp_path / "all", windows="all", store_signal=True)
    (split,) = whole["splits"]
    assert first["splits"][split]["examples"] == 1
    assert whole["splits"][split]["examples"] == 30 and whole["splits"][split]["records"] == 1
    stored = ShardSet(tmp_path / "all", split)
    assert [e["window"] for e in stored] == list(range(30)) and len(
        {e["uid"] for e in stored}
    ) == 30
    assert all(e["signal"].shape == (12, 1000) == (12, e["length"].sum()) for e in stored)
    assert ledger_of(tmp_path / "all")["long"]["windows"] == "30"


def test_ledger_says_which_window_has_a_defect(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    signal = ecg(1, seconds=33)
    # in the second window only; the last 3 s belong to none
    signal[1200:1600, LEADS.index("V2")] = -32768
    write_wfdb(folder, "long", signal)
    quiet_build(open_corpus("wfdb", folder), tmp_path / "out", windows="all")
    row = ledger_of(tmp_path / "out")["long"]
    assert (
        row["missing_leads"] == "V2"
        and "w1:gap:V2" in row["defects"]
        and "w0:" not in row["defects"]
    )
    assert row["defects"].count("tail_left_out") == 1


def test_colliding_uids_are_told_apart_and_listed(corpus, reference, tmp_path, monkeypatch):
    assert json.loads(reference["dataset.json"])["uid_rehash"] == {}
    real = shards.uid_of  # 30 windows into 20 values collide, into 1000 hardly
    few = lambda name, window, attempt=0: real(name, window, attempt) % (1000 if attempt else 20)  # noqa: E731
    monkeypatch.setattr(shards, "uid_of", few)
    metadata = quiet_build(corpus, tmp_path, shard_records=4)
    uids = {
        f"{e['record_id']}#0": e["uid"] for s in metadata["splits"] for e in ShardSet(tmp_path, s)
    }
    assert len(set(uids.values())) == 30 and len(metadata["uid_rehash"]) >= 10
    assert all(uids[name] == uid for name, uid in metadata["uid_rehash"].items())
    before = files_of(tmp_path)
    (tmp_path / "synthetic-train.array_record-00002-of-00006").unlink()
    quiet_build(corpus, tmp_path, shard_records=4)
    assert files_of(tmp_path) == before


def test_full_disk_is_one_line_and_the_build_goes_on_later(
    corpus, reference, tmp_path, monkeypatch
):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def array_record_no_space(path, records):
        writer = shards.ArrayRecordWriter("/dev/full", "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()

    for name, function in (("write_shard", array_record_no_space), ("file_sha256", no_space)):
        with (
            monkeypatch.context() as patch,
            pytest.raises(InputError, match=r"disk full.*run the same command again"),
        ):
            patch.setattr(shards, name, function)
            quiet_build(corpus, tmp_path / "out", shard_records=4)
    quiet_build(corpus, tmp_path / "out", shard_records=4)
    assert files_of(tmp_path / "out") == reference


def test_two_builds_at_once_are_refused(corpus, tmp_path, monkeypatch):
    load = type(corpus).load

    def second_build(self, ref):
        monkeypatch.setattr(type(corpus), "load", load)
        with pytest.raises(InputError, match="another build is running"):
            quiet_build(corpus, tmp_path, limit=2)
        return load(self, ref)

    monkeypatch.setattr(type(corpus), "load", second_build)
    assert quiet_build(corpus, tmp_path, limit=2)["records"]["kept"] == 2


def test_shares_of_a_job_array_and_a_last_build_write_the_bytes_of_one(
    raw, reference, tmp_path, capsys, monkeypatch
):
    """The second of three shares fails in the middle; a shard of another is damaged later."""
    out = tmp_path / "out"
    flags = ["--corpus=synthetic", f"--raw={raw}", f"--out={out}", "--shard_records=4"]
    for share in ("3/3", "1/3", "1/3"):
        assert main([*flags, f"--shard={share}"]) == 0
    assert "share 1 of 3 is built" in capsys.readouterr().out
    assert not (out / "dataset.json").exists()
    with pytest.raises(InputError, match="this build did not finish"):
        ShardSet(out, "train")
    corpus = open_corpus("synthetic", raw)
    load, read = type(corpus).load, []

    def other_builds(self, ref):
        with pytest.raises(InputError, match="another build is running"):
            main(flags)
        with pytest.raises(InputError, match="a share of another number of shares"):
            main([*flags, "--shard=1/2"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(corpus), "load", other_builds)
        with pytest.raises(KeyboardInterrupt):
            main([*flags, "--shard=2/3"])
    built = sorted(out.glob("*.array_record*"))
    built[-1].write_bytes(built[-1].read_bytes()[:-1])
    note = lambda self, ref: read.append(ref.record_id) or load(self, ref)  # noqa: E731
    monkeypatch.setattr(type(corpus), "load", note)
    assert main(flags) == 0
    assert files_of(out) == reference
    assert 0 < len(read) < len(corpus.refs)
    assert main([*flags, "--shard=2/3"]) == 0, "a job that is started again has nothing to do"
    assert files_of(out) == reference


@pytest.mark.parametrize("share", ["0/4", "5/4", "2", "a/b", "1/0"])
def test_a_share_that_is_none_is_told(share):
    with pytest.raises(InputError, match="is not a share such as 2/8"):
        main(["--corpus=wfdb", "--raw=x", "--out=y", f"--shard={share}"])


def test_splits_and_label_counts(corpus, reference):
    metadata = json.loads(reference["dataset.json"])
    for split, values in metadata["splits"].items():
        refs = [r for r in corpus.refs if r.split == split]
        assert (values["records"], values["patients"]) == (
            len(refs),
            len({r.patient_id for r in refs}),
        )
        for task, names in corpus.tasks.items():
            expected = {name: sum(name in r.labels[task] for r in refs) for name in names}
            assert values["label_counts"][task] == expected and values["labelled"][task] == len(
                refs
            )


def test_hash_split_keeps_patients_together_and_shares(corpus):
    splits = [split_of_patient(f"p{i}") for i in range(5000)]
    shares = [splits.count(name) / 5000 for name in ("train", "validation", "test")]
    assert np.allclose(shares, [0.8, 0.1, 0.1], atol=0.02)
    assert split_of_patient("p17") == split_of_patient("p17")


def test_record_listed_twice_and_unknown_class_are_told(raw, tmp_path):
    corpus = open_corpus("synthetic", raw)
    corpus.refs.append(corpus.refs[0])
    with pytest.raises(
        InputError, match=f"record '{corpus.refs[0].record_id}' is listed more than once"
    ):
        quiet_build(corpus, tmp_path)
    corpus.refs.pop()
    corpus.refs[3].labels["rhythm"].append("WALTZ")
    with pytest.raises(InputError, match="'WALTZ' is not a class of task 'rhythm'"):
        quiet_build(corpus, tmp_path)


def test_command_line(raw, tmp_path, capsys):
    flags = [
        "--corpus=synthetic",
        f"--raw={raw}",
        f"--out={tmp_path / 'out'}",
        "--limit=6",
        "--preprocess=peaks=vcg",
    ]
    assert main(flags) == 0
    printed = capsys.readouterr().out
    assert (
        "6 kept of 6, 0 dropped" in printed and "beats per example" in printed and "NORM" in printed
    )
    assert shards.read_metadata(tmp_path / "out")["preprocess"]["peaks"] == "vcg"
    with pytest.raises(InputError, match="did you mean"):
        parse_overrides(["peak=vcg"])
    with pytest.raises(InputError, match="write FIELD=VALUE"):
        parse_overrides(["peaks"])


@pytest.mark.parametrize(
    "door, flags, wrong",
    [
        (build_door, ["--corpus=wfdb", "--raw=x", "--out=y"], "--workers=0"),
        (build_door, ["--corpus=wfdb", "--raw=x", "--out=y"], "--limit=-3"),
        (build_door, ["--corpus=wfdb", "--raw=x", "--out=y"], "--shard_records=1.5"),
        (synthetic, ["--out=y"], "--patients=0"),
        (synthetic, ["--out=y"], "--seed=-1"),
        (synthetic, ["--out=y"], "--seconds=0"),
        (delineation_report, ["--raw=x"], "--rate=-100"),
    ],
)
def test_numbers_out_of_range_are_told_by_flag(door, flags, wrong):
    flag, value = wrong.split("=")
    with pytest.raises(InputError, match=f"argument {flag}: '{value}' is not a"):
        door.main([*flags, wrong])


@pytest.mark.skipif(
    "LVCG_REAL_DATA" not in os.environ, reason="needs LVCG_REAL_DATA: a folder with ptbxl in it"
)
def test_ptbxl_builds_with_nearly_nothing_dropped(tmp_path):
    corpus = open_corpus("ptbxl", Path(os.environ["LVCG_REAL_DATA"]) / "ptbxl")
    metadata = quiet_build(corpus, tmp_path, limit=200)
    assert metadata["records"]["kept"] >= 198 and metadata["patients_in_several_splits"] == 0
    train = ShardSet(tmp_path, "train")
    assert 8 < np.median(train.counts) < 18
    scales = np.array([e["scale"] for e in train])
    assert 0.02 < np.median(scales) < 1.0, "the scale of a lead should be a fraction of a millivolt"
