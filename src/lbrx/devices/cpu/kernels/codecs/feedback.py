"""Error feedback in the columns of a block: what rounding an element takes away is made up for by those behind it.

Each row is by itself. ``factors`` are the rows of an upper triangular matrix [columns, columns] for the columns of the
block, zeros below the diagonal. The number of columns is a multiple of 16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.nonlinear import VALUES
from lbrx.devices.cpu.simd.elements import load_f32, store_byte, store_f32
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32
from lbrx.devices.cpu.simd.scalars import rint
from lbrx.devices.cpu.simd.vectors import f32x16, load, store

_LEVELS = VALUES
_ZERO_CODE = 8  # of the table, the least level


@jit
def _spread_error(row: Any, factors: Any, number: Any, columns: Any, error: Any) -> None:
    """Subtract a row of the factors times the error, from the vector with the element on."""
    like = f32x16(0.0)
    for vector in range(number // 16, columns // 16):
        factor = load(like, factors + 4 * number * columns, vector)
        store(row, vector, load(like, row, vector) - factor * error)


@jit
def _nearest_level(value: Any) -> Any:
    code = 0
    for number in range(15):
        middle = np.float32((_LEVELS[number] + _LEVELS[number + 1]) / 2)
        if value > middle:
            code = number + 1
    return code


def fixed(rows: int, count: int, columns: int, factors: int, decoded: int, errors: int) -> None:
    """Elements become the numbers that are given; ``errors`` [count, columns] are what later columns need."""
    for row in range(count):
        values, given, out = rows + 4 * row * columns, decoded + 4 * row * columns, errors + 4 * row * columns
        for i in range(columns):
            error = (peek_f32(values, i) - load_f32(given, i)) / load_f32(factors, i * columns + i)
            store_f32(out, i, error)
            _spread_error(values, factors, i, columns, error)


def linear(
    rows: int, count: int, columns: int, factors: int, lows: int, steps: int, codes: int, errors: int, top: int
) -> None:
    """Elements become low + code step with codes up to ``top``, a byte each."""
    for row in range(count):
        start = 4 * row * columns
        values, low, step, out = rows + start, lows + start, steps + start, errors + start
        for i in range(columns):
            value, size, origin = peek_f32(values, i), load_f32(step, i), load_f32(low, i)
            code = rint((value - origin) / size) if size != 0 else np.float32(0.0)
            code = min(max(code, np.float32(0.0)), np.float32(top))
            error = (value - (origin + code * size)) / load_f32(factors, i * columns + i)
            store_byte(codes, row * columns + i, np.uint8(code))
            store_f32(out, i, error)
            _spread_error(values, factors, i, columns, error)


def nonlinear(rows: int, count: int, columns: int, factors: int, units: int, codes: int, errors: int) -> None:
    """Elements become a level of IQ4_NL times their unit."""
    for row in range(count):
        start = 4 * row * columns
        values, unit, out = rows + start, units + start, errors + start
        for i in range(columns):
            value, size = peek_f32(values, i), load_f32(unit, i)
            code = _nearest_level(value / size) if size != 0 else _ZERO_CODE
            error = (value - np.float32(_LEVELS[code]) * size) / load_f32(factors, i * columns + i)
            store_byte(codes, row * columns + i, np.uint8(code))
            store_f32(out, i, error)
            _spread_error(values, factors, i, columns, error)
