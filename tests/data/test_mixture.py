"""Mixtures of data sets: which folders and weights are named, what an epoch holds, and that batches
are the same for any number of devices and processes, from any position."""

import json
import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from helpers.commands import get_config

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.config.folders import read_folders
from lvcg_jax.data.batches import BatchMaker, train_batches
from lvcg_jax.data.epochs import Epochs
from lvcg_jax.data.mixture import Mixture, describe_sets, shared_signals
from lvcg_jax.export.card import data_words
from lvcg_jax.export.package_weights import portable_shards
from lvcg_jax.runs.checkpoint import data_identity, mixed_identity, note_data
from lvcg_jax.runs.history import trained_corpora
from lvcg_jax.train import loop


def other_corpus(shards_dir, folder, name="other"):
    """A copy of the synthetic shards under the name of another corpus."""
    shutil.copytree(shards_dir, folder)
    path = folder / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"corpus": name}))
    return folder


@pytest.fixture(scope="module")
def other_dir(shards_dir, tmp_path_factory):
    return other_corpus(shards_dir, tmp_path_factory.mktemp("mixture") / "other")


@pytest.fixture(scope="module")
def mixture(shards_dir, other_dir):
    """All training records of one set, and half of the validation records of another."""
    return Mixture([ShardSet(shards_dir, "train"), ShardSet(other_dir, "validation")], [1, 0.5])


# ---- What data.dir names --------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, expected",
    [
        ("", []),
        ("data/a", [("data/a", 1)]),
        ("data/a,data/b:0.5", [("data/a", 1), ("data/b", 0.5)]),
        ("a:2, b:1e-1", [("a", 2), ("b", 0.1)]),
        (("a,b", "c:3"), [("a,b", 1), ("c", 3)]),
        (r"C:\data,D:\more:0.5", [(r"C:\data", 1), (r"D:\more", 0.5)]),
        ("gs://bucket/a,gs://bucket/b:2", [("gs:/bucket/a", 1), ("gs:/bucket/b", 2)]),
    ],
)
def test_folders_and_weights_are_read(words, expected):
    assert [(str(folder.path), folder.weight) for folder in read_folders(words)] == expected


def test_an_existing_folder_is_never_taken_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b", "c:2"):
        (tmp_path / name).mkdir()
        assert [str(folder.path) for folder in read_folders(name)] == [name]
    assert [folder.weight for folder in read_folders("c:2:0.5,d")] == [0.5, 1]


@pytest.mark.parametrize(
    "words, message",
    [
        ("a,b:0", "the weight of b is 0: give a number above 0"),
        ("a:-1,b", "the weight of a is -1: give a number above 0"),
        ("a:nan", "the weight of a is nan"),
        ("a,,b", "data.dir=a,,b: there is no folder beside one of the commas"),
        ("a,b:2,./a:0.5", "data.dir names a twice: name it once, with the weight 1.5"),
    ],
)
def test_folders_that_make_no_sense_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        read_folders(words)


# ---- Epochs ---------------------------------------------------------------------------------


def epochs_of(sets, seed, count):
    """The record numbers of the first epochs; records have two to twenty beats."""
    counts = np.random.default_rng(0).integers(2, 21, sum(size for size, _ in sets))
    epochs = Epochs(counts, seed, sets)
    places = np.arange(epochs.length)
    return [epochs.records(np.full(epochs.length, k), places).tolist() for k in range(count)]


def test_every_epoch_holds_what_the_weights_say():
    # weights 1, 0.5, 2 and 1 1/3
    for numbers in epochs_of([(20, 20), (11, 5), (6, 12), (9, 12)], 3, 6):
        seen, first = Counter(numbers), np.cumsum([0, 20, 11, 6, 9])
        times = [[seen[i] for i in range(*pair)] for pair in pairwise(first)]
        assert set(times[0]) == {1} and set(times[2]) == {2}
        assert sorted(times[1]) == [0] * 6 + [1] * 5
        assert sorted(times[3]) == [1] * 6 + [2] * 3


