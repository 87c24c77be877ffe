"""linear: activations times a weight as models store it, with a row for every output."""

from __future__ import annotations

import math

import numpy as np

from lbrx.devices.cpu.native import Floats
from lbrx.devices.cpu.ops.arrays import Values, floats, row_vector
from lbrx.devices.cpu.ops.blas import in_tiles, one_blas_thread, product
from lbrx.devices.cpu.ops.gemm_bf16 import gemm_bf16, halves_of, is_bf16
from lbrx.devices.cpu.ops.gemm_i16 import can_use_gemm_i16, gemm_i16
from lbrx.devices.cpu.ops.gemv import MOST_VECTORS, gemv
from lbrx.devices.cpu.ops.weight_rows import MappedRows, Rows, rows_of
from lbrx.engine.device import CPU, device
from lbrx.errors import ShapeError
from lbrx.memory.scratch import borrowing
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor

_TILE_BYTES = 8 << 20  # of decoded rows
_TILE_ROWS = (512, 256, 128, 64)
SQUARE_TILES = (1024, 512, 256, 128, 64)
TILES_WANTED = 4


def linear(x: Values, weight: Tensor, bias: Values | None = None) -> Floats:
    """x [..., k] times a weight [m, k] of any dtype or quantization, transposed, plus a bias: [..., m].

    f32 weights are multiplied where they lie, others decoded tile by tile; bf16 times bf16 is multiplied as
    `lbrx.devices.cpu.ops.gemm_bf16` says, where the processor can. A result is within k 2**-23 of the sum of
    the magnitudes of its products. Up to four vectors at a time, and on x86 any number of them with weights in Q4_0,
    Q8_0, Q4_K and Q6_K, are multiplied as `lbrx.devices.cpu.ops.gemv` says.

    >>> import lbrx
    >>> weight = lbrx.tensor(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)).to("bf16").realize()
    >>> linear(np.array([[1.0, 1.0]], np.float32), weight)
    array([[ 3.,  7., 11.]], dtype=float32)
    """
    values = x if is_bf16(x) and is_bf16(weight) else floats(x)
    if weight.ndim != 2 or values.ndim == 0 or values.shape[-1] != weight.shape[1]:
        name = f" {weight.name!r}" if weight.name else ""
        raise ShapeError(
            f"linear: activations of shape {values.shape} do not fit the weight{name} of shape {weight.shape}; "
            "expected [..., k] and [m, k]"
        )
    rows, columns = weight.shape
    vectors = values
    if values.ndim != 2:
        vectors = values.reshape(-1, columns) if columns else np.empty((math.prod(values.shape[:-1]), 0), np.float32)
    out = _on_device(vectors, weight)
    if out is None:
        out = np.empty((vectors.shape[0], rows), np.float32)
        values_2d(vectors, weight, out)
    if bias is not None:
        out += row_vector(bias, rows, "the bias of linear")
    return out if values.ndim == 2 else out.reshape(*values.shape[:-1], rows)


def _on_device(x: Values, weight: Tensor) -> Floats | None:
    """The product by the device of the settings, None if it is computed here."""
    if settings.device == CPU or not x.size or not weight.size:
        return None
    return device(settings.device).linear(floats(x), weight)


def values_2d(x: Values, weight: Tensor, out: Floats) -> None:
    """[n, k] times [m, k] transposed, into [n, m]: bf16 times bf16 as it is, where that is faster, or else in f32."""
    halves = halves_of(x, weight)
    if halves is None or not gemm_bf16(halves, weight, out):
        linear_2d(floats(x), weight, out)


def linear_2d(x: Floats, weight: Tensor, out: Floats) -> None:
    """[n, k] times [m, k] transposed, into [n, m]."""
    if not x.shape[1]:
        out[:] = 0
    elif out.size and x.shape[0] <= MOST_VECTORS:
        gemv(x, weight, out)
    elif out.size and not (can_use_gemm_i16(weight.expr) and gemm_i16(x, weight.expr, out)):
        _tiles(x, weight, out)


def _tiles(x: Floats, weight: Tensor, out: Floats) -> None:
    """Tiles of the output, each made by one call of BLAS; where they lie depends on the shapes alone."""
    rows = rows_of(weight)
    with one_blas_thread():
        if isinstance(rows, MappedRows):
            _mapped_tiles(x, rows, out)
        else:
            _decoded_tiles(x, rows, out)


def _mapped_tiles(x: Floats, rows: MappedRows, out: Floats) -> None:
    """The weight is multiplied where it lies."""
    vectors, height = out.shape
    sizes = (size for size in SQUARE_TILES if -(-vectors // size) * -(-height // size) >= TILES_WANTED)
    size = next(sizes, SQUARE_TILES[-1])
    across = -(-vectors // size)

    def step(number: int) -> None:
        first, left = number // across * size, number % across * size
        stop, right = min(first + size, height), min(left + size, vectors)
        product(x[left:right], rows.array[first:stop].T, out[left:right, first:stop])
        rows.done(first, stop)

    in_tiles(-(-height // size) * across, lambda: step)


def _decoded_tiles(x: Floats, rows: Rows, out: Floats) -> None:
    """Some rows of the weight at a time are decoded, and multiplied while they are in the cache."""
    height, columns = out.shape[1], x.shape[1]
    fitting = [size for size in _TILE_ROWS if 4 * size * columns <= _TILE_BYTES and -(-height // size) >= TILES_WANTED]
    size = fitting[0] if fitting else _TILE_ROWS[-1]

    def step(number: int) -> None:
        first, stop = number * size, min((number + 1) * size, height)
        with borrowing() as borrow:
            tile = borrow(4 * (stop - first) * columns).view(np.float32).reshape(stop - first, columns)
            rows.read(first, stop, tile)
            product(x, tile.T, out[:, first:stop])

    in_tiles(-(-height // size), lambda: step)
