"""A weight times a few vectors: its rows are read once, and decoded in registers.

Weights with an entry in `codec_products` are multiplied by their codes, after the vectors have been coded as integers:
see `gemv_quantized` for what that changes in a result.
Other weights are multiplied in f32: within (k / 32 + 8) 2**-24 of the sum of the magnitudes of all products.

Pages of mapped weights are left to the system, which keeps them as long as it has room: a model that writes a text
comes back to all of its weights for every word.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.build.native import address, code_address, run
from lbrx.devices.cpu.ops.codec_products import of_few_vectors
from lbrx.devices.cpu.ops.row_jobs import StoredRows, in_rows
from lbrx.devices.cpu.ops.weight_rows import HalfRows, MappedRows, Rows, rows_of
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges
from lbrx.memory.scratch import borrowing
from lbrx.tensors.tensor import Tensor

_DECODED_BYTES = 128 << 10


def gemv(x: Floats, weight: Tensor, out: Floats, bits: int) -> None:
    """``x`` [n, k], coded in so many bits, times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    coded_product = of_few_vectors(weight.expr)
    if coded_product is not None and coded_product(x, weight.expr, out, bits):
        return
    rows = rows_of(weight)
    if isinstance(rows, MappedRows):
        array = rows.array
        stored = StoredRows(array.strides[0], lambda first, stop: array[first:stop], address(array))
        _gemv_float(x, stored, "f32", out)
    elif isinstance(rows, HalfRows):
        _gemv_float(x, StoredRows(2 * weight.shape[1], rows.window, rows.address), weight.dtype.name, out)
    else:
        _gemv_decoded(x, rows, out)


def _gemv_float(x: Floats, stored: StoredRows, dtype_name: str, out: Floats) -> None:
    vectors, columns = x.shape
    numbers = stored.row_bytes, columns, address(x), vectors, out.shape[1], 0
    in_rows("float_rows", code_address("gemv_float", dtype_name, 8), numbers, stored, out)


def _gemv_decoded(x: Floats, rows: Rows, out: Floats) -> None:
    vectors, columns = x.shape
    most = max(1, _DECODED_BYTES // (4 * columns))

    def work(first: int, stop: int) -> None:
        with borrowing() as borrow:
            tile = borrow(4 * (stop - first) * columns).view(np.float32).reshape(-1, columns)
            rows.read(first, stop, tile)
            outputs = address(x), vectors, address(out) + 4 * first, out.shape[1]
            run("gemv_float", "f32", address(tile), 4 * columns, stop - first, columns, *outputs)

    in_ranges(out.shape[1], most, work)
