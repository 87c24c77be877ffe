"""The rows of a weight as f32, some at a time: what is mapped stays mapped, what is coded is decoded into a tile."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import address, run
from lbrx.devices.cpu.codecs.decode import read_elements
from lbrx.engine.arrays import Floats
from lbrx.engine.bind import Known
from lbrx.engine.fuse import PassLeaf
from lbrx.errors import ShapeError
from lbrx.tensors.coded import Decode
from lbrx.tensors.expr import Source, View, values_of
from lbrx.tensors.storage import Bytes, Storage, drop_behind
from lbrx.tensors.tensor import Tensor

_HALVES = ("f16", "bf16")


class Rows(Protocol):
    """The rows of a matrix."""

    def read(self, first: int, stop: int, out: Floats) -> None:
        """Write rows ``first`` to ``stop`` - 1 as f32 into an array of their shape."""


class DecodedRows:
    """Rows of f32 without an address: decoded, or read from a file that cannot be mapped."""

    def __init__(self, source: View) -> None:
        self._leaf = Known().bound(PassLeaf("source", source))
        self._columns, self._offset = source.shape[1], source.layout.offset

    def read(self, first: int, stop: int, out: Floats) -> None:
        start, stop = (4 * (self._offset + row * self._columns) for row in (first, stop))
        read_elements(self._leaf, start, out.reshape(-1).view(np.uint8)[: stop - start])


class HalfRows:
    """Rows of f16 or bf16 that lie one after the other."""

    def __init__(self, source: Source) -> None:
        self._storage, self.dtype_name = source.storage, source.dtype.name
        self._columns, self._offset = source.shape[1], source.layout.offset

    @property
    def address(self) -> int | None:
        """Where the rows lie, if they lie in memory."""
        start = self._storage.address
        return None if start is None else start + 2 * self._offset

    def window(self, first: int, stop: int) -> Bytes:
        """The bytes of some rows."""
        start = 2 * (self._offset + first * self._columns)
        return self._storage.read_at(start, 2 * (stop - first) * self._columns)

    def read(self, first: int, stop: int, out: Floats) -> None:
        window = self.window(first, stop)
        rows = stop - first
        run("half_rows", self.dtype_name, address(window), 2 * self._columns, address(out), rows, self._columns)
        self.done(first, stop)

    def done(self, first: int, stop: int) -> None:
        """The pages of some rows may be dropped."""
        drop_behind(self._storage, 2 * (self._offset + first * self._columns), 2 * (stop - first) * self._columns)


class ComputedRows:
    """Rows of any tensor, computed as they are needed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def read(self, first: int, stop: int, out: Floats) -> None:
        out[:] = self._tensor[first:stop].to("f32").numpy()


class MappedRows:
    """Rows of f32 in memory or in a mapped file; ``array`` is all of them, without a copy."""

    def __init__(self, array: Floats, storage: Storage, first_byte: int) -> None:
        self.array = array
        self._storage, self._first_byte = storage, first_byte

    def read(self, first: int, stop: int, out: Floats) -> None:
        out[:] = self.array[first:stop]
        self.done(first, stop)

    def done(self, first: int, stop: int) -> None:
        """The pages of some rows may be dropped."""
        row_bytes = self.array.strides[0]
        if row_bytes > 0:
            drop_behind(self._storage, self._first_byte + first * row_bytes, (stop - first) * row_bytes)


def rows_of(weight: Tensor) -> Rows:
    """What reads the rows of a matrix best."""
    if weight.ndim != 2:
        raise ShapeError(f"a weight has shape {weight.shape}; expected two axes, outputs and inputs")
    source = values_of(weight.expr)
    if not isinstance(source, (Source, Decode)) or source.rows is not None or not source.is_simple or not weight.size:
        return ComputedRows(weight)
    if isinstance(source, Decode):
        return DecodedRows(source) if source.layout.is_contiguous else ComputedRows(weight)
    dtype_name, start = source.dtype.name, source.storage.address
    if dtype_name == "f32" and start is not None and start % 4 == 0 and source.layout.strides[1] == 1:
        return MappedRows(Tensor(source).numpy(), source.storage, 4 * source.layout.offset)
    if not source.layout.is_contiguous:
        return ComputedRows(weight)
    if dtype_name == "f32" and start is None:
        return DecodedRows(source)
    return HalfRows(source) if dtype_name in _HALVES else ComputedRows(weight)


def gather(weight: Tensor, numbers: npt.NDArray[np.integer[Any]]) -> Floats:
    """The rows of a weight with these numbers, as f32; a row that is asked for again is not read again."""
    rows = rows_of(weight)
    out = np.empty((numbers.size, weight.shape[1]), np.float32)
    first_rows: dict[int, int] = {}
    for row, number in enumerate(numbers.tolist()):
        if number in first_rows:
            out[row] = out[first_rows[number]]
            continue
        first_rows[number] = row
        if weight.shape[1]:
            rows.read(number, number + 1, out[row : row + 1])
    return out
