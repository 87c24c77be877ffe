"""Storages of files whose tensors may be kept in a cache: decoded, in memory, or on a device.

The engine asks the cache when it binds a leaf of a pass (`lbrx.engine.cached`). A file that cannot be mapped also reads
through it. The bytes of results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from lbrx.memory.tensor_cache import TensorCache
from lbrx.tensors.open_file import Bytes, OpenFile
from lbrx.tensors.storage import CpuStorage, MmapStorage, ReadStorage, Storage


class Cached:
    """A storage with a cache. ``key`` identifies its bytes; ``uncached`` has the same bytes without the cache."""

    __slots__ = ()
    cache: TensorCache
    key: Hashable
    uncached: Storage


class CachedMmapStorage(MmapStorage, Cached):
    """A run of bytes of a mapped file with a cache for what is decoded or copied from it."""

    __slots__ = ("cache",)
    cache: TensorCache

    def __init__(self, file: OpenFile, offset: int, nbytes: int, cache: TensorCache) -> None:
        super().__init__(file, offset, nbytes)
        self.cache = cache

    @property
    def key(self) -> Hashable:  # type: ignore[override]
        return self.file.identity, self._offset, self.nbytes

    @property
    def uncached(self) -> MmapStorage:  # type: ignore[override]
        return MmapStorage(self.file, self._offset, self.nbytes)

    def piece(self, offset: int, nbytes: int) -> CachedMmapStorage:
        """Return a range of the same file. It is cached as a tensor of its own."""
        return CachedMmapStorage(self.file, super().piece(offset, nbytes).offset, nbytes, self.cache)

    def __reduce__(self) -> tuple[object, ...]:
        return MmapStorage, (self.file, self._offset, self.nbytes)  # another process has its own cache


class CachedReadStorage(ReadStorage, Cached):
    """A storage without an address, of which a cache keeps the bytes once they were read completely.

    >>> from lbrx.tensors.storage_views import JoinedStorage
    >>> slow = JoinedStorage([CpuStorage(np.arange(4, dtype=np.uint8))])
    >>> storage = CachedReadStorage(slow, "name", TensorCache("1MiB"))
    >>> [storage.read_at(1, 2).tolist() for _ in range(4)][-1], storage.cache.statistics().held_bytes
    ([1, 2], 4)
    """

    __slots__ = ("cache", "key", "nbytes", "uncached")
    cache: TensorCache

    def __init__(self, inner: Storage, key: Hashable, cache: TensorCache) -> None:
        self.uncached, self.key, self.cache = inner, key, cache
        self.nbytes = inner.nbytes

    def read_into(self, offset: int, buffer: Bytes) -> None:
        share = buffer.size / max(self.nbytes, 1)
        kept = self.cache.get_or_create(("bytes", self.key), self.nbytes, share, self._whole)
        (self.uncached if kept is None else kept).read_into(offset, buffer)

    def _whole(self) -> CpuStorage:
        whole = np.empty(self.nbytes, np.uint8)
        self.uncached.read_into(0, whole)
        return CpuStorage(whole)

    def piece(self, offset: int, nbytes: int) -> CachedReadStorage:
        """Return a part of the bytes, which is cached as a tensor of its own."""
        return CachedReadStorage(self.uncached.piece(offset, nbytes), (self.key, offset, nbytes), self.cache)

    def __reduce__(self) -> tuple[object, ...]:
        return _uncached, (self.uncached,)  # another process has its own cache


def _uncached(storage: Storage) -> Storage:
    return storage
