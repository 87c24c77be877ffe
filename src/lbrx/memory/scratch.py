"""Scratch buffers of the engine: borrowed for one chunk of a pass, given back when the chunk is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from lbrx.memory.arena import Bytes, MemoryArena
from lbrx.memory.budget import budget


@cache
def scratch_arena() -> MemoryArena:
    """The pool that all passes share; it counts against the process's budget."""
    return MemoryArena(strategy="arena", budget=budget())


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


os.register_at_fork(after_in_child=scratch_arena.cache_clear)
