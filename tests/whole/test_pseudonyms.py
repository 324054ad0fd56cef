"""Pseudonyms: one name for a patient in every command, and no file that leaves the house has
another."""

import csv
import shutil

import pytest

from data_prep import build
from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import Pseudonyms, read_key
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.shards import ShardSet, iterate_shard
from lvcg_jax.embed import __main__ as embed_door
from lvcg_jax.embed.table import load_table


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_bytes(bytes(range(32)))
    return path


@pytest.fixture(scope="module")
def named(raw_corpus):
    """Every id of the corpus: records, and patients."""
    refs = open_corpus("synthetic", raw_corpus).refs
    return {ref.record_id for ref in refs} | {ref.patient_id for ref in refs}


@pytest.fixture(scope="module")
def renamed_shards(raw_corpus, key, tmp_path_factory):
    """A build under pseudonyms."""
    out = tmp_path_factory.mktemp("renamed") / "data"
    flags = ["--corpus=synthetic", f"--raw={raw_corpus}", f"--out={out}", "--limit=15"]
    assert build.main([*flags, "--shard_records=4", f"--pseudonyms={key}"]) == 0
    return out


def test_a_pseudonym_needs_the_key_and_is_its_own_pseudonym():
    one, two = Pseudonyms(b"a" * 16), Pseudonyms(b"b" * 16)
    assert one.of("p1") == one.of("p1") != one.of("p2") and one.of("p1") != two.of("p1")
    assert one.of(one.of("p1")) == one.of("p1") != two.of(one.of("p1"))
    assert "p1" not in one.of("p1")[3:] and one.of("\udcff")  # a name that is not UTF-8


def test_a_key_that_is_none_is_told(tmp_path):
    (tmp_path / "short").write_bytes(b"secret")
    with pytest.raises(InputError, match="6 bytes are no key: 16 or more"):
        read_key(tmp_path / "short")
    with pytest.raises(InputError, match="cannot be read .*make a key with"):
        read_key(tmp_path / "gone")


def test_no_file_of_a_build_holds_an_id(renamed_shards, named, key):
    for path in renamed_shards.rglob("*"):
        if path.is_file() and "array_record" in path.name:
            content = b"".join(iterate_shard(path))
        else:
            content = path.read_bytes()
        assert not [name for name in named if name.encode() in content], path.name
    pseudonyms = {read_key(key).of(name) for name in named}
    for row in csv.DictReader((renamed_shards / "ledger.csv").read_text().splitlines()):
        assert row["record_id"] in pseudonyms and row["patient_id"] in pseudonyms


def test_patients_keep_their_splits(renamed_shards, raw_corpus, key):
    names = read_key(key)
    split = {
        names.of(ref.record_id): ref.split for ref in open_corpus("synthetic", raw_corpus).refs
    }
    for example in ShardSet(renamed_shards, "train").read(range(3)):
        assert split[example["record_id"]] == "train"


def test_raw_records_and_shards_are_embedded_under_the_same_names(
    raw_corpus, renamed_shards, trained_run, named, key, tmp_path, capfd
):
    raw = tmp_path / "raw"
    shutil.copytree(raw_corpus / "records" / "000", raw / "records" / "000")
    for path in sorted(raw.rglob("*.hea"))[3:]:
        path.unlink()
    broken = sorted(raw.rglob("*.hea"))[0]
    broken.write_text(f"{broken.stem} no header of patient p00000")
    tables = {}
    for name, source in {"raw": f"--wfdb={raw}", "shards": f"--data={renamed_shards}"}.items():
        out = tmp_path / f"{name}.npz"
        flags = [f"--checkpoint={trained_run}", f"--out={out}", f"--pseudonyms={key}"]
        assert embed_door.main([source, *flags]) == 0
        tables[name] = load_table(out)
        ids = {*tables[name].record_id.tolist(), *tables[name].patient_id.tolist()}
        assert ids and not named & ids
    assert {*tables["raw"].record_id} < {*tables["shards"].record_id}
    listed = (tmp_path / "raw.npz.failures.csv").read_text()
    assert "cannot be used" in listed and "without --pseudonyms says more" in listed
    said = "".join(capfd.readouterr())
    assert not [name for name in named | {broken.stem} if name in listed or name in said]
