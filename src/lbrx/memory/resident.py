"""Keeping resident memory flat: the mapped pages that passes have touched, dropped again oldest first.

A pass that returns to a tensor within the window finds its pages still mapped; what fell out of the window is
given back to the system, which keeps it in its file cache as long as it likes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import ref

from lbrx.base.system import PinnedMapping

WINDOW_BYTES = 256 << 20
_MAX_SPANS = 1 << 16
Dropped = tuple[PinnedMapping, int, int]


class ResidentWindow:
    """The spans of mapped files that were touched last, up to a number of bytes.

    Pages are dropped in batches of neighbouring spans: every call interrupts all cores that run this process. The
    window does not keep mappings open: a mapping that nobody else uses is unmapped, and with it its pages.
    """

    def __init__(self, limit_bytes: int = WINDOW_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._spans: OrderedDict[tuple[int, int], tuple[ref[PinnedMapping], int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def widen(self, nbytes: int) -> None:
        """Let so many bytes more stay mapped, or fewer if negative, for what is read again and again.

        Spans of different operations may overlap and count twice, so ask for twice the size of the files.
        """
        with self._lock:
            self.limit_bytes += nbytes

    def touched(self, mapping: PinnedMapping, start: int, length: int) -> None:
        """A span has been read; spans beyond the limit are dropped."""
        key = (id(mapping), start)
        with self._lock:
            before = self._spans.pop(key, None)
            if before is not None:
                self._bytes -= before[1]
                if before[0]() is mapping:  # and not an earlier mapping with the same id
                    length = max(length, before[1])
            self._spans[key] = (ref(mapping), length)
            self._bytes += length
            dropped = self._oldest() if self._bytes > self.limit_bytes or len(self._spans) > _MAX_SPANS else []
        _drop(dropped)

    def _oldest(self) -> list[Dropped]:
        """The oldest quarter of what is held, taken out."""
        dropped: list[Dropped] = []
        most_bytes, most_spans = self.limit_bytes * 3 // 4, _MAX_SPANS * 3 // 4
        while (self._bytes > most_bytes or len(self._spans) > most_spans) and len(self._spans) > 1:
            (_, start), (reference, length) = self._spans.popitem(last=False)
            self._bytes -= length
            mapping = reference()
            if mapping is not None:
                dropped.append((mapping, start, length))
        return dropped


def _drop(spans: list[Dropped]) -> None:
    """Give back the pages of spans, neighbours together."""
    ordered = sorted(spans, key=lambda span: (id(span[0]), span[1]))
    position = 0
    while position < len(ordered):
        mapping, start, length = ordered[position]
        end = start + length
        position += 1
        while position < len(ordered) and ordered[position][0] is mapping and ordered[position][1] <= end:
            end = max(end, ordered[position][1] + ordered[position][2])
            position += 1
        mapping.dont_need(start, end - start)


resident_window = ResidentWindow()
