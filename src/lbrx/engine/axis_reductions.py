"""Reductions along an axis that is not the last: blocks of rows are computed, then added up in their order.

Blocks depend on shapes alone, so results do not depend on threads or chunks, and only a block is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.bind import Known
from lbrx.engine.products import resolved
from lbrx.tensors import views
from lbrx.tensors.expr import Expr, cast
from lbrx.tensors.reductions import AxisReduce
from lbrx.tensors.storage import CpuStorage, Storage

BLOCK_ELEMENTS = 1 << 20
Array = npt.NDArray[Any]
Evaluate = Callable[[list[Expr]], list[Any]]


def reduced(expr: AxisReduce, known: Known, evaluate: Evaluate) -> Storage:
    """The whole result; ``evaluate`` computes arrays."""
    axis, arg = expr.axis, resolved(expr.args[0], known)
    outer, inner = arg.shape[:axis], arg.shape[axis + 1 :]
    result = np.zeros((*outer, *inner), expr.dtype.compute.numpy)
    rows = max(BLOCK_ELEMENTS // max(math.prod(inner), 1), 1)
    for index in np.ndindex(*outer):
        part = views.sliced(arg, index) if index else arg
        state: tuple[Array, ...] = ()
        for start in range(0, arg.shape[axis], rows):
            block = views.row_range(part, start, min(start + rows, arg.shape[axis]))
            (values,) = evaluate([cast(block, arg.dtype.compute)])
            with np.errstate(all="ignore"):
                state = _STEPS[expr.op](state, values, start)
        if state:
            result[index] = state[-1]
    return CpuStorage.from_array(result.astype(expr.dtype.numpy, copy=False))


def _added(state: tuple[Array, ...], block: Array, _start: int) -> tuple[Array, ...]:
    total = np.zeros(block.shape[1:], block.dtype) if not state else state[0]
    for row in block:
        total += row
    return (total,)


def _smallest(state: tuple[Array, ...], block: Array, _start: int) -> tuple[Array, ...]:
    low = block.min(axis=0)
    return (np.minimum(state[0], low) if state else low,)


def _largest(state: tuple[Array, ...], block: Array, _start: int) -> tuple[Array, ...]:
    high = block.max(axis=0)
    return (np.maximum(state[0], high) if state else high,)


def _first_largest(state: tuple[Array, ...], block: Array, start: int) -> tuple[Array, ...]:
    index = block.argmax(axis=0)
    high = np.take_along_axis(block, index[None], 0)[0]
    if not state:
        return high, index + start
    best, best_index = state
    is_better = ~((best >= high) | (best != best))
    return np.where(is_better, high, best), np.where(is_better, index + start, best_index)


_STEPS: dict[str, Callable[[tuple[Array, ...], Array, int], tuple[Array, ...]]] = {
    "sum": _added,
    "min": _smallest,
    "max": _largest,
    "argmax": _first_largest,
}
