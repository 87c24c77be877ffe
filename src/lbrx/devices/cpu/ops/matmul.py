"""Products of tensors and arrays of any shapes, with NumPy's rules for axes; see `lbrx.ops.matmul`.

The second operand is read in panels, the first in runs of rows; neither has to fit into memory as f32, only the
result does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lbrx.devices.cpu.ops.linear import values_2d
from lbrx.devices.cpu.ops.weight_rows import MappedRows, rows_of
from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.blas import in_tiles, one_blas_thread, product
from lbrx.engine.block_sizes import SQUARE_TILES, TILES_WANTED
from lbrx.tensors.coded import Decode
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Shape, broadcast_shapes, product_shape
from lbrx.tensors.tensor import Tensor, tensor

_PANEL_BYTES = 16 << 20
_ROWS_BYTES = 64 << 20
_LARGE_PRODUCT = 1 << 24


def matmul(a: Values, b: Values, transpose_b: bool) -> Floats:
    """The product of operands that fit; see `lbrx.ops.matmul`."""
    shape = product_shape(a.shape, b.shape, transpose_b)
    left = a.reshape(1, a.shape[0]) if len(a.shape) == 1 else a
    right = b
    if len(b.shape) == 1:
        right = b.reshape(1, b.shape[0]) if transpose_b else b.reshape(b.shape[0], 1)
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out = np.empty((*batch, left.shape[-2], right.shape[-2 if transpose_b else -1]), np.float32)
    _batched(left, right, batch, transpose_b, out)
    return out.reshape(shape)


def _batched(left: Values, right: Values, batch: Shape, transpose_b: bool, out: Floats) -> None:
    """Every matrix of a batch by itself: one after the other if they are large, else side by side."""
    matrices = list(np.ndindex(*batch))

    def step(number: int) -> None:
        index = matrices[number]
        multiply_matrices(_matrix(left, batch, index), _matrix(right, batch, index), transpose_b, out[index])

    if math.prod(out.shape[-2:]) * left.shape[-1] >= _LARGE_PRODUCT:
        for number in range(len(matrices)):
            step(number)
        return
    with one_blas_thread():
        in_tiles(len(matrices), lambda: step)


def _matrix(values: Values, batch: Shape, index: tuple[int, ...]) -> Values:
    """The matrix at an index of the batch, whose axes of size 1 are the same at every index."""
    own = values.shape[:-2]
    last = index[len(batch) - len(own) :]
    index = tuple(0 if size == 1 else at for size, at in zip(own, last, strict=True))
    return values[index] if index else values


def panel_rows(inner: int, columns: int) -> int:
    """Rows of the first operand that are multiplied by themselves if a product is computed in parts.

    They are whole tiles of the whole product, and enough of them that it would not have other tiles.
    """
    tile = SQUARE_TILES[0]
    return min(tile * -(-TILES_WANTED // max(-(-columns // tile), 1)), max(_ROWS_BYTES // (4 * max(inner, 1)), 1))


def _row_ranges(rows: int, height: int, least: int) -> Iterator[tuple[int, int]]:
    """Ranges of so many rows; fewer than ``least`` that are left over belong to the last one."""
    starts = range(0, max(rows - least, 0) + 1, height)
    yield from zip(starts, (*starts[1:], rows), strict=True)


def multiply_matrices(left: Values, right: Values, transpose_b: bool, out: Floats) -> None:
    """[n, k] times [k, m], or [m, k] transposed, into [n, m]."""
    rows, inner = left.shape
    if not inner or not out.size:
        out[:] = 0
        return
    least = panel_rows(inner, out.shape[1])
    most_rows = max(_ROWS_BYTES // (4 * inner) // least, 1) * least if isinstance(left, Tensor) else rows
    # In this order in memory, its rows can be read as those of a weight.
    weight = (right if transpose_b else right.T) if transpose_b != _is_transposed(right) else None
    if weight is not None and not isinstance(weight, Tensor):
        weight = tensor(weight)
    if weight is not None and _f32_in_memory(weight) is None:  # decoded for every panel
        most_rows = min(most_rows, least)
    for first, stop in _row_ranges(rows, most_rows, least):
        values, target = left[first:stop], out[first:stop]
        if weight is None:
            _panels(floats(values), right.T if transpose_b else right, target)
        else:
            values_2d(values, weight, target)


class PanelProduct:
    """The rows of a product of two matrices, in panels that have the bits of the whole product."""

    def __init__(self, a: Tensor, b: Tensor, transpose_b: bool) -> None:
        self._a, self._b, self._transpose_b = a, b, transpose_b
        self._rows = a.shape[0]
        self.panel_rows = panel_rows(a.shape[1], b.shape[-2 if transpose_b else -1])

    def panel(self, row: int) -> tuple[int, int]:
        height = self.panel_rows
        number, last = row // height, max(self._rows // height, 1) - 1
        return (last * height, self._rows) if number >= last else (number * height, (number + 1) * height)

    def multiply(self, first: int, stop: int, out: Floats) -> None:
        multiply_matrices(self._a[first:stop], self._b, self._transpose_b, out)


def _is_transposed(values: Values) -> bool:
    """Whether the columns of a matrix, and not its rows, are runs of elements."""
    if not isinstance(values, Tensor):
        return bool(values.flags.f_contiguous and not values.flags.c_contiguous)
    source = values.expr
    if not isinstance(source, (Source, Decode)):
        return False
    return source.layout.strides[0] == 1 and source.layout.strides[1] != 1


def _panels(x: Floats, right: Values, out: Floats) -> None:
    """Runs of rows of the second operand, one after the other: out += x[:, panel] times the panel."""
    in_memory = _f32_in_memory(right)
    inner, columns = right.shape
    height = inner if in_memory is not None else max(1, _PANEL_BYTES // (4 * columns))
    for first in range(0, inner, height):
        panel = floats(right[first : first + height]) if in_memory is None else in_memory
        added = out if first == 0 else np.empty_like(out)
        _tiled(x[:, first : first + height], panel, added)
        if first:
            out += added


def _f32_in_memory(values: Values) -> Floats | None:
    """All of a matrix, without a copy, if it lies in memory or in a mapped file as f32."""
    if not isinstance(values, Tensor):
        return values if values.dtype == np.float32 else None
    rows = rows_of(values)
    return rows.array if isinstance(rows, MappedRows) else None


def _tiled(x: Floats, panel: Floats, out: Floats) -> None:
    rows, columns = out.shape
    sizes = (size for size in SQUARE_TILES if -(-rows // size) * -(-columns // size) >= TILES_WANTED)
    size = next(sizes, SQUARE_TILES[-1])
    across = -(-columns // size)

    def step(number: int) -> None:
        top, left = number // across * size, number % across * size
        product(x[top : top + size], panel[:, left : left + size], out[top : top + size, left : left + size])

    with one_blas_thread():
        in_tiles(-(-rows // size) * across, lambda: step)
