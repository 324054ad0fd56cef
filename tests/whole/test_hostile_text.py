"""Record ids and labels of strangers on every page, picture and table that needs no trained model.

What comes from a file is words there: nothing is run, no formula, no row or tag of its own. Reports
with a model are opened in a browser in tests/report/test_report.py.
"""

import csv
import html.parser
import re
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.builds import quiet_build
from helpers.pictures import read_picture

from data_prep import inspect as inspect_door
from data_prep import statistics as statistics_door
from data_prep.base.csv_cells import original
from data_prep.corpora.corpus import open_corpus
from data_prep.dataset.checks import read_ledger, verify
from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax.data.windows import Failure
from lvcg_jax.embed.dataset import write_failures
from lvcg_jax.predict.table import save_predictions
from lvcg_jax.probe.study import Predictions
from lvcg_jax.report import vcg
from lvcg_jax.text.tables import markdown_table

TAG = '"><img src=x onerror="hacked=1"></script><script>hacked=1</script>'
IDS = [
    '=HYPERLINK("x";"y")',
    "+1+1",
    "-1",
    "@SUM(A1)",
    "'=1",
    TAG,
    "| a | b |",
    "</svg>&amp;]]>",
    "שלום",
    "x" * 300,
]
CLASSES = ["=1+1", TAG, "a|b", "\x1b[31mred", "`code` **bold**"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A data set whose records and classes are named by somebody who means no good."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "raw").mkdir()
    rows = [["record_id", "path", "rate", "unit", "leads", "finding"]]
    for i, name in enumerate(IDS):
        signal = make_record(0, patient=i, rate=100, seconds=10)[0]
        np.save(folder / "raw" / f"{i}.npy", signal)
        rows.append([name, f"{i}.npy", 100, "mV", ";".join(LEADS), CLASSES[i % len(CLASSES)]])
    with open(folder / "raw" / "records.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    quiet_build(open_corpus("arrays", folder / "raw"), folder / "out")
    return folder / "out"


class Page(html.parser.HTMLParser):
    """The tags of a page, their attributes, and its words."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.words += data


def test_the_ledger_has_no_formula_and_is_read_back_as_it_was(built):
    with open(built / "ledger.csv", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")] == []
    assert sorted(row["record_id"] for row in read_ledger(built)) == sorted(IDS)
    page, failed = verify(built)
    assert failed == [] and f"{len(IDS)} kept of {len(IDS)}" in page


@pytest.mark.parametrize("name", IDS)
def test_pictures_of_a_record_are_pictures(built, tmp_path, capsys, name):
    assert inspect_door.main([f"--data={built}", f"--record={name}", f"--out={tmp_path}"]) == 0
    for path in tmp_path.glob("*.svg"):
        root = read_picture(path)
        assert not [e.tag for e in root.iter() if e.tag.endswith(("img", "script"))]
        assert name.replace(" ", "") in "".join("".join(root.itertext()).split())
    assert len(list(tmp_path.glob("*.svg"))) == 2 and "\x1b" not in capsys.readouterr().out


def test_the_table_of_data_sets_has_its_rows_and_no_tags(built, capsys):
    assert statistics_door.main([f"--data={built}"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and not re.search(r"<[a-zA-Z/!]", text)
    for line in text.splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 10)


def test_the_page_of_a_vectorcardiogram_shows_the_name(tmp_path):
    signal = make_record(0, patient=0, rate=250, seconds=4)[0]
    path = tmp_path / "a<script>hacked=1<script>&amp;'\"\x1b.npz"
    np.savez(path, signal=signal, rate=250, unit="mV", leads=LEADS)
    assert vcg.main([f"--record={path}", f"--out={tmp_path / 'out'}"]) == 0
    (file,) = (tmp_path / "out").glob("*.html")
    page = Page(file.read_text())
    assert "<script>hacked=1<script>&amp;'\"" in page.words and "img" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on")]
    (picture,) = (tmp_path / "out").glob("*.svg")
    read_picture(picture)


def test_lists_of_failures_and_predictions_have_no_formula(tmp_path):
    failures = [Failure(name, None, f"={name}") for name in IDS]
    path = write_failures(str(tmp_path / "a.npz"), failures)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [original(row["record_id"]) for row in rows] == IDS
    assert not [row for row in rows if row["record_id"][0] in "=+-@" or row["reason"][0] in "=+-@"]
    predictions = Predictions()
    scores = SimpleNamespace(probabilities=np.zeros((len(IDS), 1)))
    predictions.listener("=task", "m", 1.0)("m", 1.0, 0, IDS, ["@c"], scores)
    predictions.save(tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="") as file:
        (_, column), *rows = csv.reader(file)
    assert column == "'=task:@c" and {original(name) for name, _ in rows} == set(IDS)


def test_answers_have_no_formula_and_keep_their_numbers(tmp_path):
    columns = {"record_id": np.array(IDS), "=task": np.linspace(-1, 1, len(IDS))}
    save_predictions(tmp_path / "a.csv", columns)
    with open(tmp_path / "a.csv", newline="") as file:
        (_, column), *rows = csv.reader(file)
    assert column == "'=task" and [original(name) for name, _ in rows] == IDS
    assert float(rows[0][1]) == -1.0 and not [name for name, _ in rows if name[0] in "=+-@"]


def test_a_cell_of_markdown_stays_one_cell():
    lines = markdown_table(["a", "b"], [[TAG, "x\n| y"], ["<0.1", "a|b"]])
    assert lines[2].startswith('| ">&lt;img') and lines[2].endswith("| x \\| y |")
    assert lines[3] == "| <0.1 | a\\|b |"
