"""The notebooks: every cell runs, in order, and each shows what its text says."""

import contextlib
import io
import json

import numpy as np
import pytest
from helpers.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_LINES = 10  # of the classifier's own cell


def cells(path, kind="code"):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["language_info"]["name"]) == (4, "python")
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == kind]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each notebook leaves behind: its variables, and what it prints."""
    left = {}
    for path in NOTEBOOKS:
        names, said = {"__name__": "__main__"}, io.StringIO()
        with (
            contextlib.chdir(tmp_path_factory.mktemp("notebook")),
            contextlib.redirect_stdout(said),
        ):
            for number, code in enumerate(cells(path)):
                exec(compile(code, f"{path.name} cell {number}", "exec"), names)
        left[path.stem] = (names, said.getvalue())
    return left


def test_the_classifier_answers_for_new_patients_in_few_lines(ran):
    names, said = ran["classifier"]
    assert ((names["probability"] >= 0) & (names["probability"] <= 1)).all()
    assert not set(names["train"].patient_id) & set(names["test"].patient_id)
    assert "AUROC on" in said
    whole = next(code for code in cells(NOTEBOOKS[0]) if "LVCGClassifier(" in code)
    assert len([line for line in whole.splitlines() if line.strip()]) <= MOST_LINES


def test_fewer_leads_are_said_to_show_less(ran):
    names, _ = ran["missing-leads"]
    ranks = [int(e.rank[0]) for e in names["found"].values()]
    assert ranks == [3, 3, 2, 1]
    assert names["similar"]["all"] == pytest.approx(1) and "V3" not in names["e"].visible[0]


def test_the_heart_vector_has_an_axis_and_loses_a_direction_with_two_limb_leads(ran):
    names, said = ran["heart-vector"]
    assert "frontal axis" in said and names["flat"].rank == 2
    assert np.isfinite(names["loop"]).all() and names["loop"].shape == (3, 20)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_results(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in book["cells"])
    assert f"notebooks/{path.name}" in (ROOT / "docs" / "notebooks.md").read_text()
