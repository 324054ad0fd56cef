"""`lvcg verify` accepts what the build made and refuses everything that was changed
since."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.builds import ecg, quiet_build, write_wfdb
from helpers.commands import assert_one_line_error, run

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import shards
from data_prep.dataset.checks import verify
from data_prep.dataset.shards import ShardSet
from data_prep.synthetic_heart.records import write_corpus
from data_prep.verify import main


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    write_corpus(folder / "raw", patients=10, records_per_patient=2, rate=100)
    quiet_build(open_corpus("synthetic", folder / "raw"), folder / "out", shard_records=4)
    return folder / "out"


@pytest.fixture
def copy(built, tmp_path):
    """A dataset directory to harm."""
    return Path(shutil.copytree(built, tmp_path / "copy"))


def change_json(path, change):
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def forge(directory, split, change):
    """Rewrites the examples of a split by change(list of examples) and makes dataset.json fit the
    new files."""
    stored = ShardSet(directory, split)
    metadata = stored.metadata
    spec = shards.features(stored.preprocess.beat_samples, metadata["signal"])
    examples = [dict(example) for example in stored.read(range(len(stored)))]
    change(examples)
    values, first = metadata["splits"][split], 0
    for info in values["shards"]:
        some = examples[first : first + info["examples"]]
        first += info["examples"]
        path = directory / info["file"]
        shards.write_shard(path, [shards.encode(spec, example) for example in some])
        info.update(
            bytes=path.stat().st_size, sha256=shards.file_sha256(path), first_uid=some[0]["uid"]
        )
    (directory / shards.METADATA_FILE).write_text(json.dumps(metadata))


def edit_ledger(directory, change):
    """Changes the rows of the ledger and its checksum with it."""
    path = directory / shards.LEDGER_FILE
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0])
    change(rows)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    sha256 = shards.file_sha256(path)
    change_json(
        directory / shards.METADATA_FILE, lambda metadata: metadata.update(ledger_sha256=sha256)
    )


def assert_refused(directory, *words):
    _, failed = verify(directory)
    assert failed, "verify accepted it"
    text = "\n".join(failed)
    for word in words:
        assert word in text, (word, text)


def test_a_build_is_verified(built, capsys):
    assert main([f"--data={built}"]) == 0
    page = capsys.readouterr().out
    for word in (
        "no patient in two splits",
        "20 different uids",
        "train: tfds reads the same",
        "label counts",
    ):
        assert f"ok            {word}" in page or word in page
    assert page.endswith(f"{built}: verified\n") and len(page.splitlines()) < 80


def test_damaged_files_are_refused(copy):
    paths = [
        *ShardSet(copy, "train").paths,
        copy / "beat_counts-test.npy",
        copy / "ledger.csv",
        copy / "features.json",
    ]
    for path in paths[1:]:
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 4
        for harmed in (bytes(flipped), data[: len(data) // 2], None):
            path.unlink() if harmed is None else path.write_bytes(harmed)
            assert_refused(copy)
        path.write_bytes(data)
    assert verify(copy)[1] == []
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    assert_refused(copy, paths[0].name, "bytes instead of")


@pytest.mark.parametrize("name", ["examples", "records", "patients", "beats"])
def test_wrong_counts_are_refused(copy, name):
    def change(metadata):
        metadata["splits"]["train"][name] += 1

    change_json(copy / "dataset.json", change)
    assert_refused(copy, f"{name}, dataset.json says")


def test_wrong_label_counts_are_refused(copy):
    def change(metadata):
        counts = metadata["splits"]["validation"]["label_counts"]["rhythm"]
        name = next(name for name, n in counts.items() if n)
        counts[name] -= 1

    change_json(copy / "dataset.json", change)
    assert_refused(copy, "validation: label counts: rhythm")


def test_swapped_labels_are_refused(copy):
    def change(examples):
        labels = [example["labels"] for example in examples]
        other = next(text for text in labels if text != labels[0])
        examples[0]["labels"] = other

    forge(copy, "train", change)
    assert_refused(copy, "train: label counts")


def test_patient_in_two_splits_is_refused(copy):
    patient = ShardSet(copy, "train")[0]["patient_id"]
    forge(
        copy, "test", lambda examples: [example.update(patient_id=patient) for example in examples]
    )
    assert_refused(copy, f"no patient in two splits: {patient} of train is in test")


def test_identical_signal_in_two_splits_is_refused(copy):
    stolen = ShardSet(copy, "train")[3]

    def change(examples):
        keys = ("beats", "start", "length", "complete", "offset", "scale", "num_samples")
        examples[0].update({key: stolen[key] for key in keys})

    forge(copy, "validation", change)
    assert_refused(
        copy, f"no identical signal in two splits: {stolen['record_id']} of train is in validation"
    )


def test_duplicates_kept_across_splits_are_refused(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for i in range(4):
        write_wfdb(raw, f"r{i}", ecg(i % 3))  # r3 repeats r0
    text = "record_id,patient_id,split\nr0,a,train\nr1,b,train\nr2,c,test\nr3,d,test\n"
    (raw / "labels.csv").write_text(text)
    quiet_build(open_corpus("wfdb", raw), tmp_path / "keep", duplicates="keep")
    assert_refused(
        tmp_path / "keep",
        "no identical signal in two splits: r0",
        "no identical raw signal in two splits",
    )
    quiet_build(open_corpus("wfdb", raw), tmp_path / "drop")
    assert verify(tmp_path / "drop")[1] == []


def test_repeated_uid_is_refused(copy):
    forge(copy, "train", lambda examples: examples[1].update(uid=examples[0]["uid"]))
    assert_refused(copy, "occurs 2 times")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"length": lambda v: v + 1}, "do not tile"),
        ({"scale": lambda v: -v}, "scale that is not positive"),
        ({"offset": lambda v: v * np.float32(np.nan)}, "not finite"),
        ({"lead_mask": lambda v: 7}, "values in a missing lead"),
        ({"complete": lambda v: v[:-1]}, "beats,"),
    ],
)
def test_impossible_values_are_refused(copy, change, told):
    def harm(examples):
        for name, function in change.items():
            examples[2][name] = function(examples[2][name])

    forge(copy, "train", harm)
    assert_refused(copy, "train: sound values", told)


def test_ledger_that_does_not_fit_is_refused(copy):
    edit_ledger(copy, lambda rows: rows.pop(3))
    assert_refused(copy, "19 rows and 19 kept")


def test_ledger_row_with_other_beats_or_no_reason_is_refused(copy):
    def change(rows):
        rows[0]["beats"] = "99"
        rows[1].update(kept="no", reason="")

    edit_ledger(copy, change)
    assert_refused(copy, "the shards hold", "dropped without a reason")


def test_tfds_metadata_of_something_else_is_refused(copy):
    change_json(
        copy / "dataset_info.json", lambda info: info["splits"][0].update(shardLengths=["1"])
    )
    assert_refused(copy, "tfds")


def test_other_preprocessing_code_is_refused(copy):
    change_json(copy / "dataset.json", lambda metadata: metadata.update(preprocess_hash="0" * 12))
    assert_refused(copy, "preprocessing hash: 000000000000 is not of this code")


def test_command_line_refuses_with_code_2(copy, tmp_path):
    assert_one_line_error(
        run("data_prep.verify", f"--data={tmp_path / 'nowhere'}"), "no such dataset directory"
    )
    change_json(copy / "dataset.json", lambda metadata: metadata["splits"]["train"].update(beats=1))
    done = run("data_prep.verify", f"--data={copy}")
    assert_one_line_error(done, "train", "dataset.json says 1")
    assert "REFUSED" in done.stdout
    change_json(copy / "dataset.json", lambda metadata: metadata.pop("ledger_sha256"))
    with pytest.raises(InputError, match="older version"):
        verify(copy)
