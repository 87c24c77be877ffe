"""A weight times a few vectors: its rows are read once, and decoded in registers.

For Q4_0, Q8_0, Q4_K and Q6_K the vectors are first coded as i16 in blocks of 32, and the products summed as integers.
What that changes in a result is at most 2**-16 of the sum, over blocks, of the vector's largest magnitude in the block
times the magnitudes of the weights there; about as much as rounding the vector to f16 would.
Other weights are multiplied in f32: within (k / 32 + 8) 2**-24 of the sum of the magnitudes of all products.

Pages of mapped weights are left to the system, which keeps them as long as it has room: a model that writes a text
comes back to all of its weights for every word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.compute.blas import in_ranges
from lbrx.compute.native import Floats, address, compiled, run
from lbrx.compute.weights import HalfRows, MappedRows, Rows, rows_of
from lbrx.devices.cpu.kernels import address_of
from lbrx.devices.cpu.team import run_together
from lbrx.expr import Blocks
from lbrx.memory.scratch import borrowing
from lbrx.quants.quant import quant
from lbrx.tensor import Tensor

MOST_VECTORS = 4
CODED_BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k")
_CODED_COLUMNS = 32
_LEAST_BYTES = 64 << 10  # of rows that are worth another thread
_DECODED_BYTES = 128 << 10


def vector_products(x: Floats, weight: Tensor, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    blocks = weight.expr
    if isinstance(blocks, Blocks) and blocks.quant in CODED_BLOCKS and np.isfinite(x).all():
        _coded_products(x, blocks, out)
        return
    rows = rows_of(weight)
    if isinstance(rows, MappedRows):
        _float_products(x, rows.array, rows.array.strides[0], "f32", out)
    elif isinstance(rows, HalfRows):
        _float_products(x, rows.window(0, weight.shape[0]), 2 * weight.shape[1], weight.dtype.name, out)
    else:
        _decoded_products(x, rows, out)


def _coded_products(x: Floats, blocks: Blocks, out: Floats) -> None:
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
    weights = blocks.storage.read_at(0, out.shape[1] * row_bytes)
    arguments = address(weights), 0, columns, *coded, vectors, address(out), out.shape[1]
    _in_rows("coded_rows", "block_products", kind.name, arguments, out.shape[1], row_bytes)


def _float_products(x: Floats, weights: npt.NDArray[Any], row_bytes: int, kind: str, out: Floats) -> None:
    vectors, columns = x.shape
    arguments = address(weights), row_bytes, 0, columns, address(x), vectors, address(out), out.shape[1]
    _in_rows("float_rows", "row_products", kind, arguments, out.shape[1], row_bytes)


def _in_rows(task: str, module: str, function: str, arguments: tuple[int, ...], rows: int, row_bytes: int) -> None:
    """Run a function of the kernels over all rows, on all threads that are awake.

    A row is computed by itself, so that it does not matter how many of them a thread takes at a time.
    """
    job = np.array([address_of(compiled(module, function, len(arguments))), *arguments], np.int64)
    least_rows = max(1, _LEAST_BYTES // max(row_bytes, 1))
    run_together(compiled("row_tasks", task, 4), address(job), row_bytes, rows, least_rows)


def _decoded_products(x: Floats, rows: Rows, out: Floats) -> None:
    vectors, columns = x.shape
    most = max(1, _DECODED_BYTES // (4 * columns))

    def work(first: int, stop: int) -> None:
        with borrowing() as borrow:
            tile = borrow(4 * (stop - first) * columns).view(np.float32).reshape(-1, columns)
            rows.read(first, stop, tile)
            places = address(x), vectors, address(out) + 4 * first, out.shape[1]
            run("row_products", "f32", address(tile), 4 * columns, stop - first, columns, *places)

    in_ranges(out.shape[1], most, work)
