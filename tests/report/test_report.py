"""lvcg report: both pages in a real browser, what they say of known records, and what is left
out."""

import base64
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.chromium import Browser, find_chromium
from helpers.commands import assert_one_line_error, run
from helpers.report_files import dipole_record, write_geometry, write_robustness

from data_prep.base.errors import InputError
from data_prep.base.pseudonyms import Pseudonyms
from data_prep.ecg.leads import LEADS
from lvcg_jax.embed.dataset import embed_dataset
from lvcg_jax.embed.table import Table, load_table, save_table
from lvcg_jax.probe.__main__ import main as probe_main
from lvcg_jax.reconstruct import __main__ as reconstruct_door
from lvcg_jax.report import __main__ as report_door
from lvcg_jax.report import embedding_map, page
from lvcg_jax.report.neighbours import label_shares, nearest

SECTIONS = (
    "Training",
    "Linear probe",
    "Derived leads, measured",
    "Fewer leads and moved electrodes",
    "Geometry check",
    "Derived leads on ECG paper",
    "Maps of the embedding",
    "Lead directions",
    "Configuration",
    "Model card",
)
SIZES = [(width, dark) for width in (1280, 390) for dark in (False, True)]


@pytest.fixture(scope="module")
def browser():
    with Browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def full_run(trained_run, model, shards_dir, tmp_path_factory):
    """A run directory in which every command has left its files under their usual names."""
    folder = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(trained_run, folder)
    save_table(folder / "embeddings.npz", embed_dataset(model, shards_dir, progress=False))
    flags = [
        f"--embeddings=LVCG={folder / 'embeddings.npz'}",
        f"--out={folder / 'probe.json'}",
        "--resamples=20",
    ]
    probe_main([*flags, "--fractions=0.5,1", "--seeds=2", "--parts"])
    methods = [
        "--methods=geometry:paper,copy,zero",
        "--no_pictures",
        "--resamples=20",
        "--limit=10",
    ]
    reconstruct_door.main(
        [f"--data={shards_dir}", "--visible=II,V2,V5", f"--out={folder / 'leads'}", *methods]
    )
    write_robustness(folder / "robustness")
    write_geometry(folder / "geometry.md")
    return folder


@pytest.fixture(scope="module")
def run_html(full_run):
    assert report_door.main([f"--checkpoint={full_run}", "--records=1"]) == 0
    return full_run / "report.html"


@pytest.fixture(scope="module")
def record_html(full_run, shards_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("record")
    path = dipole_record(folder / "we <i>ird.csv")
    flags = [
        f"--checkpoint={full_run}",
        f"--reference={full_run / 'embeddings.npz'}",
        "--leads=I,II,V2",
    ]
    out = folder / "one.html"
    assert (
        report_door.main([f"--record={path}", "--rate=250", "--unit=mV", *flags, f"--out={out}"])
        == 0
    )
    return out


def check_page(browser, path, width, dark):
    """What must hold for every page at every size."""
    browser.open(path, width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [path.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    dim = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dim)[:3])) < 200) == dark
    figures = browser.run(
        "[...document.querySelectorAll('figure')].map(f =>"
        " [f.querySelector('figcaption .made code').innerText,"
        " f.querySelector('figcaption').innerText.length,"
        " [...f.querySelectorAll('svg, canvas')]"
        ".filter(d => getComputedStyle(d).display !== 'none')"
        ".map(d => [d.clientWidth, d.clientHeight, d.getAttribute('aria-label')])])"
    )
    for command, words, drawings in figures:
        assert command.startswith("lvcg ") and words > 60 and drawings
        for across, high, label in drawings:
            assert 150 < across <= width and high > 60 and len(label) > 10, (
                command,
                across,
                high,
                label,
            )
    blank = browser.run(
        "[...document.querySelectorAll('canvas')].filter(c =>"
        " !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"
        ".map(c => c.id)"
    )
    assert blank == []
    return browser.run("document.body.innerText")


@pytest.mark.parametrize("width, dark", SIZES)
def test_run_report_in_a_browser(browser, run_html, width, dark):
    text = check_page(browser, run_html, width, dark)
    found = browser.run("[...document.querySelectorAll('h2')].map(h => h.innerText)")
    assert tuple(found) == SECTIONS
    for words in (
        "total loss",
        "learning rate",
        "records / s",
        "test macro AUROC (x 100)",
        "number of visible leads",
    ):
        assert words in text, words
    for words in (
        "25 mm/s",
        "10 mm/mV",
        "structure only",
        "rotation (degrees)",
        "What differs from the paper",
    ):
        assert words in text, words
    for words in (
        "preprocessing",
        "orbax-checkpoint",
        "not for diagnosis",
        "MIT licence",
        "Intended use",
    ):
        assert words in text, words
    assert "NaN" not in text and "undefined" not in text and "None" not in text


