"""Keeping resident memory flat: the mapped pages that passes have touched, dropped again oldest first.

A pass that returns to a tensor within the window finds its pages still mapped; what fell out of the window is
given back to the system, which keeps it in its file cache as long as it likes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from lbrx.system import PinnedMapping

WINDOW_BYTES = 256 << 20


class ResidentWindow:
    """The spans of mapped files that were touched last, up to a number of bytes."""

    def __init__(self, limit_bytes: int = WINDOW_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._spans: OrderedDict[tuple[int, int], tuple[PinnedMapping, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def touched(self, mapping: PinnedMapping, start: int, length: int) -> None:
        """A span has been read; spans beyond the limit are dropped."""
        dropped: list[tuple[PinnedMapping, int, int]] = []
        key = (id(mapping), start)
        with self._lock:
            before = self._spans.pop(key, None)
            if before is not None:
                length = max(length, before[1])
                self._bytes -= before[1]
            self._spans[key] = (mapping, length)
            self._bytes += length
            while self._bytes > self.limit_bytes and len(self._spans) > 1:
                (_, old_start), (old, old_length) = self._spans.popitem(last=False)
                self._bytes -= old_length
                dropped.append((old, old_start, old_length))
        for old, old_start, old_length in dropped:
            old.dont_need(old_start, old_length)

    def clear(self) -> None:
        """Drop everything now."""
        with self._lock:
            spans = [(mapping, start, length) for (_, start), (mapping, length) in self._spans.items()]
            self._spans.clear()
            self._bytes = 0
        for mapping, start, length in spans:
            mapping.dont_need(start, length)


resident_window = ResidentWindow()
