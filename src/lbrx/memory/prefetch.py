"""Reading ahead of a streaming pass over files, and dropping behind it.

The kernel guesses well for one reader of one file. A merge reads many files in many threads and in an order that
only its plan knows, so the plan is told to the kernel: what comes next is read while what is here is computed,
and what is done leaves memory before the kernel has to look for something to evict.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

from lbrx.base.system import PinnedMapping, read_ahead, seems_cached
from lbrx.errors import UsageError


class Span(NamedTuple):
    """A range of bytes that will be read.

    ``start`` counts in the mapping. With a file descriptor, reading ahead goes through the file, whose byte
    ``file_offset`` is the first of the span: on macOS only that is asynchronous. Without a mapping (where the
    file is read by positioned reads) there is nothing to drop behind.
    """

    mapping: mmap.mmap | None
    start: int
    length: int
    fd: int | None = None
    file_offset: int = 0


class ReadAhead:
    """A window that moves over steps in the order in which they will be visited.

    A step is one span, or the several spans (one of each input, say) that are read together. Any thread calls
    ``begin(step)`` before it reads a step and ``done(step)`` after; steps may finish in any order. The next
    ``ahead_bytes`` after a step that begins are read ahead, and the whole pages of a step that is done are dropped
    from this process's memory. The mappings cannot be closed before ``close`` is called. ``open_files``
    are the files of the descriptors; ``close`` closes them.

    >>> import tempfile
    >>> from lbrx.base.system import map_readonly
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(bytes(3000) * 100)
    ...     file.flush()
    ...     mapping = map_readonly(file.fileno(), 0, 300_000)
    >>> with ReadAhead([Span(mapping, start, 3000) for start in range(0, 300_000, 3000)]) as window:
    ...     window.begin(0)
    ...     total = sum(mapping[0:3000])
    ...     window.done(0)
    """

    def __init__(
        self,
        steps: Iterable[Span | Sequence[Span]],
        *,
        ahead_bytes: int = 64 << 20,
        open_files: ExitStack | None = None,
    ) -> None:
        self._open_files = open_files or ExitStack()
        self._steps = [(step,) if isinstance(step, Span) else tuple(step) for step in steps]
        spans = [span for step in self._steps for span in step]
        for span in spans:
            _check(span)
        self._horizons = _horizons([sum(span.length for span in step) for step in self._steps], ahead_bytes)
        mappings = {id(span.mapping): span.mapping for span in spans if span.mapping is not None}
        self._pins = {key: PinnedMapping(mapping) for key, mapping in mappings.items()}
        self._advised_steps = 0
        self._lock = threading.Lock()

    def begin(self, step: int) -> None:
        """Say that a step will be read now; starts reading what comes after it."""
        horizon = self._horizons[step]
        if horizon <= self._advised_steps:
            return
        with self._lock:
            first = self._advised_steps
            self._advised_steps = max(first, horizon)
        pins = self._pins
        for span in _merged(span for ahead in self._steps[first:horizon] for span in ahead):
            if span.fd is not None:
                if not seems_cached(span.fd, span.file_offset, span.length):
                    read_ahead(span.fd, span.file_offset, span.length)
            elif id(span.mapping) in pins:
                pins[id(span.mapping)].will_need(span.start, span.length)

    def done(self, step: int) -> None:
        """Say that a step has been read and will not be read again."""
        pins = self._pins
        for span in self._steps[step]:
            if id(span.mapping) in pins:
                pins[id(span.mapping)].dont_need(span.start, span.length)

    def close(self) -> None:
        """Let go of the mappings; later calls do nothing for them."""
        self._pins = {}
        self._open_files.close()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(span: Span) -> None:
    if span.mapping is None and span.fd is None:
        raise UsageError("a span to read ahead has neither a mapping nor a file descriptor")
    size = span.start + span.length if span.mapping is None else len(span.mapping)
    if span.start < 0 or span.length < 0 or span.start + span.length > size:
        raise UsageError(f"a span from byte {span.start} of {span.length} bytes is not inside {size} mapped bytes")


def _horizons(step_bytes: Sequence[int], ahead_bytes: int) -> list[int]:
    """For each step how many steps, from the first on, are to be advised when it begins.

    That is all which start less than ahead_bytes after its end, and at least the one after it.
    """
    horizons: list[int] = []
    horizon = 0
    window_bytes = 0  # from the end of the step to the start of the horizon
    for step, nbytes in enumerate(step_bytes):
        window_bytes -= nbytes
        while horizon < len(step_bytes) and (horizon <= step + 1 or window_bytes < ahead_bytes):
            window_bytes += step_bytes[horizon]
            horizon += 1
        horizons.append(horizon)
    return horizons


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in as few spans as possible: one that starts where an earlier one of its file ends joins it."""
    merged: dict[tuple[int, int | None, int, int], Span] = {}  # by where each ends
    for span in spans:
        before = merged.pop(_position(span, 0), None)
        joined = span if before is None else before._replace(length=before.length + span.length)
        merged[_position(joined, joined.length)] = joined
    return list(merged.values())


def _position(span: Span, distance: int) -> tuple[int, int | None, int, int]:
    """Where a byte of a span lies: in which mapping and file, and at which offset of each."""
    file_offset = span.file_offset + distance if span.fd is not None else 0
    return id(span.mapping), span.fd, span.start + distance, file_offset
