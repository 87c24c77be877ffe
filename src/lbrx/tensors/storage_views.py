"""Storages composed of pieces of other storages. Their bytes are read on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.tensors.storage import Bytes, MmapStorage, ReadStorage, Storage


class JoinedStorage(ReadStorage):
    """Several storages concatenated.

    >>> from lbrx.tensors.storage import CpuStorage
    >>> parts = [CpuStorage(np.array(values, np.uint8)) for values in ([1, 2], [3, 4, 5])]
    >>> JoinedStorage(parts).read_at(1, 3).tolist()
    [2, 3, 4]
    """

    __slots__ = ("_parts", "_starts", "nbytes")

    def __init__(self, parts: Sequence[Storage]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(part.nbytes for part in parts)], dtype=np.int64)
        self.nbytes = int(self._starts[-1])

    def read_into(self, offset: int, buffer: Bytes) -> None:
        done = 0
        while done < buffer.size:
            number = int(np.searchsorted(self._starts, offset + done, side="right")) - 1
            within = offset + done - int(self._starts[number])
            count = min(self._parts[number].nbytes - within, buffer.size - done)
            self._parts[number].read_into(within, buffer[done : done + count])
            done += count


class GatheredStorage(ReadStorage):
    """Rows of another storage in another order.

    >>> from lbrx.tensors.storage import CpuStorage
    >>> rows = CpuStorage(np.arange(6, dtype=np.uint8))
    >>> GatheredStorage(rows, 2, np.array([2, 0, 1])).read_at(1, 4).tolist()
    [5, 0, 1, 2]
    """

    __slots__ = ("_inner", "_row_bytes", "_rows", "nbytes")

    def __init__(self, inner: Storage, row_bytes: int, rows: npt.NDArray[np.int64]) -> None:
        self._inner = inner
        self._row_bytes = row_bytes
        self._rows = rows
        self.nbytes = row_bytes * int(rows.size)

    def read_into(self, offset: int, buffer: Bytes) -> None:
        done = 0
        while done < buffer.size:
            row, within = divmod(offset + done, self._row_bytes)
            count = min(self._row_bytes - within, buffer.size - done)
            start = int(self._rows[row]) * self._row_bytes + within
            self._inner.read_into(start, buffer[done : done + count])
            done += count


def storage_piece(storage: Storage, offset: int, nbytes: int) -> Storage:
    """Return a run of bytes of a storage. For a file, it is a range of the same file.

    >>> from lbrx.tensors.storage import CpuStorage
    >>> storage_piece(CpuStorage(np.arange(6, dtype=np.uint8)), 4, 2).read_at(0, 2).tolist()
    [4, 5]
    """
    if isinstance(storage, MmapStorage):
        return MmapStorage(storage.file, storage.offset + offset, nbytes)
    return _Piece(storage, offset, nbytes)


class _Piece:
    __slots__ = ("_inner", "_offset", "nbytes")
    device = "cpu"

    def __init__(self, inner: Storage, offset: int, nbytes: int) -> None:
        self._inner, self._offset, self.nbytes = inner, offset, nbytes

    @property
    def address(self) -> int | None:
        address = self._inner.address
        return None if address is None else address + self._offset

    def read_at(self, offset: int, length: int) -> Bytes:
        return self._inner.read_at(self._offset + offset, length)

    def read_into(self, offset: int, buffer: Bytes) -> None:
        self._inner.read_into(self._offset + offset, buffer)
