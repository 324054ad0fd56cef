"""The documentation: every example runs or says why not, every flag exists, nothing is left out,
the site builds."""

import contextlib
import importlib
import itertools
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.commands import ROOT
from helpers.doc_blocks import (
    check_command,
    command_of,
    inline_commands,
    main_of,
    pages,
    read_blocks,
    split_command,
)

from lvcg_jax.__main__ import COMMANDS, MODULES
from lvcg_jax.__main__ import main as lvcg

# What stands in the folder that commands are run in, under the names that the documentation uses.
# finished: a train command finds nothing left to do
RUNS = ("runs/paper", "runs/demo/run-seed0", "runs/my_first")
SHARDS = ("data/ptbxl",)
RECORD = "records/000/00000_00"
WORDS = {  # what a reader puts in
    "FOLDER": "my_ecgs",
    "FILE": f"my_ecgs/{RECORD}.hea",
    "ID": RECORD,
}
SMALLER = {  # the same at toy size
    "--patients=200": "--patients=24",
    "--workers=2": "--workers=1",
    "configs/pretrain.py:demo": "configs/pretrain.py:smoke",
    # compiles a whole training pass; tests/test_embed.py and test_results.py do it
    " --random_weights=0": "",
}
MORE_FLAGS = {  # that make a command quick
    "probe": ["--resamples=20", "--seeds=1", "--fractions=1"],
    "reconstruct": ["--limit=10", "--morphology=2", "--resamples=20"],
    "export": ["--platforms=cpu"],
}


class Workspace:
    """A folder with what the documentation speaks of; each command is run in it once, whichever
    page it is on."""

    def __init__(self, folder: Path):
        self.folder, self.done = folder, set()

    def run(self, line: str) -> None:
        for word, value in WORDS.items():
            line = re.sub(rf"(?<![\w]){word}(?![\w])", value, line)
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        words = split_command(line)
        if tuple(words) in self.done or words[0] == "source":
            return
        self.done.add(tuple(words))
        ours = command_of(words)
        assert ours, f"only our own commands are run: {line}"
        name, flags = ours
        if name == "train":
            train(flags)
        elif name.startswith("launch/"):
            assert not main_of(name)(flags), line
        else:  # as `python -m lvcg_jax NAME`, in this process: `lvcg` may not be on the PATH
            assert not lvcg([name, *flags, *MORE_FLAGS.get(name, [])]), line


def train(flags: list[str]) -> None:
    """The main job within this process: flags as on its command line."""
    from lvcg_jax.config.fields import flatten
    from lvcg_jax.config.files import read_config_file
    from lvcg_jax.train.loop import train_and_evaluate

    values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    config, workdir = read_config_file(values.pop("config")), values.pop("workdir")
    kinds = {name: type(value) for name, value in flatten(config).items()}
    fields = {name.removeprefix("config."): text for name, text in values.items()}
    config.update_from_flattened_dict({name: kinds[name](text) for name, text in fields.items()})
    assert train_and_evaluate(config, workdir) == "finished"


@pytest.fixture(scope="module")
def workspace(raw_corpus, shards_dir, trained_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for name in ("configs", "launch"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(raw_corpus, folder / "my_ecgs")
    for source, names in ((trained_run, RUNS), (shards_dir, SHARDS)):
        for name in names:
            shutil.copytree(source, folder / name)
    return Workspace(folder)


@pytest.fixture(scope="module")
def ecg():
    """The array that examples call `signal`: leads I, II and V2 at 500 Hz."""
    from data_prep.synthetic_heart.records import make_record

    return make_record(rate=500)[0][:, [0, 1, 7]]


@pytest.fixture(scope="module")
def all_packaged(packaged, tmp_path_factory):
    """The toy weights under every name that the pages use."""
    folder = tmp_path_factory.mktemp("all_packaged")
    for path in packaged.iterdir():
        for name in ("best", "small", "paper"):
            shutil.copy(path, folder / f"{name}{path.suffix}")
    return folder


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(block.is_run for block in read_blocks(page))]
)
def test_what_a_page_shows_runs(page, workspace, ecg, all_packaged, monkeypatch):
    monkeypatch.chdir(workspace.folder)
    monkeypatch.setattr("lvcg_jax.runs.weights.PACKAGED", all_packaged)
    names = {"signal": ecg}
    for block in read_blocks(page):
        if block.is_run and block.language == "python":
            exec(compile("\n" * block.line + block.text, page, "exec"), names)
        elif block.is_run:
            for line in block.commands:
                workspace.run(line)


