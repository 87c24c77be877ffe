"""A weight times a few vectors: its rows are read once, and decoded in registers.

For Q4_0, Q8_0, Q4_K and Q6_K the vectors are first coded as i16 in blocks of 32, and the products summed as integers.
What that changes in a result is at most 2**-16 of the sum, over blocks, of the vector's largest magnitude in the block
times the magnitudes of the weights there; about as much as rounding the vector to f16 would.
Other weights are multiplied in f32: within (k / 32 + 8) 2**-24 of the sum of the magnitudes of all products.

Pages of mapped weights are left to the system, which keeps them as long as it has room: a model that writes a text
comes back to all of its weights for every word.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.compute.blas import in_ranges
from lbrx.compute.native import Floats, address, code_address, compiled, run
from lbrx.compute.weights import HalfRows, MappedRows, Rows, rows_of
from lbrx.devices.cpu.team import check_status, run_together
from lbrx.expr import Blocks
from lbrx.memory.scratch import borrowing
from lbrx.quants.quant import quant
from lbrx.storage import Bytes
from lbrx.tensor import Tensor

MOST_VECTORS = 4
CODED_BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k")
_CODED_COLUMNS = 32
_CODED_ROWS, _FLOAT_ROWS = struct.Struct("=11q"), struct.Struct("=10q")
_LEAST_BYTES = 64 << 10  # of rows that are worth another thread
_DECODED_BYTES = 128 << 10
_STATUS = struct.Struct("=2q")  # at the beginning of a job, after the function
Window = Callable[[int, int], npt.NDArray[Any]]  # some rows of a weight as they are stored


def vector_products(x: Floats, weight: Tensor, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    blocks = weight.expr
    if isinstance(blocks, Blocks) and blocks.quant in CODED_BLOCKS and _coded_products(x, blocks, out):
        return
    rows = rows_of(weight)
    if isinstance(rows, MappedRows):
        array = rows.array
        stored = _StoredRows(array.strides[0], lambda first, stop: array[first:stop], address(array))
        _float_products(x, stored, "f32", out)
    elif isinstance(rows, HalfRows):
        _float_products(x, _StoredRows(2 * weight.shape[1], rows.window, rows.address), weight.dtype.name, out)
    else:
        _decoded_products(x, rows, out)


class _StoredRows(NamedTuple):
    """The rows of a weight as they are stored; ``place`` is where the first one lies, if they lie in memory."""

    row_bytes: int
    window: Window
    place: int | None


def _coded_products(x: Floats, blocks: Blocks, out: Floats) -> bool:
    """Returns False, with nothing written, if a number is not finite."""
    vectors, columns = x.shape
    count, kind, storage = columns // _CODED_COLUMNS, quant(blocks.quant), blocks.storage
    code_bytes, scale_bytes = 2 * vectors * -(-count // 2) * 2 * _CODED_COLUMNS, 4 * vectors * count
    vector = np.empty(code_bytes + 2 * scale_bytes + 4, np.uint8)
    start = address(vector)
    coded = start, start + code_bytes, start + code_bytes + scale_bytes
    watched = start + vector.size - 4
    if kind.name == "q4_0":
        run("block_products", "code_paired_vectors", address(x), vectors * count, *coded, watched, count)
    else:
        run("block_products", "code_vectors", address(x), vectors * count, *coded, watched)
    if vector[-4:].view(np.float32)[0] != 0:
        return False
    row_bytes = columns // kind.block_elements * kind.block_bytes

    def window(first: int, stop: int) -> Bytes:
        return storage.read_at(first * row_bytes, (stop - first) * row_bytes)

    def job(weights: int, target: int) -> bytes:
        function = code_address("block_products", kind.name, 9)
        return _CODED_ROWS.pack(function, 0, weights, 0, columns, *coded, vectors, target, out.shape[1])

    _in_rows("coded_rows", job, _StoredRows(row_bytes, window, storage.address), out)
    return True


def _float_products(x: Floats, stored: _StoredRows, kind: str, out: Floats) -> None:
    vectors, columns = x.shape

    def job(weights: int, target: int) -> bytes:
        numbers = weights, stored.row_bytes, 0, columns, address(x), vectors, target, out.shape[1]
        return _FLOAT_ROWS.pack(code_address("row_products", kind, 8), 0, *numbers)

    _in_rows("float_rows", job, stored, out)


def _in_rows(task: str, job: Callable[[int, int], bytes], stored: _StoredRows, out: Floats) -> None:
    """Run a task of the kernels over all rows: where they lie, on all threads that are awake, or as they are read.

    ``job`` has its numbers for rows at an address whose results go to another. A row is computed by itself, so that it
    does not matter how many of them a thread takes at a time.
    """
    rows, target = out.shape[1], address(out)
    least_rows = max(1, _LEAST_BYTES // max(stored.row_bytes, 1))
    kernel, place = compiled("row_tasks", task, 4), code_address("row_tasks", task, 4)

    def work(first: int, stop: int) -> None:
        weights = stored.window(first, stop)
        start = address(weights) if stored.place is None else stored.place + first * stored.row_bytes
        numbers = bytearray(job(start, target + 4 * first))
        words = ctypes.c_int64.from_buffer(numbers)
        run_together(kernel, place, ctypes.addressof(words), stored.row_bytes, stop - first, least_rows)
        check_status(_STATUS.unpack_from(numbers)[1])

    if stored.place is None:
        in_ranges(rows, least_rows, work)
    else:
        work(0, rows)


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