def test_map_names_the_record_under_the_pointer_and_takes_colours(browser, run_html):
    browser.open(run_html)
    left, top, width, height = browser.place("#map1")
    tip = "document.querySelector('#map1').parentElement.querySelector('.tip')"
    names = []
    for i in np.linspace(0.1, 0.9, 8):
        for j in np.linspace(0.1, 0.9, 8):
            browser.point(left + i * width, top + j * height)
            if browser.run(f"getComputedStyle({tip}).display") != "none":
                names.append(browser.run(f"{tip}.innerText"))
    assert names and all(
        name.startswith(("records/", "training record"))
        and "diagnosis: " in name
        and "split: " in name
        for name in names
    )
    before = browser.run("document.getElementById('legend').innerText")
    browser.run(
        "(() => { const choice = document.getElementById('colour'); choice.value = '0/1';"
        " choice.dispatchEvent(new Event('change')); })()"
    )
    after = browser.run("document.getElementById('legend').innerText")
    assert before != after and "other (" in after


@pytest.mark.parametrize("width, dark", SIZES)
def test_record_report_in_a_browser(browser, record_html, width, dark):
    text = check_page(browser, record_html, width, dark)
    for words in (
        "we <i>ird",
        "heart rate",
        "QTc (Bazett)",
        "QRS axis",
        "25 mm/s",
        "10 mm/mV",
        "Signal quality",
    ):
        assert words in text, words
    for words in (
        "Nearest neighbours",
        "Labels among the neighbours",
        "diagnosis: ",
        "not for diagnosis",
        "similarity",
    ):
        assert words in text, words
    shown = browser.run(
        "[...document.querySelectorAll('svg.ecg')]"
        ".filter(s => getComputedStyle(s).display !== 'none')"
        ".map(s => [s.querySelectorAll('.derived').length, s.querySelectorAll('.computed').length,"
        " s.querySelectorAll('polygon.beat').length,"
        " [...s.querySelectorAll('text.name')].map(t => t.textContent)])"
    )
    ((derived, computed, beats, names),) = shown  # the layout for this width, and only that
    assert derived == 5 and computed == 4 and beats >= 5
    assert {name.strip("*†") for name in names} == set(LEADS) and len(names) == 13
    assert "V5*" in names and "III†" in names and "V2" in names


def test_the_loop_turns_under_a_drag(browser, record_html):
    look = "document.getElementById('view').toDataURL()"
    for width in (1280, 390):
        browser.open(record_html, width)
        left, top, across, high = browser.place("#view")
        before = browser.run(look)
        browser.drag(
            (left + across / 2, top + high / 2), (left + across / 2 + 90, top + high / 2 + 10)
        )
        assert browser.run(look) != before
        assert browser.errors == []


def test_print_is_light_and_true_to_scale(browser, record_html):
    # what is between the margins of A4
    browser.open(record_html, round((297 - 2 * 11) / 25.4 * 96), dark=True)
    browser.print_look()
    _, top, wide, high = browser.run(
        "(() => { const b = document.querySelector('svg.ecg.wide').getBoundingClientRect();"
        " return [b.left, b.top + scrollY, b.width, b.height]; })()"
    )
    assert wide == pytest.approx(265 / 25.4 * 96, rel=0.005)  # 250 mm for ten seconds
    assert top + high < (210 - 2 * 9) / 25.4 * 96  # the whole ECG is on the first sheet
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_measured_numbers_are_those_of_the_record(browser, record_html):
    browser.open(record_html)
    found = dict(
        browser.run(
            "[...document.querySelectorAll('dl.facts div')]"
            ".map(d => [...d.children].slice(0, 2).map(c => c.innerText))"
        )
    )
    number = {
        name: float(re.match(r"-?\d+", value)[0])
        for name, value in found.items()
        if value[-1:] != "e"
    }
    assert (
        abs(number["heart rate"] - 75) <= 1
        and abs(number["QRS axis"] - 55) <= 5
        and abs(number["T axis"] - 20) <= 7
    )
    assert 40 <= number["QRS"] <= 140 and 250 <= number["QT"] <= 480
    assert number["QTc (Bazett)"] == pytest.approx(number["QT"] / np.sqrt(0.8), abs=2)
    assert found["PR"] == "not measurable"  # this heart has no atria


