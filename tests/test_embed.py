"""Embeddings: the same for a record however it reaches the model."""

import numpy as np
import pytest
from commands import assert_one_line_error, run

from data_prep.errors import InputError
from data_prep.leads import LEADS
from data_prep.readers import open_corpus
from data_prep.shards import ShardSet
from lvcg_jax.embed import Embedder, embed_dataset, join_parts
from lvcg_jax.table import load_table


@pytest.fixture(scope="module")
def embedder(trained_run):
    return Embedder.load(trained_run)


@pytest.fixture(scope="module")
def table(embedder, shards_dir):
    return embed_dataset(embedder, shards_dir, progress=False)


def test_table_names_every_record_once_with_its_labels(table, shards_dir, embedder):
    shards = ShardSet(shards_dir, "test")
    rows = table.split == "test"
    assert table.record_id[rows].tolist() == [shards[i]["record_id"] for i in range(len(shards))]
    assert table.embedding.shape == (len(table.record_id), sum(table.parts.values()))
    assert table.labels[0].keys() == {"diagnosis", "rhythm"}
    assert table.metadata["preprocess_hash"] == embedder.preprocess.hash()


def test_batch_size_changes_nothing(embedder, shards_dir, table):
    again = embed_dataset(embedder, shards_dir, batch_size=7, progress=False)
    np.testing.assert_allclose(again.embedding, table.embedding, atol=1e-5)


def test_a_raw_record_alone_equals_its_row_from_shards(embedder, raw_corpus, table):
    corpus = open_corpus("synthetic", raw_corpus)
    for ref in corpus.refs[:3]:
        record = corpus.load(ref)
        alone = join_parts(embedder.embed_record(record.signal, record.rate, record.leads))[0]
        row = table.embedding[table.record_id.tolist().index(ref.record_id)]
        np.testing.assert_allclose(alone, row, atol=1e-5)


def test_lead_order_and_case_of_the_file_change_nothing(embedder, raw_corpus):
    corpus = open_corpus("synthetic", raw_corpus)
    record = corpus.load(corpus.refs[0])
    shuffled = np.random.default_rng(0).permutation(len(LEADS))
    one = embedder.embed_record(record.signal, record.rate, record.leads)
    two = embedder.embed_record(record.signal[:, shuffled], record.rate, [record.leads[i].upper() for i in shuffled])
    np.testing.assert_array_equal(join_parts(one), join_parts(two))


@pytest.mark.parametrize(
    "leads", [["I"], ["II"], ["I", "II"], ["V1", "V2", "V6"], ["I", "II", "III", "aVR", "aVL", "aVF"]]
)
def test_any_leads_embed_to_finite_numbers(embedder, raw_corpus, leads):
    corpus = open_corpus("synthetic", raw_corpus)
    record = corpus.load(corpus.refs[0])
    columns = [record.leads.index(lead) for lead in leads]
    assert np.isfinite(join_parts(embedder.embed_record(record.signal[:, columns], record.rate, leads))).all()


def test_a_long_record_gives_a_row_a_window(embedder, raw_corpus):
    corpus = open_corpus("synthetic", raw_corpus)
    record = corpus.load(corpus.refs[0])
    assert len(join_parts(embedder.embed_record(np.tile(record.signal, (3, 1)), record.rate, record.leads))) == 3


def test_random_weights_are_another_model_with_measured_norm_statistics(embedder, shards_dir, table):
    control = Embedder.random(embedder.config, 1, ShardSet(shards_dir, "train"))
    other = embed_dataset(control, shards_dir, progress=False)
    assert np.isfinite(other.embedding).all()
    assert np.abs(other.embedding - table.embedding).max() > 0.1
    assert not np.allclose(control.variables["batch_stats"]["encoder"]["stem_norm"]["mean"], 0.0)


def test_command_writes_the_table_and_refuses_a_wrong_folder(trained_run, shards_dir, tmp_path):
    out = tmp_path / "deep" / "emb.npz"
    done = run("lvcg_jax.embed", f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={out}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(load_table(out).record_id) == 120
    wrong = run("lvcg_jax.embed", f"--checkpoint={tmp_path / 'nowhere'}", f"--data={shards_dir}", f"--out={out}")
    assert_one_line_error(wrong, "nowhere")


def test_a_run_without_config_or_checkpoint_is_told(trained_run, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="no config.json"):
        Embedder.load(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text((trained_run / "config.json").read_text())
    with pytest.raises(InputError, match="no checkpoint yet"):
        Embedder.load(tmp_path / "run")