def test_a_part_of_a_set_is_another_one_each_epoch_and_no_record_is_preferred():
    halves = [frozenset(numbers) for numbers in epochs_of([(600, 300)], 0, 6)]
    assert all(not one & two for one, two in zip(halves[::2], halves[1::2], strict=True))
    assert len(set(halves)) == 6, "the set is halved anew after every two epochs"
    # 0.7 of a set is drawn anew for each epoch: binomial counts, the same along the set
    drawn = Counter(np.concatenate(epochs_of([(600, 420)], 1, 10)).tolist())
    counts = np.array([drawn[number] for number in range(600)])
    assert counts.sum() == 4200 and abs(counts.var() - 2.1) < 5 * 2.1 * np.sqrt(2 / 600)
    assert abs(counts.reshape(6, 100).mean(1) - 7).max() < 5 * np.sqrt(2.1 / 100)


def test_epochs_follow_from_seed_and_epoch():
    sets = [(20, 20), (10, 5)]
    one, two = epochs_of(sets, 0, 2)
    assert epochs_of(sets, 0, 2) == [one, two]
    assert one != two and epochs_of(sets, 1, 1)[0] != one


# ---- Batches --------------------------------------------------------------------------------


def test_a_mixture_reads_the_records_of_its_sets(mixture):
    first, second = mixture.sets
    assert len(mixture) == len(first) + len(second) == len(mixture.counts)
    assert mixture.shares == [len(first), -(-(len(second) - 1) // 2)]
    examples = mixture.read([len(first) + 1, 0])
    for example, (shards, i, name) in zip(
        examples, [(second, 1, "other"), (first, 0, "synthetic")], strict=True
    ):
        np.testing.assert_array_equal(example["beats"], shards[i]["beats"])
        assert example["record_id"] == f"{name}/{shards[i]['record_id']}"
    everybody = mixture.read(range(len(mixture)))
    assert len({example["uid"] for example in everybody}) == len(mixture)


def test_the_stream_of_batches_resumes_and_holds_the_records_of_an_epoch(mixture):
    maker = BatchMaker(mixture, 1, 1, [0], True)

    def stream():
        return train_batches(maker, maker.order(8, 0), prefetch=2)

    first, later = stream(), stream()
    uids = np.stack([next(first)["uid"].reshape(-1) for _ in range(14)])
    later.set_state({"next_index": 9})
    np.testing.assert_array_equal(next(later)["uid"].reshape(-1), uids[9])
    # an epoch of all batches together, and in every batch a third of the records of the second set
    order, whole = maker.order(8, 0), sum(mixture.shares) // 8
    numbers = np.stack([order[step] for step in range(whole)])
    seen = Counter(numbers.reshape(-1).tolist())
    assert max(seen.values()) == 1 and len(seen) == 8 * whole
    of_second = (numbers >= len(mixture.sets[0])).sum(1) / 8
    assert np.abs(of_second - mixture.shares[1] / sum(mixture.shares)).max() <= 1 / 8


def test_packed_sets_make_the_same_batches_as_their_shards(mixture, tmp_path):
    source = loop.packed_source(mixture, str(tmp_path), signal=False)
    numbers = np.array([len(mixture) - 1, 0, -1, 5])
    one, two = (BatchMaker(mixture, 1, 2, [0, 1], True, source=s)(numbers) for s in (None, source))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])


def test_processes_and_devices_only_arrange_a_batch(mixture):
    numbers = BatchMaker(mixture, 1, 4, [0], True).order(8, 3)[5]
    whole = BatchMaker(mixture, 1, 4, range(4), True)(numbers)
    parts = [BatchMaker(mixture, 1, 4, mine, True)(numbers) for mine in ([0, 1], [2, 3])]
    for name, array in whole.items():
        np.testing.assert_array_equal(array, np.concatenate([part[name] for part in parts], axis=1))
    alone = BatchMaker(mixture, 1, 1, [0], True).order(8, 3)[5]
    assert sorted(alone) == sorted(numbers)


# ---- Training -------------------------------------------------------------------------------


