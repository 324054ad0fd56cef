"""A real browser for tests: the system's Chromium without a window, driven by Playwright.

`Browser` opens a page file and keeps what a user would complain about: errors in the console,
requests that leave the file. Nothing is downloaded: Chromium is the system's package `chromium`;
LVCG_CHROMIUM names another binary.
"""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """The browser's binary, or a failure in one line."""
    named = os.environ.get("LVCG_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        none = f"none of {', '.join(NAMES)} is installed"
        where = f"LVCG_CHROMIUM={named} is no program" if named else none
        raise RuntimeError(
            f"no Chromium to open the reports in: {where}; install the package 'chromium' (Debian,"
            " Ubuntu: sudo apt-get install chromium) or set LVCG_CHROMIUM"
        )
    return found


class Browser:
    """One Chromium with one page. Playwright keeps an event loop running in its thread, and Orbax
    wants one of its own: so Playwright has a thread to itself."""

    def __enter__(self):
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._start).result()
        return self

    def _start(self) -> None:
        self._playwright = sync_playwright().start()
        flags = ["--no-sandbox", "--hide-scrollbars"]  # the pages are our own; root may run tests
        launch = self._playwright.chromium.launch
        self._chromium = launch(executable_path=find_chromium(), args=flags)
        self._page = self._chromium.new_page()

    def __exit__(self, *_) -> None:
        self._thread.submit(self._chromium.close).result()
        self._thread.submit(self._playwright.stop).result()
        self._thread.shutdown()

    def open(self, path: Path | str, width: int = 1280, dark: bool = False) -> float:
        """Opens a file or an address in a window of this width and waits until it is drawn; seconds
        that took, as the page saw it."""
        address = path.resolve().as_uri() if isinstance(path, Path) else path
        return self._thread.submit(self._open, address, width, dark).result()

    def _open(self, address: str, width: int, dark: bool) -> float:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._page.close()
        self._page = self._chromium.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            is_mobile=width < 500,
        )
        self._page.on("pageerror", lambda error: self.errors.append(str(error)))
        self._page.on("console", self._hear)
        self._page.on("request", lambda request: self.requests.append(request.url))
        self._page.goto(address)
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self._page.evaluate(frame)
        return self._page.evaluate("performance.now()") / 1000

    def _hear(self, message) -> None:
        if message.type in ("error", "warning", "assert"):
            self.errors.append(message.text)

    def run(self, script: str):
        """The value of an expression in the page."""
        return self._thread.submit(lambda: self._page.evaluate(script)).result()

    def wait(self, script: str) -> None:
        """Waits until an expression in the page is true, also in a page that comes after it."""
        self._thread.submit(self._wait, script).result()

    def _wait(self, script: str) -> None:
        # Playwright's own wait_for_function calls the page's `eval`, which our pages forbid.
        end = time.monotonic() + 30
        while not self._is_true(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within 30 s: {script}")
            self._page.wait_for_timeout(50)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self._page.evaluate(script))
        except Error as error:
            if "context was destroyed" in error.message:  # the next page is being loaded
                return False
            raise

    def picture(self, path: Path) -> None:
        """Keeps the whole page as a PNG."""
        self._thread.submit(lambda: self._page.screenshot(path=path, full_page=True)).result()

    def print_look(self) -> None:
        """Shows the page as it is printed."""
        self._thread.submit(lambda: self._page.emulate_media(media="print")).result()

    def point(self, x: float, y: float) -> None:
        """Moves the mouse to a place."""
        self._thread.submit(lambda: self._page.mouse.move(x, y)).result()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the mouse, moves it and lets go."""

        def drag() -> None:
            self._page.mouse.move(*start)
            self._page.mouse.down()
            self._page.mouse.move(*end, steps=2)
            self._page.mouse.up()

        self._thread.submit(drag).result()

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Scrolls to an element: its left, top, width and height on the screen."""
        return tuple(
            self.run(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
                " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
                " return [b.left, b.top, b.width, b.height]; })()"
            )
        )
