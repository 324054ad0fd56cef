"""lvcg serve: what it answers, what it refuses, how it bears a crowd, and how it looks in a real
browser."""

import contextlib
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import numpy as np
import pytest
import uvicorn
from fuzz.uploads import uploads
from helpers import device_files
from helpers.chromium import Browser
from helpers.raw_files import ecg, write_dat
from helpers.report_files import dipole_record
from starlette.testclient import TestClient

from data_prep.base.errors import InputError
from data_prep.base.memory import used_memory
from data_prep.ecg.leads import LEADS
from data_prep.formats.any_file import read_any
from lvcg_jax.runs.heads import Head
from lvcg_jax.serve import __main__ as door
from lvcg_jax.serve import service as serving
from lvcg_jax.serve.answers import Answers
from lvcg_jax.serve.service import Limits, Service
from lvcg_jax.stats.layer import Linear
from lvcg_jax.stats.spread import fit_spread


@pytest.fixture(scope="module")
def answers(model, trained_run):
    """The smoke model with a head of two classes."""
    d = sum(model.part_sizes.values())
    rng = np.random.default_rng(0)
    shift, scale = np.zeros(d, np.float32), np.ones(d, np.float32)
    layer = Linear(rng.normal(size=(d, 2)), np.zeros(2), shift, scale)
    spread = fit_spread(rng.normal(size=(50, d)), shift, scale, np.arange(50))
    facts = {"task": "rhythm", "classes": ["SR", "AF"], "leads": list(LEADS)}
    facts |= {"checkpoint": model.checkpoint, "preprocess_hash": model.preprocess.hash()}
    head = Head(layer, np.ones((2, 2)), np.full(2, 0.5), spread, facts)
    return Answers(model, trained_run, [head], minutes=5)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder that uploads go to."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def client(answers, scratch):
    with TestClient(serve(answers).app, raise_server_exceptions=False) as made:
        yield made


def serve(answers, limits=None):
    return Service(answers.answer, answers.model.checkpoint, limits)


@contextlib.contextmanager
def running(service):
    """The service on a free port of this machine: its address, and the server."""
    listener = door.open_socket("127.0.0.1", 0)
    config = uvicorn.Config(service.app, log_level="warning", timeout_graceful_shutdown=20)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def record_file(folder, seconds=10):
    write_dat(folder / "r100", ecg(1, seconds), rate=500)
    return [("file", (name, (folder / name).read_bytes())) for name in ("r100.hea", "r100.dat")]


def test_a_record_of_two_files_is_answered_as_python_answers(client, answers, tmp_path, scratch):
    response = client.post("/ecg", files=record_file(tmp_path))
    assert response.status_code == 200, response.text
    said = response.json()
    record = read_any(tmp_path / "r100.hea")
    e = answers.model.embed(record.signal, record.rate, record.leads)
    np.testing.assert_array_equal(np.float32(said["embedding"]), e.mean)
    (window,) = said["windows"]
    np.testing.assert_array_equal(np.float32(window["embedding"]), e.embedding[0])
    found = answers.model.predict(record.signal, record.rate, record.leads, head=answers.heads[0])
    assert said["predictions"]["rhythm"]["probabilities"] == pytest.approx(found.probabilities)
    assert said["rank"] == 3 and said["condition"] == pytest.approx(e.condition[0])
    assert said["checkpoint"] == answers.model.checkpoint and "not for diagnosis" in said["remark"]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "name, content",
    [("x.xml", device_files.muse()), ("x.SCP", device_files.scp()), ("x", device_files.ishne())],
)
def test_a_format_is_known_by_ending_or_content(client, name, content):
    said = client.post("/ecg", files={"file": (name, content)}, params={"leads": "I,II"}).json()
    assert said["rank"] == 2 and said["condition"] is None, said
    assert said["windows"][0]["leads"] == ["I", "II"]
    assert "leads" in said["predictions"]["rhythm"]["warning"]


def test_what_a_file_does_not_say_is_asked_for_and_taken_from_fields(client, tmp_path):
    file = {"file": ("e.csv", dipole_record(tmp_path / "e.csv").read_bytes())}
    refused = client.post("/ecg", files=file)
    assert refused.status_code == 422 and "the fields rate, unit and lead_names" in refused.text
    said = client.post("/ecg", files=file, data={"rate": "250", "unit": "mV", "leads": ""})
    assert said.status_code == 200 and said.json()["rate"] == 250


