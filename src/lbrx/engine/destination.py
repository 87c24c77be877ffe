"""What the sinks of a pass write to, whichever device runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.memory.scratch import result_pool, scratch_arena
from lbrx.tensors.coded import Encoding
from lbrx.tensors.dtype import DTYPES, DType
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


# -- what other sinks write to ----------------------------------------------------------------------------------------

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class HistogramState:
    """What a histogram sink counts: keys by ``(key >> shift) - first``."""

    shift: int
    first: int
    counts: Ints


@dataclass(slots=True)
class CollectState:
    """What a collect sink keeps: keys within [low, high] with their indices, up to a limit; how many are above."""

    low: int
    high: int
    limit: int
    keys: list[Ints] = field(default_factory=list)
    indices: list[Ints] = field(default_factory=list)
    collected: int = 0
    above: int = 0
    keeps_indices: bool = True
    borrow: Callable[[int], Bytes] | None = None  # where copies lie: memory that was in use before costs no faults

    def add(self, collected: int, above: int, keys: Ints, indices: Ints) -> None:
        """What a chunk has: the first ``collected`` of the arrays, which may be used again afterwards."""
        self.collected += collected
        self.above += above
        if self.collected <= self.limit:
            self.keys.append(self._copied(keys[:collected]))
            if self.keeps_indices:
                self.indices.append(self._copied(indices[:collected]))

    def _copied(self, numbers: Ints) -> Ints:
        if self.borrow is None:
            return numbers.copy()
        copy = self.borrow(numbers.nbytes).view(np.int64)
        copy[:] = numbers
        return copy


@dataclass(frozen=True, slots=True)
class EncodeTarget:
    """Where the blocks of stored f32 values go: a destination of bytes for each part of the codec, None if unwanted.

    ``start`` is the element of the encoding at which the values begin; rows are never cut.
    """

    encoding: Encoding
    parts: list[Destination | None]
    start: int = 0
    dtype = DTYPES["f32"]


SinkTarget = Destination | HistogramState | CollectState | None
