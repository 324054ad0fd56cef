"""lvcg field_modes: the modes of the training records, whatever their order, and who refuses
them."""

import types

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from data_prep.ecg.geometry import lead_matrix
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.data.entries import list_entries
from lvcg_jax.data.windows import shard_windows
from lvcg_jax.reconstruct.linear import mean_products
from lvcg_jax.reconstruct.views import drawn_view
from lvcg_jax.report import vcg
from lvcg_jax.report.run import directions_section
from lvcg_jax.studies import field_modes, robustness


@pytest.fixture(scope="module")
def written(shards_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("modes") / "deep" / "modes.json"
    assert field_modes.main([f"--data={shards_dir}", "--modes=8", f"--out={path}"]) == 0
    return path


def test_the_file_holds_the_modes_of_the_training_records_in_any_order(shards_dir, written):
    shards = ShardSet(shards_dir, "train")
    order = np.random.default_rng(0).permutation(len(shards)).tolist()
    products, records = mean_products(shard_windows(shards, numbers=order), "modes")
    modes = field_modes.field_modes(products["z"], 8)
    assert records == len(shards) and modes.shape == (12, 8)
    np.testing.assert_allclose(lead_matrix(str(written)), modes, atol=2e-6)
    power = (modes**2).sum(0)
    assert np.all(np.diff(power) <= 0)
    gram = modes.T @ modes
    np.testing.assert_allclose(gram, np.diag(power), atol=1e-9)
    assert np.all(modes[np.abs(modes).argmax(0), range(8)] > 0)


def test_twelve_modes_hold_the_whole_covariance_and_eight_the_best_part_of_it(shards_dir):
    covariance = mean_products(shard_windows(ShardSet(shards_dir, "train")), "modes")[0]["z"]
    every = field_modes.field_modes(covariance, 12)
    np.testing.assert_allclose(every @ every.T, covariance, atol=1e-9)
    np.testing.assert_array_equal(field_modes.field_modes(covariance, 8), every[:, :8])


def test_it_says_how_much_the_modes_hold(shards_dir, tmp_path, capsys):
    out = tmp_path / "three.json"
    assert field_modes.main([f"--data={shards_dir}", "--modes=3", f"--out={out}"]) == 0
    shown = capsys.readouterr().out
    assert f"--config.geometry.matrix={out}" in shown and shown.count("%") == 3


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--modes=2"], "--modes=2: give 3 to 12"),
        (["--modes=13"], "give 3 to 12"),
        (["--out=modes.csv"], "ends in .json"),
        (["--out=/dev/null/modes.json"], "cannot write there"),
    ],
)
def test_mistakes_are_told(shards_dir, tmp_path, arguments, words):
    with pytest.raises(InputError, match=words):
        field_modes.main([f"--data={shards_dir}", f"--out={tmp_path}/a.json", *arguments])


def test_a_config_takes_the_file_and_every_subset_of_leads(smoke, written):
    smoke.geometry.matrix = str(written)
    assert len(make_subsets(smoke)) == 220


def test_what_needs_directions_in_space_refuses_a_field(
    written, smoke, shards_dir, tmp_path, monkeypatch
):
    with pytest.raises(InputError, match="modes.json has 8 modes, .* paper or dower"):
        vcg.main([f"--geometry={written}", "--record=any.hea", f"--out={tmp_path}"])
    smoke.geometry.matrix = str(written)
    with pytest.raises(InputError, match="8 modes"):
        directions_section(smoke, None)
    field = types.SimpleNamespace(
        directions=lead_matrix(str(written)), require_heart_vector=lambda what: None
    )
    monkeypatch.setattr(robustness.LVCG, "load", lambda name: field)
    with pytest.raises(InputError, match="RUN has a geometry of 8 modes, .* view_agreement"):
        robustness.main(["--checkpoint=RUN", f"--data={shards_dir}", f"--out={tmp_path}"])


def test_views_that_are_drawn_for_a_field_are_those_of_the_papers_directions(shards_dir, written):
    entries = list_entries([ShardSet(shards_dir, "test")])
    field, paper = (
        drawn_view(entries, 3, 2, 0, lead_matrix(name), 1e-4) for name in (str(written), "paper")
    )
    assert [row.visible for row in field.rows] == [row.visible for row in paper.rows]
    assert field.notes == paper.notes