@pytest.mark.parametrize("page", pages())
def test_commands_and_flags_exist(page):
    """Also of blocks that are not run, and of commands within a sentence."""
    for block in read_blocks(page):
        if block.language == "bash":
            for line in block.commands:
                check_command(line, block.where, whole=True)
        elif block.language == "python":
            compile(block.text, block.where, "exec")
        else:
            assert block.why is None, (
                f"{block.where}: only bash and python blocks are run, so only they are marked"
            )
    for line in inline_commands(page):
        check_command(line, f"{page}: {line}", whole=False)


@pytest.mark.parametrize(
    "line",
    [
        "lvcg embedd --out=e.npz",
        "lvcg embed --checkpoints=runs/paper --data=data/ptbxl --out=e.npz",
        "lvcg embed --check=runs/paper --data=data/ptbxl --out=e.npz",
        "lvcg embed --checkpoint=runs/paper --rows=both --out=e.npz",
        "python -m lvcg_jax.train --config=configs/pretrain.py --config.optim.rate=1",
        "bash launch/local_multihost.sh --workdirs=runs/a",
        "bash launch/start.sh",
        "launch --everything",
    ],
)
def test_a_command_that_drifted_is_noticed(line):
    with pytest.raises((AssertionError, pytest.fail.Exception), match="here:"):
        check_command(line, "here", whole=True)


def test_the_page_of_commands_lists_every_command_with_its_line_and_an_example():
    cli = (ROOT / "docs" / "cli.md").read_text()
    for group, commands in COMMANDS.items():
        section = re.search(rf"^## {group}\n(.*?)(?=^## )", cli, re.MULTILINE | re.DOTALL)
        assert section, f"docs/cli.md has no section {group}"
        rows = re.findall(r"^\| `lvcg (\w+)` \| (.*) \|$", section[1], re.MULTILINE)
        assert rows == [(name, line) for name, (_, line) in commands.items()]
    lines = [line for block in read_blocks("docs/cli.md") for line in block.commands]
    shown = {ours[0] for ours in map(command_of, map(split_command, lines)) if ours}
    assert set(MODULES) - shown == set(), "an example for each"


def test_every_corpus_preprocessing_field_and_defect_is_documented():
    from data_prep.corpora.corpus import CORPORA
    from data_prep.ecg.preprocess import Preprocess
    from data_prep.ecg.quality import KINDS

    data, preprocessing = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("data", "preprocessing")
    )
    assert [name for name in CORPORA if f"`{name}`" not in data] == []
    assert [name for name in Preprocess().to_dict() if f"`{name}`" not in preprocessing] == []
    assert [word for word in KINDS if f"`{word}`" not in preprocessing] == []


@pytest.mark.parametrize("page", pages())
def test_files_modules_and_tests_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    ours = "lvcg_jax|data_prep|configs|launch|tests|docs"
    files = re.findall(rf"(?<![\w/.-])((?:{ours})/[\w./-]*\w)", text)
    assert [file for file in files if not (ROOT / file).exists()] == []
    modules = re.findall(r"(?<![\w/.-])((?:lvcg_jax|data_prep)(?:\.[A-Za-z_]\w*)+)", text)
    assert [name for name in modules if not resolves(name)] == []
    tests = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for file, start in re.findall(r"\b(test_\w+\.py)(?:::(test_\w+))?", text):
        assert file in tests, f"{page} names {file}"
        assert f"def {start}" in tests[file], f"{page} names {file}::{start}"


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in a module."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(".".join(parts[:length]))
            return all((found := getattr(found, name, None)) is not None for name in parts[length:])
    return False


def test_headline_figures_are_those_of_the_pages_of_results():
    def table(page: str, head: str) -> list[list[str]]:
        """The rows of the first table with this head, cells without code marks."""
        text = (ROOT / "docs" / page).read_text().split(f"{head}\n|---", 1)[1]
        rows = itertools.takewhile(lambda line: line.startswith("|"), text.splitlines()[1:])
        return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]

    headline = table("results.md", "| features | super | sub | form | rhythm |")
    assert len(chosen := table("../README.md", "| features | super | sub | form | rhythm |")) == 5
    assert [row for row in chosen if row not in headline] == []
    shown = {
        (task, name): cell
        for name, *cells in headline
        for task, cell in zip(("super", "sub", "form", "rhythm"), cells, strict=True)
    }
    rows = table("results-best.md", "| task | features | 1% | 10% | 100% |")
    measured = {
        (task, name): " / ".join(
            cell if cell == "-" else f"{float(cell.split()[0]):.1f}" for cell in cells
        )
        for task, name, *cells in rows
    }
    assert shown == measured
    derived = {
        name: cells for name, *cells in table("results.md", "| method | PTB-XL | PTB | CPSC 2018 |")
    }
    for name, page, corpora in (
        ("best", "results-best-leads.md", ("CPSC 2018", "PTB")),
        ("paper", "results-paper-leads.md", ("PTB-XL", "PTB", "CPSC 2018")),
    ):
        views = re.findall(
            r"\*\*visible: II, V2, V5\*\*.*?\n\| lvcg \|(.*?)\n",
            (ROOT / "docs" / page).read_text(),
            re.S,
        )
        found = [view.split("|")[2].split()[0] for view in views]
        assert found == [derived[name][("PTB-XL", "PTB", "CPSC 2018").index(c)] for c in corpora]


