"""Error feedback: what rounding an element takes away is made up for by the columns behind it.

Sixteen rows are rounded side by side, each by itself: lane j of vector i of a tile is column i of row j. ``factors``
are the rows of an upper triangular matrix for the ``columns`` of the tile. The scales of a block are tried out: the
ones with the least loss are used, when its columns are rounded with feedback as they are when the block is reached.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.nonlinear import nearest_code, nearest_value
from lbrx.devices.cpu.simd.f32 import absolute, nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32
from lbrx.devices.cpu.simd.vectors import clamp, load, maximum, minimum, select, splat, store, store_u8, to_i32

LANES = 16
LARGEST = np.float32(3.4028234663852886e38)
ONE = np.float32(1.0)


@jit
def load_tile(like: Any, left: Any, groups: Any, group: Any, columns: Any, tile: Any) -> None:
    for i in range(columns):
        store(tile, i, load(like, left, i * groups + group))


@jit
def store_tile(like: Any, left: Any, groups: Any, group: Any, columns: Any, tile: Any) -> None:
    for i in range(columns):
        store(left, i * groups + group, load(like, tile, i))


@jit
def extremes(like: Any, tile: Any, first: Any, elements: Any) -> Any:
    """The least and the greatest value, and the one of both with the larger magnitude."""
    low = load(like, tile, first)
    high = low
    for i in range(1, elements):
        value = load(like, tile, first + i)
        low, high = minimum(value, low), maximum(value, high)
    return low, high, select(absolute(low) > absolute(high), low, high)


@jit
def inverse_of(value: Any) -> Any:
    return select(value == 0.0, splat(value, 0.0), splat(value, 1.0) / value)


@jit
def whole_multiple(value: Any, unit: Any, bottom: Any, top: Any) -> Any:
    """The number from ``bottom`` to ``top`` whose product with the unit is nearest."""
    return clamp(nearest_even(value * inverse_of(unit)), bottom, top)


@jit
def _linear_level(value: Any, bottom: Any, top: Any) -> Any:
    return clamp(nearest_even(value), bottom, top)


@jit
def _table_level(value: Any, bottom: Any, top: Any) -> Any:
    return nearest_value(value)


@jit
def _linear_code(level: Any, bottom: Any) -> Any:
    return to_i32(level - bottom)


@jit
def _table_code(level: Any, bottom: Any) -> Any:
    return to_i32(nearest_code(level))


def make_rounding(level_of: Any, code_of: Any) -> Any:
    """Functions that try and that round a block with given scales, for levels from ``bottom`` to ``top``."""

    @jit
    def loss(
        like: Any, tile: Any, work: Any, block: Any, factors: Any, columns: Any, scale: Any, low: Any, levels: Any
    ) -> Any:
        """The sum of squares of the errors of a block (first column, columns) that is rounded with these scales."""
        first, elements = block
        bottom, top = levels
        for i in range(elements):
            store(work, i, load(like, tile, first + i))
        inverse, total = inverse_of(scale), splat(like, 0.0)
        for i in range(elements):
            row = factors + 4 * ((first + i) * columns + first)
            value = load(like, work, i)
            level = level_of((value - low) * inverse, bottom, top)
            error = (value - (level * scale + low)) * (ONE / peek_f32(row, i))
            total = total + error * error
            for k in range(i + 1, elements):
                store(work, k, load(like, work, k) - error * peek_f32(row, k))
        return total

    @jit
    def commit(
        like: Any,
        tile: Any,
        block: Any,
        factors: Any,
        columns: Any,
        scale: Any,
        low: Any,
        levels: Any,
        codes: Any,
        rows: Any,
    ) -> None:
        """Round a block: its vectors become errors, which all columns behind it make up for."""
        first, elements = block
        bottom, top = levels
        inverse = inverse_of(scale)
        for i in range(first, first + elements):
            row = factors + 4 * i * columns
            value = load(like, tile, i)
            level = level_of((value - low) * inverse, bottom, top)
            error = (value - (level * scale + low)) * (ONE / peek_f32(row, i))
            store_u8(codes + i * rows, code_of(level, bottom))
            store(tile, i, error)
            for k in range(i + 1, columns):
                store(tile, k, load(like, tile, k) - error * peek_f32(row, k))

    return loss, commit


linear_loss, linear_commit = make_rounding(_linear_level, _linear_code)
table_loss, table_commit = make_rounding(_table_level, _table_code)
