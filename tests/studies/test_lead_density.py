"""`lvcg lead_density`: derived leads replace hidden ones alone, and densities are compared."""

import numpy as np
import pytest
from helpers.pictures import read_picture, words_of

from data_prep.base.errors import InputError
from data_prep.dataset.shards import ShardSet
from lvcg_jax.data.entries import list_entries
from lvcg_jax.reconstruct.lead_method import signal_of, to_mv
from lvcg_jax.reconstruct.views import read_windows
from lvcg_jax.studies.lead_density import TRUE, compare, density, main, with_leads


def test_a_window_with_its_own_leads_stays_as_it_is(shards_dir):
    (window,) = read_windows(list_entries([ShardSet(shards_dir, "test")])[:1])
    again = with_leads(window, to_mv(signal_of(window), window))
    # stitched and cut again: steep waves lose a little
    assert again["beats"].shape == window["beats"].shape
    error = again["beats"] - window["beats"]
    assert (error**2).mean() < 0.02 * (window["beats"].astype(np.float32) ** 2).mean()


def test_densities_and_cosines():
    rng = np.random.default_rng(0)
    true = rng.normal(size=(200, 6)) * [9, 5, 1, 1, 1, 1]
    mixed = true[rng.permutation(200)]  # the same crowd, nobody in his own place
    found = {TRUE: true, "same": true, "mixed": mixed, "elsewhere": true + 100, "one": true * 0}
    rows, charts = compare(found, [str(i) for i in range(200)], 50)
    values = {name: [float(cell.split()[0]) for cell in cells] for name, *cells in rows}
    assert values["same"] == [1, 1, 1] and values["mixed"][1:] == [1, 1]
    assert abs(values["mixed"][0]) < 0.2 and max(values["elsewhere"][1:]) < 0.05
    assert values["one"][1:] == [0, 0] and len(charts) == 2
    grid = np.linspace(-40, 40, 200)
    assert density(true[:, 0], grid).sum() == pytest.approx(1)
    with pytest.raises(InputError, match="all alike"):
        compare({TRUE: np.ones((20, 3))}, ["a"] * 20, 10)


def test_the_command(shards_dir, trained_run, tmp_path, capsys):
    where = [f"--checkpoint={trained_run}", f"--data={shards_dir}", f"--out={tmp_path}"]
    few = ["--limit=8", "--fit_records=10", "--resamples=20"]
    assert main([*where, *few, "--methods=geometry:paper,zero"]) == 0
    text = (tmp_path / "lead_density.md").read_text()
    assert "| geometry:paper |" in text and "| zero |" in text and "3 leads visible" in text
    words = words_of(read_picture(tmp_path / "lead_density.svg")).splitlines()
    assert words.count("geometry:paper") == words.count(TRUE) == 2
    assert "lead_density.svg" in capsys.readouterr().out
    with pytest.raises(InputError, match="--k=12: give 1 to 11"):
        main([*where, "--k=12"])