def test_ten_thousand_embeddings_are_small_and_quick(browser, tmp_path):
    rng = np.random.default_rng(0)
    count = 10_000
    classes = [f"class {k}" for k in range(20)]
    labels = [
        {"super": [classes[k % 5]], "sub": [classes[k], classes[(k + 1) % 20]]}
        for k in rng.integers(0, 20, count)
    ]
    ids = np.array([f"records500/{i:05d}_hr" for i in range(count)])
    split = rng.choice(["train", "validation", "test"], count)
    table = Table(ids, ids, split, labels, np.zeros((count, 1), np.float32))
    maps = [
        embedding_map.Map(name, rng.normal(size=(count, 2)), "x (no unit)", "y (no unit)")
        for name in ("PCA", "t-SNE")
    ]
    rows = np.arange(count)
    names, tasks = embedding_map.map_names(table, rows), embedding_map.label_rows(table, rows)
    body = embedding_map.maps_figure(maps, names, tasks, "caption", "lvcg report")
    path = tmp_path / "many.html"
    sections = [page.Section("maps", "Maps", body)]
    words = dict.fromkeys(("title", "subtitle", "remark", "origin", "command"), "many")
    path.write_text(page.render("report.html", numbers=[], sections=sections, **words))
    assert path.stat().st_size < 2_000_000  # the rest of a report is under one
    assert browser.open(path) < 3.0
    assert browser.errors == [] and "class 0 (" in browser.run(
        "document.getElementById('legend').innerText"
    )


def test_places_survive_sixteen_bits():
    places = np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 2.0]])
    whole = (
        np.frombuffer(base64.b64decode(embedding_map.quantise(places)), "<u2")
        .reshape(-1, 2)
        .astype(float)
    )
    back = (whole / 65535 - 0.5) * 4 + [2.0, 1.0]
    np.testing.assert_allclose(back, places, atol=1e-4)


def test_missing_parts_are_left_out(trained_run, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "metrics.jsonl", "versions.json"):
        shutil.copy(trained_run / name, bare / name)
    assert (
        report_door.main([f"--checkpoint={bare}", "--records=0", f"--out={tmp_path / 'bare.html'}"])
        == 0
    )
    html = (tmp_path / "bare.html").read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == ["Training", "Lead directions", "Configuration", "Model card"]
    assert 'class="maps"' not in html and "<canvas" not in html
    assert report_door.main([f"--checkpoint={bare}", f"--out={tmp_path / 'bare.html'}"]) == 0
    # no checkpoint to derive them with
    assert "left out: derived leads on ecg paper" in capsys.readouterr().out
    (bare / "metrics.jsonl").unlink()
    assert (
        report_door.main([f"--checkpoint={bare}", "--records=0", f"--out={tmp_path / 'bare.html'}"])
        == 0
    )
    assert "Training</h2>" not in (tmp_path / "bare.html").read_text()


