"""Buffers that are used again: scratch of passes, and memory of results.

Scratch is borrowed for one chunk of a pass and given back when the chunk is done. A fresh large array costs a page
fault, and a cleared page, for every page that is written. Results therefore are views of blocks that a pool knows: a
block that nobody else refers to any more is free for the next result of about its size.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from lbrx.memory.arena import Bytes, MemoryArena, size_class
from lbrx.memory.budget import budget

_arena: MemoryArena | None = None
_lock = threading.Lock()


def scratch_arena() -> MemoryArena:
    """The pool that all passes share; it counts against the process's budget."""
    global _arena
    if _arena is None:
        with _lock:  # two threads that ask first must get the same one
            if _arena is None:
                _arena = MemoryArena(strategy="arena", budget=budget())
    return _arena


def _forget() -> None:
    global _arena, _lock
    _arena, _lock = None, threading.Lock()


@contextmanager
def borrowing() -> Iterator[Callable[[int], Bytes]]:
    """A function that lends buffers; all of them go back to the pool at the end of the ``with`` block.

    >>> with borrowing() as borrow:
    ...     borrow(100).size
    100
    """
    arena = scratch_arena()
    lent: list[Bytes] = []

    def borrow(nbytes: int) -> Bytes:
        buffer = arena.get(nbytes)
        lent.append(buffer)
        return buffer

    try:
        yield borrow
    finally:
        for buffer in lent:
            arena.put(buffer)


os.register_at_fork(after_in_child=_forget)


# -- results ----------------------------------------------------------------------------------------------------------

SMALLEST_POOLED_BYTES = 1 << 20
ALIGNMENT = 64  # a vector that crosses a cache line is stored in two steps


def _references(blocks: list[Bytes], number: int) -> int:
    """How often a block of a list is referred to, the list and this call included."""
    return sys.getrefcount(blocks[number])


_REFERENCES_OF_A_FREE_BLOCK = _references([np.empty(1, np.uint8)], 0)  # Python's versions count differently


class ResultPool:
    """Blocks of memory by size class, up to a number of bytes; older blocks are forgotten for newer ones."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.known_bytes = 0
        self._blocks: dict[int, list[Bytes]] = {}
        self._ages: deque[int] = deque()  # the size classes of the blocks, the oldest first
        self._lock = threading.RLock()  # a collection of garbage may come back here

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
        capacity = size_class(nbytes + ALIGNMENT, classes=8)
        with self._lock:
            known = self._blocks.get(capacity, [])
            for number in range(len(known)):
                if _references(known, number) == _REFERENCES_OF_A_FREE_BLOCK:
                    return _aligned(known[number], nbytes)
            return _aligned(self._new_block(capacity), nbytes)

    def _new_block(self, capacity: int) -> Bytes:
        block = np.empty(capacity, np.uint8)
        if capacity > self.limit_bytes:
            return block
        while self.known_bytes + capacity > self.limit_bytes:
            oldest = self._ages.popleft()
            self._blocks[oldest].pop(0)
            self.known_bytes -= oldest
        self._blocks.setdefault(capacity, []).append(block)
        self._ages.append(capacity)
        self.known_bytes += capacity
        return block


def _aligned(block: Bytes, nbytes: int) -> Bytes:
    start = -block.__array_interface__["data"][0] % ALIGNMENT
    return block[start : start + nbytes]


_pool: ResultPool | None = None


def result_pool() -> ResultPool:
    """The pool of the process. What it knows, in use or free, is at most an eighth of the budget."""
    global _pool
    if _pool is None:
        _pool = ResultPool(budget().limit_bytes // 8)
    return _pool


def _forget_results() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_results)
