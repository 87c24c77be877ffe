"""A weight in bf16 times many vectors in bf16, on processors with instructions for that.

Results are summed in f32, in the order of the elements: within k 2**-23 of the sum of the magnitudes of k products.
Numbers, and sums, below 2**-126 count as zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import run_together
from lbrx.devices.cpu.ops.gemm_i16 import TILE_ROWS, in_spans
from lbrx.devices.cpu.ops.weight_rows import HalfRows, rows_of
from lbrx.devices.cpu.simd.processor import MULTIPLIES_BF16
from lbrx.engine.arrays import Floats, Values, floats, is_bf16
from lbrx.memory.scratch import borrowing
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor

_PANEL_VECTORS, _PAIRS, _BLOCK = 16, 16, 32
_MOST_VECTORS, _LEAST_VECTORS = 512, 16
Halves = npt.NDArray[np.uint16]


def halves_of(x: Values, weight: Values, bits: int = 16) -> Halves | None:
    """The vectors [n, k] as bits, if they and the weight [m, k] are of the kind that is faster here.

    If activations may have 8 bits, vectors of f32 are rounded to bf16, unless that makes one of them infinite.
    """
    vectors, columns = x.shape
    if vectors < _LEAST_VECTORS or not MULTIPLIES_BF16 or not is_bf16(weight) or not (is_bf16(x) or bits == 8):
        return None
    if not weight.shape[0] or not columns or columns % _BLOCK:
        return None
    if not is_bf16(x):
        return _rounded(floats(x))
    array: Any = x.numpy() if isinstance(x, Tensor) else x
    return np.ascontiguousarray(array).view(np.uint16)


def _rounded(x: Floats) -> Halves | None:
    """Vectors of f32 as bf16, or None if one of the results is not finite."""
    values, halves, watched = np.ascontiguousarray(x), np.empty(x.shape, np.uint16), np.zeros(1, np.int32)
    job = np.array([address(values), address(halves), address(watched)], np.int64)
    run_together(*_task("round_rows"), address(job), x.shape[1], x.shape[0], 1, most=_PANEL_VECTORS)
    return None if watched[0] else halves


@cache
def _task(name: str) -> tuple[Any, int]:
    return compiled("gemm_bf16", name, 4), code_address("gemm_bf16", name, 4)


def gemm_bf16(x: Halves, weight: Tensor, out: Floats) -> bool:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m]; False, and nothing done, if the rows do not
    lie one after the other.
    """
    rows = rows_of(weight)
    if not isinstance(rows, HalfRows):
        return False
    for first in range(0, x.shape[0], _MOST_VECTORS):
        _some_vectors(x[first : first + _MOST_VECTORS], rows, out[first : first + _MOST_VECTORS])
    return True


def _some_vectors(x: Halves, rows: HalfRows, out: Floats) -> None:
    vectors, columns = x.shape
    panels, height = -(-vectors // _PANEL_VECTORS), out.shape[1]
    with borrowing() as borrow:
        packed = address(borrow(2 * _PANEL_VECTORS * columns * panels))
        job = np.array([address(x), vectors, packed], np.int64)
        run_together(*_task("pack_panels"), address(job), columns, panels, 1, most=1)

        def multiply(first: int, stop: int) -> None:
            window = rows.window(first, stop)
            target = address(out) + 4 * first, height
            numbers = address(window), columns, packed, vectors, *target, _PAIRS, TILE_ROWS * settings.threads
            job = np.array(numbers, np.int64)
            run_together(*_task("multiply"), address(job), 2 * columns, stop - first, TILE_ROWS, most=TILE_ROWS)
            rows.done(first, stop)

        in_spans(height, 2 * columns, rows.address is not None, multiply)
