"""The first search of IQ2_XXS: the scale of magnitudes without a grid, in every lane by itself.

Values are magnitudes, though some can be negative. ggml keeps their levels in a byte, so that negative ones wrap around
where a level is read again. The results depend on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import clamp, load, mask_bits, minimum, select, splat, store, to_f32, to_i32

_FARTHEST = np.float32(4194303.0)


@jit
def _as_byte(level: Any) -> Any:
    whole = to_i32(clamp(level, -_FARTHEST, _FARTHEST))
    return to_f32(whole & splat(whole, np.int32(255)))


@jit
def _error(like: Any, values: Any, weights: Any, elements: Any, top: Any, factor: Any, is_first: Any) -> Any:
    error, scale = splat(like, 0.0), splat(like, 1.0) / factor
    for i in range(elements):
        value = load(like, values, i)
        level = nearest_even(factor * value)
        level = _as_byte(level) if is_first else minimum(level, splat(like, top))
        difference = value - scale * level
        error = error + load(like, weights, i) * difference * difference
    return error


@jit
def fit_magnitudes(like: Any, values: Any, weights: Any, levels: Any, elements: Any, top: Any, largest: Any) -> Any:
    """The scale of value = scale level, with levels up to ``top`` that are left in a tile."""
    best_factor = splat(like, top) / largest
    best_error = _error(like, values, weights, elements, top, best_factor, True)
    for number in range(-4, 5):
        if number == 0:
            continue
        factor = splat(like, np.float32(0.1) * np.float32(number) + top) / largest
        error = _error(like, values, weights, elements, top, factor, False)
        is_better = error < best_error
        best_error, best_factor = select(is_better, error, best_error), select(is_better, factor, best_factor)
    product_sum, square_sum = splat(like, 0.0), splat(like, 0.0)
    for i in range(elements):
        value, weight = load(like, values, i), load(like, weights, i)
        level = minimum(nearest_even(best_factor * value), splat(like, top))
        store(levels, i, _as_byte(level))
        product_sum = product_sum + weight * value * level
        square_sum = square_sum + weight * level * level
    for _ in range(5):
        changed = 0
        for i in range(elements):
            value, weight, level = load(like, values, i), load(like, weights, i), load(like, levels, i)
            products = product_sum - weight * value * level
            squares = square_sum - weight * level * level
            other = minimum(nearest_even(value * squares / products), splat(like, top))
            is_moved = (products > 0.0) & (squares > 0.0) & (other != level)
            products = products + weight * value * other
            squares = squares + weight * other * other
            is_moved = is_moved & (products * products * square_sum > product_sum * product_sum * squares)
            if mask_bits(is_moved):
                changed = 1
                store(levels, i, select(is_moved, _as_byte(other), level))
                product_sum = select(is_moved, products, product_sum)
                square_sum = select(is_moved, squares, square_sum)
        if changed == 0:
            break
    return select(square_sum > 0.0, product_sum / square_sum, splat(like, 0.0))
