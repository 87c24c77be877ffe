"""What an upload needs of the Hugging Face hub: repositories, branches, LFS objects and commits, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from support.serving import serving

TOKEN = "hf_of_a_test"
_READ_ONLY = "hf_read_only"
_MODEL = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit|branch|revision)/([^/]+))?")
_BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
_OBJECT = re.compile(r"/lfs/([0-9a-f]{64})")


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[str] = field(default_factory=list)


@dataclass
class UploadServer:
    port: int = 0
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # of LFS, by their SHA-256
    received: list[str] = field(default_factory=list)  # names of objects in the order of their upload
    refused_objects: int = 0  # so many uploads of objects succeed before all others fail; 0: none fails
    unknown: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _handler(server: UploadServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            match = _MODEL.fullmatch(self._path())
            if match is None or not self._may(write=False):
                return self._refuse(match is None)
            repository = server.repositories.get(match[1])
            if repository is None:
                return self._send(404, {}, ("X-Error-Code", "RepoNotFound"))
            return self._send(200, {"id": match[1], "sha": "c0ffee", "private": repository.private, "siblings": []})

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self._body()
            path = self._path()
            if path == "/api/validate-yaml":
                return self._send(200, {"errors": [], "warnings": []})
            if not self._may(write=True):
                return None
            if path == "/api/repos/create":
                return self._create(json.loads(body))
            if match := _BATCH.fullmatch(path):
                return self._batch(json.loads(body))
            if match := _MODEL.fullmatch(path):
                return self._change(match[1], str(match[2]), unquote(match[3]), body)
            return self._refuse(True)

        def do_PUT(self) -> None:
            body, match = self._body(), _OBJECT.fullmatch(self._path())
            assert match is not None
            if server.refused_objects and len(server.received) >= server.refused_objects:
                return self._send(400, {"error": "the disk of the server is full"})
            assert hashlib.sha256(body).hexdigest() == match[1]
            server.objects[match[1]] = body
            server.received.append(match[1])
            return self._send(200, {})

        def _create(self, given: dict[str, Any]) -> None:
            name = f"{given['organization']}/{given['name']}"
            if name in server.repositories:
                return self._send(409, {"error": "exists"})
            server.repositories[name] = Repository(given.get("visibility") == "private" or bool(given.get("private")))
            return self._send(200, {"url": f"{server.url}/{name}", "name": name})

        def _batch(self, given: dict[str, Any]) -> None:
            objects = []
            for each in given["objects"]:
                entry = {"oid": each["oid"], "size": each["size"]}
                if each["oid"] not in server.objects:
                    entry["actions"] = {"upload": {"href": f"{server.url}/lfs/{each['oid']}"}}
                objects.append(entry)
            self._send(200, {"transfer": "basic", "objects": objects})

        def _change(self, name: str, route: str, revision: str, body: bytes) -> None:
            repository = server.repositories[name]
            if route == "branch":
                repository.branches.setdefault(revision, dict(repository.branches["main"]))
                return self._send(200, {})
            if revision not in repository.branches:
                return self._send(404, {}, ("X-Error-Code", "RevisionNotFound"))
            files = repository.branches[revision]
            if route == "preupload":
                modes = [_mode(file, files) for file in json.loads(body)["files"]]
                return self._send(200, {"files": modes})
            rows = [json.loads(line) for line in body.splitlines()]
            for row in rows[1:]:
                value = row["value"]
                is_large = row["key"] == "lfsFile"
                content = server.objects[value["oid"]] if is_large else base64.b64decode(value["content"])
                files[value["path"]] = content
            repository.commits.append(rows[0]["value"]["summary"])
            return self._send(
                200, {"commitUrl": f"{server.url}/{name}/commit/{len(repository.commits)}", "commitOid": "c0"}
            )

        def _may(self, *, write: bool) -> bool:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token == TOKEN or (token == _READ_ONLY and not write):
                return True
            self._send(403 if token == _READ_ONLY else 401, {"error": "Invalid credentials"})
            return False

        def _path(self) -> str:
            return urlsplit(self.path).path

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _refuse(self, is_unknown: bool) -> None:
            if is_unknown:
                server.unknown.append(f"{self.command} {self.path}")
                self._send(404, {})

        def _send(self, status: int, value: Any, *headers: tuple[str, str]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            for name, text in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


def _mode(file: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
    is_large = file["path"].endswith((".gguf", ".safetensors", ".png"))
    known, oid = files.get(file["path"]), None
    if known is not None:
        oid = hashlib.sha256(known).hexdigest() if is_large else _git_name(known)
    mode = "lfs" if is_large else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}


def _git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def upload_server() -> Iterator[UploadServer]:
    made = UploadServer()
    with serving(_handler(made)) as made.port:
        yield made
