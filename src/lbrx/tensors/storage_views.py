"""Storages composed of pieces of other storages. Their bytes are read on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.tensors.open_file import Bytes
from lbrx.tensors.storage import ReadStorage, Storage


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
