"""Shared fixtures: a compilation cache, a tiny synthetic data set, and one trained run that many
tests look at."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# compiles twice as fast; tests run little
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
# Each worker of pytest-xdist has its own: reading an entry while another process writes it gives a
# warning.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(
    cache, os.environ.get("PYTEST_XDIST_WORKER", "")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import pytest  # noqa: E402
from absl import flags  # noqa: E402
from helpers.bucket import bucket_in_memory  # noqa: E402, F401 (a fixture of all)
from helpers.commands import QUICK, get_config  # noqa: E402

flags.FLAGS.mark_as_parsed()  # Grain reads absl flags

SLOWEST = (
    "test_resume.py", "test_real_training.py", "test_train.py", "test_ablate.py",
    "test_search.py", "test_report.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """The files that take minutes come first, so that two processes end at about the same time."""
    items.sort(
        key=lambda item: (
            SLOWEST.index(item.path.name) if item.path.name in SLOWEST else len(SLOWEST)
        )
    )


@pytest.fixture(scope="session")
def raw_corpus(tmp_path_factory):
    """A folder of synthetic WFDB records: 24 patients, 5 records each."""
    from data_prep.synthetic_heart.records import write_corpus

    folder = tmp_path_factory.mktemp("raw") / "corpus"
    write_corpus(folder, patients=24, seed=0)
    return folder


@pytest.fixture(scope="session")
def shards_dir(raw_corpus, tmp_path_factory):
    """The corpus as shards, with the paper's preprocessing."""
    from data_prep.corpora.corpus import open_corpus
    from data_prep.dataset.builder import build
    from data_prep.ecg.preprocess import Preprocess

    folder = tmp_path_factory.mktemp("shards") / "data"
    build(open_corpus("synthetic", raw_corpus), folder, Preprocess(), progress=False)
    return folder


@pytest.fixture(scope="session")
def quick_shards(raw_corpus, tmp_path_factory):
    """The corpus as shards with beats of 16 samples, for helpers.commands.QUICK."""
    from data_prep.corpora.corpus import open_corpus
    from data_prep.dataset.builder import build
    from data_prep.ecg.preprocess import Preprocess

    folder = tmp_path_factory.mktemp("quick_shards") / "data"
    preprocess = Preprocess(beat_samples=QUICK["preprocess.beat_samples"])
    build(open_corpus("synthetic", raw_corpus), folder, preprocess, progress=False)
    return folder


@pytest.fixture(scope="session")
def signal_shards(raw_corpus, tmp_path_factory):
    """The corpus as shards of two seconds, with signals, for helpers.tiny_peers.tiny_peer."""
    from helpers.tiny_peers import tiny_peer

    from data_prep.corpora.corpus import open_corpus
    from data_prep.dataset.builder import build
    from lvcg_jax.config.inputs import make_preprocess

    folder = tmp_path_factory.mktemp("signal_shards") / "data"
    preprocess = make_preprocess(tiny_peer("simclr"))
    options = {"progress": False, "store_signal": True}
    build(open_corpus("synthetic", raw_corpus), folder, preprocess, **options)
    return folder


@pytest.fixture
def quick(quick_shards):
    """The smoke config with less to compile, on the tiny data set."""
    config = get_config("smoke")
    config.update_from_flattened_dict(QUICK)
    config.data.dir = str(quick_shards)
    return config


@pytest.fixture
def smoke(shards_dir):
    """The smoke config on the tiny data set."""
    config = get_config("smoke")
    config.data.dir = str(shards_dir)
    return config


@pytest.fixture(scope="session")
def trained_run(shards_dir, tmp_path_factory):
    """A finished smoke run."""
    from lvcg_jax.train.loop import train_and_evaluate

    config = get_config("smoke")
    config.data.dir = str(shards_dir)
    workdir = tmp_path_factory.mktemp("run") / "smoke"
    assert train_and_evaluate(config, workdir) == "finished"
    return workdir


@pytest.fixture(scope="session")
def packaged(trained_run, tmp_path_factory):
    """A folder with the finished run as packaged weights `paper`; tests put it in the place of
    weights.PACKAGED."""
    from lvcg_jax.export import package_weights
    from lvcg_jax.runs import weights

    folder = tmp_path_factory.mktemp("packaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "PACKAGED", folder)
        assert package_weights.main([f"--checkpoint={trained_run}", "--name=paper"]) == 0
    return folder


@pytest.fixture(scope="session")
def imported_run(tmp_path_factory):
    """The authors' small checkpoint as a run directory."""
    from helpers.golden import CHECKPOINT

    from lvcg_jax.export.import_torch import import_checkpoint

    run = tmp_path_factory.mktemp("imported") / "authors"
    _, _, others = import_checkpoint(CHECKPOINT, run)
    assert others == []
    return run


@pytest.fixture(scope="session")
def model(trained_run):
    """The trained run, loaded for use."""
    from lvcg_jax import LVCG

    return LVCG.load(trained_run)
