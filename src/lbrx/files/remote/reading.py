"""Read remote files by ranges: blocks are fetched in parallel and ahead, checked for length, and cached."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from lbrx.errors import FileError, TruncatedError
from lbrx.files.remote.filesystem import RemoteState, attempt, filesystem, state_of
from lbrx.files.remote.paths import RangedSource, RemotePath
from lbrx.files.remote.settings import remote_settings
from lbrx.memory.cache import ByteLRU
from lbrx.tensors.open_file import Bytes, check_range
from lbrx.tensors.storage import ReadStorage

HEAD_BYTES = 16 << 10  # the first read of a header; enough for most shards of a large model
HEADS_BYTES = 16 << 20  # all cached headers together
# Schemes whose open files check the version on each read, check the range, or would read megabytes ahead.
_BY_HANDLE = ("s3", "hf")

BlockKey = tuple[str, str, int]


class RemoteFile:
    """A remote file with known size and version; safe to read from several threads.

    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe_file("/doctest/a", b"0123456789")
    >>> RemoteFile(RemotePath("memory://doctest/a")).fetch(3, 4)
    b'3456'
    """

    def __init__(self, path: RemotePath, state: RemoteState | None = None) -> None:
        self.path = path
        self.state = state_of(path) if state is None else state
        self.file_bytes = self.state.nbytes
        self._handles: list[Any] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, _memo: object) -> RemoteFile:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self.path, self.state)

    def fetch(self, offset: int, length: int) -> bytes:
        """Read exactly these bytes with one request, retried on temporary errors."""
        self._check(offset, length)
        if not length:
            return b""
        return attempt(
            self.path, f"be read from byte {offset} to {offset + length}", lambda: self._once(offset, length)
        )

    def read_into(self, offset: int, buffer: Bytes, end: int | None = None) -> None:
        """Fill a buffer from the blocks of the file; blocks after it and before ``end`` are prefetched."""
        self._check(offset, buffer.size)
        if buffer.size:
            _blocks(remote_settings.cache_bytes, remote_settings.transfers).read_into(
                self, offset, buffer, min(end or self.file_bytes, self.file_bytes)
            )

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.file_bytes:
            raise TruncatedError(
                f"{self.path}: bytes {offset} to {offset + length} were requested, but the file has {self.file_bytes}"
            )

    def _once(self, offset: int, length: int) -> bytes:
        if self.path.scheme in ("http", "https"):
            from lbrx.files.remote.http_ranges import fetch_range

            data = fetch_range(self.path, self.state, offset, length)
        elif self.path.scheme in _BY_HANDLE:
            data = self._read_handle(offset, length)
        else:
            data = filesystem(self.path.scheme).cat_file(self.path.url, offset, offset + length)
        if len(data) != length:
            raise OSError(f"received {len(data)} bytes instead of {length}")
        return data

    def _read_handle(self, offset: int, length: int) -> bytes:
        handle = self._taken_handle()
        handle.seek(offset)
        data: bytes = handle.read(length)
        with self._lock:  # a failed handle is not reused
            self._handles.append(handle)
        return data

    def _taken_handle(self) -> Any:
        with self._lock:
            if self._handles:
                return self._handles.pop()
        handle = filesystem(self.path.scheme).open(self.path.url, "rb", cache_type="none", block_size=1 << 20)
        version = getattr(handle, "details", {}).get("ETag", self.state.version)
        if handle.size != self.file_bytes or (self.path.scheme == "s3" and version != self.state.version):
            raise FileError(f"{self.path}: was changed while it was being read; run the command again")
        return handle


class _Blocks:
    """The blocks of all remote files, and the threads that prefetch them."""

    def __init__(self, cache_bytes: int, transfers: int) -> None:
        self._cache: ByteLRU[BlockKey, bytes] = ByteLRU(cache_bytes)
        self._pool = ThreadPoolExecutor(transfers, "lbrx-remote")
        self._asked: set[BlockKey] = set()
        self._lock = threading.Lock()

    def read_into(self, file: RemoteFile, offset: int, buffer: Bytes, end: int) -> None:
        size = remote_settings.block_bytes
        first, last = offset // size, (offset + buffer.size - 1) // size
        ahead = min(last + remote_settings.ahead_blocks, (end - 1) // size)
        for number in range(first + 1, ahead + 1):
            self._fetch_ahead(file, number)
        for number in range(first, last + 1):
            block = self._block(file, number)
            start = number * size
            low, high = max(offset, start), min(offset + buffer.size, start + len(block))
            buffer[low - offset : high - offset] = np.frombuffer(block, np.uint8)[low - start : high - start]

    def _block(self, file: RemoteFile, number: int) -> bytes:
        size = remote_settings.block_bytes
        start = number * size
        length = min(size, file.file_bytes - start)
        return self._cache.get_or_create(_key(file, number), lambda: file.fetch(start, length))

    def _fetch_ahead(self, file: RemoteFile, number: int) -> None:
        key = _key(file, number)
        with self._lock:
            if key in self._asked or key in self._cache:
                return
            self._asked.add(key)

        def fetch() -> None:
            try:
                self._block(file, number)
            finally:
                with self._lock:
                    self._asked.discard(key)

        self._pool.submit(fetch)  # if it fails, the reader of the block retries and gets the error


def _key(file: RemoteFile, number: int) -> BlockKey:
    return f"{file.path} {remote_settings.block_bytes}", file.state.version, number


@cache
def _blocks(cache_bytes: int, transfers: int) -> _Blocks:
    return _Blocks(cache_bytes, transfers)


class RemoteReader(RangedSource):
    """A remote file for header readers: small reads near its beginning; the first bytes are cached."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__()
        self._file = RemoteFile(path)
        self._own_head: bytes | None = None
        self.nbytes = self._file.file_bytes

    def read_range(self, offset: int, count: int) -> bytes:
        head = self.head() if offset < HEAD_BYTES else b""
        known = head[offset : offset + count]
        return known + self._file.fetch(offset + len(known), count - len(known))

    def head(self) -> bytes:
        """Return the first bytes of the file. If the service reports versions, other readers share the cached bytes."""
        if self._own_head is None:
            state = self._file.state
            if state.version:
                key = (str(self._file.path), state.version, state.nbytes)
                self._own_head = _heads.get_or_create(key, self._fetch_head)
            else:
                self._own_head = self._fetch_head()
        return self._own_head

    def _fetch_head(self) -> bytes:
        return self._file.fetch(0, min(HEAD_BYTES, self.nbytes))


