"""Which paths are remote."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lbrx.errors import FileError
from lbrx.files.remote.filesystem import _options, forget_listings, state_of
from lbrx.files.remote.paths import SCHEMES, RemotePath, as_path, is_remote


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_local_file_may_be_named_like_a_scheme(scheme: str) -> None:
    for name in (scheme, f"{scheme}:"):
        assert not is_remote(name)
        assert not is_remote(Path(name))
        assert as_path(Path(name)) == Path(name)
    assert is_remote(Path(f"{scheme}:") / "bucket")


@pytest.mark.parametrize(
    ("url", "forgotten"),
    [
        ("s3://bucket/models/a", ["s3://bucket/models/a", "s3://bucket/models"]),
        ("hf://owner/name/sub", ["hf://owner/name/sub", "hf://owner/name"]),
        ("hf://owner/name", ["hf://owner/name"]),  # the hub has no listing of an owner
        ("memory://models/a", []),
    ],
)
def test_listings_that_are_forgotten(url: str, forgotten: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    remote = SimpleNamespace(invalidate_cache=asked.append)
    monkeypatch.setattr("lbrx.files.remote.filesystem.filesystem", lambda _scheme: remote)
    path = as_path(url)
    assert isinstance(path, RemotePath)
    forget_listings(path)
    assert asked == forgotten


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_timeouts_of_web_servers(scheme: str) -> None:
    timeout = _options(scheme, 5.0)["client_kwargs"]["timeout"]
    assert (timeout.sock_connect, timeout.sock_read, timeout.total) == (5.0, 5.0, None)


def test_timeouts_of_buckets() -> None:
    settings = _options("s3", 5.0)["config_kwargs"]
    assert (settings["connect_timeout"], settings["read_timeout"]) == (5.0, 5.0)
    assert _options("memory", 5.0) == {}


@pytest.mark.parametrize("described", [{}, {"type": None, "size": 3}, "file"])
def test_a_service_that_does_not_say_what_a_path_is(described: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = SimpleNamespace(info=lambda _url: described)
    monkeypatch.setattr("lbrx.files.remote.filesystem.filesystem", lambda _scheme: remote)
    path = as_path("s3://bucket/model.safetensors")
    assert isinstance(path, RemotePath)
    with pytest.raises(FileError, match="expected a type and a size"):
        state_of(path)
