"""Activations times a weight as models store it, with a row for every output; see `lbrx.ops.linear`."""

from __future__ import annotations

import math

import numpy as np

from lbrx.devices.cpu.ops.codec_products import of_many_vectors
from lbrx.devices.cpu.ops.gemm_bf16 import gemm_bf16, halves_of
from lbrx.devices.cpu.ops.gemm_f32 import gemm_f32
from lbrx.devices.cpu.ops.gemv import gemv
from lbrx.devices.cpu.ops.weight_rows import MappedRows, Rows, rows_of
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.blas import in_tiles, one_blas_thread, product
from lbrx.engine.block_sizes import MOST_VECTORS, SQUARE_TILES, TILES_WANTED
from lbrx.memory.scratch import borrowing, result_pool
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor

_TILE_BYTES = 8 << 20  # of decoded rows
_TILE_ROWS = (512, 256, 128, 64)


def linear(x: Values, weight: Tensor) -> Floats:
    """[n, k] times a weight [m, k], transposed: [n, m]."""
    shape = x.shape[0], weight.shape[0]
    out = result_pool().take(4 * math.prod(shape)).view(np.float32).reshape(shape)
    values_2d(x, weight, out, settings.activation_bits)
    return out


def values_2d(x: Values, weight: Tensor, out: Floats, bits: int = 16) -> None:
    """[n, k], coded in so many bits, times [m, k] transposed, into [n, m].

    bf16 times bf16 is computed as it is, where that is faster, and else in f32.
    """
    halves = halves_of(x, weight, bits)
    if halves is None or not gemm_bf16(halves, weight, out):
        _linear_2d(floats(x), weight, out, bits)


def _linear_2d(x: Floats, weight: Tensor, out: Floats, bits: int) -> None:
    if not x.shape[1]:
        out[:] = 0
    elif out.size and x.shape[0] <= MOST_VECTORS:
        gemv(x, weight, out, bits)
    elif out.size:
        coded_product = of_many_vectors(weight.expr)
        if coded_product is None or not coded_product(x, weight.expr, out, bits):
            _tiles(x, weight, out)


def _tiles(x: Floats, weight: Tensor, out: Floats) -> None:
    """Tiles of the output. Those of BLAS are made by one call each; where they lie depends on the shapes alone."""
    rows = rows_of(weight)
    if HAS_512_BITS and not isinstance(rows, MappedRows):
        gemm_f32(x, rows, out)
        return
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
