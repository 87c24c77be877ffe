"""Web servers that change a file, send another range, or send a byte now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FileError
from lbrx.files.remote import using_remote
from lbrx.files.remote.paths import RemotePath
from lbrx.files.remote.reading import RemoteFile
from support.range_server import RangeServer, range_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 16)
    with range_server(tmp_path) as made, using_remote(timeout_seconds=0.5, pause_seconds=0.01, attempts=2):
        yield made


def test_a_file_that_changes_between_two_ranges(server: RangeServer) -> None:
    server.version = '"one"'
    file = RemoteFile(RemotePath(f"{server.url}/a.bin"))
    assert file.fetch(1, 3) == b"\x01\x02\x03"
    server.version = '"two"'
    with pytest.raises(FileError, match="was changed while it was being read"):
        file.fetch(8, 4)


def test_a_tensor_is_not_half_old_and_half_new(server: RangeServer, tmp_path: Path) -> None:
    server.version = '"one"'
    lbrx.save(tmp_path / "b.safetensors", {"w": lbrx.full((1 << 14,), 1.0, "f32")})
    tensor = lbrx.open(f"{server.url}/b.safetensors")["w"]
    server.version = '"two"'
    with pytest.raises(FileError, match="was changed while it was being read"):
        np.asarray(tensor.numpy())


def test_another_range_than_asked_for(server: RangeServer) -> None:
    file = RemoteFile(RemotePath(f"{server.url}/a.bin"))
    server.shifted_by = 1
    with pytest.raises(FileError, match="received bytes 9 to 12 instead of 8 to 11"):
        file.fetch(8, 4)


def test_a_server_that_sends_a_byte_now_and_then(server: RangeServer) -> None:
    file = RemoteFile(RemotePath(f"{server.url}/a.bin"))
    server.pause_seconds = 0.1
    with using_remote(timeout_seconds=0.25, attempts=1), pytest.raises(FileError, match="1 attempts failed"):
        file.fetch(0, 4000)
