"""Groups of columns on a grid of equal steps, searched when the group is reached, and rounded with error feedback.

Each row is by itself. A value is ``low + code x step``. The grid has the least sum of squared errors, each times the
weight of its column, among some candidates; numbers of a grid are rounded to the type in which they will be stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f32, round_bf16, round_f16, store_byte, store_f32
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32
from lbrx.devices.cpu.simd.scalars import fabs, rint
from lbrx.devices.cpu.simd.vectors import clamp, f32x16, lane_max, lane_min, lane_sum, load, maximum, minimum, store

WIDE = 16
SYMMETRIC, WITH_ZERO_POINT, FREE = 0, 1, 2  # a grid around zero, one that contains zero, any
_F16, _BF16 = 1, 2
_CUTS = 6  # candidates for each end of a grid
_CUT = np.float32(0.045)  # of the span
_FIRST, _STEP, _SIZES = np.float32(0.55), np.float32(0.03), 18  # candidates for the step of a symmetric grid
_REFINEMENTS = 4


@jit
def _in_type(value: Any, number_type: Any) -> Any:
    if number_type == _F16:
        return round_f16(value)
    return round_bf16(value) if number_type == _BF16 else value


@jit
def _low_of(low: Any, step: Any, top: Any, kind: Any, number_type: Any) -> Any:
    """The low end that can be stored with a step."""
    if kind == SYMMETRIC:
        return -step * np.float32((top + 1) >> 1)
    if kind == WITH_ZERO_POINT:
        return -step * min(max(rint(-low / step), np.float32(0.0)), np.float32(top))
    return _in_type(low, number_type)


@jit
def _error(values: Any, weights: Any, size: Any, low: Any, step: Any, top: Any) -> Any:
    like = f32x16(0.0)
    total = like
    for number in range(size // WIDE):
        value = load(like, values, number)
        code = clamp(nearest_even((value - low) / step), np.float32(0.0), np.float32(top))
        missed = value - (code * step + low)
        total = total + load(like, weights, number) * missed * missed
    return lane_sum(total)


@jit
def _fitted(values: Any, weights: Any, size: Any, low: Any, step: Any, top: Any, kind: Any) -> Any:
    """The grid of least error for the codes that another grid gives."""
    like = f32x16(0.0)
    total, codes, squares, sums, products = like, like, like, like, like
    for number in range(size // WIDE):
        value, weight = load(like, values, number), load(like, weights, number)
        code = clamp(nearest_even((value - low) / step), np.float32(0.0), np.float32(top))
        if kind != FREE:
            code = code + low / step
        weighted = weight * code
        total, codes, squares = total + weight, codes + weighted, squares + weighted * code
        sums, products = sums + weight * value, products + weighted * value
    first, second, third = lane_sum(total), lane_sum(codes), lane_sum(squares)
    fourth, fifth = lane_sum(sums), lane_sum(products)
    if kind != FREE:
        if third <= 0:
            return low, step
        found = fifth / third
        return low / step * found, found
    determinant = first * third - second * second
    if determinant <= 0:
        return low, step
    found = (first * fifth - second * fourth) / determinant
    return (fourth - found * second) / first, found


@jit
def _searched(values: Any, weights: Any, size: Any, top: Any, kind: Any, number_type: Any) -> Any:
    """The best grid of a group."""
    lows = load(f32x16(0.0), values, 0)
    highs = lows
    for number in range(1, size // WIDE):
        value = load(lows, values, number)
        lows, highs = minimum(value, lows), maximum(value, highs)
    least, most = lane_min(lows), lane_max(highs)
    if kind == FREE and least == most:
        return _in_type(least, number_type), np.float32(1.0)
    if kind == WITH_ZERO_POINT:
        least, most = min(least, np.float32(0.0)), max(most, np.float32(0.0))
    span = most - least
    peak = max(fabs(least), fabs(most))
    best_low, best_step = _low_of(np.float32(0.0), np.float32(1.0), top, kind, number_type), np.float32(1.0)
    if peak == 0:
        return best_low, best_step
    best = np.float32(np.inf)
    count = _SIZES if kind == SYMMETRIC else _CUTS * _CUTS
    for candidate in range(count):
        if kind == SYMMETRIC:
            step = peak / np.float32(top >> 1) * (_FIRST + _STEP * np.float32(candidate))
            low = -step * np.float32((top + 1) >> 1)
        else:
            low = least + span * _CUT * np.float32(candidate // _CUTS)
            step = (most - span * _CUT * np.float32(candidate % _CUTS) - low) / np.float32(top)
        step = _in_type(step, number_type)
        if not step > 0:
            continue
        low = _low_of(low, step, top, kind, number_type)
        low, step = _fitted(values, weights, size, low, step, top, kind)
        step = _in_type(step, number_type)
        if not step > 0:
            continue
        low = _low_of(low, step, top, kind, number_type)
        missed = _error(values, weights, size, low, step, top)
        if missed < best:
            best, best_low, best_step = missed, low, step
    for _ in range(_REFINEMENTS):
        low, step = _fitted(values, weights, size, best_low, best_step, top, kind)
        step = _in_type(step, number_type)
        if not step > 0:
            break
        low = _low_of(low, step, top, kind, number_type)
        missed = _error(values, weights, size, low, step, top)
        if not missed < best:
            break
        best, best_low, best_step = missed, low, step
    return best_low, best_step


@jit
def _round(values: Any, size: Any, factors: Any, low: Any, step: Any, top: Any, codes: Any, errors: Any) -> None:
    """Round the columns of a row one after the other; ``factors`` is 0 for no feedback."""
    like = f32x16(0.0)
    for i in range(size):
        value = peek_f32(values, i)
        code = min(max(rint((value - low) / step), np.float32(0.0)), np.float32(top))
        store_byte(codes, i, np.uint8(code))
        if factors == 0:
            continue
        error = (value - (low + code * step)) / load_f32(factors, i * size + i)
        store_f32(errors, i, error)
        for vector in range(i // WIDE, size // WIDE):
            factor = load(like, factors + 4 * i * size, vector)
            store(values, vector, load(like, values, vector) - factor * error)


def encode(
    values: int,
    rows: int,
    size: int,
    weights: int,
    factors: int,
    codes: int,
    grids: int,
    errors: int,
    top: int,
    kind: int,
    number_type: int,
) -> None:
    """Encode a group of columns [rows, size]: a byte for each code, and low end and step for each row.

    ``factors`` are the rows of an upper triangular matrix [size, size], or 0 for no feedback. ``errors`` [rows, size]
    are what later columns need. The size is a multiple of 16; values are changed.
    """
    for row in range(rows):
        own = values + 4 * row * size
        low, step = _searched(own, weights, size, top, kind, number_type)
        store_f32(grids, 2 * row, low)
        store_f32(grids, 2 * row + 1, step)
        _round(own, size, factors, low, step, top, codes + row * size, errors + 4 * row * size)
