"""Where the elements of a stored result go: an array, or a slot of a file that is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from lbrx import system
from lbrx.dtypes import DType
from lbrx.memory.results import result_pool
from lbrx.storage import Bytes


class Destination(Protocol):
    """Takes the elements ``lo`` to ``hi`` of a result, in any order and from many threads."""

    @property
    def dtype(self) -> DType: ...

    @property
    def whole(self) -> Bytes | None:
        """The memory of the whole result, if it has one: kernels write there directly."""

    def write(self, lo: int, data: Bytes) -> None:
        """Take the bytes of the elements from ``lo`` on (only where there is no memory for the whole)."""

    def look_at(self, values: Bytes, dtype: DType) -> None:
        """Values that are about to become blocks of this destination."""


class ArrayDestination:
    """A new array. Packed dtypes are a vector of bytes."""

    __slots__ = ("dtype", "whole")

    def __init__(self, dtype: DType, elements: int) -> None:
        self.dtype = dtype
        self.whole: Bytes = result_pool().take(dtype.nbytes(elements))

    def write(self, lo: int, data: Bytes) -> None:
        start = self.dtype.nbytes(lo)
        self.whole[start : start + data.size] = data

    def look_at(self, values: Bytes, dtype: DType) -> None:
        """An array takes whatever comes."""

    def array(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self.whole.view(self.dtype.numpy).reshape(shape)


class FileDestination:
    """A slot of a file: ``offset`` is the byte where the tensor begins."""

    __slots__ = ("descriptor", "dtype", "offset", "path", "whole")

    def __init__(self, descriptor: int, offset: int, dtype: DType, path: Path) -> None:
        self.descriptor = descriptor
        self.offset = offset
        self.dtype = dtype
        self.path = path
        self.whole: Bytes | None = None

    def write(self, lo: int, data: Bytes) -> None:
        system.pwrite_all(self.descriptor, data, self.offset + self.dtype.nbytes(lo), self.path)

    def look_at(self, values: Bytes, dtype: DType) -> None:
        """A file takes whatever comes."""
