"""Where the elements of a stored result go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy.typing as npt

from lbrx.memory.results import result_pool
from lbrx.memory.scratch import scratch_arena
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import Bytes, CpuStorage, Storage


class Destination(Protocol):
    """Takes the elements ``lo`` to ``hi`` of a result, in any order and from many threads."""

    @property
    def dtype(self) -> DType: ...

    @property
    def whole(self) -> Bytes | None:
        """The memory of the whole result, if it has one: kernels write there directly."""

    def write(self, lo: int, data: Bytes) -> None:
        """Take the bytes of the elements from ``lo`` on (only where there is no memory for the whole)."""

    def borrow_buffer(self, lo: int, nbytes: int) -> Bytes:
        """A scratch buffer for bytes of the elements from ``lo`` on, which is to be handed over."""

    def submit(self, lo: int, scratch: Bytes) -> None:
        """The same as ``write`` with such a buffer: it goes back to its pool when its bytes are taken, maybe later."""

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        """Values that are about to become blocks of this destination."""

    def note_nonfinite(self) -> None:
        """Some of them are NaN or infinite."""


class TakesAnything:
    """Does not care about the values that it gets."""

    __slots__ = ()

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        """Nothing to see."""

    def note_nonfinite(self) -> None:
        """Nothing to note."""


class TakesAtOnce(ABC):
    """Takes the bytes of a scratch buffer as it takes others, and then puts it back."""

    __slots__ = ()

    @abstractmethod
    def write(self, lo: int, data: Bytes) -> None: ...

    def borrow_buffer(self, _lo: int, nbytes: int) -> Bytes:
        return scratch_arena().get(nbytes)

    def submit(self, lo: int, scratch: Bytes) -> None:
        self.write(lo, scratch)
        scratch_arena().put(scratch)


class MemoryDestination(TakesAnything, TakesAtOnce):
    """Memory of a device for a whole result."""

    __slots__ = ()
    dtype: DType
    device = "cpu"

    @property
    def storage(self) -> Storage:
        """The result."""
        return CpuStorage(self.whole)

    @property
    @abstractmethod
    def whole(self) -> Bytes:
        """The memory."""

    def write(self, lo: int, data: Bytes) -> None:
        start = self.dtype.nbytes(lo)
        self.whole[start : start + data.size] = data


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


class PartOf:
    """A destination whose first element is element ``start`` of another one."""

    __slots__ = ("dtype", "parent", "start", "whole")

    def __init__(self, parent: Destination, start: int, elements: int) -> None:
        self.parent = parent
        self.start = start
        self.dtype = parent.dtype
        item = parent.dtype.itemsize
        whole = None if parent.dtype.is_packed else parent.whole
        self.whole = None if whole is None else whole[start * item : (start + elements) * item]

    def write(self, lo: int, data: Bytes) -> None:
        self.parent.write(self.start + lo, data)

    def borrow_buffer(self, lo: int, nbytes: int) -> Bytes:
        return self.parent.borrow_buffer(self.start + lo, nbytes)

    def submit(self, lo: int, scratch: Bytes) -> None:
        self.parent.submit(self.start + lo, scratch)

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        self.parent.check_finite(values, dtype)

    def note_nonfinite(self) -> None:
        self.parent.note_nonfinite()