def test_pages_need_nothing_from_elsewhere_and_name_no_machine(run_html, record_html):
    for path in (run_html, record_html):
        html = path.read_text()
        assert "://" not in html and not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\(", html)
        assert str(path.parent.parent) not in html and "<i>ird" not in html


def test_pages_and_their_model_card_name_no_training_record(full_run, run_html, record_html):
    table = load_table(full_run / "embeddings.npz")
    trained = table.record_id[table.split == "train"].tolist()
    assert len(trained) > 50
    for path in (run_html, record_html):
        text = path.read_text()
        assert not [name for name in trained if name in text], path.name
    assert any(name in run_html.read_text() for name in table.record_id.tolist())


def test_a_page_under_pseudonyms_names_nobody(full_run, shards_dir, tmp_path, monkeypatch):
    table = load_table(full_run / "embeddings.npz")
    path = dipole_record(tmp_path / "Doe-1970.csv")
    (tmp_path / "key").write_bytes(b"k" * 16)
    names = Pseudonyms(b"k" * 16)
    flags = [f"--checkpoint={full_run}", f"--reference={full_run / 'embeddings.npz'}"]
    flags += ["--rate=250", "--unit=mV", f"--pseudonyms={tmp_path / 'key'}"]
    monkeypatch.chdir(tmp_path)
    assert report_door.main([f"--record={path}", *flags]) == 0
    html = Path(f"{names.of('Doe-1970')}-report.html").read_text()
    hidden = [*table.record_id, *table.patient_id, "Doe-1970"]
    assert not [name for name in hidden if name in html]
    tested = names.of(str(table.record_id[table.split == "test"][0]))
    assert tested in html and f"ECG record {names.of('Doe-1970')}" in html


def test_hostile_names_are_shown_and_never_run(browser, full_run, tmp_path):
    """Record ids, labels, tasks, notes and file names of others are words, whatever they hold."""
    attack = '"><img src=x onerror="hacked=1"></script><script>hacked=1</script>'
    table = load_table(full_run / "embeddings.npz")
    ids = np.array([f"{attack}{i}" for i in range(len(table.record_id))])
    labels = [{attack: [attack if i % 2 else f"{attack}2"]} for i in range(len(ids))]
    hostile = replace(table, record_id=ids, labels=labels)
    save_table(tmp_path / "ids.npz", hostile)
    probe = json.loads((full_run / "probe.json").read_text())
    for result in probe["results"]:
        result["task"] = attack
        result["notes"] = [attack]
        result["models"] = [f"{attack}{name}" for name in result["models"]]
        for cell in result["cells"]:
            cell["model"] = f"{attack}{cell['model']}"
    (tmp_path / "probe.json").write_text(json.dumps(probe))
    record = dipole_record(tmp_path / "a<script>hacked=1<script>&amp;'.csv")
    reference = f"--reference={tmp_path / 'ids.npz'}"
    flags = [f"--record={record}", "--rate=250", "--unit=mV", f"--checkpoint={full_run}", reference]
    assert report_door.main([*flags, f"--out={tmp_path / 'record.html'}"]) == 0
    flags = [f"--embeddings={tmp_path / 'ids.npz'}", f"--probe={tmp_path / 'probe.json'}"]
    run_flags = [f"--checkpoint={full_run}", "--records=0", "--tsne=no", *flags]
    assert report_door.main([*run_flags, f"--out={tmp_path / 'run.html'}"]) == 0
    for name, words in (("record.html", record.stem), ("run.html", attack)):
        browser.open(tmp_path / name)
        assert browser.errors == [] and browser.run("typeof hacked") == "undefined"
        assert browser.run("document.querySelectorAll('img').length") == 0
        assert words in browser.run("document.body.textContent")
        assert attack in browser.run("document.getElementById('legend').innerText")
        options = browser.run("[...document.querySelectorAll('option')].map(o => o.textContent)")
        assert f"{attack}: {attack} or not" in options


def test_all_twelve_leads_leave_nothing_to_derive(full_run, tmp_path):
    path = dipole_record(tmp_path / "all.csv")
    out = tmp_path / "all.html"
    assert (
        report_door.main(
            [
                f"--record={path}",
                "--rate=250",
                "--unit=mV",
                f"--checkpoint={full_run}",
                f"--out={out}",
            ]
        )
        == 0
    )
    html = out.read_text()
    assert (
        "trace derived" not in html
        and "Nearest neighbours" not in html
        and "Nothing was found wrong" in html
    )


def test_a_lead_without_training_data_is_drawn_at_a_size_that_is_told(full_run, tmp_path):
    path, moved = dipole_record(tmp_path / "few.csv"), tmp_path / "run"
    shutil.copytree(full_run, moved)
    config = json.loads((moved / "config.json").read_text())
    config["data"]["dir"] = str(tmp_path / "gone")
    (moved / "config.json").write_text(json.dumps(config))
    flags = [
        f"--record={path}",
        "--rate=250",
        "--unit=mV",
        f"--checkpoint={moved}",
        "--leads=II,V2,V5",
    ]
    assert report_door.main([*flags, f"--out={tmp_path / 'few.html'}"]) == 0
    assert "median size of the visible leads" in (tmp_path / "few.html").read_text()


def test_neighbours_are_other_records_and_alike():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8)).astype(np.float32)
    x[7] = 2 * x[3] - x.mean(0)  # nearly the direction of 3, from the middle
    # 4: the record in question once more
    ids = np.array([f"r{i}" if i != 4 else "folder/r3" for i in range(40)])
    labels = [{"task": ["yes"] if i in (7, 8) else []} for i in range(40)]
    table = Table(ids, ids, np.full(40, "train"), labels, x)
    found = nearest(table, x[3], "r3", k=5)
    assert (
        found.left_out == 2
        and table.record_id[found.rows[0]] == "r7"
        and found.similarity[0] > 0.95
    )
    assert len(set(table.record_id[found.rows])) == 5 and np.all(np.diff(found.similarity) <= 0)
    shares = {
        (task, name): (count, near, share)
        for task, name, count, near, share in label_shares(table, found)
    }
    assert shares["task", "yes"][0] >= 1 and shares["task", "yes"][1:] == (5, 2 / 40)


