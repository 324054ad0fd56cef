"""Cells of text never become formulas in a spreadsheet, and are read back as they were."""

import csv
import io

import pytest

from data_prep.base.csv_cells import csv_text, neutral, original
from data_prep.base.words import in_all, printable

CELLS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "'=1",
    "''-x",
    "'",
    "",
    "a=b",
    "O'Neil",
    "'quoted'",
]


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_no_formula_and_comes_back(cell):
    (row,) = csv.reader(io.StringIO(csv_text([[cell]]), newline="")) if cell else [[""]]
    assert row[0][:1] not in tuple("=+-@\t\r") and original(row[0]) == cell
    assert neutral(cell) == cell or neutral(cell) == f"'{cell}"


def test_numbers_stay_numbers():
    assert csv_text([[-1.5, 3]]) == "-1.5,3\n"


def test_what_controls_a_terminal_is_written_out():
    assert printable("a\x1b[31mb\n\udce9 é") == "a\\x1b[31mb\\n\\udce9 é"
    assert in_all([["a", "b", "c"], ["c", "a"], ["a", "c", "d"]]) == ["a", "c"]
