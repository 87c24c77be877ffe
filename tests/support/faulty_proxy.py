"""An HTTP proxy in front of a server, which counts what it passes on and makes the faults it is told to make."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from support.serving import serving

ERROR = "error"  # status 500
CUT = "cut"  # the length of the whole, half of the body, and the connection closed
SHORT = "short"  # half of the body, and a length that says so
HANG = "hang"  # no answer until the client goes away
STALL = "stall"  # headers and half of the body, then nothing until the client goes away
_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length")
Matcher = Callable[[str, str], bool]


@dataclass
class Fault:
    """A kind of fault for requests that match, ``times`` times."""

    kind: str
    matches: Matcher
    times: int


@dataclass
class FaultyProxy:
    """``body_bytes`` were sent as answers; ``requests`` has method and path of each request."""

    target_port: int
    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    body_bytes: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def inject(self, kind: str, times: int, *, method: str = "GET", path_part: str = "") -> None:
        self.faults.append(Fault(kind, lambda asked, path: asked == method and path_part in path, times))

    def reset(self) -> None:
        """No faults, nothing counted, and whoever is stalled goes on."""
        with self.lock:
            self.faults, self.requests, self.body_bytes = [], [], 0
            stalled, self.released = self.released, threading.Event()
        stalled.set()

    def begin(self, method: str, path: str) -> str | None:
        with self.lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.times and fault.matches(method, path):
                    fault.times -= 1
                    return fault.kind
        return None

    def count(self, nbytes: int) -> None:
        with self.lock:
            self.body_bytes += nbytes


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet
        disable_nagle_algorithm = True

        def do(self) -> None:
            self.wfile.flush()  # of the 100 that a client may wait for
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            fault = proxy.begin(self.command, self.path)
            self._released = proxy.released
            if fault == ERROR:
                self.send_error(500)
                return
            if fault == HANG:
                self._released.wait()
                self.close_connection = True
                return
            connection = http.client.HTTPConnection("127.0.0.1", proxy.target_port)
            connection.request(self.command, self.path, sent, dict(self.headers.items()))
            answer = connection.getresponse()
            body = answer.read()
            self._reply(answer, body, fault)
            connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do

        def _reply(self, answer: http.client.HTTPResponse, body: bytes, fault: str | None) -> None:
            length = answer.headers["Content-Length"] if self.command == "HEAD" else len(body)
            half = body[: len(body) // 2]
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(half) if fault == SHORT else length))
            self.end_headers()
            content = body if fault is None else half
            self.wfile.write(content)
            self.wfile.flush()
            proxy.count(len(content))
            if fault == STALL:
                self._released.wait()
            if fault in (CUT, STALL):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


@contextmanager
def faulty_proxy(target_port: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(target_port)
    with serving(_handler(proxy)) as proxy.port:
        try:
            yield proxy
        finally:
            proxy.released.set()
