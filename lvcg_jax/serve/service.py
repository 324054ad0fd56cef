"""The HTTP service: its routes, its limits, and what becomes of a mistake.

    GET  /         a page to drop a file on
    POST /ecg      a file -> JSON, or the HTML report for a browser or with answer=report
    GET  /health   whether it is there
    GET  /metrics  counters, as Prometheus reads them

One thread does all the work, request after request. At most `at_once` requests hold a file at a
time, the others are told to come again. Nothing of a request is kept, and nothing of it is logged.
"""

import asyncio
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from data_prep.base.errors import InputError
from data_prep.base.memory import used_memory
from data_prep.formats.content import READ_HERE
from lvcg_jax import __version__
from lvcg_jax.report.page import make_templates
from lvcg_jax.serve.asked import Asked
from lvcg_jax.serve.upload import fields_of, receive, store

HERE = Path(__file__).parent
ASSETS = {"start.js": "text/javascript", "start.css": "text/css"}
UPLOAD_SECONDS = 60.0  # for a client to send its file
# Nothing is fetched from elsewhere, nothing is sent elsewhere, and nobody shows it in a frame.
COMMON_POLICY = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
START_POLICY = f"{COMMON_POLICY}; script-src 'self'; style-src 'self' 'unsafe-inline'"
REPORT_POLICY = f"{COMMON_POLICY}; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    upload: int = 2**24  # bytes of a request
    at_once: int = 32  # requests that hold a file


class Service:
    """The routes, with the state that they share; `app` is what a server runs."""

    def __init__(
        self,
        answer: Callable[[Path, Asked], dict | str],
        checkpoint: str,
        limits: Limits | None = None,
    ):
        """Answers by a function of a file and of what is asked, with weights of this name."""
        self._find, self.checkpoint, self.limits = answer, checkpoint, limits or Limits()
        self._templates: Environment = make_templates(HERE / "templates")
        self._worker = ThreadPoolExecutor(1, "lvcg")
        self._holding = 0
        self._done: Counter[int] = Counter()  # answers by status
        self._seconds = 0.0  # of work
        self._since = time.monotonic()

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/", self.start),
            Route("/ecg", self.ecg, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/favicon.ico", lambda request: Response(status_code=204)),
            *(Route(f"/{name}", _asset(name, kind)) for name, kind in ASSETS.items()),
        ]
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._refused},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._worker.shutdown(wait=True, cancel_futures=True)

    async def start(self, request: Request) -> Response:
        """The page to drop a file on."""
        return self._start_page(200, "")

    async def health(self, request: Request) -> Response:
        facts = {"status": "ok", "checkpoint": self.checkpoint}
        return JSONResponse(facts | {"version": __version__}, headers=HEADERS)

    async def metrics(self, request: Request) -> Response:
        """Counters and gauges in Prometheus's text format."""
        lines = [
            "# TYPE lvcg_answers_total counter",
            *(f'lvcg_answers_total{{status="{k}"}} {n}' for k, n in sorted(self._done.items())),
            "# TYPE lvcg_work_seconds_total counter",
            f"lvcg_work_seconds_total {self._seconds:.3f}",
            "# TYPE lvcg_requests_held gauge",
            f"lvcg_requests_held {self._holding}",
            "# TYPE lvcg_memory_bytes gauge",
            f"lvcg_memory_bytes {used_memory() * 2**30:.0f}",
            "# TYPE lvcg_up_seconds gauge",
            f"lvcg_up_seconds {time.monotonic() - self._since:.0f}",
        ]
        return PlainTextResponse("\n".join([*lines, ""]), headers=HEADERS)

    async def ecg(self, request: Request) -> Response:
        """The answer for a file, counted."""
        if self._holding >= self.limits.at_once:
            busy = HTTPException(503, "too many requests at once: try again in a few seconds")
            return self._refused(request, busy)
        self._holding += 1
        try:
            response = await self._answer(request)
        except HTTPException as error:
            response = self._refused(request, error)
        finally:
            self._holding -= 1
        self._done[response.status_code] += 1
        return response

    async def _answer(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                form = await receive(request, self.limits.upload)
        except TimeoutError:
            raise HTTPException(408, f"the upload took over {UPLOAD_SECONDS:g} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client left before the upload was complete") from None
        try:
            default = {"answer": "report"} if _wants_page(request) else {}
            asked = Asked.from_fields(default | dict(request.query_params) | fields_of(form))
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._worker, self._work, form, asked)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        finally:
            await form.close()
        if isinstance(found, str):
            return HTMLResponse(found, headers=HEADERS | {"Content-Security-Policy": REPORT_POLICY})
        return JSONResponse(found, headers=HEADERS)

    def _work(self, form: FormData, asked: Asked) -> dict | str:
        """In the thread of the model: the file goes to a private folder, which is then deleted."""
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lvcg-serve-") as scratch:
            try:
                return self._find(store(form, Path(scratch)), asked)
            except InputError as error:
                # the place of the file is nothing to a client
                raise InputError(str(error).replace(f"{scratch}/", "")) from None
            except Exception:
                logging.exception("a request failed")
                raise HTTPException(
                    500, "the service failed on this file, and its log says where"
                ) from None
            finally:
                self._seconds += time.monotonic() - begin

    def _refused(self, request: Request, error: HTTPException) -> Response:
        """One line on what is wrong: on the start page for a browser, as JSON for others."""
        if _wants_page(request):
            return self._start_page(error.status_code, error.detail)
        more = {"Retry-After": "5"} if error.status_code == 503 else dict(error.headers or {})
        said = {"error": error.detail}
        return JSONResponse(said, error.status_code, headers=HEADERS | more)

    def _start_page(self, status: int, mistake: str) -> Response:
        text = self._templates.get_template("start.html").render(
            title="ECG reports",
            subtitle=f"lvcg serve, model {self.checkpoint}",
            mistake=mistake,
            largest=self.limits.upload,
            formats=READ_HERE,
        )
        return HTMLResponse(text, status, HEADERS | {"Content-Security-Policy": START_POLICY})


def _wants_page(request: Request) -> bool:
    """A browser asks for text/html, a program rarely does."""
    return "text/html" in request.headers.get("accept", "")


def _asset(name: str, kind: str):
    content = (HERE / "assets" / name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return send
