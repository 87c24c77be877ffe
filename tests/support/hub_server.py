"""The few routes of the Hugging Face hub that reading a model needs, over a folder of ``owner/name`` folders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.serving import serving

COMMIT = "c0ffee" * 6 + "c0ff"
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class HubServer:
    folder: Path
    port: int = 0
    body_bytes: int = 0
    ranges: int = 0
    failures: int = 0  # so many of the next requests for files are answered with an error
    unknown: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _entry(model: Path, path: Path) -> dict[str, Any]:
    place = path.relative_to(model).as_posix()
    oid = hashlib.sha1(place.encode()).hexdigest()
    if path.is_dir():
        return {"type": "directory", "path": place, "oid": oid, "size": 0}
    return {"type": "file", "path": place, "oid": oid, "size": path.stat().st_size}


def _handler(server: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if match := _API.fullmatch(path):
                self._describe(server.folder / match[1], match[2], match[4] or "")
            elif match := _FILE.fullmatch(path):
                self._send_file(server.folder / match[1] / match[3])
            else:
                self._refuse()

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            match = _API.fullmatch(unquote(urlsplit(self.path).path))
            if match is None or match[2] != "paths-info":
                self._refuse()
                return
            model = server.folder / match[1]
            paths = [model / name for name in parse_qs(body).get("paths", [])]
            self._send_json([_entry(model, path) for path in paths if path.exists()])

        def _describe(self, model: Path, route: str | None, below: str) -> None:
            folder = model / below
            if not folder.is_dir():
                self._send(404, b"", ("X-Error-Code", "EntryNotFound" if model.is_dir() else "RepoNotFound"))
            elif route == "tree":
                self._send_json([_entry(model, path) for path in sorted(folder.iterdir())])
            else:
                names = [{"rfilename": path.name} for path in sorted(model.iterdir())]
                self._send_json({"id": f"{model.parent.name}/{model.name}", "sha": COMMIT, "siblings": names})

        def _send_file(self, path: Path) -> None:
            if server.failures:
                server.failures -= 1
                self._send(503, b"")
                return
            if not path.is_file():
                self._send(404, b"", ("X-Error-Code", "EntryNotFound"))
                return
            content = path.read_bytes()
            common = ("ETag", f'"{hashlib.sha1(path.name.encode()).hexdigest()}"'), ("X-Repo-Commit", COMMIT)
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked is None:
                self._send(200, content, *common)
                return
            server.ranges += 1
            first, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
            self._send(206, content[first:stop], *common, ("Content-Range", f"bytes {first}-{stop - 1}/{len(content)}"))

        def _refuse(self) -> None:
            server.unknown.append(f"{self.command} {self.path}")
            self._send(404, b"")

        def _send_json(self, value: Any) -> None:
            self._send(200, json.dumps(value).encode(), ("Content-Type", "application/json"))

        def _send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("Content-Length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                server.body_bytes += len(body)
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


@contextmanager
def hub_server(folder: Path) -> Iterator[HubServer]:
    made = HubServer(folder)
    with serving(_handler(made)) as made.port:
        yield made
