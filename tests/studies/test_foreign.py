"""Embeddings of other models: read with few demands, joined by record id, mistakes named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table, save_table
from lvcg_jax.studies.foreign import join_foreign, read_foreign, unmatched

IDS = ["a", "b", "c"]


def table(ids):
    names = np.array(ids)
    labels = [{} for _ in ids]
    return Table(names, names, np.full(len(ids), "train"), labels, np.zeros((len(ids), 2)))


def npz(path, ids=IDS, embedding=None):
    values = np.arange(2.0 * len(ids)).reshape(-1, 2) if embedding is None else embedding
    np.savez(path, record_id=np.array(ids), embedding=values)
    return str(path)


def test_npz_and_parquet_of_any_program_and_files_of_ours_are_read(tmp_path):
    values = np.arange(6.0).reshape(3, 2)
    columns = {"record_id": [7, 8, 9], "embedding": values.tolist(), "age": [1, 2, 3]}
    pq.write_table(pa.table(columns), tmp_path / "any.parquet")
    save_table(tmp_path / "ours.npz", ours := table(IDS))
    ours.embedding, ours.parts = np.float32(values), {"structure": 1, "rhythm": 1}
    save_table(tmp_path / "ours.parquet", ours)
    found = read_foreign(str(tmp_path / "any.parquet"))
    assert found.record_id.tolist() == ["7", "8", "9"] and found.embedding.dtype == np.float32
    np.testing.assert_array_equal(found.embedding, values)
    np.testing.assert_array_equal(read_foreign(str(tmp_path / "ours.parquet")).embedding, values)
    assert read_foreign(str(tmp_path / "ours.npz")).record_id.tolist() == IDS


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"embedding": np.zeros((3, 2))}, "has no record_id; it needs record_id, and embedding"),
        ({"record_id": np.array(IDS), "embedding": np.zeros((2, 2))}, "one row of numbers"),
        ({"record_id": np.array(IDS), "embedding": np.zeros(3)}, "one row of numbers"),
        ({"record_id": np.array(["a", "b", "a"]), "embedding": np.zeros((3, 2))}, "a occurs more"),
        ({"record_id": np.array(IDS), "embedding": np.full((3, 2), np.nan)}, "a, b, c is not fin"),
        ({"record_id": np.array(IDS), "embedding": np.array([["x"]] * 3)}, "could not convert"),
    ],
)
def test_a_file_that_will_not_do_is_refused_in_one_line(tmp_path, arrays, words):
    np.savez(tmp_path / "e.npz", **arrays)
    with pytest.raises(InputError, match=words):
        read_foreign(str(tmp_path / "e.npz"))


def test_a_file_that_is_no_file_of_numbers_is_refused(tmp_path):
    for name in ("e.npz", "e.parquet"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="damaged or holds no embeddings"):
            read_foreign(str(tmp_path / name))
    with pytest.raises(InputError, match="no such embeddings file"):
        read_foreign(str(tmp_path / "absent.npz"))


def test_records_are_found_by_id_and_what_does_not_match_is_named(tmp_path):
    full = read_foreign(npz(tmp_path / "one.npz", ["c", "a", "x", "b"]))
    part = read_foreign(npz(tmp_path / "two.npz", ["d", "b"]))
    rows, features, notes = join_foreign(table([*IDS, "d"]), {"one": [full], "both": [full, part]})
    assert rows.tolist() == [0, 1, 2] and notes == [
        "one: 1 records are not in its file (d); they are left out for every model"
    ]
    np.testing.assert_array_equal(features["one"], [[2, 3], [6, 7], [0, 1]])
    np.testing.assert_array_equal(features["both"], [[2, 3], [2, 3], [0, 1]])  # b of the later file
    # a record of several windows has one embedding for all
    rows, features, _ = join_foreign(table(["a", "a", "b"]), {"one": [full]})
    assert rows.tolist() == [0, 1, 2] and features["one"][0].tolist() == [2, 3]
    assert unmatched({"one": [full]}, {"mine": np.array(IDS)}) == [
        "one: 1 records of one.npz are in no data set (x)"
    ]


def test_a_name_without_a_record_has_no_row_and_a_file_of_strangers_is_refused(tmp_path):
    file = read_foreign(npz(tmp_path / "e.npz"))
    rows, features, notes = join_foreign(table(["p", "q"]), {"other": [file]})
    assert rows.tolist() == [0, 1] and not features and "so it has no row" in notes[0]
    with pytest.raises(InputError, match=r"no record_id of it \(a, b, c\) is in mine \(p, q\)"):
        unmatched({"other": [file]}, {"mine": np.array(["p", "q"])})
    both = {"one": np.array(["a", "p"]), "two": np.array(["p", "q"])}
    with pytest.raises(InputError, match="record p is in one and in two, so a row"):
        unmatched({"other": [file]}, both)
    assert unmatched({}, both) == []
    wide = read_foreign(npz(tmp_path / "wide.npz", ["d"], np.zeros((1, 5))))
    with pytest.raises(InputError, match="rows of 2, 5 numbers"):
        join_foreign(table([*IDS, "d"]), {"other": [file, wide]})
    no_common = {"one": [file], "two": [wide]}
    with pytest.raises(InputError, match="no record is in all of one, two"):
        join_foreign(table([*IDS, "d"]), no_common)
