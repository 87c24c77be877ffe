"""linear: activations times a weight as models store it, with a row for every output."""

from __future__ import annotations

import numpy as np

from lbrx.compute.arrays import Values, floats, row_vector
from lbrx.compute.blas import in_tiles, one_blas_thread
from lbrx.compute.native import Floats
from lbrx.compute.vector_products import MOST_VECTORS, vector_products
from lbrx.compute.weights import MappedRows, rows_of
from lbrx.errors import ShapeError
from lbrx.memory.scratch import borrowing
from lbrx.tensor import Tensor

_TILE_BYTES = 8 << 20
_TILE_ROWS = (512, 256, 128, 64)
_TILES_WANTED = 8
_MOST_COLUMNS = 1024


def linear(x: Values, weight: Tensor, bias: Values | None = None) -> Floats:
    """x [..., k] times a weight [m, k] of any dtype or quantization, transposed, plus a bias: [..., m].

    f32 weights are multiplied where they lie, others decoded tile by tile. A result is within k 2**-23 of the sum of
    the magnitudes of its products; up to four vectors at a time are multiplied as `lbrx.compute.vector_products` says.

    >>> import lbrx
    >>> weight = lbrx.tensor(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)).to("bf16").realize()
    >>> linear(np.array([[1.0, 1.0]], np.float32), weight)
    array([[ 3.,  7., 11.]], dtype=float32)
    """
    values = floats(x)
    if weight.ndim != 2 or values.ndim == 0 or values.shape[-1] != weight.shape[1]:
        name = f" {weight.name!r}" if weight.name else ""
        raise ShapeError(
            f"linear: activations of shape {values.shape} do not fit the weight{name} of shape {weight.shape}; "
            "expected [..., k] and [m, k]"
        )
    rows, columns = weight.shape
    vectors = values.reshape(-1, columns) if columns else np.empty((int(np.prod(values.shape[:-1])), 0), np.float32)
    out = linear_2d(vectors, weight)
    if bias is not None:
        out += row_vector(bias, rows, "the bias of linear")
    return out.reshape(*values.shape[:-1], rows)


def linear_2d(x: Floats, weight: Tensor) -> Floats:
    """[n, k] times [m, k] transposed."""
    rows, columns = weight.shape
    out = np.empty((x.shape[0], rows), np.float32)
    if not columns:
        out[:] = 0
    elif out.size and x.shape[0] <= MOST_VECTORS:
        vector_products(x, weight, out)
    elif out.size:
        _tiles(x, weight, out)
    return out


def _tiles(x: Floats, weight: Tensor, out: Floats) -> None:
    """Tiles of the output, each made by one call of BLAS; where they lie depends on the shapes alone."""
    rows = rows_of(weight)
    height, columns = weight.shape
    tile_rows = _tile_rows(height, columns)
    across = -(-x.shape[0] // _MOST_COLUMNS) if isinstance(rows, MappedRows) else 1
    width = _MOST_COLUMNS if isinstance(rows, MappedRows) else x.shape[0]

    def step(number: int) -> None:
        first, left = number // across * tile_rows, number % across * width
        stop = min(first + tile_rows, height)
        target = out[left : left + width, first:stop]
        if isinstance(rows, MappedRows):
            np.matmul(x[left : left + width], rows.array[first:stop].T, out=target)
            rows.done(first, stop)
            return
        with borrowing() as borrow:
            tile = borrow(4 * (stop - first) * columns).view(np.float32).reshape(stop - first, columns)
            rows.read(first, stop, tile)
            np.matmul(x, tile.T, out=target)

    with one_blas_thread():
        in_tiles(-(-height // tile_rows) * across, lambda: step)


def _tile_rows(height: int, columns: int) -> int:
    for rows in _TILE_ROWS:
        if 4 * rows * columns <= _TILE_BYTES and rows * _TILES_WANTED <= height:
            return rows
    return _TILE_ROWS[-1]