def test_the_walk_of_a_record_passes_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    walk = re.findall(r"^\| \d+\. .*? \| `(\S+)\.py` \| `(\S+)` \|", text, re.MULTILINE)
    assert len(walk) >= 9
    names = [f"{file.replace('/', '.')}.{name}" for file, name in walk]
    assert [name for name in names if not resolves(name)] == []
    rooms = [file.rpartition("/")[0] for file, _ in walk]
    order = ["formats", "ecg", "dataset", "data", "model", "embed", "probe", "predict", "report"]
    assert list(dict.fromkeys(room.split("/")[1] for room in rooms)) == order


def test_members_that_the_api_page_lists_exist():
    """The site's builder leaves out a member that is not there, without a word."""
    text = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^::: (\S+)\n(?:    options:\n)?(?:      members: \[(.*)\])?", text, re.M)
    assert len(listed) > 30
    names = [
        f"{module}.{name}" for module, members in listed for name in members.split(", ") if name
    ]
    assert [
        name for name in [*names, *(module for module, _ in listed)] if not resolves(name)
    ] == []


@pytest.mark.parametrize("page", pages())
def test_config_fields_that_a_page_names_exist(page):
    from lvcg_jax.config.fields import flatten
    from lvcg_jax.config.files import read_config_file

    fields = flatten(read_config_file(ROOT / "configs" / "pretrain.py"))
    sections = "|".join(sorted({name.split(".")[0] for name in fields if "." in name}))
    named = re.findall(rf"`(?:--config\.)?((?:{sections})\.[a-z_]+)`", (ROOT / page).read_text())
    files = (".py", ".sh", ".md", ".safetensors")
    assert [name for name in named if name not in fields and not name.endswith(files)] == []


def test_links_of_the_start_page_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


def test_citation_is_of_this_version():
    from lvcg_jax import __version__

    citation = yaml.safe_load((ROOT / "docs" / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "MIT"
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert f"## {__version__}" in (ROOT / "docs" / "CHANGELOG.md").read_text()


def test_the_menu_names_every_page():
    config = (ROOT / ".mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w-]+\.md)$", config, re.MULTILINE))
    assert named == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_chart_of_results_shows_the_numbers_of_its_page(tmp_path):
    draw = runpy.run_path(str(ROOT / "launch" / "draw_results.py"))
    drawn, kept = (
        re.sub("<style>.*?</style>", "", path.read_text(), flags=re.DOTALL)
        for path in (draw["draw"](tmp_path / "results.svg"), draw["PICTURE"])
    )
    assert drawn == kept, "python launch/draw_results.py draws it again"
    score, *_ = draw["read_rows"](draw["PAGE"].read_text())["`best`, 100%"][0]
    assert f">{score:.1f}<" in drawn


def test_site_builds_without_a_warning_and_without_the_network(tmp_path):
    """The docs as they are, but for a folded table, a page that is not there (it leaves the menu)
    and a new one."""
    from lvcg_jax import LVCG

    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (docs / "results.md").open("a") as page:
        page.write(
            "\n<details><summary>more</summary>\n\n|a|b|\n|---|---|\n|only here|2|\n\n</details>\n"
        )
    (docs / "another.md").write_text("# Another page\n")
    (docs / "soak.md").unlink()
    for page in docs.rglob("*.md"):
        page.write_text(page.read_text().replace("(soak.md)", "(index.md)"))
    config = (
        (ROOT / ".mkdocs.yml")
        .read_text()
        .replace("paths: [.]", f"paths: [{json.dumps(str(ROOT))}]")
    )
    (tmp_path / ".mkdocs.yml").write_text(config)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    site = tmp_path / "build" / "site"
    menu = (site / "index.html").read_text()
    assert (
        'href="results.html"' in menu
        and 'href="another.html"' in menu
        and 'href="soak.html"' not in menu
    )
    assert "<td>only here</td>" in (site / "results.html").read_text()
    api = (site / "api.html").read_text()
    assert 'id="lvcg_jax.embed.lvcg.LVCG.embed"' in api
    words = " ".join(re.sub("<.*?>", " ", api).split())
    assert " ".join(LVCG.embed.__doc__.split()[:5]) in words, "docstrings are on the page"
    for page in site.glob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(https?:[^\"]*)", page.read_text()
        )
        assert fetched == [], page.name
