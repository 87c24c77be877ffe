"""Threads and memory for the length of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lbrx.base import system
from lbrx.memory import budget
from lbrx.memory.resident import resident_window
from lbrx.settings import settings, using

_BYTES_PER_CHUNK_ELEMENT = 32  # of buffers, at the most that methods need
_LEAST_CHUNK_ELEMENTS = 1 << 16


@contextmanager
def limited(threads: int | None, memory: int | str | None) -> Iterator[None]:
    """Threads and bytes of buffers for the length of a ``with`` block; None leaves them as they are.

    Little memory makes the pieces smaller that threads take at a time, and keeps fewer pages of the inputs mapped.
    """
    if memory is None:
        with using(threads=threads):
            yield
        return
    account, before_bytes, window_bytes = budget(), budget().limit_bytes, resident_window.limit_bytes
    account.limit_bytes = limit_bytes = system.parse_bytes(memory)
    resident_window.limit_bytes = min(window_bytes, limit_bytes)
    # Half of it: the tables of a search and pieces that wait to be written need memory too.
    share = limit_bytes // (2 * (threads or settings.threads) * _BYTES_PER_CHUNK_ELEMENT)
    try:
        with using(threads=threads, chunk_elements=max(min(settings.chunk_elements, share), _LEAST_CHUNK_ELEMENTS)):
            yield
    finally:
        account.limit_bytes, resident_window.limit_bytes = before_bytes, window_bytes
