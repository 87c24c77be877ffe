"""Searches for the scale (and minimum) with the least error, for as many blocks at once as a vector has lanes.

They try the same candidates, in the same order and with the same arithmetic, as ggml's reference code built without
fused multiply-add. ``values`` and ``weights`` are tiles (see `lbrx.devices.cpu.simd.lanes`); levels are whole f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.f32 import absolute, nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import lane_extremes
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32
from lbrx.devices.cpu.simd.vectors import clamp, load, mask_bits, maximum, minimum, select, splat, store

ALL_ZERO = np.float32(1e-15)  # a block whose values are all smaller has no scale
_ROUNDER = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number, halves to even


@jit
def _range_and_sums(like: Any, values: Any, weights: Any, elements: Any) -> Any:
    low = load(like, values, 0)
    high = low
    weight_sum = load(like, weights, 0)
    value_sum = weight_sum * low
    for i in range(1, elements):
        value, weight = load(like, values, i), load(like, weights, i)
        low, high = minimum(value, low), maximum(value, high)
        weight_sum = weight_sum + weight
        value_sum = value_sum + weight * value
    return select(low > 0.0, splat(like, 0.0), low), high, weight_sum, value_sum


@jit
def _weighted_error(
    like: Any, values: Any, weights: Any, levels: Any, elements: Any, scale: Any, low: Any, by_magnitude: Any
) -> Any:
    error = splat(like, 0.0)
    for i in range(elements):
        difference = scale * load(like, levels, i) + low - load(like, values, i)
        distance = absolute(difference) if by_magnitude else difference * difference
        error = error + load(like, weights, i) * distance
    return error


@jit
def _fitted_line(weight_sum: Any, value_sum: Any, level_sum: Any, square_sum: Any, product_sum: Any) -> Any:
    """The least squares line through (level, value) with no positive minimum; where there is none, a False mask."""
    determinant = weight_sum * square_sum - level_sum * level_sum
    scale = (weight_sum * product_sum - value_sum * level_sum) / determinant
    low = (square_sum * value_sum - level_sum * product_sum) / determinant
    is_positive = low > 0.0
    scale = select(is_positive, product_sum / square_sum, scale)
    return determinant > 0.0, scale, select(is_positive, splat(low, 0.0), low)


@jit
def fit_scale_and_min(
    like: Any,
    values: Any,
    weights: Any,
    levels: Any,
    elements: Any,
    top: Any,
    first: Any,
    step: Any,
    tries: Any,
    by_magnitude: Any,
) -> Any:
    """Scale and minimum of x = scale level + minimum, levels 0 to ``top``, the minimum never positive.

    Also gives what the levels were made with: level = nearest(factor (x - origin)). ``levels`` is a tile to work in.
    """
    low, high, weight_sum, value_sum = _range_and_sums(like, values, weights, elements)
    lowest = low
    is_flat = high == low
    factor = splat(like, top) / (high - low)
    scale = splat(like, 1.0) / factor
    for i in range(elements):
        store(levels, i, clamp(nearest_even(factor * (load(like, values, i) - low)), 0.0, top))
    best_error = _weighted_error(like, values, weights, levels, elements, scale, low, by_magnitude)
    best_factor, best_origin = factor, low
    for number in range(tries + 1):
        factor = splat(like, (first + step * np.float32(number)) + top) / (high - low)
        level_sum, square_sum, product_sum = splat(like, 0.0), splat(like, 0.0), splat(like, 0.0)
        for i in range(elements):
            value = load(like, values, i)
            level = clamp(nearest_even(factor * (value - low)), 0.0, top)
            store(levels, i, level)
            weighted = load(like, weights, i) * level
            level_sum = level_sum + weighted
            square_sum = square_sum + weighted * level
            product_sum = product_sum + weighted * value
        is_line, this_scale, this_low = _fitted_line(weight_sum, value_sum, level_sum, square_sum, product_sum)
        error = _weighted_error(like, values, weights, levels, elements, this_scale, this_low, by_magnitude)
        is_better = is_line & (error < best_error)
        if mask_bits(is_better):
            best_error = select(is_better, error, best_error)
            best_factor = select(is_better, factor, best_factor)
            best_origin = select(is_better, low, best_origin)
            scale = select(is_better, this_scale, scale)
            low = select(is_better, this_low, low)
    zero = splat(like, 0.0)
    return select(is_flat, zero, scale), select(is_flat, lowest, low), select(is_flat, zero, best_factor), best_origin


@jit
def symmetric_level(value: Any, factor: Any, bound: Any) -> Any:
    """The level of a value, from -bound to bound - 1."""
    return clamp(nearest_even(factor * value), -bound, bound - np.float32(1.0))


@jit
def _symmetric_sums(like: Any, values: Any, weights: Any, elements: Any, factor: Any, bound: Any) -> Any:
    product_sum, square_sum = splat(like, 0.0), splat(like, 0.0)
    for i in range(elements):
        value, weight = load(like, values, i), load(like, weights, i)
        level = symmetric_level(value, factor, bound)
        product_sum = product_sum + weight * value * level
        square_sum = square_sum + weight * level * level
    return product_sum, square_sum


@jit
def fit_symmetric_scale(like: Any, values: Any, weights: Any, elements: Any, bound: Any) -> Any:
    """Scale of x = scale level, levels -bound to bound - 1, and the factor that makes the levels of the values.

    Both are 0 for a block without values that count.
    """
    largest, extreme = lane_extremes(like, values, elements)
    is_zero = largest < ALL_ZERO
    best_factor = splat(like, -bound) / extreme
    product_sum, square_sum = _symmetric_sums(like, values, weights, elements, best_factor, bound)
    zero = splat(like, 0.0)
    scale = select(square_sum != 0.0, product_sum / square_sum, zero)
    best = scale * product_sum
    for number in range(-9, 10):
        if number == 0:
            continue
        factor = splat(like, -(bound + np.float32(0.1) * np.float32(number))) / extreme
        product_sum, square_sum = _symmetric_sums(like, values, weights, elements, factor, bound)
        is_better = (square_sum > 0.0) & (product_sum * product_sum > best * square_sum)
        if mask_bits(is_better):
            scale = select(is_better, product_sum / square_sum, scale)
            best = select(is_better, scale * product_sum, best)
            best_factor = select(is_better, factor, best_factor)
    return select(is_zero, zero, scale), select(is_zero, zero, best_factor)


@jit
def _improved_level(value: Any, level: Any, product_sum: Any, square_sum: Any, bound: Any) -> Any:
    """The level of one value when those of the others stay, and the sums with it, where that lowers the error."""
    weight = value * value
    products = product_sum - weight * value * level
    squares = square_sum - weight * level * level
    other = clamp(nearest_even(value * squares / products), -bound, bound - np.float32(1.0))
    new_products = products + weight * value * other
    new_squares = squares + weight * other * other
    is_lower = new_products * new_products * square_sum > product_sum * product_sum * new_squares
    is_better = (products > 0.0) & (other != level) & (new_squares > 0.0) & is_lower
    return (
        is_better,
        select(is_better, other, level),
        select(is_better, new_products, product_sum),
        select(is_better, new_squares, square_sum),
    )


@jit
def refine_symmetric_levels(like: Any, values: Any, levels: Any, elements: Any, bound: Any) -> Any:
    """Scale of x = scale level where single levels are moved as long as that helps; they are left in ``levels``.

    Values count by their squares. The scale is 0 for a block without values that count, and its levels are -bound.
    """
    largest, extreme = lane_extremes(like, values, elements)
    is_zero = largest < ALL_ZERO
    factor = splat(like, -bound) / extreme
    product_sum, square_sum = splat(like, 0.0), splat(like, 0.0)
    for i in range(elements):
        value = load(like, values, i)
        level = symmetric_level(value, factor, bound)
        store(levels, i, level)
        weight = value * value
        product_sum = product_sum + weight * value * level
        square_sum = square_sum + weight * level * level
    for _ in range(5):
        changed = 0
        for i in range(elements):
            is_better, level, product_sum, square_sum = _improved_level(
                load(like, values, i), load(like, levels, i), product_sum, square_sum, bound
            )
            store(levels, i, level)
            changed |= mask_bits(is_better)
        if changed == 0:
            break
    for i in range(elements):
        store(levels, i, select(is_zero, splat(like, -bound), load(like, levels, i)))
    scale = select(square_sum > 0.0, product_sum / square_sum, splat(like, 0.0))
    return select(is_zero, splat(like, 0.0), scale)


@jit
def _nearest(value: Any) -> Any:
    return (value + _ROUNDER) - _ROUNDER


@jit
def _positive_error(values: Any, weights: Any, count: Any, top: Any, factor: Any) -> Any:
    scale = np.float32(1.0) / factor
    error = np.float32(0.0)
    for i in range(count):
        value = peek_f32(values, i)
        difference = value - scale * min(top, _nearest(factor * value))
        error += peek_f32(weights, i) * difference * difference
    return error


@jit
def fit_positive_scale(values: Any, weights: Any, levels: Any, count: Any, top: Any) -> Any:
    """Scale of x = scale level for a few numbers that are not negative; leaves levels 0 to ``top`` in ``levels``."""
    largest = np.float32(0.0)
    for i in range(count):
        largest = max(largest, peek_f32(values, i))
        poke_f32(levels, i, np.float32(0.0))
    if largest < ALL_ZERO:
        return np.float32(0.0)
    best_factor = top / largest
    best_error = _positive_error(values, weights, count, top, best_factor)
    for number in range(-4, 5):
        factor = (np.float32(0.1) * np.float32(number) + top) / largest
        error = _positive_error(values, weights, count, top, factor)
        if number != 0 and error < best_error:
            best_error, best_factor = error, factor
    product_sum, square_sum = np.float32(0.0), np.float32(0.0)
    for i in range(count):
        value, weight = peek_f32(values, i), peek_f32(weights, i)
        level = min(top, _nearest(best_factor * value))
        poke_f32(levels, i, level)
        product_sum += weight * value * level
        square_sum += weight * level * level
    for _ in range(5):
        product_sum, square_sum, changed = _refine_positive(
            values, weights, levels, count, top, product_sum, square_sum
        )
        if not changed:
            break
    return product_sum / square_sum if square_sum > 0 else np.float32(0.0)


@jit
def _refine_positive(
    values: Any, weights: Any, levels: Any, count: Any, top: Any, product_sum: Any, square_sum: Any
) -> Any:
    """Move single levels where that lowers the error of the best scale."""
    changed = False
    for i in range(count):
        value, weight, level = peek_f32(values, i), peek_f32(weights, i), peek_f32(levels, i)
        products = product_sum - weight * value * level
        squares = square_sum - weight * level * level
        if not (products > 0 and squares > 0):
            continue
        other = min(top, _nearest(value * squares / products))
        if other == level:
            continue
        products += weight * value * other
        squares += weight * other * other
        if products * products * square_sum > product_sum * product_sum * squares:
            poke_f32(levels, i, other)
            product_sum, square_sum, changed = products, squares, True
    return product_sum, square_sum, changed
