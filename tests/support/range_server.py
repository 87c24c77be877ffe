"""A plain web server over a folder: listings as links, files by ranges. Sparse files stay sparse."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from support.serving import serving


@dataclass
class RangeServer:
    folder: Path
    port: int = 0
    takes_ranges: bool = True
    body_bytes: int = 0
    version: str = ""  # sent as ETag
    shifted_by: int = 0  # ranges begin so many bytes later than asked for
    pause_seconds: float = 0.0  # after each byte of a body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _handler(server: RangeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet
        disable_nagle_algorithm = True

        def do(self) -> None:
            path = server.folder / self.path.strip("/")
            if path.is_dir():
                links = "".join(f'<a href="{child.name}">{child.name}</a>' for child in sorted(path.iterdir()))
                self._send(200, links.encode(), len(links))
            elif path.is_file():
                self._send_file(path)
            else:
                self.send_error(404)

        do_GET = do_HEAD = do

        def _send_file(self, path: Path) -> None:
            size = path.stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked is None or not server.takes_ranges:
                self._send(200, b"" if self.command == "HEAD" else path.read_bytes(), size)
                return
            first, last = int(asked[1]) + server.shifted_by, min(int(asked[2]) + server.shifted_by, size - 1)
            with path.open("rb") as file:
                file.seek(first)
                body = file.read(last + 1 - first)
            self._send(206, body, len(body), ("Content-Range", f"bytes {first}-{last}/{size}"))

        def _send(self, status: int, body: bytes, length: int, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            for name, value in headers:
                self.send_header(name, value)
            if server.version:
                self.send_header("ETag", server.version)
            self.end_headers()
            if self.command != "GET":
                return
            server.body_bytes += len(body)
            if not server.pause_seconds:
                self.wfile.write(body)
                return
            with suppress(ConnectionError):
                for number in range(len(body)):
                    self.wfile.write(body[number : number + 1])
                    self.wfile.flush()
                    time.sleep(server.pause_seconds)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


@contextmanager
def range_server(folder: Path) -> Iterator[RangeServer]:
    made = RangeServer(folder)
    with serving(_handler(made)) as made.port:
        yield made
