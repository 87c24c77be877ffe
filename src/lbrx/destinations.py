"""Where the elements of a stored result go: an array, or a slot of a file that is being written."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from lbrx import system
from lbrx.dtypes import DType
from lbrx.memory import budget
from lbrx.memory.results import result_pool
from lbrx.memory.scratch import scratch_arena
from lbrx.storage import Bytes

WAITING_BYTES = 16 << 20  # that other threads may leave to the one that writes a file


class Destination(Protocol):
    """Takes the elements ``lo`` to ``hi`` of a result, in any order and from many threads."""

    @property
    def dtype(self) -> DType: ...

    @property
    def whole(self) -> Bytes | None:
        """The memory of the whole result, if it has one: kernels write there directly."""

    def write(self, lo: int, data: Bytes) -> None:
        """Take the bytes of the elements from ``lo`` on (only where there is no memory for the whole)."""

    def hand_over(self, lo: int, scratch: Bytes) -> None:
        """The same with a scratch buffer that goes back to its pool when its bytes are taken, maybe later."""

    def look_at(self, values: Bytes, dtype: DType) -> None:
        """Values that are about to become blocks of this destination."""

    def found_nonfinite(self) -> None:
        """Some of them are NaN or infinite."""


class TakesAnything:
    """Does not care about the values that it gets."""

    __slots__ = ()

    def look_at(self, values: Bytes, dtype: DType) -> None:
        """Nothing to see."""

    def found_nonfinite(self) -> None:
        """Nothing to note."""


class MemoryDestination(TakesAnything, ABC):
    """Memory for a whole result."""

    __slots__ = ()
    dtype: DType

    @property
    @abstractmethod
    def whole(self) -> Bytes:
        """The memory."""

    def write(self, lo: int, data: Bytes) -> None:
        start = self.dtype.nbytes(lo)
        self.whole[start : start + data.size] = data

    def hand_over(self, lo: int, scratch: Bytes) -> None:
        self.write(lo, scratch)
        scratch_arena().put(scratch)


class ArrayDestination(MemoryDestination):
    """A new array. Packed dtypes are a vector of bytes."""

    __slots__ = ("_bytes", "dtype")

    def __init__(self, dtype: DType, elements: int) -> None:
        self.dtype = dtype
        self._bytes: Bytes = result_pool().take(dtype.nbytes(elements))

    @property
    def whole(self) -> Bytes:
        return self._bytes

    def array(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self._bytes.view(self.dtype.numpy).reshape(shape)


class FileWriter:
    """An open file into whose slots many threads write.

    File systems let one thread at a time write into a file. A thread that finds it busy leaves its buffer to the one
    that writes and goes on computing, so nothing is left when no thread is inside ``hand_over``.
    """

    __slots__ = ("_is_writing", "_lock", "_waiting", "_waiting_bytes", "descriptor", "left", "left_and_written", "path")

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self.left = self.left_and_written = 0  # buffers that were left to another thread; those that it has written
        self._waiting: deque[tuple[int, Bytes]] = deque()
        self._waiting_bytes = 0
        self._is_writing = False
        self._lock = threading.Lock()

    def write(self, offset: int, data: Bytes) -> None:
        system.pwrite_all(self.descriptor, data, offset, self.path)

    def hand_over(self, offset: int, scratch: Bytes) -> None:
        """Write a scratch buffer and give it back to its pool, or leave both to the thread that writes now."""
        with self._lock:
            has_room = self._waiting_bytes + scratch.size <= min(WAITING_BYTES, budget().limit_bytes // 4)
            if self._is_writing and has_room:
                self._waiting.append((offset, scratch))
                self._waiting_bytes += scratch.size
                self.left += 1
                return
            is_writer = not self._is_writing
            self._is_writing = True
        self._write_scratch(offset, scratch)
        if is_writer:
            self._write_waiting()

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_writing = False
                    return
                offset, scratch = self._waiting.popleft()
                self._waiting_bytes -= scratch.size
            self._write_scratch(offset, scratch)
            self.left_and_written += 1

    def _write_scratch(self, offset: int, scratch: Bytes) -> None:
        self.write(offset, scratch)
        scratch_arena().put(scratch)


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

    def hand_over(self, lo: int, scratch: Bytes) -> None:
        self._file.hand_over(self._offset + self.dtype.nbytes(lo), scratch)