def test_a_browser_gets_the_report_and_a_program_may_ask_for_it(client, tmp_path):
    files = record_file(tmp_path)
    for how in ({"headers": {"Accept": "text/html,*/*"}}, {"params": {"answer": "report"}}):
        page = client.post("/ecg", files=files, **how)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert ">Predictions</h2>" in page.text and "rhythm" in page.text
        assert "<h1>ECG record r100</h1>" in page.text and "lvcg report --record=r100" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]


def one_line(response):
    """The message of a refusal, which shows no place on the machine and no code."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:300])
    words = response.json()["error"]
    assert words and words.isprintable() and len(words) < 500, words
    assert "Traceback" not in words and "lvcg-serve-" not in words and "/tmp" not in words, words
    return words


@pytest.mark.parametrize(
    "given, status, words",
    [
        ({"content": b"x"}, 415, "multipart/form-data"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
        ({"files": {"file": ("e.csv", b"")}}, 422, "no file was sent"),
        ({"files": {"file": ("e.zip", b"PK\x03\x04" + bytes(99))}}, 422, "is a zip archive"),
        ({"files": {"file": ("e.csv", b"1")}, "params": {"rate": "fast"}}, 422, "sampling rate"),
        ({"files": {"file": ("e.csv", b"1")}, "params": {"leads": "V7"}}, 422, "unknown lead 'V7'"),
        ({"files": {"file": ("e.csv", b"1")}, "params": {"path": "/etc"}}, 422, "unknown field"),
        ({"files": {"file": ("e.csv", b"1")}, "params": {"answer": "x"}}, 422, "json or report"),
        ({"files": {"file": ("e.csv", b"1")}, "data": {"unit": "x" * 9000}}, 400, "cannot be read"),
    ],
)
def test_a_mistake_is_told_in_one_line(client, given, status, words):
    response = client.post("/ecg", **given)
    assert response.status_code == status and words in one_line(response)
    page = client.post(
        "/ecg", **given | {"headers": given.get("headers", {}) | {"Accept": "text/html"}}
    )
    assert page.status_code == status and 'id="mistake"' in page.text


def test_a_record_that_is_too_long_is_refused(client, tmp_path):
    np.savez(tmp_path / "e.npz", signal=np.zeros((400, 1)), rate=1, unit="mV", leads=["II"])
    file = {"file": ("e.npz", (tmp_path / "e.npz").read_bytes())}
    assert "lasts 7 minutes, more than the 5" in one_line(client.post("/ecg", files=file))


def test_an_upload_that_is_too_large_is_refused_whatever_it_claims(answers, scratch):
    with TestClient(serve(answers, Limits(upload=20_000)).app) as client:
        big = {"file": ("e.csv", b"1" * 30_000)}
        waits = client.post("/ecg", files=big, headers={"Expect": "100-continue"})
        assert "more than 0.0190735 MiB" in one_line(waits)
        assert client.post("/ecg", files=big).status_code == 413
        head = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "10"}
        body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="e"\r\n\r\n'
        lies = client.post(
            "/ecg", content=iter([body, b"1" * 30_000, b"\r\n--x--\r\n"]), headers=head
        )
        assert lies.status_code == 413
    assert list(scratch.iterdir()) == []


def test_health_and_metrics(client, answers, tmp_path):
    assert client.get("/health").json()["checkpoint"] == answers.model.checkpoint
    client.post("/ecg", files={"file": ("x.scp", device_files.scp())})
    client.post("/ecg", files={"file": ("x.zip", b"PK\x03\x04")})
    counters = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
    assert counters['lvcg_answers_total{status="200"}'] == "1"
    assert counters['lvcg_answers_total{status="422"}'] == "1"
    assert counters["lvcg_requests_held"] == "0" and int(counters["lvcg_memory_bytes"]) > 2**24
    for path in ("/nothing", "/start.js/../../service.py", "/ecg"):
        assert client.get(path).status_code in (404, 405) and "error" in client.get(path).json()


@pytest.mark.filterwarnings("default")  # of numpy, about mutated numbers
def test_two_hundred_hostile_uploads_are_refused(client, tmp_path, scratch, caplog):
    refused = 0
    for upload in uploads(tmp_path):
        files = [("file", (name, content)) for name, content in upload.files]
        response = client.post("/ecg", files=files)
        if response.status_code != 200 or upload.refused:
            assert response.status_code < 500, (upload.what, response.text)
            one_line(response)
            refused += 1
    assert refused >= 200
    assert caplog.records == [] and list(scratch.iterdir()) == []


def test_a_failure_of_our_own_is_one_line_and_is_logged(caplog):
    def fail(*_):
        raise ZeroDivisionError("secret")

    with TestClient(Service(fail, "some").app) as client:
        response = client.post("/ecg", files={"file": ("x.scp", b"x")})
    assert response.status_code == 500 and "secret" not in response.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_twenty_at_once_are_all_answered_and_nothing_grows(answers, scratch, tmp_path):
    files = record_file(tmp_path)
    with running(serve(answers)) as (address, _), ThreadPoolExecutor(20) as crowd:

        def ask(_):
            return httpx.post(f"{address}/ecg", files=files, timeout=60)

        first = ask(0).json()
        before = used_memory()
        replies = list(crowd.map(ask, range(40)))
        assert all(reply.json() == first for reply in replies)
        assert used_memory() - before < 50 / 1024  # GiB
        assert "lvcg_requests_held 0" in httpx.get(f"{address}/metrics").text
    assert list(scratch.iterdir()) == []


def test_more_than_it_may_hold_are_told_to_come_again():
    inside, go_on = threading.Event(), threading.Event()

    def slow(*_):
        inside.set()
        assert go_on.wait(30)
        return {"done": True}

    file = {"file": ("x.scp", b"x")}
    service = Service(slow, "some", Limits(at_once=1))
    with running(service) as (address, server), ThreadPoolExecutor(1) as other:
        held = other.submit(httpx.post, f"{address}/ecg", files=file, timeout=60)
        assert inside.wait(30)
        refused = httpx.post(f"{address}/ecg", files=file)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
        # asked to end, it first answers what it holds
        server.should_exit = True
        time.sleep(0.3)
        assert not held.done()
        go_on.set()
        assert held.result().json() == {"done": True}


def test_a_client_that_does_not_send_is_not_waited_for(answers, monkeypatch):
    monkeypatch.setattr(serving, "UPLOAD_SECONDS", 0.2)

    def slowly():
        yield b"--x\r\n"
        time.sleep(1)
        yield b"--x--\r\n"

    with running(serve(answers)) as (address, _):
        head = {"Content-Type": "multipart/form-data; boundary=x"}
        reply = httpx.post(f"{address}/ecg", content=slowly(), headers=head)
        assert reply.status_code == 408


def test_a_port_that_is_taken_is_told_in_one_line():
    with door.open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="give another --port"):
            door.main([f"--port={port}"])
    with pytest.raises(InputError, match="up to 65535"):
        door.main(["--port=70000"])


def drop(browser, path):
    """Drops a file on the page, as the browser itself would hand it over."""
    content = json.dumps(list(path.read_bytes()))
    browser.run(
        f"(() => {{ const data = new DataTransfer(); data.items.add(new File([new Uint8Array("
        f"{content})], {json.dumps(path.name)})); const zone = document.getElementById('zone');"
        "zone.dispatchEvent(new DragEvent('dragover', {dataTransfer: data, bubbles: true}));"
        "zone.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true})); })()"
    )


def test_a_person_drops_a_file_and_sees_the_report(answers, tmp_path):
    path = dipole_record(tmp_path / "ecg.csv")
    with running(serve(answers)) as (address, _), Browser() as browser:
        for width, dark in ((390, True), (1280, False)):
            browser.open(address, width, dark)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert "Drop an ECG file here" in browser.run("document.body.innerText")
        # what the file does not say is told on the same page, beside the fields for it
        drop(browser, path)
        browser.wait("document.querySelector('#mistake')?.innerText.includes('rate is not known')")
        assert browser.run("document.querySelector('details').open")
        for name, value in (("rate", "250"), ("unit", "mV")):
            browser.run(f"document.querySelector('[name={name}]').value = '{value}'")
        drop(browser, path)
        browser.wait("document.querySelectorAll('h2').length === 4 && document.title")
        text = browser.run("document.body.innerText")
        assert "ECG record upload" in text and "Signal quality" in text and "75" in text
        assert browser.run("document.querySelectorAll('canvas').length") == 1
        # nothing but the refusal was found wrong, and nothing was fetched from elsewhere
        assert [words for words in browser.errors if "422" not in words] == []
        fetched = {request.removeprefix(address) for request in browser.requests}
        assert fetched <= {"/", "/start.css", "/start.js", "/ecg", "/favicon.ico"}
