"""Scratch buffers of the engine: borrowed for one chunk of a pass, given back when the chunk is done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lbrx.memory.arena import Bytes, MemoryArena
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