_heads: ByteLRU[BlockKey, bytes] = ByteLRU(HEADS_BYTES)


def fetch_heads(paths: Sequence[RemotePath]) -> None:
    """Fetch the beginnings of files in parallel into the cache. Errors are left to the readers of the files."""

    def fetch(path: RemotePath) -> None:
        if path.exists():
            RemoteReader(path).head()

    with ThreadPoolExecutor(remote_settings.transfers, "lbrx-headers") as pool:
        for done in [pool.submit(fetch, path) for path in paths]:
            done.result()


class RemoteStorage(ReadStorage):
    """A range of bytes of a remote file: it has no address and is read by windows."""

    __slots__ = ("_offset", "file", "nbytes")

    def __init__(self, file: RemoteFile, offset: int, nbytes: int) -> None:
        check_range(file.path, file.file_bytes, offset, nbytes)
        self.file = file
        self.nbytes = nbytes
        self._offset = offset

    def read_into(self, offset: int, buffer: Bytes) -> None:
        if offset < 0 or offset + buffer.size > self.nbytes:
            raise FileError(
                f"{self.file.path}: bytes {offset} to {offset + buffer.size} are outside a storage of {self.nbytes}"
            )
        self.file.read_into(self._offset + offset, buffer, self._offset + self.nbytes)