@pytest.mark.parametrize(
    "flags, words",
    [
        ([], "--checkpoint=RUN"),
        (["--checkpoint=gone"], "no run directory gone"),
        (["--checkpoint=RUN", "--leads=I"], "--leads is for the report of a record"),
        (
            ["--record=ECG", "--checkpoint=RUN", "--probe=p.json"],
            "--probe is for the report of a run",
        ),
        (
            ["--checkpoint=RUN", "--records=-1"],
            "--records: '-1' is not a whole number of 0 or more",
        ),
        (["--checkpoint=RUN", "--probe=gone.json"], "--probe=gone.json: no such file"),
        (["--checkpoint=RUN", "--probe=RUN/config.json"], "is not what lvcg probe"),
        (
            ["--checkpoint=RUN", "--robustness=RUN/leads/metrics.json"],
            "is not what lvcg robustness",
        ),
        (["--checkpoint=RUN", "--geometry=RUN/config.json"], "is not the page"),
        (
            ["--checkpoint=RUN", "--embeddings=gone.npz"],
            "no such file or folder; give the embeddings",
        ),
        (["--checkpoint=RUN", "--data=gone"], "no such dataset directory"),
        (["--checkpoint=RUN", "--records=0", "--out=RUN/config.json/x.html"], "cannot write there"),
        (["--record=gone.hea", "--checkpoint=RUN"], "gone"),
        (["--record=ECG", "--checkpoint=RUN", "--leads=I,V7"], "unknown lead 'V7': did you mean V"),
        (["--record=ECG", "--checkpoint=gone"], "no run directory gone"),
        (["--record=ECG", "--checkpoint=RUN", "--start=60"], "has 10.0 s only"),
        (["--record=SHORT", "--checkpoint=RUN"], "too short"),
        (["--record=SLOW", "--checkpoint=RUN"], "record slow holds no whole beat"),
        (
            ["--record=ECG", "--checkpoint=RUN", "--reference=OTHER"],
            "holds embeddings of another@1",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(full_run, tmp_path, flags, words):
    names = {
        "RUN": str(full_run),
        "ECG": str(dipole_record(tmp_path / "ecg.csv")),
        "OTHER": str(tmp_path / "other.npz"),
    }
    names["SHORT"] = str(dipole_record(tmp_path / "short.csv", seconds=0.5))
    slow = np.sin(np.arange(2500) / 40)[:, None] * np.ones(12)  # a wave without beats
    np.savetxt(tmp_path / "slow.csv", slow, delimiter=",", header=",".join(LEADS), comments="")
    names["SLOW"] = str(tmp_path / "slow.csv")
    ids = np.array(["a", "b"])
    table = Table(
        ids,
        ids,
        ids,
        [{}, {}],
        np.eye(2, dtype=np.float32),
        metadata={"checkpoint": "another@1#00000000"},
    )
    save_table(tmp_path / "other.npz", table)
    if any(flag.startswith("--record=") for flag in flags):
        flags = [*flags, *(["--rate=250", "--unit=mV"] if "gone.hea" not in flags[0] else [])]
    with pytest.raises(InputError, match=re.escape(words)) as error:
        report_door.main(
            [re.sub("|".join(names), lambda found: names[found[0]], flag) for flag in flags]
        )
    assert "\n" not in str(error.value)


def test_a_mistake_ends_the_command_with_exit_code_two(full_run):
    assert_one_line_error(
        run("lvcg_jax.report", f"--record={full_run}/gone.csv", f"--checkpoint={full_run}"), "gone"
    )


def test_without_chromium_the_reason_is_one_line(monkeypatch):
    monkeypatch.setitem(os.environ, "LVCG_CHROMIUM", "no-such-browser")
    with pytest.raises(RuntimeError, match="install the package 'chromium'"):
        find_chromium()
