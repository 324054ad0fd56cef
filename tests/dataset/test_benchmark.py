"""The benchmark compares like with like, and its report says what was measured."""

import numpy as np
import pytest

from data_prep import benchmark
from data_prep.base.errors import InputError
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset import shards
from data_prep.dataset.one_shard import Shard
from data_prep.ecg.preprocess import Preprocess
from data_prep.synthetic_heart.records import write_corpus


@pytest.fixture(scope="module", params=[100, 500])
def corpus(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "synthetic"
    write_corpus(folder, patients=4, records_per_patient=2, rate=request.param)
    return open_corpus("synthetic", folder)


def test_straightforward_loop_makes_the_same_beats(corpus, tmp_path):
    """Else a ratio of speeds would mean nothing."""
    benchmark.straightforward(corpus.refs, Preprocess(), tmp_path / "naive")
    benchmark.build_once(corpus, tmp_path, 0, Shard("shard", "train", corpus.refs))
    naive, ours = (
        {
            e["record_id"]: e
            for e in (shards.decode(raw, 128) for raw in shards.iterate_shard(tmp_path / name))
        }
        for name in ("naive", "0/shard")
    )
    assert naive.keys() == ours.keys() and len(ours) == 8
    same = [name for name in ours if np.array_equal(ours[name]["start"], naive[name]["start"])]
    assert len(same) >= 6  # filters differ at the ends of a record, so a few peaks may too
    for name in same:
        inside = slice(1, -1)
        one, other = (e[name]["beats"][inside].astype(float) for e in (naive, ours))
        assert (
            np.abs(one - other).mean() < 0.1
            and np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.99
        )


def test_report(corpus, monkeypatch, capsys):
    monkeypatch.setattr(
        benchmark, "measure_workers", lambda *args: (100.0 * args[-1] ** 0.5, 1.0, 0.25)
    )
    flags = [f"--raw=synthetic:{corpus.raw_dir}", "--records=4", "--repeats=1"]
    assert benchmark.main(flags) == 0
    printed = capsys.readouterr().out
    rate = corpus.load(corpus.refs[0]).rate
    assert f"synthetic, 4 records at {rate:g} Hz" in printed and "straightforward loop" in printed
    (line,) = (line for line in printed.splitlines() if "two workers" in line)
    # whatever the CPU time was
    assert "1.41x of one in wall time" in line and line.endswith("MISSED")
    assert "each had 1.00 of a core" in line and "0.25 GiB" in printed


def test_workers_are_measured_in_processes_of_their_own(corpus, tmp_path):
    speed, share, memory = benchmark.measure_workers(corpus, corpus.refs[:2], tmp_path, 1)
    assert speed > 0 and 0 < share < 1.2 and 0.02 < memory < 1.0


def test_mistakes_are_told():
    with pytest.raises(InputError, match="write CORPUS:DIR"):
        benchmark.main(["--raw=/data/ptbxl"])
    with pytest.raises(InputError, match="--records: '0' is not a whole number of 1 or more"):
        benchmark.main(["--records=0"])
