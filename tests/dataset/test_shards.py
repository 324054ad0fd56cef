"""The shard format: what goes in comes out, for us, for Grain and for tfds, and damage is named."""

import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grain
import numpy as np
import pytest
import tensorflow_datasets as tfds

from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import shards
from data_prep.dataset.builder import build
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import write_corpus

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus and its dataset directory with stored signals, 4 records a shard."""
    folder = tmp_path_factory.mktemp("shards")
    write_corpus(folder / "raw", patients=10, records_per_patient=2, rate=100)
    corpus = open_corpus("synthetic", folder / "raw")
    build(corpus, folder / "out", Preprocess(), shard_records=4, store_signal=True, progress=False)
    return corpus, folder / "out"


@pytest.fixture
def copy(made, tmp_path):
    """A dataset directory to harm."""
    return Path(shutil.copytree(made[1], tmp_path / "copy"))


def random_example(rng, n, signal):
    example = {
        "beats": rng.normal(size=(n, 12, 32)).astype(np.float16),
        "start": np.arange(n, dtype=np.int32),
        "length": rng.integers(1, 99, n).astype(np.int32),
        "complete": rng.random(n) < 0.5,
        "offset": rng.normal(size=12).astype(np.float32),
        "scale": rng.random(12).astype(np.float32),
        "lead_mask": 4095,
        "uid": 2**32 - 1,
        "window": 0,
        "num_samples": 1000,
        "record_id": "räksmörgås/心電図",
        "patient_id": "7",
        "labels": '{"rhythm": []}',
        "defects": "",
    }
    return example | ({"signal": rng.normal(size=(12, 77)).astype(np.float16)} if signal else {})


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        value = value.decode() if isinstance(value, bytes) else value
        assert np.array_equal(ours[name], value), name
        if isinstance(value, np.ndarray) and value.ndim:
            assert (ours[name].dtype, ours[name].shape) == (value.dtype, value.shape), name


@pytest.mark.parametrize("signal", [False, True])
@pytest.mark.parametrize("beats", [1, 20])
def test_round_trip_and_agreement_with_tfds(signal, beats):
    example = random_example(np.random.default_rng(0), beats, signal)
    spec = shards.features(32, signal)
    raw = shards.encode(spec, example)
    assert_same(shards.decode(raw, 32), example)
    assert_same(shards.decode(raw, 32), spec.deserialize_example_np(raw))


def test_stored_values_are_the_prepared_ones(made):
    corpus, out = made
    by_id = {ref.record_id: ref for ref in corpus.refs}
    for example in ShardSet(out, "validation"):
        record = corpus.load(by_id[example["record_id"]])
        (window,) = Preprocess().prepare(record.signal, record.rate, record.leads)
        assert np.array_equal(example["beats"], window.beats.astype(np.float16))
        assert np.array_equal(example["signal"], window.signal.astype(np.float16))
        for name in ("start", "length", "complete", "offset", "scale", "lead_mask", "window"):
            assert np.array_equal(example[name], getattr(window, name)), name
        assert example["patient_id"] == record.patient_id and example["num_samples"] == 1000
        assert example["uid"] == shards.uid_of(example["record_id"], 0)


def test_grain_and_tfds_read_the_same(made):
    _, out = made
    builder = tfds.builder_from_directory(out)
    for split in ("train", "validation", "test"):
        ours = ShardSet(out, split)
        examples = ours.read(range(len(ours)))
        source = grain.sources.ArrayRecordDataSource([str(path) for path in ours.paths])
        theirs = builder.as_data_source(split=split)
        assert len(examples) == len(source) == len(theirs) == len(ours) == len(ours.counts)
        for i, example in enumerate(examples):
            assert_same(shards.decode(source[i], 128), example)
            assert_same(example, theirs[i])
            assert len(example["beats"]) == ours.counts[i]


def test_any_order_repeats_threads_and_pickling(made, monkeypatch):
    train = ShardSet(made[1], "train")
    straight = [e["uid"] for e in train]
    order = np.random.default_rng(0).integers(0, len(train), 50)
    assert [e["uid"] for e in train.read(order)] == [straight[i] for i in order]
    assert train.read([]) == [] and train[-1]["uid"] == straight[-1]
    with pytest.raises(IndexError, match="has 14 examples"):
        train.read([0, 14])
    again = pickle.loads(pickle.dumps(train))
    # fewer than files: they are closed and opened again
    monkeypatch.setattr(shards, "_OPEN_READERS", 1)
    with ThreadPoolExecutor(4) as threads:
        assert [e["uid"] for e in threads.map(again.__getitem__, order)] == [
            straight[i] for i in order
        ]
    assert len(again._readers) == 1


def test_reading_imports_neither_jax_nor_tensorflow(made):
    code = (
        "import sys; from data_prep.dataset.shards import ShardSet;"
        f"print(len(ShardSet({str(made[1])!r}, 'train').read([0, 5])));"
        "print([m for m in ('jax', 'jaxlib', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["2", "[]"]


def test_other_preprocessing_is_refused_by_name(made):
    train = ShardSet(made[1], "train")
    train.require_preprocess(Preprocess())
    other = Preprocess(peaks="vcg", rate=125)
    with pytest.raises(InputError) as told:
        train.require_preprocess(other)
    for word in (
        other.hash(),
        Preprocess().hash(),
        "peaks='lead_ii' here, 'vcg' expected",
        "rate=100.0 here, 125.0",
    ):
        assert word in str(told.value)
    train.metadata["preprocess_hash"] = "0" * 12
    with pytest.raises(InputError, match="version of the preprocessing code"):
        train.require_preprocess(Preprocess())


def test_missing_directory_split_and_metadata(made, copy, tmp_path):
    with pytest.raises(InputError, match="no such dataset directory; build it with"):
        ShardSet(tmp_path / "nowhere", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a dataset directory"):
        ShardSet(tmp_path / "empty", "train")
    with pytest.raises(
        InputError, match="no split 'dev' in this dataset; it has train, validation, test"
    ):
        ShardSet(copy, "dev")
    (copy / "dataset.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="format 99, this version reads format 1"):
        ShardSet(copy, "train")
    (copy / "dataset.json").write_text('{"form')
    with pytest.raises(InputError, match="damaged"):
        ShardSet(copy, "train")


def test_damaged_files_are_named_at_opening(copy):
    paths = ShardSet(copy, "train").paths
    data = paths[0].read_bytes()
    other = paths[1].read_bytes()

    def refused(told):
        with pytest.raises(InputError, match=told) as error:
            ShardSet(copy, "train")
        assert paths[0].name in str(error.value) and "run the build command" in str(error.value)
        paths[0].write_bytes(data)

    paths[0].unlink()
    refused("missing")
    paths[0].write_bytes(data[: len(data) // 2])
    refused("bytes instead of")
    paths[0].write_bytes(bytes(len(data)))
    refused("0 records instead of 4")
    paths[0].write_bytes(other + bytes(len(data) - len(other)) if len(other) < len(data) else other)
    refused("another shard|records instead of|bytes instead of")
    counts = copy / "beat_counts-train.npy"
    np.save(counts, np.ones(3, np.int32))
    with pytest.raises(
        InputError, match=r"beat_counts-train\.npy: it has 3 counts for 14 examples"
    ):
        ShardSet(copy, "train")


def test_swapped_shards_of_equal_size_are_noticed(tmp_path, made):
    corpus, _ = made
    build(corpus, tmp_path, Preprocess(), shard_records=1, progress=False)
    sizes = {}
    for path in ShardSet(tmp_path, "train").paths:
        sizes.setdefault(path.stat().st_size, []).append(path)
    one, two = next(paths for paths in sizes.values() if len(paths) > 1)[:2]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(InputError, match=f"{one.name}: it is another shard"):
        ShardSet(tmp_path, "train")


def test_damage_inside_a_record_is_named_when_read(copy):
    path = ShardSet(copy, "train").paths[0]
    data = bytearray(path.read_bytes())
    second = data.find(list(shards.iterate_shard(path))[1][100:200])
    data[second] ^= 255
    path.write_bytes(data)
    train = ShardSet(copy, "train")
    assert train[0]["window"] == 0
    with pytest.raises(InputError, match=f"{path.name}.*run the build command"):
        train[1]
    with pytest.raises(InputError, match=f"{path.name}: its checksum"):
        train.verify()


DAMAGE = {
    "splits": lambda m: m.pop("splits"),
    "preprocess": lambda m: m.update(preprocess=[]),
    "shards": lambda m: m["splits"]["train"].pop("shards"),
    "no shard": lambda m: m["splits"]["train"].update(shards=[]),
    "a shard": lambda m: m["splits"]["train"]["shards"][0].pop("sha256"),
    "what may be null": lambda m: m["splits"]["train"]["shards"][0].pop("first_uid"),
    "a number": lambda m: m["splits"]["train"]["shards"][0].update(examples="4"),
    "another folder": lambda m: m["splits"]["train"]["shards"][0].update(file="../x"),
    "a long name": lambda m: m["splits"]["train"]["shards"][0].update(file="x" * 256),
    "no name": lambda m: m["splits"]["train"]["shards"][0].update(file="a\n\ud800"),
    "a split": lambda m: m["splits"].update(train=7),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_description_that_lacks_something_is_one_line(copy, what):
    metadata = json.loads((copy / "dataset.json").read_text())
    DAMAGE[what](metadata)
    (copy / "dataset.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"dataset.json: damaged, not what the build writes"):
        ShardSet(copy, "train")


def test_a_description_without_end_or_meaning_is_one_line(copy):
    for text in ("[" * 100_000, "null", "[]", "\xff"):
        (copy / "dataset.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=r"dataset.json: damaged"):
            ShardSet(copy, "train")


def test_changed_counts_and_an_edited_preprocessing_are_noticed(copy):
    metadata = json.loads((copy / "dataset.json").read_text())
    metadata["preprocess"]["rr_max"] = 1.9  # and the hash is left as it was
    (copy / "dataset.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"different: rr_max=1.9 here, 2.0 expected"):
        ShardSet(copy, "train").require_preprocess(Preprocess())
    path = copy / "beat_counts-train.npy"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"beat_counts-train.npy: its checksum is not the one"):
        ShardSet(copy, "train")
