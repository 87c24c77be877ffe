"""Memory of results, used again.

A fresh large array costs a page fault, and a cleared page, for every page that is written. Results therefore come from
a pool: when the last view of one is gone, its memory waits for the next result of about that size.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.memory.budget import budget

Bytes = npt.NDArray[np.uint8]
SMALLEST_POOLED_BYTES = 1 << 20
ALIGNMENT = 64  # a vector that crosses a cache line is stored in two steps


class _Lease:
    """Owns a block while a result lives, as the array's base; gives it back when the array and its views are gone."""

    __slots__ = ("__array_interface__", "_block", "_pool")

    def __init__(self, block: Bytes, nbytes: int, pool: ResultPool) -> None:
        self._block = block
        self._pool = pool
        address, _ = block.__array_interface__["data"]
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (-(-address // ALIGNMENT) * ALIGNMENT, False),
        }

    def __del__(self) -> None:
        self._pool.give_back(self._block)


class ResultPool:
    """Blocks of memory by size class, up to a number of bytes that wait."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waiting_bytes = 0
        self._blocks: dict[int, list[Bytes]] = {}
        self._lock = threading.RLock()  # a collection of garbage may give back while a block is taken

    def take(self, nbytes: int) -> Bytes:
        """An uninitialised array of bytes.

        >>> pool = ResultPool(1 << 30)
        >>> first = pool.take(2 << 20)
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.take(2 << 20).ctypes.data == address
        True
        """
        if nbytes < SMALLEST_POOLED_BYTES:
            return np.empty(nbytes, np.uint8)
        capacity = _size_class(nbytes)
        with self._lock:
            waiting = self._blocks.get(capacity)
            block = waiting.pop() if waiting else None
            if block is not None:
                self.waiting_bytes -= capacity
        return np.asarray(_Lease(np.empty(capacity, np.uint8) if block is None else block, nbytes, self))

    def give_back(self, block: Bytes) -> None:
        with self._lock:
            if self.waiting_bytes + block.size <= self.limit_bytes:
                self._blocks.setdefault(block.size, []).append(block)
                self.waiting_bytes += block.size

    def trim(self) -> int:
        """Free what waits; returns how many bytes that were."""
        with self._lock:
            freed, self.waiting_bytes = self.waiting_bytes, 0
            self._blocks.clear()
        return freed


def _size_class(nbytes: int) -> int:
    """At most an eighth more than what is asked for, with room to begin on a boundary."""
    step = 1 << max(nbytes.bit_length() - 4, 16)
    return -(-(nbytes + ALIGNMENT) // step) * step


_pool: ResultPool | None = None


def result_pool() -> ResultPool:
    """The pool of the process. What waits in it is at most an eighth of the budget."""
    global _pool
    if _pool is None:
        _pool = ResultPool(budget().limit_bytes // 8)
    return _pool


def _forget() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)
