"""`lvcg map`: the same records in every map, in the same colours."""

import base64
import dataclasses

import numpy as np
import pytest
from helpers.pictures import read_picture, words_of

from data_prep.base.errors import InputError
from lvcg_jax.embed.table import Table, save_table
from lvcg_jax.report.embedding_map import quantise
from lvcg_jax.report.maps import colour_label, main, shared_rows


@pytest.fixture
def tables(tmp_path):
    """Two tables of 30 records, the second in another order and without two of them."""
    rng = np.random.default_rng(0)
    names = np.array([f"r{i:02d}" for i in range(30)])
    labels = [{"rhythm": [["SR"], ["AF"], ["AF", "PVC"], []][i % 4]} for i in range(30)]
    labels[7] = {}
    split = np.array(["train", "test"] * 15)
    one = Table(names, names, split, labels, rng.normal(size=(30, 5)).astype(np.float32))
    order = rng.permutation(30)[:28]
    two = dataclasses.replace(
        one,
        record_id=names[order],
        patient_id=names[order],
        split=split[order],
        labels=[labels[i] for i in order],
        embedding=rng.normal(size=(28, 3)).astype(np.float32),
    )
    for name, table in (("one", one), ("two", two)):
        save_table(tmp_path / f"{name}.npz", table)
    return one, two


def test_rows_are_those_that_all_tables_have(tables):
    rows = shared_rows(tables, "rhythm", "all", 100)
    names = [table.record_id[some].tolist() for table, some in zip(tables, rows, strict=True)]
    labelled = {name for i, name in enumerate(tables[0].record_id) if i != 7}
    assert names[0] == names[1] == sorted(labelled & set(tables[1].record_id))
    few, again = (shared_rows(tables, "rhythm", "all", 15) for _ in range(2))
    assert len(few[0]) == 15 and np.array_equal(few, again)
    test = shared_rows(tables, "rhythm", "test", 100)[0]
    assert set(tables[0].split[test]) == {"test"}
    with pytest.raises(InputError, match="0 records are in all files and labelled for 'axis'"):
        shared_rows(tables, "axis", "all", 100)


def test_maps_side_by_side(tables, tmp_path, capsys):
    files = [f"--embeddings={name}={tmp_path / name}.npz" for name in ("one", "two")]
    out = tmp_path / "maps" / "map.svg"
    assert main([*files, "--method=pca", f"--out={out}"]) == 0
    words = words_of(read_picture(out))
    assert all(words.count(f"{label} (") == 2 for label in ("SR", "AF", "several", "none of them"))
    assert "embedded by one and two" in words and "task rhythm" in words
    assert capsys.readouterr().out.strip() == str(out)
    for flags, reason in [
        ([files[0], files[0]], "the name 'one' is taken"),
        ([*files, "--task=axis"], "the first file has rhythm"),
    ]:
        with pytest.raises(InputError, match=reason):
            main([*flags, f"--out={out}"])


def test_colour_of_a_record_without_exactly_one_class():
    assert [colour_label(n) for n in (["A"], ["A", "B"], [])] == ["A", "several", "none of them"]


def test_a_few_odd_records_do_not_squeeze_the_others_into_a_corner():
    places = np.random.default_rng(0).normal(size=(1000, 2))
    places[:2] = (1e4, -1e4), (3e3, 0)
    found = np.frombuffer(base64.b64decode(quantise(places)), "<u2").reshape(-1, 2)
    assert np.ptp(np.percentile(found, (5, 95), axis=0), axis=0).min() > 0.3 * 65535
    assert found[0].tolist() == [65535, 0]  # at the edge, on its side
    inner = np.abs(places).max(1) < 2
    np.testing.assert_allclose(np.corrcoef(found[inner, 0], places[inner, 0])[0, 1], 1, atol=1e-6)