@pytest.fixture
def mixed(smoke, shards_dir, other_dir):
    smoke.data.dir = f"{shards_dir},{other_dir}:0.5"
    return smoke


def test_training_opens_and_names_the_sets_and_counts_what_they_share(mixed, tmp_path, capsys):
    train, validation = loop.open_data(mixed, tmp_path)
    told, half = capsys.readouterr().err, train.shares[1]
    size = len(train.sets[0])
    assert half == -(-(size - 1) // 2) and validation.directory == train.sets[0].directory
    assert f"training on synthetic ({size} records), other ({size} records x 0.5):" in told
    assert f"{size + half} records an epoch; validation on synthetic" in told
    assert "signals are in the training records of synthetic and of other" in told
    note_data(tmp_path, describe_sets(*loop.sets_of(train)))
    note_data(tmp_path, "something else")
    assert "other" in json.loads((tmp_path / "versions.json").read_text())["data"]
    mixed.data.dir = str(train.sets[0].directory)
    assert isinstance(loop.open_data(mixed, tmp_path)[0], ShardSet)


def test_signals_of_another_sets_validation_and_test_splits_are_counted(shards_dir, other_dir):
    lines = shared_signals([ShardSet(shards_dir, "train"), ShardSet(other_dir, "test")])
    hashes = len(ShardSet(other_dir, "test"))
    assert f"{hashes} training signals of other are validation or test records of synth" in lines[1]
    assert not shared_signals([ShardSet(shards_dir, "train")])


def test_sets_that_cannot_be_mixed_are_refused(mixed, shards_dir, tmp_path):
    mixed.data.dir = f"{shards_dir},{tmp_path / 'nowhere'}:2"
    with pytest.raises(InputError, match="nowhere: no such dataset directory"):
        loop.open_data(mixed, tmp_path)
    folder = other_corpus(shards_dir, tmp_path / "unlike")
    facts = json.loads((folder / "dataset.json").read_text())
    facts |= {"preprocess": facts["preprocess"] | {"band_high": 35.0}, "preprocess_hash": "0"}
    (folder / "dataset.json").write_text(json.dumps(facts))
    mixed.data.dir = f"{shards_dir},{folder}"
    with pytest.raises(InputError, match=r"unlike: .* band_high=35.0 here, 40.0 expected"):
        loop.open_data(mixed, tmp_path)
    mixed.data.dir = f"{shards_dir},{shards_dir}:0.5"
    with pytest.raises(InputError, match="twice"):
        loop.train_and_evaluate(mixed, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="is not one record an epoch: give a higher weight"):
        Mixture([ShardSet(shards_dir, "train")], [1e-6])


def test_a_checkpoint_knows_the_weights(shards_dir, other_dir):
    ones = [data_identity(ShardSet(path, "train").metadata) for path in (shards_dir, other_dir)]
    assert mixed_identity(ones[:1], [1.0]) == ones[0]
    mixed = mixed_identity(ones, [1.0, 0.5])
    assert mixed["corpus"] == "synthetic, other x 0.5"
    assert mixed["train_windows"] == 2 * ones[0]["train_windows"]
    others = [mixed_identity(ones, [1.0, 2.0]), mixed_identity(ones[:1], [2.0]), ones[0]]
    assert len({one["sha256"] for one in [mixed, *others]}) == 4


def test_cards_name_every_corpus_with_its_weight(mixed, shards_dir, other_dir, tmp_path):
    words = data_words(mixed, tmp_path)
    assert "Corpus `synthetic`" in words and "Corpus `other` x 0.5;" in words
    assert trained_corpora(mixed, tmp_path) == ["synthetic", "other"]
    assert portable_shards(mixed) == f"{shards_dir.name}:1,other:0.5"
    note_data(tmp_path, "synthetic (96 records), other (96 records x 0.5)")
    mixed.data.dir = str(tmp_path / "gone")
    assert "not at hand any more; it was synthetic (96 records), other" in data_words(
        mixed, tmp_path
    )
    assert portable_shards(mixed) == portable_shards(get_config("smoke")) == "SHARDS"
