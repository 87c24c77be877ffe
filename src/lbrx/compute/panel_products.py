"""A quantized weight times many vectors, as products of i16: faster than f32 where the processor has them.

The vectors are coded and the bounds are those of `lbrx.compute.vector_products`.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from lbrx.compute.blas import in_ranges, in_tiles
from lbrx.compute.native import MULTIPLIES_PAIRS, Floats, address, run
from lbrx.expr import Blocks, Expr
from lbrx.memory.scratch import borrowing
from lbrx.quants.decoded import drop_behind
from lbrx.quants.quant import quant

_SCALED_PAIRS = {"q4_0": 16, "q8_0": 16, "q4_k": 16, "q6_k": 8}  # of elements with one scale
_PANEL_VECTORS, _CODED_COLUMNS = 16, 32
_MOST_VECTORS = 512
_ROWS = 64
_ROW_BYTES = 2 * 512 + 2 * 4 * 512 // 16  # words, scales and lows of a row in scratch
_CODED_AT_ONCE = 256 << 10  # elements that are not worth another thread


def can_multiply_panels(weight: Expr) -> TypeGuard[Blocks]:
    """Whether a weight is better multiplied here than decoded for BLAS: by type, and by processor."""
    return MULTIPLIES_PAIRS and isinstance(weight, Blocks) and weight.quant in _SCALED_PAIRS


def panel_products(x: Floats, blocks: Blocks, out: Floats) -> None:
    """``x`` [n, k], finite, times the rows of a weight [m, k] into ``out`` [n, m]."""
    for first in range(0, x.shape[0], _MOST_VECTORS):
        _some_vectors(x[first : first + _MOST_VECTORS], blocks, out[first : first + _MOST_VECTORS])


def _some_vectors(x: Floats, blocks: Blocks, out: Floats) -> None:
    vectors, columns = x.shape
    panels, count = -(-vectors // _PANEL_VECTORS), columns // _CODED_COLUMNS
    kind, rows = quant(blocks.quant), out.shape[1]
    row_bytes, pairs = columns // kind.block_elements * kind.block_bytes, _SCALED_PAIRS[blocks.quant]
    code_bytes, scale_bytes = 2 * _PANEL_VECTORS * columns, 4 * _PANEL_VECTORS * count
    with borrowing() as borrow:
        codes, scales, sums = (address(borrow(panels * size)) for size in (code_bytes, scale_bytes, scale_bytes))

        def code(first: int, stop: int) -> None:
            for panel in range(first, stop):
                start = panel * _PANEL_VECTORS
                width = min(_PANEL_VECTORS, vectors - start)
                places = codes + panel * code_bytes, scales + panel * scale_bytes, sums + panel * scale_bytes
                run("panel_products", "code_panel", address(x[start:]), width, columns, *places)

        in_ranges(panels, max(1, _CODED_AT_ONCE // (_PANEL_VECTORS * columns)), code)

        def multiply(number: int) -> None:
            first, stop = number * _ROWS, min((number + 1) * _ROWS, rows)
            with borrowing() as borrow:
                scratch = borrow(_ROWS * (_ROW_BYTES + 4 * _PANEL_VECTORS * panels))
                window = blocks.storage.read_at(first * row_bytes, (stop - first) * row_bytes)
                weight, target = (address(window), stop - first, columns), (address(out) + 4 * first, out.shape[1])
                job = np.array([*weight, codes, scales, sums, vectors, *target, address(scratch), pairs], np.int64)
                run("panel_products", kind.name, address(job))
            drop_behind(blocks.storage, first * row_bytes, (stop - first) * row_bytes)

        in_tiles(-(-rows // _ROWS), lambda: multiply)
