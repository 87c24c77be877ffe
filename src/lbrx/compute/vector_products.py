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
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.compute.blas import in_ranges
from lbrx.compute.native import Floats, address, compiled, run
from lbrx.compute.weights import HalfRows, MappedRows, Rows, rows_of
from lbrx.devices.cpu.kernels import address_of
from lbrx.devices.cpu.team import check_status, run_together
from lbrx.expr import Blocks
from lbrx.memory.scratch import borrowing
from lbrx.quants.quant import quant
from lbrx.storage import Bytes
from lbrx.tensor import Tensor

MOST_VECTORS = 4
CODED_BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k")
_CODED_COLUMNS = 32
_LEAST_BYTES = 64 << 10  # of rows that are worth another thread
_DECODED_BYTES = 128 << 10
Window = Callable[[int, int], npt.NDArray[Any]]  # some rows of a weight as they are stored


def vector_products(x: Floats, weight: Tensor, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    blocks = weight.expr
    if isinstance(blocks, Blocks) and blocks.quant in CODED_BLOCKS and np.isfinite(x).all():
        _coded_products(x, blocks, out)
        return
    rows = rows_of(weight)
    if isinstance(rows, MappedRows):
        _float_products(x, lambda first, stop: rows.array[first:stop], True, rows.array.strides[0], "f32", out)
    elif isinstance(rows, HalfRows):
        _float_products(x, rows.window, rows.is_in_memory, 2 * weight.shape[1], weight.dtype.name, out)
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
    storage = blocks.storage

    def window(first: int, stop: int) -> Bytes:
        return storage.read_at(first * row_bytes, (stop - first) * row_bytes)

    def numbers(weights: int, target: int) -> tuple[int, ...]:
        return weights, 0, columns, *coded, vectors, target, out.shape[1]

    function = compiled("block_products", kind.name, 9)
    _in_rows("coded_rows", function, numbers, window, storage.address is not None, row_bytes, out)


def _float_products(x: Floats, window: Window, is_in_memory: bool, row_bytes: int, kind: str, out: Floats) -> None:
    vectors, columns = x.shape

    def numbers(weights: int, target: int) -> tuple[int, ...]:
        return weights, row_bytes, 0, columns, address(x), vectors, target, out.shape[1]

    _in_rows("float_rows", compiled("row_products", kind, 8), numbers, window, is_in_memory, row_bytes, out)


def _in_rows(
    task: str,
    function: Any,
    numbers: Callable[[int, int], tuple[int, ...]],
    window: Window,
    is_in_memory: bool,
    row_bytes: int,
    out: Floats,
) -> None:
    """Run a function of the kernels over all rows: where they lie, on all threads that are awake, or as they are read.

    ``numbers`` are its arguments for rows at an address whose results go to another. A row is computed by itself, so
    that it does not matter how many of them a thread takes at a time.
    """
    rows = out.shape[1]
    least_rows = max(1, _LEAST_BYTES // max(row_bytes, 1))
    kernel = compiled("row_tasks", task, 4)

    def work(first: int, stop: int) -> None:
        weights = window(first, stop)
        job = np.array([address_of(function), 0, *numbers(address(weights), address(out) + 4 * first)], np.int64)
        run_together(kernel, address_of(kernel), address(job), row_bytes, stop - first, least_rows)
        check_status(int(job[1]))

    if is_in_memory:
        work(0, rows)
    else:
        in_ranges(rows, least_rows, work)


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
