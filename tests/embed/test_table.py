"""The embeddings file: both endings hold the same, and what is not one of ours is told."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from lvcg_jax.embed import table as table_module
from lvcg_jax.embed.table import Table, load_table, record_rows, save_table
from lvcg_jax.probe.median_beat import median_beat_table


def make_table(**changes) -> Table:
    values = {
        "record_id": np.array(["a", "b", "b", "ç/2"]),
        "patient_id": np.array(["p1", "p2", "p2", "p3"]),
        "split": np.array(["train", "test", "test", ""]),
        "labels": [
            {"rhythm": ["AF"], "form": []},
            {"rhythm": ["AF", "PVC"]},
            {"rhythm": ["AF", "PVC"]},
            {},
        ],
        "embedding": np.arange(20, dtype=np.float32).reshape(4, 5) / 7,
        "parts": {"structure": 3, "rhythm": 2},
        "metadata": {"checkpoint": "run@10#abcd", "tasks": '{"rhythm": ["AF", "PVC", "SR"]}'},
        "window": np.array([0, 0, 2, 0]),
        "extra": {
            "num_beats": np.array([10, 12, 4, 9]),
            "start_seconds": np.array([0.0, 0.0, 20.0, 0.0]),
            "rank": np.array([3, 3, 2, 3]),
            "condition": np.array([2.5, 2.0, np.inf, 2.5]),
            "leads": np.array(["I;II;V1", "I;II;V1", "I;II", "I;II;V1"]),
            "defects": np.array(["", "recovered:III;nan:V1:3", "recovered:III;gap:V1:40", ""]),
        },
    }
    return Table(**(values | changes))


@pytest.mark.parametrize("ending", ["npz", "parquet"])
@pytest.mark.parametrize(
    "changes", [{}, {"parts": {}, "window": None, "record_id": np.array(list("abcd")), "extra": {}}]
)
def test_table_survives_the_file_and_has_the_same_bytes_each_time(tmp_path, ending, changes):
    table, path = make_table(**changes), tmp_path / f"t.{ending}"
    save_table(path, table)
    first = path.read_bytes()
    again = load_table(path)
    for field in dataclasses.fields(Table):
        one, two = getattr(table, field.name), getattr(again, field.name)
        if field.name == "extra":
            assert list(one) == list(two) and all(one[k].tolist() == two[k].tolist() for k in one)
        else:
            assert np.array_equal(one, two), field.name
    save_table(path, again)
    assert path.read_bytes() == first
    assert again.tasks == {"form": [], "rhythm": ["AF", "PVC", "SR"]}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_parquet_opens_in_pandas_with_a_column_for_each_fact(tmp_path):
    save_table(tmp_path / "t.parquet", make_table())
    frame = pd.read_parquet(tmp_path / "t.parquet")
    assert (
        frame["structure"].map(len).tolist() == [3] * 4
        and frame["rhythm"].map(len).tolist() == [2] * 4
    )
    assert frame["leads"][2] == "I;II" and np.isinf(frame["condition"][2])
    assert list(frame["label_rhythm"][1]) == ["AF", "PVC"] and list(frame["label_form"][0]) == []
    assert frame["label_form"][1] is None and frame["label_rhythm"][3] is None


def test_record_rows_weigh_windows_by_beats_and_keep_the_worst_of_the_flags():
    table = make_table()
    rows = record_rows(table)
    assert rows.keys == ["a#-1", "b#-1", "ç/2#-1"] and rows.split.tolist() == ["train", "test", ""]
    np.testing.assert_allclose(
        rows.embedding[1], (12 * table.embedding[1] + 4 * table.embedding[2]) / 16, rtol=1e-6
    )
    np.testing.assert_array_equal(rows.embedding[[0, 2]], table.embedding[[0, 3]])
    assert rows.labels == [table.labels[i] for i in (0, 1, 3)]
    assert {name: values[1] for name, values in rows.extra.items()} == {
        "num_beats": 16,
        "start_seconds": 0.0,
        "rank": 2,
        "condition": np.inf,
        "leads": "I;II",
        "defects": "recovered:III;w0:nan:V1:3;w2:gap:V1:40",
    }


def test_what_is_not_an_embeddings_file_is_told(tmp_path):
    with pytest.raises(InputError, match=r"t.csv: an embeddings file ends in .npz or .parquet"):
        load_table(tmp_path / "t.csv")
    with pytest.raises(InputError, match="ends in .npz or .parquet"):
        save_table(tmp_path / "t.csv", make_table())
    for name in ("absent.npz", "absent.parquet"):
        with pytest.raises(InputError, match="no such embeddings file"):
            load_table(tmp_path / name)
    for name in ("text.npz", "text.parquet"):
        (tmp_path / name).write_bytes(b"hello")
        with pytest.raises(InputError, match=f"{name} is damaged or not an embeddings file"):
            load_table(tmp_path / name)
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="not an embeddings file of this project"):
        load_table(tmp_path / "other.parquet")
    for ending in ("npz", "parquet"):
        path = tmp_path / f"cut.{ending}"
        save_table(path, make_table())
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(InputError, match="is damaged or not"):
            load_table(path)
        save_table(path, make_table(window=np.zeros(4, int)))
        with pytest.raises(InputError, match="b#0 occurs more than once"):
            load_table(path)
        save_table(path, make_table(embedding=np.full((4, 5), np.nan)))
        with pytest.raises(InputError, match="the embedding of a, b, b, ç/2 is not finite"):
            load_table(path)


def test_a_place_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save_table(tmp_path / "file" / "t.npz", make_table())
    (tmp_path / "t.npz").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        save_table(tmp_path / "t.npz", make_table())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "t.npz"]


def test_tokens_are_for_npz_only(tmp_path):
    table = make_table(tokens=np.ones((35, 4), np.float32))
    save_table(tmp_path / "t.npz", table)
    assert load_table(tmp_path / "t.npz").tokens.shape == (35, 4)
    with pytest.raises(InputError, match="in .npz files only"):
        save_table(tmp_path / "t.parquet", table)


def test_the_median_beat_control_is_a_table_of_the_same_rows(shards_dir, tmp_path):
    table = median_beat_table(shards_dir)
    save_table(tmp_path / "c.parquet", table)
    again = load_table(tmp_path / "c.parquet")
    np.testing.assert_array_equal(again.embedding, table.embedding)
    assert len(again.record_id) == 120 and list(again.parts) == ["median_beat", "rr"]
    assert np.isfinite(again.embedding).all() and again.labels == table.labels


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_flipped_bit_never_changes_a_table_without_a_word(tmp_path, ending):
    path, table = tmp_path / f"t.{ending}", make_table()
    save_table(path, table)
    data, generator = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in generator.integers(0, 8 * len(data), 100).tolist():
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            again = load_table(path)
        except InputError:
            refused += 1
            continue
        assert np.array_equal(again.embedding, table.embedding) and again.keys == table.keys
        assert again.labels == table.labels and again.tasks == table.tasks
    assert refused > 50


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"tasks": "no JSON"}},
        {"metadata": {"tasks": "[1]"}},
        {"labels": [{"rhythm": ["AF", 1]}] * 4},
        {"labels": [{"rhythm": "AF"}] * 4},
        {"labels": [["AF"]] * 4},
        {"window": np.zeros(3, int)},
    ],
)
def test_labels_and_windows_that_make_no_sense_are_one_line(tmp_path, changes):
    save_table(tmp_path / "t.npz", make_table(**changes))
    with pytest.raises(InputError, match="labels|window"):
        load_table(tmp_path / "t.npz")


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    table = make_table(embedding=np.zeros((4, 20_000), np.float32), parts={})
    save_table(tmp_path / "t.npz", table)
    load_table(tmp_path / "t.npz")
    monkeypatch.setattr(table_module, "LARGEST_UNPACKED", 100_000)
    with pytest.raises(InputError, match="far more than an embeddings file of this size"):
        load_table(tmp_path / "t.npz")
    for ending in ("npz", "parquet"):
        save_table(tmp_path / f"u.{ending}", make_table())
        monkeypatch.setattr(table_module, "MOST_ROWS", 3)
        with pytest.raises(InputError, match="4 rows"):
            load_table(tmp_path / f"u.{ending}")


def test_a_record_of_many_windows_is_put_together_in_a_moment():
    """One with hours of electrodes off took gigabytes."""
    windows = 8640
    words = np.array([f"recovered:III;gap:V1:{i}" for i in range(windows)])
    column = lambda value: np.full(windows, value)  # noqa: E731
    table = make_table(
        record_id=column("a"),
        patient_id=column("p"),
        split=column(""),
        labels=[{}] * windows,
        embedding=np.ones((windows, 5), np.float32),
        window=np.arange(windows),
        extra={"num_beats": column(10), "leads": column("I;II"), "defects": words},
    )
    row = record_rows(table)
    assert row.extra["defects"][0].startswith("recovered:III;w0:gap:V1:0;w1:gap:V1:1;")
