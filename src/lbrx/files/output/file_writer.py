"""Writing into the slots of an open file from many threads: through the system's file cache, or past it.

What has to be on the disk in the end goes past the cache where the system can do that: no memory is taken for it, the
processor copies nothing, and nothing is left to flush. The parts of blocks at the ends of a piece go through the cache.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from lbrx.base import system
from lbrx.engine.destination import TakesAnything
from lbrx.memory import MemoryArena, budget
from lbrx.memory.scratch import scratch_arena
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import Bytes

WAITING_BYTES = 6 << 20  # that threads may leave to the one that writes a file
BLOCK_BYTES, HUGE_PAGE_BYTES = 4096, 2 << 20
THREADS = 2  # that write past the cache: while one is at the disk, the other prepares the next piece
LEAST_FILE_BYTES, LEAST_PIECE_BYTES = 64 << 20, 1 << 20  # of a file and of a piece that go past the cache
LEAST_MEMORY_BYTES = 256 << 20  # of the budget: buffers on huge pages take up to twice their content


@contextmanager
def writing(descriptor: int, path: Path, file_bytes: int, *, to_disk: bool) -> Iterator[FileWriter]:
    """A writer into an open file; all that was handed to it is written when the ``with`` block is left.

    ``to_disk``: the caller waits for the disk anyway, so that nothing is gained by the cache.
    """
    pays = to_disk and file_bytes >= LEAST_FILE_BYTES and budget().limit_bytes >= LEAST_MEMORY_BYTES
    direct = system.open_past_cache(path) if pays else None
    if direct is None:
        yield FileWriter(descriptor, path)
        return
    writer = DirectWriter(descriptor, direct, path)
    try:
        yield writer
        writer.finish()
    finally:
        writer.stop()
        os.close(direct)


class FileWriter:
    """An open file into whose slots many threads write.

    File systems let one thread at a time write into a file. A thread that finds it busy leaves its buffer to the one
    that writes and goes on computing, so nothing is left when no thread is inside ``submit``.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self.left = self.left_and_written = 0  # buffers that were left to another thread; those that it has written
        self._waiting: deque[tuple[int, Bytes]] = deque()
        self._waiting_bytes = 0
        self._is_writing = False
        self._lock = threading.Lock()

    def borrow_buffer(self, _offset: int, nbytes: int) -> Bytes:
        """A scratch buffer for bytes of the file from an offset on, which is to be handed over."""
        return scratch_arena().get(nbytes)

    def write(self, offset: int, data: Bytes) -> None:
        system.pwrite_all(self.descriptor, data, offset, self.path)

    def submit(self, offset: int, scratch: Bytes) -> None:
        """Write a scratch buffer and give it back to its pool, or leave both to the thread that writes now."""
        with self._lock:
            if self._is_writing and self._has_room_for(scratch):
                self._leave(offset, scratch)
                return
            is_writer = not self._is_writing
            self._is_writing = True
        self._write_scratch(offset, scratch)
        if is_writer:
            self._write_waiting()

    def finish(self) -> None:
        """Wait until all that was handed over is written."""

    def _has_room_for(self, scratch: Bytes) -> bool:
        return self._waiting_bytes + self._taken_by(scratch) <= min(WAITING_BYTES, budget().limit_bytes // 4)

    def _taken_by(self, scratch: Bytes) -> int:
        return scratch.size

    def _leave(self, offset: int, scratch: Bytes) -> None:
        self._waiting.append((offset, scratch))
        self._waiting_bytes += self._taken_by(scratch)
        self.left += 1

    def _next(self) -> tuple[int, Bytes]:
        offset, scratch = self._waiting.popleft()
        self._waiting_bytes -= self._taken_by(scratch)
        return offset, scratch

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_writing = False
                    return
                offset, scratch = self._next()
            self._write_scratch(offset, scratch)
            self.left_and_written += 1

    def _write_scratch(self, offset: int, scratch: Bytes) -> None:
        self.write(offset, scratch)
        scratch_arena().put(scratch)


@cache
def _huge_pages() -> MemoryArena:
    """Buffers on huge pages: few pieces of memory for the disk to collect."""
    return MemoryArena(strategy="mapping", alignment=HUGE_PAGE_BYTES, budget=budget())


def _arena_of(nbytes: int) -> MemoryArena:
    """Where the buffers of pieces of that size come from, and go back to."""
    return _huge_pages() if nbytes >= LEAST_PIECE_BYTES else scratch_arena()


class DirectWriter(FileWriter):
    """Write past the file cache, on separate threads. Computing threads wait only if writing falls far behind."""

    def __init__(self, descriptor: int, direct: int, path: Path) -> None:
        super().__init__(descriptor, path)
        self._direct = direct
        self._changed = threading.Condition(self._lock)
        self._taken = 0  # buffers that were taken from those that wait, in their order
        self._at_hand: set[int] = set()  # the numbers of those that are being written
        self._is_stopped = False
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, name="lbrx-write", daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def borrow_buffer(self, offset: int, nbytes: int) -> Bytes:
        """A buffer whose whole blocks are those of the file: the system takes them from there."""
        start = offset % BLOCK_BYTES
        return _arena_of(nbytes).get(start + nbytes)[start:]

    def _taken_by(self, scratch: Bytes) -> int:
        """The memory of a buffer: the system may give whole huge pages to one that uses only a part of them."""
        if scratch.size < LEAST_PIECE_BYTES:
            return scratch.size
        return -(-scratch.size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES

    def submit(self, offset: int, scratch: Bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._has_room_for(scratch) or self._error is not None)
            self._raise_error()
            self._leave(offset, scratch)
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.left == self.left_and_written or self._error is not None)
            self._raise_error()

    def stop(self) -> None:
        """End the threads; what they have not begun to write is dropped."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        while self._waiting:
            _, scratch = self._next()
            _arena_of(scratch.size).put(scratch)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """Write pieces. An error is raised in the thread that submits the next one or waits for the end."""
        try:
            while (taken := self._take()) is not None:
                number, offset, scratch = taken
                try:
                    self._write_blocks(offset, scratch)
                finally:
                    _arena_of(scratch.size).put(scratch)
                self._note_written(number)
        except BaseException as error:
            with self._changed:
                self._is_stopped, self._error = True, error
                self._changed.notify_all()

    def _take(self) -> tuple[int, int, Bytes] | None:
        """Wait for the next piece: its number, offset and buffer. None if writing has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_stopped)
            if self._is_stopped:
                return None
            offset, scratch = self._next()
            self._taken += 1
            self._at_hand.add(self._taken)
            self._changed.notify_all()
            return self._taken, offset, scratch

    def _note_written(self, number: int) -> None:
        with self._changed:
            self._at_hand.remove(number)
            self.left_and_written = min(self._at_hand, default=self._taken + 1) - 1
            self._changed.notify_all()

    def _write_blocks(self, offset: int, data: Bytes) -> None:
        """Write whole blocks past the cache; both ends, and blocks that the file system refuses, go through it."""
        if data.size < LEAST_PIECE_BYTES:
            self.write(offset, data)
            return
        end = offset + data.size
        first, last = -(-offset // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
        written = system.pwrite_past_cache(self._direct, data[first - offset : last - offset], first, self.path)
        for start, stop in ((offset, first), (first + written, end)):
            if start < stop:
                self.write(start, data[start - offset : stop - offset])


os.register_at_fork(after_in_child=_huge_pages.cache_clear)


class FileDestination(TakesAnything):
    """A slot of a file: ``offset`` is the byte where the tensor begins."""

    __slots__ = ("_file", "_offset", "dtype", "whole")

    def __init__(self, file: FileWriter, offset: int, dtype: DType) -> None:
        self._file = file
        self._offset = offset
        self.dtype = dtype
        self.whole: Bytes | None = None

    def write(self, lo: int, data: Bytes) -> None:
        self._file.write(self._offset + self.dtype.nbytes(lo), data)

    def borrow_buffer(self, lo: int, nbytes: int) -> Bytes:
        return self._file.borrow_buffer(self._offset + self.dtype.nbytes(lo), nbytes)

    def submit(self, lo: int, scratch: Bytes) -> None:
        self._file.submit(self._offset + self.dtype.nbytes(lo), scratch)
