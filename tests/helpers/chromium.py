"""A real browser for tests: Chromium without a window, driven by its DevTools protocol over a pair
of pipes.

`Browser` opens a page file and keeps what a user would complain about: errors in the console,
requests that leave the file. Chromium is the system's package `chromium`; LVCG_CHROMIUM names
another binary.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the pages are our own, and root may run the tests
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
)


def find_chromium() -> str:
    """The browser's binary, or a failure in one line."""
    named = os.environ.get("LVCG_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        where = (
            f"LVCG_CHROMIUM={named} is no program"
            if named
            else f"none of {', '.join(NAMES)} is installed"
        )
        raise RuntimeError(
            f"no Chromium to open the reports in: {where}; install the package 'chromium' (Debian, Ubuntu: sudo apt-get"
            " install chromium) or set LVCG_CHROMIUM"
        )
    return found


class Browser:
    """One Chromium with one page."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        # the protocol's two file descriptors
        wire = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        program = [find_chromium(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", wire, "bash", *program],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._numbers, self._buffer, self._session = itertools.count(1), b"", None
        self.errors: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(20)
        for end in (self._commands, self._answers):
            os.close(end)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params) -> dict:
        """One command of the protocol and its answer; what happens meanwhile is noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(30)
            if answer is None:
                raise RuntimeError(f"Chromium did not answer {method} within 30 s")
            if answer.get("id") != number:
                self._hear(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def _next(self, seconds: float) -> dict | None:
        """The next message, or None if there is none for so long."""
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("Chromium ended; does it start by hand?")
            self._buffer += data
        first, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(first)

    def _hear(self, event: dict) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(" ".join(str(arg.get("value")) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Opens a file in a window of this size and waits until it is loaded; seconds that took, as
        the page saw it."""
        self.errors, self.requests = [], []
        phone = width < 500
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + 30
        while self.run("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > until:
                raise RuntimeError(f"{path} was not loaded within 30 s")
            time.sleep(0.02)
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )
        return self.run("performance.now()") / 1000

    def run(self, script: str):
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(
                found["exceptionDetails"].get("exception", {}).get("description", "script failed")
            )
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, held: bool = False) -> None:
        """kind: mousePressed, mouseMoved or mouseReleased."""
        button = "left" if held or kind != "mouseMoved" else "none"
        count = 0 if kind == "mouseMoved" else 1
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=int(held),
            clickCount=count,
        )

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the mouse, moves it and lets go."""
        self.mouse("mousePressed", *start, held=True)
        for step in (0.5, 1.0):
            self.mouse(
                "mouseMoved",
                *(a + step * (b - a) for a, b in zip(start, end, strict=True)),
                held=True,
            )
        self.mouse("mouseReleased", *end)

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Scrolls to an element: its left, top, width and height on the screen."""
        return tuple(
            self.run(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
                " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
                " return [b.left, b.top, b.width, b.height]; })()"
            )
        )

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page."""
        with contextlib.suppress(KeyError):
            data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)[
                "data"
            ]
            Path(path).write_bytes(base64.b64decode(data))
