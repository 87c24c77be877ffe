"""A weight in a half type, or of decoded rows, times many vectors in f32, on processors with 512-bit registers.

Rows are widened while they are multiplied, and vectors are packed once for all rows. BLAS would get the rows as f32 and
pack the vectors again for every tile of them. A sum takes 256 elements in order, one rounding each, and adds them to
those before: it is within (256 + k / 256) 2**-24 of the sum of the magnitudes of k products, and does not depend on
what else is multiplied.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import run_together
from lbrx.devices.cpu.ops.gemm_i16 import in_spans
from lbrx.devices.cpu.ops.weight_rows import HalfRows, Rows
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges
from lbrx.memory.scratch import borrowing
from lbrx.settings import settings

_PANEL_VECTORS, _MOST_VECTORS = 32, 512
_MOST_PACKED = 4 * _MOST_VECTORS
_TILE_ROWS = 48
_TILE_BYTES = 2 << 20  # of decoded rows


@cache
def _task(name: str) -> tuple[Any, int]:
    return compiled("gemm_f32", name, 4), code_address("gemm_f32", name, 4)


def gemm_f32(x: Floats, rows: Rows, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m]."""
    for first in range(0, x.shape[0], _MOST_PACKED):
        _some_vectors(x[first : first + _MOST_PACKED], rows, out[first : first + _MOST_PACKED])


def _some_vectors(x: Floats, rows: Rows, out: Floats) -> None:
    (vectors, columns), height = x.shape, out.shape[1]
    panels = -(-vectors // _PANEL_VECTORS)
    with borrowing() as borrow:
        packed = address(borrow(4 * _PANEL_VECTORS * columns * panels))
        job = np.array([address(x), vectors, packed], np.int64)
        run_together(*_task("pack_panels"), address(job), columns, panels, 1, most=1)

        def multiply(dtype_name: str, start: int, row_bytes: int, first: int, stop: int) -> None:
            for at in range(0, vectors, _MOST_VECTORS):
                given = packed + 4 * columns * at, min(_MOST_VECTORS, vectors - at)
                target = address(out[at:]) + 4 * first, height
                job = np.array([start, columns, *given, *target, _TILE_ROWS * settings.threads], np.int64)
                run_together(*_task(dtype_name), address(job), row_bytes, stop - first, _TILE_ROWS, most=_TILE_ROWS)

        def multiply_halves(first: int, stop: int) -> None:
            assert isinstance(rows, HalfRows)
            window = rows.window(first, stop)
            multiply(rows.dtype_name, address(window), 2 * columns, first, stop)
            rows.done(first, stop)

        def multiply_decoded(first: int, stop: int) -> None:
            with borrowing() as borrow_tile:
                tile = borrow_tile(4 * columns * (stop - first)).view(np.float32).reshape(stop - first, columns)
                rows.read(first, stop, tile)
                multiply("f32", address(tile), 4 * columns, first, stop)

        if isinstance(rows, HalfRows):
            in_spans(height, 2 * columns, rows.address is not None, multiply_halves)
        else:
            tile_rows = max(_TILE_BYTES // (4 * columns) // _TILE_ROWS, 1) * _TILE_ROWS
            in_ranges(height, tile_rows, multiply_decoded)
