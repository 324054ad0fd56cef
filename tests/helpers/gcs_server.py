"""A small Google Cloud Storage on 127.0.0.1 for tests: the parts of its JSON API that gcsfs and
tensorstore use.

Objects have generations, and writes may depend on them, as tensorstore's databases do. Run it by
itself with `python tests/gcs_server.py PORT`; clients find it by the variables of `variables`.
"""

import itertools
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

BUCKET = "bucket"  # the only one there is


def variables(port: int) -> dict[str, str]:
    """The environment in which the libraries talk to this server."""
    here = f"http://127.0.0.1:{port}"
    return {"STORAGE_EMULATOR_HOST": here, "TENSORSTORE_GCS_HTTP_URL": here, "NO_GCE_CHECK": "true"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        where, query = self._where()
        if where == []:
            return self._json({"kind": "storage#bucket", "name": BUCKET, "id": BUCKET})
        if where == ["o"]:
            return self._json(self._listing(query))
        with self.server.lock:
            found = self.server.objects.get(where[1]) if where else None
        if found is None:
            return self._reply(404, b"No such object")
        generation, content = found
        if query.get("ifGenerationNotMatch") == str(generation):
            return self._reply(304)
        if query.get("ifGenerationMatch", str(generation)) != str(generation):
            return self._reply(412)
        if query.get("alt") != "media":
            return self._json(_resource(where[1], generation, content))
        status, headers, size = 200, {"x-goog-generation": str(generation)}, len(content)
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = (
                (int(first), int(last or size - 1)) if first else (size - int(last), size - 1)
            )
            content, status = content[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{min(end, size - 1)}/{size}"
        self._reply(status, content, headers)

    def do_POST(self) -> None:
        where, query = self._where()
        body = self._body()
        if where != ["o"]:
            return self._reply(404)
        if "upload_id" in query:  # the next piece of an object
            with self.server.lock:
                body = self.server.pieces[query["upload_id"]] = (
                    self.server.pieces[query["upload_id"]] + body
                )
            if self.headers["Content-Range"].endswith("/*"):
                return self._reply(308, headers={"Range": f"bytes=0-{len(body) - 1}"})
        elif query["uploadType"] == "resumable":  # where the pieces go
            upload = str(next(self.server.generations))
            self.server.pieces[upload] = b""
            return self._reply(
                200,
                headers={
                    "Location": f"http://{self.headers['Host']}{self.path}&upload_id={upload}"
                },
            )
        elif query["uploadType"] == "multipart":  # the object's facts, then its content
            boundary = (
                b"--" + self.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
            )
            facts, body = (part.split(b"\n\n", 1)[1][:-1] for part in body.split(boundary)[1:3])
            query.setdefault("name", json.loads(facts)["name"])
        self._store(query, body)

    def _store(self, query: dict[str, str], content: bytes) -> None:
        name = query["name"]
        with self.server.lock:
            now = self.server.objects.get(name, (0, b""))[0]
            if query.get("ifGenerationMatch", str(now)) != str(now):
                return self._reply(412)
            generation = next(self.server.generations)
            self.server.objects[name] = (generation, content)
        self._json(_resource(name, generation, content))

    def do_DELETE(self) -> None:
        where, query = self._where()
        with self.server.lock:
            now = self.server.objects.get(where[1], (0, b""))[0]
            if query.get("ifGenerationMatch", str(now)) != str(now):
                return self._reply(412)
            found = self.server.objects.pop(where[1], None)
        self._reply(204 if found else 404)

    def _where(self) -> tuple[list[str] | None, dict[str, str]]:
        """[], ['o'] or ['o', NAME] within the bucket, None outside it; and the query."""
        url = urlsplit(self.path)
        path = (
            url.path.removeprefix("/upload").removeprefix("/download").removeprefix("/storage/v1")
        )
        parts = [unquote(part) for part in path.strip("/").split("/", 3)]
        return (parts[2:] if parts[:2] == ["b", BUCKET] else None), dict(parse_qsl(url.query))

    def _listing(self, query: dict[str, str]) -> dict:
        prefix, end = query.get("prefix", ""), query.get("delimiter")
        with self.server.lock:
            names = sorted(name for name in self.server.objects if name.startswith(prefix))
            # 0: not in a folder below
            deeper = {n: n.find(end, len(prefix)) + 1 for n in names} if end else {}
            folders = sorted({n[: deeper[n]] for n in names if deeper.get(n)})
            files = [n for n in names if not deeper.get(n)]
            return {
                "items": [_resource(n, *self.server.objects[n]) for n in files],
                "prefixes": folders,
            }

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunk(self) -> bytes:
        chunk = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return chunk

    def _json(self, value: dict) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass


def _resource(name: str, generation: int, content: bytes) -> dict:
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": BUCKET,
        "generation": str(generation),
        "metageneration": "1",
        "size": str(len(content)),
        "updated": "2024-01-01T00:00:00.000Z",
        "timeCreated": "2024-01-01T00:00:00.000Z",
    }


def serve(port: int = 0) -> ThreadingHTTPServer:
    """The server, running in a thread; its port is server_port."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    # {name: (generation, content)}, {upload: content so far}
    server.objects, server.pieces = {}, {}
    server.lock, server.generations = threading.Lock(), itertools.count(1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    serve(int(sys.argv[1]))
    threading.Event().wait()
