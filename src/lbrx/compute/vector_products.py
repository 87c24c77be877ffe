"""A weight times a few vectors: its rows are read once, and decoded in registers.

For Q4_0, Q8_0, Q4_K and Q6_K the vectors are first coded as i16 in blocks of 32, and the products summed as integers.
What that changes in a result is at most 2**-16 of the sum, over blocks, of the vector's largest magnitude in the block
times the magnitudes of the weights there; about as much as rounding the vector to f16 would.
Other weights are multiplied in f32: within (k / 32 + 8) 2**-24 of the sum of the magnitudes of all products.

Pages of mapped weights are left to the system, which keeps them as long as it has room: a model that writes a text
comes back to all of its weights for every word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lbrx.compute.blas import in_ranges
from lbrx.compute.native import Floats, address, kernel, run
from lbrx.compute.weights import HalfRows, MappedRows, rows_of
from lbrx.expr import Blocks
from lbrx.memory.scratch import borrowing
from lbrx.quants.quant import quant
from lbrx.settings import settings
from lbrx.tensor import Tensor

MOST_VECTORS = 4
CODED_BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k")
_CODED_COLUMNS = 32
_SHARES_PER_THREAD = 3
_LEAST_BYTES = 128 << 10  # of a share
_DECODED_BYTES = 128 << 10
Work = Callable[[int, int], None]


def vector_products(x: Floats, weight: Tensor, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    blocks = weight.expr
    if isinstance(blocks, Blocks) and blocks.quant in CODED_BLOCKS and np.isfinite(x).all():
        work, row_bytes = _coded_products(x, blocks, out)
    else:
        work, row_bytes = _float_products(x, weight, out)
    # A row is computed by itself, so that it does not matter how many of them a thread takes at a time.
    rows = weight.shape[0]
    shares = min(_SHARES_PER_THREAD * settings.threads, max(1, rows * row_bytes // _LEAST_BYTES))
    in_ranges(rows, -(-rows // shares), work)


def _coded_products(x: Floats, blocks: Blocks, out: Floats) -> tuple[Work, int]:
    vectors, columns = x.shape
    count = columns // _CODED_COLUMNS
    code_bytes, scale_bytes = 2 * vectors * -(-count // 2) * 2 * _CODED_COLUMNS, 4 * vectors * count
    vector = np.empty(code_bytes + 2 * scale_bytes, np.uint8)
    start = address(vector)
    coded = start, start + code_bytes, start + code_bytes + scale_bytes
    if blocks.quant == "q4_0":
        run("block_products", "code_paired_vectors", address(x), vectors * count, *coded, count)
    else:
        run("block_products", "code_vectors", address(x), vectors * count, *coded)
    kind = quant(blocks.quant)
    row_bytes = columns // kind.block_elements * kind.block_bytes
    storage, target, out_columns = blocks.storage, address(out), out.shape[1]
    multiply = kernel("block_products", kind.name, 9)

    def work(first: int, stop: int) -> None:
        window = storage.read_at(first * row_bytes, (stop - first) * row_bytes)
        multiply(address(window), stop - first, columns, *coded, vectors, target + 4 * first, out_columns)
        assert vector.size  # it lives as long as its address is used

    return work, row_bytes


def _float_products(x: Floats, weight: Tensor, out: Floats) -> tuple[Work, int]:
    vectors, columns = x.shape
    rows = rows_of(weight)
    source, target, out_columns = address(x), address(out), out.shape[1]

    def multiply(kind: str, weights: int, row_bytes: int, first: int, stop: int) -> None:
        places = source, vectors, target + 4 * first, out_columns
        run("row_products", kind, weights, row_bytes, stop - first, columns, *places)

    def mapped(first: int, stop: int) -> None:
        assert isinstance(rows, MappedRows)
        multiply("f32", address(rows.array) + rows.array.strides[0] * first, rows.array.strides[0], first, stop)

    def halves(first: int, stop: int) -> None:
        assert isinstance(rows, HalfRows)
        multiply(weight.dtype.name, address(rows.window(first, stop)), 2 * columns, first, stop)

    def decoded(first: int, stop: int) -> None:
        with borrowing() as borrow:
            most = max(1, _DECODED_BYTES // (4 * columns))
            tile = borrow(4 * min(most, stop - first) * columns).view(np.float32).reshape(-1, columns)
            for start in range(first, stop, most):
                end = min(start + most, stop)
                rows.read(start, end, tile[: end - start])
                multiply("f32", address(tile), 4 * columns, start, end)

    if isinstance(rows, MappedRows):
        return mapped, 4 * columns
    return (halves, 2 * columns) if isinstance(rows, HalfRows) else (decoded, 2 * columns)
